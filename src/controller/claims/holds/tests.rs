use std::sync::Arc;

use serde_json::{Value, json};

use super::super::{ClaimAction, plan, was_ended};
use super::*;
use crate::lease::FoundLease;

const UID: &str = "11111111-2222-3333-4444-555555555555";

fn seat(spec: &Value, status: &Value) -> Arc<LockClaim> {
    let claim = json!({
        "metadata": {"name": "seat", "namespace": "a", "uid": UID, "resourceVersion": "4", "generation": 1},
        "spec": {"lockName": "nightly", "hold": spec}, "status": status,
    });
    Arc::new(serde_json::from_value(claim).expect("a claim"))
}

fn fixed() -> Value {
    json!({"type": "Fixed", "fixed": {"seconds": 600}})
}

/// A Lease held for the claim.
fn slot(annotations: &Value, holder: &str) -> SlotLease {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "nightly", "namespace": "a", "uid": "u1", "resourceVersion": "8", "annotations": annotations},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 600, "leaseTransitions": 3,
            "acquireTime": "2026-01-01T00:00:00.900000Z", "renewTime": "2026-01-01T00:00:00.900000Z",
        },
    });
    let lease = FoundLease::read(serde_json::from_value(lease).expect("a lease"));
    SlotLease {
        number: 0,
        name: "nightly".to_owned(),
        lease: lease.expect("a lease").record,
        prolonged_to: None,
    }
}

fn held() -> SlotLease {
    let holder = format!("seat/{UID}");
    slot(
        &json!({"leasehold.dev/grant": format!("v1;u1;3;7;Fixed;/;{holder}")}),
        &holder,
    )
}

fn lock(entry: &Value, history: &Value) -> DistributedLock {
    let lock = json!({
        "metadata": {"name": "nightly", "namespace": "a", "uid": "l"}, "spec": {},
        "status": {"slots": [entry], "history": history},
    });
    serde_json::from_value(lock).expect("a lock")
}

fn entry(token: i64, holder: &str, duration: i64) -> Value {
    json!({"slot": 0, "fencingToken": token, "holderIdentity": holder, "hold": "Fixed", "leaseDurationSeconds": duration})
}

fn planned(
    claim: &Arc<LockClaim>,
    lock: Option<&DistributedLock>,
    slots: &[SlotLease],
) -> Vec<ClaimAction> {
    let all = Claims {
        claims: vec![claim.clone()],
        lock,
        lock_name: "nightly",
        slots: slots.to_vec(),
        without_pod: std::iter::empty().collect(),
        wall: 1_767_225_700_000_000,
    };
    plan(&all).0
}

fn status(actions: &[ClaimAction]) -> LockClaimStatus {
    match actions {
        [ClaimAction::Status(_, status)] => (**status).clone(),
        other => panic!("{other:?}"),
    }
}

fn granted_status() -> Value {
    json!({
        "phase": "Granted", "ticket": 4, "slot": 0, "leaseName": "nightly", "holderIdentity": format!("seat/{UID}"),
        "fencingToken": 7, "grantTime": "2026-01-01T00:00:00Z", "expireTime": "2026-01-01T00:10:00Z",
    })
}

#[test]
fn granted_is_shown_only_after_the_locks_status_shows_the_grant_and_its_duration() {
    let holder = format!("seat/{UID}");
    let claim = seat(&fixed(), &json!({"phase": "Pending"}));
    for stale in [entry(6, "", 15), entry(7, "", 600), entry(7, &holder, 15)] {
        let lock = lock(&stale, &json!([]));
        let status = status(&planned(&claim, Some(&lock), &[held()]));
        assert_eq!(status.phase, Some(ClaimPhase::Pending), "{stale}");
        assert_eq!(status.fencing_token, None);
    }
    let lock = lock(&entry(7, &holder, 600), &json!([]));
    let status = status(&planned(&claim, Some(&lock), &[held()]));
    assert_eq!(status.phase, Some(ClaimPhase::Granted));
    assert_eq!(status.ticket, Some(4));
    let mut told = serde_json::to_value(&status).expect("a status");
    for field in [
        "ticket",
        "slot",
        "leaseName",
        "holderIdentity",
        "fencingToken",
        "grantTime",
        "expireTime",
    ] {
        assert_eq!(told[field].take(), granted_status()[field], "{field}");
    }
    // Nothing more is written while nothing changes.
    let claim = seat(&fixed(), &serde_json::to_value(&status).expect("a status"));
    assert_eq!(planned(&claim, Some(&lock), &[held()]), []);
    // It was taken while its time to wait ran out: it has it.
    let mut impatient = (*seat(&fixed(), &json!({"phase": "Pending"}))).clone();
    impatient.spec.wait_timeout_seconds = Some(0);
    impatient.metadata.creation_timestamp = Some(super::time(0));
    let unseen = super::tests::lock(&entry(6, "", 15), &json!([]));
    let waits = super::tests::status(&planned(&Arc::new(impatient), Some(&unseen), &[held()]));
    assert_eq!(waits.phase, Some(ClaimPhase::Pending));
}

