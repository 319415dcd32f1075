//! The mirror: what a lock's status says, as a pure function of the status before, the lock, its Leases and its queue.
//!
//! Invariants: tokens and `longestLeaseDurationSeconds` never fall, no slot entry is removed, one token never has two
//! holders (the API server's transition rules refuse all of that too). Renewals change nothing here, so the number of
//! status writes does not grow with them.

mod conditions;
mod history;

use super::news::micro_time;
use crate::api::names::{self, MAX_IDENTITY_CHARS, MAX_NAME_CHARS, MAX_NEXT_WAITERS, clip};
use crate::api::{
    DistributedLock, DistributedLockStatus, HistoryEntry, HoldType, LockPhase, SlotStatus,
};
use crate::engine::{
    Grant, GrantNote, Hold, LeaseRecord, LockView, Loss, Queue, Unavailable, WallMicros,
};

/// Why a lock can't work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The rules say so.
    Unavailable(Unavailable),
    /// Another lock has the Lease.
    TakenBy(String),
    /// The Lease is that of the operator's own election.
    Election,
}

/// What the mirror shows.
#[derive(Debug)]
pub struct Sight<'a> {
    /// The lock, with its status before.
    pub lock: &'a DistributedLock,
    /// Its slots, from slot 0.
    pub slots: Vec<SlotSight<'a>>,
    /// Who waits.
    pub queue: &'a Queue,
    /// Now.
    pub wall: WallMicros,
}

/// What is known of one slot.
#[derive(Debug)]
pub struct SlotSight<'a> {
    /// The lock as the rules see it for this slot.
    pub view: LockView,
    /// Its Lease; `None` where there is none, or where it is another's.
    pub lease: Option<&'a LeaseRecord>,
    /// Why the slot can't work, where it can't.
    pub trouble: Option<Trouble>,
    /// Whether to add the slot's first entry: only the write that opens it does.
    pub open: bool,
    /// Whether its holder counts as lost.
    pub loss: Loss,
    /// Grants that ended since, the latest last.
    pub ends: Vec<HistoryEntry>,
}

impl SlotSight<'_> {
    fn number(&self) -> i32 {
        i32::try_from(self.view.number).unwrap_or(i32::MAX)
    }

    /// Who keeps others from taking the slot: a `missing` counts once the slot was opened.
    fn holder(&self) -> Option<&str> {
        if self.lacks_consent() {
            let known = self.view.slot.as_ref()?;
            return Some(known.holder.as_str()).filter(|holder| !holder.is_empty());
        }
        let lease = self.lease.filter(|lease| !lease.is_free())?;
        let opened = self.view.slot.is_some() && !self.open;
        (opened || !lease.is_missing()).then_some(lease.spec.holder.as_str())
    }

    /// Whether its Lease lacks the label that makes it the lock's: what is known of its holder is neither confirmed nor
    /// refuted then, and stays, for a grant can't be shown anew once its end is.
    fn lacks_consent(&self) -> bool {
        self.trouble == Some(Trouble::Unavailable(Unavailable::NotOurs))
    }

    /// By which field of the spec a grant of this slot alone is revoked.
    fn floor(&self, token: i64) -> String {
        if self.view.number == 0 && self.view.max_holders <= 1 {
            return format!("minFencingToken {token}");
        }
        format!(
            "slotMinFencingTokens [{{slot: {}, token: {token}}}]",
            self.view.number
        )
    }
}

