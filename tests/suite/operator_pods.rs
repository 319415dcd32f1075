//! Waiters whose Pods are gone.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::wait::await_condition;
use leasehold::api::{DistributedLock, EndReason, LockClaim, LockClaimSpec};
use leasehold::client::Acquiring;
use leasehold::clock::MonoInstant;
use leasehold::lease::FoundLease;
use rustix::process::Signal;
use serde_json::json;

use super::operator_place::ended;
use super::operator_rig::{LONG, Operator, Place, QUICK, ends, in_place, is_free};
use super::run_bench::long;
use super::server::within;

/// Calls at once where many objects are made.
const AT_ONCE: usize = 16;

async fn delete_pods(place: &Place) {
    let (all, how) = (ListParams::default(), DeleteParams::default());
    let deleted = place.pods().delete_collection(&how, &all).await;
    deleted.expect("the pods can be deleted");
}

/// A claim that goes with its Pod, as a library makes it; nobody waits behind it.
async fn claim_of(place: &Place, name: &str, pod: Option<&Pod>) {
    let mut claim = LockClaim::new(name, LockClaimSpec::heartbeat("nightly"));
    let owner = |pod: &Pod| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name_any(),
        uid: pod.uid().expect("a uid"),
        ..OwnerReference::default()
    };
    claim.metadata.owner_references = pod.map(|pod| vec![owner(pod)]);
    let made = place.claims.create(&PostParams::default(), &claim).await;
    made.expect("the claim is made");
}

/// So many dead claims, each of a Pod of its own.
async fn claims_of_pods(place: &Place, count: usize) {
    stream::iter(0..count)
        .for_each_concurrent(AT_ONCE, async |number| {
            let name = format!("dead-{number}");
            let pod = place.make_pod(&name).await;
            claim_of(place, &name, Some(&pod)).await;
        })
        .await;
}

/// Waiters that live, begun and in the queue behind so many dead claims.
async fn waiters(place: &Place, count: usize, dead: usize) -> Vec<Acquiring> {
    let locks = place.library().await;
    let waiters = (0..count).map(|number| {
        let claimant = format!("live-{number}");
        locks.lock("nightly").claimant(&claimant).begin()
    });
    let waiters = waiters.collect();
    let all = i32::try_from(dead + count).expect("not so many");
    let there = await_condition(
        place.locks.clone(),
        "nightly",
        move |lock: Option<&DistributedLock>| {
            let status = lock.and_then(|lock| lock.status.as_ref());
            status.is_some_and(|status| status.waiters == Some(all))
        },
    );
    let there = within(Duration::from_mins(4), "they wait", there).await;
    there.expect("a watch");
    waiters
}

/// How long after `began` one of them has the lock.
async fn first_to_hold(mut waiters: Vec<Acquiring>, began: MonoInstant) -> Duration {
    let outcomes = waiters.iter_mut().map(|waiter| Box::pin(waiter.outcome()));
    let (guard, _, rest) = futures::future::select_all(outcomes).await;
    let took = MonoInstant::now().saturating_duration_since(began);
    let guard = guard.expect("it holds");
    drop(rest);
    guard.release().await.expect("it is given back");
    took
}

/// Of 1,000 waiters the first 500 lose their Pods. Of the others the first are tasks; nobody comes to those behind.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_whose_pods_are_gone_cost_nothing() {
    in_place(async |place| {
        let (dead, living, behind) = if long() { (500, 20, 480) } else { (40, 10, 0) };
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        let locks = place.library().await;
        let holder = locks.lock("nightly").acquire().await.expect("it is free");
        claims_of_pods(&place, dead).await;
        let waiters = waiters(&place, living, dead).await;
        let make = async |number| claim_of(&place, &format!("behind-{number}"), None).await;
        stream::iter(0..behind)
            .for_each_concurrent(AT_ONCE, make)
            .await;
        delete_pods(&place).await;
        let began = MonoInstant::now();
        holder.release().await.expect("it is given back");
        let took = within(LONG, "somebody holds it", first_to_hold(waiters, began)).await;
        assert!(took < Duration::from_secs(5), "after {took:?}");
    })
    .await;
}

/// While no operator runs the Pods go; the garbage collector deletes their claims, but later than this.
#[tokio::test(flavor = "multi_thread")]
async fn one_write_skips_all_that_are_dead() {
    in_place(async |place| {
        let operator = Operator::start(&place.namespace, "one", QUICK).await;
        let lock = place.make_free("nightly", 60).await;
        let holder = place.take("nightly", "pod-0").await;
        claims_of_pods(&place, 20).await;
        claim_of(&place, "live", None).await;
        let named = |name: &'static str| {
            move |lease: &FoundLease| {
                let next = lease.record.next.as_ref();
                next.is_some_and(|next| next.name.starts_with(name))
            }
        };
        place
            .lease_is("nightly", "a dead one is named", named("dead-"))
            .await;
        operator.signal(Signal::KILL);
        delete_pods(&place).await;
        let since = place.lease("nightly").await.record.resource_version;
        let _heir = Operator::start(&place.namespace, "heir", QUICK).await;
        let after = place
            .lease_is("nightly", "the living one is named", named("live"))
            .await;
        assert_eq!(
            after.record.spec.holder, holder.holder,
            "and nothing else has changed"
        );
        let only_it = WatchParams::default().fields(&format!("metadata.name={}", lock.name_any()));
        let changes = place
            .leases
            .watch(&only_it, &since.to_string())
            .await
            .expect("a watch")
            .boxed();
        let states = changes.try_filter_map(async |event| match event {
            WatchEvent::Modified(lease) => Ok(FoundLease::read(lease)),
            _ => Ok(None),
        });
        let first = within(LONG, "a change", states.boxed().try_next())
            .await
            .expect("a watch");
        assert!(
            first.is_some_and(|first| named("live")(&first)),
            "it took more than one write"
        );
    })
    .await;
}

/// Claims that nobody waits behind, and that no Pod owns.
#[tokio::test(flavor = "multi_thread")]
async fn dead_claims_without_pods_cost_two_seconds_each() {
    in_place(async |place| {
        let dead: u32 = 10;
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        let locks = place.library().await;
        let holder = locks.lock("nightly").acquire().await.expect("it is free");
        for number in 0..dead {
            claim_of(&place, &format!("dead-{number}"), None).await;
        }
        let waiters = waiters(&place, 2, dead as usize).await;
        let began = MonoInstant::now();
        holder.release().await.expect("it is given back");
        // And what a busy machine adds in all.
        let limit = Duration::from_secs(2) * dead + Duration::from_secs(7);
        let took = within(
            limit + LONG,
            "somebody holds it",
            first_to_hold(waiters, began),
        )
        .await;
        assert!(took < limit, "after {took:?}");
        place.claim_goes("dead-0").await;
    })
    .await;
}

/// The kubelet's word, not the phase alone, nor a deleted object.
#[tokio::test]
async fn a_holder_whose_pod_has_ended_is_ended_before_its_lease() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        place.make_free("nightly", 60).await;
        let pod = place.make_pod("web").await;
        place.take_from(&pod, "nightly").await;
        place
            .edit_pod("web", json!({"phase": "Failed", "reason": "NodeLost"}))
            .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(
            !place.lease("nightly").await.record.is_free(),
            "a phase proves nothing"
        );
        let began = MonoInstant::now();
        place.edit_pod("web", ended("main")).await;
        let lock = place.lock_is("nightly", "it is free", is_free).await;
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!(took < Duration::from_secs(3), "after {took:?}");
        assert_eq!(ends(&lock), [EndReason::Ended]);
    })
    .await;
}
