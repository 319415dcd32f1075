//! Leases of other clients: left alone without consent, shared with it.

use k8s_openapi::api::events::v1::Event;
use kube::api::DeleteParams;
use leasehold::api::{ClaimPhase, DistributedLock, DistributedLockSpec, EndReason, names};
use serde_json::json;

use super::operator_place::{ended, fixed, token};
use super::operator_rig::{Operator, condition, in_place, is_free, lasting};

fn sharing(lease: &str) -> DistributedLockSpec {
    DistributedLockSpec {
        lease_name: Some(lease.to_owned()),
        ..lasting(15)
    }
}

fn stalled(reason: &'static str) -> impl Fn(&DistributedLock) -> bool {
    move |lock| {
        condition(lock, names::CONDITION_STALLED) == ("True".into(), reason.into())
            && condition(lock, names::CONDITION_READY).0 == "False"
    }
}

/// openconfig/gnmic#981: a foreign Lease is never taken over.
#[tokio::test]
async fn a_lease_that_happens_to_have_the_locks_name_is_left_alone() {
    in_place(async |place| {
        let spec = json!({"holderIdentity": "other", "leaseDurationSeconds": 1, "renewTime": "2020-01-01T00:00:00.000000Z"});
        let before = place.make_lease("router", &json!({}), &spec).await;
        let _operator = Operator::leading(&place.namespace).await;
        place.make("router", lasting(1)).await;
        let lock = place.lock_is("router", "it says so", stalled(names::REASON_LEASE_CONFLICT)).await;
        assert_eq!(lock.slot_status(0), None, "it was never opened");
        assert_eq!(place.lease("router").await.record, before.record, "nothing was written");
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_shared_once_its_label_consents_and_its_holder_gets_a_token() {
    in_place(async |place| {
        let spec = json!({
            "holderIdentity": "elector-1_ab", "leaseDurationSeconds": 30, "leaseTransitions": 4,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z",
        });
        let before = place.make_lease("elector", &json!({}), &spec).await;
        let _operator = Operator::leading(&place.namespace).await;
        place.make("mine", sharing("elector")).await;
        place.lock_is("mine", "it waits for consent", stalled(names::REASON_NOT_SHARED)).await;
        assert_eq!(place.lease("elector").await.record, before.record, "nothing was written");

        let consent = json!({"metadata": {"labels": {names::LABEL_SHARED_WITH: "mine"}}});
        place.edit_lease("elector", &consent).await;
        let lock = place
            .lock_is("mine", "the foreign holder is shown", |lock| {
                lock.slot_status(0).is_some_and(|slot| slot.holder_identity == "elector-1_ab")
            })
            .await;
        let token = lock.slot_token(0).expect("a token");
        assert_eq!(lock.slot_status(0).and_then(|slot| slot.hold), None, "it is none of ours");
        let stamped = place.lease("elector").await;
        assert_eq!(stamped.record.spec, before.record.spec, "the stamp leaves spec alone");
        assert_eq!(stamped.record.current_token(), Some(token));
        assert_eq!(stamped.object.metadata.owner_references, None);
        assert_eq!(stamped.record.lock_label, None);

        // It releases as client-go does; a grant of ours then has a higher token.
        let release = json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}});
        place.edit_lease("elector", &release).await;
        let lock = place.lock_is("mine", "it is free", is_free).await;
        let history = &lock.status.expect("a status").history;
        assert_eq!(history.first().map(|end| (end.reason, end.fencing_token)), Some((EndReason::Released, Some(token))));
        let ours = place.take("mine", "pod-3").await;
        assert!(ours.token > token);
    })
    .await;
}

#[tokio::test]
async fn a_shared_lease_that_is_not_there_is_made_and_stays_when_the_lock_goes() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free_of("mine", sharing("elector")).await;
        let made = place.lease("elector").await;
        assert_eq!(made.record.shared_with.as_deref(), Some("mine"));
        assert_eq!(made.object.metadata.owner_references, None);

        // A stock elector takes it, and takes it again after it.
        let mut last = None;
        for (transitions, holder) in [(1, "elector-1_ab"), (2, "elector-2_cd")] {
            let take = json!({"spec": {
                "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": transitions,
            }});
            place.edit_lease("elector", &take).await;
            let lock = place
                .lock_is("mine", "its holder is shown", |lock| {
                    lock.slot_status(0).is_some_and(|slot| slot.holder_identity == holder)
                })
                .await;
            assert!(lock.slot_token(0) > last);
            last = lock.slot_token(0);
        }
    })
    .await;
}

