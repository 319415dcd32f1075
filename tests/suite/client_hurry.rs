//! A server that refuses the same again and again, or changes nothing: whoever asks for a lock goes on, but not as fast
//! as it is answered.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use leasehold::client::AcquireError;
use leasehold::clock::MonoInstant;
use serde_json::json;

use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, hold, until};
use super::server::within;

/// How long is looked on. With pauses that double from 0.1 to 0.2 s there is room for six or seven attempts.
const LOOK: Duration = Duration::from_secs(6);

/// How many calls of this verb come by, while is looked on from the first one.
async fn come_by(proxy: &Proxy, verb: &str, resource: &str) -> usize {
    let count = || {
        let calls = proxy.calls().into_iter();
        calls
            .filter(|call| call.verb == verb && call.resource == resource)
            .count()
    };
    until("it is asked for", BUSY, async || count() > 0).await;
    tokio::time::sleep(LOOK).await;
    count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_is_refused_for_ever_is_not_hurried() {
    let bench = Bench::new().await;
    let mut tests = Vec::new();
    for (lock, fault) in [
        ("conflict", Fault::Refuse(409)),
        ("gone", Fault::Refuse(404)),
        ("unchanged", Fault::ChangeNothing),
        ("broken", Fault::Refuse(500)),
        ("busy", Fault::RefuseFor(429, 1)),
    ] {
        bench.opened(lock, 60).await;
        let proxy = Proxy::new(&bench).await;
        proxy.always("update", "leases", fault);
        tests.push(async move {
            let mut waiter = proxy.locks().lock(lock).claimant("a").begin();
            let puts = come_by(&proxy, "update", "leases").await;
            assert!(
                (1..=12).contains(&puts),
                "{lock}: {puts} writes in {LOOK:?}"
            );
            proxy.heal();
            let guard = within(BUSY, "it has the lock", waiter.outcome()).await;
            guard.unwrap().release().await.unwrap();
            proxy.assert_guarded();
        });
    }
    futures::future::join_all(tests).await;
    bench.finish().await;
}

/// Who only tries has an answer in good time: after five seconds, and one lease where the take may still be applied.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_whose_take_is_refused_for_ever_ends() {
    let bench = Bench::new().await;
    bench.opened("tried", 3).await;
    for fault in [Fault::Refuse(409), Fault::ChangeNothing] {
        let proxy = Proxy::new(&bench).await;
        proxy.always("update", "leases", fault);
        let tried = proxy.locks().lock("tried").claimant("a").try_acquire();
        let tried = within(BUSY, "an answer", tried).await;
        assert!(
            matches!(
                tried,
                Err(AcquireError::Unreachable(_) | AcquireError::Unsettled { .. })
            ),
            "{tried:?}"
        );
    }
    bench.finish().await;
}

/// Its claims go as soon as they are made: somebody cleans up, or refuses them without a word.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_go_again_and_again_are_not_made_in_a_hurry() {
    let bench = Bench::new().await;
    bench.opened("cleaned", 60).await;
    let holder = bench.hold("cleaned", "holder").await;
    let proxy = Proxy::new(&bench).await;
    proxy.always("list", "lockclaims", Fault::ListNothing);
    proxy.always("get", "lockclaims", Fault::Refuse(404));
    let waiter = proxy.locks().lock("cleaned").claimant("waiter").begin();
    let made = come_by(&proxy, "create", "lockclaims").await;
    assert!((1..=12).contains(&made), "{made} claims in {LOOK:?}");
    drop(waiter);
    holder.release().await.unwrap();
    bench.finish().await;
}

/// A list does not show what a read does: the server's cache is behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_no_list_shows_is_not_looked_for_in_a_hurry() {
    let bench = Bench::new().await;
    bench.opened("unlisted", 60).await;
    let holder = bench.hold("unlisted", "holder").await;
    let proxy = Proxy::new(&bench).await;
    proxy.always("list", "lockclaims", Fault::ListNothing);
    let mut waiter = proxy.locks().lock("unlisted").claimant("waiter").begin();
    let lists = come_by(&proxy, "list", "lockclaims").await;
    assert!((1..=12).contains(&lists), "{lists} lists in {LOOK:?}");
    assert_eq!(bench.waiting().await, 1);
    proxy.heal();
    holder.release().await.unwrap();
    let guard = within(BUSY, "it is served", waiter.outcome()).await;
    guard.unwrap().release().await.unwrap();
    bench.finish().await;
}

/// A waiter of whose claim it is open whether it still counts: a list did not show it, and no read of it is answered.
async fn in_doubt(bench: &Bench, proxy: &Proxy, lock: &'static str) -> leasehold::client::Guard {
    bench.opened(lock, 60).await;
    let holder = bench.hold(lock, "holder").await;
    proxy.always("get", "lockclaims", Fault::Refuse(503));
    proxy.always("list", "lockclaims", Fault::ListNothing);
    holder
}

async fn until_in_doubt(proxy: &Proxy) {
    until("its claim is in doubt", BUSY, async || {
        let calls = proxy.calls().into_iter();
        calls
            .filter(|call| (call.verb, &call.resource[..]) == ("get", "lockclaims"))
            .count()
            >= 2
    })
    .await;
}

