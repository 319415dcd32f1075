//! The servers themselves freeze and come back: a cluster of our own.

use std::time::Duration;

use futures::future::join_all;
use leasehold::api::names;
use leasehold::clock::{BootInstant, Clock, MonoInstant, SystemClock};
use xtask::cluster::{Cluster, Component, Options};

use super::run_bench::{BUSY, Bench, last_of, until};
use super::server::{install_crds, within};
use super::sidecar::Sidecar;

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_freeze_cost_no_lock_for_a_while_and_then_every_holder_stops_in_time() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let bench = Bench::on(&cluster).await;
    let ended = bench.run("any").ends().await;
    let says = ["install Leasehold first", names::HOW_TO_INSTALL];
    ended.assert(69, &says);
    install_crds(&bench.client).await;

    a_frozen_etcd_costs_no_lock(&bench, &cluster).await;
    a_frozen_api_server_ends_commands_in_time(&bench, &cluster).await;
    a_frozen_api_server_withdraws_a_sidecars_grant_in_time(&bench, &cluster).await;
    an_api_server_that_starts_again_is_waited_for(&bench, &cluster).await;
    bench.finish().await;
}

/// etcd-io/etcd#15247: all leases were revoked when the etcd leader was stuck.
async fn a_frozen_etcd_costs_no_lock(bench: &Bench, cluster: &Cluster) {
    let locks = bench.library().await;
    let names: Vec<_> = (0..50).map(|number| format!("etcd-{number}")).collect();
    for name in &names {
        bench.opened(name, 10).await;
    }
    let guards = join_all(names.iter().map(|name| locks.lock(name).acquire())).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    // They renew at different moments.
    all_renewed(bench, &names).await;
    cluster.freeze(Component::Etcd).unwrap();
    // A renewal is due after at most 0.37 of the lease, and 0.8 of it is the deadline.
    tokio::time::sleep(Duration::from_secs(4)).await;
    cluster.thaw(Component::Etcd).unwrap();
    for guard in &guards {
        assert!(
            guard.is_held(),
            "{}: {:?}",
            guard.lock(),
            guard.lost().await
        );
    }
    all_renewed(bench, &names).await;
    for guard in guards {
        let lease = bench.lease(guard.lock()).await;
        assert!(guard.is_held());
        assert_eq!(lease.current_token(), Some(guard.token()));
        assert_eq!(lease.spec.transitions, 1);
        guard.release().await.unwrap();
    }
}

/// The sidecar vouches no longer, and its file is gone, before the lease ends.
async fn a_frozen_api_server_withdraws_a_sidecars_grant_in_time(bench: &Bench, cluster: &Cluster) {
    bench.opened("sidecar", 10).await;
    let mut sidecar = Sidecar::held(bench, "sidecar").await;
    let reader = sidecar.read_the_file();
    cluster.freeze(Component::ApiServer).unwrap();
    sidecar.until_lost("Unreachable").await;
    cluster.thaw(Component::ApiServer).unwrap();
    assert_eq!(reader.late_reads(), 0);
    sidecar.stops().await;
}

/// Waits until the Lease of each of these locks was renewed once more.
async fn all_renewed(bench: &Bench, names: &[String]) {
    let renewals = async || {
        let leases = names.iter().map(|name| bench.lease(name));
        let leases = join_all(leases).await.into_iter();
        leases
            .map(|lease| lease.spec.renew_time)
            .collect::<Vec<_>>()
    };
    let before = renewals().await;
    until("all are renewed", BUSY, async || {
        let now = renewals().await;
        now.iter().zip(&before).all(|(now, before)| now > before)
    })
    .await;
}

async fn a_frozen_api_server_ends_commands_in_time(bench: &Bench, cluster: &Cluster) {
    bench.opened("frozen", 3).await;
    let run = bench.run("frozen").by("holder").works_on().start();
    bench.until_noted("beat", "holder", BUSY).await;
    let mut library = bench
        .library()
        .await
        .lock("frozen")
        .claimant("waiter")
        .begin();
    bench.until_waiting(1).await;
    let (wall, boot) = (SystemClock.wall().as_microsecond(), BootInstant::now());
    cluster.freeze(Component::ApiServer).unwrap();
    run.ends(BUSY).await.assert(76, &["Unreachable"]);
    cluster.thaw(Component::ApiServer).unwrap();
    cluster.wait_ready().unwrap();

    // Its last renewal, on the clock of the journal.
    let ended = within(BUSY, "the next one has it", library.outcome())
        .await
        .unwrap();
    let lease = bench.lease("frozen").await;
    let note = last_of(&bench.journal(), "holder");
    let acquired = lease.spec.acquire_time.unwrap();
    let frozen_at = Duration::from_nanos(boot.as_nanos()).as_secs_f64();
    assert!(
        note.at < frozen_at + 3.0,
        "{note:?} lived longer than any lease of before {frozen_at}"
    );
    assert!(acquired > wall);
    assert!(ended.token().get() > note.token);
    ended.release().await.unwrap();
}

async fn an_api_server_that_starts_again_is_waited_for(bench: &Bench, cluster: &Cluster) {
    bench.opened("restart", 30).await;
    let locks = bench.library().await;
    let guard = locks.lock("restart").claimant("a").acquire().await.unwrap();
    let mut waiter = locks.lock("restart").claimant("b").begin();
    bench.until_waiting(1).await;
    let began = MonoInstant::now();
    cluster.restart(Component::ApiServer).unwrap();
    // It took a part of the lease, and nobody lost anything.
    assert!(MonoInstant::now().saturating_duration_since(began) < Duration::from_secs(20));
    assert!(guard.is_held());
    let before = guard.token();
    guard.release().await.unwrap();
    let next = within(BUSY * 2, "the waiter has it", waiter.outcome())
        .await
        .unwrap();
    assert!(next.token() > before);
    next.release().await.unwrap();
}
