//! What becomes of claims: a pure function of the claims of one lock, its Lease and the time.
//!
//! Nothing here grants: a grant is made on the Lease first. A ticket keeps a place, a final phase says that a claim is over, and claims that have had
//! their grant are collected.

pub mod holds;

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::api::names;
use crate::api::{
    ClaimPhase, DistributedLock, HoldType, LockClaim, LockClaimStatus, find_condition,
};
use crate::engine::{GrantNote, LeaseRecord, WallMicros};

/// What is to be written about a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAction {
    /// Write this status.
    Status(Arc<LockClaim>, Box<LockClaimStatus>),
    /// Delete it, as it is over.
    Delete(Arc<LockClaim>),
}

/// The claims of one lock, and what they are judged by.
#[derive(Debug)]
pub struct Claims<'a> {
    /// The claims, in any order.
    pub claims: Vec<Arc<LockClaim>>,
    /// Their lock; `None` where there is none.
    pub lock: Option<&'a DistributedLock>,
    /// Name of the lock.
    pub lock_name: &'a str,
    /// Its slots whose Leases are there, and its own.
    pub slots: Vec<SlotLease>,
    /// uids of claims that wait for a Pod which is not there, or has ended.
    pub without_pod: HashSet<String>,
    /// Now.
    pub wall: WallMicros,
}

/// One slot whose Lease is there.
#[derive(Clone, Debug)]
pub struct SlotLease {
    /// The slot.
    pub number: i32,
    /// The name of the Lease.
    pub name: String,
    /// The Lease.
    pub lease: LeaseRecord,
    /// For how many seconds its present grant was prolonged by this replica.
    pub prolonged_to: Option<u32>,
}

/// Whether the claim would be shown as over because its Lease does not show its grant any more: that must be read from
/// the server first.
#[must_use]
pub fn was_ended(action: &ClaimAction) -> bool {
    let ClaimAction::Status(claim, status) = action else {
        return false;
    };
    claim.phase() == ClaimPhase::Granted && status.phase.is_some_and(ClaimPhase::is_final)
}

/// What to write, and after how many microseconds to look again because of the time alone.
#[must_use]
pub fn plan(all: &Claims<'_>) -> (Vec<ClaimAction>, Option<WallMicros>) {
    let mut actions = vec![];
    let mut again: Option<WallMicros> = None;
    let mut sooner =
        |after: WallMicros| again = Some(again.map_or(after, |other| other.min(after)));
    let full = beyond_the_limit(all);
    for claim in &all.claims {
        if claim.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if claim.spec.hold.type_ == HoldType::Heartbeat && had_its_grant(claim, all) {
            actions.push(ClaimAction::Delete(claim.clone()));
            continue;
        }
        if claim.phase().is_final() {
            match ends_after(claim, all.wall) {
                Some(left) if left <= 0 => actions.push(ClaimAction::Delete(claim.clone())),
                Some(left) => sooner(left),
                None => {}
            }
            continue;
        }
        let kept = claim.spec.hold.type_ != HoldType::Heartbeat;
        let status = match claim.phase() {
            ClaimPhase::Granted if kept => Some(holds::granted(claim, all).unwrap_or_else(|| {
                let why = holds::end_of_shown(claim, all);
                holds::finished(claim, why, all.wall)
            })),
            ClaimPhase::Pending if kept => holds::granted(claim, all),
            ClaimPhase::Pending => None,
            // Not ours to judge.
            _ => continue,
        };
        if let Some(status) = status {
            if claim.status.as_ref() != Some(&status) {
                actions.push(ClaimAction::Status(claim.clone(), Box::new(status)));
            }
            continue;
        }
        let end = match patience_left(claim, all.wall) {
            // It will be shown as granted once the lock's status shows its grant.
            _ if kept && holds::holds(claim, all) => None,
            Some(left) if left <= 0 => Some(ClaimPhase::TimedOut),
            _ if full.contains(&claim.uid().unwrap_or_default()) => Some(ClaimPhase::Rejected),
            left => {
                left.into_iter().for_each(&mut sooner);
                None
            }
        };
        let status = status_of(claim, end, all);
        if claim.status.as_ref() != Some(&status) {
            actions.push(ClaimAction::Status(claim.clone(), Box::new(status)));
        }
    }
    (actions, again)
}

/// Whether the claim's uid stands in a holder or in a grant: it waits no more, and its name is spent.
fn had_its_grant(claim: &LockClaim, all: &Claims<'_>) -> bool {
    let Some(uid) = claim.metadata.uid.as_deref() else {
        return false;
    };
    all.slots.iter().any(|SlotLease { lease, .. }| {
        let granted = match &lease.grant {
            GrantNote::V1(grant) => grant.holder.rsplit_once('/').map(|(_, uid)| uid),
            _ => None,
        };
        lease.holder_uid() == Some(uid) || granted == Some(uid)
    })
}

