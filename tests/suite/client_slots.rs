//! A semaphore: as many holders as it has slots, one queue, and no operator anywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use kube::api::ListParams;
use leasehold::client::AcquireError;
use leasehold::clock::MonoInstant;
use serde_json::json;
use tokio::time::timeout;

use super::proxy::{Fault, Proxy};
use super::run_bench::{self, BUSY, Bench, hold, until};
use super::server::within;

async fn max_holders(bench: &Bench, lock: &str, slots: i32) {
    bench.edit_lock(lock, json!({"maxHolders": slots})).await;
}

/// kubernetes-client/java#2431 and its like: never more holders than slots, and none of them waits while one is free.
#[tokio::test(flavor = "multi_thread")]
async fn never_more_hold_than_there_are_slots_and_all_are_served() {
    let bench = Bench::new().await;
    bench.opened_slots("three", 15, 3).await;
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let locks = bench.library().await;
    let jobs = (0..12).map(|number| {
        let (locks, inside, most) = (locks.clone(), inside.clone(), most.clone());
        tokio::spawn(async move {
            let guard = hold(&locks, "three", &format!("job-{number}")).await;
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let all_used = async {
                while most.load(Ordering::SeqCst) < 3 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            within(BUSY, "all slots are used at once", all_used).await;
            // Time for a fourth to come in, if that can be.
            tokio::time::sleep(Duration::from_millis(150)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            let grant = (guard.slot(), guard.token().get());
            guard.release().await.unwrap();
            grant
        })
    });
    let grants: Vec<_> = join_all(jobs)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(
        most.load(Ordering::SeqCst),
        3,
        "no more hold than there are slots"
    );
    for slot in 0..3 {
        let mut tokens: Vec<_> = grants.iter().filter(|grant| grant.0 == slot).collect();
        let count = tokens.len();
        tokens.sort_unstable();
        tokens.dedup();
        assert!(count > 0 && tokens.len() == count, "{grants:?}");
    }
    bench.until_waiting(0).await;
    bench.finish().await;
}

/// The head of the queue takes whichever comes free first, though the other is held for an hour; then the next one.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_are_served_in_order_by_whichever_slot_comes_free() {
    let bench = Bench::new().await;
    bench.opened_slots("two", 60, 2).await;
    let proxy = Proxy::new(&bench).await;
    let locks = bench.library().await;
    let long = hold(&locks, "two", "long").await;
    let mut short = hold(&locks, "two", "short").await;
    assert_eq!((long.slot(), short.slot()), (0, 1));
    let mut waiters = vec![];
    for number in 0..3 {
        let name = format!("w{number}");
        waiters.push(proxy.locks().lock("two").claimant(&name).begin());
        bench.until_waiting(number + 1).await;
    }
    bench.until_named("two").await;
    let began = MonoInstant::now();
    let mut last = short.token();
    for mut waiter in waiters {
        short.release().await.unwrap();
        short = within(BUSY, "it is served", waiter.outcome())
            .await
            .unwrap();
        assert_eq!(short.slot(), 1);
        assert!(short.token() > last);
        last = short.token();
    }
    let took = MonoInstant::now().saturating_duration_since(began);
    assert!(
        took < Duration::from_secs(10),
        "by watch, not by slow beats: {took:?}"
    );
    short.release().await.unwrap();
    bench.until_waiting(0).await;
    assert_eq!(bench.lease("two").await.next, None);
    long.release().await.unwrap();
    proxy.assert_guarded();
    bench.finish().await;
}

/// Everybody but the head watches slot 0 alone.
#[tokio::test(flavor = "multi_thread")]
async fn only_whose_turn_it_is_watches_every_slot() {
    let bench = Bench::new().await;
    bench.opened_slots("watched", 60, 3).await;
    let locks = bench.library().await;
    let mut holders = vec![];
    for number in 0..3 {
        holders.push(hold(&locks, "watched", &format!("h{number}")).await);
    }
    let watched = |proxy: &Proxy| {
        let calls = proxy.calls().into_iter();
        let mut names: Vec<_> = calls
            .filter(|call| call.verb == "watch")
            .map(|call| call.name)
            .collect();
        names.sort();
        names.dedup();
        names
    };
    let (first, second) = (Proxy::new(&bench).await, Proxy::new(&bench).await);
    let head = first.locks().lock("watched").claimant("head").begin();
    until("the head watches", BUSY, async || {
        watched(&first).len() == 3
    })
    .await;
    let other = second.locks().lock("watched").claimant("other").begin();
    second.until_watching().await;
    assert_eq!(watched(&second), ["watched"]);
    head.withdraw().await;
    until("it is the other's turn", BUSY, async || {
        watched(&second).len() == 3
    })
    .await;
    other.withdraw().await;
    for guard in holders {
        guard.release().await.unwrap();
    }
    bench.finish().await;
}

/// Slot 0 is held for long, slot 1 is free, and whose turn it is has died: the living one behind finds out by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_head_does_not_keep_a_free_slot_from_the_living() {
    let bench = Bench::new().await;
    bench.opened_slots("dead", 5, 2).await;
    let locks = bench.library().await;
    let long = hold(&locks, "dead", "long").await;
    let dead = bench.claim_of_nobody("dead-1", "dead").await;
    let named = format!("dead-1/{}", dead.metadata.uid.unwrap());
    bench
        .edit_lease(
            "dead",
            json!({"metadata": {"annotations": {"leasehold.dev/next": named}}}),
        )
        .await;
    let began = MonoInstant::now();
    let guard = hold(&locks, "dead", "living").await;
    let took = MonoInstant::now().saturating_duration_since(began);
    assert_eq!(guard.slot(), 1);
    // A slow beat (5 s, and up to a quarter more), then two seconds.
    assert!(took < Duration::from_secs(12), "{took:?}");
    guard.release().await.unwrap();
    long.release().await.unwrap();
    bench.finish().await;
}

