//! `leasehold run` as in a Pod: with a token that the server bound to one, in the place where Kubernetes mounts it.

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Resource, ResourceExt};
use leasehold::api::{LockClaim, LockClaimSpec};
use leasehold::supervise::Signal;
use serde_json::json;

use super::run_bench::{BUSY, Bench, until};

/// A Pod, and a token of its own.
pub async fn pod(bench: &Bench) -> (Pod, String) {
    bench.account("worker", &[]).await;
    let create = PostParams::default();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod-3"},
        "spec": {"serviceAccountName": "worker", "containers": [{"name": "main", "image": "none"}]},
    });
    let pods: Api<Pod> = Api::namespaced(bench.client.clone(), &bench.namespace);
    let pod = serde_json::from_value(pod).unwrap();
    let pod = pods.create(&create, &pod).await.unwrap();
    let bound = json!({"spec": {
        "audiences": [],
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "pod-3", "uid": pod.uid().unwrap()},
    }});
    let bound: TokenRequest = serde_json::from_value(bound).unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(bench.client.clone(), &bench.namespace);
    let made = accounts.create_token_request("worker", &create, &bound);
    (pod, made.await.unwrap().status.unwrap().token.unwrap())
}

/// The only claim there is.
async fn claim(bench: &Bench) -> LockClaim {
    bench.until_waiting(1).await;
    let all = bench.claims().list(&ListParams::default()).await.unwrap();
    all.items.into_iter().next().unwrap()
}

/// The garbage collector finds no owner in another namespace, and takes away what names one: the waiter would make its
/// claim again for ever, each time at the end of the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_goes_with_its_pod_and_in_another_namespace_stays() {
    let (home, far) = (Bench::new().await, Bench::new().await);
    let (pod, token) = pod(&home).await;
    let mut waiters = Vec::new();
    for bench in [&home, &far] {
        bench.opened("held", 15).await;
        let holder = bench.hold("held", "holder").await;
        let run = bench.run("held").in_pod(&token).works_for("0").start();
        let claim = claim(bench).await;
        assert_eq!(claim.spec.claimant.as_deref(), Some("pod-3"));
        waiters.push((holder, run, claim));
    }
    let [
        (holder_home, mut run_home, claim_home),
        (holder_far, run_far, claim_far),
    ] = waiters.try_into().ok().unwrap();
    let owner = claim_home.owner_references().first().unwrap();
    assert_eq!(
        (&owner.kind[..], Some(&owner.uid)),
        ("Pod", pod.uid().as_ref())
    );
    assert_eq!(claim_far.owner_references(), []);

    // One that names the Pod all the same is taken away; by then the waiter's would be too.
    let mut astray = LockClaim::new("astray", LockClaimSpec::heartbeat("held"));
    astray
        .owner_references_mut()
        .push(pod.owner_ref(&()).unwrap());
    far.claims()
        .create(&PostParams::default(), &astray)
        .await
        .unwrap();
    until("what names an owner elsewhere is gone", BUSY, async || {
        far.claims().get_opt("astray").await.unwrap().is_none()
    })
    .await;
    assert_eq!(claim(&far).await.uid(), claim_far.uid());
    holder_far.release().await.unwrap();
    run_far.ends(BUSY).await.assert(0, &[]);

    // The Pod ends as Pods do: its processes, then the object.
    run_home.signal_tree(Signal::KILL);
    run_home.exits(BUSY).await;
    assert_eq!(claim(&home).await.uid(), claim_home.uid());
    let pods: Api<Pod> = Api::namespaced(home.client.clone(), &home.namespace);
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("pod-3", &at_once).await.unwrap();
    home.until_waiting(0).await;
    holder_home.release().await.unwrap();
    home.finish().await;
    far.finish().await;
}
