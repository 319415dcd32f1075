//! `leasehold run` as in a Pod: with a token that the server bound to one, in the place where Kubernetes mounts it.

use std::fs;
use std::path::PathBuf;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Resource, ResourceExt};
use leasehold::api::{LockClaim, LockClaimSpec};
use leasehold::supervise::Signal;
use serde_json::{Value, json};

use super::run_bench::{BUSY, Bench, until};
use super::server;

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

/// A kubeconfig with nothing but this token, which may do everything in the namespace of `bench`.
async fn with_token(bench: &Bench, home: &Bench, token: &str) -> PathBuf {
    let binding = json!({
        "metadata": {"name": "worker-of-tests"},
        "subjects": [{"kind": "ServiceAccount", "name": "worker", "namespace": home.namespace}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    });
    let binding: RoleBinding = serde_json::from_value(binding).unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(bench.client.clone(), &bench.namespace);
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();
    let text = fs::read_to_string(bench.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_norway::from_str(&text).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": token});
    let path = bench.file("pod.kubeconfig");
    fs::write(&path, kubeconfig.to_string()).unwrap();
    let client = server::client_of(server::config_of(&path).await);
    let claims: Api<LockClaim> = Api::namespaced(client, &bench.namespace);
    until("the server knows that it may", BUSY, async || {
        claims.list(&ListParams::default()).await.is_ok()
    })
    .await;
    path
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
        let run = bench.run("held").in_pod(&token);
        let run = run.env("KUBECONFIG", with_token(bench, &home, &token).await);
        let run = run.works_for("0").start();
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

/// To the server it is not that Pod: policies would refuse what names it, and the end of the Pod would end its hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_in_a_pod_that_uses_other_credentials_names_no_pod() {
    let bench = Bench::new().await;
    let (_pod, token) = pod(&bench).await;
    bench.opened("held", 15).await;
    let holder = bench.hold("held", "holder").await;
    // The administrator's, by certificate.
    let run = bench.run("held").in_pod(&token).works_on().start();
    let claim = claim(&bench).await;
    assert_eq!(
        claim.spec.claimant.as_deref(),
        Some("pod-3"),
        "to people it is"
    );
    assert_eq!(claim.owner_references(), []);
    holder.release().await.unwrap();
    bench.until_noted("start", "pod-3", BUSY).await;
    let lease = bench.lease("held").await;
    assert_eq!(lease.current_grant().unwrap().pod, None);
    run.signal(Signal::TERM);
    run.ends(BUSY).await.assert(143, &[]);
    bench.finish().await;
}