/// Whatever was open when the caller went away, its claim goes too.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_in_doubt_goes_with_a_caller_that_is_dropped() {
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    let holder = in_doubt(&bench, &proxy, "doubtful").await;
    let asked = proxy.locks().lock("doubtful").claimant("waiter").acquire();
    let waiter = tokio::spawn(asked);
    until_in_doubt(&proxy).await;
    assert_eq!(bench.waiting().await, 1);
    // The first attempts to delete it fail as well.
    proxy.fault("delete", "lockclaims", 2, Fault::Refuse(503));
    waiter.abort();
    bench.until_waiting(0).await;
    let calls = proxy.calls().into_iter();
    let made = calls.filter(|call| (call.verb, &call.resource[..]) == ("create", "lockclaims"));
    assert_eq!(made.count(), 1);
    assert!(holder.is_held());
    holder.release().await.unwrap();
    bench.finish().await;
}

/// The deletion is refused for good: whoever leaves gives up after a while, and does not hurry meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_in_doubt_that_may_not_be_deleted_keeps_nobody_for_ever() {
    let bench = Bench::new().await;
    for fault in [Fault::Refuse(403), Fault::RefuseFor(429, 1)] {
        let proxy = Proxy::new(&bench).await;
        let lock = if matches!(fault, Fault::Refuse(_)) {
            "kept"
        } else {
            "busy"
        };
        let holder = in_doubt(&bench, &proxy, lock).await;
        let waiter = proxy.locks().lock(lock).claimant("waiter").begin();
        until_in_doubt(&proxy).await;
        proxy.always("delete", "lockclaims", fault);
        let began = MonoInstant::now();
        within(2 * BUSY, "it has left", waiter.withdraw()).await;
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!(took < Duration::from_secs(15), "{took:?}");
        let calls = proxy.calls().into_iter();
        let tried =
            calls.filter(|call| (call.verb, &call.resource[..]) == ("delete", "lockclaims"));
        let tried = tried.count();
        assert!((1..=15).contains(&tried), "{tried} deletions in {took:?}");
        holder.release().await.unwrap();
    }
    bench.finish().await;
}

/// A server that is too busy says when to come back: waiters keep to it, and a holder as far as its lease allows.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_told_when_to_come_back_does_not_come_earlier() {
    let bench = Bench::new().await;
    bench.opened("asked", 15).await;
    let proxy = Proxy::new(&bench).await;
    proxy.fault("get", "distributedlocks", 2, Fault::RefuseFor(429, 2));
    let guard = hold(&proxy.locks(), "asked", "a").await;
    let calls = proxy.calls().into_iter();
    let asked: Vec<_> = calls
        .filter(|call| (call.verb, &call.resource[..]) == ("get", "distributedlocks"))
        .map(|call| call.at)
        .collect();
    for pair in asked.windows(2).take(2) {
        let pause = pair[1].saturating_duration_since(pair[0]);
        assert!(pause >= Duration::from_secs(2), "{asked:?}");
    }
    // By itself it would try again after a second.
    let before = proxy.puts().len();
    proxy.fault("update", "leases", 2, Fault::RefuseFor(503, 2));
    until("it has renewed", 2 * BUSY, async || {
        proxy.puts().len() >= before + 3
    })
    .await;
    let puts = proxy.puts().split_off(before);
    let pause = puts[1].at.saturating_duration_since(puts[0].at);
    assert!(pause >= Duration::from_secs(2), "{pause:?}");
    assert!(guard.is_held());
    guard.release().await.unwrap();
    proxy.assert_guarded();
    bench.finish().await;
}

/// The first that goes may have been passed over, and is made again at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_finished_by_hand_is_made_again_at_once() {
    let bench = Bench::new().await;
    bench.opened("again", 60).await;
    let holder = bench.hold("again", "holder").await;
    let proxy = Proxy::new(&bench).await;
    let mut waiter = proxy.locks().lock("again").claimant("waiter").begin();
    bench.until_named("again").await;
    let named = bench.lease("again").await.next.unwrap();
    let over = Patch::Merge(json!({"status": {"phase": "TimedOut"}}));
    let params = PatchParams::default();
    let claims = bench.claims();
    claims
        .patch_status(&named.name, &params, &over)
        .await
        .unwrap();
    // It lists the claims, since it is nobody's turn.
    let nobody = json!({"metadata": {"annotations": {"leasehold.dev/next": null}}});
    bench.edit_lease("again", nobody).await;
    let edited = MonoInstant::now();
    let made = || {
        let calls = proxy.calls().into_iter();
        let made = calls.filter(|call| (call.verb, &call.resource[..]) == ("create", "lockclaims"));
        made.map(|call| call.at).collect::<Vec<_>>()
    };
    until("it has made another", BUSY, async || made().len() == 2).await;
    let took = made()[1].saturating_duration_since(edited);
    assert!(took < Duration::from_secs(6), "{took:?}");
    holder.release().await.unwrap();
    let guard = within(BUSY, "it is served", waiter.outcome()).await;
    guard.unwrap().release().await.unwrap();
    bench.finish().await;
}
