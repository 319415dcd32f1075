//! The writes of the leader, each gated by a look at the lead right before it is sent, and the reads.
//!
//! Every call is bounded: reads by [`CALL_TIMEOUT`], writes also by what is left of the lead, so that nothing of a
//! leader's is under way when the next one may begin. An answer that never came is not an error of the lock: it is
//! read again.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::index::Key;
use super::metrics::Metrics;
use crate::api::{DistributedLock, LockClaim};
use crate::engine::{LeaseRecord, OperatorWrite};
use crate::leader::Lead;
use crate::lease::store::{CLAIMS, LOCKS};
use crate::lease::{Access, FoundLease, LeaseStore, NewLease, Put, StoreError};

/// How long one call may take. A healthy server answers in milliseconds; a slow one (a few seconds) is waited for.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a step of the operator's did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The lead is over: nothing was sent.
    #[error("this replica does not lead any more")]
    NotLeading,
    /// The call failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl WriteError {
    /// The server was there, and changed nothing of an object that it then showed unchanged: a conflict with nobody. It
    /// counts as a refusal, since it is not to be tried again at once.
    #[must_use]
    pub fn turned_down(verb: &'static str, resource: &'static str, key: &Key) -> Self {
        Self::Store(StoreError::Refused {
            access: access(verb, resource, key),
            message: "it turned the call down, and shows the object unchanged".to_owned(),
        })
    }

    /// Whether the server was there and refused: then other calls may well be answered.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Store(StoreError::Forbidden { .. } | StoreError::Refused { .. })
        )
    }
}

/// How a guarded write of an object other than a Lease ended.
#[derive(Debug)]
pub enum Written<K> {
    /// 2xx, with what is there now.
    Applied(Box<K>),
    /// Somebody else wrote first.
    Conflict,
    /// It is gone.
    Gone,
}

/// What a read of a claim found.
pub enum FoundClaim {
    /// One that can be read.
    There(Box<LockClaim>),
    /// None of this name.
    NotThere,
    /// It can't be decoded, as when a newer version made it: it takes part in no queue, and stops nobody.
    Damaged,
}

/// How a deletion ended.
#[derive(Debug)]
pub enum Deleted {
    /// It is gone.
    Gone,
    /// It goes once nothing keeps it any more (somebody's finalizer): so it looks now.
    Going(Box<LockClaim>),
    /// There is none, or another of its name: a read tells.
    NotThere,
}

/// The hands of the operator.
#[derive(Clone)]
pub struct Writer {
    /// The client, which does not retry by itself.
    pub client: Client,
    /// Until when it may write.
    pub lead: Arc<Lead>,
    /// Counts.
    pub metrics: Arc<Metrics>,
}

impl Writer {
    /// How long a write may take from now on.
    pub fn budget(&self) -> Result<Duration, WriteError> {
        let Some(left) = self.lead.remaining() else {
            self.metrics.withheld.inc();
            return Err(WriteError::NotLeading);
        };
        Ok(left.min(CALL_TIMEOUT))
    }

    /// Reads a Lease.
    pub async fn get_lease(&self, key: &Key) -> Result<Option<FoundLease>, StoreError> {
        self.leases(key).get(&key.name, CALL_TIMEOUT).await
    }

    /// Puts a record in place of the one found.
    pub async fn put_lease(
        &self,
        key: &Key,
        found: &FoundLease,
        record: &LeaseRecord,
        what: OperatorWrite,
    ) -> Result<Put, WriteError> {
        let within = self.budget()?;
        let put = self.leases(key).put(&key.name, found, record, within).await;
        let result = match &put {
            Put::Applied(_) => "applied",
            Put::Conflict => "conflict",
            Put::Gone => "gone",
            Put::Forbidden(_) => "forbidden",
            Put::Refused(_) => "refused",
            Put::Unknown(_) => "unknown",
        };
        self.metrics.lease_write(purpose(what), result);
        Ok(put)
    }

    /// Makes a Lease; `None` if there is one of this name.
    pub async fn create_lease(
        &self,
        key: &Key,
        new: &NewLease<'_>,
    ) -> Result<Option<FoundLease>, WriteError> {
        let within = self.budget()?;
        let made = self.leases(key).create(new, within).await;
        let result = match &made {
            Ok(Some(_)) => "applied",
            Ok(None) => "exists",
            Err(StoreError::Forbidden { .. }) => "forbidden",
            Err(StoreError::Refused { .. }) => "refused",
            Err(StoreError::Unreachable { .. }) => "unknown",
        };
        self.metrics.lease_write("create", result);
        Ok(made?)
    }

    /// Reads a lock.
    pub async fn get_lock(&self, key: &Key) -> Result<Option<DistributedLock>, StoreError> {
        let api: Api<DistributedLock> = Api::namespaced(self.client.clone(), &key.namespace);
        bounded(
            access("get", LOCKS, key),
            CALL_TIMEOUT,
            api.get_opt(&key.name),
        )
        .await
    }

    /// Reads a claim.
    pub async fn get_claim(&self, key: &Key) -> Result<FoundClaim, StoreError> {
        let api: Api<DeserializeGuard<LockClaim>> =
            Api::namespaced(self.client.clone(), &key.namespace);
        let call = api.get_opt(&key.name);
        let found = bounded(access("get", CLAIMS, key), CALL_TIMEOUT, call).await?;
        Ok(match found {
            None => FoundClaim::NotThere,
            Some(DeserializeGuard(Ok(claim))) => FoundClaim::There(Box::new(claim)),
            Some(DeserializeGuard(Err(_))) => FoundClaim::Damaged,
        })
    }

