//! Fixed and Pod claims: how the engine sees them, and what their status says of their hold.
//!
//! Granted is shown only once the lock's status shows the grant with the duration that it stored: whoever believes in
//! it is then waited for also when the Lease is deleted. A grant that the Lease does not show any more was ended; how,
//! its annotation `ended` or the lock's history tell.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::{Claims, SlotLease, time};
use crate::api::{
    ClaimPhase, DistributedLock, EndReason, FencingToken, HoldType, LockClaim, LockClaimStatus,
    find_condition, names,
};
use crate::engine::{ClaimEnd, ClaimState, EndKind, HoldClaim, PodSight, WallMicros, Wish};
use crate::lease::view::claim_ref;

/// The claim as the engine sees it, with what is known of its Pod; `None` for a Heartbeat claim.
#[must_use]
pub fn hold_claim(claim: &LockClaim, pod: Option<&PodSight>) -> Option<HoldClaim> {
    let hold = &claim.spec.hold;
    let wish = match hold.type_ {
        HoldType::Heartbeat => return None,
        HoldType::Fixed => Wish::Fixed {
            seconds: hold.fixed.as_ref()?.seconds.unsigned_abs(),
        },
        HoldType::Pod => Wish::Pod {
            name: hold.pod.as_ref()?.name.clone(),
            uid: hold.pod.as_ref()?.uid.clone(),
            sight: pod.cloned(),
        },
    };
    let phase = claim.phase();
    let shown = phase == ClaimPhase::Granted;
    let state = if phase.is_final() {
        ClaimState::Over(end_shown(claim, phase))
    } else if claim.metadata.deletion_timestamp.is_some() {
        ClaimState::Deleting { shown }
    } else if shown {
        let status = claim.status.as_ref()?;
        ClaimState::Granted {
            slot: status.slot.map_or(0, i32::unsigned_abs),
            token: status.fencing_token.map_or(0, FencingToken::get),
            seconds: seconds_shown(status),
        }
    } else {
        ClaimState::Waiting
    };
    Some(HoldClaim {
        claim: claim_ref(claim)?,
        identity: claim.holder_identity()?,
        wish,
        state,
    })
}

/// How a claim that is over ended, by its status.
fn end_shown(claim: &LockClaim, phase: ClaimPhase) -> ClaimEnd {
    let conditions = claim
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let reason = find_condition(conditions, names::CONDITION_READY);
    let reason = reason.map(|condition| condition.reason.as_str());
    match (phase, reason) {
        (ClaimPhase::Released, Some(names::REASON_POD_ENDED)) => ClaimEnd::PodEnded,
        (ClaimPhase::Released, _) => ClaimEnd::Released,
        (ClaimPhase::Expired, _) => ClaimEnd::Expired,
        (ClaimPhase::Revoked, Some(names::REASON_MAX_HOLD)) => ClaimEnd::MaxHold,
        (ClaimPhase::Revoked, _) => ClaimEnd::Revoked,
        _ => ClaimEnd::Unused,
    }
}

/// For how many seconds the claim is shown as granted.
fn seconds_shown(status: &LockClaimStatus) -> Option<u32> {
    let (from, until) = (status.grant_time.as_ref()?, status.expire_time.as_ref()?);
    u32::try_from(until.0.as_second() - from.0.as_second()).ok()
}

/// The status of a claim whose hold is over.
#[must_use]
pub fn finished(claim: &LockClaim, why: ClaimEnd, wall: WallMicros) -> LockClaimStatus {
    let mut status = claim.status.clone().unwrap_or_default();
    let (phase, reason) = match why {
        ClaimEnd::Released | ClaimEnd::Unused => (ClaimPhase::Released, names::REASON_RELEASED),
        ClaimEnd::PodEnded => (ClaimPhase::Released, names::REASON_POD_ENDED),
        ClaimEnd::Expired => (ClaimPhase::Expired, names::REASON_EXPIRED),
        ClaimEnd::Revoked => (ClaimPhase::Revoked, names::REASON_REVOKED),
        ClaimEnd::MaxHold => (ClaimPhase::Revoked, names::REASON_MAX_HOLD),
    };
    let message = format!("the hold is over: {}", why.words());
    let generation = claim.metadata.generation;
    status.set_phase(phase, reason, &message, generation, &time(wall));
    status
}

