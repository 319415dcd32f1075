//! etcd is restored from a backup: what was written since is undone, and revisions go back.
//!
//! kubernetes/kubernetes#107457, etcd-io/etcd#16028.

use std::time::Duration;

use leasehold::api::DistributedLock;
use leasehold::client::{Guard, LossReason};
use leasehold::clock::MonoInstant;
use leasehold::fence::{MemoryGate, Pass, Place};
use leasehold::lease::FoundLease;
use serde_json::json;
use xtask::cluster::{Cluster, Options};

use super::operator_rig::{self, Operator, ends, is_free, lasting, shows};
use super::proxy::Proxy;
use super::run_bench::{BUSY, Bench, until};
use super::server::{install_crds, within};

/// So long that a holder outlives the restore, which takes seconds: its renew deadline is 16 s.
const SECONDS: i32 = 20;

/// A watch lasts 25 s; nothing may wait for more than one of them.
const A_WATCH: Duration = Duration::from_secs(35);

async fn own_cluster() -> (Cluster, Bench) {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let bench = Bench::on(&cluster).await;
    install_crds(&bench.client).await;
    (cluster, bench)
}

fn pass(guard: &Guard) -> Pass {
    Pass::new(guard.token(), guard.identity())
}

/// A namespace whose operator lives through all of it.
struct Operated {
    bench: Bench,
    place: operator_rig::Place,
    operator: Operator,
}

impl Operated {
    /// Its locks are free, so that no slow beat comes to its help: theirs is that of minutes.
    async fn before_the_backup(cluster: &Cluster) -> Self {
        let bench = Bench::on(cluster).await;
        let place = operator_rig::Place::new(&bench.client, &bench.namespace);
        let kubeconfig = Some(bench.kubeconfig());
        let operator = Operator::start_with(&bench.namespace, "one", &[], kubeconfig).await;
        operator.leads().await;
        for lock in ["kept", "silent", "moved"] {
            place.make_free(lock, 2).await;
        }
        Self {
            bench,
            place,
            operator,
        }
    }

    /// What the restore undoes: a Lease is deleted and made again.
    async fn after_the_backup(&self) {
        let before = self.place.lease("moved").await.record.uid;
        self.place.delete_lease("moved").await;
        let another = |lease: &FoundLease| lease.record.uid != before;
        let freed = |lease: &FoundLease| another(lease) && lease.record.is_free();
        let what = "its Lease is made again, and freed";
        self.place.lease_is("moved", what, freed).await;
    }

    async fn after_the_restore(&mut self) {
        let place = &self.place;
        let lock_is = async |name: &str, what: &str, is_so: &dyn Fn(&DistributedLock) -> bool| {
            until(what, A_WATCH, async || {
                is_so(&place.locks.get(name).await.expect("the lock"))
            })
            .await;
        };
        let opened = async {
            place.make("new", lasting(15)).await;
            lock_is("new", "a new lock is opened", &is_free).await;
        };
        let shown = async {
            let grant = place.take("kept", "pod-3").await;
            let is_shown = |lock: &DistributedLock| shows(lock, &grant);
            tokio::select! {
                () = place.go_on("kept", 0, &grant) => unreachable!("it goes on and on"),
                () = lock_is("kept", "a new grant is shown", &is_shown) => {}
            }
        };
        let ended = async |name: &str| {
            place.take(name, "pod-3").await;
            let told = |lock: &DistributedLock| is_free(lock) && ends(lock).len() == 1;
            let what = format!("the silent holder of {name} is ended and told");
            lock_is(name, &what, &told).await;
        };
        tokio::join!(opened, shown, ended("silent"), ended("moved"));
        assert!(self.operator.runs(), "{}", self.operator.log());
    }
}

/// The backup knows both. The waiter's watch began at a revision that is in the far future after the restore: it tells
/// nothing, and must be begun anew. The same of an operator's watches.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_and_a_waiter_live_through_a_restore_of_etcd() {
    let (cluster, bench) = own_cluster().await;
    bench.opened("kept", SECONDS).await;
    let holder = bench.hold("kept", "holder").await;
    let proxy = Proxy::new(&bench).await;
    let mut waiter = proxy.locks().lock("kept").claimant("waiter").begin();
    bench.until_named("kept").await;
    let mut operated = Operated::before_the_backup(&cluster).await;
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
    operated.after_the_backup().await;

    let calls = proxy.calls().len();
    cluster.restore().unwrap();
    let restored = bench.lease("kept").await;
    assert!(restored.resource_version + 400 < before.resource_version);
    assert!(holder.is_held());
    assert_eq!(restored.current_token(), Some(holder.token()));
    let watches_anew = until("the waiter watches anew", A_WATCH, async || {
        let mut calls = proxy.calls().split_off(calls).into_iter();
        calls.any(|call| call.verb == "list" && call.resource == "leases" && call.code == Some(200))
    });
    tokio::join!(watches_anew, operated.after_the_restore());
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
    operated.bench.finish().await;
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
