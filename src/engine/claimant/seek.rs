//! What a claimant does that has nothing of its own open: whose turn it is, which slot can be had, whom to pass over.

use super::sight::{Known, Sight};
use super::{Claimant, PASS_OVER_AFTER, Takeable};
use crate::engine::change::{self, NextChange, Requester};
use crate::engine::moves::{Move, Patience, Refusal, Waiting, Write};
use crate::engine::record::{ClaimRef, LeaseRecord};
use crate::engine::standing::{Standing, Unavailable};
use crate::engine::{Moment, WallMicros};

/// What `next` means to this claimant.
enum Turn {
    /// Nobody's: `next` is absent or names a claim that does not count.
    Nobodys { stale: bool },
    /// Its own.
    Mine,
    /// Another's.
    Anothers(ClaimRef),
    /// A read of that claim tells.
    Unknown(ClaimRef),
}

/// A slot that can be had.
#[derive(Clone, Copy)]
struct Open {
    slot: u32,
    standing: Standing,
}

/// What the turn asks for.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it comes from"
)]
enum Todo {
    /// To take that slot.
    Take(Open, NextChange),
    Other(Move),
}

impl From<Move> for Todo {
    fn from(other: Move) -> Self {
        Todo::Other(other)
    }
}

impl Claimant {
    pub(super) fn seek(&mut self, lock_is_new: bool, now: Moment, wall: WallMicros) -> Move {
        let sight = &self.slots[&0];
        let standing = self.lock(0).and_then(|lock| sight.standing(lock, now));
        let unavailable = match standing {
            None => Some(Move::Wait {
                until: None,
                why: Waiting::NoLease,
            }),
            Some(Standing::Unavailable(why)) => Some(unavailable(why)),
            Some(_) => None,
        };
        if let Some(wait) = unavailable {
            self.takeable = None;
            // A Lease goes with its lock; what it newly shows may come with one that was opened, or made again.
            return if sight.lock_is_older {
                Move::ReadLock
            } else {
                wait
            };
        }
        // An identity serves one grant: if this one's came and went unnoticed, it is spent; so is a claim for which somebody
        // else holds.
        let own = self.claim.as_ref().map(|claim| claim.uid.as_str());
        let is_spent = |sight: &Sight| {
            sight.shows(&self.who.identity) || own.is_some() && sight.holder_uid() == own
        };
        if self.slots.values().any(is_spent) {
            return self
                .claim
                .clone()
                .map_or(Move::StartOver, Move::DeleteClaim);
        }
        if self.claim.is_some() && self.listed.is_none() {
            return Move::ListClaims;
        }
        let Some(lease) = self.lease(0) else {
            return Move::ReadLease(0);
        };
        let (next, turn) = (lease.next.clone(), self.turn(lease));
        let told = lease.slots.is_some_and(|count| count != self.slot_count());
        if told && sight.lock_is_older && matches!(turn, Turn::Mine) {
            // There are more slots by now, or fewer.
            return Move::ReadLock;
        }
        let unread = self.first_unread();
        if let (Turn::Anothers(_), Some(_), Some(unread)) = (&turn, self.looking, unread) {
            return Move::ReadLease(unread);
        }
        let open = self.first_open(now);
        self.note_takeable(open, next, now);
        let todo = match self.claim.clone() {
            None => self.seek_without_claim(&turn, open, unread),
            Some(claim) => self.seek_in_queue(&claim, turn, open, unread, now),
        };
        match todo {
            Todo::Take(open, next) => self.take(open, next, lock_is_new, wall),
            Todo::Other(other) => other,
        }
    }

    /// Whoever is named has two seconds from the moment at which a slot is seen takeable and this `next`.
    fn note_takeable(&mut self, open: Option<Open>, next: Option<ClaimRef>, now: Moment) {
        let goes_on = self.takeable.as_ref().is_some_and(|of| {
            of.next == next
                && self
                    .standings(now)
                    .any(|s| s.slot == of.slot && self.can_take(s.standing, now))
        });
        if !goes_on {
            self.takeable = open.map(|open| Takeable {
                since: now,
                slot: open.slot,
                next,
            });
        }
    }

