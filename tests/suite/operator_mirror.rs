//! What the operator makes, and what status shows.

use kube::api::DeleteParams;
use kube::runtime::conditions::is_deleted;
use kube::runtime::wait::await_condition;
use leasehold::api::{ConditionStatus, EndReason, FencingToken, HoldType, LockPhase, names};
use serde_json::json;

use super::operator_rig::{LONG, Operator, condition, in_place, is_free, shows};
use super::server::within;

#[tokio::test]
async fn a_lock_gets_its_lease_and_is_opened_at_once() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let lock = place.make_free("nightly", 15).await;
        let status = lock.status.expect("a status");
        assert_eq!(status.phase, Some(LockPhase::Free));
        assert_eq!(status.held.as_deref(), Some("0/1"));
        assert_eq!(status.lease_name.as_deref(), Some("nightly"));
        assert_eq!(status.longest_lease_duration_seconds, Some(15));
        assert_eq!(status.observed_generation, lock.metadata.generation);
        assert_eq!(status.waiters, Some(0));

        let lease = place.lease("nightly").await;
        assert!(lease.record.is_free());
        assert_eq!(lease.record.lock_label.as_deref(), Some("nightly"));
        let owner = lease
            .object
            .metadata
            .owner_references
            .expect("an owner")
            .remove(0);
        assert_eq!(Some(owner.uid), lock.metadata.uid);
        assert_eq!(owner.block_owner_deletion, Some(false));
    })
    .await;
}

#[tokio::test]
async fn status_shows_holder_token_pod_and_node_and_then_history() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 30).await;
        let first = place.take("nightly", "pod-3").await;
        let lock = place.is_shown("nightly", &first).await;
        let status = lock.status.as_ref().expect("a status");
        assert_eq!(status.phase, Some(LockPhase::Held));
        assert_eq!(status.held.as_deref(), Some("1/1"));
        assert_eq!(status.holder.as_deref(), Some("pod-3"));
        assert_eq!(status.fencing_token, Some(first.token));
        let slot = &status.slots[0];
        assert_eq!(slot.claimant.as_deref(), Some("pod-3"));
        assert_eq!(slot.hold, Some(HoldType::Heartbeat));
        assert_eq!(slot.lease_duration_seconds, Some(30));
        assert_eq!(slot.node_name.as_deref(), Some("node-7"));
        assert!(slot.acquire_time.is_some());
        assert_eq!(
            condition(&lock, names::CONDITION_HELD).0,
            ConditionStatus::True.as_str()
        );

        // Release, as the holder does.
        place.release("nightly", &first).await;
        let lock = place.lock_is("nightly", "it is free again", is_free).await;
        let status = lock.status.expect("a status");
        assert_eq!(status.fencing_token, Some(first.token), "the token stays");
        assert_eq!(status.holder, None);
        let [end] = &status.history[..] else {
            panic!("one entry: {:?}", status.history);
        };
        assert_eq!(end.reason, EndReason::Released);
        assert_eq!(end.fencing_token, Some(first.token));
        assert_eq!(end.holder_identity, first.holder);

        let second = place.take("nightly", "pod-4").await;
        assert!(second.token > first.token);
        place.is_shown("nightly", &second).await;
    })
    .await;
}

/// What was dropped is not told again once there is room.
#[tokio::test]
async fn history_is_as_long_as_its_limit_says_also_once_that_is_lowered() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        let hold = async || {
            let grant = place.take("nightly", "pod-3").await;
            place.is_shown("nightly", &grant).await;
            place.release("nightly", &grant).await;
            place.lock_is("nightly", "it is free again", is_free).await;
            grant.token
        };
        let tells = async |what: &str, expected: &[FencingToken]| {
            let lock = place.locks.get("nightly").await.expect("the lock");
            let history = lock.status.expect("a status").history;
            let tokens: Vec<_> = history.iter().filter_map(|end| end.fencing_token).collect();
            assert_eq!(tokens, expected, "{what}");
        };
        let limit = async |limit: i32| {
            let patch = json!({"spec": {"historyLimit": limit}});
            place.edit_lock("nightly", &patch).await;
            let seen = |lock: &leasehold::api::DistributedLock| {
                let seen = lock.status.as_ref().and_then(|s| s.observed_generation);
                lock.spec.history_limit == limit && seen == lock.metadata.generation
            };
            place.lock_is("nightly", "the limit is seen", seen).await;
        };
        let (first, second, third) = (hold().await, hold().await, hold().await);
        tells("all of them", &[third, second, first]).await;
        limit(1).await;
        tells("the last one", &[third]).await;
        let fourth = hold().await;
        tells("the last one anew", &[fourth]).await;
        limit(0).await;
        tells("nothing", &[]).await;
        let fifth = hold().await;
        tells("nothing", &[]).await;
        limit(10).await;
        tells("still nothing", &[]).await;
        let sixth = hold().await;
        tells("what has ended since", &[sixth]).await;
        assert!(sixth > fifth);
    })
    .await;
}

