//! A sidecar that loses its lock: it vouches no longer, withdraws the file, and takes no other.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use leasehold::supervise::Signal;
use serde_json::{Value, json};

use super::processes::is_frozen;
use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, until};
use super::run_health::get;
use super::run_pod;
use super::run_process::RunBuilder;
use super::sidecar::Sidecar;

/// It is lost for good: another takes the lock and gives it back, and the sidecar stays as it is.
async fn takes_no_other(bench: &Bench, sidecar: &mut Sidecar, lock: &str, reason: &str) {
    bench.hold(lock, "another").await.release().await.unwrap();
    let free = bench.lease(lock).await;
    assert!(free.is_free());
    assert_eq!(bench.waiting().await, 0, "nor does it queue");
    sidecar.until_lost(reason).await;
    let lost = format!("leasehold_sidecar_losses_total{{reason=\"{reason}\"}} 1\n");
    assert!(sidecar.pod.metrics().await.contains(&lost));
    sidecar.stops().await;
    assert_eq!(
        bench.lease(lock).await,
        free,
        "after a loss it writes nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoke_ends_it_and_no_other_is_taken() {
    let bench = Bench::new().await;
    bench.opened("a", 5).await;
    let mut sidecar = Sidecar::held(&bench, "a").await;
    let token = sidecar.pod.file().unwrap()["token"].as_i64().unwrap();
    let floor = json!({"minFencingToken": token + 1});
    bench.edit_lock("a", floor).await;
    sidecar.until_lost("Revoked").await;
    takes_no_other(&bench, &mut sidecar, "a", "Revoked").await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_anothers_ends_it_at_once() {
    let bench = Bench::new().await;
    bench.opened("a", 60).await;
    let mut sidecar = Sidecar::held(&bench, "a").await;
    let emptied = json!({"spec": {"holderIdentity": ""}});
    bench.edit_lease("a", emptied).await;
    sidecar.until_lost("TakenOver").await;
    takes_no_other(&bench, &mut sidecar, "a", "TakenOver").await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deletion_of_the_lease_or_the_lock_ends_it() {
    let bench = Bench::new().await;
    for name in ["lease", "lock"] {
        bench.opened(name, 5).await;
        let mut sidecar = Sidecar::held(&bench, name).await;
        let now = DeleteParams::default();
        if name == "lease" {
            bench.leases().delete(name, &now).await.unwrap();
        } else {
            bench.locks().delete(name, &now).await.unwrap();
        }
        sidecar.until_lost("Deleted").await;
        sidecar.stops().await;
    }
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_is_cut_ends_it_before_the_lease_and_nobody_reads_the_file_later() {
    let bench = Bench::new().await;
    bench.opened("a", 10).await;
    let proxy = Proxy::new(&bench).await;
    let through = |builder: RunBuilder| builder.env("KUBECONFIG", proxy.kubeconfig());
    let mut sidecar = Sidecar::with(&bench, "a", through).await;
    let reader = sidecar.read_the_file();
    proxy.always("*", "*", Fault::Hang);
    proxy.swallow_open_connections();
    sidecar.until_lost("Unreachable").await;
    assert_eq!(reader.late_reads(), 0);
    let lease = bench.lease("a").await;
    assert!(!lease.is_free(), "its lease ends by itself");
    proxy.heal();
    takes_no_other(&bench, &mut sidecar, "a", "Unreachable").await;
    bench.finish().await;
}

/// It is asked while it is frozen, and answers when it thaws.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_past_its_deadline_it_does_not_vouch_when_it_thaws() {
    let bench = Bench::new().await;
    bench.opened("a", 3).await;
    let mut sidecar = Sidecar::held(&bench, "a").await;
    sidecar.run.signal(Signal::STOP);
    until("every thread is frozen", BUSY, async || {
        is_frozen(sidecar.run.wrapper())
    })
    .await;
    let app = sidecar.pod.app.clone();
    let asked = tokio::spawn(async move { get(&app, "/v1/grant").await });
    until("its lease is over", BUSY, async || {
        sidecar.pod.is_past_the_deadline()
    })
    .await;
    sidecar.run.signal(Signal::CONT);
    let (code, told) = asked.await.unwrap().expect("an answer");
    assert_eq!(code, 503, "{told}");
    sidecar.pod.until_not_held("lost lock").await;
    sidecar.stops().await;
    bench.finish().await;
}

/// The answer to a renewal came while it was frozen, and who stays for good gives no lock back: it must not go on
/// renewing what it says is lost.
#[tokio::test(flavor = "multi_thread")]
async fn thawed_past_its_deadline_it_renews_no_more_though_a_renewal_was_answered_meanwhile() {
    let bench = Bench::new().await;
    bench.opened("a", 6).await;
    let proxy = Proxy::new(&bench).await;
    let through = |builder: RunBuilder| builder.env("KUBECONFIG", proxy.kubeconfig());
    let mut sidecar = Sidecar::with(&bench, "a", through).await;
    let late = Fault::DelayAnswer(Duration::from_millis(700));
    proxy.always("update", "leases", late);
    let before = proxy.puts().len();
    until("a renewal was applied", BUSY, async || {
        let renewal = proxy.puts().get(before).cloned();
        renewal.is_some_and(|put| put.code == Some(200))
    })
    .await;
    sidecar.run.signal(Signal::STOP);
    until("it was frozen beyond its deadline", BUSY, async || {
        sidecar.pod.is_past_the_deadline()
    })
    .await;
    sidecar.run.signal(Signal::CONT);
    sidecar.pod.until_not_held("lost lock").await;
    let other = bench.hold("a", "another").await;
    other.release().await.unwrap();
    sidecar.stops().await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_exit_it_ends_with_76_and_told_to_delete_its_pod_it_deletes_that_one() {
    let bench = Bench::new().await;
    for lock in ["exits", "deletes"] {
        bench.opened(lock, 15).await;
    }
    let emptied = || json!({"spec": {"holderIdentity": ""}});
    let exits = |builder: RunBuilder| builder.option("--on-loss", "exit");
    let mut sidecar = Sidecar::with(&bench, "exits", exits).await;
    bench.edit_lease("exits", emptied()).await;
    sidecar.run.exits(BUSY).await.assert(76, &["TakenOver"]);
    assert_eq!(sidecar.pod.file(), None);

    let (pod, token) = run_pod::pod(&bench).await;
    let pods: Api<PodObject> = Api::namespaced(bench.client.clone(), &bench.namespace);
    bind(&pods, &pod.name_any()).await;
    let deletes = |builder: RunBuilder| builder.option("--on-loss", "delete-pod").in_pod(&token);
    let mut sidecar = Sidecar::with(&bench, "deletes", deletes).await;
    bench.edit_lease("deletes", emptied()).await;
    let mut grace = None;
    until("its Pod is deleted", BUSY, async || {
        let found = pods.get(&pod.name_any()).await.unwrap();
        grace = found.metadata.deletion_grace_period_seconds;
        grace.is_some()
    })
    .await;
    let kill_grace = 15 / 5;
    assert!(
        grace <= Some(kill_grace),
        "{grace:?}: the lock is another's"
    );
    sidecar.stops().await;
    bench.finish().await;
}

/// Gives a Pod to a node that nobody runs: it is not gone the moment that it is deleted.
async fn bind(pods: &Api<PodObject>, pod: &str) {
    let binding = json!({"metadata": {"name": pod}, "target": {"kind": "Node", "name": "none"}});
    let params = PostParams::default();
    let bound = pods.create_subresource::<Value, Value>("binding", pod, &params, &binding);
    bound.await.unwrap();
}
