//! `onHolderLost: Hold`: a lock that stays locked after a holder that was lost, until a person frees it.

use std::time::Duration;

use leasehold::api::{
    DistributedLock, DistributedLockSpec, EndReason, LockPhase, OnHolderLost, names,
};
use leasehold::clock::MonoInstant;
use serde_json::json;

use super::operator_rig::{
    Operator, Place, QUICK, condition, ends, in_place, is_free, lasting, message, shows,
};

fn holding(seconds: i32) -> DistributedLockSpec {
    DistributedLockSpec {
        on_holder_lost: OnHolderLost::Hold,
        ..lasting(seconds)
    }
}

fn phase(lock: &DistributedLock) -> Option<LockPhase> {
    lock.status.as_ref()?.phase
}

fn is_abandoned(lock: &DistributedLock) -> bool {
    phase(lock) == Some(LockPhase::Abandoned)
        && condition(lock, names::CONDITION_HELD) == ("True".into(), names::REASON_ABANDONED.into())
}

/// The number that a message names after `minFencingToken`.
fn named_floor(message: &str) -> Option<i64> {
    let (_, rest) = message.split_once("minFencingToken ")?;
    rest.split(' ').next()?.parse().ok()
}

async fn raise_floor(place: &Place, value: i64) {
    place
        .edit_lock("nightly", &json!({"spec": {"minFencingToken": value}}))
        .await;
}

/// Waits until the lock shows that its holder was lost.
async fn abandoned(place: &Place) -> DistributedLock {
    place
        .lock_is("nightly", "it is abandoned", is_abandoned)
        .await
}

#[tokio::test]
async fn after_a_lost_holder_the_lock_stays_locked_and_says_what_frees_it() {
    in_place(async |place| {
        let operator = Operator::leading(&place.namespace).await;
        let spec = DistributedLockSpec {
            lock_delay_seconds: 1,
            ..holding(1)
        };
        place.make_free_of("nightly", spec).await;
        let sent = MonoInstant::now();
        let grant = place.take("nightly", "pod-3").await;
        let lock = abandoned(&place).await;
        let took = MonoInstant::now().saturating_duration_since(sent);
        assert!(took >= Duration::from_secs(2), "after {took:?}");
        assert!(took <= Duration::from_secs(4), "after {took:?}");
        assert!(shows(&lock, &grant), "its holder is still shown");
        let ready = condition(&lock, names::CONDITION_READY);
        assert_eq!(ready.0, "True", "it works as it was asked to");
        assert_eq!(condition(&lock, names::CONDITION_STALLED).0, "False");
        let words = message(&lock, names::CONDITION_HELD);
        assert!(words.contains(&grant.holder), "{words}");
        let floor = named_floor(&words).expect("a value");
        assert_eq!(floor, grant.token.get() + 1);
        let note = place.event("Abandoned").await;
        assert!(named_floor(&note) == Some(floor), "{note}");
        operator
            .eventually("it is counted", async || {
                operator
                    .metric("leasehold_locks{phase=\"abandoned\"}")
                    .await
                    == Some(1.0)
                    && operator.metric("leasehold_locks_abandoned").await == Some(1.0)
            })
            .await;

        // A sign of life brings it back; then silence again.
        place.renew("nightly", 0, &grant).await;
        let back = place
            .lock_is("nightly", "it is held again", |lock| {
                phase(lock) == Some(LockPhase::Held) && shows(lock, &grant)
            })
            .await;
        assert_eq!(
            condition(&back, names::CONDITION_HELD).1,
            names::REASON_HELD
        );
        abandoned(&place).await;
        raise_floor(&place, floor).await;
        let lock = place.lock_is("nightly", "it is free", is_free).await;
        assert_eq!(ends(&lock), [EndReason::Revoked]);
        assert!(place.take("nightly", "pod-4").await.token > grant.token);
    })
    .await;
}

