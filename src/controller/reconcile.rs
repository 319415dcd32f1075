//! One look at one lock: ask the keepers of its slots what to do, then the queue, do it, tell them, until there is
//! nothing left to do; then mirror, then see to the claims. A trouble of one slot does not stop the others.
//!
//! Deciding is pure and synchronous (the index is locked for it), doing is asynchronous (nothing is locked).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use super::Shared;
use super::apply::{FoundClaim, LOCKS_STATUS, WriteError, Writer, Written};
use super::events::Events;
use super::index::{Key, Source};
use super::status::Trouble;
use crate::api::DistributedLock;
use crate::engine::{ClaimRef, LeaseRecord, Moment, OperatorMove, OperatorWrite, Seen, SpecRecord};
use crate::lease::store::LEASES;
use crate::lease::view::waits;
use crate::lease::{FoundLease, NewLease, Put};

/// The most rounds of one look. A look takes a handful; whoever comes here has met somebody who writes as fast.
const ROUNDS: usize = 16;
/// Among the failures of a look, by slot: that of a move of the queue.
const THE_QUEUE: i32 = -1;
/// That of a read of Pods, or of a claim: whoever needs it waits, the others do not.
const THE_READS: i32 = -2;
/// That of the mirror: claims are seen to all the same.
const THE_STATUS: i32 = -3;

/// Looks at locks, for the leader.
pub struct Reconciler {
    /// What this replica knows.
    pub shared: Arc<Shared>,
    /// Its hands.
    pub writer: Writer,
    /// Its voice.
    pub events: Events,
    /// Its name, in `ended`.
    pub identity: String,
    /// The Lease of its own election, which no lock may share.
    pub election: Key,
    memory: Mutex<HashMap<Key, Memory>>,
}

/// Which slots can't work, and why.
pub(super) type Troubles = BTreeMap<i32, Trouble>;

/// What one look has found so far.
#[derive(Debug, Default)]
struct Look {
    troubles: Troubles,
    /// What the server refused, by slot: the others go on, and all is tried again by the next look.
    failed: BTreeMap<i32, WriteError>,
}

impl Look {
    /// A server that can't be reached, or a lead that is over, ends the look; a refusal only that of the slot.
    fn note(&mut self, slot: i32, done: Result<(), WriteError>) -> Result<(), WriteError> {
        match done {
            Err(error) if error.is_refusal() => {
                self.failed.insert(slot, error);
                Ok(())
            }
            done => done,
        }
    }
}

/// What is remembered of a lock between looks.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) status_written: Moment,
    /// When the claims whose holds are kept were read last.
    pub(super) claims_read: Moment,
    /// Since when claims are seen that had their grant, by uid.
    pub(super) over: HashMap<String, Moment>,
}

impl Reconciler {
    /// One that has looked at nothing yet.
    #[must_use]
    pub fn new(
        shared: Arc<Shared>,
        writer: Writer,
        events: Events,
        identity: String,
        election: Key,
    ) -> Self {
        Self {
            shared,
            writer,
            events,
            identity,
            election,
            memory: Mutex::default(),
        }
    }

    /// Looks at the lock; says when to look again at the latest, if time alone may change something.
    pub async fn reconcile(&self, key: &Key) -> Result<Option<Moment>, WriteError> {
        let Some(lock) = self.shared.index().lock(key).cloned() else {
            self.memory().remove(key);
            return self.tend_claims(key).await;
        };
        if lock.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        self.read_on_slow_beat(key, &lock).await?;
        let mut so_far = Look::default();
        so_far.note(THE_READS, self.read_kept_claims(key).await)?;
        let pods = self.read_pods(key).await;
        let reads = pods.as_ref().copied().unwrap_or_default();
        so_far.note(THE_READS, pods.map(drop))?;
        for _ in 0..ROUNDS {
            if let Some(until) = self.round(key, &mut so_far).await? {
                let mirrored = self.mirror(key, &so_far.troubles).await;
                let again = mirrored.as_ref().copied().unwrap_or_default();
                so_far.note(THE_STATUS, mirrored.map(drop))?;
                let claims = self.tend_claims(key).await?;
                return match so_far.failed.into_values().next() {
                    Some(error) => Err(error),
                    None => Ok(earliest([
                        until,
                        again,
                        claims,
                        reads,
                        Some(self.beat(key, &lock)),
                    ])),
                };
            }
            if self.shared.index().lock(key).is_none() {
                return Ok(Some(self.shared.now()));
            }
        }
        tracing::warn!(%key, "the lock changes as fast as it is looked at, looks again in a second");
        Ok(Some(self.shared.now() + Duration::from_secs(1)))
    }

