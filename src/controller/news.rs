//! What a change of a Lease tells: which grant ended and how, which one began.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

use super::index::Slot;
use crate::api::{EndReason, FencingToken, HistoryEntry};
use crate::engine::{EndKind, Ended, LeaseRecord, WallMicros};

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
    /// A grant ended; why and by whose hand, where that was noted.
    Ended(HistoryEntry, Option<String>),
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
        slot.news.push_back(News::Ended(entry, why));
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
