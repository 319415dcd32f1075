//! Many at once on one lock: one gets it; they neither poll nor come back in step; a hand-over costs the same for few and
//! many.
//!
//! hashicorp/consul#9469, Kong/kubernetes-ingress-controller#3124.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::{join_all, select_all};
use leasehold::client::{AcquireError, Acquiring, Guard};
use leasehold::clock::MonoInstant;

use super::proxy::{Call, Proxy};
use super::run_bench::{BUSY, Bench, long, until};
use super::server::within;

/// What a busy machine may need for two hundred who list one another.
const PATIENCE: Duration = Duration::from_mins(5);

/// A lock that is held, and so many who wait for it, each in the queue and with its watch open.
async fn crowd(bench: &Bench, proxy: &Proxy, lock: &str, count: usize) -> (Guard, Vec<Acquiring>) {
    bench.opened(lock, 60).await;
    let holder = bench.hold(lock, "holder").await;
    let locks = proxy.locks();
    let before = lists(&proxy.calls());
    let waiters = (0..count).map(|number| {
        let request = locks.lock(lock).claimant(&format!("w{number}"));
        request.begin()
    });
    let waiters: Vec<_> = waiters.collect();
    until("all watch", PATIENCE, async || {
        lists(&proxy.calls()) >= before + count
    })
    .await;
    assert_eq!(bench.waiting().await, count);
    (holder, waiters)
}

/// The guard of whoever of them has the lock next.
async fn next_of(waiters: &mut Vec<Acquiring>) -> Guard {
    let asked = waiters.iter_mut().map(|waiter| Box::pin(waiter.outcome()));
    let (guard, at, others) = select_all(asked).await;
    drop(others);
    drop(waiters.remove(at));
    guard.unwrap()
}

/// Each waiter's watch begins with a list, once; watches begin again now and then.
fn lists(calls: &[Call]) -> usize {
    let leases = calls.iter().filter(|call| call.resource == "leases");
    leases
        .filter(|call| call.verb == "list" && call.code == Some(200))
        .count()
}

fn watches(calls: &[Call]) -> usize {
    calls.iter().filter(|call| call.verb == "watch").count()
}

/// The API server goes and comes back: nobody loses its place, and they do not come back all at once.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_a_server_that_restarts_come_back_one_by_one() {
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    let count = if long() { 200 } else { 60 };
    let (holder, mut waiters) = crowd(&bench, &proxy, "herd", count).await;
    let before = proxy.calls().len();
    let began = MonoInstant::now();
    proxy.go_down();
    tokio::time::sleep(Duration::from_secs(3)).await;
    proxy.come_up();
    until("all watch again", PATIENCE, async || {
        watches(&proxy.calls()[before..]) >= waiters.len()
    })
    .await;
    let calls = proxy.calls().split_off(before);
    let mut buckets = BTreeMap::<u128, usize>::new();
    for call in &calls {
        let at = call.at.saturating_duration_since(began).as_millis() / 100;
        *buckets.entry(at).or_default() += 1;
    }
    let most = *buckets.values().max().unwrap();
    // Without any pause nearly all are in one; on a machine that stalls for a moment some tenths fall into one.
    assert!(
        most * 4 <= calls.len(),
        "{most} of {} in one tenth of a second: {buckets:?}",
        calls.len()
    );
    // They kept their places.
    assert_eq!(bench.waiting().await, count);
    holder.release().await.unwrap();
    let next = within(BUSY, "the first one is served", next_of(&mut waiters)).await;
    next.release().await.unwrap();
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_costs_as_many_requests_for_many_waiters_as_for_few() {
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    let mut costs = Vec::new();
    for (lock, count) in [("few", 4), ("many", if long() { 200 } else { 40 })] {
        let joined = MonoInstant::now();
        let (mut guard, mut waiters) = crowd(&bench, &proxy, lock, count).await;
        bench.until_named(lock).await;
        let before = proxy.calls().len();
        for _ in 0..3 {
            guard.release().await.unwrap();
            guard = within(BUSY, "the next one has it", next_of(&mut waiters)).await;
        }
        guard.release().await.unwrap();
        // Watches begin again, whatever happens.
        let mut asked = BTreeMap::<_, usize>::new();
        for call in proxy.calls().split_off(before) {
            if call.verb != "watch" {
                *asked.entry((call.verb, call.resource)).or_default() += 1;
            }
        }
        // The slow beat, 30 s less a quarter here, reads lock, Lease and claim of each: where the crowd took that long.
        let waited = MonoInstant::now().saturating_duration_since(joined);
        let beats = waited.as_millis() / 22_500;
        let by_beats = 3 * count * usize::try_from(beats).unwrap();
        costs.push((asked, by_beats));
    }
    let [(few, _), (many, by_beats)] = &costs[..] else {
        panic!("{costs:?}");
    };
    let sum = |asked: &BTreeMap<(&str, String), usize>, reads: bool| {
        let counted = asked
            .iter()
            .filter(|((verb, _), _)| (*verb == "get") == reads);
        counted.map(|(_, count)| count).sum::<usize>()
    };
    // A list, a take, a deletion and a release each.
    assert!(
        sum(many, false) <= sum(few, false) + 4 && sum(few, false) <= 3 * 8,
        "few: {few:?}, many: {many:?}"
    );
    assert!(
        sum(many, true) <= sum(few, true) + 3 + by_beats && sum(few, true) <= 3 * 4,
        "few: {few:?}, many: {many:?}, of which {by_beats} reads on the slow beat"
    );
    bench.finish().await;
}

/// kubereboot/kured#143: after a time-out every node believed that it owned the lock.
#[tokio::test(flavor = "multi_thread")]
async fn of_twenty_that_see_a_dead_holders_lease_end_one_takes() {
    let bench = Bench::new().await;
    let lock = bench.lock("expired", 2).await;
    bench.make_lease(&lock, "dead").await;
    bench.open_status(&lock, 2).await;
    let proxy = Proxy::new(&bench).await;
    let locks = proxy.locks();
    let candidates = (0..20).map(|number| {
        let asked = locks.lock("expired").claimant(&format!("c{number}"));
        asked.begin()
    });
    let mut waiters: Vec<_> = candidates.collect();
    let guard = within(BUSY, "one has it", next_of(&mut waiters)).await;
    let another = tokio::time::timeout(Duration::from_secs(2), next_of(&mut waiters)).await;
    assert!(another.is_err(), "{guard:?} and {another:?}");
    let lease = bench.lease("expired").await;
    assert_eq!(lease.spec.transitions, 1);
    assert_eq!(lease.spec.holder, guard.identity());
    assert_eq!(lease.current_token(), Some(guard.token()));
    drop(waiters);
    bench.until_waiting(0).await;
    guard.release().await.unwrap();

    // A free lock, and twenty who do not wait: the others hear that it is busy.
    bench.opened("free", 30).await;
    let tries = (0..20).map(|number| {
        let asked = locks.lock("free").claimant(&format!("c{number}"));
        asked.try_acquire()
    });
    let (won, refused): (Vec<_>, Vec<_>) =
        join_all(tries).await.into_iter().partition(Result::is_ok);
    for error in refused {
        assert!(matches!(error, Err(AcquireError::Busy(_))), "{error:?}");
    }
    assert_eq!(won.len(), 1, "{won:?}");
    assert_eq!(bench.lease("free").await.spec.transitions, 1);
    for guard in won {
        guard.unwrap().release().await.unwrap();
    }
    proxy.assert_guarded();
    bench.finish().await;
}