    /// The uids of all claims on a lock.
    pub async fn list_claim_uids(&self, lock: &Key) -> Result<HashSet<String>, StoreError> {
        let api: Api<PartialObjectMeta<LockClaim>> =
            Api::namespaced(self.client.clone(), &lock.namespace);
        let of_lock = ListParams::default().fields(&format!("spec.lockName={}", lock.name));
        let call = api.list(&of_lock);
        let list = bounded(access("list", CLAIMS, lock), CALL_TIMEOUT, call).await?;
        let uids = list
            .items
            .into_iter()
            .filter_map(|claim| claim.metadata.uid);
        Ok(uids.collect())
    }

    /// Reads a Pod.
    pub async fn get_pod(&self, key: &Key) -> Result<Option<Pod>, StoreError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let call = api.get_opt(&key.name);
        bounded(access("get", "pods", key), CALL_TIMEOUT, call).await
    }

    /// Writes a lock's status, guarded by the uid and resourceVersion in it.
    pub async fn put_lock_status(
        &self,
        lock: &DistributedLock,
    ) -> Result<Written<DistributedLock>, WriteError> {
        self.put_status("lock", LOCKS_STATUS, lock).await
    }

    /// Writes a claim's status, guarded likewise.
    pub async fn put_claim_status(
        &self,
        claim: &LockClaim,
    ) -> Result<Written<LockClaim>, WriteError> {
        self.put_status("claim", CLAIMS_STATUS, claim).await
    }

    async fn put_status<K>(
        &self,
        kind: &'static str,
        resource: &'static str,
        object: &K,
    ) -> Result<Written<K>, WriteError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Serialize,
    {
        let within = self.budget()?;
        let key = Key::of(object);
        let api: Api<K> = Api::namespaced(self.client.clone(), &key.namespace);
        let params = PostParams::default();
        let call = sorted(api.replace_status(&key.name, &params, object));
        let written = sort(bounded(access("update", resource, &key), within, call).await);
        self.count_status(kind, &written);
        Ok(written?)
    }

    /// Deletes a claim, if it is still this one.
    pub async fn delete_claim(&self, key: &Key, uid: &str) -> Result<Deleted, WriteError> {
        let within = self.budget()?;
        let api: Api<LockClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        });
        let call = sorted(api.delete(&key.name, &params));
        let Ok(deleted) = bounded(access("delete", CLAIMS, key), within, call).await? else {
            return Ok(Deleted::NotThere);
        };
        self.metrics.claims_collected.inc();
        Ok(deleted.either(|claim| Deleted::Going(Box::new(claim)), |_| Deleted::Gone))
    }

    fn leases(&self, key: &Key) -> LeaseStore {
        LeaseStore::new(self.client.clone(), &key.namespace)
    }

    fn count_status<K>(&self, kind: &'static str, written: &Result<Written<K>, StoreError>) {
        let result = match written {
            Ok(Written::Applied(_)) => "applied",
            Ok(Written::Conflict) => "conflict",
            Ok(Written::Gone) => "gone",
            Err(StoreError::Forbidden { .. }) => "forbidden",
            Err(StoreError::Refused { .. }) => "refused",
            Err(StoreError::Unreachable { .. }) => "unknown",
        };
        self.metrics.status_write(kind, result);
    }
}

pub(super) const LOCKS_STATUS: &str = "distributedlocks.leasehold.dev/status";
pub(super) const CLAIMS_STATUS: &str = "lockclaims.leasehold.dev/status";

/// The word for a write in metrics.
fn purpose(what: OperatorWrite) -> &'static str {
    match what {
        OperatorWrite::Free => "free",
        OperatorWrite::Expire => "expire",
        OperatorWrite::Revoke => "revoke",
        OperatorWrite::Stamp => "stamp",
        OperatorWrite::Slots => "slots",
        OperatorWrite::Name => "name",
        OperatorWrite::PassOver => "pass_over",
        OperatorWrite::Take => "take",
        OperatorWrite::Renew => "renew",
        OperatorWrite::Prolong => "prolong",
        OperatorWrite::Restore => "restore",
        OperatorWrite::End => "end",
    }
}

fn access(verb: &'static str, resource: &'static str, key: &Key) -> Access {
    Access {
        verb,
        resource,
        name: key.name.clone(),
        namespace: key.namespace.clone(),
    }
}

/// 409 and 404, which are values.
enum Lost {
    Conflict,
    Gone,
}

async fn sorted<T>(call: impl Future<Output = kube::Result<T>>) -> kube::Result<Result<T, Lost>> {
    match call.await {
        Ok(value) => Ok(Ok(value)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Err(Lost::Conflict)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Err(Lost::Gone)),
        Err(error) => Err(error),
    }
}

fn sort<K>(written: Result<Result<K, Lost>, StoreError>) -> Result<Written<K>, StoreError> {
    Ok(match written? {
        Ok(object) => Written::Applied(Box::new(object)),
        Err(Lost::Conflict) => Written::Conflict,
        Err(Lost::Gone) => Written::Gone,
    })
}

async fn bounded<T>(
    access: Access,
    within: Duration,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(within, call).await {
        Err(_) => Err(StoreError::timed_out(access, within)),
        Ok(Err(error)) => Err(StoreError::of(access, &error)),
        Ok(Ok(value)) => Ok(value),
    }
}
