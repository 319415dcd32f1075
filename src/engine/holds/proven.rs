//! Heartbeat grants whose end the kubelet proves.

use std::time::Duration;

use super::{ClaimEnd, PodSight, SlotSight, end};
use crate::engine::operator::{OperatorMove, wait};
use crate::engine::record::Hold;
use crate::engine::standing::Standing;
use crate::engine::{Moment, WallMicros};

/// What the operator does about a Heartbeat grant whose Pod was read at `read`: if all its containers have ended, so has
/// its holder, and nobody need wait for the rest of its lease. Not under Hold, and not before the lock delay is over.
#[must_use]
pub fn end_proven(
    slot: &SlotSight<'_>,
    pod: &PodSight,
    read: Moment,
    identity: &str,
    now: Moment,
    wall: WallMicros,
) -> Option<OperatorMove> {
    let Standing::Held { until } = slot.standing else {
        return None;
    };
    let grant = slot.lease.current_grant()?;
    let bound = grant.pod.as_ref()?;
    if grant.hold != Hold::Heartbeat || !pod.ended || pod.uid.as_ref() != Some(&bound.uid) {
        return None;
    }
    let due = read + Duration::from_secs(slot.lock.lock_delay_seconds.into());
    if now < due {
        return Some(wait(Some(due.min(until))));
    }
    if slot.lock_read < due {
        // Hold may be new.
        return Some(OperatorMove::ReadLock);
    }
    Some(end(slot, Some(grant), ClaimEnd::PodEnded, identity, wall))
}

#[cfg(test)]
mod tests;