/// A leader that has just begun can't tell silence from life yet: it leaves what the one before has said.
#[tokio::test]
async fn a_new_leader_leaves_an_abandoned_lock_abandoned_until_it_knows_better() {
    in_place(async |place| {
        let operator = Operator::leading(&place.namespace).await;
        place.make_free_of("nightly", holding(2)).await;
        let grant = place.take("nightly", "pod-3").await;
        let before = abandoned(&place).await;
        drop(operator);
        let operator = Operator::start(&place.namespace, "two", QUICK).await;
        operator.leads().await;
        // Something for it to write: its first look is done.
        let seen = place.is_looked_at("nightly").await;
        assert!(is_abandoned(&seen), "{:?}", seen.status);
        assert_eq!(
            message(&seen, names::CONDITION_HELD),
            message(&before, names::CONDITION_HELD)
        );
        // A sign of life is believed at once.
        place.renew("nightly", 0, &grant).await;
        place
            .lock_is("nightly", "it is held again", |lock| {
                phase(lock) == Some(LockPhase::Held)
            })
            .await;
        abandoned(&place).await;
    })
    .await;
}

#[tokio::test]
async fn a_lost_holder_of_one_slot_is_freed_by_that_slots_floor() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let spec = DistributedLockSpec {
            max_holders: 2,
            ..holding(1)
        };
        place.make_free_of("nightly", spec).await;
        place
            .lease_is("nightly.1", "it is freed", |lease| lease.record.is_free())
            .await;
        let grant = place.take_slot("nightly", 1, "pod-3").await;
        let lock = abandoned(&place).await;
        let words = message(&lock, names::CONDITION_HELD);
        let token = grant.token.get() + 1;
        let named = format!("slotMinFencingTokens [{{slot: 1, token: {token}}}]");
        assert!(words.contains(&named), "{words}");
        // The other slot serves on.
        let other = place.take_slot("nightly", 0, "pod-4").await;
        place
            .lock_is("nightly", "it is shown", |lock| {
                shows(lock, &other) && phase(lock) == Some(LockPhase::Abandoned)
            })
            .await;
        place.release("nightly", &other).await;
        let floor = json!([{"slot": 1, "token": token}]);
        place
            .edit_lock("nightly", &json!({"spec": {"slotMinFencingTokens": floor}}))
            .await;
        place.lock_is("nightly", "it is free", is_free).await;
    })
    .await;
}

/// An operator that died between the first status entry and the freeing leaves a `missing`, which under Hold nothing
/// ends by time: the condition names the value that frees it.
#[tokio::test]
async fn a_lock_whose_opening_was_cut_short_is_freed_by_the_value_that_the_condition_names() {
    in_place(async |place| {
        let mut lock = place.make("nightly", holding(1)).await;
        let missing = json!({
            "holderIdentity": names::HOLDER_MISSING, "leaseDurationSeconds": 1, "leaseTransitions": 0,
        });
        let labels = json!({names::LABEL_LOCK: "nightly"});
        place.make_lease("nightly", &labels, &missing).await;
        let status = json!({
            "longestLeaseDurationSeconds": 1,
            "slots": [{"slot": 0, "fencingToken": 0, "holderIdentity": ""}],
        });
        lock.status = serde_json::from_value(status).expect("a status");
        place
            .locks
            .replace_status("nightly", &kube::api::PostParams::default(), &lock)
            .await
            .expect("it is opened");
        let _operator = Operator::leading(&place.namespace).await;
        let lock = place
            .lock_is("nightly", "a value is named", |lock| {
                named_floor(&message(lock, names::CONDITION_STALLED)).is_some()
            })
            .await;
        let words = message(&lock, names::CONDITION_STALLED);
        assert!(words.contains("onHolderLost is Hold"), "{words}");
        assert_eq!(
            condition(&lock, names::CONDITION_STALLED).1,
            names::REASON_LEASE_MISSING
        );
        let floor = named_floor(&words).expect("a value");
        raise_floor(&place, floor).await;
        place.lock_is("nightly", "it is free", is_free).await;
        assert!(place.take("nightly", "pod-3").await.token.get() >= floor);
    })
    .await;
}