/// The status that shows it.
#[must_use]
pub fn mirror(sight: &Sight<'_>) -> DistributedLockStatus {
    let lock = sight.lock;
    let before = lock.status.clone().unwrap_or_default();
    let mut status = before.clone();
    status.observed_generation = lock.metadata.generation;
    status.lease_name = Some(clip(&lock.lease_name(), MAX_NAME_CHARS).to_owned());
    let mut ended = vec![];
    for slot in &sight.slots {
        let old = before.slots.iter().find(|e| e.slot == slot.number());
        if old.is_none() && !slot.open {
            continue;
        }
        let asked = i32::try_from(slot.view.duration_seconds).unwrap_or(i32::MAX);
        let longest = status.longest_lease_duration_seconds.unwrap_or(1);
        status.longest_lease_duration_seconds = Some(longest.max(asked));
        let entry = slot_entry(slot, old.cloned().unwrap_or_default());
        ended.extend(history::ends_to_tell(&before, &entry, slot, sight.wall));
        status.slots.retain(|other| other.slot != slot.number());
        status.slots.push(entry);
    }
    status.slots.sort_by_key(|entry| entry.slot);
    status.history = history::with(&before, ended, lock.spec.history_limit);
    let tokens = status.slots.iter().filter_map(|entry| entry.fencing_token);
    status.fencing_token = tokens.max().max(before.fencing_token);
    let holders = holders(sight);
    status.phase = Some(phase(sight, &before, !holders.is_empty()));
    status.held = Some(format!(
        "{}/{}",
        holders.len(),
        lock.spec.effective_max_holders()
    ));
    status.holder = holders.first().map(|first| match holders.len() - 1 {
        0 => short(first).to_owned(),
        more => format!("{} +{more}", short(first)),
    });
    status.waiters = Some(i32::try_from(sight.queue.len()).unwrap_or(i32::MAX));
    status.next_waiters = next_waiters(sight);
    conditions::set(&mut status, sight, &holders);
    status
}

/// Who holds the slots, in their order; those who stand in for a deleted Lease last.
fn holders<'a>(sight: &'a Sight<'_>) -> Vec<&'a str> {
    let mut holders: Vec<_> = sight.slots.iter().filter_map(SlotSight::holder).collect();
    holders.sort_by_key(|holder| *holder == names::HOLDER_MISSING);
    holders
}

/// A replica that has not yet looked on for a lease leaves what another has said of a lost holder.
fn phase(sight: &Sight<'_>, before: &DistributedLockStatus, held: bool) -> LockPhase {
    let any = |loss| sight.slots.iter().any(|slot| slot.loss == loss);
    if any(Loss::Lost) || leaves_abandoned(sight, before) {
        LockPhase::Abandoned
    } else if held {
        LockPhase::Held
    } else {
        LockPhase::Free
    }
}

fn leaves_abandoned(sight: &Sight<'_>, before: &DistributedLockStatus) -> bool {
    let any = |loss| sight.slots.iter().any(|slot| slot.loss == loss);
    before.phase == Some(LockPhase::Abandoned) && any(Loss::Unsure) && !any(Loss::Lost)
}

/// Whether two statuses differ in nothing but who waits.
#[must_use]
pub fn differ_in_waiters_only(a: &DistributedLockStatus, b: &DistributedLockStatus) -> bool {
    let mut like = b.clone();
    like.waiters = a.waiters;
    like.next_waiters.clone_from(&a.next_waiters);
    like == *a
}

/// The holder in short: its identity without the uid.
#[must_use]
pub fn short(identity: &str) -> &str {
    let name = match identity.rsplit_once('/') {
        Some((name, _)) if identity != names::HOLDER_MISSING && !name.is_empty() => name,
        _ => identity,
    };
    clip(name, MAX_IDENTITY_CHARS)
}

