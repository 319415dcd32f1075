//! What becomes of claims.

use std::time::Duration;

use leasehold::api::{
    ClaimPhase, DistributedLockSpec, LockClaimSpec, QueueSpec, find_condition, names,
};
use leasehold::clock::MonoInstant;
use serde_json::json;

use super::operator_place::claim_condition;
use super::operator_rig::{Operator, in_place, lasting};

#[tokio::test]
async fn a_ticket_is_the_resource_version_at_first_sight_and_stays() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        place.take("nightly", "pod-0").await;
        let made = place.queue_up("a", "nightly").await;
        let first = place.has_ticket("a").await;
        let revision = made.metadata.resource_version;
        assert_eq!(revision, Some(first.to_string()));
        let label = json!({"metadata": {"labels": {"team": "a"}}});
        place.edit_claim("a", &label).await;
        // A later claim's ticket tells that the operator has seen the label too.
        place.queue_up("b", "nightly").await;
        place.has_ticket("b").await;
        assert_eq!(place.has_ticket("a").await, first);
    })
    .await;
}

#[tokio::test]
async fn a_claim_on_a_missing_lock_waits_and_says_so() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.queue_up("early", "nightly").await;
        let waiting = place.waits_for("early", names::REASON_LOCK_NOT_FOUND).await;
        let ready = claim_condition(&waiting, names::CONDITION_READY);
        assert_eq!(ready.1, names::REASON_LOCK_NOT_FOUND);
        assert_eq!(waiting.phase(), ClaimPhase::Pending);
        place.make("nightly", lasting(15)).await;
        place.waits_for("early", names::REASON_PENDING).await;
    })
    .await;
}

#[tokio::test]
async fn claims_beyond_max_waiters_are_rejected_and_the_others_stay() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let queue = QueueSpec {
            max_waiters: 1,
            ..QueueSpec::default()
        };
        let spec = DistributedLockSpec {
            queue,
            ..lasting(60)
        };
        place.make_free_of("nightly", spec).await;
        place.take("nightly", "pod-0").await;
        place.queue_up("a", "nightly").await;
        place.has_ticket("a").await;
        place.queue_up("b", "nightly").await;
        let rejected = place.claim_in("b", ClaimPhase::Rejected).await;
        let ready = claim_condition(&rejected, names::CONDITION_READY);
        assert_eq!(ready, ("False".into(), names::REASON_QUEUE_FULL.into()));
        let conditions = &rejected.status.as_ref().expect("a status").conditions;
        let condition = find_condition(conditions, names::CONDITION_READY);
        let words = &condition.expect("a condition").message;
        assert!(words.contains("queue.maxWaiters"), "{words}");
        let first = place.claims.get("a").await.expect("the claim");
        assert_eq!(first.phase(), ClaimPhase::Pending);
    })
    .await;
}

#[tokio::test]
async fn a_claim_times_out_by_the_servers_time_and_is_collected_after_its_ttl() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        place.take("nightly", "pod-0").await;
        let spec = LockClaimSpec {
            wait_timeout_seconds: Some(2),
            ttl_seconds_after_finished: Some(2),
            ..LockClaimSpec::heartbeat("nightly")
        };
        let made = MonoInstant::now();
        place.claim("a", spec).await;
        place.claim_in("a", ClaimPhase::TimedOut).await;
        let took = MonoInstant::now().saturating_duration_since(made);
        // Creation times have whole seconds.
        assert!(took >= Duration::from_secs(1), "after {took:?}");
        place.claim_goes("a").await;
        // Nobody is left to be named.
        place.nobody_is_named("nightly").await;
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_holds_the_lock_is_collected_and_the_hold_stays() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        let made = place.queue_up("a", "nightly").await;
        let uid = made.metadata.uid.expect("a uid");
        let grant = place.take_as("nightly", format!("a/{uid}")).await;
        place.claim_goes("a").await;
        assert_eq!(
            place.lease("nightly").await.record.spec.holder,
            grant.holder
        );
        place.nobody_is_named("nightly").await;
    })
    .await;
}

/// A claim that is named and does not take a free lock is passed over, the one behind it named.
#[tokio::test]
async fn a_dead_head_of_the_queue_is_passed_over_and_deleted() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        for name in ["dead", "next"] {
            place.queue_up(name, "nightly").await;
        }
        place.is_named("nightly", "dead").await;
        let named = MonoInstant::now();
        place.is_named("nightly", "next").await;
        let took = MonoInstant::now().saturating_duration_since(named);
        assert!((1.5..3.5).contains(&took.as_secs_f64()), "after {took:?}");
        place.claim_goes("dead").await;
    })
    .await;
}
