//! Locks and claims as the rules see them.

use kube::ResourceExt;

use crate::api::{self, DistributedLock, FencingToken, HoldType, LockClaim};
use crate::engine::{
    ClaimRef, ClaimView, Hold, LockView, OnHolderLost, PodRef, QueueOrder, SlotView,
};

/// What the rules need to know of `lock` for one slot. `claim_finished` says whether the final phase of the claim
/// that status shows as the slot's holder is written already.
#[must_use]
pub fn lock_view(lock: &DistributedLock, slot: i32, claim_finished: bool) -> LockView {
    let spec = &lock.spec;
    LockView {
        number: slot.unsigned_abs(),
        max_holders: spec.effective_max_holders().unsigned_abs(),
        order: match spec.queue.policy {
            api::QueuePolicy::Fifo => QueueOrder::Fifo,
            api::QueuePolicy::Priority => QueueOrder::Priority,
        },
        max_hold_seconds: spec.effective_max_hold().map(whole_seconds),
        name: lock.name_any(),
        uid: lock.uid().unwrap_or_default(),
        deleting: lock.metadata.deletion_timestamp.is_some(),
        duration_seconds: whole_seconds(spec.effective_lease_duration()),
        lock_delay_seconds: whole_seconds(spec.effective_lock_delay()),
        on_holder_lost: match spec.on_holder_lost {
            api::OnHolderLost::Release => OnHolderLost::Release,
            api::OnHolderLost::Hold => OnHolderLost::Hold,
        },
        min_token: spec
            .effective_min_fencing_token(slot)
            .map(FencingToken::get),
        adopts: spec.lease_name.is_some(),
        longest_seconds: lock.longest_lease_duration().map(whole_seconds),
        slot: lock.slot_status(slot).map(|status| SlotView {
            token: status.fencing_token.map_or(0, FencingToken::get),
            holder: status.holder_identity.clone(),
            hold: status.hold.map(hold),
            pod: status
                .pod_name
                .clone()
                .zip(status.pod_uid.clone())
                .map(|(name, uid)| PodRef { name, uid }),
            duration_seconds: (!claim_finished)
                .then(|| {
                    status
                        .lease_duration_seconds
                        .and_then(|seconds| u32::try_from(seconds).ok())
                })
                .flatten(),
        }),
    }
}

/// What the rules need to know of `claim`. `dead` says that its Pod is known to be gone.
#[must_use]
pub fn claim_view(claim: &LockClaim, dead: bool) -> Option<ClaimView> {
    let revision = claim.metadata.resource_version.as_ref()?.parse().ok()?;
    let ticket = claim
        .status
        .as_ref()
        .and_then(|status| status.ticket)
        .and_then(|ticket| u64::try_from(ticket).ok());
    Some(ClaimView {
        claim: claim_ref(claim)?,
        ticket: ticket.unwrap_or(revision),
        priority: claim.spec.priority,
        hold: hold(claim.spec.hold.type_),
        waiting: waits(claim),
        dead,
    })
}

/// Name and uid of a claim.
#[must_use]
pub fn claim_ref(claim: &LockClaim) -> Option<ClaimRef> {
    Some(ClaimRef {
        name: claim.metadata.name.clone()?,
        uid: claim.metadata.uid.clone()?,
    })
}

/// Whether a claim waits: it is not being deleted and its phase is Pending.
#[must_use]
pub fn waits(claim: &LockClaim) -> bool {
    let pending = claim.status.as_ref().is_none_or(|status| {
        status
            .phase
            .is_none_or(|phase| phase == api::ClaimPhase::Pending)
    });
    pending && claim.metadata.deletion_timestamp.is_none()
}

fn hold(hold: HoldType) -> Hold {
    match hold {
        HoldType::Heartbeat => Hold::Heartbeat,
        HoldType::Fixed => Hold::Fixed,
        HoldType::Pod => Hold::Pod,
    }
}

fn whole_seconds(duration: std::time::Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}