/// One slot's entry. A holder is shown only with a token of its own: a `missing`, a foreign holder that has no stamp
/// yet and a restored Lease with an old grant show as an entry without a holder.
fn slot_entry(sight: &SlotSight<'_>, old: SlotStatus) -> SlotStatus {
    if sight.lacks_consent() {
        return old;
    }
    let (slot, lease) = (sight.number(), sight.lease);
    let missed = lease.and_then(last_grant).map(|grant| grant.token);
    let freed = SlotStatus {
        slot,
        fencing_token: old.fencing_token.max(missed),
        holder_identity: String::new(),
        lease_duration_seconds: old.lease_duration_seconds.filter(|_| hides_a_grant(sight)),
        ..SlotStatus::default()
    };
    let Some(lease) = lease.filter(|lease| !lease.is_free() && !lease.is_missing()) else {
        return freed;
    };
    let identity = clip(&lease.spec.holder, MAX_IDENTITY_CHARS);
    let Some(grant) = lease.current_grant() else {
        // Its annotation was dropped by hand; the holder puts it back. Not one of an old copy of the Lease: a later grant
        // has ended since.
        let later = sight.ends.iter();
        let outlived = later.map(|end| end.fencing_token).max() > Some(old.fencing_token);
        return if old.holder_identity == identity && !outlived {
            old
        } else {
            freed
        };
    };
    let same = old.fencing_token == Some(grant.token) && old.holder_identity == identity;
    if !same && old.fencing_token >= Some(grant.token) {
        return freed;
    }
    let ours = lease.holder_note.is_some()
        || grant.pod.is_some()
        || lease.holder_uid().is_some_and(|uid| uid.len() == 36);
    SlotStatus {
        slot,
        fencing_token: Some(grant.token),
        holder_identity: identity.to_owned(),
        claimant: Some(short(identity).to_owned()),
        hold: ours.then_some(match grant.hold {
            Hold::Heartbeat => HoldType::Heartbeat,
            Hold::Fixed => HoldType::Fixed,
            Hold::Pod => HoldType::Pod,
        }),
        lease_duration_seconds: lease
            .spec
            .duration_seconds
            .and_then(|seconds| i32::try_from(seconds).ok())
            .filter(|seconds| *seconds >= 0),
        pod_name: grant
            .pod
            .as_ref()
            .map(|pod| clip(&pod.name, MAX_NAME_CHARS).to_owned()),
        pod_uid: grant.pod.as_ref().map(|pod| clip(&pod.uid, 36).to_owned()),
        node_name: lease.holder_note.as_deref().and_then(node_of),
        acquire_time: lease.spec.acquire_time.and_then(micro_time),
    }
}

/// Whether a `missing` must wait for as long as the slot's last grant may last. A free Lease says that it has ended, and
/// so does its claim's final phase; what no status shows yet is no longer than the longest lease duration.
fn hides_a_grant(sight: &SlotSight<'_>) -> bool {
    let free = sight.lease.is_some_and(LeaseRecord::is_free);
    let entry = sight.view.slot.as_ref();
    !free && entry.is_some_and(|entry| entry.duration_seconds.is_some())
}

/// The grant that a free Lease tells of: it may have begun and ended while nobody mirrored.
fn last_grant(lease: &LeaseRecord) -> Option<&Grant> {
    match &lease.grant {
        GrantNote::V1(grant)
            if lease.is_free()
                && grant.uid == lease.uid
                && grant.transitions == lease.spec.transitions
                && grant.token.get() <= names::MAX_ANNOTATION_TOKEN =>
        {
            Some(grant)
        }
        _ => None,
    }
}

/// The node, from the annotation `leasehold.dev/holder`: `{"node": …, "host": …, "pid": …}`.
fn node_of(note: &str) -> Option<String> {
    let fields: serde_json::Value = serde_json::from_str(note).ok()?;
    let name = fields.get("node")?.as_str()?;
    (!name.is_empty()).then(|| clip(name, MAX_NAME_CHARS).to_owned())
}

/// The first claims, from the one whose turn it is.
fn next_waiters(sight: &Sight<'_>) -> Vec<String> {
    let claims = sight.queue.claims();
    let head = sight.slots.first().and_then(|slot| slot.lease);
    let next = head.and_then(|lease| lease.next.as_ref());
    let first = next
        .and_then(|next| claims.iter().position(|claim| claim.claim == *next))
        .unwrap_or(0);
    let (before, from) = claims.split_at(first);
    from.iter()
        .chain(before)
        .take(MAX_NEXT_WAITERS)
        .map(|claim| clip(&claim.claim.name, MAX_NAME_CHARS).to_owned())
        .collect()
}

#[cfg(test)]
mod tests;