#[test]
fn a_prolonged_hold_tells_its_new_end_once_the_locks_status_shows_it() {
    let holder = format!("seat/{UID}");
    let claim = seat(
        &json!({"type": "Fixed", "fixed": {"seconds": 900}}),
        &granted_status(),
    );
    let mut slot = held();
    slot.prolonged_to = Some(900);
    slot.lease.spec.duration_seconds = Some(870);
    for (mirrored, expected) in [(600, "2026-01-01T00:10:00Z"), (870, "2026-01-01T00:15:00Z")] {
        let lock = lock(&entry(7, &holder, mirrored), &json!([]));
        let told = status(&planned(&claim, Some(&lock), std::slice::from_ref(&slot)));
        let until = told.expire_time.map(|time| time.0.to_string());
        assert_eq!(until.as_deref(), Some(expected));
        assert_eq!(told.fencing_token.map(FencingToken::get), Some(7));
    }
}

#[test]
fn a_grant_that_its_lease_does_not_show_any_more_is_over_as_notes_or_history_tell() {
    let note = |kind: &str, token: i64| json!({"leasehold.dev/ended": format!("v1;u1;3;{token};{kind};op;why")});
    let told = |reason: &str| json!([{"slot": 0, "holderIdentity": "x", "fencingToken": 7, "reason": reason}]);
    for (notes, history, phase, reason) in [
        (
            note("Released", 7),
            json!([]),
            ClaimPhase::Released,
            names::REASON_RELEASED,
        ),
        (
            note("Ended", 7),
            json!([]),
            ClaimPhase::Released,
            names::REASON_POD_ENDED,
        ),
        (
            note("Expired", 7),
            json!([]),
            ClaimPhase::Expired,
            names::REASON_EXPIRED,
        ),
        (
            note("Revoked", 7),
            json!([]),
            ClaimPhase::Revoked,
            names::REASON_REVOKED,
        ),
        (
            note("Released", 9),
            told("Expired"),
            ClaimPhase::Expired,
            names::REASON_EXPIRED,
        ),
        (
            json!({}),
            told("Released"),
            ClaimPhase::Released,
            names::REASON_RELEASED,
        ),
        (
            json!({}),
            told("Deleted"),
            ClaimPhase::Revoked,
            names::REASON_REVOKED,
        ),
        (
            note("Released", 9),
            json!([]),
            ClaimPhase::Revoked,
            names::REASON_REVOKED,
        ),
    ] {
        let claim = seat(&fixed(), &granted_status());
        let lock = lock(&entry(9, "", 15), &history);
        let actions = planned(&claim, Some(&lock), &[slot(&notes, "")]);
        assert!(actions.iter().all(was_ended), "the server is asked first");
        let status = status(&actions);
        assert_eq!(status.phase, Some(phase), "{notes} {history}");
        let ready =
            find_condition(&status.conditions, names::CONDITION_READY).expect("a condition");
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str()),
            ("False", reason)
        );
        assert_eq!(
            status.fencing_token.map(FencingToken::get),
            Some(7),
            "it stays"
        );
    }
    // The lock, or the Lease, was deleted.
    let claim = seat(&fixed(), &granted_status());
    assert_eq!(
        status(&planned(&claim, None, &[])).phase,
        Some(ClaimPhase::Revoked)
    );
    // Somebody else holds it, or the claim under another token.
    let other = slot(&json!({}), "other/u");
    assert_eq!(
        status(&planned(&claim, None, &[other])).phase,
        Some(ClaimPhase::Revoked)
    );
    // Only the annotation was dropped: status knows its token.
    let holder = format!("seat/{UID}");
    let lock = lock(&entry(7, &holder, 600), &json!([]));
    let bare = slot(&json!({}), &holder);
    assert_eq!(
        status(&planned(&claim, Some(&lock), &[bare])).phase,
        Some(ClaimPhase::Granted)
    );
}

