//! How holds end by the operator's hand, and what may not end them.

use std::time::Duration;

use kube::api::PostParams;
use leasehold::api::{DistributedLock, EndReason, names};
use leasehold::clock::MonoInstant;
use serde_json::json;

use super::operator_rig::{LONG, Operator, condition, ends, in_place, is_free, message, shows};
use super::server::within;

fn last_end(lock: &DistributedLock) -> Option<EndReason> {
    ends(lock).first().copied()
}

#[tokio::test]
async fn a_silent_holder_is_ended_after_its_lease_and_not_before() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 2).await;
        let sent = MonoInstant::now();
        let grant = place.take("nightly", "pod-3").await;
        let freed = place.lease_is("nightly", "it is ended", |lease| {
            lease.record.is_free() && lease.record.ended.is_some()
        });
        let lease = freed.await;
        let took = MonoInstant::now().saturating_duration_since(sent);
        assert!(took >= Duration::from_secs(2), "after {took:?}");
        assert!(took <= Duration::from_secs(3), "after {took:?}");
        let ended = lease.record.ended.expect("a note");
        assert_eq!((ended.token, ended.by.as_str()), (grant.token.get(), "one"));
        let lock = place.lock_is("nightly", "it is free", is_free).await;
        assert_eq!(last_end(&lock), Some(EndReason::Expired));
    })
    .await;
}

#[tokio::test]
async fn editing_annotations_keeps_nobody_alive() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 2).await;
        let sent = MonoInstant::now();
        place.take("nightly", "pod-3").await;
        let ended = async {
            for round in 0.. {
                let annotation = json!({"metadata": {"annotations": {"round": round.to_string()}}});
                place.edit_lease("nightly", &annotation).await;
                if place.lease("nightly").await.record.is_free() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(LONG, "it is ended", ended).await;
        let took = MonoInstant::now().saturating_duration_since(sent);
        assert!((2.0..3.5).contains(&took.as_secs_f64()), "after {took:?}");
    })
    .await;
}

/// fabric8io/kubernetes-client#7160: expiry goes by the duration stored in the Lease.
#[tokio::test]
async fn a_shorter_duration_in_the_lock_ends_nobody_earlier() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 4).await;
        let sent = MonoInstant::now();
        place.take("nightly", "pod-3").await;
        place
            .edit_lock("nightly", &json!({"spec": {"leaseDurationSeconds": 1}}))
            .await;
        place
            .lease_is("nightly", "it is ended", |lease| lease.record.is_free())
            .await;
        let took = MonoInstant::now().saturating_duration_since(sent);
        assert!(took >= Duration::from_secs(4), "after {took:?}");
    })
    .await;
}

#[tokio::test]
async fn a_token_below_the_floor_is_revoked_and_one_at_it_is_not() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        let grant = place.take("nightly", "pod-3").await;
        place
            .edit_lock(
                "nightly",
                &json!({"spec": {"minFencingToken": grant.token}}),
            )
            .await;
        place
            .lock_is("nightly", "the floor is seen, the holder stays", |lock| {
                let seen = lock
                    .status
                    .as_ref()
                    .and_then(|status| status.observed_generation);
                seen == lock.metadata.generation && shows(lock, &grant)
            })
            .await;
        place
            .edit_lock(
                "nightly",
                &json!({"spec": {"minFencingToken": grant.token.get() + 1}}),
            )
            .await;
        let lock = place.lock_is("nightly", "it is free", is_free).await;
        assert_eq!(last_end(&lock), Some(EndReason::Revoked));
        // flux-iac/tofu-controller#250: an event says why, and by whose hand.
        let note = place.event("Revoked").await;
        assert!(
            note.contains("minFencingToken") && note.contains("by one"),
            "{note}"
        );
        assert!(note.contains(&grant.token.to_string()), "{note}");
        let next = place.take("nightly", "pod-4").await;
        assert!(next.token > grant.token);
    })
    .await;
}

#[tokio::test]
async fn a_lease_deleted_under_its_holder_is_made_again_and_waits_its_time() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 3).await;
        let grant = place.take("nightly", "pod-3").await;
        place.is_shown("nightly", &grant).await;
        let deleted = MonoInstant::now();
        place.delete_lease("nightly").await;
        let missing = |lock: &DistributedLock| {
            condition(lock, names::CONDITION_STALLED)
                == ("True".into(), names::REASON_LEASE_MISSING.into())
        };
        let lock = place.lock_is("nightly", "status says why", missing).await;
        assert_eq!(last_end(&lock), Some(EndReason::Deleted));
        assert_eq!(lock.slot_token(0), Some(grant.token));
        let lock = place.lock_is("nightly", "it is free", is_free).await;
        let took = MonoInstant::now().saturating_duration_since(deleted);
        assert!(took >= Duration::from_secs(3), "after {took:?}");
        assert_eq!(lock.status.expect("a status").history.len(), 1);
        let next = place.take("nightly", "pod-4").await;
        assert!(next.token > grant.token);
        place.is_shown("nightly", &next).await;
    })
    .await;
}

#[tokio::test]
async fn the_value_that_the_condition_names_frees_a_missing_lease_at_once() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 600).await;
        let grant = place.take("nightly", "pod-3").await;
        place.is_shown("nightly", &grant).await;
        place.delete_lease("nightly").await;
        let named = |lock: &DistributedLock| -> Option<i64> {
            let words = message(lock, names::CONDITION_STALLED);
            let (_, rest) = words.split_once("minFencingToken ")?;
            rest.split(' ').next()?.parse().ok()
        };
        let lock = place
            .lock_is("nightly", "a value is named", |lock| named(lock).is_some())
            .await;
        let value = named(&lock).expect("a value");
        place
            .edit_lock("nightly", &json!({"spec": {"minFencingToken": value}}))
            .await;
        place.lock_is("nightly", "it is free", is_free).await;
        let next = place.take("nightly", "pod-4").await;
        assert!(next.token > grant.token && next.token.get() >= value);
    })
    .await;
}

/// A Lease restored from a backup brings old annotations back under a new uid: they count for nothing.
#[tokio::test]
async fn a_restored_lease_of_an_old_grant_lowers_no_token_and_ends_by_itself() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 2).await;
        let old = place.take("nightly", "pod-3").await;
        let mut saved = place.lease("nightly").await.object;
        place.is_shown("nightly", &old).await;
        place.lock_is("nightly", "it ended", is_free).await;
        let newer = place.take("nightly", "pod-4").await;
        place.is_shown("nightly", &newer).await;
        // The restore wins against the operator's own creation or comes after it; either way it is a foreign word.
        saved.metadata.uid = None;
        saved.metadata.resource_version = None;
        saved.metadata.creation_timestamp = None;
        saved.metadata.managed_fields = None;
        place.delete_lease("nightly").await;
        let _ = place.leases.create(&PostParams::default(), &saved).await;
        let lock = place
            .lock_is("nightly", "it is free", |lock| {
                is_free(lock) && last_end(lock) == Some(EndReason::Deleted)
            })
            .await;
        assert_eq!(
            lock.slot_token(0),
            Some(newer.token),
            "the token never fell"
        );
        let next = place.take("nightly", "pod-5").await;
        assert!(next.token > newer.token);
    })
    .await;
}
