//! What comes before anything else is written: a take that is open; and how a claimant leaves. And which holders may be
//! replaced.

use super::Claimant;
use super::sight::Known;
use crate::engine::change::{self, Take};
use crate::engine::moves::{Move, Write};
use crate::engine::record::{ClaimRef, LeaseRecord};
use crate::engine::standing::{LockView, Standing};
use crate::engine::{Moment, WallMicros};

impl Claimant {
    /// What an unsettled take asks for: to look whether it was applied; if so, a renewal that proves since when. `None`
    /// where it is settled, since it can't be applied any more, and where it is open: see [`Claimant::settle_before`].
    pub(super) fn settle(&mut self, wall: WallMicros) -> Option<Move> {
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
            let unchanged =
                lease.uid == base.uid && lease.resource_version == base.resource_version;
            if unchanged && self.may_land {
                return None;
            }
        }
        self.pending = None;
        None
    }

    /// What to do before `wanted`, which is what it would do now were no take open.
    ///
    /// If it would make that very take, by a lock read right before, it sends it again: only one of the two can win, and
    /// both are the same grant. Where it would not (Hold is new, there are fewer slots, the floor has risen, it is
    /// another's turn, it leaves), no attempt must be applied any more: a guarded write of its own changes the Lease,
    /// then it goes on. So it never has two slots, and never waits for one that it can't have.
    pub(super) fn settle_before(&self, wanted: Move, lock_is_new: bool) -> Move {
        let Some((slot, open)) = &self.pending else {
            return wanted;
        };
        let slot = *slot;
        match wanted {
            Move::ReadLock | Move::ReadLease(_) | Move::ReadClaim(_) | Move::ListClaims => wanted,
            Move::Write(Write::Take { slot: of, take }) if of == slot && is_same(&take, open) => {
                if lock_is_new {
                    let take = open.clone();
                    Move::Write(Write::Take { slot, take })
                } else {
                    Move::ReadLock
                }
            }
            // Who names somebody, or leaves by that, changes slot 0's Lease anyway.
            Move::Write(write @ (Write::Name(_) | Write::PassOver(_))) if slot == 0 => {
                Move::Write(write)
            }
            _ if self.stopping && slot == 0 && self.is_named() => self.leave(),
            _ => self.change_lease(slot),
        }
    }

    /// Changes a slot's Lease by its `next` alone.
    fn change_lease(&self, slot: u32) -> Move {
        let Some(lease) = self.lease(slot) else {
            return Move::ReadLease(slot);
        };
        let mut turn = self.claim.clone();
        if slot == 0 && turn.is_none() && !self.stopping {
            if !self.list_is_fresh(lease) {
                return Move::ListClaims;
            }
            turn = self.queue().and_then(|queue| queue.first().cloned());
        }
        // The name of its own claim, or of whoever is first; if that stands there, none; and if none stands there and
        // nobody waits, that of a claim which there never was: it counts for nobody, and the next take removes it.
        let next = match (
            turn.filter(|turn| lease.next.as_ref() != Some(turn)),
            &lease.next,
        ) {
            (None, None) => Some(ClaimRef {
                name: "nobody".to_owned(),
                uid: self.own_uid(),
            }),
            (next, _) => next,
        };
        let record = change::name(lease, next);
        Move::Write(Write::Settle { slot, record })
    }

    /// The random part of its identity.
    fn own_uid(&self) -> String {
        let identity = &self.who.identity;
        let uid = identity.rsplit_once('/').map_or("", |(_, uid)| uid);
        uid.to_owned()
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
            return Move::Gone;
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

/// Whether two takes are the same but for their times: the same grant, in place of the same record.
fn is_same(take: &Take, open: &Take) -> bool {
    let mut timed = take.clone();
    timed.record.spec.acquire_time = open.record.spec.acquire_time;
    timed.record.spec.renew_time = open.record.spec.renew_time;
    timed == *open
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
