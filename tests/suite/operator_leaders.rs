//! Several replicas: who leads, hand-over, and leaders that were paused or cut off.

use std::time::Duration;

use leasehold::api::names;
use leasehold::clock::MonoInstant;
use rustix::process::Signal;
use serde_json::json;

use super::operator_rig::{LONG, Operator, QUICK, in_place, is_free, lasting};
use super::server::within;

async fn lead(operator: &Operator) -> Option<f64> {
    operator.metric("leasehold_leader").await
}

#[tokio::test]
async fn when_the_leader_is_killed_the_other_leads_and_goes_on() {
    in_place(async |place| {
        let first = Operator::start(&place.namespace, "one", QUICK).await;
        first.leads().await;
        let second = Operator::start(&place.namespace, "two", QUICK).await;
        second.is_ready().await;
        assert_eq!(lead(&second).await, Some(0.0), "one leads");
        place.make_free("nightly", 6).await;
        let taken = MonoInstant::now();
        let grant = place.take("nightly", "pod-3").await;
        place.is_shown("nightly", &grant).await;
        first.signal(Signal::KILL);
        second.leads().await;
        // It observed as a standby: its lead postpones no expiry.
        let lease = place
            .lease_is("nightly", "the silent holder is ended", |lease| {
                lease.record.is_free()
            })
            .await;
        let took = MonoInstant::now().saturating_duration_since(taken);
        assert!((6.0..8.8).contains(&took.as_secs_f64()), "after {took:?}");
        assert_eq!(
            lease.record.ended.map(|ended| ended.by).as_deref(),
            Some("two")
        );
        place.make_free("another", 15).await;
    })
    .await;
}

#[tokio::test]
async fn a_stopped_leader_gives_the_lead_back_and_the_next_leads_at_once() {
    in_place(async |place| {
        // With the usual 15 s a lead that is not given back would be noticed here, and with this retry period one that
        // is not seen to be given back.
        let mut first = Operator::start(&place.namespace, "one", &[]).await;
        first.leads().await;
        let second = Operator::start(&place.namespace, "two", &["--leader-retry-period=5s"]).await;
        second
            .eventually("it stands by", async || second.log().contains("stands by"))
            .await;
        let asked = MonoInstant::now();
        first.signal(Signal::TERM);
        let ended = first.ended().await;
        assert_eq!(ended.code(), Some(0), "{}", first.log());
        second.leads().await;
        let took = MonoInstant::now().saturating_duration_since(asked);
        assert!(took < Duration::from_millis(4500), "after {took:?}");
        place.make_free("nightly", 15).await;
    })
    .await;
}

/// kubernetes-sigs/controller-runtime#2719: stopping a standby runs leader-only work.
#[tokio::test]
async fn a_stopped_standby_writes_nothing() {
    in_place(async |place| {
        let first = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 15).await;
        let mut second = Operator::start(&place.namespace, "two", &[]).await;
        second.is_ready().await;
        second.signal(Signal::TERM);
        assert_eq!(second.ended().await.code(), Some(0), "{}", second.log());
        let lease = place.lease("leasehold-operator").await;
        let managers: Vec<_> = lease
            .object
            .metadata
            .managed_fields
            .into_iter()
            .flatten()
            .collect();
        assert!(lease.record.spec.holder.starts_with("one/"), "{managers:?}");
        assert_eq!(lease.record.spec.transitions, 1, "nobody else ever led");
        assert_eq!(lead(&first).await, Some(1.0));
    })
    .await;
}

#[tokio::test]
async fn a_frozen_leader_that_thaws_does_no_harm_and_stands_by() {
    in_place(async |place| {
        let first = Operator::start(&place.namespace, "one", QUICK).await;
        first.leads().await;
        let second = Operator::start(&place.namespace, "two", QUICK).await;
        place.make_free("nightly", 1).await;
        first.signal(Signal::STOP);
        second.leads().await;
        // There is work that both would do: a holder to end, a lock to open.
        let grant = place.take("nightly", "pod-3").await;
        place.make("another", lasting(15)).await;
        place
            .lock_is("another", "the second opens it", is_free)
            .await;
        place
            .lock_is("nightly", "the second ends the holder", is_free)
            .await;
        let ended = place.lease("nightly").await;
        first.signal(Signal::CONT);
        first
            .eventually("it stands by", async || lead(&first).await == Some(0.0))
            .await;
        let after = place.lease("nightly").await;
        assert_eq!(after.record, ended.record, "the thawed one wrote nothing");
        assert_eq!(
            ended.record.ended.map(|ended| (ended.token, ended.by)),
            Some((grant.token.get(), "two".to_owned()))
        );
        assert_eq!(lead(&second).await, Some(1.0));
        let next = place.take("nightly", "pod-4").await;
        assert!(next.token > grant.token);
    })
    .await;
}

