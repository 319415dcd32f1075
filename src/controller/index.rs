//! What this replica knows: locks, claims and Leases, one [`Keeper`] a slot and one [`Turns`] a lock. Synchronous, no
//! I/O.
//!
//! Every replica feeds it, so that a change of leader postpones no expiry. Whether a state of a Lease came by an
//! unbroken watch is told here, since an observer may trust only what it saw without a gap: a state that enters a
//! watch's selection anew (a label was put back) counts as read.

mod deciding;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use kube::ResourceExt;

pub use self::words::{Key, Kind, Source, Watch};
use super::news::{News, note_news};
use super::pods::{Namer, Pods};
use crate::api::names::MAX_HOLDERS;
use crate::api::{DistributedLock, HistoryEntry, LockClaim};
use crate::engine::{Keeper, LeaseRecord, Moment, Seen, Turns, WallMicros};
use crate::lease::FoundLease;
use crate::lease::view::lock_view;

/// One Lease, watched or awaited.
#[derive(Debug, Default)]
pub struct Slot {
    /// The machine that says what to do.
    pub keeper: Keeper,
    /// The object, of the state that the keeper knows.
    pub found: Option<FoundLease>,
    /// When the Lease was last heard of.
    pub heard: Moment,
    /// The uid of the Lease whose end a watch showed last, and the revision of that end: a read which that overtook
    /// must not bring it back.
    pub gone: Option<(String, u64)>,
    /// The Lease as it was when it went out of view. Only what is seen next tells whether its grant has ended: it may have
    /// lost its label alone.
    parted: Option<LeaseRecord>,
    /// Grants whose end is not in status yet.
    pub ends: VecDeque<HistoryEntry>,
    /// What the leader has not told yet.
    pub news: VecDeque<News>,
}

/// Everything that is known.
#[derive(Debug, Default)]
pub struct Index {
    locks: HashMap<Key, Arc<DistributedLock>>,
    claims: HashMap<Key, BTreeMap<String, Arc<LockClaim>>>,
    /// By namespace and name of the claim: the lock that it names.
    lock_of_claim: HashMap<Key, Key>,
    /// By Lease.
    slots: HashMap<Key, Slot>,
    /// By Lease: the locks that name it, each for which of its slots.
    named_by: HashMap<Key, BTreeMap<Key, i32>>,
    /// By lock.
    turns: HashMap<Key, Turns>,
    in_view: HashMap<Watch, HashSet<Key>>,
    listing: HashMap<Watch, HashSet<Key>>,
    /// Pods that claims name.
    pub pods: Pods,
}

impl Index {
    /// The lock of this key.
    #[must_use]
    pub fn lock(&self, key: &Key) -> Option<&Arc<DistributedLock>> {
        self.locks.get(key)
    }

    /// All locks.
    pub fn locks(&self) -> impl Iterator<Item = (&Key, &Arc<DistributedLock>)> {
        self.locks.iter()
    }

