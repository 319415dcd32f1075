//! The client library behind a network that loses, delays and makes up answers.

use std::time::Duration;

use leasehold::client::{AcquireError, Guard, LossReason, Released};
use leasehold::clock::{BootInstant, MonoInstant};
use serde_json::json;

use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, hold, long, until};
use super::server::within;

/// What a loaded machine adds to a bound that the product promises.
const SLACK: Duration = Duration::from_secs(3);

/// Still the same grant, in the library and in the Lease.
async fn assert_kept(bench: &Bench, guard: &Guard) {
    assert!(guard.is_held());
    let lease = bench.lease(guard.lock()).await;
    assert_eq!(lease.spec.holder, guard.identity());
    assert_eq!(lease.current_token(), Some(guard.token()));
    assert_eq!(lease.spec.transitions, 1);
}

/// Waits until a renewal was answered, so that none is under way: the renew deadline, until which the next one has time.
async fn due_after_a_renewal(guard: &Guard) -> BootInstant {
    let before = guard.deadlines().unwrap();
    until("a renewal is answered", BUSY, async || {
        guard.deadlines() != Some(before)
    })
    .await;
    guard.deadlines().unwrap().renew
}

/// The loss is told at the renew deadline that was due before the fault; a machine that is late is late for both.
async fn lost_by(guard: &Guard, due: BootInstant, what: &str) -> LossReason {
    let told = async {
        let reason = within(BUSY, "the loss is told", guard.lost()).await;
        (reason, BootInstant::now())
    };
    let passed = async {
        tokio::time::sleep(due.saturating_duration_since(BootInstant::now())).await;
        BootInstant::now()
    };
    let ((reason, told), passed) = tokio::join!(told, passed);
    let late = told.saturating_duration_since(passed.max(due));
    assert!(late < Duration::from_millis(200), "{what}: {late:?} late");
    assert!(!guard.is_held(), "{what}");
    reason
}

/// akkadotnet/Akka.Management#3418: a lock that nobody took was lost after one slow renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_whose_answer_is_lost_costs_nothing() {
    let bench = Bench::new().await;
    for (lock, fault) in [
        ("dropped", Fault::CommitThenDrop),
        ("gateway", Fault::CommitThen(504)),
        ("slow", Fault::DelayAnswer(Duration::from_millis(700))),
        ("late", Fault::DelayRequest(Duration::from_millis(700))),
        ("unsent", Fault::Hang),
    ] {
        bench.opened(lock, 3).await;
        let proxy = Proxy::new(&bench).await;
        let guard = hold(&proxy.locks(), lock, "a").await;
        proxy.fault("update", "leases", 1, fault);
        proxy.more_puts(4).await;
        assert_kept(&bench, &guard).await;
        guard.release().await.unwrap();
        proxy.assert_guarded();
    }
    bench.finish().await;
}

/// kubernetes/kubernetes#65094, openconfig/gnmic#982: one call hangs, and the holder works on long after its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_accepts_and_never_answers_ends_the_hold_before_the_lease() {
    let bench = Bench::new().await;
    let seconds = if long() { 15 } else { 6 };
    bench.opened("hung", seconds).await;
    let proxy = Proxy::new(&bench).await;
    let guard = hold(&proxy.locks(), "hung", "a").await;
    let next = tokio::spawn({
        let asked = bench.library().await.lock("hung").claimant("b").acquire();
        async move { (asked.await.unwrap(), MonoInstant::now()) }
    });
    bench.until_waiting(1).await;
    let due = due_after_a_renewal(&guard).await;
    proxy.always("*", "*", Fault::Hang);
    proxy.swallow_open_connections();
    let answered = proxy.puts().into_iter().filter(|put| put.code == Some(200));
    let last = answered.map(|put| put.at).max().unwrap();

    let lease = Duration::from_secs(seconds.unsigned_abs().into());
    let left = due.saturating_duration_since(BootInstant::now());
    let since = MonoInstant::now().saturating_duration_since(last);
    // It counts from before that renewal was sent.
    assert!(left + since <= lease.mul_f64(0.8), "{left:?}, {since:?}");
    let reason = lost_by(&guard, due, "hung").await;
    let told = MonoInstant::now();
    assert_eq!(reason, LossReason::Unreachable);
    let took = told.saturating_duration_since(last);
    assert!(took < lease, "{took:?} after its last renewal");
    let (other, at) = within(BUSY * 2, "b gets the lock", next).await.unwrap();
    assert!(at > told);
    assert!(other.token() > guard.token());
    other.release().await.unwrap();
    drop(guard);
    bench.finish().await;
}

