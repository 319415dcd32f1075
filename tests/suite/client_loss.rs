//! When a loss begins, and that it is final: a holder that was frozen, a Lease that was edited, a deadline that was kept.

use std::thread;
use std::time::Duration;

use leasehold::client::{LossReason, Released};
use leasehold::clock::{BootInstant, MonoInstant};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::task::block_in_place;

use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, hold, until};
use super::server::within;

/// One that a test freezes, by not letting it run, or ends.
fn runtime_of_one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The renewal was applied and its answer has come, but whoever asks first after the thaw is told of the loss.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_waited_while_all_was_frozen_takes_no_loss_back() {
    let bench = Bench::new().await;
    bench.opened("final", 3).await;
    let proxy = Proxy::new(&bench).await;
    let others = bench.library().await;
    let frozen = runtime_of_one_thread();
    let life = async {
        let guard = hold(&proxy.locks(), "final", "a").await;
        let late = Fault::DelayAnswer(Duration::from_millis(300));
        proxy.fault("update", "leases", 1, late);
        until("a renewal was applied", BUSY, async || {
            proxy.puts().get(1).is_some_and(|put| put.code == Some(200))
        })
        .await;
        while guard.is_held() {
            thread::sleep(Duration::from_millis(10));
        }
        let reason = guard.lost().await;
        let other = others.lock("final").claimant("b").acquire();
        let other = within(BUSY, "another has it", other).await.unwrap();
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, reason);
        assert_eq!(proxy.puts().len(), 2, "after a loss it writes nothing");
        let released = guard.release().await.unwrap();
        assert_eq!(released, Released::AlreadyLost(reason));
        other.release().await.unwrap();
    };
    block_in_place(|| frozen.block_on(life));
    block_in_place(|| drop(frozen));
    bench.finish().await;
}

/// Nobody but a person with a text editor does that; those who wait go by what the Lease says.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_shortened_by_hand_has_one_holder_at_every_instant() {
    let bench = Bench::new().await;
    bench.opened("edited", 30).await;
    let proxy = Proxy::new(&bench).await;
    let guard = hold(&proxy.locks(), "edited", "a").await;
    let mut waiter = bench.library().await.lock("edited").claimant("b").begin();
    bench.until_waiting(1).await;
    proxy.until_watching().await;
    let shorten = |seconds| json!({"spec": {"leaseDurationSeconds": seconds}});

    // There is time to renew it.
    bench.edit_lease("edited", shorten(20)).await;
    until("it lasts as long as the lock says", BUSY, async || {
        bench.lease("edited").await.spec.duration_seconds == Some(30)
    })
    .await;
    assert!(guard.is_held());
    assert_eq!(bench.lease("edited").await.spec.holder, guard.identity());

    // There is none.
    let renewed = guard.deadlines().unwrap().renew;
    let renewed = renewed.saturating_sub(Duration::from_secs(24));
    until("its last renewal is a while ago", BUSY, async || {
        BootInstant::now() > renewed + Duration::from_secs(2)
    })
    .await;
    bench.edit_lease("edited", shorten(2)).await;
    let other = within(BUSY, "b has it", waiter.outcome()).await.unwrap();
    assert!(!guard.is_held());
    assert_eq!(guard.lost().await, LossReason::Expired);
    other.release().await.unwrap();
    bench.finish().await;
}

/// What was kept is on the clock of another boot, or made up.
#[test]
fn a_resumed_grant_is_believed_no_longer_than_its_lease_lasts() {
    const LASTS: Duration = Duration::from_secs(6);
    let outer = Builder::new_multi_thread().enable_all().build().unwrap();
    let bench = outer.block_on(async {
        let bench = Bench::new().await;
        bench.opened("resumed", 6).await;
        bench
    });
    let first = runtime_of_one_thread();
    let guard = first.block_on(async { bench.hold("resumed", "a").await });
    let kept = guard.resumable();
    // It ends, and gives nothing back.
    drop(first);
    outer.block_on(async {
        let proxy = Proxy::new(&bench).await;
        let far = BootInstant::now() + Duration::from_hours(10);
        let resumed = proxy.locks().lock("resumed").resume(&kept, far).await;
        let resumed = resumed.unwrap();
        let began = MonoInstant::now();
        assert_eq!(resumed.token(), guard.token());
        let deadlines = resumed.deadlines().unwrap();
        let left = deadlines.work.saturating_duration_since(BootInstant::now());
        assert!(left <= LASTS * 4 / 5, "{left:?}");
        proxy.more_puts(1).await;
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!(took < LASTS, "{took:?} until it was renewed");
        resumed.release().await.unwrap();
        bench.finish().await;
    });
}
