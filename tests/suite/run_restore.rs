//! etcd is restored from a backup: what was written since is undone, and revisions go back.
//!
//! kubernetes/kubernetes#107457, etcd-io/etcd#16028.

use std::time::Duration;

use leasehold::client::{Guard, LossReason};
use leasehold::clock::MonoInstant;
use leasehold::fence::{MemoryGate, Pass, Place};
use serde_json::json;
use xtask::cluster::{Cluster, Options};

use super::proxy::Proxy;
use super::run_bench::{BUSY, Bench, until};
use super::server::{install_crds, within};

/// So long that a holder outlives the restore, which takes seconds: its renew deadline is 16 s.
const SECONDS: i32 = 20;

async fn own_cluster() -> (Cluster, Bench) {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let bench = Bench::on(&cluster).await;
    install_crds(&bench.client).await;
    (cluster, bench)
}

fn pass(guard: &Guard) -> Pass {
    Pass::new(guard.token(), guard.identity())
}

/// The backup knows both. The waiter's watch began at a revision that is in the far future after the restore: it tells
/// nothing, and must be begun anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_and_a_waiter_live_through_a_restore_of_etcd() {
    let (cluster, bench) = own_cluster().await;
    bench.opened("kept", SECONDS).await;
    let holder = bench.hold("kept", "holder").await;
    let proxy = Proxy::new(&bench).await;
    let mut waiter = proxy.locks().lock("kept").claimant("waiter").begin();
    bench.until_named("kept").await;
    cluster.back_up().unwrap();
    let backed_up = bench.lease("kept").await;
    for round in 0..500 {
        let annotation = json!({"metadata": {"annotations": {"round": round.to_string()}}});
        bench.edit_lease("kept", annotation).await;
    }
    until("it is renewed since", BUSY, async || {
        bench.lease("kept").await.spec.renew_time > backed_up.spec.renew_time
    })
    .await;
    let before = bench.lease("kept").await;
    assert!(before.resource_version >= backed_up.resource_version + 500);

    let calls = proxy.calls().len();
    cluster.restore().unwrap();
    let restored = bench.lease("kept").await;
    assert!(restored.resource_version + 400 < before.resource_version);
    assert!(holder.is_held());
    assert_eq!(restored.current_token(), Some(holder.token()));
    until("the waiter watches anew", 3 * BUSY, async || {
        let mut calls = proxy.calls().split_off(calls).into_iter();
        calls.any(|call| call.verb == "list" && call.resource == "leases" && call.code == Some(200))
    })
    .await;
    until("it is renewed since", BUSY, async || {
        bench.lease("kept").await.spec.renew_time > restored.spec.renew_time
    })
    .await;
    let held = bench.lease("kept").await;
    assert!(held.resource_version < before.resource_version);
    assert_eq!(held.grant_id(), before.grant_id());
    assert!(holder.is_held());

    let began = MonoInstant::now();
    let token = holder.token();
    holder.release().await.unwrap();
    let next = within(BUSY, "the waiter has it", waiter.outcome())
        .await
        .unwrap();
    // Not a slow beat.
    let took = MonoInstant::now().saturating_duration_since(began);
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(next.token() > token);
    next.release().await.unwrap();
    bench.finish().await;
}

/// The backup knows the lock as free: its Lease is granted a second time from the same revision, so with the same token.
/// Nothing in the cluster can tell; the gate can. A raised floor ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_a_restored_etcd_grants_twice_is_refused_by_the_gate() {
    let (cluster, bench) = own_cluster().await;
    bench.opened("twice", SECONDS).await;
    cluster.back_up().unwrap();
    let gate = MemoryGate::new();
    let place = Place::new(&bench.namespace, "twice", 0);
    let first = bench.hold("twice", "first").await;
    gate.raise(&place, &pass(&first)).await.unwrap();

    cluster.restore().unwrap();
    let second = bench.hold("twice", "second").await;
    assert_eq!(second.token(), first.token());
    let refused = gate.raise(&place, &pass(&second)).await.unwrap_err();
    assert_eq!(refused.kept, pass(&first));
    // Whose grant was undone learns it by its next renewal, and must not end the other's.
    let lost = within(BUSY, "the first one is told", first.lost()).await;
    assert_eq!(lost, LossReason::TakenOver);
    assert!(second.is_held());

    let floor = json!({"minFencingToken": first.token().get() + 1});
    bench.edit_lock("twice", floor).await;
    let third = bench.hold("twice", "third").await;
    let lost = within(BUSY, "the second one is told", second.lost()).await;
    assert_eq!(lost, LossReason::Revoked);
    assert!(third.token() > first.token());
    gate.raise(&place, &pass(&third)).await.unwrap();
    assert!(gate.raise(&place, &pass(&second)).await.is_err());
    third.release().await.unwrap();
    bench.finish().await;
}
