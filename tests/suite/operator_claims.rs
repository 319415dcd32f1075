//! What becomes of claims.

use std::time::Duration;

use kube::api::{Api, PatchParams, PostParams};
use leasehold::api::{ClaimPhase, LockClaim, LockClaimSpec, QueueSpec, find_condition, names};
use leasehold::clock::MonoInstant;
use serde_json::json;

use super::operator_rig::{Operator, in_place, lasting};

pub async fn claim(api: &Api<LockClaim>, name: &str, spec: LockClaimSpec) -> LockClaim {
    let made = api
        .create(&PostParams::default(), &LockClaim::new(name, spec))
        .await;
    made.expect("the claim is made")
}

fn ticket(claim: &LockClaim) -> Option<i64> {
    claim.status.as_ref()?.ticket
}

fn reason(claim: &LockClaim, type_: &str) -> Option<String> {
    let conditions = &claim.status.as_ref()?.conditions;
    find_condition(conditions, type_).map(|condition| condition.reason.clone())
}

#[tokio::test]
async fn a_ticket_is_the_resource_version_at_first_sight_and_stays() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        place.take("nightly", "pod-0").await;
        let made = claim(&place.claims, "a", LockClaimSpec::heartbeat("nightly")).await;
        let first = place
            .claim_is("a", "it has a ticket", |claim| {
                claim.is_some_and(|claim| ticket(claim).is_some())
            })
            .await;
        let first = first.and_then(|claim| ticket(&claim));
        assert_eq!(
            first.map(|ticket| ticket.to_string()),
            made.metadata.resource_version
        );
        let label = json!({"metadata": {"labels": {"team": "a"}}});
        place
            .claims
            .patch(
                "a",
                &PatchParams::default(),
                &kube::api::Patch::Merge(&label),
            )
            .await
            .expect("it can be labelled");
        // A later claim's ticket tells that the operator has seen the label too.
        claim(&place.claims, "b", LockClaimSpec::heartbeat("nightly")).await;
        place
            .claim_is("b", "it has a ticket", |claim| {
                claim.is_some_and(|claim| ticket(claim).is_some())
            })
            .await;
        let now = place.claims.get("a").await.expect("the claim");
        assert_eq!(ticket(&now), first);
    })
    .await;
}

#[tokio::test]
async fn a_claim_on_a_missing_lock_waits_and_says_so() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        claim(&place.claims, "early", LockClaimSpec::heartbeat("nightly")).await;
        let is = |wanted: &'static str| {
            move |claim: Option<&LockClaim>| {
                claim.is_some_and(|claim| {
                    reason(claim, names::CONDITION_READY).as_deref() == Some(wanted)
                })
            }
        };
        let waiting = place
            .claim_is("early", "it says so", is(names::REASON_LOCK_NOT_FOUND))
            .await
            .expect("a claim");
        assert_eq!(waiting.phase(), ClaimPhase::Pending);
        place.make("nightly", lasting(15)).await;
        place
            .claim_is("early", "it waits for its turn", is(names::REASON_PENDING))
            .await;
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
        let spec = leasehold::api::DistributedLockSpec {
            queue,
            ..lasting(60)
        };
        place.make("nightly", spec).await;
        place
            .lock_is("nightly", "it is free", super::operator_rig::is_free)
            .await;
        place.take("nightly", "pod-0").await;
        claim(&place.claims, "a", LockClaimSpec::heartbeat("nightly")).await;
        place
            .claim_is("a", "it has a ticket", |claim| {
                claim.is_some_and(|claim| ticket(claim).is_some())
            })
            .await;
        claim(&place.claims, "b", LockClaimSpec::heartbeat("nightly")).await;
        let rejected = place
            .claim_is("b", "it is rejected", |claim| {
                claim.is_some_and(|claim| claim.phase() == ClaimPhase::Rejected)
            })
            .await
            .expect("a claim");
        assert_eq!(
            reason(&rejected, names::CONDITION_READY).as_deref(),
            Some(names::REASON_QUEUE_FULL)
        );
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
        claim(&place.claims, "a", spec).await;
        place
            .claim_is("a", "it times out", |claim| {
                claim.is_some_and(|claim| claim.phase() == ClaimPhase::TimedOut)
            })
            .await;
        let took = MonoInstant::now().saturating_duration_since(made);
        // Creation times have whole seconds.
        assert!(took >= Duration::from_secs(1), "after {took:?}");
        place
            .claim_is("a", "it is collected", |claim| claim.is_none())
            .await;
        // Nobody is left to be named.
        place
            .lease_is("nightly", "next is empty", |lease| {
                lease.record.next.is_none()
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_holds_the_lock_is_collected_and_the_hold_stays() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        let made = claim(&place.claims, "a", LockClaimSpec::heartbeat("nightly")).await;
        let uid = made.metadata.uid.expect("a uid");
        let grant = place.take_as("nightly", format!("a/{uid}")).await;
        place
            .claim_is("a", "it is collected", |claim| claim.is_none())
            .await;
        assert_eq!(
            place.lease("nightly").await.record.spec.holder,
            grant.holder
        );
        place
            .lease_is("nightly", "next is empty", |lease| {
                lease.record.next.is_none()
            })
            .await;
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
            claim(&place.claims, name, LockClaimSpec::heartbeat("nightly")).await;
        }
        place
            .lease_is("nightly", "the first is named", |lease| {
                lease
                    .record
                    .next
                    .as_ref()
                    .is_some_and(|next| next.name == "dead")
            })
            .await;
        let named = MonoInstant::now();
        place
            .lease_is("nightly", "the second is named", |lease| {
                lease
                    .record
                    .next
                    .as_ref()
                    .is_some_and(|next| next.name == "next")
            })
            .await;
        let took = MonoInstant::now().saturating_duration_since(named);
        assert!((1.5..3.5).contains(&took.as_secs_f64()), "after {took:?}");
        place
            .claim_is("dead", "it is deleted", |claim| claim.is_none())
            .await;
    })
    .await;
}
