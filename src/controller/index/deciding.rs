//! What the leader does about a lock, decided by the machines of its slots and of its queue on what is known.

use std::collections::BTreeSet;

use super::{Index, Key};
use crate::api::{DistributedLock, LockClaim};
use crate::controller::claims::SlotLease;
use crate::controller::claims::holds::hold_claim;
use crate::engine::{
    ClaimRef, Hold, HoldClaim, Holder, LeaseRecord, Moment, OperatorMove, Queue, QueueOrder,
    WallMicros, holds,
};
use crate::lease::view::{claim_view, lock_view};

impl Index {
    /// The waiting claims of a lock, in order: those that hold none of its slots.
    #[must_use]
    pub fn queue(&self, lock: &Key) -> Queue {
        let views = self
            .claims(lock)
            .filter_map(|claim| claim_view(claim, self.is_skipped(claim)));
        let order = self
            .lock(lock)
            .map_or(QueueOrder::Fifo, |lock| lock_view(lock, 0, false).order);
        let holders = self.leases_of(lock).filter_map(LeaseRecord::holder_uid);
        Queue::new(views, holders, order)
    }

    /// Whether nobody need wait for the claim: its Pod is gone, or the Pod that its hold would last with is not there.
    fn is_skipped(&self, claim: &LockClaim) -> bool {
        self.pods.is_dead(claim)
            || self
                .hold_claim(claim)
                .is_some_and(|claim| claim.lacks_its_pod())
    }

    /// The claim as the engine sees it; `None` for a Heartbeat claim.
    #[must_use]
    pub fn hold_claim(&self, claim: &LockClaim) -> Option<HoldClaim> {
        hold_claim(claim, self.pods.of_hold(claim))
    }

    /// The slots of a lock whose Leases are there and its own, for its claims.
    #[must_use]
    pub fn slot_leases(&self, lock: &Key) -> Vec<SlotLease> {
        let own = self.slots_of(lock).into_iter();
        own.filter(|(_, lease)| self.keeper_of(lease) == Some(lock))
            .filter_map(|(number, lease)| {
                let keeper = &self.slots.get(&lease)?.keeper;
                Some(SlotLease {
                    number,
                    name: lease.name,
                    lease: keeper.lease()?.clone(),
                    prolonged_to: keeper.prolonged_to(),
                })
            })
            .collect()
    }

    /// The Pods that the Heartbeat holders of a lock run in, as far as they are in its namespace.
    #[must_use]
    pub fn pods_of_holders(&self, lock: &Key) -> BTreeSet<Key> {
        let grants = self.leases_of(lock).filter_map(LeaseRecord::current_grant);
        let beating = grants.filter(|grant| grant.hold == Hold::Heartbeat);
        let pods = beating.filter_map(|grant| grant.pod.as_ref());
        pods.map(|pod| lock.sibling(&pod.name)).collect()
    }

    /// What the leader does about one slot of a lock.
    pub fn decide_slot(
        &mut self,
        lock: &Key,
        lease: &Key,
        identity: &str,
        now: Moment,
        wall: WallMicros,
    ) -> OperatorMove {
        let kept = self.slots.get(lease).and_then(|slot| {
            let sight = slot.keeper.sight(now)?;
            let uid = sight.lease.holder_uid();
            let mut claims = self.claims(lock);
            let claim = claims.find(|claim| claim.metadata.uid.as_deref() == uid);
            let claim = claim.and_then(|claim| self.hold_claim(claim));
            let holder = match &claim {
                Some(claim) => Holder::InView(claim),
                None => slot.keeper.holder_out_of_view(now),
            };
            holds::keep(&sight, holder, identity, now, wall).or_else(|| {
                let pod = sight.lease.current_grant()?.pod.as_ref()?;
                let (pod, read) = self.pods.sight(&lock.sibling(&pod.name))?;
                holds::end_proven(&sight, pod, read, identity, now, wall)
            })
        });
        let keeper = &mut self.slot_mut(lease).keeper;
        match kept {
            Some(todo) => {
                keeper.note_attempt(&todo);
                todo
            }
            None => keeper.decide(identity, now, wall),
        }
    }

    /// What the leader does about the turn of a lock whose keepers have nothing to do, and on which slot's Lease: takes
    /// for a Fixed or Pod claim, or says whose turn it is.
    pub fn decide_turn(
        &mut self,
        lock: &Key,
        now: Moment,
        wall: WallMicros,
    ) -> (u32, OperatorMove) {
        let queue = self.queue(lock);
        let own = self.slots_of(lock).into_iter().map(|(_, lease)| lease);
        let own: Vec<_> = own
            .filter(|lease| self.keeper_of(lease) == Some(lock))
            .collect();
        let keepers = own
            .iter()
            .filter_map(|lease| Some(&self.slots.get(lease)?.keeper));
        let keepers: Vec<_> = keepers.collect();
        let (claims, pods) = (self.claims.get(lock), &self.pods);
        let claim = |claim: &ClaimRef| {
            let found = claims?.get(&claim.name)?;
            let same = found.metadata.uid.as_deref() == Some(&claim.uid);
            hold_claim(found, pods.of_hold(found)).filter(|_| same)
        };
        let turns = self.turns.entry(lock.clone()).or_default();
        turns.decide(&keepers, &queue, claim, now, wall)
    }

    /// Whether the claim of the last grant that status shows for the slot has its final phase: then nobody believes in
    /// that grant any more.
    #[must_use]
    pub fn is_claim_over(&self, lock: &DistributedLock, slot: i32) -> bool {
        let Some(token) = lock.slot_token(slot) else {
            return false;
        };
        self.claims(&Key::of(lock)).any(|claim| {
            let status = claim.status.as_ref();
            claim.phase().is_final()
                && status.is_some_and(|status| {
                    status.fencing_token == Some(token) && status.slot == Some(slot)
                })
        })
    }
}