/// kubeflow/notebooks#1343, restatedev/restate-operator#138: a status write that causes the next one.
#[tokio::test]
async fn renewals_cause_no_status_write_and_hardly_a_look() {
    in_place(async |place| {
        let operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 1).await;
        let library = place.library().await;
        let guard = library.lock("nightly").claimant("pod-3").acquire().await;
        let guard = guard.expect("it is free");
        let token = guard.token();
        let shown = place
            .lock_is("nightly", "it is shown", |lock| {
                lock.slot_token(0) == Some(token)
            })
            .await;
        let looks = async || {
            let count = "leasehold_reconcile_duration_seconds_count";
            operator.metric(count).await.expect("a count")
        };
        let before = looks().await;
        let lease = place.lease("nightly").await;
        // A dozen renewals.
        let renewed = |now: &leasehold::lease::FoundLease| {
            now.record.spec.renew_time > lease.record.spec.renew_time.map(|time| time + 4_000_000)
        };
        place
            .lease_is("nightly", "it was renewed for 4 s", renewed)
            .await;
        let now = place.locks.get("nightly").await.expect("the lock");
        assert_eq!(
            now.metadata.resource_version,
            shown.metadata.resource_version
        );
        let more = looks().await - before;
        assert!(more <= 10.0, "{more} looks in 4 lease durations");
        guard.release().await.expect("it is given back");
    })
    .await;
}

#[tokio::test]
async fn waiters_are_counted_and_named_in_the_order_of_coming() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        place.take("nightly", "pod-0").await;
        for name in ["c", "a", "b"] {
            place.queue_up(name, "nightly").await;
        }
        place.has_waiters("nightly", 3).await;
        let status = place.locks.get("nightly").await.expect("the lock").status;
        assert_eq!(status.expect("a status").next_waiters, ["c", "a", "b"]);
        place.is_named("nightly", "c").await;
        place.delete_claim("c").await;
        place.is_named("nightly", "a").await;
    })
    .await;
}

/// A raised duration is in status before anybody may store it.
#[tokio::test]
async fn the_longest_lease_duration_only_rises() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 10).await;
        let shows = |seconds: i32| {
            move |lock: &leasehold::api::DistributedLock| {
                let status = lock.status.as_ref();
                status.is_some_and(|status| {
                    status.longest_lease_duration_seconds == Some(seconds)
                        && status.observed_generation == lock.metadata.generation
                })
            }
        };
        place
            .edit_lock("nightly", &json!({"spec": {"leaseDurationSeconds": 20}}))
            .await;
        place.lock_is("nightly", "it is raised", shows(20)).await;
        place
            .edit_lock("nightly", &json!({"spec": {"leaseDurationSeconds": 5}}))
            .await;
        place.lock_is("nightly", "it stays", shows(20)).await;
    })
    .await;
}

/// kubeflow, operator-sdk#6677: leftovers.
#[tokio::test]
async fn no_lease_stays_behind_a_deleted_lock_and_a_new_one_starts_higher() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 30).await;
        let before = place.take("nightly", "pod-3").await;
        place
            .locks
            .delete("nightly", &DeleteParams::background())
            .await
            .expect("it can be deleted");
        let uid = before.uid.clone();
        let gone = await_condition(place.leases.clone(), "nightly", is_deleted(&uid));
        within(LONG, "its Lease is collected", gone)
            .await
            .expect("a watch");
        place.make_free("nightly", 30).await;
        let after = place.take("nightly", "pod-4").await;
        assert!(after.token > before.token);
    })
    .await;
}

#[tokio::test]
async fn an_absurd_minimal_token_shows_and_stops_nothing_else() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 30).await;
        place
            .edit_lock(
                "nightly",
                &json!({"spec": {"minFencingToken": FencingToken::MAX.get()}}),
            )
            .await;
        let ahead = |lock: &leasehold::api::DistributedLock| {
            condition(lock, names::CONDITION_TOKEN_AHEAD)
                == ("True".into(), names::REASON_TOKEN_AHEAD.into())
        };
        place.lock_is("nightly", "it says so", ahead).await;
        let grant = place.take("nightly", "pod-3").await;
        assert_eq!(grant.token, FencingToken::MAX);
        place
            .lock_is("nightly", "the last token is shown", |lock| {
                shows(lock, &grant) && ahead(lock)
            })
            .await;
        for reason in ["TokenAhead", "AbsurdTokenIgnored"] {
            place.event(reason).await;
        }
    })
    .await;
}
