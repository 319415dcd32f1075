//! The mirror: what a lock's status says, as a pure function of the status before, the lock, its Lease and its queue.
//!
//! Invariants: tokens and `longestLeaseDurationSeconds` never fall, no slot entry is removed, one token never has two
//! holders (the API server's transition rules refuse all of that too). Renewals change nothing here, so the number of
//! status writes does not grow with them.

use std::collections::VecDeque;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::news::{end_reason, micro_time};
use crate::api::names::{self, MAX_IDENTITY_CHARS, MAX_NAME_CHARS, MAX_NEXT_WAITERS, clip};
use crate::api::{
    ConditionStatus, DistributedLock, DistributedLockStatus, EndReason, FencingToken, HistoryEntry,
    HoldType, LockPhase, SlotStatus, set_condition,
};
use crate::engine::token::next_token;
use crate::engine::{
    Grant, GrantNote, Hold, LeaseRecord, LockView, Queue, Unavailable, WallMicros, missing_floor,
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
    /// The lock as the rules see it.
    pub view: &'a LockView,
    /// Its Lease; `None` where there is none, or where it is another's.
    pub lease: Option<&'a LeaseRecord>,
    /// Why the lock can't work, where it can't.
    pub trouble: Option<Trouble>,
    /// Whether to add the slot's first entry: only the write that opens the lock does.
    pub open: bool,
    /// Grants that ended since, the latest last.
    pub ends: &'a VecDeque<HistoryEntry>,
    /// Who waits.
    pub queue: &'a Queue,
    /// Now.
    pub wall: WallMicros,
}

