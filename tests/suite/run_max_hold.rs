//! `maxHoldSeconds`: the holder stops itself, and gives the lock back in good order.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use leasehold::client::{Deadlines, Guard, LossReason, Released};
use leasehold::clock::BootInstant;
use leasehold::engine::EndKind;
use serde_json::json;

use super::run_bench::{BUSY, Bench, until};
use super::server::within;

/// Opens a lock with this limit.
async fn limited(bench: &Bench, name: &str, lease: i32, most: i32) {
    // An orderly end is not that of a holder that was lost.
    let spec = json!({
        "leaseDurationSeconds": lease, "maxHoldSeconds": most, "onHolderLost": "Hold",
    });
    let lock = bench.lock_of(spec, name).await;
    bench.make_lease(&lock, "").await;
    bench.open_status(&lock, lease).await;
}

/// A guard, and until when it may be held at the latest.
async fn held(bench: &Bench, lock: &str, most: u64) -> (Guard, BootInstant) {
    let guard = bench.hold(lock, "holder").await;
    (guard, BootInstant::now() + Duration::from_secs(most))
}

async fn until_lost(guard: &Guard, latest: BootInstant) {
    let reason = within(BUSY, "it is lost", guard.lost()).await;
    assert_eq!(reason, LossReason::MaxHold);
    assert!(!guard.is_held());
    let late = BootInstant::now().saturating_duration_since(latest);
    assert!(late < Duration::from_secs(3), "{late:?} too late");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_ends_after_max_hold_seconds_and_is_then_released_like_any_other() {
    let bench = Bench::new().await;
    limited(&bench, "limited", 3, 4).await;
    for drops in [false, true] {
        let before = BootInstant::now();
        let (mut guard, latest) = held(&bench, "limited", 4).await;
        while let Some(Deadlines { renew, .. }) = guard.deadlines() {
            assert!(renew <= latest, "never beyond the end of the hold");
            let changed = within(BUSY, "a renewal or the end", guard.deadlines_changed());
            changed.await;
        }
        until_lost(&guard, latest).await;
        let held_for = BootInstant::now().saturating_duration_since(before);
        assert!(held_for >= Duration::from_secs(4), "{held_for:?}");
        let lease = bench.lease("limited").await;
        assert_eq!(lease.spec.holder, guard.identity(), "only renewals stopped");
        if drops {
            drop(guard);
            until("it is given back", BUSY, async || {
                bench.lease("limited").await.is_free()
            })
            .await;
        } else {
            assert_eq!(guard.release().await.unwrap(), Released::Confirmed);
        }
        let lease = bench.lease("limited").await;
        assert!(lease.is_free());
        assert_eq!(lease.ended.unwrap().kind, EndKind::Released);
    }
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn once_the_lease_has_ended_too_there_is_nothing_to_give_back() {
    let bench = Bench::new().await;
    limited(&bench, "late", 2, 2).await;
    let (guard, latest) = held(&bench, "late", 2).await;
    until_lost(&guard, latest).await;
    // Renewed at the latest when the hold ended, it lasts 2 s more.
    let ended = BootInstant::now() + Duration::from_millis(2500);
    until("the lease has ended", BUSY, async || {
        BootInstant::now() >= ended
    })
    .await;
    let released = guard.release().await.unwrap();
    assert_eq!(released, Released::AlreadyLost(LossReason::MaxHold));
    assert!(!bench.lease("late").await.is_free(), "nothing was written");
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_set_while_the_lock_is_held_counts_at_once_and_from_the_grant() {
    let bench = Bench::new().await;
    bench.opened("set", 3).await;
    let (guard, latest) = held(&bench, "set", 3).await;
    let patch = Patch::Merge(json!({"spec": {"maxHoldSeconds": 3}}));
    let params = PatchParams::default();
    bench.locks().patch("set", &params, &patch).await.unwrap();
    // The lock is read on the slow beat.
    until_lost(&guard, latest + Duration::from_secs(5)).await;
    assert_eq!(guard.release().await.unwrap(), Released::Confirmed);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_ended_at_max_hold_seconds_and_the_lock_is_given_back() {
    let bench = Bench::new().await;
    limited(&bench, "limited", 2, 3).await;
    let before = BootInstant::now();
    let run = bench.run("limited").by("a").works_on();
    let ended = run.ends().await;
    ended.assert(
        76,
        &[r#"lock "limited" was held for its maxHoldSeconds (MaxHold): ending the command"#],
    );
    let told = ended.stderr.lines();
    let told: Vec<_> = told
        .filter(|line| line.starts_with("leasehold: "))
        .collect();
    assert_eq!(told.len(), 1, "said once: {told:?}");
    let start = bench.until_noted("start", "a", Duration::ZERO).await;
    let end = bench.until_noted("end", "a", Duration::ZERO).await;
    let since =
        Duration::from_secs_f64(end.at).saturating_sub(Duration::from_nanos(before.as_nanos()));
    assert!(since >= Duration::from_secs(3), "not before: {since:?}");
    assert!(end.at - start.at < 5.0, "and not much later");
    let lease = bench.lease("limited").await;
    assert!(lease.is_free());
    assert_eq!(lease.ended.unwrap().kind, EndKind::Released);
    bench.finish().await;
}
