//! Callers that go away in the middle: nothing is left behind, whatever the moment.

use std::time::Duration;

use leasehold::client::Locks;
use leasehold::clock::MonoInstant;
use tokio::time::timeout;

use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, hold, long, until};
use super::server::within;

fn some_ms(most: u64) -> Duration {
    Duration::from_millis(rand::random_range(0..most))
}

/// The retry period of a lease of 15 s.
const RETRY: Duration = Duration::from_secs(1);

/// Another client gets the lock, within a retry period and what a busy machine adds to it: after how long.
async fn is_to_be_had(other: &Locks, lock: &str, when: &str) -> Duration {
    let began = MonoInstant::now();
    let asked = other.lock(lock).claimant("other").acquire();
    let guard = within(RETRY + Duration::from_secs(7), when, asked).await;
    let took = MonoInstant::now().saturating_duration_since(began);
    guard.unwrap().release().await.unwrap();
    took
}

/// constructorfabric/gears-rust#4705: a time-out around `lock()`, and the lock was held by nobody until its lease ended.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_is_dropped_at_any_moment_leaves_nothing() {
    let bench = Bench::new().await;
    bench.opened("cut", 15).await;
    let proxy = Proxy::new(&bench).await;
    let (locks, other) = (proxy.locks(), bench.library().await);
    let rounds = if long() { 1000 } else { 60 };
    let mut slow = Vec::new();
    for round in 0..rounds {
        let fault = match round % 3 {
            0 => Fault::DelayRequest(some_ms(120)),
            1 => Fault::DelayAnswer(some_ms(120)),
            _ => Fault::CommitThenDrop,
        };
        proxy.fault("update", "leases", 1, fault);
        let cut = some_ms(150);
        let asked = locks.lock("cut").claimant("cut").acquire();
        if let Ok(guard) = timeout(cut, asked).await {
            // Had in time: then the release is cut.
            let _ = timeout(some_ms(50), guard.unwrap().release()).await;
        }
        let took = is_to_be_had(&other, "cut", &format!("round {round}, cut after {cut:?}")).await;
        if took > RETRY {
            slow.push((round, cut, took));
        }
        proxy.heal();
    }
    assert!(slow.len() * 10 <= rounds, "{slow:#?}");
    bench.until_waiting(0).await;
    proxy.assert_guarded();
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_is_dropped_leaves_the_queue() {
    let bench = Bench::new().await;
    bench.opened("queue", 15).await;
    let proxy = Proxy::new(&bench).await;
    let (locks, other) = (proxy.locks(), bench.library().await);
    let holder = hold(&other, "queue", "holder").await;
    for _ in 0..if long() { 200 } else { 20 } {
        let asked = locks.lock("queue").claimant("cut").acquire();
        assert!(timeout(some_ms(150), asked).await.is_err());
    }
    bench.until_waiting(0).await;
    holder.release().await.unwrap();
    is_to_be_had(&other, "queue", "after all have left").await;
    // Who was named has moved `next` on.
    assert_eq!(bench.lease("queue").await.next, None);
    bench.finish().await;
}

/// Granted, and withdrawn before anybody asked for the outcome: the process may end right after.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawal_that_meets_the_grant_waits_until_it_is_given_back() {
    let bench = Bench::new().await;
    bench.opened("met", 15).await;
    let proxy = Proxy::new(&bench).await;
    let release_late = || {
        proxy.fault("update", "leases", 1, Fault::Pass);
        let late = Fault::DelayRequest(Duration::from_millis(500));
        proxy.fault("update", "leases", 1, late);
    };
    // Whoever keeps the grant watches the Lease.
    let kept = async |watches: usize| {
        until("it is kept", BUSY, async || {
            let calls = proxy.calls().into_iter();
            calls.filter(|call| call.verb == "watch").count() == watches
        })
        .await;
    };
    release_late();
    let one = proxy.locks().lock("met").begin();
    kept(1).await;
    one.withdraw().await;
    assert!(bench.lease("met").await.is_free());
    release_late();
    let all = leasehold::client::all([proxy.locks().lock("met")]).begin();
    kept(2).await;
    all.withdraw().await;
    assert!(bench.lease("met").await.is_free());
    bench.finish().await;
}

/// A guard that is dropped gives the lock back too.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_is_dropped_is_given_back() {
    let bench = Bench::new().await;
    bench.opened("dropped", 15).await;
    let locks = bench.library().await;
    let guard = locks.lock("dropped").acquire().await.unwrap();
    let token = guard.token();
    drop(guard);
    let next = locks.lock("dropped").acquire();
    let next = within(Duration::from_secs(8), "the next one has it", next)
        .await
        .unwrap();
    assert!(next.token() > token);
    drop(next);
    until("it is free", BUSY, async || {
        bench.lease("dropped").await.is_free()
    })
    .await;
    bench.finish().await;
}

/// A shutdown while waiting and while holding: the process ends, the lease does the rest.
#[test]
fn a_runtime_that_ends_under_a_guard_says_so() {
    let outer = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let bench = outer.block_on(async {
        let bench = Bench::new().await;
        bench.opened("shutdown", 2).await;
        bench
    });
    let inner = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let (guard, mut waiting) = inner.block_on(async {
        let locks = bench.library().await;
        let guard = locks.lock("shutdown").acquire().await.unwrap();
        (guard, locks.lock("shutdown").begin())
    });
    inner.shutdown_timeout(Duration::from_secs(5));
    outer.block_on(async {
        let outcome = within(BUSY, "the waiter ends", waiting.outcome()).await;
        assert!(outcome.is_err(), "{outcome:?}");
        within(BUSY, "the loss is told", guard.lost()).await;
        assert!(guard.release().await.is_err());
        let next = bench.library().await.lock("shutdown").acquire().await;
        next.unwrap().release().await.unwrap();
        bench.finish().await;
    });
}
