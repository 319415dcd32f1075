//! What a look does about the claims of a lock, their Pods, and their holds where these have no process of their own.
//! One more part of [`super::reconcile`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use kube::ResourceExt;

use super::apply::{CLAIMS_STATUS, Deleted, FoundClaim, WriteError, Written};
use super::claims::holds::finished;
use super::claims::{self, ClaimAction, Claims};
use super::index::{Key, Source};
use super::pods::{READ_AGAIN, Wanted};
use super::reconcile::{Reconciler, earliest};
use crate::api::{ClaimPhase, LockClaim};
use crate::engine::{ClaimEnd, ClaimRef, LeaseRecord, Moment, WallMicros};
use crate::lease::store::CLAIMS;
use crate::lease::view::waits;

/// The most Pods that one look reads; the next look goes on. Each takes some milliseconds.
const PODS_A_LOOK: usize = 512;
/// The most writes about claims in one look: the lock itself must not wait behind thousands of new claims.
const CLAIM_WRITES: usize = 32;
/// How long a claimant has to delete the claim of a grant that it got, before the operator does.
const COLLECT_AFTER: Duration = Duration::from_secs(2);
/// Reads at once: as many as keep the server busy, not more.
const READS_AT_ONCE: usize = 16;

impl Reconciler {
    /// Writes what became of the claims; says when to look again because of the time alone.
    pub(super) async fn tend_claims(&self, key: &Key) -> Result<Option<Moment>, WriteError> {
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
        let (actions, after) = match self.plan(key) {
            (actions, _) if actions.iter().any(claims::was_ended) => {
                if !self.read_what_grants(key, &actions).await? {
                    return Ok(Some(self.shared.now() + Duration::from_secs(1)));
                }
                self.plan(key)
            }
            planned => planned,
        };
        let now = self.shared.now();
        let micros = |after: i64| Duration::from_micros(u64::try_from(after).unwrap_or(0));
        let mut again = after.map(|after| now + micros(after));
        let (mut written, mut refused) = (0, None);
        for action in actions {
            match self.carry_out(key, action, now).await {
                Ok((wrote, at)) => {
                    again = earliest([again, at]);
                    written += usize::from(wrote);
                }
                // One claim about which the server refuses all stops no other.
                Err(error) if error.is_refusal() => refused = Some(error),
                Err(error) => return Err(error),
            }
            if written >= CLAIM_WRITES {
                again = Some(now);
                break;
            }
        }
        refused.map_or(Ok(again), Err)
    }

    /// Whether it wrote, and when to look again.
    async fn carry_out(
        &self,
        key: &Key,
        action: ClaimAction,
        now: Moment,
    ) -> Result<(bool, Option<Moment>), WriteError> {
        match action {
            ClaimAction::Status(claim, status) => {
                let mut written = (*claim).clone();
                written.status = Some(*status);
                let Written::Applied(claim) = self.writer.put_claim_status(&written).await? else {
                    let access = ("update", CLAIMS_STATUS);
                    self.read_claim_after(access, &Key::of(&*claim), &claim)
                        .await?;
                    return Ok((true, Some(now)));
                };
                if claim.resource_version() == written.resource_version() {
                    // Something in the server's way drops it.
                    let key = Key::of(&written);
                    return Err(WriteError::turned_down("update", CLAIMS_STATUS, &key));
                }
                // What follows from a final phase (its ttl) is planned from the claim as it is now.
                let again = claim.phase().is_final().then_some(now);
                self.shared.index().claim_seen(*claim, Source::Read);
                Ok((true, again))
            }
            ClaimAction::Delete(claim) => {
                let Some(uid) = claim.uid() else {
                    return Ok((false, None));
                };
                let since =
                    self.remember(key, |memory| *memory.over.entry(uid.clone()).or_insert(now));
                let due = if claim.phase().is_final() {
                    now
                } else {
                    since + COLLECT_AFTER
                };
                if due > now {
                    return Ok((false, Some(due)));
                }
                self.delete_claim(&Key::of(&*claim), &uid).await?;
                self.remember(key, |memory| memory.over.remove(&uid));
                Ok((true, None))
            }
        }
    }

    /// Deletes this very claim. That it is gone is known at once, not once a watch says so: it is deleted no second time.
    pub(super) async fn delete_claim(&self, key: &Key, uid: &str) -> Result<(), WriteError> {
        match self.writer.delete_claim(key, uid).await? {
            Deleted::Gone => self.claim_is_gone(key, uid),
            Deleted::Going(claim) => {
                self.shared.index().claim_seen(*claim, Source::Read);
            }
            Deleted::NotThere => {
                let before = self.shared.index().claim_of(key, uid).cloned();
                if let Some(before) = before {
                    self.read_claim_after(("delete", CLAIMS), key, &before)
                        .await?;
                }
            }
        }
        Ok(())
    }

