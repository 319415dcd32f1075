//! Claims, Pods and events of one namespace, as tests make, edit and wait for them. Pods are API objects here, without a
//! kubelet: one without a node goes when it is deleted.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use leasehold::api::{
    ClaimPhase, FixedHold, Hold, HoldType, LockClaim, LockClaimSpec, PodHold, names,
};
use leasehold::client::identity::{identity, random_uid};
use leasehold::engine::{Grant, PodRef};
use leasehold::lease::FoundLease;
use serde_json::{Value, json};

use super::operator_rig::{LONG, Place, condition_in};
use super::server::within;

/// Claims.
impl Place {
    /// Makes a claim.
    pub async fn claim(&self, name: &str, spec: LockClaimSpec) -> LockClaim {
        let claim = LockClaim::new(name, spec);
        let made = self.claims.create(&PostParams::default(), &claim).await;
        made.expect("the claim is made")
    }

    /// Makes a waiter's claim that no process stands behind.
    pub async fn queue_up(&self, name: &str, lock: &str) -> LockClaim {
        self.claim(name, LockClaimSpec::heartbeat(lock)).await
    }

    /// Merges `patch` into a claim.
    pub async fn edit_claim(&self, name: &str, patch: &Value) {
        let patch = Patch::Merge(patch);
        let edited = self
            .claims
            .patch(name, &PatchParams::default(), &patch)
            .await;
        edited.expect("the claim can be edited");
    }

    /// Deletes a claim.
    pub async fn delete_claim(&self, name: &str) {
        let deleted = self.claims.delete(name, &DeleteParams::default()).await;
        deleted.expect("the claim can be deleted");
    }

    /// Waits until the claim shows this; `None` once it is gone.
    pub async fn claim_is(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(Option<&LockClaim>) -> bool,
    ) -> Option<LockClaim> {
        let so = await_condition(self.claims.clone(), name, is_so);
        let Ok(claim) = tokio::time::timeout(LONG, so).await else {
            panic!(
                "not within {LONG:?}: {what}: {:#?}",
                self.claims.get_opt(name).await
            );
        };
        let claim = claim.expect("a watch");
        claim.iter().for_each(super::api_gitops::reads_right);
        claim
    }

    /// Waits until the claim is in this phase.
    pub async fn claim_in(&self, name: &str, phase: ClaimPhase) -> LockClaim {
        let so = move |claim: Option<&LockClaim>| claim.is_some_and(|claim| claim.phase() == phase);
        let claim = Box::pin(self.claim_is(name, &format!("it is {phase:?}"), so)).await;
        claim.expect("a claim")
    }

    /// Waits until the claim says for this reason that it is not granted.
    pub async fn waits_for(&self, name: &str, reason: &str) -> LockClaim {
        let so = |claim: Option<&LockClaim>| {
            claim.is_some_and(|claim| claim_condition(claim, names::CONDITION_GRANTED).1 == reason)
        };
        let claim = Box::pin(self.claim_is(name, reason, so)).await;
        claim.expect("a claim")
    }

    /// Waits until the claim has its place in the queue.
    pub async fn has_ticket(&self, name: &str) -> i64 {
        let ticket = |claim: &LockClaim| claim.status.as_ref()?.ticket;
        let so = |claim: Option<&LockClaim>| claim.and_then(ticket).is_some();
        let claim = self.claim_is(name, "it has a ticket", so).await;
        claim.as_ref().and_then(ticket).expect("a ticket")
    }

    /// Waits until the claim is gone.
    pub async fn claim_goes(&self, name: &str) {
        self.claim_is(name, "it is gone", |claim| claim.is_none())
            .await;
    }

    /// Waits until it is the turn of the claim.
    pub async fn is_named(&self, lease: &str, claim: &str) -> FoundLease {
        let what = format!("{claim} is named");
        self.lease_is(lease, &what, |lease| {
            let next = lease.record.next.as_ref();
            next.is_some_and(|next| next.name == claim)
        })
        .await
    }

    /// Waits until it is nobody's turn.
    pub async fn nobody_is_named(&self, lease: &str) {
        self.lease_is(lease, "nobody is named", |lease| {
            lease.record.next.is_none()
        })
        .await;
    }

