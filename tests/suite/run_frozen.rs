//! Processes that are killed or frozen: the command is dead before anybody else can have the lock.

use std::time::Duration;

use leasehold::clock::BootInstant;
use leasehold::supervise::Signal;

use super::processes::signal;
use super::run_bench::{BUSY, Bench, last_of, until};
use super::run_process::Run;

/// What a loaded machine adds to a bound that the product promises.
const SLACK: f64 = 3.0;

/// A holder, and one who waits for its end: once a bench, since the journal is one.
async fn holder_and_waiter(bench: &Bench, lock: &str, seconds: i32) -> (Run, Run) {
    bench.opened(lock, seconds).await;
    let holder = bench.run(lock).by("holder").works_on().start();
    bench.until_noted("beat", "holder", BUSY).await;
    let waiter = bench.run(lock).by("waiter").works_for("0.5").start();
    bench.until_waiting(1).await;
    (holder, waiter)
}

/// Seconds since the machine started, as the journal counts.
fn now() -> f64 {
    Duration::from_nanos(BootInstant::now().as_nanos()).as_secs_f64()
}

/// The holder's command is dead, and gave no sign of life when its lease was over.
async fn is_dead_within(bench: &Bench, holder: &Run, began: f64, lease: f64) {
    until("the command is dead", BUSY, async || {
        holder.commands().is_empty()
    })
    .await;
    let lived = last_of(&bench.journal(), "holder").at - began;
    assert!(
        lived < lease,
        "its last sign of life came {lived} s after the freeze"
    );
}