/// kubernetes/kubernetes#23731: renewals were refused, and "stopped" was never called.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_that_are_refused_end_the_hold_in_time_and_say_why() {
    let bench = Bench::new().await;
    let mut tests = Vec::new();
    for (code, wanted) in [
        (401, LossReason::Forbidden),
        (403, LossReason::Forbidden),
        // The Lease is there, and shows the grant: the server can't be worked with.
        (404, LossReason::Unreachable),
        (409, LossReason::Unreachable),
        (422, LossReason::Unreachable),
        (429, LossReason::Unreachable),
        (500, LossReason::Unreachable),
        (503, LossReason::Unreachable),
    ] {
        let lock = format!("code-{code}");
        bench.opened(&lock, 6).await;
        let proxy = Proxy::new(&bench).await;
        let guard = hold(&proxy.locks(), &lock, "a").await;
        tests.push(async move {
            let due = due_after_a_renewal(&guard).await;
            proxy.always("update", "leases", Fault::RefuseFor(code, 60));
            let began = MonoInstant::now();
            let before = proxy.puts().len();
            let reason = lost_by(&guard, due, &code.to_string()).await;
            assert_eq!(reason, wanted, "{code}");
            let took = MonoInstant::now().saturating_duration_since(began);
            // Tried again, but not in a tight loop.
            let tried = proxy.puts().len() - before;
            assert!(
                (1..=20).contains(&tried),
                "{code}: {tried} tries in {took:?}"
            );
            // After a loss it writes nothing, but for what is on its way in that very moment.
            let lost_at = MonoInstant::now();
            drop(guard);
            // So long that several retry periods would show.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let puts = proxy.puts().into_iter();
            let late: Vec<_> = puts
                .filter(|put| put.at > lost_at + Duration::from_millis(200))
                .collect();
            assert!(late.is_empty(), "{code}: {late:#?}");
            proxy.assert_guarded();
        });
    }
    futures::future::join_all(tests).await;
    bench.finish().await;
}

/// home-operations/kopiur#319: 50 restarts in 68 hours on a wedged connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_connection_costs_no_lock_while_a_new_one_works() {
    let bench = Bench::new().await;
    bench.opened("wedged", 3).await;
    let proxy = Proxy::new(&bench).await;
    let guard = hold(&proxy.locks(), "wedged", "a").await;
    proxy.more_puts(1).await;
    for _ in 0..2 {
        proxy.swallow_open_connections();
        proxy.more_puts(3).await;
        assert_kept(&bench, &guard).await;
    }
    guard.release().await.unwrap();
    assert!(bench.lease("wedged").await.is_free());
    bench.finish().await;
}

/// VictoriaMetrics/operator#165 and others: one slow answer, and the lock was lost.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_all_take_a_quarter_of_the_lease_cost_no_lock() {
    let bench = Bench::new().await;
    bench.opened("slow", 4).await;
    let proxy = Proxy::new(&bench).await;
    let guard = hold(&proxy.locks(), "slow", "a").await;
    proxy.always("*", "*", Fault::DelayAnswer(Duration::from_secs(1)));
    proxy.more_puts(6).await;
    assert_kept(&bench, &guard).await;
    proxy.heal();
    guard.release().await.unwrap();
    bench.finish().await;
}

/// kubernetes/kubernetes#131867: clean shutdown, but the lock stays taken until it expires.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_meets_a_conflict_or_no_answer_is_sent_again() {
    let bench = Bench::new().await;
    for (lock, seconds) in [("during-renewal", 6), ("edited", 6), ("hung", 4)] {
        bench.opened(lock, seconds).await;
        let proxy = Proxy::new(&bench).await;
        let guard = hold(&proxy.locks(), lock, "a").await;
        let mut waiter = bench.library().await.lock(lock).claimant("b").begin();
        bench.until_waiting(1).await;
        if lock == "during-renewal" {
            let delay = Fault::DelayRequest(Duration::from_millis(300));
            proxy.fault("update", "leases", 1, delay);
            let before = proxy.puts().len();
            until("a renewal is under way", BUSY, async || {
                proxy.puts().len() > before
            })
            .await;
        } else if lock == "edited" {
            let note = json!({"metadata": {"annotations": {"note": "by hand"}}});
            bench.edit_lease(lock, note).await;
        } else {
            proxy.fault("update", "leases", 1, Fault::Hang);
        }
        let began = MonoInstant::now();
        assert_eq!(
            guard.release().await.unwrap(),
            Released::Confirmed,
            "{lock}"
        );
        let other = waiter.outcome().await.unwrap();
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!(took < SLACK, "{lock}: {took:?}");
        other.release().await.unwrap();
        proxy.assert_guarded();
    }
    bench.finish().await;
}

