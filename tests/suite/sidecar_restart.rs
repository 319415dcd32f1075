//! A sidecar that is started again: it resumes its own grant, or has lost it.

use std::collections::BTreeSet;
use std::fs;

use leasehold::clock::BootInstant;
use serde_json::{Value, json};

use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, until};
use super::run_process::RunBuilder;
use super::sidecar::{Pod, Sidecar};

#[tokio::test(flavor = "multi_thread")]
async fn killed_and_started_again_it_resumes_the_same_grant() {
    let bench = Bench::new().await;
    bench.opened("a", 60).await;
    let mut sidecar = Sidecar::held(&bench, "a").await;
    let (told, before) = (sidecar.pod.file().unwrap(), bench.lease("a").await);
    for _ in 0..2 {
        sidecar.killed_and_started_again(&bench, "a").await;
        let again = sidecar.pod.until_held().await;
        for field in ["token", "holder", "slot"] {
            assert_eq!(again[field], told[field], "{field}");
        }
        let lease = bench.lease("a").await;
        assert_eq!(lease.current_grant(), before.current_grant());
        assert!(
            lease.spec.renew_time > before.spec.renew_time,
            "it vouches for it by a renewal of its own"
        );
    }
    let metrics = sidecar.pod.metrics().await;
    assert!(metrics.contains("leasehold_sidecar_grants_total{how=\"resumed\"} 1\n"));
    sidecar.stops().await;
    assert!(bench.lease("a").await.is_free());
    // Given back is over too: the app that had it may not have ended.
    sidecar.run = sidecar.pod.sidecar(&bench, "a").start();
    sidecar.pod.until_not_held("was given back").await;
    sidecar.stops().await;
    assert!(bench.lease("a").await.is_free());
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_by_another_meanwhile_is_lost_and_no_newer_token_is_had() {
    let bench = Bench::new().await;
    bench.opened("a", 60).await;
    let mut sidecar = Sidecar::held(&bench, "a").await;
    let token = sidecar.pod.file().unwrap()["token"].as_i64().unwrap();
    sidecar.killed().await;
    bench
        .edit_lease("a", json!({"spec": {"holderIdentity": ""}}))
        .await;
    let another = bench.hold("a", "another").await;
    assert!(another.token().get() > token);
    // Not the successor's, nor a newer one once that has gone; not even after another restart.
    sidecar.run = sidecar.pod.sidecar(&bench, "a").start();
    sidecar.until_lost("TakenOver").await;
    another.release().await.unwrap();
    let free = bench.lease("a").await;
    sidecar.killed_and_started_again(&bench, "a").await;
    sidecar.until_lost("TakenOver").await;
    sidecar.killed().await;
    let exits = sidecar.pod.sidecar(&bench, "a").option("--on-loss", "exit");
    exits.ends().await.assert(76, &["TakenOver"]);
    assert_eq!(bench.lease("a").await, free, "it wrote nothing");
    assert_eq!(bench.waiting().await, 0);

    // New work may have a new grant.
    new_work(&bench, &sidecar.pod).await;
    sidecar.run = sidecar.pod.sidecar(&bench, "a").start();
    let told = sidecar.pod.until_held().await;
    assert!(told["token"].as_i64().unwrap() > token);
    sidecar.stops().await;
    bench.finish().await;
}

/// What the init container does.
async fn new_work(bench: &Bench, pod: &Pod) {
    let begin = RunBuilder::of(bench.new_folder(), "sidecar");
    let begin = begin.with(&["--new-work", "--dir", pod.dir.to_str().unwrap()]);
    begin.ends().await.assert(0, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_work_goes_on_with_a_grant_that_is_still_held() {
    let bench = Bench::new().await;
    bench.opened("a", 60).await;
    let mut sidecar = Sidecar::held(&bench, "a").await;
    let told = sidecar.pod.file().unwrap();
    sidecar.killed().await;
    new_work(&bench, &sidecar.pod).await;
    sidecar.run = sidecar.pod.sidecar(&bench, "a").start();
    assert_eq!(sidecar.pod.until_held().await["token"], told["token"]);
    sidecar.stops().await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn started_again_after_the_deadline_it_has_lost_and_writes_nothing() {
    let bench = Bench::new().await;
    bench.opened("a", 5).await;
    let mut sidecar = Sidecar::held(&bench, "a").await;
    sidecar.killed().await;
    let state = fs::read_to_string(sidecar.pod.dir.join("state.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    let until_then = state["phase"]["Held"]["until"].as_u64().unwrap();
    until("the deadline is over", BUSY, async || {
        BootInstant::now() > BootInstant::from_nanos(until_then)
    })
    .await;
    let lease = bench.lease("a").await;
    sidecar.run = sidecar.pod.sidecar(&bench, "a").start();
    sidecar.until_lost("Expired").await;
    sidecar.stops().await;
    assert_eq!(bench.lease("a").await, lease, "not even a release");
    bench.finish().await;
}

/// While it is not proven again nobody hears "held", and the file goes by its own deadline.
#[tokio::test(flavor = "multi_thread")]
async fn it_does_not_vouch_for_a_grant_before_a_renewal_of_its_own_was_answered() {
    let bench = Bench::new().await;
    bench.opened("a", 12).await;
    let mut sidecar = Sidecar::held(&bench, "a").await;
    let proxy = Proxy::new(&bench).await;
    proxy.always("update", "leases", Fault::Hang);
    let reader = sidecar.read_the_file();
    sidecar.killed().await;
    let through = sidecar.pod.sidecar(&bench, "a");
    sidecar.run = through.env("KUBECONFIG", proxy.kubeconfig()).start();
    let mut told = BTreeSet::new();
    until("it has lost", BUSY, async || {
        let Some((code, grant)) = sidecar.pod.grant().await else {
            return false;
        };
        assert_eq!(code, 503, "{grant}");
        let lost = grant["reason"].as_str().unwrap().contains("lost lock");
        told.insert(grant["reason"].to_string());
        lost
    })
    .await;
    assert!(
        told.iter().any(|why| why.contains("not proven again")),
        "{told:?}"
    );
    sidecar.until_lost("Unreachable").await;
    assert_eq!(reader.late_reads(), 0);
    proxy.heal();
    sidecar.stops().await;
    bench.finish().await;
}