    /// One move of each slot that has one to make, else of the queue. Once nothing is left to do: when time alone
    /// changes that.
    async fn round(
        &self,
        key: &Key,
        look: &mut Look,
    ) -> Result<Option<Option<Moment>>, WriteError> {
        let (mut moved, mut to_open, mut until) = (false, vec![], None);
        look.troubles.clear();
        let slots = self.shared.index().slots_of(key);
        for (slot, lease) in slots {
            if let Some(trouble) = self.trouble(key, &lease) {
                look.troubles.insert(slot, trouble);
                continue;
            }
            if look.failed.contains_key(&slot) {
                continue;
            }
            let (todo, found) = self.decide(key, &lease);
            match todo {
                OperatorMove::Open => to_open.push((slot, lease)),
                OperatorMove::Wait { until: at, stalled } => {
                    until = earliest([until, at]);
                    look.troubles
                        .extend(stalled.map(|why| (slot, Trouble::Unavailable(why))));
                }
                todo => {
                    moved = true;
                    let done = self.make_move(key, &lease, todo, found).await;
                    look.note(slot, done)?;
                }
            }
        }
        if !to_open.is_empty() {
            self.open(key, &to_open).await?;
        } else if !moved {
            let (slot, todo) = {
                let (now, wall) = (self.shared.now(), self.shared.wall());
                self.shared.index().decide_turn(key, now, wall)
            };
            if let OperatorMove::Wait { until: at, .. } = todo {
                return Ok(Some(earliest([until, at])));
            }
            if look.failed.contains_key(&THE_QUEUE) {
                return Ok(Some(until));
            }
            let slots = self.shared.index().slots_of(key);
            let numbered = |(number, _): &(i32, Key)| number.unsigned_abs() == slot;
            let Some((_, lease)) = slots.into_iter().find(numbered) else {
                return Ok(None);
            };
            let found = self
                .shared
                .index()
                .slot(&lease)
                .and_then(|slot| slot.found.clone());
            let done = self.make_move(key, &lease, todo, found).await;
            look.note(THE_QUEUE, done)?;
        }
        Ok(None)
    }

    /// Why the lock may not even look at the Lease that it names.
    fn trouble(&self, key: &Key, lease: &Key) -> Option<Trouble> {
        if *lease == self.election {
            return Some(Trouble::Election);
        }
        let index = self.shared.index();
        let keeper = index.keeper_of(lease).filter(|keeper| *keeper != key)?;
        Some(Trouble::TakenBy(keeper.name.clone()))
    }

    fn decide(&self, key: &Key, lease: &Key) -> (OperatorMove, Option<FoundLease>) {
        let (now, wall) = (self.shared.now(), self.shared.wall());
        let mut index = self.shared.index();
        let todo = index.decide_slot(key, lease, &self.identity, now, wall);
        let found = index.slot(lease).and_then(|slot| slot.found.clone());
        (todo, found)
    }

    async fn make_move(
        &self,
        key: &Key,
        lease: &Key,
        todo: OperatorMove,
        found: Option<FoundLease>,
    ) -> Result<(), WriteError> {
        match todo {
            // Done for all slots at once, and for none.
            OperatorMove::Open | OperatorMove::Wait { .. } => Ok(()),
            OperatorMove::Create(spec) => self.create(key, lease, &spec).await,
            OperatorMove::ReadLock => self.read_lock(key).await,
            OperatorMove::ReadClaim(claim) => self.read_next(key, &claim).await,
            OperatorMove::ReadHolder(uid) => self.read_holder(key, lease, &uid).await,
            OperatorMove::Finish { claim, why } => self.finish(key, &claim, why).await,
            OperatorMove::Prolong { record, total } => {
                let Some(found) = found else {
                    return self.read_lease(lease).await;
                };
                let what = OperatorWrite::Prolong;
                if self.write(lease, &found, &record, what).await? {
                    let mut index = self.shared.index();
                    index.slot_mut(lease).keeper.prolonged(total);
                }
                Ok(())
            }
            OperatorMove::Write {
                what,
                record,
                then_delete,
            } => {
                let Some(found) = found else {
                    return self.read_lease(lease).await;
                };
                if what == OperatorWrite::Take && !self.still_waits(key, &record).await? {
                    return Ok(());
                }
                if self.write(lease, &found, &record, what).await?
                    && let Some(claim) = then_delete
                {
                    let key = Key::new(&key.namespace, &claim.name);
                    self.delete_claim(&key, &claim.uid).await?;
                }
                Ok(())
            }
        }
    }

