//! Where the parts of the client library meet: found while attacking it, each failed before it was mended.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use leasehold::client::{Acquire, AcquireError, Acquiring, Guard, LossReason};
use leasehold::clock::{BootInstant, MonoInstant};
use serde_json::json;

use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, hold, until};
use super::server::within;

/// fabric8io/kubernetes-client#7160: the duration is edited down while a healthy holder holds. It counts from the next
/// renewal; the holder is not to lose the lock by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_shortened_duration_costs_no_holder_its_lock() {
    let bench = Bench::new().await;
    bench.opened("shorter", 20).await;
    let proxy = Proxy::new(&bench).await;
    let guard = hold(&proxy.locks(), "shorter", "a").await;
    bench
        .edit_lock("shorter", json!({"leaseDurationSeconds": 2}))
        .await;
    until("the lease is short", 2 * BUSY, async || {
        bench.lease("shorter").await.spec.duration_seconds == Some(2) || !guard.is_held()
    })
    .await;
    proxy.more_puts(3).await;
    assert!(guard.is_held());
    assert_eq!(bench.lease("shorter").await.spec.holder, guard.identity());
    guard.release().await.unwrap();
    proxy.assert_guarded();
    bench.finish().await;
}

/// The renewal that carries the shorter duration is on its way, and perhaps applied: whoever guards the work must know
/// the nearer deadlines by then, not when it is answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_deadline_is_told_before_the_renewal_that_makes_it_so() {
    let bench = Bench::new().await;
    bench.opened("nearer", 20).await;
    let proxy = Proxy::new(&bench).await;
    let guard = hold(&proxy.locks(), "nearer", "a").await;
    // Answers come, but late.
    proxy.always(
        "update",
        "leases",
        Fault::DelayAnswer(Duration::from_millis(400)),
    );
    bench
        .edit_lock("nearer", json!({"leaseDurationSeconds": 4}))
        .await;
    let is_short = || {
        let mut puts = proxy.puts().into_iter();
        puts.any(|put| put.body["spec"]["leaseDurationSeconds"] == 4)
    };
    until("it is on its way", 2 * BUSY, async || is_short()).await;
    let left = guard
        .deadlines()
        .map(|at| at.renew.saturating_duration_since(BootInstant::now()));
    assert!(
        left.is_some_and(|left| left < Duration::from_secs(4)),
        "{left:?}"
    );
    proxy.heal();
    proxy.more_puts(2).await;
    assert!(guard.is_held());
    drop(guard);
    bench.finish().await;
}

/// The floor was raised above the token, and there is no operator to revoke it.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_below_the_floor_stops_without_an_operator() {
    let bench = Bench::new().await;
    bench.opened("floor", 2).await;
    let proxy = Proxy::new(&bench).await;
    let guard = hold(&proxy.locks(), "floor", "a").await;
    let floor = guard.token().get() + 1;
    bench
        .edit_lock("floor", json!({"minFencingToken": floor}))
        .await;
    assert_eq!(
        within(BUSY, "it stops", guard.lost()).await,
        LossReason::Revoked
    );
    bench.finish().await;
}

/// The claim is made, its answer lost, and the look for it fails too: it is not made a second time under another name,
/// where the first one would be a dead head of the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_is_lost_is_not_made_twice() {
    let bench = Bench::new().await;
    bench.opened("twice", 15).await;
    let holder = bench.hold("twice", "holder").await;
    let proxy = Proxy::new(&bench).await;
    proxy.fault("create", "lockclaims", 1, Fault::CommitThenDrop);
    proxy.fault("get", "lockclaims", 1, Fault::Refuse(503));
    let waiter = tokio::spawn(proxy.locks().lock("twice").claimant("waiter").acquire());
    bench.until_named("twice").await;
    assert_eq!(bench.waiting().await, 1);
    holder.release().await.unwrap();
    let guard = within(BUSY, "it is served", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    bench.until_waiting(0).await;
    bench.finish().await;
}