/// fabric8io/kubernetes-client#7350: "you lead" was announced, then the write failed.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_told_that_it_holds_before_its_own_write_was_confirmed() {
    let bench = Bench::new().await;
    bench.opened("announced", 5).await;
    let proxy = Proxy::new(&bench).await;
    proxy.fault("update", "leases", 1, Fault::Refuse(409));
    proxy.fault(
        "update",
        "leases",
        1,
        Fault::DelayRequest(Duration::from_secs(2)),
    );
    let mut a = proxy.locks().lock("announced").claimant("a").begin();
    until("a has sent its second write", BUSY, async || {
        proxy.puts().len() == 2
    })
    .await;
    let b = bench.hold("announced", "b").await;
    // A's write arrives, is refused, and A queues.
    tokio::select! {
        granted = a.outcome() => panic!("{granted:?}"),
        () = bench.until_waiting(1) => {}
    }
    assert_eq!(proxy.puts()[1].code, Some(409));
    let before = b.token();
    b.release().await.unwrap();
    let a = a.outcome().await.unwrap();
    assert!(a.token() > before);
    a.release().await.unwrap();
    proxy.assert_guarded();
    bench.finish().await;
}

/// A take's answer comes late: the time counts from when it was sent, and too late is released.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_to_a_take_leaves_only_the_rest_of_the_lease() {
    let bench = Bench::new().await;
    bench.opened("late", 8).await;
    let proxy = Proxy::new(&bench).await;
    proxy.fault(
        "update",
        "leases",
        1,
        Fault::DelayAnswer(Duration::from_secs(4)),
    );
    let guard = hold(&proxy.locks(), "late", "a").await;
    let left = guard
        .deadlines()
        .unwrap()
        .renew
        .saturating_duration_since(leasehold::clock::BootInstant::now());
    // 0.8 × 8 s less the 4 s under way; and not a renewal's full 6.4 s.
    assert!(left <= Duration::from_millis(2400), "{left:?}");
    let first = guard.token();
    guard.release().await.unwrap();

    proxy.fault(
        "update",
        "leases",
        1,
        Fault::DelayAnswer(Duration::from_secs(7)),
    );
    let guard = hold(&proxy.locks(), "late", "a").await;
    assert!(guard.is_held());
    // The grant that was answered too late was given back; this is another one.
    let lease = bench.lease("late").await;
    assert_eq!(lease.spec.transitions, 3, "{lease:?}");
    assert!(guard.token() > first);
    guard.release().await.unwrap();
    proxy.assert_guarded();
    bench.finish().await;
}

/// The take is sent, times out, a re-read says free, the caller gives up, the PUT lands: the lock is not stranded.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_lands_after_its_caller_gave_up_strands_nothing() {
    let bench = Bench::new().await;
    for (lock, times) in [("once", 1), ("always", usize::MAX)] {
        bench.opened(lock, 2).await;
        let proxy = Proxy::new(&bench).await;
        let delay = Fault::DelayRequest(Duration::from_secs(3));
        proxy.fault("update", "leases", times, delay);
        let asked = proxy
            .locks()
            .lock(lock)
            .wait(Duration::from_secs(1))
            .acquire();
        match within(BUSY, "an answer", asked).await {
            // The one sent again won.
            Ok(guard) => {
                let _ = guard.release().await;
            }
            Err(AcquireError::TimedOut(_) | AcquireError::Unsettled { .. }) => {}
            Err(error) => panic!("{lock}: {error}"),
        }
        until("what was sent has landed", BUSY, async || {
            proxy.puts().iter().all(|put| put.code.is_some())
        })
        .await;
        // Whatever landed ends by itself within a lease, if it is not gone already.
        let asked = bench.library().await.lock(lock).acquire();
        let other = within(Duration::from_secs(2) + SLACK, "another gets it", asked)
            .await
            .unwrap();
        other.release().await.unwrap();
        proxy.assert_guarded();
    }
    bench.finish().await;
}