#[tokio::test]
async fn impossible_settings_are_refused_before_anything_is_done() {
    let run = |args: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .arg("operator")
            .args(args)
            .env("KUBECONFIG", "/nowhere")
            .output()
            .expect("it runs");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    for args in [
        &["--leader-lease-duration=15s", "--leader-renew-deadline=15s"][..],
        &["--leader-lease-duration=1500ms"],
        &["--leader-retry-period=6s"],
        &["--leader-retry-period=0s"],
        &["--leader-lease-duration=soon"],
        &["--namespace=Team_A"],
        &["--watch-namespace=team.a/b"],
        &["--leader-election-id=Router-A"],
        &["--identity=a/b"],
        &["--http-addr=nowhere"],
    ] {
        let (code, words) = run(args);
        assert_eq!(code, Some(2), "{args:?}: {words}");
        assert!(!words.is_empty());
    }
}

/// A misspelt level once meant a module of that name, and silence from all others.
#[test]
fn a_log_level_that_is_none_is_told_and_not_used() {
    let log = |level: &str| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["operator", "--http-addr=127.0.0.1:0"])
            .env("KUBECONFIG", "/nowhere")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .env("RUST_LOG", level)
            .output()
            .expect("it runs");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for level in ["loud", "leasehold=xx,,="] {
        let words = log(level);
        assert!(words.contains("is no log level"), "{level}: {words}");
        assert!(words.contains("logs at info"), "{level}: {words}");
    }
    let words = log("warn,leasehold=debug");
    assert!(!words.contains("is no log level"), "{words}");
}

/// Nobody queues for the lead: a `next` on its Lease, such as by hand, counts for nobody.
#[tokio::test]
async fn a_name_that_is_put_on_the_elections_lease_stops_no_election() {
    in_place(async |place| {
        let mut first = Operator::start(&place.namespace, "one", QUICK).await;
        first.leads().await;
        let named = json!({"metadata": {"annotations": {names::ANNOTATION_NEXT: "nobody/1"}}});
        place.edit_lease("leasehold-operator", &named).await;
        first.signal(Signal::TERM);
        first.ended().await;
        let second = Operator::start(&place.namespace, "two", QUICK).await;
        second.leads().await;
    })
    .await;
}

/// Each restart of the operator begins to observe anew; a waiter has observed all the while.
#[tokio::test]
async fn restarts_of_the_operator_keep_no_silent_holder_alive() {
    in_place(async |place| {
        let operator = Operator::start(&place.namespace, "one", QUICK).await;
        operator.leads().await;
        place.make_free("nightly", 4).await;
        let grant = place.take("nightly", "pod-3").await;
        let taken = MonoInstant::now();
        let locks = place.library().await;
        let mut waiter = locks.lock("nightly").claimant("pod-4").begin();
        drop(operator);
        let restarts = async {
            loop {
                let operator = Operator::start(&place.namespace, "one", QUICK).await;
                tokio::time::sleep(Duration::from_millis(1500)).await;
                drop(operator);
            }
        };
        let guard = tokio::select! {
            guard = within(LONG, "the waiter has it", waiter.outcome()) => guard,
            () = restarts => unreachable!("they go on and on"),
        };
        let guard = guard.expect("it is served");
        let took = MonoInstant::now().saturating_duration_since(taken);
        assert!((4.0..8.0).contains(&took.as_secs_f64()), "after {took:?}");
        assert!(guard.token() > grant.token);
        guard.release().await.expect("it is given back");
    })
    .await;
}