/// The same, and the caller goes away meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_is_lost_does_not_stay_behind() {
    let bench = Bench::new().await;
    bench.opened("behind", 15).await;
    let holder = bench.hold("behind", "holder").await;
    let proxy = Proxy::new(&bench).await;
    proxy.fault("create", "lockclaims", 1, Fault::CommitThenDrop);
    proxy.always("get", "lockclaims", Fault::Refuse(503));
    let waiter = proxy.locks().lock("behind").claimant("waiter").begin();
    bench.until_waiting(1).await;
    drop(waiter);
    proxy.heal();
    bench.until_waiting(0).await;
    holder.release().await.unwrap();
    bench.finish().await;
}

/// The same, and before it is settled the lock can be had without a claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_is_lost_goes_also_when_the_lock_is_had_without_it() {
    let bench = Bench::new().await;
    bench.opened("needless", 2).await;
    let holder = bench.hold("needless", "holder").await;
    let proxy = Proxy::new(&bench).await;
    proxy.fault("create", "lockclaims", 1, Fault::CommitThenDrop);
    proxy.always("get", "lockclaims", Fault::Refuse(503));
    let waiter = tokio::spawn(proxy.locks().lock("needless").claimant("waiter").acquire());
    bench.until_waiting(1).await;
    holder.release().await.unwrap();
    let guard = within(BUSY, "it has the lock", waiter).await.unwrap();
    proxy.heal();
    bench.until_waiting(0).await;
    guard.unwrap().release().await.unwrap();
    bench.finish().await;
}