    async fn create(&self, key: &Key, lease: &Key, spec: &SpecRecord) -> Result<(), WriteError> {
        let Some(lock) = self.shared.index().lock(key).cloned() else {
            return Ok(());
        };
        let name = lock.name_any();
        let adopts = lock.spec.lease_name.is_some();
        let new = NewLease {
            name: &lease.name,
            lock: (!adopts).then_some(name.as_str()),
            owner: (!adopts).then(|| owner(&lock)),
            shared_with: adopts.then_some(name.as_str()),
            spec,
        };
        if let Some(found) = self.writer.create_lease(lease, &new).await? {
            self.note(lease, Some(found), Seen::Read);
            return Ok(());
        }
        self.read_lease(lease).await?;
        let index = self.shared.index();
        let found = index.slot(lease).and_then(|slot| slot.found.as_ref());
        match found {
            Some(_) => Ok(()),
            None => Err(WriteError::turned_down("create", LEASES, lease)),
        }
    }

    /// Adds the first entries of slots, all by one write. Only of those that this very write added may the Leases read
    /// before be freed.
    async fn open(&self, key: &Key, to_open: &[(i32, Key)]) -> Result<(), WriteError> {
        let Some(mut lock) = self.shared.index().lock(key).map(|lock| (**lock).clone()) else {
            return Ok(());
        };
        let is_new = |slot: &&(i32, Key)| lock.slot_status(slot.0).is_none();
        let new: Vec<_> = to_open.iter().filter(is_new).collect();
        let open: Vec<_> = to_open.iter().map(|(slot, _)| *slot).collect();
        lock.status = Some(self.sight(key, &lock, &Troubles::new(), &open));
        let before = self.shared.now();
        match self.writer.put_lock_status(&lock).await? {
            Written::Applied(written) if written.resource_version() == lock.resource_version() => {
                Err(WriteError::turned_down("update", LOCKS_STATUS, key))
            }
            Written::Applied(written) => {
                let mut index = self.shared.index();
                let added = |slot: &i32| written.slot_status(*slot).is_some();
                let added: Vec<_> = new.iter().filter(|(slot, _)| added(slot)).collect();
                index.lock_seen(*written, Source::Read, before);
                for (_, lease) in added {
                    index.slot_mut(lease).keeper.opened();
                }
                drop(index);
                self.remember(key, |memory| memory.status_written = before);
                Ok(())
            }
            Written::Conflict | Written::Gone => self.read_lock_after(key, &lock).await,
        }
    }

    /// Whether the write was applied. If not, the Lease is read again: it may even have been.
    async fn write(
        &self,
        lease: &Key,
        found: &FoundLease,
        record: &LeaseRecord,
        what: OperatorWrite,
    ) -> Result<bool, WriteError> {
        match self.writer.put_lease(lease, found, record, what).await? {
            put if put.is_turned_down(found) => {
                self.read_lease(lease).await?;
                let index = self.shared.index();
                let now = index.slot(lease).and_then(|slot| slot.found.as_ref());
                if now.is_some_and(|now| now.record == found.record) {
                    return Err(WriteError::turned_down("update", LEASES, lease));
                }
                Ok(false)
            }
            Put::Applied(now) => {
                if matches!(what, OperatorWrite::Expire | OperatorWrite::Revoke) {
                    let (holder, token) = (&found.record.spec.holder, found.record.current_token());
                    tracing::info!(%lease, holder, token = token.map(crate::api::FencingToken::get), ?what, "ended a grant");
                }
                // Guarded by the record that the keeper had seen: nothing was missed in between.
                self.note(lease, Some(*now), Seen::Watched);
                Ok(true)
            }
            // They turn a write down, see above.
            Put::Conflict | Put::Gone => Ok(false),
            Put::Forbidden(error) | Put::Refused(error) | Put::Unknown(error) => Err(error.into()),
        }
    }