    /// Waits until status counts so many waiters.
    pub async fn has_waiters(&self, lock: &str, count: i32) {
        self.lock_is(lock, &format!("{count} wait"), |lock| {
            lock.status.as_ref().and_then(|status| status.waiters) == Some(count)
        })
        .await;
    }
}

/// Pods.
impl Place {
    /// The Pods of the place.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Pods can be made only once their namespace has its service account.
    pub async fn has_account(&self) {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &self.namespace);
        let there = await_condition(accounts, "default", |account: Option<&ServiceAccount>| {
            account.is_some()
        });
        let there = within(LONG, "the namespace has its service account", there).await;
        there.expect("a watch");
    }

    /// Makes a Pod that nothing runs.
    pub async fn make_pod(&self, name: &str) -> Pod {
        Box::pin(self.has_account()).await;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "main", "image": "none"}], "schedulerName": "nobody", "restartPolicy": "Never"},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        let made = self.pods().create(&PostParams::default(), &pod).await;
        made.expect("the pod is made")
    }

    /// Edits the status of a Pod as its kubelet does.
    pub async fn edit_pod(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        let pods = self.pods();
        let edited = pods
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        edited.expect("the status can be edited");
    }

    /// Deletes a Pod.
    pub async fn delete_pod(&self, name: &str) {
        let deleted = self.pods().delete(name, &DeleteParams::default()).await;
        deleted.expect("the pod can be deleted");
    }

    /// Takes slot 0 of a free lock from within a Pod, as a holder that will never renew, and waits until that is shown.
    pub async fn take_from(&self, pod: &Pod, lock: &str) -> Grant {
        let bound = PodRef {
            name: pod.name_any(),
            uid: pod.uid().expect("a uid"),
        };
        let identity = identity(&bound.name, &random_uid());
        let grant = self.take_in(lock, 0, identity, Some(bound)).await;
        self.is_shown(lock, &grant).await;
        grant
    }
}

/// Events.
impl Place {
    /// Waits until the events tell what is looked for.
    pub async fn events_tell<T>(&self, what: &str, find: impl Fn(Vec<Event>) -> Option<T>) -> T {
        let events = Api::<Event>::namespaced(self.client.clone(), &self.namespace);
        let told = async {
            loop {
                let all = events.list(&ListParams::default()).await.expect("events");
                if let Some(found) = find(all.items) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within(LONG, what, told).await
    }

    /// Waits until an event of this reason is told, for its note.
    pub async fn event(&self, reason: &str) -> String {
        let of_reason = |event: &Event| event.reason.as_deref() == Some(reason);
        self.events_tell(&format!("an event {reason}"), |all| {
            all.into_iter().find(of_reason)?.note
        })
        .await
    }
}

/// A claim that holds for a time.
pub fn fixed(seconds: i32) -> LockClaimSpec {
    let hold = Hold {
        type_: HoldType::Fixed,
        fixed: Some(FixedHold { seconds }),
        pod: None,
    };
    LockClaimSpec {
        hold,
        ..LockClaimSpec::heartbeat("nightly")
    }
}

/// A claim that holds while a Pod lives.
pub fn with_pod(name: &str, uid: Option<&str>) -> LockClaimSpec {
    let pod = PodHold {
        name: name.to_owned(),
        uid: uid.map(str::to_owned),
    };
    let hold = Hold {
        type_: HoldType::Pod,
        fixed: None,
        pod: Some(pod),
    };
    LockClaimSpec {
        hold,
        ..LockClaimSpec::heartbeat("nightly")
    }
}

/// Status and reason of a condition of the claim; empty where there is none.
pub fn claim_condition(claim: &LockClaim, type_: &str) -> (String, String) {
    let status = claim.status.as_ref();
    condition_in(status.map_or(&[], |status| &status.conditions), type_)
}

/// The token that the claim shows.
pub fn token(claim: &LockClaim) -> i64 {
    let status = claim.status.as_ref().expect("a status");
    status.fencing_token.expect("a token").get()
}

/// What the kubelet says of a container that has ended.
pub fn ended(container: &str) -> Value {
    json!({"containerStatuses": [{
        "name": container, "image": "none", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 1, "reason": "Error"}},
    }]})
}