/// The uids of claims without a ticket that came when the queue had its `maxWaiters`.
fn beyond_the_limit(all: &Claims<'_>) -> HashSet<String> {
    let Some(lock) = all.lock else {
        return HashSet::new();
    };
    let limit = usize::try_from(lock.spec.queue.max_waiters.max(0)).unwrap_or(usize::MAX);
    let mut waiting: Vec<_> = all
        .claims
        .iter()
        .filter(|claim| crate::lease::view::waits(claim) && !had_its_grant(claim, all))
        .collect();
    waiting.sort_by_key(|claim| (claim.ticket(), claim.name_any()));
    let has_ticket = |claim: &LockClaim| {
        claim
            .status
            .as_ref()
            .is_some_and(|status| status.ticket.is_some())
    };
    waiting
        .into_iter()
        .skip(limit)
        .filter(|claim| !has_ticket(claim))
        .filter_map(|claim| claim.uid())
        .collect()
}

/// By the server's own time of creation.
fn patience_left(claim: &LockClaim, wall: WallMicros) -> Option<WallMicros> {
    let seconds = claim.spec.wait_timeout_seconds?;
    let made = claim
        .metadata
        .creation_timestamp
        .as_ref()?
        .0
        .as_microsecond();
    Some(
        made.saturating_add(i64::from(seconds) * 1_000_000)
            .saturating_sub(wall),
    )
}

/// How long a finished claim is still kept; `None` for ever.
fn ends_after(claim: &LockClaim, wall: WallMicros) -> Option<WallMicros> {
    let seconds = claim.spec.ttl_seconds_after_finished?;
    let conditions = &claim.status.as_ref()?.conditions;
    let finished = find_condition(conditions, names::CONDITION_READY)?;
    let finished = finished.last_transition_time.0.as_microsecond();
    Some(
        finished
            .saturating_add(i64::from(seconds) * 1_000_000)
            .saturating_sub(wall),
    )
}

fn status_of(claim: &LockClaim, end: Option<ClaimPhase>, all: &Claims<'_>) -> LockClaimStatus {
    let mut status = claim.status.clone().unwrap_or_default();
    if status.ticket.is_none() {
        status.ticket = claim.ticket();
    }
    status.claimant = Some(claim.claimant());
    let phase = end.unwrap_or(ClaimPhase::Pending);
    // A missing lock stalls nothing: it may be made a moment later, by the same `kubectl apply`.
    let (reason, message) = why(claim, phase, all);
    let generation = claim.metadata.generation;
    status.set_phase(phase, reason, &message, generation, &time(all.wall));
    status
}

/// A time for people, in whole seconds.
fn time(wall: WallMicros) -> Time {
    let seconds = Timestamp::from_second(wall.div_euclid(1_000_000));
    Time(seconds.unwrap_or(Timestamp::UNIX_EPOCH))
}

/// What hinders the lock, as its status says. It stalls no claim: somebody may see to the lock at any time.
fn stalled(lock: &DistributedLock) -> Option<&Condition> {
    let conditions = &lock.status.as_ref()?.conditions;
    find_condition(conditions, names::CONDITION_STALLED)
        .filter(|condition| condition.status == "True")
}

/// Reason and words of a claim in this phase.
fn why(claim: &LockClaim, phase: ClaimPhase, all: &Claims<'_>) -> (&'static str, String) {
    let lock = all.lock_name;
    match phase {
        ClaimPhase::Rejected => (
            names::REASON_QUEUE_FULL,
            format!(
                "as many wait for lock {lock} as its queue.maxWaiters allows: try again later, or raise it"
            ),
        ),
        ClaimPhase::TimedOut => (
            names::REASON_TIMED_OUT,
            "waitTimeoutSeconds have passed".to_owned(),
        ),
        _ if all.lock.is_none() => (
            names::REASON_LOCK_NOT_FOUND,
            format!("there is no lock {lock} in this namespace: the claim waits until it is made"),
        ),
        _ if claim
            .uid()
            .is_some_and(|uid| all.without_pod.contains(&uid)) =>
        {
            let pod = claim.spec.hold.pod.as_ref();
            let name = pod.map_or("", |pod| pod.name.as_str());
            let uid = pod.and_then(|pod| pod.uid.as_ref());
            let uid = uid.map_or_else(String::new, |uid| format!(" with the uid {uid}"));
            let message = format!(
                "no Pod {name}{uid} lives in this namespace: the claim waits for it, and others go first"
            );
            (names::REASON_POD_NOT_FOUND, message)
        }
        _ => match all.lock.and_then(stalled) {
            Some(condition) => {
                let words = format!(
                    "lock {lock} is stalled ({}): {}",
                    condition.reason, condition.message
                );
                let words = names::clip(&words, names::MAX_MESSAGE_CHARS);
                (names::REASON_LOCK_STALLED, words.to_owned())
            }
            None => (
                names::REASON_PENDING,
                "the claim waits for its turn".to_owned(),
            ),
        },
    }
}
