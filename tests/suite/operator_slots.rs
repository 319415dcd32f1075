//! Locks of several slots: one Lease a slot, one queue, tokens by slot.

use std::time::Duration;

use leasehold::api::{
    DistributedLock, DistributedLockSpec, EndReason, LockPhase, SlotStatus, names,
};
use leasehold::clock::MonoInstant;
use leasehold::engine::ClaimRef;
use serde_json::json;

use super::operator_rig::{Operator, Place, condition, in_place, lasting, message, shows_in};
use super::run_bench::BUSY;
use super::server::within;

fn semaphore(slots: i32, seconds: i32) -> DistributedLockSpec {
    DistributedLockSpec {
        max_holders: slots,
        ..lasting(seconds)
    }
}

fn held(lock: &DistributedLock) -> Option<&str> {
    lock.status.as_ref()?.held.as_deref()
}

/// Whether status shows so many slots, all free, and is Ready.
fn all_free(lock: &DistributedLock, slots: usize) -> bool {
    let shown = lock.status.as_ref().map_or(&[][..], |status| &status.slots);
    shown.len() == slots
        && shown.iter().all(SlotStatus::is_free)
        && condition(lock, names::CONDITION_READY).0 == "True"
        && condition(lock, names::CONDITION_HELD).0 == "False"
}

async fn make_free(place: &Place, slots: usize, seconds: i32) -> DistributedLock {
    let count = i32::try_from(slots).expect("few slots");
    place.make("gpu", semaphore(count, seconds)).await;
    place
        .lock_is("gpu", "it is free", |lock| all_free(lock, slots))
        .await
}

async fn set_max_holders(place: &Place, slots: i32) {
    let patch = json!({"spec": {"maxHolders": slots}});
    place.edit_lock("gpu", &patch).await;
}

#[tokio::test]
async fn each_slot_has_a_lease_of_its_own_and_status_shows_them_all() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let lock = make_free(&place, 3, 60).await;
        assert_eq!(held(&lock), Some("0/3"));
        for lease in ["gpu", "gpu.1", "gpu.2"] {
            let found = place.lease(lease).await;
            assert!(found.record.is_free(), "{lease}");
            assert_eq!(found.record.lock_label.as_deref(), Some("gpu"));
            assert_eq!(found.record.owners.len(), 1, "{lease} goes with its lock");
        }
        // Two holders, and the lock shows both; each slot has tokens of its own.
        let last = place.take_slot("gpu", 2, "pod-3").await;
        let first = place.take_slot("gpu", 0, "pod-1").await;
        let lock = place
            .lock_is("gpu", "both are shown", |lock| {
                shows_in(lock, 2, &last) && shows_in(lock, 0, &first)
            })
            .await;
        let status = lock.status.as_ref().expect("a status");
        assert_eq!(status.held.as_deref(), Some("2/3"));
        assert_eq!(status.holder.as_deref(), Some("pod-1 +1"));
        assert_eq!(status.phase, Some(LockPhase::Held));
        assert_eq!(status.fencing_token, Some(first.token.max(last.token)));
        assert_eq!(status.lease_name.as_deref(), Some("gpu"));
        let words = message(&lock, names::CONDITION_HELD);
        assert!(
            words.contains(&first.holder) && words.contains(&last.holder),
            "{words}"
        );
        place.release("gpu.2", &last).await;
        let told = |lock: &DistributedLock| {
            let history = lock.status.iter().flat_map(|status| &status.history);
            let told: Vec<_> = history
                .map(|end| (end.slot, end.fencing_token, end.reason))
                .collect();
            told == [(2, Some(last.token), EndReason::Released)]
        };
        let lock = place.lock_is("gpu", "history has the slot", told).await;
        assert_eq!(held(&lock), Some("1/3"));
        assert_eq!(lock.slot_token(2), Some(last.token), "the token stays");
        let again = place.take_slot("gpu", 2, "pod-4").await;
        assert!(again.token > last.token);
    })
    .await;
}

#[tokio::test]
async fn silent_holders_are_ended_slot_by_slot() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        make_free(&place, 2, 2).await;
        let silent = place.take_slot("gpu", 1, "silent").await;
        let alive = place.take_slot("gpu", 0, "alive").await;
        tokio::select! {
            () = place.go_on("gpu", 0, &alive) => unreachable!("it goes on and on"),
            _ = place.lease_is("gpu.1", "it is ended", |lease| lease.record.is_free()) => {}
        }
        place.renew("gpu", 0, &alive).await;
        let lock = place
            .lock_is("gpu", "one is ended, one stays", |lock| {
                held(lock) == Some("1/2") && shows_in(lock, 0, &alive)
            })
            .await;
        let history = lock.status.expect("a status").history;
        assert_eq!(history.len(), 1);
        assert_eq!(
            (history[0].slot, history[0].reason),
            (1, EndReason::Expired)
        );
        assert_eq!(history[0].fencing_token, Some(silent.token));
    })
    .await;
}

