//! `leasehold run` behind a network that fails: the command is dead before the lease can be another's.

use std::time::Duration;

use leasehold::supervise::Signal;

use super::operator_rig::Operator;
use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, last_of, until};
use super::run_process::Run;

/// A holder behind a proxy, and one who waits without.
async fn holder_and_waiter(bench: &Bench, proxy: &Proxy, lock: &str) -> (Run, Run) {
    let holder = bench
        .run(lock)
        .by("holder")
        .env("KUBECONFIG", proxy.kubeconfig());
    // It ignores TERM, and so do those that it starts outside of its group.
    let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & \
                  note start; while :; do sleep 0.05; note beat; done";
    let holder = holder.script(script).start();
    bench.until_noted("beat", "holder", BUSY).await;
    let waiter = bench.run(lock).by("waiter").works_for("0.5").start();
    bench.until_waiting(1).await;
    (holder, waiter)
}

/// hashicorp/consul#2022, kubernetes/kubernetes#65094: the lock was lost, and the program ran on.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_dead_before_a_lease_that_cannot_be_renewed_ends() {
    let bench = Bench::new().await;
    let refused =
        "(Forbidden): ending the command; not allowed to update leases.coordination.k8s.io";
    for (lock, verb, fault, says) in [
        ("forbidden", "update", Fault::Refuse(403), refused),
        ("hung", "*", Fault::Hang, "Unreachable"),
        ("failing", "*", Fault::Refuse(503), "Unreachable"),
    ] {
        bench.opened(lock, 2).await;
        let proxy = Proxy::new(&bench).await;
        let (mut holder, waiter) = holder_and_waiter(&bench, &proxy, lock).await;
        proxy.always(verb, "*", fault);
        proxy.swallow_open_connections();
        holder.exits(BUSY).await.assert(76, &[says]);
        assert!(holder.commands().is_empty(), "{lock}");
        waiter.ends(BUSY).await.assert(0, &[]);
        bench.assert_one_at_a_time();
        let (last, start) = (
            last_of(&bench.journal(), "holder"),
            bench.until_noted("start", "waiter", BUSY).await,
        );
        assert!(last.at <= start.at, "{lock}: {last:?} after {start:?}");
        bench.forget_journal();
    }
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_cut_the_release_short() {
    let bench = Bench::new().await;
    bench.opened("twice", 10).await;
    let proxy = Proxy::new(&bench).await;
    let run = bench
        .run("twice")
        .by("a")
        .env("KUBECONFIG", proxy.kubeconfig())
        .works_on()
        .start();
    bench.until_noted("start", "a", BUSY).await;
    proxy.always(
        "update",
        "leases",
        Fault::DelayRequest(Duration::from_secs(1)),
    );
    let before = proxy.puts().len();
    run.signal(Signal::TERM);
    until("the release is under way", BUSY, async || {
        proxy.puts().len() > before
    })
    .await;
    run.signal(Signal::TERM);
    run.signal(Signal::INT);
    run.ends(BUSY).await.assert(143, &[]);
    let lease = bench.lease("twice").await;
    assert!(lease.is_free(), "{lease:?}");
    bench.finish().await;
}

/// The PUT lands after `run` gave up: no command was started, and the lock is not stranded.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_lands_late_starts_no_command_after_the_wait_is_over() {
    let bench = Bench::new().await;
    bench.opened("late", 2).await;
    let proxy = Proxy::new(&bench).await;
    proxy.always(
        "update",
        "leases",
        Fault::DelayRequest(Duration::from_secs(3)),
    );
    let run = bench
        .run("late")
        .by("late")
        .env("KUBECONFIG", proxy.kubeconfig());
    let ended = run.with(&["--wait", "1s"]).works_for("0").ends().await;
    assert!(ended.code == 75 || ended.code == 69, "{ended:?}");
    until("what was sent has landed", BUSY, async || {
        proxy.puts().iter().all(|put| put.code.is_some())
    })
    .await;
    bench.serves("late", "next").await;
    assert_eq!(bench.noted("start"), ["next"]);
    proxy.assert_guarded();
    bench.finish().await;
}

/// spring-cloud-kubernetes#210: a container that comes again under its name finds itself in the record, and is "leader".
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_process_of_the_same_name_is_another_claimant() {
    let bench = Bench::new().await;
    bench.opened("restarted", 2).await;
    let first = bench.run("restarted").by("web-0").works_on().start();
    let held = bench.until_noted("beat", "web-0", BUSY).await;
    first.signal_tree(Signal::KILL);
    let again = bench
        .run("restarted")
        .by("web-0")
        .works_for("0")
        .ends()
        .await;
    again.assert(0, &["held by web-0/"]);
    let end = last_of(&bench.journal(), "web-0");
    assert!(end.word == "end" && end.token > held.token, "{end:?}");
    bench.assert_one_at_a_time();
    bench.finish().await;
}

/// With no server at all it says so, and ends.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_a_try_ends_within_its_bound() {
    let bench = Bench::new().await;
    bench.opened("unreachable", 5).await;
    let proxy = Proxy::new(&bench).await;
    proxy.always("*", "*", Fault::Hang);
    let run = bench
        .run("unreachable")
        .env("KUBECONFIG", proxy.kubeconfig());
    run.with(&["--try"])
        .ends()
        .await
        .assert(69, &["cannot get distributedlocks.leasehold.dev"]);
    proxy.heal();
    bench.finish().await;
}

/// kubernetes/kubernetes#23731, for the operator's election: a renewal that is refused is not sent again in a tight loop.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_whose_renewals_are_refused_does_not_hurry_the_server() {
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    let times = [
        "--leader-lease-duration=3s",
        "--leader-renew-deadline=2s",
        "--leader-retry-period=500ms",
    ];
    let kubeconfig = proxy.kubeconfig();
    let operator = Operator::start_with(&bench.namespace, "one", &times, Some(&kubeconfig)).await;
    operator.leads().await;
    proxy.always("update", "leases", Fault::Refuse(409));
    let before = proxy.puts().len();
    operator
        .eventually("it has lost the lead", async || {
            operator.metric("leasehold_leader").await == Some(0.0)
        })
        .await;
    let tried = proxy.puts().len() - before;
    assert!((1..=10).contains(&tried), "{tried} tries");
    bench.finish().await;
}