/// A list of claims shows that its own waits no longer, and the look at why fails: it is looked at again, and no second
/// claim is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_refused_is_read_until_it_tells_why() {
    let bench = Bench::new().await;
    bench.opened("full", 60).await;
    let holder = bench.hold("full", "holder").await;
    let proxy = Proxy::new(&bench).await;
    let mut waiter = proxy.locks().lock("full").claimant("waiter").begin();
    bench.until_named("full").await;
    let named = bench.lease("full").await.next.unwrap();
    let refused = json!({"status": {"phase": "Rejected", "conditions": [{
        "type": "Granted", "status": "False", "reason": "QueueFull", "message": "too many wait",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    let (params, refused) = (PatchParams::default(), Patch::Merge(refused));
    let claims = bench.claims();
    claims
        .patch_status(&named.name, &params, &refused)
        .await
        .unwrap();
    proxy.fault("get", "lockclaims", 2, Fault::Refuse(503));
    // It lists the claims, since it is nobody's turn.
    let nobody = json!({"metadata": {"annotations": {"leasehold.dev/next": null}}});
    bench.edit_lease("full", nobody).await;
    let outcome = within(BUSY, "it is told", waiter.outcome()).await;
    assert!(
        matches!(&outcome, Err(AcquireError::Rejected { message, .. }) if message == "too many wait"),
        "{outcome:?}"
    );
    let calls = proxy.calls().into_iter();
    let made = calls.filter(|call| (call.verb, &call.resource[..]) == ("create", "lockclaims"));
    assert_eq!(made.count(), 1);
    bench.until_waiting(0).await;
    holder.release().await.unwrap();
    bench.finish().await;
}

/// A waiter behind a holder, both of `lock`, whose calls pass `proxy` and whose watch is open.
async fn waiter(bench: &Bench, proxy: &Proxy, lock: &str) -> (Guard, Waiter) {
    bench.opened(lock, 5).await;
    let holder = bench.hold(lock, "holder").await;
    let waiter = tokio::spawn(proxy.locks().lock(lock).claimant("waiter").acquire());
    proxy.until_watching().await;
    (holder, waiter)
}

type Waiter = tokio::task::JoinHandle<Result<Guard, AcquireError>>;

/// An API server that has just started forbids everything until it knows the roles.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_survives_a_moment_in_which_all_is_forbidden() {
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    let (holder, waiter) = waiter(&bench, &proxy, "moment").await;
    let before = proxy.calls().len();
    proxy.fault("*", "*", 5, Fault::Refuse(403));
    // It looks on its slow beat, and soon again when that is refused.
    let asked = || proxy.calls().split_off(before);
    until("it was refused five times", 2 * BUSY, async || {
        assert!(!waiter.is_finished(), "it has given up: {:#?}", asked());
        asked().len() >= 5
    })
    .await;
    let refused = &asked()[..5];
    assert!(refused.iter().all(|call| call.code.is_none()));
    let lasted = refused[4].at.saturating_duration_since(refused[0].at);
    assert!(lasted > Duration::from_secs(3), "{lasted:?}");
    assert_eq!(bench.waiting().await, 1);
    holder.release().await.unwrap();
    let guard = within(BUSY, "it is served", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    bench.finish().await;
}

/// One access is refused for good, all others are not, and the watch goes on telling of renewals.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_lost_a_right_says_so_within_ten_seconds() {
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    let (holder, waiter) = waiter(&bench, &proxy, "right").await;
    let before = proxy.calls().len();
    proxy.always("get", "distributedlocks", Fault::Refuse(403));
    let outcome = within(2 * BUSY, "it gives up", waiter).await.unwrap();
    let given_up = MonoInstant::now();
    assert!(
        matches!(outcome, Err(AcquireError::Forbidden(_))),
        "{outcome:?}"
    );
    let calls = proxy.calls().split_off(before).into_iter();
    let refused: Vec<_> = calls
        .filter(|call| call.resource == "distributedlocks")
        .collect();
    let took = given_up.saturating_duration_since(refused[0].at);
    // With jitter and one repetition more 8 s; the machine may be busy.
    let bounds = Duration::from_secs(5)..Duration::from_secs(10);
    assert!(bounds.contains(&took), "{took:?}");
    assert!(refused.len() >= 6, "{refused:#?}");
    bench.until_waiting(0).await;
    assert!(holder.is_held());
    holder.release().await.unwrap();
    bench.finish().await;
}

/// hashicorp/consul#4439: whoever goes away does not wait for a server that does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawal_does_not_wait_for_a_read_that_hangs() {
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    proxy.always("*", "*", Fault::Hang);
    let asked = proxy.locks().lock("hung").claimant("a").begin();
    until("it has asked", BUSY, async || !proxy.calls().is_empty()).await;
    let began = MonoInstant::now();
    asked.withdraw().await;
    let took = MonoInstant::now().saturating_duration_since(began);
    // A call may take 10 s.
    assert!(took < Duration::from_secs(6), "{took:?}");
    bench.finish().await;
}

/// The same from the queue, of a lock whose lease lasts an hour: a claim is not worth so long a wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawal_from_the_queue_does_not_take_a_lease_duration() {
    let bench = Bench::new().await;
    bench.opened("hour", 3600).await;
    let holder = bench.hold("hour", "holder").await;
    let proxy = Proxy::new(&bench).await;
    let asked = proxy.locks().lock("hour").claimant("waiter").begin();
    bench.until_named("hour").await;
    proxy.always("*", "*", Fault::Hang);
    let began = MonoInstant::now();
    within(2 * BUSY, "it has left", asked.withdraw()).await;
    let took = MonoInstant::now().saturating_duration_since(began);
    assert!(took < Duration::from_secs(25), "{took:?}");
    holder.release().await.unwrap();
    bench.finish().await;
}

/// Somebody who waits for a lock of a silent holder, which has this Lease, and whose take was sent and did not arrive;
/// before it can look again, a person has set onHolderLost: Hold.
async fn overtaken_by_hold(bench: &Bench, proxy: &Proxy, lease: &str, asked: Acquire) -> Acquiring {
    let dead = json!({"spec": {"holderIdentity": "dead/9", "leaseDurationSeconds": 3}});
    bench.edit_lease(lease, dead).await;
    // It names itself; then its take does not arrive.
    proxy.fault("update", "leases", 1, Fault::Pass);
    proxy.fault("update", "leases", 1, Fault::Hang);
    let waiter = asked.begin();
    until("its take is sent", BUSY, async || proxy.puts().len() == 2).await;
    proxy.always("get", "leases", Fault::Refuse(503));
    let lock = lease.trim_end_matches(".1");
    bench.edit_lock(lock, json!({"onHolderLost": "Hold"})).await;
    proxy.heal();
    waiter
}

/// R3: a take of a silent holder that was not answered is sent again only as the lock then says.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_of_a_silent_holder_is_not_sent_again_under_a_hold_that_was_set_meanwhile() {
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    bench.opened("kept", 3).await;
    let asked = proxy.locks().lock("kept").claimant("waiter");
    let mut waiter = overtaken_by_hold(&bench, &proxy, "kept", asked).await;
    let before = proxy.calls().len();
    let looks = || {
        let calls = proxy.calls().split_off(before).into_iter();
        let looks = calls.filter(|call| call.resource == "distributedlocks");
        looks.filter(|call| call.code.is_some()).count()
    };
    tokio::select! {
        granted = waiter.outcome() => panic!("{granted:?}"),
        // Once before it would send it again, after which it settles it and names itself anew; then on the slow beat.
        () = until("it has looked at the lock twice", 2 * BUSY, async || looks() > 1) => {}
    }
    assert_eq!(bench.lease("kept").await.spec.holder, "dead/9");
    assert_eq!(proxy.puts().len(), 4);
    bench
        .edit_lock("kept", json!({"onHolderLost": "Release"}))
        .await;
    let guard = within(2 * BUSY, "it takes after all", waiter.outcome()).await;
    guard.unwrap().release().await.unwrap();
    proxy.assert_guarded();
    bench.finish().await;
}