    fn seek_without_claim(&self, turn: &Turn, open: Option<Open>, unread: Option<u32>) -> Todo {
        let Some(lease) = self.lease(0) else {
            return Move::ReadLease(0).into();
        };
        if open.is_none() && unread.is_none() {
            return self.queue_up().into();
        }
        let next = match turn {
            Turn::Mine | Turn::Anothers(_) => return self.queue_up().into(),
            Turn::Unknown(next) => return Move::ReadClaim(next.clone()).into(),
            Turn::Nobodys { stale: false } => NextChange::Keep,
            Turn::Nobodys { stale: true } if !self.list_is_fresh(lease) => {
                return Move::ListClaims.into();
            }
            Turn::Nobodys { stale: true } => {
                match (self.patience, self.queue().and_then(|q| q.first().cloned())) {
                    // Others wait, though the one named is gone: queue behind them.
                    (Patience::Wait, Some(_)) => return Move::MakeClaim.into(),
                    (_, first) => NextChange::Set(first),
                }
            }
        };
        match (open, unread) {
            (Some(open), _) => Todo::Take(open, next),
            (None, Some(unread)) => Move::ReadLease(unread).into(),
            (None, None) => self.queue_up().into(),
        }
    }

    fn seek_in_queue(
        &mut self,
        claim: &ClaimRef,
        turn: Turn,
        open: Option<Open>,
        unread: Option<u32>,
        now: Moment,
    ) -> Todo {
        let Some(lease) = self.lease(0) else {
            return Move::ReadLease(0).into();
        };
        let other = match turn {
            Turn::Mine if !self.was_listed_when_named(lease) => Move::ListClaims,
            Turn::Mine => match (open, unread) {
                (Some(open), _) => {
                    return Todo::Take(open, NextChange::Set(self.after(claim)));
                }
                (None, Some(unread)) => Move::ReadLease(unread),
                (None, None) => self.wait_for_holders(now),
            },
            Turn::Nobodys { .. } if !self.list_is_fresh(lease) => Move::ListClaims,
            Turn::Nobodys { .. } => match (open, self.queue().and_then(|q| q.first().cloned())) {
                // Take and name in one write; with another slot it would be two all the same.
                (Some(open), Some(first)) if open.slot == 0 && first == *claim => {
                    return Todo::Take(open, NextChange::Set(self.after(claim)));
                }
                (_, first) => Move::Write(Write::Name(change::name(lease, first))),
            },
            Turn::Unknown(next) => Move::ReadClaim(next),
            Turn::Anothers(next) if self.goes_before(claim, &next) => {
                if self.list_is_fresh(lease) {
                    Move::Write(Write::Name(change::name(lease, Some(claim.clone()))))
                } else {
                    Move::ListClaims
                }
            }
            Turn::Anothers(next) if open.is_some() => self.pass_over(&next, claim, now),
            Turn::Anothers(_) => self.wait_for_holders(now),
        };
        other.into()
    }

    /// Where priority counts, the highest claim names itself.
    fn goes_before(&self, claim: &ClaimRef, named: &ClaimRef) -> bool {
        self.went_before.as_ref() != Some(named)
            && self
                .queue()
                .is_some_and(|queue| queue.first() == Some(claim) && queue.outranks(claim, named))
    }

    /// k places behind, after k times two seconds, by a list made right before the write, and by a look at every slot.
    fn pass_over(&mut self, next: &ClaimRef, claim: &ClaimRef, now: Moment) -> Move {
        let Some(Takeable { since, .. }) = &self.takeable else {
            return Move::ReadLease(0);
        };
        let behind = self
            .queue()
            .and_then(|queue| queue.places_behind(next, claim))
            .unwrap_or(1)
            .max(1);
        let patience = PASS_OVER_AFTER.saturating_mul(u32::try_from(behind).unwrap_or(u32::MAX));
        let due = since.saturating_add(patience);
        if now < due {
            return Move::Wait {
                until: Some(due),
                why: Waiting::Turn,
            };
        }
        if self.slot_count() > 1 && self.looking.is_none_or(|began| began < due) {
            self.look_around(now);
            if let Some(unread) = self.first_unread() {
                return Move::ReadLease(unread);
            }
        }
        let Some(lease) = self.lease(0) else {
            return Move::ReadLease(0);
        };
        if !self.list_is_fresh(lease) {
            return Move::ListClaims;
        }
        Move::Write(Write::PassOver(change::name(lease, self.after(next))))
    }