/// Lowered live: nobody is evicted, and the slot above the limit is not taken again; raised again, it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_limit_evicts_nobody_and_a_raised_one_serves_who_waits() {
    let bench = Bench::new().await;
    bench.opened_slots("live", 5, 2).await;
    let locks = bench.library().await;
    let (a, b) = (
        hold(&locks, "live", "a").await,
        hold(&locks, "live", "b").await,
    );
    max_holders(&bench, "live", 1).await;
    let mut waiter = locks.lock("live").claimant("waiter").begin();
    bench.until_waiting(1).await;
    assert!(b.is_held() && b.slot() == 1);
    b.release().await.unwrap();
    let tried = locks.lock("live").claimant("tries").try_acquire().await;
    assert!(matches!(tried, Err(AcquireError::Busy(_))), "{tried:?}");
    assert!(bench.lease("live.1").await.is_free());
    max_holders(&bench, "live", 2).await;
    let c = within(BUSY, "on its slow beat", waiter.outcome())
        .await
        .unwrap();
    assert_eq!(c.slot(), 1);
    assert!(a.is_held());
    for guard in [a, c] {
        guard.release().await.unwrap();
    }
    bench.finish().await;
}

/// A take of slot 1 is applied, its answer lost: the slot is not stranded, and no second one is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_whose_answer_is_lost_is_settled_on_its_slot() {
    let bench = Bench::new().await;
    bench.opened_slots("lost", 15, 2).await;
    let first = hold(&bench.library().await, "lost", "first").await;
    let proxy = Proxy::new(&bench).await;
    proxy.fault("update", "leases", 1, Fault::CommitThenDrop);
    let second = hold(&proxy.locks(), "lost", "second").await;
    assert_eq!(second.slot(), 1);
    assert_eq!(bench.lease("lost.1").await.spec.holder, second.identity());
    first.release().await.unwrap();
    assert!(bench.lease("lost").await.is_free());
    second.release().await.unwrap();
    assert!(bench.lease("lost.1").await.is_free());
    proxy.assert_guarded();
    bench.finish().await;
}

/// Whichever call of a take of another slot than 0 is delayed, refused, lost or not answered, the write that then moves
/// `next` included: the one behind is served, and nobody holds what he does not know of.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_any_call_of_a_take_of_another_slot_strands_nobody() {
    let bench = Bench::new().await;
    bench.opened_slots("two", 5, 2).await;
    let library = bench.library().await;
    let _first = hold(&library, "two", "first").await;
    let mut faults = vec![
        Fault::CommitThenDrop,
        Fault::CommitThen(504),
        Fault::Refuse(503),
    ];
    if run_bench::long() {
        faults.push(Fault::Hang);
    }
    for (index, fault) in faults.iter().cycle().cloned().enumerate() {
        let when = format!("with {fault:?} at call {index}");
        let second = hold(&library, "two", "second").await;
        assert_eq!(second.slot(), 1, "{when}");
        let proxy = Proxy::new(&bench).await;
        proxy.fault("*", "*", index, Fault::Pass);
        proxy.fault("*", "*", 1, fault);
        let asked = proxy.locks().lock("two").claimant("waiter");
        let mut waiter = asked.wait(Duration::from_secs(8)).begin();
        let joined = async |who: &str| {
            let claims = bench.claims().list(&ListParams::default()).await.unwrap();
            let mut names = claims.iter().map(|claim| claim.spec.claimant.as_deref());
            names.any(|name| name == Some(who))
        };
        let behind = async {
            // Whom the fault keeps from the queue for long comes after.
            let first = until(&when, BUSY, async || joined("waiter").await);
            let _ = timeout(Duration::from_secs(2), first).await;
            let asked = library.lock("two").claimant("behind").begin();
            until(&when, BUSY, async || joined("behind").await).await;
            second.release().await.unwrap();
            asked
        };
        let (outcome, mut behind) = tokio::join!(waiter.outcome(), behind);
        let had = outcome.is_ok();
        if let Ok(guard) = outcome {
            let lease = bench.lease("two.1").await;
            assert_eq!(guard.slot(), 1, "{when}");
            assert_eq!(lease.spec.holder, guard.identity(), "{when}");
            assert_eq!(lease.current_token(), Some(guard.token()), "{when}");
            // What is left of the fault may hit the release: then the lease ends by itself.
            let _ = guard.release().await;
        }
        let guard = within(BUSY, &when, behind.outcome()).await.unwrap();
        guard.release().await.unwrap();
        until(&format!("no claim is left {when}"), BUSY, async || {
            bench.waiting().await == 0
        })
        .await;
        if proxy.calls().len() <= index {
            assert!(had && index > 10, "{when}: without a fault it is had");
            break;
        }
    }
    bench.finish().await;
}
