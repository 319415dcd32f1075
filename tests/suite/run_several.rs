//! `leasehold run` with several locks: all or none, in one order, and the command ends with the first that is lost.

use std::time::Duration;

use leasehold::clock::MonoInstant;
use leasehold::engine::EndKind;
use leasehold::supervise::Signal;
use serde_json::json;

use super::proxy::{Call, Fault, Proxy};
use super::run_bench::{BUSY, Bench, long, until};
use super::run_process::RunBuilder;

/// The journal takes one holder and one token: those of this lock.
fn as_of(lock: &str) -> String {
    let lock = lock.to_uppercase();
    format!(
        "LEASEHOLD_HOLDER=$LEASEHOLD_HOLDER_{lock}; LEASEHOLD_FENCING_TOKEN=$LEASEHOLD_FENCING_TOKEN_{lock}; "
    )
}

/// A run on these locks that notes its start, and works on until TERM.
fn working(bench: &Bench, locks: &[&str], who: &str) -> RunBuilder {
    let run = bench.run(locks[0]).by(who);
    let run = locks[1..]
        .iter()
        .fold(run, |run, lock| run.option("--lock", lock));
    run.script(&format!(
        "{}trap 'note end; exit 143' TERM; note start; while :; do sleep 0.05; done",
        as_of(locks[0])
    ))
}

async fn is_free(bench: &Bench, lock: &str) -> bool {
    bench.lease(lock).await.is_free()
}