/// The waiter had it within the bound, and nothing of the holder lived at that moment.
async fn taken_over(bench: &Bench, waiter: Run, began: f64, lease: f64) {
    waiter.ends(BUSY).await.assert(0, &[]);
    let start = bench.until_noted("start", "waiter", BUSY).await;
    let took = start.at - began;
    assert!(took < lease + 1.0 + SLACK, "{took} s");
    bench.assert_one_at_a_time();
    let last = last_of(&bench.journal(), "holder");
    assert!(last.at <= start.at, "{last:?} after {start:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_kill_9_of_a_holders_process_group_the_next_starts_within_the_lease_and_a_second() {
    let bench = Bench::new().await;
    let (mut holder, waiter) = holder_and_waiter(&bench, "group", 3).await;
    let began = now();
    holder.signal_group(Signal::KILL);
    assert_eq!(holder.exits(BUSY).await.code, 137);
    taken_over(&bench, waiter, began, 3.0).await;
    assert!(holder.alive().is_empty(), "the guardian is gone too");
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_kill_9_of_a_holders_whole_tree_the_next_starts_within_the_lease_and_a_second() {
    let bench = Bench::new().await;
    let (holder, waiter) = holder_and_waiter(&bench, "tree", 3).await;
    let began = now();
    holder.signal_tree(Signal::KILL);
    taken_over(&bench, waiter, began, 3.0).await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_guardian_is_killed_the_command_dies_and_the_lock_is_given_back() {
    let bench = Bench::new().await;
    let (holder, waiter) = holder_and_waiter(&bench, "guardian", 10).await;
    signal(holder.guardian(), Signal::KILL);
    holder
        .ends(BUSY)
        .await
        .assert(76, &["the guardian process was frozen or killed"]);
    waiter.ends(BUSY).await.assert(0, &[]);
    bench.assert_one_at_a_time();
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_wrapper_costs_the_command_its_life_before_the_lease_ends() {
    let bench = Bench::new().await;
    let (mut holder, waiter) = holder_and_waiter(&bench, "wrapper", 3).await;
    let began = now();
    holder.signal(Signal::STOP);
    is_dead_within(&bench, &holder, began, 3.0).await;
    taken_over(&bench, waiter, began, 3.0).await;
    holder.signal(Signal::CONT);
    holder.exits(BUSY).await.assert(76, &[]);
    bench.assert_one_at_a_time();
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_guardian_costs_the_command_its_life_before_the_lease_ends() {
    let bench = Bench::new().await;
    let (mut holder, waiter) = holder_and_waiter(&bench, "frozen", 3).await;
    let began = now();
    signal(holder.guardian(), Signal::STOP);
    is_dead_within(&bench, &holder, began, 3.0).await;
    holder.exits(BUSY).await.assert(76, &[]);
    taken_over(&bench, waiter, began, 3.0).await;
    bench.finish().await;
}

/// A waiter that gets the lock after its guardian was sent this signal, so that nothing is there to start its command.
async fn has_no_guardian_when_it_gets_the_lock(bench: &Bench, lock: &str, sent: Signal) -> Run {
    let (holder, waiter) = holder_and_waiter(bench, lock, 5).await;
    signal(waiter.guardian(), sent);
    holder.signal(Signal::TERM);
    holder.ends(BUSY).await.assert(143, &[]);
    waiter
}

/// It ends in this way, nothing of its command ran, and the lock is free again.
async fn started_nothing(bench: &Bench, lock: &str, run: Run, code: i32, words: &str) {
    run.ends(BUSY).await.assert(code, &[words]);
    assert!(!bench.noted("start").contains(&"waiter".to_owned()));
    assert!(bench.lease(lock).await.is_free());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guardian_frozen_while_it_is_to_start_the_command_is_a_lost_one() {
    let bench = Bench::new().await;
    let waiter = has_no_guardian_when_it_gets_the_lock(&bench, "frozen", Signal::STOP).await;
    let words = "the guardian process was lost";
    started_nothing(&bench, "frozen", waiter, 76, words).await;
    bench.finish().await;
}

/// With the first renewal it has been told to start.
async fn renews(bench: &Bench, lock: &str) {
    until("it holds and renews", BUSY, async || {
        let lease = bench.leases().get(lock).await.unwrap().spec.unwrap();
        let holder = lease.holder_identity.unwrap_or_default();
        holder.starts_with("waiter/") && lease.renew_time > lease.acquire_time
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_does_not_wait_for_a_guardian_that_is_frozen_while_it_is_to_start_the_command() {
    let bench = Bench::new().await;
    let waiter = has_no_guardian_when_it_gets_the_lock(&bench, "term", Signal::STOP).await;
    renews(&bench, "term").await;
    waiter.signal(Signal::TERM);
    let words = "the guardian process was lost";
    started_nothing(&bench, "term", waiter, 143, words).await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guardian_killed_while_it_is_to_start_the_command_is_a_lost_one() {
    let bench = Bench::new().await;
    let waiter = has_no_guardian_when_it_gets_the_lock(&bench, "killed", Signal::STOP).await;
    renews(&bench, "killed").await;
    signal(waiter.guardian(), Signal::KILL);
    let words = "the guardian process was frozen or killed";
    started_nothing(&bench, "killed", waiter, 76, words).await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guardian_killed_while_waiting_costs_the_turn_and_not_the_lock() {
    let bench = Bench::new().await;
    let waiter = has_no_guardian_when_it_gets_the_lock(&bench, "idle", Signal::KILL).await;
    started_nothing(&bench, "idle", waiter, 126, "the supervisor has ended").await;
    bench.finish().await;
}

/// Nothing can end a command while wrapper and guardian are frozen; once they thaw it does not go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_was_frozen_past_its_lease_ends_when_it_thaws() {
    let bench = Bench::new().await;
    let (mut holder, waiter) = holder_and_waiter(&bench, "thawed", 3).await;
    holder.signal_tree(Signal::STOP);
    waiter.ends(BUSY).await.assert(0, &[]);
    let thawed = now();
    holder.signal_tree(Signal::CONT);
    holder.exits(BUSY).await.assert(76, &[]);
    assert!(holder.commands().is_empty());
    let last = last_of(&bench.journal(), "holder").at - thawed;
    assert!(last < SLACK, "it went on for {last} s after the thaw");
    // What it held is another's by now, and is left alone.
    assert!(
        bench
            .lease("thawed")
            .await
            .ended
            .unwrap()
            .by
            .starts_with("waiter/")
    );
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_frozen_past_its_turn_starts_nothing_that_it_does_not_hold() {
    let bench = Bench::new().await;
    bench.opened("turn", 2).await;
    let holder = bench.works("turn", "holder").await;
    let frozen = bench.run("turn").by("frozen").works_on().start();
    bench.until_waiting(1).await;
    bench.until_named("turn").await;
    let third = bench.run("turn").by("third").works_on().start();
    bench.until_waiting(2).await;
    frozen.signal_tree(Signal::STOP);
    holder.signal(Signal::TERM);
    holder.ends(BUSY).await.assert(143, &[]);
    bench.until_noted("beat", "third", BUSY).await;
    frozen.signal_tree(Signal::CONT);
    // It waits on, while the third one works on.
    let beats = bench.noted("beat").len();
    until("the third one works on", BUSY, async || {
        bench.noted("beat").len() > beats + 20
    })
    .await;
    assert_eq!(bench.noted("start"), ["holder", "third"]);
    third.signal(Signal::TERM);
    third.ends(BUSY).await.assert(143, &[]);
    bench.until_noted("beat", "frozen", BUSY).await;
    frozen.signal(Signal::TERM);
    frozen.ends(BUSY).await.assert(143, &[]);
    bench.assert_one_at_a_time();
    bench.finish().await;
}
