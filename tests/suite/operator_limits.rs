//! What a lock's own limits do: lockDelaySeconds, maxHoldSeconds, the order by priority.

use leasehold::api::{
    DistributedLock, DistributedLockSpec, EndReason, LockClaimSpec, QueuePolicy, QueueSpec,
};
use leasehold::clock::MonoInstant;
use serde_json::json;

use super::operator_rig::{LONG, Operator, ends, in_place, is_free, lasting};
use super::server::within;

fn seconds_since(start: MonoInstant) -> f64 {
    let since = MonoInstant::now().saturating_duration_since(start);
    since.as_secs_f64()
}

/// A waiter gets a lock of one whose holder was killed after the lease and the delay, and a released one at once.
#[tokio::test]
async fn the_lock_delay_is_waited_out_after_a_holder_that_did_not_release_and_only_then() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let spec = DistributedLockSpec {
            lock_delay_seconds: 6,
            ..lasting(1)
        };
        place.make_free_of("nightly", spec).await;
        let sent = MonoInstant::now();
        place.take("nightly", "killed").await;
        let locks = place.library().await;
        let acquire = async |claimant: &str| {
            let acquired = locks.lock("nightly").claimant(claimant).acquire();
            within(LONG, "it is had", acquired).await.expect("a guard")
        };
        let guard = acquire("second").await;
        let took = seconds_since(sent);
        assert!((7.0..12.0).contains(&took), "after {took} s");
        let told = |lock: &DistributedLock| !ends(lock).is_empty();
        let lock = place.lock_is("nightly", "the end is told", told).await;
        assert_eq!(ends(&lock), [EndReason::Expired]);

        let next = acquire("third");
        let release = async {
            place.has_waiters("nightly", 1).await;
            let released = MonoInstant::now();
            guard.release().await.expect("it is given back");
            released
        };
        let (third, released) = tokio::join!(next, release);
        let took = seconds_since(released);
        assert!(took < 5.0, "after {took} s");
        third.release().await.expect("it is given back");
    })
    .await;
}

#[tokio::test]
async fn a_holder_that_goes_on_beyond_max_hold_seconds_is_revoked_one_lease_later() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let spec = DistributedLockSpec {
            max_hold_seconds: Some(2),
            ..lasting(2)
        };
        place.make_free_of("nightly", spec).await;
        let sent = MonoInstant::now();
        let grant = place.take("nightly", "pod-3").await;
        // A renewal and the revoke may cross: then the holder has lost, as one that reads again learns.
        tokio::select! {
            () = place.go_on("nightly", 0, &grant) => unreachable!("it goes on and on"),
            _ = place.lease_is("nightly", "it is revoked", |lease| lease.record.is_free()) => {}
        }
        let took = seconds_since(sent);
        assert!((4.0..6.0).contains(&took), "after {took} s");
        let lock = place.lock_is("nightly", "it is free", is_free).await;
        assert_eq!(ends(&lock), [EndReason::Revoked]);
        let note = place.event("Revoked").await;
        assert!(note.contains("maxHoldSeconds"), "{note}");
        assert!(place.take("nightly", "pod-4").await.token > grant.token);
    })
    .await;
}

/// The order may change while claims wait: by a claim's priority, which may be edited.
#[tokio::test]
async fn where_priority_counts_a_claim_that_is_raised_goes_first() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let spec = DistributedLockSpec {
            queue: QueueSpec {
                policy: QueuePolicy::Priority,
                ..QueueSpec::default()
            },
            ..lasting(60)
        };
        place.make_free_of("nightly", spec).await;
        place.take("nightly", "pod-0").await;
        for (name, priority) in [("low", 0), ("high", 5), ("raised", -5)] {
            let spec = LockClaimSpec {
                priority,
                ..LockClaimSpec::heartbeat("nightly")
            };
            place.claim(name, spec).await;
        }
        place.is_named("nightly", "high").await;
        let raise = json!({"spec": {"priority": 9}});
        place.edit_claim("raised", &raise).await;
        place.is_named("nightly", "raised").await;
        let order = ["raised", "high", "low"];
        place
            .lock_is("nightly", "status shows the order", |lock| {
                let shown = lock.status.as_ref().map(|status| &status.next_waiters);
                shown.is_some_and(|shown| shown == &order)
            })
            .await;
    })
    .await;
}
