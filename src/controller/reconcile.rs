//! One look at one lock: ask its keeper what to do, do it, tell the keeper, until there is nothing left to do; then
//! mirror, then see to the claims.
//!
//! Deciding is pure and synchronous (the index is locked for it), doing is asynchronous (nothing is locked).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use super::Shared;
use super::apply::{WriteError, Writer, Written};
use super::claims::{self, ClaimAction, Claims};
use super::events::Events;
use super::index::{Key, Source};
use super::status::Trouble;
use crate::api::DistributedLock;
use crate::engine::{ClaimRef, LeaseRecord, Moment, OperatorMove, OperatorWrite, Seen, SpecRecord};
use crate::lease::view::waits;
use crate::lease::{FoundLease, NewLease, Put};

/// The most moves of one look. A look takes a handful; whoever comes here has met somebody who writes as fast.
const MOVES: usize = 16;
/// The most writes about claims in one look: the lock itself must not wait behind thousands of new claims.
const CLAIM_WRITES: usize = 32;
/// How long a claimant has to delete the claim of a grant that it got, before the operator does.
const COLLECT_AFTER: Duration = Duration::from_secs(2);

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

/// What is remembered of a lock between looks.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) status_written: Moment,
    /// Since when claims are seen that had their grant, by uid.
    over: HashMap<String, Moment>,
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
            return self.tend_claims(key, None, None).await;
        };
        if lock.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let lease = Key::new(&key.namespace, &lock.lease_name());
        if let Some(trouble) = self.trouble(key, &lease) {
            let again = self.mirror(key, &lease, Some(trouble)).await?;
            let claims = self.tend_claims(key, Some(&lock), None).await?;
            return Ok(earliest([again, claims, Some(self.beat(&lock))]));
        }
        self.read_on_slow_beat(&lock, &lease).await?;
        let pods = self.read_pods(key).await?;
        for _ in 0..MOVES {
            let (todo, found) = self.decide(key, &lease);
            match todo {
                OperatorMove::Wait { until, stalled } => {
                    let again = self
                        .mirror(key, &lease, stalled.map(Trouble::Unavailable))
                        .await?;
                    let record = found.as_ref().map(|found| &found.record);
                    let claims = self.tend_claims(key, Some(&lock), record).await?;
                    return Ok(earliest([
                        again,
                        claims,
                        pods,
                        until,
                        Some(self.beat(&lock)),
                    ]));
                }
                OperatorMove::Create(spec) => self.create(&lock, &lease, &spec).await?,
                OperatorMove::Open => self.open(key, &lease).await?,
                OperatorMove::ReadLock => self.read_lock(key).await?,
                OperatorMove::ReadClaim(claim) => self.read_claim(key, &lease, &claim).await?,
                OperatorMove::Write {
                    what,
                    record,
                    then_delete,
                } => {
                    let Some(found) = found else {
                        self.read_lease(&lease).await?;
                        continue;
                    };
                    if self.write(&lease, &found, &record, what).await?
                        && let Some(claim) = then_delete
                    {
                        let key = Key::new(&key.namespace, &claim.name);
                        self.writer.delete_claim(&key, &claim.uid).await?;
                    }
                }
            }
            if self.shared.index().lock(key).is_none() {
                return Ok(Some(self.shared.now()));
            }
        }
        tracing::warn!(%key, "the lock changes as fast as it is looked at, looks again in a second");
        Ok(Some(self.shared.now() + Duration::from_secs(1)))
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
        let record = index
            .slot(lease)
            .and_then(|slot| slot.keeper.lease())
            .cloned();
        let queue = index.queue(key, record.as_ref());
        let slot = index.slot_mut(lease);
        let todo = slot.keeper.decide(&queue, &self.identity, now, wall);
        (todo, slot.found.clone())
    }

    async fn create(
        &self,
        lock: &DistributedLock,
        lease: &Key,
        spec: &SpecRecord,
    ) -> Result<(), WriteError> {
        let name = lock.name_any();
        let adopts = lock.spec.lease_name.is_some();
        let new = NewLease {
            name: &lease.name,
            lock: (!adopts).then_some(name.as_str()),
            owner: (!adopts).then(|| owner(lock)),
            shared_with: adopts.then_some(name.as_str()),
            spec,
        };
        match self.writer.create_lease(lease, &new).await? {
            Some(found) => {
                self.note(lease, Some(found), Seen::Read);
                Ok(())
            }
            None => self.read_lease(lease).await,
        }
    }

    /// Adds the slot's first entry. Only if this very write added it may the Lease read before be freed.
    async fn open(&self, key: &Key, lease: &Key) -> Result<(), WriteError> {
        let Some(mut lock) = self.shared.index().lock(key).map(|lock| (**lock).clone()) else {
            return Ok(());
        };
        let is_new = lock.slot_status(0).is_none();
        lock.status = Some(self.sight(key, lease, &lock, None, true));
        let before = self.shared.now();
        match self.writer.put_lock_status(&lock).await? {
            Written::Applied(written) => {
                let added = written.slot_status(0).is_some();
                let mut index = self.shared.index();
                index.lock_seen(*written, Source::Read, before);
                if is_new && added {
                    index.slot_mut(lease).keeper.opened();
                }
                drop(index);
                self.remember(key, |memory| memory.status_written = before);
                Ok(())
            }
            Written::Conflict => self.read_lock(key).await,
            Written::Gone => {
                let uid = lock.metadata.uid.as_deref();
                self.shared.index().lock_not_found(key, uid);
                Ok(())
            }
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
            Put::Applied(now) => {
                if matches!(what, OperatorWrite::Expire | OperatorWrite::Revoke) {
                    let (holder, token) = (&found.record.spec.holder, found.record.current_token());
                    tracing::info!(%lease, holder, token = token.map(crate::api::FencingToken::get), ?what, "ended a grant");
                }
                // Guarded by the record that the keeper had seen: nothing was missed in between.
                self.note(lease, Some(*now), Seen::Watched);
                Ok(true)
            }
            Put::Conflict | Put::Gone => {
                self.read_lease(lease).await?;
                Ok(false)
            }
            Put::Forbidden(error) | Put::Refused(error) | Put::Unknown(error) => Err(error.into()),
        }
    }

    async fn read_lease(&self, lease: &Key) -> Result<(), WriteError> {
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
                self.shared.resync.notify_waiters();
                slot.keeper = crate::engine::Keeper::default();
                slot.found = None;
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

    async fn read_claim(&self, key: &Key, lease: &Key, claim: &ClaimRef) -> Result<(), WriteError> {
        let name = Key::new(&key.namespace, &claim.name);
        let found = self.writer.get_claim(&name).await?;
        let found = found.filter(|found| found.metadata.uid.as_deref() == Some(&claim.uid));
        let counts = found.as_ref().is_some_and(waits);
        self.shared
            .index()
            .slot_mut(lease)
            .keeper
            .claim_read(claim, counts);
        Ok(())
    }

    fn note(&self, lease: &Key, found: Option<FoundLease>, seen: Seen) {
        self.shared
            .index()
            .lease_seen(lease, found, seen, self.shared.now(), self.shared.wall());
    }

    /// What a watch should have told is read all the same.
    async fn read_on_slow_beat(
        &self,
        lock: &DistributedLock,
        lease: &Key,
    ) -> Result<(), WriteError> {
        let heard = self
            .shared
            .index()
            .slot(lease)
            .map_or(Moment::ZERO, |slot| slot.heard);
        if heard.is_zero() || self.shared.now() < heard + self.beat_length(lock, lease) {
            return Ok(());
        }
        self.read_lease(lease).await
    }

    /// The slow beat: T within 5 to 30 s; ten times that while nobody holds the lock or waits for it.
    fn beat_length(&self, lock: &DistributedLock, lease: &Key) -> Duration {
        let beat = lock
            .spec
            .effective_lease_duration()
            .clamp(Duration::from_secs(5), Duration::from_secs(30));
        let index = self.shared.index();
        let free = index
            .slot(lease)
            .and_then(|slot| slot.keeper.lease())
            .is_some_and(LeaseRecord::is_free);
        let waited_for = index.claims(&Key::of(lock)).next().is_some();
        if free && !waited_for { beat * 10 } else { beat }
    }

    fn beat(&self, lock: &DistributedLock) -> Moment {
        let lease = Key::new(&lock.namespace().unwrap_or_default(), &lock.lease_name());
        let beat = self.beat_length(lock, &lease);
        let heard = self
            .shared
            .index()
            .slot(&lease)
            .map_or(Moment::ZERO, |slot| slot.heard);
        let jitter = beat.mul_f64(0.1 * rand::random::<f64>());
        heard.max(self.shared.now().saturating_sub(beat)) + beat + jitter
    }

    async fn tend_claims(
        &self,
        key: &Key,
        lock: Option<&DistributedLock>,
        lease: Option<&LeaseRecord>,
    ) -> Result<Option<Moment>, WriteError> {
        let claims: Vec<_> = self.shared.index().claims(key).cloned().collect();
        if claims.is_empty() {
            if let Some(memory) = self.memory().get_mut(key) {
                memory.over.clear();
            }
            return Ok(None);
        }
        self.remember(key, |memory| {
            memory.over.retain(|uid, _| {
                claims
                    .iter()
                    .any(|claim| claim.metadata.uid.as_ref() == Some(uid))
            });
        });
        let (actions, after) = claims::plan(&Claims {
            claims,
            lock,
            lock_name: &key.name,
            lease,
            wall: self.shared.wall(),
        });
        let now = self.shared.now();
        let micros = |after: i64| Duration::from_micros(u64::try_from(after).unwrap_or(0));
        let mut again = after.map(|after| now + micros(after));
        for (written, action) in actions.into_iter().enumerate() {
            if written >= CLAIM_WRITES {
                return Ok(Some(now));
            }
            match action {
                ClaimAction::Status(claim, status) => {
                    let mut claim = (*claim).clone();
                    claim.status = Some(*status);
                    if let Written::Applied(claim) = self.writer.put_claim_status(&claim).await? {
                        // What follows from a final phase (its ttl) is planned from the claim as it is now.
                        if claim.phase().is_final() {
                            again = earliest([again, Some(now)]);
                        }
                        self.shared.index().claim_seen(*claim, Source::Read);
                    }
                }
                ClaimAction::Delete(claim) => {
                    let Some(uid) = claim.uid() else { continue };
                    let since =
                        self.remember(key, |memory| *memory.over.entry(uid.clone()).or_insert(now));
                    let due = if claim.phase().is_final() {
                        now
                    } else {
                        since + COLLECT_AFTER
                    };
                    if due <= now {
                        self.writer.delete_claim(&Key::of(&*claim), &uid).await?;
                        self.remember(key, |memory| memory.over.remove(&uid));
                    } else {
                        again = earliest([again, Some(due)]);
                    }
                }
            }
        }
        Ok(again)
    }

    pub(super) fn remember<T>(&self, key: &Key, with: impl FnOnce(&mut Memory) -> T) -> T {
        with(self.memory().entry(key.clone()).or_default())
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Memory>> {
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

fn earliest<const N: usize>(moments: [Option<Moment>; N]) -> Option<Moment> {
    moments.into_iter().flatten().min()
}
