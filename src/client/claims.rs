//! Claims of a lock: made, listed, read, deleted.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use kube::core::{DeserializeGuard, ObjectMeta};

use crate::api::names::{CONDITION_GRANTED, LABEL_LOCK};
use crate::api::{ClaimPhase, Hold, HoldType, LockClaim, LockClaimSpec, find_condition};
use crate::engine::{ClaimRef, ClaimView, PodRef};
use crate::lease::store::{Access, CLAIMS, StoreError};
use crate::lease::view::{claim_ref, claim_view, waits};

/// What a claim of one's own turned out to be.
pub(crate) enum OwnClaim {
    /// It waits, with this priority by now.
    Waits(i32),
    /// It is gone, or finished without a word.
    Gone,
    /// The operator refused it, and said why.
    Rejected(String),
}

/// The claims of one lock.
#[derive(Clone)]
pub(crate) struct ClaimStore {
    claims: Api<DeserializeGuard<LockClaim>>,
    typed: Api<LockClaim>,
    namespace: String,
    lock: String,
}

impl ClaimStore {
    pub(crate) fn new(client: &kube::Client, namespace: &str, lock: &str) -> Self {
        Self {
            claims: Api::namespaced(client.clone(), namespace),
            typed: Api::namespaced(client.clone(), namespace),
            namespace: namespace.to_owned(),
            lock: lock.to_owned(),
        }
    }

    /// Makes a Heartbeat claim. A create that was not answered is looked for by its name, which nobody else uses.
    pub(crate) async fn make(
        &self,
        name: &str,
        claimant: &str,
        priority: i32,
        pod: Option<&PodRef>,
        within: Duration,
    ) -> Result<ClaimRef, StoreError> {
        let claim = LockClaim {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.namespace.clone()),
                labels: Some([(LABEL_LOCK.to_owned(), self.lock.clone())].into()),
                owner_references: pod.map(|pod| vec![owner(pod)]),
                ..ObjectMeta::default()
            },
            spec: LockClaimSpec {
                lock_name: self.lock.clone(),
                claimant: Some(claimant.to_owned()),
                priority,
                wait_timeout_seconds: None,
                hold: Hold {
                    type_: HoldType::Heartbeat,
                    fixed: None,
                    pod: None,
                },
                ttl_seconds_after_finished: None,
            },
            status: None,
        };
        let access = || self.access("create", name);
        match tokio::time::timeout(within, self.typed.create(&PostParams::default(), &claim)).await
        {
            Ok(Ok(made)) => claim_ref(&made).ok_or_else(|| unnamed(access())),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                self.made(name, within).await
            }
            Ok(Err(error)) => match StoreError::of(access(), &error) {
                StoreError::Unreachable { .. } => self.made(name, within).await,
                error => Err(error),
            },
            Err(_) => self.made(name, within).await,
        }
    }

    /// What a create that was not answered made.
    async fn made(&self, name: &str, within: Duration) -> Result<ClaimRef, StoreError> {
        self.find(name, within).await?.ok_or_else(|| {
            StoreError::unanswered(self.access("create", name), "the claim was not made")
        })
    }

    /// The claim of this name, if there is one.
    pub(crate) async fn find(
        &self,
        name: &str,
        within: Duration,
    ) -> Result<Option<ClaimRef>, StoreError> {
        let access = || self.access("get", name);
        match tokio::time::timeout(within, self.typed.get_metadata(name)).await {
            Err(_) => Err(StoreError::timed_out(access(), within)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
            Ok(Err(error)) => Err(StoreError::of(access(), &error)),
            Ok(Ok(found)) => match (found.metadata.name, found.metadata.uid) {
                (Some(name), Some(uid)) => Ok(Some(ClaimRef { name, uid })),
                _ => Err(unnamed(access())),
            },
        }
    }

    /// Every claim on the lock, and whose it is. One that can't be decoded takes part in no queue, and stops nobody.
    pub(crate) async fn list(
        &self,
        within: Duration,
    ) -> Result<Vec<(ClaimView, String)>, StoreError> {
        let of_lock = ListParams::default().fields(&format!("spec.lockName={}", self.lock));
        let access = self.access("list", &self.lock);
        match tokio::time::timeout(within, self.claims.list(&of_lock)).await {
            Err(_) => Err(StoreError::timed_out(access, within)),
            Ok(Err(error)) => Err(StoreError::of(access, &error)),
            Ok(Ok(list)) => Ok(list
                .items
                .iter()
                .filter_map(|claim| {
                    let claim = claim.0.as_ref().ok()?;
                    Some((claim_view(claim, false)?, claim.claimant()))
                })
                .collect()),
        }
    }

    /// Whether `claim` still counts: it exists with that uid, on this lock, unfinished.
    pub(crate) async fn counts(
        &self,
        claim: &ClaimRef,
        within: Duration,
    ) -> Result<bool, StoreError> {
        let found = self.read(&claim.name, within).await?;
        Ok(found.is_some_and(|found| {
            found.spec.lock_name == self.lock
                && claim_ref(&found).as_ref() == Some(claim)
                && waits(&found)
        }))
    }

    /// How a claim of one's own fares.
    pub(crate) async fn own(
        &self,
        claim: &ClaimRef,
        within: Duration,
    ) -> Result<OwnClaim, StoreError> {
        let Some(found) = self
            .read(&claim.name, within)
            .await?
            .filter(|found| claim_ref(found).as_ref() == Some(claim))
        else {
            return Ok(OwnClaim::Gone);
        };
        let status = found.status.clone().unwrap_or_default();
        match status.phase {
            Some(ClaimPhase::Rejected) => {
                let granted = find_condition(&status.conditions, CONDITION_GRANTED);
                let words = granted.map_or("the operator did not say why", |it| &it.message);
                Ok(OwnClaim::Rejected(words.to_owned()))
            }
            _ if waits(&found) => Ok(OwnClaim::Waits(found.spec.priority)),
            _ => Ok(OwnClaim::Gone),
        }
    }

    async fn read(&self, name: &str, within: Duration) -> Result<Option<LockClaim>, StoreError> {
        let access = self.access("get", name);
        match tokio::time::timeout(within, self.claims.get_opt(name)).await {
            Err(_) => Err(StoreError::timed_out(access, within)),
            Ok(Err(error)) => Err(StoreError::of(access, &error)),
            Ok(Ok(found)) => Ok(found.and_then(|claim| claim.0.ok())),
        }
    }

    /// Deletes this very claim; one that is gone, or another of its name, is left alone.
    pub(crate) async fn delete(
        &self,
        claim: &ClaimRef,
        within: Duration,
    ) -> Result<(), StoreError> {
        let only = Preconditions {
            uid: Some(claim.uid.clone()),
            resource_version: None,
        };
        let params = DeleteParams::default().preconditions(only);
        let access = self.access("delete", &claim.name);
        match tokio::time::timeout(within, self.claims.delete(&claim.name, &params)).await {
            Err(_) => Err(StoreError::timed_out(access, within)),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
            Ok(Err(error)) => Err(StoreError::of(access, &error)),
        }
    }

    fn access(&self, verb: &'static str, name: &str) -> Access {
        Access {
            verb,
            resource: CLAIMS,
            name: name.to_owned(),
            namespace: self.namespace.clone(),
        }
    }
}

/// A claim that a Pod owns goes with the Pod.
fn owner(pod: &PodRef) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        ..OwnerReference::default()
    }
}

fn unnamed(access: Access) -> StoreError {
    StoreError::unanswered(access, "the answer has no name or uid")
}
