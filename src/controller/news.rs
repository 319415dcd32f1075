//! What a change of a Lease tells: which grant ended and how, which one began.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

use super::index::Slot;
use crate::api::{EndReason, FencingToken, HistoryEntry};
use crate::engine::{EndKind, Ended, Hold, LeaseRecord, WallMicros};

/// Something worth an event and a count.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A grant was seen.
    Granted {
        /// `holderIdentity`.
        holder: String,
        /// The token, where it has one yet.
        token: Option<FencingToken>,
    },
    /// A grant ended; why and by whose hand, where that was noted; and whether as it was meant to.
    Ended(HistoryEntry, Option<String>, bool),
    /// An annotation holds a number too large to be believed.
    AbsurdToken,
}

/// The most ended grants and pieces of news that a slot keeps until the leader has told them; a standby drops the
/// oldest. History holds 50 at most.
const KEPT: usize = 50;

/// What the change from `before` to `after` tells: which grant ended, which one began.
pub(super) fn note_news(
    slot: &mut Slot,
    before: Option<&LeaseRecord>,
    after: &LeaseRecord,
    wall: WallMicros,
) {
    let holds = |record: &&LeaseRecord| !record.is_free() && !record.is_missing();
    let held = before.filter(holds);
    let holds_now = Some(after).filter(holds);
    let same = held
        .zip(holds_now)
        .is_some_and(|(a, b)| a.grant_id() == b.grant_id());
    if !same && let Some(held) = held {
        let entry = HistoryEntry {
            slot: 0,
            holder_identity: held.spec.holder.clone(),
            fencing_token: held.current_token(),
            acquire_time: held.spec.acquire_time.and_then(micro_time),
            end_time: micro_time(wall),
            reason: how_it_ended(held, after),
        };
        slot.ends.push_back(entry.clone());
        let noted = note_of(held, after);
        let why = noted.map(|ended| format!("{} (by {})", ended.reason, ended.by));
        // A Pod hold that lasted as long as its Pod, a Fixed one that lasted for its time.
        let fixed = || held.current_grant().map(|grant| grant.hold) == Some(Hold::Fixed);
        let in_order = match entry.reason {
            EndReason::Released | EndReason::Ended => true,
            EndReason::Expired => fixed(),
            EndReason::Revoked | EndReason::Deleted | EndReason::Other => false,
        };
        slot.news.push_back(News::Ended(entry, why, in_order));
    }
    if !same && let Some(now) = holds_now {
        slot.news.push_back(News::Granted {
            holder: now.spec.holder.clone(),
            token: now.current_token(),
        });
    }
    let absurd = |record: &LeaseRecord| record.has_absurd_token();
    if absurd(after) && !before.is_some_and(absurd) {
        slot.news.push_back(News::AbsurdToken);
    }
    while slot.ends.len() > KEPT {
        slot.ends.pop_front();
    }
    while slot.news.len() > KEPT {
        slot.news.pop_front();
    }
}

/// How the grant that `held` shows ended, by what stands in its place.
#[must_use]
pub fn how_it_ended(held: &LeaseRecord, after: &LeaseRecord) -> EndReason {
    if after.uid != held.uid {
        return EndReason::Deleted;
    }
    match note_of(held, after).map(|ended| ended.kind) {
        Some(kind) => end_reason(kind),
        // Other clients leave no note: they empty the Lease when they release, and replace who fell silent.
        None if after.is_free() => EndReason::Released,
        None => EndReason::Expired,
    }
}

/// What `after` notes of the end of the grant that `held` shows.
fn note_of<'a>(held: &LeaseRecord, after: &'a LeaseRecord) -> Option<&'a Ended> {
    after
        .ended
        .as_ref()
        .filter(|ended| ended.uid == held.uid && ended.transitions == held.spec.transitions)
}

/// The word for it in history.
#[must_use]
pub fn end_reason(kind: EndKind) -> EndReason {
    match kind {
        EndKind::Released => EndReason::Released,
        EndKind::Expired => EndReason::Expired,
        EndKind::Revoked => EndReason::Revoked,
        EndKind::Ended => EndReason::Ended,
    }
}

/// A time for people.
#[must_use]
pub fn micro_time(micros: WallMicros) -> Option<MicroTime> {
    Timestamp::from_microsecond(micros).ok().map(MicroTime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{LockView, NextChange, Requester, Standing, change};
    use crate::lease::FoundLease;
    use serde_json::json;

    /// Whether the end of a grant of this kind, by this hand, is told as one that was meant.
    fn in_order(hold: Hold, kind: EndKind) -> bool {
        let free = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "nightly", "namespace": "a", "uid": "u1", "resourceVersion": "8"},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 15, "leaseTransitions": 3},
        });
        let free = FoundLease::read(serde_json::from_value(free).expect("a lease"));
        let free = free.expect("a lease").record;
        let who = Requester {
            hold,
            ..Requester::heartbeat("seat/11111111-2222-3333-4444-555555555555")
        };
        let lock = LockView {
            duration_seconds: 15,
            longest_seconds: Some(15),
            ..LockView::default()
        };
        let take = change::take(&lock, &free, Standing::Free, &who, NextChange::Keep, 1);
        let taken = take.expect("it is free").record;
        let ended = change::end(&taken, kind, "operator", "it had its time", 2);
        let mut slot = Slot::default();
        note_news(&mut slot, Some(&taken), &ended, 2);
        match slot.news.front() {
            Some(News::Ended(_, _, in_order)) => *in_order,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_fixed_hold_that_lasted_its_time_is_no_trouble_and_a_silent_holder_is() {
        for (hold, kind, expected) in [
            (Hold::Fixed, EndKind::Expired, true),
            (Hold::Pod, EndKind::Ended, true),
            (Hold::Heartbeat, EndKind::Released, true),
            (Hold::Heartbeat, EndKind::Expired, false),
            (Hold::Fixed, EndKind::Revoked, false),
        ] {
            assert_eq!(in_order(hold, kind), expected, "{hold:?} {kind:?}");
        }
    }
}