/// The status that shows it.
#[must_use]
pub fn mirror(sight: &Sight<'_>) -> DistributedLockStatus {
    let lock = sight.lock;
    let before = lock.status.clone().unwrap_or_default();
    let had_entry = before.slots.iter().any(|entry| entry.slot == 0);
    let mut status = before.clone();
    status.observed_generation = lock.metadata.generation;
    status.lease_name = Some(clip(&lock.lease_name(), MAX_NAME_CHARS).to_owned());
    if had_entry || sight.open {
        let asked = i32::try_from(sight.view.duration_seconds).unwrap_or(i32::MAX);
        let longest = status
            .longest_lease_duration_seconds
            .unwrap_or(1)
            .max(asked);
        status.longest_lease_duration_seconds = Some(longest);
        let old = before.slots.iter().find(|entry| entry.slot == 0);
        let entry = slot_entry(old.cloned().unwrap_or_default(), sight.lease);
        status.history = history(&before, &entry, sight);
        status.slots.retain(|other| other.slot != 0);
        status.slots.insert(0, entry);
    }
    let highest = status
        .slots
        .iter()
        .filter_map(|entry| entry.fencing_token)
        .max();
    status.fencing_token = highest.max(before.fencing_token);
    let holder = sight
        .lease
        .filter(|lease| !(lease.is_free() || sight.open && lease.is_missing()))
        .map(|lease| lease.spec.holder.as_str());
    let slots = lock.spec.effective_max_holders();
    status.phase = Some(if holder.is_some() {
        LockPhase::Held
    } else {
        LockPhase::Free
    });
    status.held = Some(format!("{}/{slots}", i32::from(holder.is_some())));
    status.holder = holder.map(|holder| short(holder).to_owned());
    status.waiters = Some(i32::try_from(sight.queue.len()).unwrap_or(i32::MAX));
    status.next_waiters = next_waiters(sight);
    conditions(&mut status.conditions, sight, holder);
    status
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
fn slot_entry(old: SlotStatus, lease: Option<&LeaseRecord>) -> SlotStatus {
    let missed = lease.and_then(last_grant).map(|grant| grant.token);
    let freed = SlotStatus {
        slot: 0,
        fencing_token: old.fencing_token.max(missed),
        holder_identity: String::new(),
        // Kept: a `missing` waits for as long as the last grant may last.
        lease_duration_seconds: old.lease_duration_seconds,
        ..SlotStatus::default()
    };
    let Some(lease) = lease.filter(|lease| !lease.is_free() && !lease.is_missing()) else {
        return freed;
    };
    let identity = clip(&lease.spec.holder, MAX_IDENTITY_CHARS);
    let Some(grant) = lease.current_grant() else {
        // Its annotation was dropped by hand; the holder puts it back.
        return if old.holder_identity == identity {
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
        slot: 0,
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

/// The latest first. Tokens rise, so a grant is new to history if its token is above all that are in it.
fn history(
    before: &DistributedLockStatus,
    entry: &SlotStatus,
    sight: &Sight<'_>,
) -> Vec<HistoryEntry> {
    let limit =
        usize::try_from(sight.lock.spec.history_limit.clamp(0, names::MAX_HISTORY)).unwrap_or(0);
    let mut history = before.history.clone();
    let known = history.iter().filter_map(|old| old.fencing_token).max();
    let mut ended: Vec<_> = sight
        .ends
        .iter()
        .filter(|end| end.fencing_token.is_some() && end.fencing_token > known)
        .cloned()
        .collect();
    if let Some(unseen) = before
        .slots
        .iter()
        .find(|old| old.slot == 0 && !old.is_free() && old.fencing_token > known)
        .filter(|old| old.fencing_token != entry.fencing_token || entry.is_free())
        && ended
            .iter()
            .all(|end| end.fencing_token != unseen.fencing_token)
    {
        ended.push(end_of(unseen, sight));
    }
    ended.extend(missed_end(sight).filter(|end| {
        end.fencing_token > known
            && ended
                .iter()
                .all(|seen| seen.fencing_token != end.fencing_token)
    }));
    ended.sort_by_key(|end| end.fencing_token);
    ended.dedup_by_key(|end| end.fencing_token);
    for end in ended {
        let holder = clip(&end.holder_identity, MAX_IDENTITY_CHARS).to_owned();
        history.insert(
            0,
            HistoryEntry {
                holder_identity: holder,
                ..end
            },
        );
    }
    history.truncate(limit);
    history
}

/// The end of the grant that a free Lease tells of.
fn missed_end(sight: &Sight<'_>) -> Option<HistoryEntry> {
    let lease = sight.lease?;
    let grant = last_grant(lease)?;
    let noted = lease
        .ended
        .as_ref()
        .filter(|ended| ended.uid == lease.uid && ended.token == grant.token.get());
    Some(HistoryEntry {
        slot: 0,
        holder_identity: grant.holder.clone(),
        fencing_token: Some(grant.token),
        acquire_time: lease.spec.acquire_time.and_then(micro_time),
        end_time: lease.spec.renew_time.and_then(micro_time),
        reason: noted.map_or(EndReason::Released, |ended| end_reason(ended.kind)),
    })
}

/// The end of a grant that status shows and whose end nobody saw: what the annotations still tell of it.
fn end_of(shown: &SlotStatus, sight: &Sight<'_>) -> HistoryEntry {
    let token = shown.fencing_token.map(FencingToken::get);
    let noted = sight
        .lease
        .and_then(|lease| lease.ended.as_ref())
        .filter(|ended| Some(ended.token) == token);
    let reason = match (noted, sight.lease) {
        (Some(ended), _) => end_reason(ended.kind),
        // Other clients leave no note: they empty the Lease when they release, and replace who fell silent.
        (None, Some(lease)) if lease.is_free() => EndReason::Released,
        (None, Some(lease)) if !lease.is_missing() => EndReason::Expired,
        (None, _) => EndReason::Deleted,
    };
    HistoryEntry {
        slot: shown.slot,
        holder_identity: shown.holder_identity.clone(),
        fencing_token: shown.fencing_token,
        acquire_time: shown.acquire_time.clone(),
        end_time: micro_time(sight.wall),
        reason,
    }
}

/// The first claims, from the one whose turn it is.
fn next_waiters(sight: &Sight<'_>) -> Vec<String> {
    let claims = sight.queue.claims();
    let next = sight.lease.and_then(|lease| lease.next.as_ref());
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

fn conditions(conditions: &mut Vec<Condition>, sight: &Sight<'_>, holder: Option<&str>) {
    let generation = sight.lock.metadata.generation;
    let now = whole_seconds(sight.wall);
    let mut set = |type_: &str, status: ConditionStatus, reason: &str, message: &str| {
        set_condition(conditions, type_, status, reason, message, generation, &now);
    };
    let (held, why, words) = match holder {
        Some(names::HOLDER_MISSING) => (
            true,
            names::REASON_LEASE_MISSING,
            "whoever held the deleted Lease may still believe in it".to_owned(),
        ),
        Some(holder) => (
            true,
            names::REASON_HELD,
            format!("held by {}", clip(holder, MAX_IDENTITY_CHARS)),
        ),
        None => (false, names::REASON_FREE, "nobody holds it".to_owned()),
    };
    set(names::CONDITION_HELD, held.into(), why, &words);
    let trouble = trouble(sight);
    let (reason, message) = trouble.clone().unwrap_or((
        names::REASON_READY,
        "the lock can be taken, and is mirrored here".to_owned(),
    ));
    if sight.open && sight.lease.is_some_and(LeaseRecord::is_missing) {
        // The freeing follows this write; should the operator die in between, the next one ends the `missing`.
        let message = "the lock is being opened";
        set(
            names::CONDITION_READY,
            ConditionStatus::Unknown,
            names::REASON_PENDING,
            message,
        );
    } else {
        let ready = trouble.is_none();
        set(names::CONDITION_READY, ready.into(), reason, &message);
    }
    // Only what a person must look into: tools give up at once on what is stalled.
    match trouble.filter(|_| needs_a_person(sight)) {
        Some((reason, message)) => set(
            names::CONDITION_STALLED,
            ConditionStatus::True,
            reason,
            &message,
        ),
        None => set(
            names::CONDITION_STALLED,
            ConditionStatus::False,
            names::REASON_OK,
            "nothing needs a person",
        ),
    }
    let next = sight
        .lease
        .filter(|_| sight.trouble.is_none())
        .map(|lease| next_token(sight.view, lease, 0));
    let (ahead, why, words) = match next {
        Some(None) => (
            true,
            names::REASON_TOKEN_AHEAD,
            "no fencing token below 2^53 is left: make a new lock under another name",
        ),
        Some(Some(choice)) if choice.ahead_of_revision => (
            true,
            names::REASON_TOKEN_AHEAD,
            "the next token comes from status, annotation or minFencingToken, not from the revision (an etcd restore, \
             or a raised floor): keep status and annotations until the cluster's revision is above it, or make a new \
             lock under another name",
        ),
        _ => (false, names::REASON_OK, "tokens come from the revision"),
    };
    set(names::CONDITION_TOKEN_AHEAD, ahead.into(), why, words);
}

/// Whether what is wrong does not go by itself: an earlier lock's Lease, or one that is being deleted, does.
fn needs_a_person(sight: &Sight<'_>) -> bool {
    !matches!(
        sight.trouble,
        Some(Trouble::Unavailable(
            Unavailable::OtherLock | Unavailable::Deleting
        ))
    )
}

/// Reason and message, where something is wrong.
fn trouble(sight: &Sight<'_>) -> Option<(&'static str, String)> {
    let lease = sight.lock.lease_name();
    let name = &sight.view.name;
    Some(match &sight.trouble {
        Some(Trouble::TakenBy(other)) => (
            names::REASON_LEASE_CONFLICT,
            format!(
                "Lease {lease} belongs to the lock {other}: name another Lease, or delete one of the two locks"
            ),
        ),
        Some(Trouble::Election) => (
            names::REASON_LEASE_CONFLICT,
            format!(
                "Lease {lease} is the one by which the operator elects its leader: name another Lease"
            ),
        ),
        Some(Trouble::Unavailable(Unavailable::NotOurs)) if sight.view.adopts => (
            names::REASON_NOT_SHARED,
            format!(
                "Lease {lease} is there and its owner has not consented: \
                 kubectl label lease {lease} {}={name}",
                names::LABEL_SHARED_WITH
            ),
        ),
        Some(Trouble::Unavailable(Unavailable::NotOurs)) => (
            names::REASON_LEASE_CONFLICT,
            format!(
                "Lease {lease} is there without the label {}={name}, so it belongs to something else and is left \
                     alone: make the lock under another name, or set leaseName to share it",
                names::LABEL_LOCK
            ),
        ),
        Some(Trouble::Unavailable(Unavailable::OtherLock)) => (
            names::REASON_LEASE_CONFLICT,
            format!(
                "Lease {lease} belongs to an earlier lock of this name and waits for the garbage collector"
            ),
        ),
        Some(Trouble::Unavailable(Unavailable::Deleting)) => (
            names::REASON_LEASE_CONFLICT,
            format!("Lease {lease} is being deleted: a finalizer on it keeps it"),
        ),
        Some(Trouble::Unavailable(Unavailable::NewerVersion)) => (
            names::REASON_UNKNOWN_GRANT,
            "the grant was written by a newer Leasehold: upgrade the operator".to_owned(),
        ),
        Some(Trouble::Unavailable(Unavailable::NotOpened)) => return None,
        None => {
            let missing = sight
                .lease
                .filter(|lease| lease.is_missing() && !sight.open)?;
            (
                names::REASON_LEASE_MISSING,
                format!(
                    "Lease {lease} was deleted and made again: nobody takes it before whatever held it must have \
                     ended. If that has ended, minFencingToken {} frees it now",
                    missing_floor(sight.view, missing)
                ),
            )
        }
    })
}

/// Conditions keep whole seconds.
fn whole_seconds(wall: WallMicros) -> Time {
    Time(
        k8s_openapi::jiff::Timestamp::from_second(wall.div_euclid(1_000_000))
            .unwrap_or(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
    )
}

#[cfg(test)]
mod tests;