    fn take(&self, open: Open, next: NextChange, lock_is_new: bool, wall: WallMicros) -> Move {
        let Open { slot, standing } = open;
        let (Some(sight), Some(lock)) = (self.slots.get(&slot), self.lock(slot)) else {
            return Move::ReadLock;
        };
        let Some(lease) = sight.lease.value() else {
            return Move::ReadLease(slot);
        };
        let is_known = match standing {
            Standing::Expired => self.may_replace(slot, lock_is_new),
            // There may be fewer slots by now.
            _ => slot == 0 || !sight.lock_is_older,
        };
        if !is_known {
            return Move::ReadLock;
        }
        let who = Requester {
            remembered: sight.remembered,
            ..self.who.clone()
        };
        match change::take(lock, lease, standing, &who, next, wall) {
            Ok(take) => Move::Write(Write::Take { slot, take }),
            Err(change::TakeRefused::NoTokenLeft) => Move::Refuse(Refusal::NoTokenLeft),
            Err(change::TakeRefused::NotTakeable) => Move::ReadLease(slot),
        }
    }

    fn queue_up(&self) -> Move {
        match self.patience {
            Patience::Wait => Move::MakeClaim,
            Patience::Try => Move::Refuse(Refusal::Busy),
        }
    }

    /// Until the first of the holders in view may be called silent.
    fn wait_for_holders(&self, now: Moment) -> Move {
        let mut silent = self
            .standings(now)
            .filter(|open| open.standing.is_takeable() && !self.can_take(open.standing, now));
        let barred = silent.next().and(self.barred);
        let until = self
            .standings(now)
            .filter_map(|open| match open.standing {
                Standing::Held { until } => Some(until),
                _ => None,
            })
            .chain(barred)
            .min();
        let missing = self.lease(0).is_some_and(LeaseRecord::is_missing);
        let why = match barred {
            Some(_) => Waiting::Operator,
            None if missing => Waiting::Missing,
            None => Waiting::Holder,
        };
        Move::Wait { until, why }
    }

    /// How the slots in view stand.
    fn standings(&self, now: Moment) -> impl Iterator<Item = Open> {
        (0..self.slot_count()).filter_map(move |slot| {
            let sight = self.slots.get(&slot).filter(|sight| !sight.must_read)?;
            let standing = sight.standing(self.lock(slot)?, now)?;
            Some(Open { slot, standing })
        })
    }

    /// The first one to be had; that of which a take is open before all others, as it may be its own already.
    fn first_open(&self, now: Moment) -> Option<Open> {
        let pending = self.pending.as_ref().map(|(slot, _)| *slot);
        self.standings(now)
            .filter(|open| self.can_take(open.standing, now))
            .min_by_key(|open| (Some(open.slot) != pending, open.slot))
    }

    /// The first slot of which nothing is known at present.
    fn first_unread(&self) -> Option<u32> {
        (0..self.slot_count()).find(|slot| {
            self.slots
                .get(slot)
                .is_none_or(|sight| sight.must_read || matches!(sight.lease, Known::Unread))
        })
    }

    fn turn(&self, lease: &LeaseRecord) -> Turn {
        let Some(next) = lease.next.clone() else {
            return Turn::Nobodys { stale: false };
        };
        if self.claim.as_ref() == Some(&next) {
            return Turn::Mine;
        }
        if self
            .slots
            .values()
            .filter_map(Sight::holder_uid)
            .any(|uid| uid == next.uid)
        {
            return Turn::Nobodys { stale: true };
        }
        // A list made while this `next` stood tells as much as a read, and is there already for whoever queues.
        if let Some(listed) = self
            .listed
            .as_ref()
            .filter(|listed| listed.next.as_ref() == Some(&next))
        {
            let counts = listed
                .claims
                .iter()
                .any(|claim| claim.claim == next && claim.waiting);
            return if counts {
                Turn::Anothers(next)
            } else {
                Turn::Nobodys { stale: true }
            };
        }
        match &self.next_counts {
            Some((read, false)) if *read == next => Turn::Nobodys { stale: true },
            Some((read, true)) if *read == next => Turn::Anothers(next),
            // A waiter does not read the claim at each change: whoever is behind a dead one passes over it.
            _ if self.claim.is_some() && self.listed.is_some() => Turn::Anothers(next),
            _ => Turn::Unknown(next),
        }
    }
}

fn unavailable(why: Unavailable) -> Move {
    match why {
        Unavailable::NewerVersion => Move::Refuse(Refusal::NewerVersion),
        Unavailable::NotOurs => Move::Wait {
            until: None,
            why: Waiting::Conflict,
        },
        Unavailable::NotOpened | Unavailable::OtherLock | Unavailable::Deleting => Move::Wait {
            until: None,
            why: Waiting::NotReady,
        },
    }
}
