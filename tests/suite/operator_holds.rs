//! Fixed and Pod holds: claims that any tool can make, and whose holds the operator keeps.

use std::time::Duration;

use leasehold::api::{
    ClaimPhase, DistributedLockSpec, EndReason, FencingToken, HoldType, LockClaim, names,
};
use leasehold::clock::MonoInstant;
use rustix::process::Signal;
use serde_json::json;

use super::operator_place::{claim_condition, ended, fixed, token, with_pod};
use super::operator_rig::{LONG, Operator, Place, QUICK, ends, in_place, is_free, lasting};
use super::server::within;

/// Waits until the lock is free, and says how long that took.
async fn free_after(place: &Place, began: MonoInstant) -> Duration {
    Box::pin(place.lock_is("nightly", "it is free", is_free)).await;
    MonoInstant::now().saturating_duration_since(began)
}

#[tokio::test]
async fn a_fixed_claim_is_granted_and_ends_by_itself() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        // A claim may come before its lock.
        place.claim("seat", fixed(3)).await;
        place.waits_for("seat", names::REASON_LOCK_NOT_FOUND).await;
        place.make("nightly", lasting(15)).await;
        let granted = place.claim_in("seat", ClaimPhase::Granted).await;
        let began = MonoInstant::now();
        let status = granted.status.clone().expect("a status");
        assert_eq!(status.slot, Some(0));
        assert_eq!(status.lease_name.as_deref(), Some("nightly"));
        assert_eq!(status.holder_identity, granted.holder_identity());
        let times = status
            .grant_time
            .zip(status.expire_time)
            .expect("both times");
        assert_eq!(times.1.0.as_second() - times.0.0.as_second(), 3);
        for (type_, expected) in [
            (names::CONDITION_READY, "True"),
            (names::CONDITION_GRANTED, "True"),
            (names::CONDITION_STALLED, "False"),
        ] {
            assert_eq!(claim_condition(&granted, type_).0, expected, "{type_}");
        }
        let lock = place.locks.get("nightly").await.expect("the lock");
        let slot = lock.slot_status(0).expect("an entry");
        assert_eq!(
            slot.fencing_token.map(FencingToken::get),
            Some(token(&granted))
        );
        assert_eq!(
            (slot.hold, slot.lease_duration_seconds),
            (Some(HoldType::Fixed), Some(3))
        );

        let expired = place.claim_in("seat", ClaimPhase::Expired).await;
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!((2.0..5.0).contains(&took.as_secs_f64()), "after {took:?}");
        for (type_, expected) in [
            (names::CONDITION_READY, "False"),
            (names::CONDITION_GRANTED, "False"),
            (names::CONDITION_STALLED, "True"),
        ] {
            assert_eq!(claim_condition(&expired, type_).0, expected, "{type_}");
        }
        let lock = place.lock_is("nightly", "it is free", is_free).await;
        assert_eq!(ends(&lock), [EndReason::Expired]);
        place.is_looked_at("nightly").await;
        let lease = place.lease("nightly").await;
        assert!(lease.record.is_free(), "it is never taken again");
    })
    .await;
}

#[tokio::test]
async fn raising_its_seconds_prolongs_a_fixed_hold_under_its_token() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 15).await;
        let began = MonoInstant::now();
        place.claim("seat", fixed(4)).await;
        let first = place.claim_in("seat", ClaimPhase::Granted).await;
        place
            .edit_claim(
                "seat",
                &json!({"spec": {"hold": {"fixed": {"seconds": 7}}}}),
            )
            .await;
        let lasts = |claim: &LockClaim| {
            let status = claim.status.clone().unwrap_or_default();
            let times = status.grant_time.zip(status.expire_time);
            times.map(|(from, until)| until.0.as_second() - from.0.as_second())
        };
        let so =
            move |claim: Option<&LockClaim>| claim.is_some_and(|claim| lasts(claim) == Some(7));
        place.claim_is("seat", "it is prolonged", so).await;
        let over = place.claim_in("seat", ClaimPhase::Expired).await;
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!((6.5..9.5).contains(&took.as_secs_f64()), "after {took:?}");
        assert_eq!(token(&over), token(&first));
        let lock = place.lock_is("nightly", "it is free", is_free).await;
        assert_eq!(
            lock.status.map(|status| status.history.len()),
            Some(1),
            "it was one grant"
        );
    })
    .await;
}

#[tokio::test]
async fn deleting_a_claim_gives_the_lock_back_at_once() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 30).await;
        place.make_pod("web").await;
        for spec in [fixed(600), with_pod("web", None)] {
            let mut fastest = Duration::MAX;
            for _ in 0..3 {
                place.claim("seat", spec.clone()).await;
                place.claim_in("seat", ClaimPhase::Granted).await;
                let began = MonoInstant::now();
                place.delete_claim("seat").await;
                let took = free_after(&place, began).await;
                // By the event, however busy the machine: a slow beat is 30 s.
                assert!(took < Duration::from_secs(10), "after {took:?}");
                fastest = fastest.min(took);
            }
            assert!(fastest < Duration::from_secs(2), "after {fastest:?}");
        }
        let lock = place.locks.get("nightly").await.expect("the lock");
        assert_eq!(ends(&lock), [EndReason::Released; 6]);
    })
    .await;
}

