//! What somebody who waits is told, and what is refused before anything is asked for.

use std::time::Duration;

use kube::api::DeleteParams;
use leasehold::clock::MonoInstant;
use leasehold::supervise::Signal;

use super::run_bench::{BUSY, Bench, until};

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_told_whose_turn_it_is_and_that_its_claim_is_gone() {
    let bench = Bench::new().await;
    bench.opened("told", 5).await;
    let holder = bench.run("told").by("holder").works_on().start();
    bench.until_noted("start", "holder", BUSY).await;
    let first = bench.run("told").by("first").works_on().start();
    until("it is named", BUSY, async || {
        bench.lease("told").await.next.is_some()
    })
    .await;
    let second = bench.run("told").by("second").works_on().start();
    second.says("next is first; place 2 in the queue").await;
    let claims = bench.claims().list(&<_>::default()).await.unwrap().items;
    let own = claims
        .iter()
        .find(|claim| claim.claimant() == "second")
        .unwrap();
    let name = own.metadata.name.clone().unwrap();
    let params = DeleteParams::default();
    bench.claims().delete(&name, &params).await.unwrap();
    second
        .says("the claim on lock \"told\" is gone (deleted, or passed over as its turn was not taken)")
        .await;
    bench.until_waiting(2).await;
    for (run, code) in [(second, 143), (first, 143), (holder, 143)] {
        run.signal(Signal::TERM);
        run.ends(BUSY).await.assert(code, &[]);
    }
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_hears_every_thirty_seconds_how_things_stand() {
    let bench = Bench::new().await;
    bench.opened("told", 60).await;
    let holder = bench.hold("told", "holder").await;
    let began = MonoInstant::now();
    let run = bench.run("told").by("waiter").start();
    let heard = || run.stderr().matches("held by holder/").count();
    let thirty = Duration::from_secs(30);
    until("it hears it twice", thirty + BUSY, async || heard() == 2).await;
    let took = MonoInstant::now().saturating_duration_since(began);
    assert!(took >= thirty, "after {took:?}");
    holder.release().await.unwrap();
    run.ends(BUSY).await.assert(0, &[]);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimant_that_would_have_to_be_altered_is_refused() {
    let bench = Bench::new().await;
    for claimant in ["Bad Name/x", "x-", ""] {
        let run = bench.run("refused").by(claimant).with(&["--create"]);
        run.works_for("0")
            .ends()
            .await
            .assert(2, &["must begin and end with a letter or digit"]);
    }
    assert!(bench.locks().get_opt("refused").await.unwrap().is_none());
    bench.finish().await;
}