async fn no_claim_is_left(bench: &Bench) {
    bench.until_waiting(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_that_name_the_locks_in_opposite_order_never_wait_for_each_other() {
    let bench = Bench::new().await;
    for lock in ["a", "b"] {
        bench.opened(lock, 15).await;
    }
    let rounds = if long() { 200 } else { 50 };
    let chain = async |first: &str, second: &str, who: &str| {
        for _ in 0..rounds {
            let run = bench.run(first).option("--lock", second).by(who);
            let script = format!("{}note start; note end", as_of("a"));
            run.script(&script).ends().await.assert(0, &[]);
        }
    };
    tokio::join!(chain("a", "b", "x"), chain("b", "a", "y"));
    bench.assert_one_at_a_time();
    assert_eq!(bench.noted("end").len(), 2 * rounds);
    assert!(is_free(&bench, "a").await && is_free(&bench, "b").await);
    no_claim_is_left(&bench).await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_finds_a_list_and_each_locks_own_in_its_environment() {
    let bench = Bench::new().await;
    for lock in ["a", "b-2"] {
        bench.opened(lock, 15).await;
    }
    let proxy = Proxy::new(&bench).await;
    let run = bench.run("b-2").option("--lock", "a").by("who");
    let ended = run
        .env("KUBECONFIG", proxy.kubeconfig())
        .script("env | grep ^LEASEHOLD_ | sort")
        .ends()
        .await;
    ended.assert(0, &[]);
    let value = |name: &str| {
        let mut lines = ended.stdout.lines();
        let found = lines.find_map(|line| line.strip_prefix(&format!("{name}=")));
        found
            .unwrap_or_else(|| panic!("no {name} in {}", ended.stdout))
            .to_owned()
    };
    assert_eq!(value("LEASEHOLD_LOCK"), "a,b-2");
    assert_eq!(value("LEASEHOLD_NAMESPACE"), bench.namespace);
    assert_eq!(value("LEASEHOLD_SLOT"), "0,0");
    let tokens = [
        value("LEASEHOLD_FENCING_TOKEN_A"),
        value("LEASEHOLD_FENCING_TOKEN_B_2"),
    ];
    assert_eq!(value("LEASEHOLD_FENCING_TOKEN"), tokens.join(","));
    let holders = [value("LEASEHOLD_HOLDER_A"), value("LEASEHOLD_HOLDER_B_2")];
    assert_eq!(value("LEASEHOLD_HOLDER"), holders.join(","));
    // What it was told is what was granted; taken in the order of the names, and given back the other way round.
    let puts = proxy.puts();
    let granted = |put: &Call| {
        let text = |field: &serde_json::Value| field.as_str().unwrap_or_default().to_owned();
        (
            text(&put.body["metadata"]["name"]),
            text(&put.body["spec"]["holderIdentity"]),
        )
    };
    let written: Vec<_> = puts.iter().map(granted).collect();
    let [holder_a, holder_b] = holders;
    assert_eq!(
        written,
        [
            ("a".to_owned(), holder_a),
            ("b-2".to_owned(), holder_b),
            ("b-2".to_owned(), String::new()),
            ("a".to_owned(), String::new()),
        ]
    );
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_one_of_three_locks_held_a_try_and_a_time_out_leave_nothing() {
    let bench = Bench::new().await;
    for lock in ["a", "b", "c"] {
        bench.opened(lock, 15).await;
    }
    let holder = bench.works("c", "holder").await;
    for words in [&["--try"][..], &["--wait", "2s"]] {
        let run = bench.run("c").option("--lock", "a").option("--lock", "b");
        let run = run.with(words).by("other").works_for("0");
        run.ends()
            .await
            .assert(75, &[r#"lock "c""#, "held by holder/"]);
        assert!(is_free(&bench, "a").await && is_free(&bench, "b").await);
        no_claim_is_left(&bench).await;
    }
    assert_eq!(bench.noted("start"), ["holder"]);
    holder.signal(Signal::TERM);
    holder.ends(BUSY).await.assert(143, &[]);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_named_twice_or_a_name_that_is_none_is_a_mistake_of_usage() {
    let bench = Bench::new().await;
    bench.opened("a", 15).await;
    let twice = bench.run("a").option("--lock", "a").ends().await;
    twice.assert(2, &["--lock a is given twice"]);
    let none = bench.run("a").option("--lock", "a,b").ends().await;
    none.assert(2, &["cannot be a lock's name"]);
    let priority = bench.run("a").option("--priority", "1001").ends().await;
    priority.assert(2, &["1001"]);
    assert_eq!(bench.lease("a").await.last_token(), 0, "nothing was taken");
    bench.finish().await;
}

/// A signal while it holds the first and waits for the second: both are left.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_it_waits_for_the_second_lock_gives_the_first_back() {
    let bench = Bench::new().await;
    for lock in ["a", "b"] {
        bench.opened(lock, 15).await;
    }
    let holder = bench.works("b", "holder").await;
    let proxy = Proxy::new(&bench).await;
    let waiter = working(&bench, &["a", "b"], "waiter");
    let waiter = waiter.env("KUBECONFIG", proxy.kubeconfig()).start();
    bench.until_waiting(1).await;
    assert!(!is_free(&bench, "a").await);
    let slow = Fault::DelayRequest(Duration::from_secs(1));
    proxy.always("update", "leases", slow);
    waiter.signal(Signal::TERM);
    until("it gives the first back", BUSY, async || {
        let mut puts = proxy.puts().into_iter();
        puts.any(|put| put.body["spec"]["holderIdentity"] == "")
    })
    .await;
    // A second one does not skip that.
    waiter.signal(Signal::INT);
    waiter.ends(BUSY).await.assert(143, &[]);
    assert!(is_free(&bench, "a").await);
    no_claim_is_left(&bench).await;
    drop(holder);
    bench.finish().await;
}

/// Killed while it holds the first and waits for the second, and while it holds both: the next one has both as soon as
/// the leases are over.
#[tokio::test(flavor = "multi_thread")]
async fn after_kill_9_in_the_middle_the_next_one_has_all_within_the_lease() {
    let bench = Bench::new().await;
    for lock in ["a", "b"] {
        bench.opened(lock, 2).await;
    }
    for (round, kills_waiter) in [true, false].into_iter().enumerate() {
        let (first, next) = (format!("first-{round}"), format!("next-{round}"));
        let holder = bench.run("b").by("holder").works_on().start();
        until("b is held", BUSY, async || !is_free(&bench, "b").await).await;
        let run = working(&bench, &["a", "b"], &first).start();
        bench.until_waiting(1).await;
        if kills_waiter {
            run.signal_tree(Signal::KILL);
        }
        holder.signal(Signal::TERM);
        holder.ends(BUSY).await.assert(143, &[]);
        if !kills_waiter {
            bench.until_noted("start", &first, BUSY).await;
            run.signal_tree(Signal::KILL);
        }
        let killed = MonoInstant::now();
        let other =
            working(&bench, &["b", "a"], &next).script(&format!("{}note start", as_of("a")));
        other.ends().await.assert(0, &[]);
        let took = MonoInstant::now().saturating_duration_since(killed);
        // The lease of `a`, then that of `b` or the place of a dead claim on it (2 s, twice as it is one place behind).
        assert!(took < Duration::from_secs(10), "{took:?}");
        bench.forget_claims().await;
        drop(run);
    }
    bench.finish().await;
}

/// Any of them, not just the first: the command ends, and the others are given back at once.
#[tokio::test(flavor = "multi_thread")]
async fn when_one_of_the_locks_is_lost_the_command_ends_and_the_others_are_given_back() {
    let bench = Bench::new().await;
    for lock in ["a", "b", "c"] {
        bench.opened(lock, 15).await;
    }
    for (lost, kept) in [("b", ["a", "c"]), ("a", ["b", "c"])] {
        let run = working(&bench, &["c", "b", "a"], lost).start();
        bench.until_noted("start", lost, BUSY).await;
        // Somebody empties it by hand.
        bench
            .edit_lease(lost, json!({"spec": {"holderIdentity": "somebody/else"}}))
            .await;
        let says = format!("lost lock {lost:?} (TakenOver): ending the command");
        run.ends(BUSY).await.assert(76, &[&says]);
        bench.until_noted("end", lost, Duration::ZERO).await;
        for lock in kept {
            let lease = bench.lease(lock).await;
            assert!(lease.is_free(), "{lock}: {lease:?}");
            assert_eq!(lease.ended.unwrap().kind, EndKind::Released);
        }
        let lease = bench.lease(lost).await;
        assert_eq!(lease.spec.holder, "somebody/else", "left alone");
        bench
            .edit_lease(lost, json!({"spec": {"holderIdentity": ""}}))
            .await;
    }
    bench.finish().await;
}
