//! The claimant whose turn it is dies around the release: the one behind it holds within its bound.

use std::time::Duration;

use futures::future::join_all;
use leasehold::supervise::Signal;

use super::operator_rig::{Operator, Place};
use super::run_bench::{BUSY, Bench, until};

/// T of the locks here.
const SECONDS: i32 = 3;
/// What a loaded machine adds to a bound that the product promises.
const SLACK: Duration = Duration::from_secs(4);

/// When the named one dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Before,
    During,
    After,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_claimant_that_dies_around_the_release_holds_nobody_up() {
    let bench = Bench::new().await;
    let moments = [Moment::Before, Moment::During, Moment::After];
    let alone = moments.map(async |moment| {
        let lock = format!("alone-{moment:?}").to_lowercase();
        bench.opened(&lock, SECONDS).await;
        dies(&bench, &lock, moment).await;
    });
    join_all(alone).await;
    let operator = Operator::leading(&bench.namespace).await;
    let place = Place::new(&bench.client, &bench.namespace);
    let kept = moments.map(async |moment| {
        let lock = format!("kept-{moment:?}").to_lowercase();
        place.make_free(&lock, SECONDS).await;
        dies(&bench, &lock, moment).await;
    });
    join_all(kept).await;
    drop(operator);
    bench.finish().await;
}

async fn dies(bench: &Bench, lock: &str, moment: Moment) {
    let name = |role: &str| format!("{lock}-{role}");
    let holder = bench.run(lock).by(&name("holder")).works_on().start();
    bench.until_noted("start", &name("holder"), BUSY).await;
    let named = bench.run(lock).by(&name("named")).works_on().start();
    bench.until_named(lock).await;
    let next = bench.run(lock).by(&name("next")).works_for("0").start();
    next.says("waiting for lock").await;
    if moment == Moment::Before {
        named.signal_tree(Signal::KILL);
    }
    let held = bench.lease(lock).await.spec.holder;
    holder.signal(Signal::TERM);
    if moment == Moment::After {
        until("the holder has released", BUSY, async || {
            bench.lease(lock).await.spec.holder != held
        })
        .await;
    }
    named.signal_tree(Signal::KILL);
    // It is passed over after two seconds, or has taken and is silent for its lease.
    let most = Duration::from_secs(2).max(Duration::from_secs(SECONDS.unsigned_abs().into()));
    bench
        .until_noted("start", &name("next"), most + SLACK)
        .await;
    next.ends(BUSY).await.assert(0, &[]);
    holder.ends(BUSY).await.assert(143, &[]);
}