    /// A call about a claim, made from `before`, met another state of it: a read tells which. An error where it shows
    /// none.
    async fn read_claim_after(
        &self,
        (verb, resource): (&'static str, &'static str),
        key: &Key,
        before: &LockClaim,
    ) -> Result<(), WriteError> {
        let uid = before.uid().unwrap_or_default();
        self.read_claim(key, &uid).await?;
        let index = self.shared.index();
        let same = |now: &Arc<LockClaim>| now.resource_version() == before.resource_version();
        if index.claim_of(key, &uid).is_some_and(same) {
            return Err(WriteError::turned_down(verb, resource, key));
        }
        Ok(())
    }

    /// Reads the Pods that must be known before claims and grants of this lock can be judged; says when to look again for
    /// those that no watch shows yet.
    pub(super) async fn read_pods(&self, lock: &Key) -> Result<Option<Moment>, WriteError> {
        let now = self.shared.now();
        let (claims, wanted) = {
            let mut index = self.shared.index();
            let claims = index.claims(lock).filter(|claim| !claim.phase().is_final());
            let claims: Vec<Arc<LockClaim>> = claims.cloned().collect();
            let of_holders = index.pods_of_holders(lock);
            index.pods.follow(lock, of_holders);
            let claims_of_lock = claims.iter().map(Arc::as_ref);
            let wanted = index.pods.wants(lock, claims_of_lock, now);
            (claims, wanted)
        };
        let more = wanted.len() > PODS_A_LOOK;
        let wanted: Wanted = wanted.into_iter().take(PODS_A_LOOK).collect();
        let mut reads = stream::iter(wanted)
            .map(|(pod, uids)| async move { (self.writer.get_pod(&pod).await, pod, uids) })
            .buffer_unordered(READS_AT_ONCE);
        while let Some((found, pod, uids)) = reads.next().await {
            let found = found?;
            let mut index = self.shared.index();
            index.pods.read(&pod, uids, found.as_ref(), now);
        }
        let index = self.shared.index();
        let again = index.pods.asks_again(claims.iter().map(Arc::as_ref));
        Ok(if more { Some(now) } else { again })
    }

    /// Reads the claims whose holds are kept now and then, although no watch tells of a change: a watch may fall silent.
    pub(super) async fn read_kept_claims(&self, lock: &Key) -> Result<(), WriteError> {
        let now = self.shared.now();
        let kept: Vec<_> = {
            let index = self.shared.index();
            let kept = |claim: &&Arc<LockClaim>| {
                claim.phase() == ClaimPhase::Granted && index.hold_claim(claim).is_some()
            };
            let claims = index.claims(lock).filter(kept);
            claims
                .map(|claim| (Key::of(&**claim), claim.uid()))
                .collect()
        };
        if kept.is_empty() {
            return Ok(());
        }
        let due = self.remember(lock, |memory| {
            let due = now >= memory.claims_read + READ_AGAIN;
            if due {
                memory.claims_read = now;
            }
            due
        });
        for (key, uid) in kept.into_iter().filter(|_| due) {
            self.read_claim(&key, &uid.unwrap_or_default()).await?;
        }
        Ok(())
    }

    /// What is to be written about the claims of a lock, as things are known now.
    pub(super) fn plan(&self, key: &Key) -> (Vec<ClaimAction>, Option<WallMicros>) {
        let index = self.shared.index();
        let claims: Vec<_> = index.claims(key).cloned().collect();
        let lacks = |claim: &&Arc<LockClaim>| {
            let claim = index.hold_claim(claim);
            claim.is_some_and(|claim| claim.lacks_its_pod())
        };
        let without_pod = claims.iter().filter(lacks).filter_map(|claim| claim.uid());
        claims::plan(&Claims {
            without_pod: without_pod.collect(),
            lock: index.lock(key).map(Arc::as_ref),
            lock_name: &key.name,
            slots: index.slot_leases(key),
            wall: self.shared.wall(),
            claims,
        })
    }