/// openconfig/gnmic#983: a late renewal, sent by name, hits another's object or brings the dead back.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_renewal_does_not_bring_a_deleted_lease_back() {
    let bench = Bench::new().await;
    let lock = bench.opened("revived", 4).await;
    let proxy = Proxy::new(&bench).await;
    let guard = hold(&proxy.locks(), "revived", "a").await;
    proxy.fault(
        "update",
        "leases",
        2,
        Fault::DelayRequest(Duration::from_millis(500)),
    );
    let before = proxy.puts().len();
    until("a renewal is under way", BUSY, async || {
        proxy.puts().len() > before
    })
    .await;
    bench
        .leases()
        .delete("revived", &<_>::default())
        .await
        .unwrap();
    let reason = within(BUSY, "the loss is told", guard.lost()).await;
    assert_eq!(reason, LossReason::Deleted);
    until("it has landed", BUSY, async || {
        proxy.puts()[before].code.is_some()
    })
    .await;
    assert_eq!(proxy.puts()[before].code, Some(409));
    assert!(bench.leases().get_opt("revived").await.unwrap().is_none());

    // Made again and held by another: who knows of its loss sends nothing any more.
    bench.make_lease(&lock, "somebody").await;
    let sent = proxy.puts().len();
    let released = guard.release().await.unwrap();
    assert_eq!(released, Released::AlreadyLost(LossReason::Deleted));
    assert_eq!(proxy.puts().len(), sent);
    assert_eq!(bench.lease("revived").await.spec.holder, "somebody");
    proxy.assert_guarded();
    bench.finish().await;
}

/// kubernetes/kubernetes#131867, openconfig/gnmic#983: a release finds another holder, and so does a renewal that is on
/// its way for long. No watch has told: a read after the refusal does.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_or_renewal_does_not_touch_another_holder() {
    let bench = Bench::new().await;
    let mut tests = Vec::new();
    for (lock, remade, renews) in [
        ("released-taken", false, false),
        ("released-remade", true, false),
        ("renewed-taken", false, true),
        ("renewed-remade", true, true),
    ] {
        let bench = &bench;
        tests.push(async move {
            let opened = bench.opened(lock, if renews { 9 } else { 60 }).await;
            let proxy = Proxy::new(bench).await;
            proxy.always("watch", "leases", Fault::WatchHang);
            let guard = hold(&proxy.locks(), lock, "a").await;
            until("a watches", BUSY, async || {
                proxy.calls().iter().any(|call| call.verb == "watch")
            })
            .await;
            let before = proxy.puts().len();
            if renews {
                let late = Fault::DelayRequest(Duration::from_millis(1200));
                proxy.fault("update", "leases", 2, late);
                until("a renewal is under way", BUSY, async || {
                    proxy.puts().len() > before
                })
                .await;
            }
            if remade {
                let delete = <_>::default();
                bench.leases().delete(lock, &delete).await.unwrap();
                bench.make_lease(&opened, "").await;
            } else {
                let freed = json!({"spec": {"holderIdentity": ""}});
                bench.edit_lease(lock, freed).await;
            }
            let other = bench.hold(lock, "b").await;

            let reason = if remade {
                LossReason::Deleted
            } else {
                LossReason::TakenOver
            };
            if renews {
                let told = within(BUSY, "the loss is told", guard.lost()).await;
                assert_eq!(told, reason, "{lock}");
                until("all have landed", BUSY, async || {
                    proxy.puts().iter().all(|put| put.code.is_some())
                })
                .await;
            }
            let sent = proxy.puts().len();
            let released = guard.release().await.unwrap();
            assert_eq!(released, Released::AlreadyLost(reason), "{lock}");
            let puts = proxy.puts();
            let codes: Vec<_> = puts[before..].iter().map(|put| put.code).collect();
            if renews {
                assert_eq!(puts.len(), sent, "{lock}: {puts:#?}");
                assert!(codes.iter().all(|code| *code == Some(409)), "{codes:?}");
            } else {
                assert_eq!(codes, [Some(409)], "{lock}");
            }
            let lease = bench.lease(lock).await;
            assert_eq!(lease.spec.holder, other.identity(), "{lock}");
            assert_eq!(lease.current_token(), Some(other.token()), "{lock}");
            let released = other.release().await.unwrap();
            assert_eq!(released, Released::Confirmed, "{lock}");
            proxy.assert_guarded();
        });
    }
    futures::future::join_all(tests).await;
    bench.finish().await;
}