#[tokio::test]
async fn a_pod_hold_lasts_while_its_pod_lives_and_no_longer() {
    // Boxed, for it is long.
    Box::pin(in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 1).await;
        place.claim("first", with_pod("web", None)).await;
        place.waits_for("first", names::REASON_POD_NOT_FOUND).await;
        // It keeps nobody waiting meanwhile.
        place.claim("seat", fixed(1)).await;
        place.claim_in("seat", ClaimPhase::Expired).await;
        let pod = Box::pin(place.make_pod("web")).await;
        let granted = place.claim_in("first", ClaimPhase::Granted).await;
        let lock = place.locks.get("nightly").await.expect("the lock");
        let slot = lock.slot_status(0).expect("an entry");
        assert_eq!(
            (slot.pod_name.as_deref(), &slot.pod_uid),
            (Some("web"), &pod.metadata.uid)
        );
        assert!(
            granted
                .status
                .is_some_and(|status| status.expire_time.is_none())
        );

        // What proves nothing ends nothing, nor does time: the lease duration is one second.
        place
            .edit_pod("web", json!({"phase": "Failed", "reason": "NodeLost"}))
            .await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let still = place.claims.get("first").await.expect("the claim");
        assert_eq!(still.phase(), ClaimPhase::Granted);
        place.edit_pod("web", ended("main")).await;
        let over = place.claim_in("first", ClaimPhase::Released).await;
        assert_eq!(
            claim_condition(&over, names::CONDITION_READY).1,
            names::REASON_POD_ENDED
        );
        place.lock_is("nightly", "it is free", is_free).await;

        // Another Pod of that name is another Pod.
        let slower = json!({"spec": {"leaseDurationSeconds": 60}});
        place.edit_lock("nightly", &slower).await;
        place.delete_pod("web").await;
        let again = place.make_pod("web").await;
        place
            .claim("old", with_pod("web", pod.metadata.uid.as_deref()))
            .await;
        place.waits_for("old", names::REASON_POD_NOT_FOUND).await;
        place
            .claim("new", with_pod("web", again.metadata.uid.as_deref()))
            .await;
        place.claim_in("new", ClaimPhase::Granted).await;
        let began = MonoInstant::now();
        place.delete_pod("web").await;
        place.claim_in("new", ClaimPhase::Released).await;
        let took = free_after(&place, began).await;
        // By the event: a slow beat is 30 s.
        assert!(took < Duration::from_secs(15), "after {took:?}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fixed_claims_and_waiters_are_served_in_the_order_of_coming() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 5).await;
        let locks = place.library().await;
        let holder = locks.lock("nightly").acquire().await.expect("it is free");
        place.claim("first", fixed(1)).await;
        place.has_ticket("first").await;
        let mut waiter = locks.lock("nightly").claimant("second").begin();
        place.has_waiters("nightly", 2).await;
        place.claim("third", fixed(1)).await;
        place.has_ticket("third").await;
        holder.release().await.expect("it is given back");
        let first = place.claim_in("first", ClaimPhase::Granted).await;
        let second = within(LONG, "the waiter has it", waiter.outcome())
            .await
            .expect("a guard");
        let at_that_time = place.claims.get("third").await.expect("the claim");
        assert_eq!(at_that_time.phase(), ClaimPhase::Pending);
        let second_token = second.token().get();
        second.release().await.expect("it is given back");
        let third = place.claim_in("third", ClaimPhase::Granted).await;
        assert!(token(&first) < second_token && second_token < token(&third));
        place.claim_in("first", ClaimPhase::Expired).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_hold_lasts_its_own_time_also_without_the_operator() {
    in_place(async |place| {
        let operator = Operator::start(&place.namespace, "one", QUICK).await;
        operator.leads().await;
        place.make_free("nightly", 1).await;
        place.claim("seat", fixed(6)).await;
        let granted = place.claim_in("seat", ClaimPhase::Granted).await;
        let began = MonoInstant::now();
        operator.signal(Signal::KILL);
        let locks = place.library().await;
        let guard = within(LONG, "a waiter has it", locks.lock("nightly").acquire()).await;
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!(
            took > Duration::from_secs(5),
            "after {took:?}, six times the lease duration"
        );
        let guard = guard.expect("a guard");
        assert!(guard.token().get() > token(&granted));
        // The next operator finds out how it ended.
        let _heir = Operator::start(&place.namespace, "heir", QUICK).await;
        place.claim_in("seat", ClaimPhase::Expired).await;
        guard.release().await.expect("it is given back");
    })
    .await;
}

#[tokio::test]
async fn a_claim_revoked_while_the_operator_was_away_says_so_and_is_not_taken_again() {
    in_place(async |place| {
        let operator = Operator::start(&place.namespace, "one", QUICK).await;
        place.make_free("nightly", 1).await;
        place.claim("seat", fixed(600)).await;
        let granted = place.claim_in("seat", ClaimPhase::Granted).await;
        operator.signal(Signal::KILL);
        place
            .edit_lock(
                "nightly",
                &json!({"spec": {"minFencingToken": token(&granted) + 1}}),
            )
            .await;
        let heir = Operator::start(&place.namespace, "two", QUICK).await;
        let revoked = place.claim_in("seat", ClaimPhase::Revoked).await;
        assert_eq!(token(&revoked), token(&granted));
        place.lock_is("nightly", "it is free", is_free).await;

        // The same when its Lease was deleted: and the lock does not wait for those 600 s.
        place.claim("again", fixed(600)).await;
        place.claim_in("again", ClaimPhase::Granted).await;
        heir.signal(Signal::KILL);
        place.delete_lease("nightly").await;
        let _third = Operator::start(&place.namespace, "three", QUICK).await;
        place.claim_in("again", ClaimPhase::Revoked).await;
        place.lock_is("nightly", "it is free", is_free).await;
        place.is_looked_at("nightly").await;
        assert!(place.lease("nightly").await.record.is_free());
    })
    .await;
}

#[tokio::test]
async fn an_annotation_dropped_by_hand_is_put_back() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 1).await;
        let pod = place.make_pod("web").await;
        for (name, spec) in [("seat", fixed(600)), ("job", with_pod("web", None))] {
            place.claim(name, spec).await;
            place.claim_in(name, ClaimPhase::Granted).await;
            let before = place.lease("nightly").await.record;
            let drop = json!({"metadata": {"annotations": {names::ANNOTATION_GRANT: null}}});
            place.edit_lease("nightly", &drop).await;
            let back = |lease: &leasehold::lease::FoundLease| lease.record.grant == before.grant;
            let now = place.lease_is("nightly", "it is back", back).await;
            assert_eq!(now.record.spec, before.spec);
            let bound = now
                .record
                .current_grant()
                .and_then(|grant| grant.pod.clone());
            assert_eq!(
                bound.map(|pod| pod.uid),
                pod.metadata.uid.clone().filter(|_| name == "job")
            );
            place.delete_claim(name).await;
            place.lock_is("nightly", "it is free", is_free).await;
        }
    })
    .await;
}

