//! Takes for a claim whose turn it is.

use super::{HoldClaim, SlotSight, Wish, granted};
use crate::api::names::MAX_LEASE_SECONDS;
use crate::engine::WallMicros;
use crate::engine::change::{self, NextChange, Requester};
use crate::engine::operator::{OperatorMove, OperatorWrite, write};
use crate::engine::queue::Queue;
use crate::engine::record::{ClaimRef, Hold};
use crate::engine::standing::Standing;

/// What the operator does for the claim whose turn it is, if `claim` tells that it keeps the hold of that one, and some
/// slot is free: the number of that slot, and the move. `None`: nothing to take.
#[must_use]
pub(in crate::engine) fn take(
    slots: &[SlotSight<'_>],
    queue: &Queue,
    claim: impl Fn(&ClaimRef) -> Option<HoldClaim>,
    wall: WallMicros,
) -> Option<(u32, OperatorMove)> {
    let front = slots.iter().find(|slot| slot.lock.number == 0)?;
    let named = front.lease.next.as_ref();
    let turn = named.map_or_else(|| queue.first(), Some)?;
    let waits = queue.claims().iter().find(|claim| claim.claim == *turn)?;
    let claim = claim(turn)?;
    let pod = claim.living_pod();
    if waits.dead || claim.hold() == Hold::Pod && pod.is_none() {
        return None;
    }
    let free = slots
        .iter()
        .filter(|slot| !slot.lock.is_surplus() && slot.standing == Standing::Free);
    let slot = free.min_by_key(|slot| slot.lock.number)?;
    let number = slot.lock.number;
    if number > 0 && named.is_none() {
        // It is named first: a take of this slot does not touch the queue.
        return None;
    }
    if slot.lock_read < slot.lease_changed {
        return Some((number, OperatorMove::ReadLock));
    }
    let who = Requester {
        identity: claim.identity.clone(),
        hold: claim.hold(),
        pod,
        note: None,
        remembered: slot.remembered,
    };
    let next = match number {
        0 => NextChange::Set(queue.after(turn).cloned()),
        _ => NextChange::Keep,
    };
    let taken = change::take(slot.lock, slot.lease, slot.standing, &who, next, wall).ok()?;
    let mut record = taken.record;
    record.spec.duration_seconds = Some(i64::from(match claim.wish {
        Wish::Fixed { seconds } => granted(slot.lock, seconds),
        Wish::Pod { .. } => MAX_LEASE_SECONDS.unsigned_abs(),
    }));
    Some((number, write(OperatorWrite::Take, record)))
}

#[cfg(test)]
mod tests;
