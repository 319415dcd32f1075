//! The operator's machines over several slots: one keeper a slot, one queue for all; each write is seen at once.

use leasehold::engine::{
    ClaimRef, ClaimView, Grant, HoldClaim, Keeper, LeaseRecord, LockView, Moment, NextChange,
    OperatorMove, OperatorWrite, Queue, QueueOrder, Requester, Seen, Standing, Turns, change,
};

use super::engine_words::{claim, claim_view, identity, lock, new_lease};

pub fn at(seconds: f64) -> Moment {
    Moment::from_secs_f64(seconds)
}

/// A lock of some slots, each with a free Lease that all is known of, and its operator.
pub struct Stage {
    pub lock: LockView,
    pub leases: Vec<LeaseRecord>,
    pub revision: u64,
    pub keepers: Vec<Keeper>,
    pub turns: Turns,
    pub claims: Vec<ClaimView>,
    pub order: QueueOrder,
}

impl Stage {
    pub fn new(slots: u32) -> Self {
        let lock = LockView {
            max_holders: slots,
            ..lock()
        };
        let leases = (0..slots).map(|slot| LeaseRecord {
            uid: format!("L{slot}"),
            slots: (slot == 0).then_some(slots),
            ..new_lease(100 + u64::from(slot))
        });
        let mut stage = Self {
            lock,
            leases: leases.collect(),
            revision: 200,
            keepers: (0..slots).map(|_| Keeper::default()).collect(),
            turns: Turns::default(),
            claims: vec![],
            order: QueueOrder::Fifo,
        };
        stage.read_lock(Moment::ZERO);
        for slot in 0..stage.leases.len() {
            stage.see(slot, Moment::ZERO);
        }
        stage
    }

    pub fn read_lock(&mut self, now: Moment) {
        for (number, keeper) in (0..).zip(&mut self.keepers) {
            let lock = LockView {
                number,
                ..self.lock.clone()
            };
            keeper.lock_read(lock, now);
        }
    }

    pub fn see(&mut self, slot: usize, now: Moment) {
        let lease = Some(self.leases[slot].clone());
        self.keepers[slot].lease_seen(lease, Seen::Watched, now);
    }

    pub fn put(&mut self, slot: usize, record: LeaseRecord, now: Moment) {
        self.revision += 1;
        self.leases[slot] = LeaseRecord {
            resource_version: self.revision,
            ..record
        };
        self.see(slot, now);
    }

    pub fn take(&mut self, slot: usize, who: &str, now: Moment) -> Grant {
        let (lock, lease) = (&self.lock, &self.leases[slot]);
        let who = Requester::heartbeat(identity(who));
        let take = change::take(lock, lease, Standing::Free, &who, NextChange::Keep, 1);
        let take = take.expect("a free slot");
        self.put(slot, take.record, now);
        take.grant
    }

    pub fn renew(&mut self, slot: usize, grant: &Grant, now: Moment) {
        let renewed = change::renew(&self.lock, &self.leases[slot], grant, 1);
        self.put(slot, renewed, now);
    }

    pub fn release(&mut self, slot: usize, grant: &Grant, now: Moment) {
        let freed = change::release(&self.leases[slot], grant, "done", 1);
        self.put(slot, freed, now);
    }

    pub fn name(&mut self, next: Option<&str>, now: Moment) {
        let named = change::name(&self.leases[0], next.map(claim));
        self.put(0, named, now);
    }

    pub fn wait(&mut self, names: &[&str]) {
        self.claims = names
            .iter()
            .zip(1..)
            .map(|(n, at)| claim_view(n, at))
            .collect();
    }

    /// What the operator does for one slot.
    pub fn keeps(&mut self, slot: usize, now: Moment) -> OperatorMove {
        self.keepers[slot].decide("operator", now, 1)
    }

    /// What it does about the turn, and on which slot's Lease, after it has asked for every slot. `kept` are claims whose
    /// holds it keeps.
    pub fn turn_with(&mut self, kept: &[HoldClaim], now: Moment) -> (u32, OperatorMove) {
        for slot in 0..self.keepers.len() {
            self.keeps(slot, now);
        }
        let holders = self.leases.iter().filter_map(LeaseRecord::holder_uid);
        let queue = Queue::new(self.claims.iter().cloned(), holders, self.order);
        let keepers: Vec<_> = self.keepers.iter().collect();
        let kept = |claim: &ClaimRef| kept.iter().find(|kept| kept.claim == *claim).cloned();
        self.turns.decide(&keepers, &queue, kept, now, 1)
    }

    /// The same, where it keeps the holds of none: all is about slot 0's Lease.
    pub fn turn(&mut self, now: Moment) -> OperatorMove {
        let (slot, todo) = self.turn_with(&[], now);
        assert_eq!(slot, 0);
        todo
    }

    /// The claim that it names, and the one that it deletes after that; the write is made.
    pub fn names(&mut self, now: Moment) -> Option<(Option<String>, Option<String>)> {
        let OperatorMove::Write {
            record,
            then_delete,
            ..
        } = self.turn(now)
        else {
            return None;
        };
        let next = record.next.as_ref().map(|next| next.name.clone());
        self.put(0, *record, now);
        Some((next, then_delete.map(|claim| claim.name)))
    }

    /// First of all it tells how many slots there are, once.
    pub fn tells_slots(&mut self, count: u32, now: Moment) {
        let OperatorMove::Write { what, record, .. } = self.turn(now) else {
            panic!("it tells the number of slots");
        };
        assert_eq!((what, record.slots), (OperatorWrite::Slots, Some(count)));
        self.put(0, *record, now);
    }
}

pub fn waits_until(todo: &OperatorMove) -> Option<Moment> {
    match todo {
        OperatorMove::Wait { until, .. } => *until,
        other => panic!("it waits: {other:?}"),
    }
}

pub fn writes(todo: &OperatorMove) -> Option<OperatorWrite> {
    match todo {
        OperatorMove::Write { what, .. } => Some(*what),
        _ => None,
    }
}

pub fn named(name: &str) -> (Option<String>, Option<String>) {
    (Some(name.to_owned()), None)
}