    pub(super) async fn read_lease(&self, lease: &Key) -> Result<(), WriteError> {
        let found = self.writer.get_lease(lease).await?;
        let mut index = self.shared.index();
        let known = index
            .slot(lease)
            .and_then(|slot| slot.keeper.lease())
            .map(|known| known.resource_version);
        if let (Some(known), Some(found)) = (known, &found)
            && found.record.resource_version < known
        {
            // Overtaken by a watch, or revisions went back: then no watch would ever tell, so list again.
            let slot = index.slot_mut(lease);
            if self.shared.now().saturating_sub(slot.heard) > Duration::from_secs(5) {
                tracing::warn!(%lease, "revisions went back (a restore of etcd?), lists everything again");
                slot.keeper = crate::engine::Keeper::default();
                slot.found = None;
                drop(index);
                self.shared.revisions_went_back();
            }
            return Ok(());
        }
        index.lease_seen(
            lease,
            found,
            Seen::Read,
            self.shared.now(),
            self.shared.wall(),
        );
        Ok(())
    }

    pub(super) async fn read_lock(&self, key: &Key) -> Result<(), WriteError> {
        let before = self.shared.now();
        let meant = self.shared.index().lock(key).and_then(|lock| lock.uid());
        match self.writer.get_lock(key).await? {
            Some(lock) => self.shared.index().lock_seen(lock, Source::Read, before),
            None => self.shared.index().lock_not_found(key, meant.as_deref()),
        };
        Ok(())
    }

    async fn read_next(&self, key: &Key, claim: &ClaimRef) -> Result<(), WriteError> {
        let name = Key::new(&key.namespace, &claim.name);
        let counts = match self.writer.get_claim(&name).await? {
            FoundClaim::There(found) => {
                found.metadata.uid.as_deref() == Some(&claim.uid) && waits(&found)
            }
            FoundClaim::NotThere | FoundClaim::Damaged => false,
        };
        self.shared.index().turns_mut(key).claim_read(claim, counts);
        Ok(())
    }

    fn note(&self, lease: &Key, found: Option<FoundLease>, seen: Seen) {
        self.shared
            .index()
            .lease_seen(lease, found, seen, self.shared.now(), self.shared.wall());
    }

    /// What a watch should have told is read all the same, of every slot.
    async fn read_on_slow_beat(&self, key: &Key, lock: &DistributedLock) -> Result<(), WriteError> {
        let beat = self.beat_length(key, lock);
        let slots = self.shared.index().slots_of(key);
        for (_, lease) in slots {
            let heard = self.heard(&lease);
            if heard.is_some_and(|heard| self.shared.now() >= heard + beat) {
                self.read_lease(&lease).await?;
            }
        }
        Ok(())
    }

    /// The slow beat: T within 5 to 30 s; ten times that while nobody holds the lock or waits for it.
    fn beat_length(&self, key: &Key, lock: &DistributedLock) -> Duration {
        let beat = lock
            .spec
            .effective_lease_duration()
            .clamp(Duration::from_secs(5), Duration::from_secs(30));
        let index = self.shared.index();
        let mut leases = index.slots_of(key).into_iter().map(|(_, lease)| lease);
        let free = leases.all(|lease| {
            let known = index.slot(&lease).and_then(|slot| slot.keeper.lease());
            known.is_some_and(LeaseRecord::is_free)
        });
        let waited_for = index.claims(key).next().is_some();
        if free && !waited_for { beat * 10 } else { beat }
    }

    fn beat(&self, key: &Key, lock: &DistributedLock) -> Moment {
        let beat = self.beat_length(key, lock);
        let slots = self.shared.index().slots_of(key);
        let oldest = slots
            .iter()
            .filter_map(|(_, lease)| self.heard(lease))
            .min();
        let jitter = beat.mul_f64(0.1 * rand::random::<f64>());
        let now = self.shared.now();
        let from = oldest.unwrap_or(now).max(now.saturating_sub(beat));
        from + beat + jitter
    }

    /// When the Lease was last heard of, if ever.
    fn heard(&self, lease: &Key) -> Option<Moment> {
        let index = self.shared.index();
        index
            .slot(lease)
            .map(|slot| slot.heard)
            .filter(|heard| !heard.is_zero())
    }

    pub(super) fn remember<T>(&self, key: &Key, with: impl FnOnce(&mut Memory) -> T) -> T {
        with(self.memory().entry(key.clone()).or_default())
    }

    pub(super) fn memory(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn owner(lock: &DistributedLock) -> OwnerReference {
    OwnerReference {
        api_version: DistributedLock::api_version(&()).into_owned(),
        kind: DistributedLock::kind(&()).into_owned(),
        name: lock.name_any(),
        uid: lock.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }
}

pub(super) fn earliest<const N: usize>(moments: [Option<Moment>; N]) -> Option<Moment> {
    moments.into_iter().flatten().min()
}
