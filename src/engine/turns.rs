//! Whose turn it is: the operator's part in the one queue that a lock has for all its slots.
//!
//! [`Turns`] looks at the [`Keeper`]s of all slots and at the claims. For a Fixed or Pod claim whose turn it is it takes
//! for it. Otherwise it writes one thing: `next`, on slot 0's Lease. It names the first claim where nobody
//! is named, repairs a `next` that does not count, passes over who does not take a slot that could be taken, and lets a
//! claim of higher priority go first.

use std::collections::BTreeSet;

use super::change;
use super::claimant::PASS_OVER_AFTER;
use super::holds::{self, HoldClaim, LOOK_AGAIN};
use super::operator::{Keeper, OperatorMove, OperatorWrite, wait, write};
use super::queue::Queue;
use super::record::{ClaimRef, Hold, LeaseRecord};
use super::standing::Standing;
use super::{Moment, WallMicros};

/// What the leader knows of one lock's turns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Turns {
    /// What a read of the claim named by `next` showed: whether it counts.
    next_counts: Option<(ClaimRef, bool)>,
    /// Since when that read says that a claim counts which is not in view.
    out_of_view: Option<Moment>,
    /// The `next` that was seen while a slot could be taken, and since when.
    named: Option<(Moment, Option<ClaimRef>)>,
    /// Whether it has not yet put the first claim first since it began to lead.
    begins_to_lead: bool,
    /// The dead claim from which `next` is taken away with nobody to name instead, and whether it was seen to be. If it
    /// is named again after that, somebody lives who names it, and the two would write for ever.
    taken_from: Option<(ClaimRef, bool)>,
    /// Claims that were passed over in favour of a lower one while the same slots could be taken: their rank does not
    /// bring them back at once, or the two would be named in turn for ever.
    passed_over: BTreeSet<ClaimRef>,
}

impl Turns {
    /// From now on this replica leads: it names the first claim, so that those passed over while nobody led get
    /// their place back.
    pub fn begin_to_lead(&mut self) {
        self.begins_to_lead = true;
    }

    /// The claim that [`OperatorMove::ReadClaim`] named was read: `counts` if it exists with that uid, unfinished.
    pub fn claim_read(&mut self, claim: &ClaimRef, counts: bool) {
        self.next_counts = Some((claim.clone(), counts));
        self.out_of_view = None;
    }

    /// What the leader does at `now` about the turn, and on which slot's Lease. `slots` are the keepers of the lock,
    /// each after its own [`Keeper::decide`]; `queue` is made with the holders of all of them; `claim` tells which
    /// claims' holds the operator keeps.
    ///
    /// A take for such a claim stands back behind whatever is to be written about the turn of somebody who is named, but
    /// for passing over: it is its turn, and a take is what it would be passed over for.
    pub fn decide(
        &mut self,
        slots: &[&Keeper],
        queue: &Queue,
        claim: impl Fn(&ClaimRef) -> Option<HoldClaim>,
        now: Moment,
        wall: WallMicros,
    ) -> (u32, OperatorMove) {
        let sights: Vec<_> = slots.iter().filter_map(|slot| slot.sight(now)).collect();
        let take = holds::take(&sights, queue, claim, wall);
        let nobody_is_named = sights
            .iter()
            .any(|slot| slot.lock.number == 0 && slot.lease.next.is_none());
        if nobody_is_named && let Some(take) = take {
            // Naming it first would cost a write, and a take of slot 0 moves the queue itself.
            return take;
        }
        let todo = self.say(slots, queue, now);
        let leaves_it = match &todo {
            OperatorMove::Wait { .. } => true,
            OperatorMove::Write { what, .. } => *what == OperatorWrite::PassOver,
            _ => false,
        };
        take.filter(|_| leaves_it).unwrap_or((0, todo))
    }