/// The same of the second slot: once the first one is free, it is as good.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_must_not_be_sent_again_keeps_nobody_from_another_slot() {
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    bench.opened_slots("two", 3, 2).await;
    let first = hold(&bench.library().await, "two", "first").await;
    let asked = proxy.locks().lock("two").claimant("waiter");
    let mut waiter = overtaken_by_hold(&bench, &proxy, "two.1", asked).await;
    until("no attempt can be applied any more", BUSY, async || {
        bench.lease("two.1").await.next.is_some()
    })
    .await;
    first.release().await.unwrap();
    let guard = within(BUSY, "it takes the first slot", waiter.outcome()).await;
    let guard = guard.unwrap();
    assert_eq!(guard.slot(), 0);
    assert_eq!(bench.lease("two.1").await.spec.holder, "dead/9");
    guard.release().await.unwrap();
    proxy.assert_guarded();
    bench.finish().await;
}

/// The same, and the wait is over: by leaving the queue it settles what it sent.
#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_with_a_take_open_that_must_not_be_sent_again_settles_it_by_leaving() {
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    bench.opened("left", 3).await;
    let asked = proxy.locks().lock("left").claimant("waiter");
    let asked = asked.wait(Duration::from_secs(12));
    let mut waiter = overtaken_by_hold(&bench, &proxy, "left", asked).await;
    let outcome = within(2 * BUSY, "it gives up", waiter.outcome()).await;
    assert!(
        matches!(outcome, Err(AcquireError::TimedOut(_))),
        "{outcome:?}"
    );
    let lease = bench.lease("left").await;
    assert_eq!((lease.spec.holder.as_str(), lease.next), ("dead/9", None));
    bench.until_waiting(0).await;
    proxy.assert_guarded();
    bench.finish().await;
}

/// A proxy on the way sends the take twice, and passes on the answer to the second: the conflict is with its own write.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_a_proxy_repeats_is_had() {
    let bench = Bench::new().await;
    for (lock, wait) in [("tried", Duration::ZERO), ("waited", BUSY)] {
        bench.opened(lock, 20).await;
        bench.edit_lock(lock, json!({"onHolderLost": "Hold"})).await;
        let proxy = Proxy::new(&bench).await;
        proxy.fault("update", "leases", 1, Fault::CommitThen(409));
        let asked = proxy.locks().lock(lock).claimant("a").wait(wait);
        let guard = within(BUSY, "it is had", asked.acquire()).await;
        let guard = guard.expect("it is free, and nobody else wants it");
        assert_eq!(bench.lease(lock).await.spec.holder, guard.identity());
        assert!(guard.is_held());
        // The take, and a renewal that proves since when.
        assert_eq!(proxy.puts().len(), 2, "{lock}");
        guard.release().await.unwrap();
    }
    bench.finish().await;
}