    /// Every key that may need work: locks, and missing locks that claims name.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        let keys: BTreeSet<_> = self
            .locks
            .keys()
            .chain(self.claims.keys())
            .cloned()
            .collect();
        keys.into_iter().collect()
    }

    /// The claims that name the lock, by name.
    pub fn claims(&self, lock: &Key) -> impl Iterator<Item = &Arc<LockClaim>> {
        self.claims.get(lock).into_iter().flat_map(BTreeMap::values)
    }

    /// The Lease of a slot.
    #[must_use]
    pub fn slot(&self, lease: &Key) -> Option<&Slot> {
        self.slots.get(lease)
    }

    /// The Lease of a slot, made known if it is new.
    pub fn slot_mut(&mut self, lease: &Key) -> &mut Slot {
        self.slots.entry(lease.clone()).or_default()
    }

    /// The slots of a lock and their Leases, from slot 0: those that may be taken, and those above `maxHolders` that
    /// status knows, whose Leases are kept.
    #[must_use]
    pub fn slots_of(&self, lock: &Key) -> Vec<(i32, Key)> {
        let Some(found) = self.locks.get(lock) else {
            return vec![];
        };
        let lease = |slot| (slot, lock.sibling(&found.slot_lease_name(slot)));
        slot_numbers(found).map(lease).collect()
    }

    /// The Leases of a lock's slots, from slot 0, as far as they are there and the lock's own.
    pub fn leases_of(&self, lock: &Key) -> impl Iterator<Item = &LeaseRecord> {
        let own = self.slots_of(lock).into_iter().map(|(_, lease)| lease);
        own.filter(|lease| self.keeper_of(lease) == Some(lock))
            .filter_map(|lease| self.slots.get(&lease)?.keeper.lease())
    }

    /// The machine that says whose turn it is.
    pub fn turns_mut(&mut self, lock: &Key) -> &mut Turns {
        self.turns.entry(lock.clone()).or_default()
    }

    /// The lock that has the Lease, of all that name it: one that is open already, else the older one.
    #[must_use]
    pub fn keeper_of(&self, lease: &Key) -> Option<&Key> {
        let naming = self.named_by.get(lease)?;
        naming.keys().min_by_key(|key| {
            let lock = self.locks.get(*key);
            let opened = lock.is_some_and(|lock| lock.slot_status(0).is_some());
            let made = lock.and_then(|lock| lock.creation_timestamp());
            (!opened, made.map(|time| time.0), (*key).clone())
        })
    }

    /// This replica begins to lead: what it saw as a standby was told by another.
    pub fn begin_to_lead(&mut self) {
        for slot in self.slots.values_mut() {
            slot.keeper.begin_to_lead();
            slot.news.clear();
        }
        for lock in self.locks.keys() {
            self.turns.entry(lock.clone()).or_default().begin_to_lead();
        }
    }

    /// A watch begins to list.
    pub fn list_begins(&mut self, watch: &Watch) {
        if watch.kind == Kind::Pods {
            return self.pods.list_begins(watch);
        }
        self.listing.insert(watch.clone(), HashSet::new());
    }

    /// A watch has listed everything: what it did not list is gone. Says which locks are concerned.
    pub fn list_ends(&mut self, watch: &Watch, now: Moment, wall: WallMicros) -> Vec<Key> {
        if watch.kind == Kind::Pods {
            let concerned = self.pods.list_ends(watch);
            return self.locks_of(&concerned);
        }
        let Some(listed) = self.listing.remove(watch) else {
            return vec![];
        };
        let before = self.in_view.insert(watch.clone(), listed.clone());
        let gone: Vec<_> = before
            .into_iter()
            .flatten()
            .filter(|key| !listed.contains(key))
            .collect();
        gone.into_iter()
            .flat_map(|key| match watch.kind {
                Kind::Locks => self.lock_gone(&key),
                Kind::Claims => self.claim_gone(&key),
                Kind::Leases | Kind::SharedLeases => {
                    self.lease_seen(&key, None, Seen::Read, now, wall)
                }
                // They are kept apart, see `pods`.
                Kind::Pods => vec![],
            })
            .collect()
    }

    /// Takes note that `watch` shows `key`; says how far its state may be trusted.
    pub fn enters(&mut self, watch: &Watch, key: &Key, listed: bool) -> Seen {
        if listed {
            self.listing
                .entry(watch.clone())
                .or_default()
                .insert(key.clone());
            return Seen::Read;
        }
        if self
            .in_view
            .entry(watch.clone())
            .or_default()
            .insert(key.clone())
        {
            Seen::Read
        } else {
            Seen::Watched
        }
    }

    /// `watch` does not show `key` any more.
    pub fn leaves(&mut self, watch: &Watch, key: &Key) {
        self.in_view.entry(watch.clone()).or_default().remove(key);
    }

    /// A lock was seen. `now` is when it was read from the server, before the request was sent. Says which locks are
    /// concerned.
    pub fn lock_seen(&mut self, lock: DistributedLock, source: Source, now: Moment) -> Vec<Key> {
        let key = Key::of(&lock);
        let known = self.locks.get(&key);
        // A read that a deletion overtook must not bring the lock back.
        if known.is_none() && source == Source::Read {
            return vec![];
        }
        let revision = |lock: &DistributedLock| {
            lock.resource_version()
                .and_then(|revision| revision.parse::<u64>().ok())
        };
        // A list always counts: after a restore of etcd revisions go back.
        let older = known.is_some_and(|known| revision(known) > revision(&lock));
        if older && source != Source::List {
            return vec![];
        }
        let changed = known.is_none_or(|known| revision(known) != revision(&lock));
        let before = self.slots_of(&key);
        self.locks.insert(key.clone(), Arc::new(lock));
        let named = self.slots_of(&key);
        for (_, lease) in before.iter().filter(|slot| !named.contains(slot)) {
            self.unname(lease, &key);
        }
        let mut concerned = BTreeSet::new();
        for (slot, lease) in named {
            let naming = self.named_by.entry(lease.clone()).or_default();
            naming.insert(key.clone(), slot);
            concerned.extend(naming.keys().cloned());
            let mine = self.keeper_of(&lease) == Some(&key);
            // What a watch tells may be late; only a read shows the lock as it was at a known moment.
            match source {
                Source::Read if mine => self.tell_keeper(&lease, now),
                _ if changed => self.tell_keeper(&lease, Moment::ZERO),
                _ => {}
            }
        }
        if changed {
            concerned.into_iter().collect()
        } else {
            vec![]
        }
    }

    /// There is no such lock.
    pub fn lock_gone(&mut self, key: &Key) -> Vec<Key> {
        let named = self.slots_of(key);
        if self.locks.remove(key).is_none() {
            return vec![];
        }
        self.turns.remove(key);
        self.pods.follow(key, BTreeSet::new());
        let mut concerned = BTreeSet::from([key.clone()]);
        for (_, lease) in named {
            concerned.extend(self.unname(&lease, key));
            self.tell_keeper(&lease, Moment::ZERO);
        }
        concerned.into_iter().collect()
    }

    /// The lock names the Lease no more; says which others do.
    fn unname(&mut self, lease: &Key, lock: &Key) -> Vec<Key> {
        let mut others = vec![];
        if let Some(naming) = self.named_by.get_mut(lease) {
            naming.remove(lock);
            others.extend(naming.keys().cloned());
            if naming.is_empty() {
                self.named_by.remove(lease);
            }
        }
        self.forget_unused(lease);
        others
    }

    /// A call was answered by "no such lock" when `uid` was meant; another of its name may be known by now.
    pub fn lock_not_found(&mut self, key: &Key, uid: Option<&str>) -> Vec<Key> {
        let known = self.locks.get(key);
        if known.is_some_and(|known| known.metadata.uid.as_deref() == uid) {
            self.lock_gone(key)
        } else {
            vec![]
        }
    }

    /// A claim was seen.
    pub fn claim_seen(&mut self, claim: LockClaim, source: Source) -> Vec<Key> {
        let key = Key::of(&claim);
        let lock = key.sibling(&claim.spec.lock_name);
        if source == Source::Read && !self.lock_of_claim.contains_key(&key) {
            return vec![];
        }
        let mut concerned = vec![lock.clone()];
        if let Some(before) = self.lock_of_claim.insert(key.clone(), lock.clone())
            && before != lock
        {
            // Made again under the same name, for another lock.
            self.remove_claim(&before, &key.name);
            concerned.push(before);
        }
        let claims = self.claims.entry(lock).or_default();
        let revision = |claim: &LockClaim| {
            claim
                .resource_version()
                .and_then(|revision| revision.parse::<u64>().ok())
        };
        if let Some(known) = claims.get(&key.name)
            && (revision(known) == revision(&claim)
                || (revision(known) > revision(&claim) && source != Source::List))
        {
            return vec![];
        }
        if let Some(before) = claims.get(&key.name) {
            self.pods.claim_gone(before);
        }
        self.pods.claim_seen(&claim);
        let over = claim.status.as_ref().filter(|_| claim.phase().is_final());
        let over = over.and_then(|status| status.lease_name.clone());
        claims.insert(key.name.clone(), Arc::new(claim));
        if let Some(lease) = over {
            self.tell_keeper(&key.sibling(&lease), Moment::ZERO);
        }
        concerned
    }

    /// The claim of this name and uid.
    #[must_use]
    pub fn claim_of(&self, key: &Key, uid: &str) -> Option<&Arc<LockClaim>> {
        let lock = self.lock_of_claim.get(key)?;
        let claim = self.claims.get(lock)?.get(&key.name)?;
        (claim.metadata.uid.as_deref() == Some(uid)).then_some(claim)
    }

    /// There is no such claim.
    pub fn claim_gone(&mut self, key: &Key) -> Vec<Key> {
        let Some(lock) = self.lock_of_claim.remove(key) else {
            return vec![];
        };
        self.remove_claim(&lock, &key.name);
        vec![lock]
    }

    /// The locks of those who name a Pod.
    #[must_use]
    pub fn locks_of(&self, namers: &[Namer]) -> Vec<Key> {
        let locks = namers.iter().filter_map(|namer| match namer {
            Namer::Claim(claim) => self.lock_of_claim.get(claim),
            Namer::Lock(lock) => Some(lock),
        });
        let locks: BTreeSet<_> = locks.collect();
        locks.into_iter().cloned().collect()
    }

    /// A Lease was seen, or is known not to exist. Says which locks have work: a mere renewal concerns none, their
    /// deadlines find out.
    pub fn lease_seen(
        &mut self,
        key: &Key,
        found: Option<FoundLease>,
        seen: Seen,
        now: Moment,
        wall: WallMicros,
    ) -> Vec<Key> {
        let naming: Vec<_> = self
            .named_by
            .get(key)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .cloned()
            .collect();
        let slot = self.slots.entry(key.clone()).or_default();
        if let (Some((uid, end)), Some(found)) = (&slot.gone, &found)
            && found.record.uid == *uid
            && found.record.resource_version < *end
        {
            return vec![];
        }
        let before = slot.keeper.lease().cloned();
        let lost = slot.keeper.lost_at().is_some_and(|at| at <= now);
        let record = found.as_ref().map(|found| found.record.clone());
        slot.keeper.lease_seen(record, seen, now);
        slot.heard = now;
        let after = slot.keeper.lease();
        match (after, found) {
            (None, _) => slot.found = None,
            (Some(after), Some(found)) if *after == found.record => slot.found = Some(found),
            // An older state, passed over by the keeper.
            _ => return vec![],
        }
        // One that was given up comes back by a renewal: that is news.
        let renewed = !lost
            && before
                .as_ref()
                .zip(after)
                .is_some_and(|(before, after)| is_renewal(before, after));
        if let Some(after) = after.cloned() {
            let known = before.or_else(|| slot.parted.take());
            note_news(slot, known.as_ref(), &after, wall);
        } else {
            slot.parted = before.or_else(|| slot.parted.take());
            self.forget_unused(key);
        }
        if renewed { vec![] } else { naming }
    }

    /// A Lease was deleted, or left the selection; `revision` is that of its end.
    pub fn lease_gone(
        &mut self,
        key: &Key,
        uid: &str,
        revision: u64,
        now: Moment,
        wall: WallMicros,
    ) -> Vec<Key> {
        let known = self.slots.get(key).and_then(|slot| slot.keeper.lease());
        // A newer one of the same name may be known already, by a read.
        if known.is_none_or(|known| known.uid != uid && known.resource_version > revision) {
            return vec![];
        }
        let concerned = self.lease_seen(key, None, Seen::Watched, now, wall);
        if let Some(slot) = self.slots.get_mut(key) {
            slot.gone = Some((uid.to_owned(), revision));
        }
        concerned
    }

    /// A state that is older than the end of its Lease may be what a restore of etcd has brought back.
    pub fn forget_ends(&mut self) {
        for slot in self.slots.values_mut() {
            slot.gone = None;
        }
    }

    fn tell_keeper(&mut self, lease: &Key, read: Moment) {
        let Some(key) = self.keeper_of(lease) else {
            return;
        };
        let (Some(lock), Some(slot)) = (self.locks.get(key), self.named_by[lease].get(key)) else {
            return;
        };
        let view = lock_view(lock, *slot, self.is_claim_over(lock, *slot));
        self.slot_mut(lease).keeper.lock_read(view, read);
    }

    fn forget_unused(&mut self, lease: &Key) {
        let unused = self
            .slots
            .get(lease)
            .is_some_and(|slot| slot.keeper.lease().is_none());
        if unused && !self.named_by.contains_key(lease) {
            self.slots.remove(lease);
        }
    }

    fn remove_claim(&mut self, lock: &Key, name: &str) {
        if let Some(claims) = self.claims.get_mut(lock) {
            if let Some(claim) = claims.remove(name) {
                self.pods.claim_gone(&claim);
            }
            if claims.is_empty() {
                self.claims.remove(lock);
            }
        }
    }
}

/// The slots that a lock names: one whose Lease is another client's has but one.
fn slot_numbers(lock: &DistributedLock) -> impl Iterator<Item = i32> {
    let offered = lock.spec.effective_max_holders();
    let adopts = lock.spec.lease_name.is_some();
    let known = lock.status.iter().flat_map(|status| &status.slots);
    let known = known.map(|entry| entry.slot + 1).max().unwrap_or(0);
    let end = if adopts {
        1
    } else {
        offered.max(known).min(MAX_HOLDERS)
    };
    0..end
}

/// Whether nothing changed but the time of renewal.
fn is_renewal(before: &LeaseRecord, after: &LeaseRecord) -> bool {
    let mut like = after.clone();
    like.resource_version = before.resource_version;
    like.spec.renew_time = before.spec.renew_time;
    like == *before
}

#[cfg(test)]
mod tests;