#[tokio::test]
async fn max_hold_cuts_a_fixed_hold_and_ends_a_pod_hold() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let spec = DistributedLockSpec {
            max_hold_seconds: Some(2),
            ..lasting(1)
        };
        place.make("nightly", spec).await;
        place.make_pod("web").await;
        place.claim("seat", fixed(600)).await;
        place.claim_in("seat", ClaimPhase::Expired).await;
        place.claim("job", with_pod("web", None)).await;
        place.claim_in("job", ClaimPhase::Granted).await;
        let began = MonoInstant::now();
        let over = place.claim_in("job", ClaimPhase::Revoked).await;
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!((1.0..4.0).contains(&took.as_secs_f64()), "after {took:?}");
        assert_eq!(
            claim_condition(&over, names::CONDITION_READY).1,
            names::REASON_MAX_HOLD
        );
        place.lock_is("nightly", "it is free", is_free).await;
    })
    .await;
}

#[tokio::test]
async fn two_slots_are_held_by_two_claims_and_the_third_waits() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let spec = DistributedLockSpec {
            max_holders: 2,
            ..lasting(15)
        };
        place.make("nightly", spec).await;
        for name in ["a", "b", "c"] {
            place.claim(name, fixed(600)).await;
        }
        let first = place.claim_in("a", ClaimPhase::Granted).await;
        let second = place.claim_in("b", ClaimPhase::Granted).await;
        let slot = |claim: &LockClaim| claim.status.as_ref().and_then(|status| status.slot);
        assert_eq!([slot(&first), slot(&second)], [Some(0), Some(1)]);
        let second = second.status.expect("a status");
        assert_eq!(second.lease_name.as_deref(), Some("nightly.1"));
        place.has_ticket("c").await;
        place.is_looked_at("nightly").await;
        assert_eq!(
            place.claims.get("c").await.expect("the claim").phase(),
            ClaimPhase::Pending
        );
        place.delete_claim("b").await;
        let third = place.claim_in("c", ClaimPhase::Granted).await;
        assert_eq!(slot(&third), Some(1));
        assert_eq!(
            place.claims.get("a").await.expect("the claim").phase(),
            ClaimPhase::Granted
        );
    })
    .await;
}
