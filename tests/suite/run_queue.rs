//! Many `leasehold run`s on one lock: one at a time, in order, without a pause between them.

use std::time::Duration;

use leasehold::clock::MonoInstant;
use leasehold::supervise::Signal;

use super::run_bench::{BUSY, Bench, long};

/// hashicorp/consul#1006: 20 queued no-op jobs took minutes, for a polling interval in the hand-over.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_queued_jobs_are_done_within_ten_seconds() {
    let bench = Bench::new().await;
    bench.opened("batch", 15).await;
    let holder = bench.works("batch", "holder").await;
    let mut jobs = Vec::new();
    for number in 0..20 {
        jobs.push(bench.run("batch").by(&format!("job-{number}")).start());
    }
    bench.until_waiting(20).await;
    let began = MonoInstant::now();
    holder.signal(Signal::TERM);
    for job in jobs {
        job.ends(BUSY * 2).await.assert(0, &[]);
    }
    let took = MonoInstant::now().saturating_duration_since(began);
    assert!(took < Duration::from_secs(10), "{took:?}");
    holder.ends(BUSY).await.assert(143, &[]);
    bench.until_waiting(0).await;
    assert!(bench.lease("batch").await.is_free());
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_at_once_one_holds_and_the_rest_follow_one_by_one() {
    let bench = Bench::new().await;
    bench.opened("crowd", 5).await;
    let runs: Vec<_> = (0..10)
        .map(|number| {
            let run = bench.run("crowd").by(&format!("c{number}"));
            run.works_for("0.1").start()
        })
        .collect();
    for run in runs {
        run.ends(BUSY * 3).await.assert(0, &[]);
    }
    bench.assert_one_at_a_time();
    assert_eq!(bench.noted("start").len(), 10);
    assert_eq!(bench.noted("end").len(), 10);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_are_served_in_the_order_they_came() {
    let bench = Bench::new().await;
    bench.opened("queue", 5).await;
    let holder = bench.works("queue", "holder").await;
    let mut runs = Vec::new();
    for number in 1..=5 {
        runs.push(
            bench
                .run("queue")
                .by(&format!("w{number}"))
                .works_for("0")
                .start(),
        );
        bench.until_waiting(number).await;
    }
    holder.signal(Signal::TERM);
    for run in runs {
        run.ends(BUSY).await.assert(0, &[]);
    }
    assert_eq!(
        bench.noted("start"),
        ["holder", "w1", "w2", "w3", "w4", "w5"]
    );
    let tokens: Vec<_> = bench
        .journal()
        .iter()
        .filter(|n| n.word == "start")
        .map(|n| n.token)
        .collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    drop(holder);
    bench.finish().await;
}

/// "A holder that releases and asks again at once, 100 times, while B waits: B is served after the first release."
#[tokio::test(flavor = "multi_thread")]
async fn who_releases_and_asks_again_goes_to_the_end() {
    let bench = Bench::new().await;
    bench.opened("greedy", 5).await;
    let locks = bench.library().await;
    let mut guard = locks.lock("greedy").claimant("a").acquire().await.unwrap();
    for round in 0..if long() { 100 } else { 20 } {
        let mut waiter = locks.lock("greedy").claimant("b").begin();
        bench.until_waiting(1).await;
        // B is queued; now A asks again in the very moment in which it releases.
        bench.until_named("greedy").await;
        let before = guard.token();
        guard.release().await.unwrap();
        let mut again = locks.lock("greedy").claimant("a").begin();
        let b = tokio::select! {
            biased;
            a = again.outcome() => panic!("round {round}: a overtook b: {a:?}"),
            b = waiter.outcome() => b.unwrap(),
        };
        assert!(b.token() > before);
        b.release().await.unwrap();
        guard = again.outcome().await.unwrap();
    }
    guard.release().await.unwrap();
    bench.finish().await;
}

/// kubernetes/kubernetes#130683 and others: a Job with parallelism 1 runs two Pods, which have all names but one in common.
#[tokio::test(flavor = "multi_thread")]
async fn two_that_give_the_same_name_are_two_claimants() {
    let bench = Bench::new().await;
    bench.opened("job", 5).await;
    let run = || bench.run("job").by("nightly");
    let one = run().works_on().start();
    bench.until_noted("beat", "nightly", BUSY).await;
    run().with(&["--try"]).ends().await.assert(75, &[]);
    let other = run().works_for("0").start();
    bench.until_waiting(1).await;
    one.signal(Signal::TERM);
    one.ends(BUSY).await.assert(143, &[]);
    other.ends(BUSY).await.assert(0, &[]);
    // By their tokens: the names are the same.
    bench.assert_one_at_a_time();
    assert_eq!(bench.noted("start").len(), 2);
    bench.finish().await;
}