    /// What there is to say of whose turn it is: a write is of slot 0's Lease.
    fn say(&mut self, slots: &[&Keeper], queue: &Queue, now: Moment) -> OperatorMove {
        let takeable = slots.iter().filter_map(|slot| slot.takeable_since()).min();
        if takeable.is_none() {
            self.named = None;
            self.passed_over.clear();
        }
        let Some(lease) = slots.iter().find_map(|slot| head(slot, now)) else {
            return wait(None);
        };
        if let Some(count) = offered(slots)
            && lease.slots.unwrap_or(1) != count
        {
            // Before anybody is passed over: who is named may not know of a slot that was opened just now.
            return write(OperatorWrite::Slots, change::tell_slots(lease, count));
        }
        if let Some((claim, away)) = &mut self.taken_from {
            // The write may not have won.
            *away |= lease.next.as_ref() != Some(claim);
        }
        if takeable.is_some()
            && self
                .named
                .as_ref()
                .is_none_or(|(_, next)| *next != lease.next)
        {
            self.named = Some((now, lease.next.clone()));
        }
        self.passed_over.retain(|claim| queue.contains(claim));
        let since = takeable
            .zip(self.named.as_ref())
            .map(|(takeable, (named, _))| takeable.max(*named));
        let first = queue.first();
        let Some(next) = &lease.next else {
            self.begins_to_lead = false;
            return first.map_or_else(|| wait(None), |first| name(lease, Some(first)));
        };
        if !queue.contains(next) {
            // It does not count while it holds any slot, a surplus one too.
            let holds = |slot: &&Keeper| holder_of(slot) == Some(next.uid.as_str());
            return match &self.next_counts {
                _ if slots.iter().any(holds) => name(lease, first),
                Some((read, false)) if read == next => name(lease, first),
                Some((read, true)) if read == next => {
                    // It is there, only not in view yet; or by now it is gone again.
                    let look_again = *self.out_of_view.get_or_insert(now) + LOOK_AGAIN;
                    if now >= look_again {
                        return OperatorMove::ReadClaim(next.clone());
                    }
                    match pass_over(lease, next, first, None, since, now) {
                        OperatorMove::Wait { until, .. } => wait(Some(
                            until.map_or(look_again, |until| until.min(look_again)),
                        )),
                        todo => todo,
                    }
                }
                _ => OperatorMove::ReadClaim(next.clone()),
            };
        }
        if self.begins_to_lead && first.is_some_and(|first| first != next) {
            return name(lease, first);
        }
        self.begins_to_lead = false;
        let named = queue.claims().iter().find(|claim| claim.claim == *next);
        if named.is_some_and(|claim| claim.dead) {
            let after = queue.after(next);
            let named_again = self.taken_from.as_ref() == Some(&(next.clone(), true));
            if after.is_some() || !named_again {
                self.taken_from = after.is_none().then(|| (next.clone(), false));
                return name(lease, after);
            }
        }
        if let Some(higher) = self.highest(queue).filter(|who| queue.outranks(who, next)) {
            return name(lease, Some(higher));
        }
        let after = queue.after(next);
        let heartbeat = named.is_some_and(|claim| claim.hold == Hold::Heartbeat);
        let delete = heartbeat.then(|| next.clone());
        let todo = pass_over(lease, next, after, delete, since, now);
        let passes = matches!(todo, OperatorMove::Write { .. });
        if passes && after.is_some_and(|after| queue.outranks(next, after)) {
            self.passed_over.insert(next.clone());
        }
        todo
    }

    /// The first claim that is neither dead nor was passed over just now.
    fn highest<'a>(&self, queue: &'a Queue) -> Option<&'a ClaimRef> {
        queue
            .claims()
            .iter()
            .find(|claim| !claim.dead && !self.passed_over.contains(&claim.claim))
            .map(|claim| &claim.claim)
    }
}

/// Two seconds after a slot was seen takeable with this `next`.
fn pass_over(
    lease: &LeaseRecord,
    next: &ClaimRef,
    after: Option<&ClaimRef>,
    then_delete: Option<ClaimRef>,
    since: Option<Moment>,
    now: Moment,
) -> OperatorMove {
    let Some(since) = since else {
        return wait(None);
    };
    let due = since.saturating_add(PASS_OVER_AFTER);
    if now < due {
        return wait(Some(due));
    }
    let after = after.filter(|after| *after != next);
    if after.is_none() && then_delete.is_none() {
        // Nobody is behind it, and it keeps its place: to name nobody, then it again, would go on for ever.
        return wait(None);
    }
    // With nobody behind it there is nobody to name: the claim goes, and with it what `next` says.
    let record = Box::new(change::name(lease, after.cloned()));
    OperatorMove::Write {
        what: OperatorWrite::PassOver,
        record,
        then_delete,
    }
}

/// How many slots may be taken, once all of them are open.
fn offered(slots: &[&Keeper]) -> Option<u32> {
    let mut views = slots.iter().filter_map(|slot| slot.lock());
    let count = views.clone().next()?.max_holders;
    let all_open = views.all(|lock| lock.is_surplus() || lock.slot.is_some());
    all_open.then_some(count.max(1))
}

/// Slot 0's Lease, if it may be written.
fn head(slot: &Keeper, now: Moment) -> Option<&LeaseRecord> {
    let first = slot.lock()?.number == 0;
    let usable = !matches!(slot.standing(now)?, Standing::Unavailable(_));
    slot.lease().filter(|_| first && usable)
}

fn holder_of(slot: &Keeper) -> Option<&str> {
    slot.lease().and_then(LeaseRecord::holder_uid)
}

fn name(lease: &LeaseRecord, next: Option<&ClaimRef>) -> OperatorMove {
    write(OperatorWrite::Name, change::name(lease, next.cloned()))
}