#[test]
fn the_engine_sees_a_claim_as_its_status_shows_it() {
    let state = |status: Value| {
        hold_claim(&seat(&fixed(), &status), None)
            .expect("a hold")
            .state
    };
    let over = |phase: &str, reason: &str| {
        let since = "2026-01-01T00:00:00Z";
        let ready = json!({"type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": since});
        state(json!({"phase": phase, "conditions": [ready]}))
    };
    assert_eq!(state(json!({"phase": "Pending"})), ClaimState::Waiting);
    let granted = ClaimState::Granted {
        slot: 0,
        token: 7,
        seconds: Some(600),
    };
    assert_eq!(state(granted_status()), granted);
    for (phase, reason, end) in [
        ("Released", "Released", ClaimEnd::Released),
        ("Released", "PodEnded", ClaimEnd::PodEnded),
        ("Expired", "Expired", ClaimEnd::Expired),
        ("Revoked", "Revoked", ClaimEnd::Revoked),
        ("Revoked", "MaxHold", ClaimEnd::MaxHold),
        ("TimedOut", "TimedOut", ClaimEnd::Unused),
        ("Rejected", "QueueFull", ClaimEnd::Unused),
    ] {
        assert_eq!(over(phase, reason), ClaimState::Over(end));
        if end != ClaimEnd::Unused {
            let claim = seat(&fixed(), &granted_status());
            let status = serde_json::to_value(finished(&claim, end, 0)).expect("a status");
            assert_eq!(
                state(status),
                ClaimState::Over(end),
                "what is written is read back"
            );
        }
    }
    assert_eq!(
        hold_claim(&seat(&json!({"type": "Heartbeat"}), &json!({})), None),
        None
    );
}

/// A floor above the revision gives the next grants of several slots the same token.
#[test]
fn the_end_of_another_slot_with_the_same_token_is_not_taken_for_its_own() {
    let ended = |number: i32, how: &str| {
        let note = json!({"leasehold.dev/ended": format!("v1;u1;3;7;{how};op;words")});
        SlotLease {
            number,
            ..slot(&note, "")
        }
    };
    let mut shown = granted_status();
    shown["slot"] = json!(1);
    let claim = seat(&fixed(), &shown);
    let other =
        json!([{"slot": 0, "holderIdentity": "x/1", "fencingToken": 7, "reason": "Expired"}]);
    let lock = lock(&entry(7, "", 15), &other);
    for (slots, phase) in [
        (
            vec![ended(0, "Expired"), ended(1, "Released")],
            ClaimPhase::Released,
        ),
        // Of its own end nothing is known any more: somebody took it away.
        (vec![ended(0, "Expired")], ClaimPhase::Revoked),
    ] {
        let status = status(&planned(&claim, Some(&lock), &slots));
        assert_eq!(status.phase, Some(phase));
    }
}

/// It may be seen to at any time, so the claim itself is not stalled.
#[test]
fn a_claim_on_a_stalled_lock_says_what_hinders_the_lock() {
    let claim = seat(&fixed(), &json!({"phase": "Pending"}));
    let mut lock = lock(&entry(6, "", 15), &json!([]));
    let told = |lock: &DistributedLock| {
        let status = status(&planned(&claim, Some(lock), &[]));
        assert_eq!(status.claimant.as_deref(), Some("seat"));
        let condition = |type_| find_condition(&status.conditions, type_).expect("a condition");
        let ready = condition(names::CONDITION_READY);
        assert_eq!(condition(names::CONDITION_STALLED).status, "False");
        (ready.reason.clone(), ready.message.clone())
    };
    assert_eq!(told(&lock).0, names::REASON_PENDING);
    let stalled = json!([{
        "type": "Stalled", "status": "True", "reason": "LeaseConflict", "message": "another has it",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let known = lock.status.as_mut().expect("a status");
    known.conditions = serde_json::from_value(stalled).expect("conditions");
    let words = "lock nightly is stalled (LeaseConflict): another has it".to_owned();
    assert_eq!(told(&lock), ("LockStalled".to_owned(), words));
}