/// Raised, a lock has more slots; lowered, it evicts nobody, and what is above is not taken again.
#[tokio::test]
async fn max_holders_is_raised_and_lowered_while_the_lock_is_held() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        make_free(&place, 1, 2).await;
        let first = place.take_slot("gpu", 0, "pod-0").await;
        set_max_holders(&place, 3).await;
        place
            .lock_is("gpu", "all slots are there", |lock| {
                lock.slot_status(2).is_some() && held(lock) == Some("1/3")
            })
            .await;
        let lease = place
            .lease_is("gpu.2", "it is freed", |lease| lease.record.is_free())
            .await;
        let surplus = place.take_slot("gpu", 2, "pod-2").await;
        place.release("gpu", &first).await;
        set_max_holders(&place, 1).await;
        let keep = async |place: &Place| place.renew("gpu", 2, &surplus).await;
        keep(&place).await;
        place
            .lock_is("gpu", "the surplus holder is shown", |lock| {
                held(lock) == Some("1/1") && shows_in(lock, 2, &surplus)
            })
            .await;
        keep(&place).await;
        // A claim is named for slot 0 only: once that is taken, nobody is passed over though slot 1 is free.
        let holder = place.take_slot("gpu", 0, "pod-1").await;
        place.queue_up("a", "gpu").await;
        place.is_named("gpu", "a").await;
        // The surplus holder falls silent and is ended like any other; its Lease and its entry stay.
        let lock = place
            .lock_is("gpu", "it is ended", |lock| {
                let history = lock.status.iter().flat_map(|status| &status.history);
                let mut of_slot = history.filter(|end| end.slot == 2);
                of_slot.any(|end| end.reason == EndReason::Expired)
            })
            .await;
        assert_eq!(lock.slot_token(2), Some(surplus.token));
        let kept = place.lease("gpu.2").await;
        assert!(kept.record.is_free());
        assert_eq!(kept.record.uid, lease.record.uid);
        assert!(holder.token > first.token);
        // Raised again, the slot goes on above its old tokens, without being opened anew.
        set_max_holders(&place, 3).await;
        place
            .lock_is("gpu", "it has three again", |lock| {
                held(lock).is_some_and(|held| held.ends_with("/3"))
            })
            .await;
        let again = place.take_slot("gpu", 2, "pod-5").await;
        assert!(again.token > surplus.token);
    })
    .await;
}

/// A newcomer saw the earliest waiter served last: nobody who waited knew of the new slots before its slow beat, and the
/// operator passed over one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn slots_that_are_added_serve_those_who_wait_at_once_and_in_their_order() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        make_free(&place, 1, 30).await;
        place.take("gpu", "long").await;
        let locks = place.library().await;
        let mut waiters = vec![];
        for number in 0..4 {
            waiters.push(locks.lock("gpu").claimant(&format!("w{number}")).begin());
            place.has_waiters("gpu", number + 1).await;
        }
        set_max_holders(&place, 5).await;
        let began = MonoInstant::now();
        let (mut tokens, mut held_now) = (vec![], vec![]);
        for waiter in &mut waiters {
            let guard = within(BUSY, "it is served", waiter.outcome()).await;
            let guard = guard.expect("it holds");
            tokens.push(guard.token());
            held_now.push(guard);
        }
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!(tokens.is_sorted(), "in the order of coming: {tokens:?}");
        assert!(
            took < Duration::from_secs(10),
            "not by slow beats: {took:?}"
        );
        assert_eq!(place.lease("gpu").await.record.slots, Some(5));
    })
    .await;
}

#[tokio::test]
async fn a_conflict_of_one_slot_stops_no_other() {
    in_place(async |place| {
        let spec = json!({"holderIdentity": "somebody-else"});
        place.make_lease("gpu.1", &json!({}), &spec).await;
        let _operator = Operator::leading(&place.namespace).await;
        // No watch shows a Lease without the label: it is read on the slow beat.
        place.make("gpu", semaphore(3, 5)).await;
        let lock = place
            .lock_is("gpu", "the conflict is told", |lock| {
                condition(lock, names::CONDITION_STALLED)
                    == ("True".into(), names::REASON_LEASE_CONFLICT.into())
                    && lock.slot_status(2).is_some()
            })
            .await;
        let words = message(&lock, names::CONDITION_STALLED);
        assert!(words.contains("Lease gpu.1 "), "{words}");
        assert_eq!(lock.slot_status(1), None);
        for (slot, lease) in [(0, "gpu"), (2, "gpu.2")] {
            place
                .lease_is(lease, "it is freed", |lease| lease.record.is_free())
                .await;
            let grant = place.take_slot("gpu", slot, "pod").await;
            place
                .lock_is("gpu", "it is shown", |lock| shows_in(lock, slot, &grant))
                .await;
        }
        let foreign = place.lease("gpu.1").await;
        assert_eq!(foreign.record.spec.holder, "somebody-else");
        // Its owner goes: the slot comes.
        place.delete_lease("gpu.1").await;
        place
            .lock_is("gpu", "nothing is wrong", |lock| {
                condition(lock, names::CONDITION_STALLED).0 == "False"
                    && lock.slot_status(1).is_some()
            })
            .await;
    })
    .await;
}