/// The consent is withdrawn and given again: the hold in between is the same, and status does not lose it.
#[tokio::test]
async fn a_hold_outlives_a_withdrawal_of_consent_and_is_shown_again() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make("nightly", sharing("elector")).await;
        place.claim("seat", fixed(600)).await;
        let granted = place.claim_in("seat", ClaimPhase::Granted).await;
        let before = place.lease("elector").await.record;
        let holds = |lock: &DistributedLock| {
            let shown = |slot: &leasehold::api::SlotStatus| {
                slot.holder_identity == before.spec.holder && slot.hold.is_some()
            };
            condition(lock, names::CONDITION_READY).0 == "True"
                && lock.slot_status(0).is_some_and(shown)
        };
        place.lock_is("nightly", "the hold is shown", holds).await;
        let label = |value| json!({"metadata": {"labels": {names::LABEL_SHARED_WITH: value}}});
        place.edit_lease("elector", &label(None)).await;
        place
            .lock_is(
                "nightly",
                "it has no consent",
                stalled(names::REASON_NOT_SHARED),
            )
            .await;
        place.edit_lease("elector", &label(Some("nightly"))).await;
        place
            .lock_is("nightly", "the hold is shown again", holds)
            .await;
        assert_eq!(place.lease("elector").await.record.spec, before.spec);
        let claim = place.claim_in("seat", ClaimPhase::Granted).await;
        assert_eq!(token(&claim), token(&granted));
        place.delete_claim("seat").await;
        let lock = place.lock_is("nightly", "it is free", is_free).await;
        let history = lock.status.expect("a status").history;
        let told: Vec<_> = history
            .iter()
            .map(|end| (end.reason, end.fencing_token))
            .collect();
        let own = granted.status.expect("a status").fencing_token;
        assert_eq!(told, [(EndReason::Released, own)]);
    })
    .await;
}

#[tokio::test]
async fn two_locks_do_not_share_one_lease() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free_of("first", sharing("elector")).await;
        place.make("second", sharing("elector")).await;
        let lock = place
            .lock_is(
                "second",
                "it is refused",
                stalled(names::REASON_LEASE_CONFLICT),
            )
            .await;
        assert_eq!(lock.slot_status(0), None);
        place.make("elector", lasting(15)).await;
        place
            .lock_is(
                "elector",
                "so is a lock of that name",
                stalled(names::REASON_LEASE_CONFLICT),
            )
            .await;
        let first = place.locks.get("first").await.expect("the lock");
        assert!(is_free(&first), "the first one keeps it");
        // Once the first is gone the next one may have the Lease, if the label consents to it.
        for gone in ["first", "elector"] {
            place
                .locks
                .delete(gone, &DeleteParams::default())
                .await
                .expect("it can be deleted");
        }
        let consent = json!({"metadata": {"labels": {names::LABEL_SHARED_WITH: "second"}}});
        place.edit_lease("elector", &consent).await;
        place
            .lock_is("second", "it has the lease now", is_free)
            .await;
    })
    .await;
}

#[tokio::test]
async fn the_grants_of_a_lease_are_told_on_the_lock_that_has_it() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        // Either may be looked at first.
        for (has, lacks, lease) in [("alpha", "bravo", "one"), ("delta", "charlie", "two")] {
            place.make_free_of(has, sharing(lease)).await;
            place.make(lacks, sharing(lease)).await;
            let refused = stalled(names::REASON_LEASE_CONFLICT);
            place.lock_is(lacks, "it is refused", refused).await;
            for _ in 0..3 {
                let grant = place.take(has, "pod-3").await;
                place.is_shown(has, &grant).await;
                place.release(lease, &grant).await;
                place.lock_is(has, "it is free", is_free).await;
            }
        }
        let granted = |all: Vec<Event>| {
            let granted = all
                .into_iter()
                .filter(|event| event.reason.as_deref() == Some("Granted"));
            let mut on: Vec<_> = granted.filter_map(|event| event.regarding?.name).collect();
            on.sort_unstable();
            (on.len() == 6).then_some(on)
        };
        let on = place.events_tell("all grants", granted).await;
        assert_eq!(on, ["alpha", "alpha", "alpha", "delta", "delta", "delta"]);
    })
    .await;
}

#[tokio::test]
async fn the_lease_of_the_operators_own_election_is_refused_even_with_consent() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let consent = json!({"metadata": {"labels": {names::LABEL_SHARED_WITH: "mine"}}});
        place.edit_lease("leasehold-operator", &consent).await;
        place.make("mine", sharing("leasehold-operator")).await;
        place
            .lock_is(
                "mine",
                "it is refused",
                stalled(names::REASON_LEASE_CONFLICT),
            )
            .await;
        place.make("leasehold-operator", lasting(15)).await;
        place
            .lock_is(
                "leasehold-operator",
                "so is a lock of its name",
                stalled(names::REASON_LEASE_CONFLICT),
            )
            .await;
    })
    .await;
}

/// Found while attacking the design: the annotation of the last grant outlives it, and names a Pod. The end of that Pod
/// may end nobody else's hold.
#[tokio::test]
async fn the_end_of_an_earlier_holders_pod_ends_no_foreign_hold() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free_of("mine", sharing("elector")).await;
        let pod = place.make_pod("web").await;
        let ours = place.take_from(&pod, "mine").await;
        place.release("elector", &ours).await;
        let freed = place.lease("elector").await.record;
        let take = json!({"spec": {
            "holderIdentity": "elector-1_ab", "leaseDurationSeconds": 60,
            "leaseTransitions": freed.spec.transitions + 1,
        }});
        place.edit_lease("elector", &take).await;
        place
            .lock_is("mine", "the foreign holder is shown", |lock| {
                lock.slot_status(0)
                    .is_some_and(|slot| slot.holder_identity == "elector-1_ab")
            })
            .await;
        let before = place.lease("elector").await.record;
        place.edit_pod("web", ended("main")).await;
        place.delete_pod("web").await;
        // The operator has done other work since.
        place.make_free("another", 15).await;
        assert_eq!(place.lease("elector").await.record, before);
    })
    .await;
}
