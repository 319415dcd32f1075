//! With no operator anywhere: holders renew, free locks are taken, the queue moves, dead heads are passed over.

use std::time::Duration;

use leasehold::clock::MonoInstant;
use leasehold::supervise::Signal;
use serde_json::json;

use super::run_bench::{BUSY, Bench, until};

/// What a loaded machine adds to a bound that the product promises.
const SLACK: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread")]
async fn a_held_lock_keeps_renewing_under_its_token_and_is_given_back() {
    let bench = Bench::new().await;
    bench.opened("kept", 3).await;
    let run = bench.run("kept").by("holder").works_on().start();
    let note = bench.until_noted("start", "holder", BUSY).await;
    let first = bench.lease("kept").await;
    let mut last = first.clone();
    let mut renewals = 0;
    until("it was renewed five times", BUSY, async || {
        let now = bench.lease("kept").await;
        assert_eq!(now.grant_id(), first.grant_id());
        assert_eq!(now.grant, first.grant);
        renewals += u32::from(now.spec.renew_time > last.spec.renew_time);
        last = now;
        renewals >= 5
    })
    .await;
    assert_eq!(last.current_token().unwrap().get(), note.token);
    run.signal(Signal::TERM);
    run.ends(BUSY).await.assert(143, &[]);
    let freed = bench.lease("kept").await;
    assert!(freed.is_free());
    assert_eq!(
        (freed.spec.transitions, freed.spec.duration_seconds),
        (1, Some(1))
    );
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_lease_was_never_made_is_waited_for_and_says_so() {
    let bench = Bench::new().await;
    let lock = bench.lock("unmade", 5).await;
    let mut waiting = bench.run("unmade").by("w").works_for("0").start();
    waiting
        .says("the operator has not made its lease yet, which takes a second: if this lasts, see that one runs")
        .await;
    let began = MonoInstant::now();
    let ended = bench.run("unmade").with(&["--try"]).ends().await;
    let took = MonoInstant::now().saturating_duration_since(began);
    ended.assert(69, &["has not made its lease yet"]);
    assert!(
        took >= Duration::from_secs(5) && took < Duration::from_secs(5) + SLACK,
        "{took:?}"
    );

    // Made, and held by what a deleted Lease may hide: still not for anybody.
    bench.make_lease(&lock, "leasehold.dev/missing").await;
    waiting.says("the operator has not opened it yet").await;
    bench
        .run("unmade")
        .with(&["--try"])
        .ends()
        .await
        .assert(69, &["has not opened it yet"]);
    assert!(waiting.code().is_none());
    bench.open_status(&lock, 5).await;
    bench
        .edit_lease("unmade", json!({"spec": {"holderIdentity": ""}}))
        .await;
    waiting.ends(BUSY).await.assert(0, &[]);
    assert_eq!(bench.waiting().await, 0);
    bench.finish().await;
}

/// kubernetes-client/java#4913 (a): a dead holder's Lease is taken after one duration of silence, whatever its times say.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_of_long_ago_is_replaced_after_one_duration_of_silence() {
    let bench = Bench::new().await;
    let lock = bench.lock("old", 3).await;
    bench.make_lease(&lock, "dead").await;
    bench.open_status(&lock, 3).await;
    let long_ago = "2020-01-01T00:00:00.000000Z";
    bench
        .edit_lease(
            "old",
            json!({"spec": {"renewTime": long_ago, "acquireTime": long_ago}}),
        )
        .await;
    let began = MonoInstant::now();
    let ended = bench.run("old").by("new").works_for("0").ends().await;
    let took = MonoInstant::now().saturating_duration_since(began);
    // Why it waits, and for how long.
    ended.assert(0, &["held by dead since 2020", "its lease ends in 3 s"]);
    assert!(
        took >= Duration::from_secs(3) && took < Duration::from_secs(4) + SLACK,
        "{took:?}"
    );
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_heads_of_the_queue_are_passed_over_within_their_bound() {
    let bench = Bench::new().await;
    bench.opened("heads", 5).await;
    let holder = bench.works("heads", "holder").await;
    // One was killed while it waited, one never was a process.
    let killed = bench.run("heads").by("killed").works_for("0").start();
    bench.until_waiting(1).await;
    killed.signal_tree(Signal::KILL);
    bench.claim_of_nobody("nobody", "heads").await;
    let living = bench.run("heads").by("living").works_for("0").start();
    bench.until_waiting(3).await;
    let last = bench.run("heads").by("last").works_for("0").start();
    bench.until_waiting(4).await;

    let began = MonoInstant::now();
    holder.signal(Signal::TERM);
    holder.ends(BUSY).await.assert(143, &[]);
    bench.until_noted("start", "living", BUSY).await;
    let took = MonoInstant::now().saturating_duration_since(began);
    // Two places behind the first: 2 × 2 s, then one behind the second: 2 s more.
    assert!(
        took >= Duration::from_secs(2) && took < Duration::from_secs(6) + SLACK,
        "{took:?}"
    );
    living.ends(BUSY).await.assert(0, &[]);
    last.ends(BUSY).await.assert(0, &[]);
    assert_eq!(bench.noted("start"), ["holder", "living", "last"]);
    bench.assert_one_at_a_time();
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn next_naming_a_claim_that_is_gone_stops_nobody() {
    let bench = Bench::new().await;
    bench.opened("gone", 5).await;
    let claim = bench.claim_of_nobody("gone", "gone").await;
    let uid = claim.metadata.uid.clone().unwrap();
    let next = json!({"metadata": {"annotations": {"leasehold.dev/next": format!("gone/{uid}")}}});
    bench.edit_lease("gone", next).await;
    // While it counts, nobody else takes.
    bench
        .run("gone")
        .with(&["--try"])
        .ends()
        .await
        .assert(75, &["another's turn", "next is gone"]);
    bench
        .claims()
        .delete("gone", &<_>::default())
        .await
        .unwrap();
    bench
        .run("gone")
        .with(&["--try"])
        .ends()
        .await
        .assert(0, &[]);
    assert_eq!(bench.lease("gone").await.next, None);
    bench.finish().await;
}
