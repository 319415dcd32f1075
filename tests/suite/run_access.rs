//! `leasehold run` as a service account that lacks a right.
//!
//! kubernetes-client/java#1011, apache/rocketmq-operator#113: endless log lines, and a process that looks healthy and
//! never works.

use std::time::Duration;

use leasehold::clock::MonoInstant;
use leasehold::supervise::Signal;

use super::run_bench::{BUSY, Bench};

type Rule = (&'static str, &'static str, &'static [&'static str]);

const LOCKS: Rule = (
    "leasehold.dev",
    "distributedlocks",
    &["get", "list", "watch"],
);
const LEASES: Rule = (
    "coordination.k8s.io",
    "leases",
    &["get", "list", "watch", "update"],
);
const CLAIMS: Rule = (
    "leasehold.dev",
    "lockclaims",
    &["create", "get", "list", "watch", "delete"],
);

/// What a Pod needs, without one verb of one resource.
fn without(resource: &str, verb: &str) -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    [LOCKS, LEASES, CLAIMS]
        .into_iter()
        .map(|(group, kind, verbs)| {
            let left = verbs.iter().copied();
            (
                group,
                kind,
                left.filter(|have| kind != resource || *have != verb)
                    .collect(),
            )
        })
        .collect()
}

async fn account(bench: &Bench, name: &str, resource: &str, verb: &str) -> std::path::PathBuf {
    let rules = without(resource, verb);
    let rules: Vec<_> = rules
        .iter()
        .map(|(group, kind, verbs)| (*group, *kind, &verbs[..]))
        .collect();
    bench.account(name, &rules).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough() {
    let bench = Bench::new().await;
    bench.opened("allowed", 5).await;
    let all = account(&bench, "all", "none", "none").await;
    let holder = bench
        .run("allowed")
        .by("holder")
        .env("KUBECONFIG", &all)
        .works_on()
        .start();
    bench.until_noted("start", "holder", BUSY).await;
    let waiter = bench
        .run("allowed")
        .by("waiter")
        .env("KUBECONFIG", &all)
        .works_for("0")
        .start();
    bench.until_waiting(1).await;
    holder.signal(Signal::TERM);
    waiter.ends(BUSY).await.assert(0, &[]);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_and_not_waited_for() {
    let bench = Bench::new().await;
    bench.opened("held", 5).await;
    bench.opened("free", 5).await;
    let holder = bench.works("held", "holder").await;
    for (lock, resource, verb) in [
        ("free", "distributedlocks", "get"),
        ("free", "leases", "get"),
        ("free", "leases", "update"),
        ("held", "lockclaims", "create"),
        ("held", "lockclaims", "list"),
    ] {
        let kubeconfig = account(&bench, &format!("no-{resource}-{verb}"), resource, verb).await;
        let ended = bench.run(lock).env("KUBECONFIG", &kubeconfig).ends().await;
        let says = format!("not allowed to {verb} {resource}.");
        let place = format!("in namespace {:?}", bench.namespace);
        ended.assert(69, &[&says, &place, "bind the ClusterRole leasehold-user"]);
    }
    // Nobody is left in the queue, and the holder is not disturbed.
    bench.until_waiting(0).await;
    assert!(bench.lease("held").await.spec.holder.starts_with("holder/"));
    drop(holder);
    bench.finish().await;
}

/// Who may queue up but do no more says so at once, leaves what it can't take along, and ends in time.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_make_claims_hears_so_at_once_and_ends_in_time() {
    let bench = Bench::new().await;
    bench.opened("held", 15).await;
    let holder = bench.works("held", "holder").await;
    let only = ("leasehold.dev", "lockclaims", &["create"][..]);
    let kubeconfig = bench.account("only", &[LOCKS, LEASES, only]).await;
    let run = bench.run("held").by("waiter").with(&["--wait", "8s"]);
    let run = run.env("KUBECONFIG", &kubeconfig).start();
    let refused = "not allowed to list lockclaims.leasehold.dev";
    let said = format!("{refused} ");
    run.says(&said).await;
    let began = MonoInstant::now();
    let ended = run.ends(BUSY).await;
    // Leaving as long as others do would be ten seconds more.
    let took = MonoInstant::now().saturating_duration_since(began);
    assert!(took < Duration::from_secs(15), "{took:?}");
    let left = "the claim is left in the queue: not allowed to delete lockclaims";
    ended.assert(69, &["trying again", refused, left]);
    drop(holder);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_the_server_does_not_know_are_told_as_such() {
    let bench = Bench::new().await;
    bench.opened("free", 5).await;
    let kubeconfig = account(&bench, "known", "none", "none").await;
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"]["token"] = "nobody".into();
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let run = bench.run("free").env("KUBECONFIG", &kubeconfig);
    let ended = run.ends().await;
    ended.assert(69, &["does not accept the credentials"]);
    assert!(!ended.stderr.contains("ClusterRole"), "{ended:?}");
    bench.finish().await;
}

/// The command has its lock by then, and runs; but somebody should give that right.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_may_not_be_deleted_is_told() {
    let bench = Bench::new().await;
    bench.opened("left", 5).await;
    let lacking = account(&bench, "lacking", "lockclaims", "delete").await;
    let holder = bench.works("left", "holder").await;
    let waiter = bench.run("left").env("KUBECONFIG", &lacking).works_for("0");
    let waiter = waiter.start();
    bench.until_waiting(1).await;
    holder.signal(Signal::TERM);
    let says = "the claim is left in the queue: not allowed to delete lockclaims.leasehold.dev";
    waiter.ends(BUSY).await.assert(0, &[says]);
    // It stops nobody: it is passed over.
    let next = bench.run("left").by("next").works_for("0").ends().await;
    next.assert(0, &[]);
    bench.finish().await;
}

/// kube-rs/kube#1615 (c): the watch is forbidden, reading is not.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_watch_the_lock_is_had_within_a_retry_period() {
    let bench = Bench::new().await;
    bench.opened("blind", 15).await;
    let blind = account(&bench, "blind", "leases", "watch").await;
    let holder = bench.works("blind", "holder").await;
    let waiter = bench
        .run("blind")
        .by("waiter")
        .env("KUBECONFIG", &blind)
        .works_for("0")
        .start();
    bench.until_waiting(1).await;
    let began = MonoInstant::now();
    holder.signal(Signal::TERM);
    bench.until_noted("start", "waiter", BUSY).await;
    // A retry period is 1 s here, a slow beat would be 15 s.
    assert!(MonoInstant::now().saturating_duration_since(began) < Duration::from_secs(8));
    waiter.ends(BUSY).await.assert(0, &[]);
    bench.finish().await;
}
