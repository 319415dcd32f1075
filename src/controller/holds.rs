//! What a look does about Pods, and about holds that have no process: Fixed and Pod. One more part of
//! [`super::reconcile`].

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::{StreamExt, stream};
use kube::ResourceExt;

use super::apply::{WriteError, Written};
use super::claims::holds::finished;
use super::claims::{self, ClaimAction, Claims};
use super::index::{Key, Source};
use super::pods::Wanted;
use super::reconcile::Reconciler;
use crate::api::LockClaim;
use crate::engine::{ClaimEnd, ClaimRef, Moment, WallMicros};

/// The most Pods that one look reads; the next look goes on. Each takes some milliseconds.
const PODS_A_LOOK: usize = 512;
/// Reads at once: as many as keep the server busy, not more.
const READS_AT_ONCE: usize = 16;

impl Reconciler {
    /// Reads the Pods that must be known before the claims of this lock can be judged; says when to look again for
    /// those that no watch shows yet.
    pub(super) async fn read_pods(&self, lock: &Key) -> Result<Option<Moment>, WriteError> {
        let now = self.shared.now();
        let (claims, wanted) = {
            let mut index = self.shared.index();
            let claims = index.claims(lock).filter(|claim| !claim.phase().is_final());
            let claims: Vec<Arc<LockClaim>> = claims.cloned().collect();
            let wanted = index.pods.wants(claims.iter().map(Arc::as_ref), now);
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
            Written::Applied(claim) => {
                tracing::info!(%lock, claim = key.name, ?why, "a hold is over");
                self.shared.index().claim_seen(*claim, Source::Read);
            }
            Written::Conflict => match self.writer.get_claim(&key).await? {
                Some(claim) => {
                    self.shared.index().claim_seen(claim, Source::Read);
                }
                None => self.claim_is_gone(&key, &claim.uid),
            },
            Written::Gone => self.claim_is_gone(&key, &claim.uid),
        }
        Ok(())
    }

    fn claim_is_gone(&self, key: &Key, uid: &str) {
        let mut index = self.shared.index();
        if index.claim_uid(key).as_deref() == Some(uid) {
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
