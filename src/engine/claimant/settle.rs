//! What comes before anything else: a take that is open; and how a claimant leaves. And which holders may be replaced.

use super::Claimant;
use super::sight::Known;
use crate::engine::change;
use crate::engine::moves::{Move, Waiting, Write};
use crate::engine::record::LeaseRecord;
use crate::engine::standing::{LockView, Standing};
use crate::engine::{Moment, WallMicros};

impl Claimant {
    /// An unsettled take comes first: it was applied (then a renewal proves since when), or it can't be applied any
    /// more, or it is sent again: only one of the two can win, and both are the same grant. `None` also where it may
    /// not be sent again, since the holder whom it would replace is not to be replaced any more: then it stays open, and
    /// nothing else is taken, until the Lease changes.
    pub(super) fn settle(
        &mut self,
        lock_is_new: bool,
        now: Moment,
        wall: WallMicros,
    ) -> Option<Move> {
        let (slot, take) = self.pending.as_ref()?;
        let slot = *slot;
        let sight = self.slots.get(&slot)?;
        if sight.must_read || matches!(sight.lease, Known::Unread) {
            return Some(Move::ReadLease(slot));
        }
        let base = &take.record;
        if let Some(lease) = sight.lease.value() {
            if lease.grant_id().is(&take.grant) {
                // The lock may be unread while stopping; what the take stored is then stored again.
                let record = self.lock(slot).map_or_else(
                    || change::renew(&stand_in(base), lease, &take.grant, wall),
                    |lock| change::renew(lock, lease, &take.grant, wall),
                );
                return Some(Move::Write(Write::Confirm { slot, record }));
            }
            if lease.uid == base.uid && lease.resource_version == base.resource_version {
                let take = take.clone();
                if lease.is_free() {
                    return Some(Move::Write(Write::Take { slot, take }));
                }
                let lock = self.lock(slot)?;
                let standing = sight.standing(lock, now).filter(|s| self.can_take(*s, now));
                return match standing {
                    Some(Standing::Expired) if !self.may_replace(slot, lock_is_new) => {
                        Some(Move::ReadLock)
                    }
                    Some(Standing::Expired | Standing::Revoked) => {
                        Some(Move::Write(Write::Take { slot, take }))
                    }
                    _ => None,
                };
            }
        }
        self.pending = None;
        None
    }

    /// Whether a slot that stands so can be taken.
    pub(super) fn can_take(&self, standing: Standing, now: Moment) -> bool {
        let barred = self.barred.is_some_and(|until| now < until);
        standing.is_takeable() && (standing == Standing::Free || !barred)
    }

    /// Whether a silent holder of the slot may be replaced by what is known of the lock. For each attempt, the first and
    /// every other, the lock is read after the holder was silent for long enough, and right before the take is sent: Hold
    /// may be new.
    pub(super) fn may_replace(&self, slot: u32, lock_is_new: bool) -> bool {
        let (Some(sight), Some(lock)) = (self.slots.get(&slot), self.lock(slot)) else {
            return false;
        };
        lock_is_new
            && !sight.lock_is_older
            && sight.standing(lock, self.lock_read) == Some(Standing::Expired)
    }

    /// Who withdraws while named moves `next` first.
    pub(super) fn leave(&self) -> Move {
        let Some(claim) = self.claim.clone() else {
            return if self.pending.is_some() {
                // What was sent may still be applied: only a change of the Lease tells.
                Move::Wait {
                    until: None,
                    why: Waiting::Holder,
                }
            } else {
                Move::Gone
            };
        };
        if let Some(lease) = self
            .lease(0)
            .filter(|lease| lease.next.as_ref() == Some(&claim))
        {
            if !self.list_is_fresh(lease) {
                return Move::ListClaims;
            }
            return Move::Write(Write::Name(change::name(lease, self.after(&claim))));
        }
        Move::DeleteClaim(claim)
    }
}

/// A lock that makes a renewal store what `base` stores, for one that leaves and has not read the lock.
fn stand_in(base: &LeaseRecord) -> LockView {
    let seconds = base
        .spec
        .duration_seconds
        .and_then(|seconds| u32::try_from(seconds).ok())
        .unwrap_or(1);
    LockView {
        duration_seconds: seconds,
        longest_seconds: Some(seconds),
        ..LockView::default()
    }
}