/// One queue for all slots: a claim is named on slot 0's Lease, and passed over where it leaves any slot untaken.
#[tokio::test]
async fn a_claim_that_leaves_any_slot_untaken_is_passed_over() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        make_free(&place, 2, 60).await;
        place.take_slot("gpu", 0, "long").await;
        let other = place.take_slot("gpu", 1, "short").await;
        for name in ["dead", "next"] {
            place.queue_up(name, "gpu").await;
        }
        place.is_named("gpu", "dead").await;
        place.release("gpu.1", &other).await;
        place.is_named("gpu", "next").await;
        place.claim_goes("dead").await;
        assert_eq!(place.lease("gpu.1").await.record.next, None);
        let lock = place.locks.get("gpu").await.expect("the lock");
        assert_eq!(held(&lock), Some("1/2"));
    })
    .await;
}

/// A taker of slot 1 that dies between its take and its second write leaves `next` at its own claim.
#[tokio::test]
async fn who_took_another_slot_is_not_next_any_more() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        make_free(&place, 2, 60).await;
        place.take_slot("gpu", 0, "long").await;
        let first = place.queue_up("a", "gpu").await;
        place.queue_up("b", "gpu").await;
        let first = ClaimRef {
            name: "a".to_owned(),
            uid: first.metadata.uid.expect("a uid"),
        };
        place
            .lease_is("gpu", "the first is named", |lease| {
                lease.record.next.as_ref() == Some(&first)
            })
            .await;
        let identity = format!("a/{}", first.uid);
        place.take_in("gpu", 1, identity, None).await;
        place.is_named("gpu", "b").await;
        place.claim_goes("a").await;
    })
    .await;
}

#[tokio::test]
async fn a_floor_of_one_slot_revokes_there_alone() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        make_free(&place, 2, 60).await;
        let stays = place.take_slot("gpu", 0, "stays").await;
        let goes = place.take_slot("gpu", 1, "goes").await;
        let floor = json!([{"slot": 1, "token": goes.token.get() + 1}]);
        place
            .edit_lock("gpu", &json!({"spec": {"slotMinFencingTokens": floor}}))
            .await;
        let revoked = |lock: &DistributedLock| {
            let mut history = lock.status.iter().flat_map(|status| &status.history);
            history.any(|end| (end.slot, end.reason) == (1, EndReason::Revoked))
        };
        let lock = place.lock_is("gpu", "it is revoked", revoked).await;
        assert!(shows_in(&lock, 0, &stays));
        let next = place.take_slot("gpu", 1, "next").await;
        assert!(next.token > goes.token);
        // The lock's own floor is that of every slot.
        let both = json!({"minFencingToken": next.token.get().max(stays.token.get()) + 1});
        place.edit_lock("gpu", &json!({"spec": both})).await;
        place
            .lock_is("gpu", "all are revoked", |lock| held(lock) == Some("0/2"))
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_slots_lease_deleted_under_its_holder_waits_its_time_and_the_others_go_on() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        make_free(&place, 2, 60).await;
        let grant = place.take_slot("gpu", 1, "pod-1").await;
        place
            .lock_is("gpu", "it is shown", |lock| shows_in(lock, 1, &grant))
            .await;
        place.delete_lease("gpu.1").await;
        let lock = place
            .lock_is("gpu", "status says why", |lock| {
                condition(lock, names::CONDITION_STALLED)
                    == ("True".into(), names::REASON_LEASE_MISSING.into())
            })
            .await;
        let words = message(&lock, names::CONDITION_STALLED);
        let (_, named) = words
            .split_once("Lease gpu.1 was deleted")
            .and_then(|(_, rest)| rest.split_once("slotMinFencingTokens [{slot: 1, token: "))
            .unwrap_or_else(|| panic!("{words}"));
        let value: i64 = named
            .split('}')
            .next()
            .and_then(|value| value.parse().ok())
            .expect("a number");
        let other = place.take_slot("gpu", 0, "pod-0").await;
        let floor = json!([{"slot": 1, "token": value}]);
        place
            .edit_lock("gpu", &json!({"spec": {"slotMinFencingTokens": floor}}))
            .await;
        place
            .lock_is("gpu", "the slot is free, the other is held", |lock| {
                held(lock) == Some("1/2")
                    && shows_in(lock, 0, &other)
                    && condition(lock, names::CONDITION_STALLED).0 == "False"
            })
            .await;
        assert!(place.take_slot("gpu", 1, "pod-2").await.token > grant.token);
    })
    .await;
}