/// The slot whose Lease shows a grant of this claim, and its token; only the one that status shows, where that shows
/// one.
fn grant_of<'a>(claim: &LockClaim, all: &'a Claims<'_>) -> Option<(&'a SlotLease, FencingToken)> {
    let identity = claim.holder_identity()?;
    let status = claim.status.as_ref();
    let granted = status.filter(|_| claim.phase() == ClaimPhase::Granted);
    all.slots.iter().find_map(|slot| {
        let lease = &slot.lease;
        if lease.spec.holder != identity {
            return None;
        }
        let mirrored = || {
            let entry = all.lock?.slot_status(slot.number)?;
            (entry.holder_identity == identity).then_some(entry.fencing_token?)
        };
        let token = lease.current_token().or_else(mirrored)?;
        let same = granted.is_none_or(|granted| {
            granted.slot == Some(slot.number) && granted.fencing_token == Some(token)
        });
        same.then_some((slot, token))
    })
}

/// Whether a Lease names the claim as its holder, whatever else it says.
pub(super) fn holds(claim: &LockClaim, all: &Claims<'_>) -> bool {
    let identity = claim.holder_identity();
    let holders = all.slots.iter().map(|slot| &slot.lease.spec.holder);
    holders
        .into_iter()
        .any(|holder| identity.as_ref() == Some(holder))
}

/// The status of a claim that has its grant: Granted, if the lock's status shows it too.
pub(super) fn granted(claim: &LockClaim, all: &Claims<'_>) -> Option<LockClaimStatus> {
    let (slot, token) = grant_of(claim, all)?;
    let entry = all.lock?.slot_status(slot.number)?;
    let stored = slot.lease.spec.duration_seconds?;
    let mut status = claim.status.clone().unwrap_or_default();
    let is_new = claim.phase() != ClaimPhase::Granted;
    status.claimant = Some(claim.claimant());
    let mirrored = entry.fencing_token == Some(token)
        && entry.holder_identity == slot.lease.spec.holder
        && entry.lease_duration_seconds.map(i64::from) == Some(stored);
    if is_new && !mirrored {
        return None;
    }
    if is_new {
        let since = slot.lease.spec.acquire_time.unwrap_or(all.wall);
        status.ticket = status.ticket.or_else(|| claim.ticket());
        status.slot = Some(slot.number);
        status.lease_name = Some(slot.name.clone());
        status.holder_identity = Some(slot.lease.spec.holder.clone());
        status.fencing_token = Some(token);
        status.grant_time = Some(time(since));
    }
    if claim.spec.hold.type_ == HoldType::Fixed {
        let shown = seconds_shown(&status).or_else(|| u32::try_from(stored).ok())?;
        let prolonged = slot.prolonged_to.filter(|_| mirrored).unwrap_or(0);
        let from = status.grant_time.as_ref()?.0.as_second();
        let until = from.saturating_add(shown.max(prolonged).into());
        status.expire_time = Timestamp::from_second(until).ok().map(Time);
    }
    let message = match (&status.expire_time, &claim.spec.hold.pod) {
        (Some(until), _) => format!("held with token {token} until {} at least", until.0),
        (None, Some(pod)) => format!("held with token {token} while Pod {} lives", pod.name),
        (None, None) => format!("held with token {token}"),
    };
    let reason = names::REASON_GRANTED;
    let generation = claim.metadata.generation;
    status.set_phase(
        ClaimPhase::Granted,
        reason,
        &message,
        generation,
        &time(all.wall),
    );
    Some(status)
}

/// How a grant ended that is shown as granted and that its Lease does not show any more.
pub(super) fn end_of_shown(claim: &LockClaim, all: &Claims<'_>) -> ClaimEnd {
    let status = claim.status.as_ref();
    let token = status.and_then(|status| status.fencing_token);
    let number = token.map(FencingToken::get);
    // Under a floor above the revision grants of several slots have the same token.
    let own = status.and_then(|status| status.slot);
    let slots = all.slots.iter().filter(|slot| Some(slot.number) == own);
    let notes = slots.filter_map(|slot| slot.lease.ended.as_ref());
    if let Some(note) = notes.into_iter().find(|note| Some(note.token) == number) {
        return match note.kind {
            EndKind::Released => ClaimEnd::Released,
            EndKind::Ended => ClaimEnd::PodEnded,
            EndKind::Expired => ClaimEnd::Expired,
            EndKind::Revoked => ClaimEnd::Revoked,
        };
    }
    let history = all
        .lock
        .and_then(|lock: &DistributedLock| lock.status.as_ref());
    let told = history.and_then(|status| {
        let mut ends = status.history.iter();
        ends.find(|end| end.fencing_token == token && token.is_some() && Some(end.slot) == own)
    });
    match told.map(|end| end.reason) {
        Some(EndReason::Released) => ClaimEnd::Released,
        Some(EndReason::Ended) => ClaimEnd::PodEnded,
        Some(EndReason::Expired) => ClaimEnd::Expired,
        // Deleting a held lock, or its Lease, is a revoke.
        Some(EndReason::Revoked | EndReason::Deleted | EndReason::Other) | None => {
            ClaimEnd::Revoked
        }
    }
}

#[cfg(test)]
mod tests;
