//! What becomes of claims: a pure function of the claims of one lock, its Lease and the time.
//!
//! Nothing here grants: a ticket keeps a place, a final phase says that a claim is over, and claims that have had
//! their grant are collected.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::api::names;
use crate::api::{ClaimPhase, DistributedLock, HoldType, LockClaim, LockClaimStatus};
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
    /// The Leases of its slots.
    pub leases: Vec<LeaseRecord>,
    /// Now.
    pub wall: WallMicros,
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
        if claim.spec.hold.type_ == HoldType::Heartbeat && had_its_grant(claim, &all.leases) {
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
        if claim.phase() != ClaimPhase::Pending {
            // Granted, or a phase of a newer version: not ours to judge.
            continue;
        }
        let end = match patience_left(claim, all.wall) {
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
fn had_its_grant(claim: &LockClaim, leases: &[LeaseRecord]) -> bool {
    let Some(uid) = claim.metadata.uid.as_deref() else {
        return false;
    };
    leases.iter().any(|lease| {
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
        .filter(|claim| crate::lease::view::waits(claim) && !had_its_grant(claim, &all.leases))
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
    let finished = crate::api::find_condition(conditions, names::CONDITION_READY)?;
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
    let now = Time(
        Timestamp::from_second(all.wall.div_euclid(1_000_000)).unwrap_or(Timestamp::UNIX_EPOCH),
    );
    let phase = end.unwrap_or(ClaimPhase::Pending);
    // A missing lock stalls nothing: it may be made a moment later, by the same `kubectl apply`.
    let (reason, message) = why(phase, all);
    status.set_phase(phase, reason, &message, claim.metadata.generation, &now);
    status
}

/// Reason and words of a claim in this phase.
fn why(phase: ClaimPhase, all: &Claims<'_>) -> (&'static str, String) {
    let lock = all.lock_name;
    match phase {
        ClaimPhase::Rejected => (
            names::REASON_QUEUE_FULL,
            format!("the queue of lock {lock} has its maxWaiters"),
        ),
        ClaimPhase::TimedOut => (
            names::REASON_TIMED_OUT,
            "waitTimeoutSeconds have passed".to_owned(),
        ),
        _ if all.lock.is_none() => (
            names::REASON_LOCK_NOT_FOUND,
            format!("there is no lock {lock} in this namespace: the claim waits until it is made"),
        ),
        _ => (
            names::REASON_PENDING,
            "the claim waits for its turn".to_owned(),
        ),
    }
}