    /// Reads what would end claims that are shown as granted: their Leases, and a lock that is not in view. A watch may
    /// be behind that of claims. Says whether what is in view can be believed now.
    pub(super) async fn read_what_grants(
        &self,
        key: &Key,
        actions: &[ClaimAction],
    ) -> Result<bool, WriteError> {
        if self.shared.index().lock(key).is_none() {
            return Ok(self.writer.get_lock(key).await?.is_none());
        }
        self.read_lock(key).await?;
        let ended = actions.iter().filter(|action| claims::was_ended(action));
        let leases: BTreeSet<_> = ended
            .filter_map(|action| match action {
                ClaimAction::Status(claim, _) => claim.status.as_ref()?.lease_name.clone(),
                ClaimAction::Delete(_) => None,
            })
            .collect();
        for lease in leases {
            self.read_lease(&Key::new(&key.namespace, &lease)).await?;
        }
        Ok(true)
    }

    /// Shows a claim as over, before its Lease is freed.
    pub(super) async fn finish(
        &self,
        lock: &Key,
        claim: &ClaimRef,
        why: ClaimEnd,
    ) -> Result<(), WriteError> {
        let found = {
            let index = self.shared.index();
            let mut claims = index.claims(lock);
            let found = claims.find(|found| found.metadata.uid.as_deref() == Some(&claim.uid));
            found.map(|found| (**found).clone())
        };
        let Some(mut found) = found else {
            return Ok(());
        };
        found.status = Some(finished(&found, why, self.shared.wall()));
        let key = Key::new(&lock.namespace, &claim.name);
        match self.writer.put_claim_status(&found).await? {
            Written::Applied(claim) if claim.resource_version() == found.resource_version() => {
                // Something in the server's way drops it.
                return Err(WriteError::turned_down("update", CLAIMS_STATUS, &key));
            }
            Written::Applied(claim) => {
                tracing::info!(%lock, claim = key.name, ?why, "a hold is over");
                self.shared.index().claim_seen(*claim, Source::Read);
            }
            Written::Conflict | Written::Gone => {
                self.read_claim_after(("update", CLAIMS_STATUS), &key, &found)
                    .await?;
            }
        }
        Ok(())
    }

    /// Whether the claim for which `record` takes a slot still waits, as the server knows it: the watch of claims may be
    /// behind that of Leases, and for one that is over, or gone, nothing may be taken.
    pub(super) async fn still_waits(
        &self,
        lock: &Key,
        record: &LeaseRecord,
    ) -> Result<bool, WriteError> {
        let uid = record.holder_uid().unwrap_or_default();
        let known = {
            let index = self.shared.index();
            let mut claims = index.claims(lock);
            let known = claims.find(|claim| claim.metadata.uid.as_deref() == Some(uid));
            known.map(|claim| Key::of(&**claim))
        };
        let Some(key) = known else {
            return Ok(false);
        };
        let claim = match self.writer.get_claim(&key).await.map_err(WriteError::from) {
            Ok(FoundClaim::There(claim)) => claim,
            Ok(FoundClaim::NotThere) => {
                self.claim_is_gone(&key, uid);
                return Ok(false);
            }
            Ok(FoundClaim::Damaged) => {
                // What is in view of it is old; a watch brings it back once it can be decoded.
                self.claim_is_gone(&key, uid);
                return Ok(false);
            }
            // A claim that may not be read is not to stop those behind it: what is in view must do.
            Err(error) if error.is_refusal() => return Ok(true),
            Err(error) => return Err(error),
        };
        let still = claim.metadata.uid.as_deref() == Some(uid) && waits(&claim);
        self.shared.index().claim_seen(*claim, Source::Read);
        Ok(still)
    }

    /// Reads a claim that is in view, as the one with this uid.
    async fn read_claim(&self, key: &Key, uid: &str) -> Result<(), WriteError> {
        match self.writer.get_claim(key).await? {
            FoundClaim::There(claim) => {
                self.shared.index().claim_seen(*claim, Source::Read);
            }
            FoundClaim::NotThere => self.claim_is_gone(key, uid),
            FoundClaim::Damaged => {}
        }
        Ok(())
    }

    fn claim_is_gone(&self, key: &Key, uid: &str) {
        let mut index = self.shared.index();
        if index.claim_of(key, uid).is_some() {
            index.claim_gone(key);
        }
    }

    /// Looks for the claim with this uid among those of the lock.
    pub(super) async fn read_holder(
        &self,
        lock: &Key,
        lease: &Key,
        uid: &str,
    ) -> Result<(), WriteError> {
        let uids = self.writer.list_claim_uids(lock).await?;
        let gone = !uids.contains(uid);
        let now = self.shared.now();
        let mut index = self.shared.index();
        index.slot_mut(lease).keeper.holder_read(uid, gone, now);
        Ok(())
    }
}
