//! Waiting when the watch fails, and many locks in one process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use leasehold::api::names::STRICT_MODE_REFUSAL;
use leasehold::client::{Acquiring, Progress, Waiting};
use leasehold::clock::MonoInstant;
use serde_json::json;

use super::proxy::{Call, Fault, Proxy};
use super::run_bench::{BUSY, Bench, long, until};
use super::server::within;

/// How long after the release the waiter had the lock.
async fn hand_over(
    bench: &Bench,
    lock: &str,
    mut waiter: Acquiring,
    release: impl Future<Output = ()>,
) -> Duration {
    let began = MonoInstant::now();
    release.await;
    let guard = within(BUSY, "the waiter has it", waiter.outcome())
        .await
        .unwrap();
    let took = MonoInstant::now().saturating_duration_since(began);
    guard.release().await.unwrap();
    assert!(bench.lease(lock).await.is_free());
    took
}

/// kube-rs/kube#1615 (a): the watch ends, for its resourceVersion is too old.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_ends_is_begun_again() {
    let bench = Bench::new().await;
    bench.opened("gone", 60).await;
    let holder = bench.hold("gone", "a").await;
    let proxy = Proxy::new(&bench).await;
    proxy.fault("watch", "leases", 3, Fault::WatchGone);
    let waiter = proxy.locks().lock("gone").claimant("b").begin();
    bench.until_waiting(1).await;
    until("the watch was begun again", BUSY, async || {
        proxy
            .calls()
            .iter()
            .filter(|call| call.verb == "watch")
            .count()
            > 3
    })
    .await;
    let release = async {
        holder.release().await.unwrap();
    };
    let took = hand_over(&bench, "gone", waiter, release).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    bench.finish().await;
}

/// kube-rs/kube#1615 (b), kubernetes-client/javascript#2432: the watch is open and never tells anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_tells_nothing_costs_one_slow_beat() {
    let bench = Bench::new().await;
    bench.opened("silent", 5).await;
    let holder = bench.hold("silent", "a").await;
    let proxy = Proxy::new(&bench).await;
    proxy.always("watch", "leases", Fault::WatchHang);
    let waiter = proxy.locks().lock("silent").claimant("b").begin();
    bench.until_waiting(1).await;
    let release = async {
        holder.release().await.unwrap();
    };
    let took = hand_over(&bench, "silent", waiter, release).await;
    // 5 s, with jitter.
    assert!(
        took < Duration::from_millis(6250) + Duration::from_secs(3),
        "{took:?}"
    );
    bench.finish().await;
}

/// Not a whole beat later: the watch may be blind, and somebody may have released.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_beat_that_fails_is_soon_repeated() {
    let bench = Bench::new().await;
    bench.opened("beat", 5).await;
    let holder = bench.hold("beat", "a").await;
    let proxy = Proxy::new(&bench).await;
    let waiter = proxy.locks().lock("beat").claimant("b").begin();
    proxy.until_watching().await;
    let before = proxy.calls().len();
    proxy.fault("get", "distributedlocks", 1, Fault::Refuse(503));
    let looks = || {
        let calls = proxy.calls().split_off(before).into_iter();
        let looks = calls.filter(|call| call.resource == "distributedlocks");
        looks.map(|call| call.at).collect::<Vec<_>>()
    };
    until("it has looked again", BUSY, async || looks().len() > 1).await;
    let gap = looks()[1].saturating_duration_since(looks()[0]);
    // The first backoff is at most 0.4 s, a beat at least 3.75 s.
    assert!(gap < Duration::from_secs(3), "{gap:?}");
    waiter.withdraw().await;
    holder.release().await.unwrap();
    bench.finish().await;
}

/// hashicorp/consul#9469: who waits does not poll, and has one watch.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_at_rest_asks_for_next_to_nothing() {
    let bench = Bench::new().await;
    bench.opened("rest", 30).await;
    let holder = bench.hold("rest", "a").await;
    let proxy = Proxy::new(&bench).await;
    let waiter = proxy.locks().lock("rest").claimant("b").begin();
    proxy.until_watching().await;
    let before = proxy.calls().len();
    // Several renewals of the holder pass by meanwhile.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let asked = proxy.calls().split_off(before);
    assert!(asked.len() <= 2, "{asked:#?}");
    let watches = proxy
        .calls()
        .iter()
        .filter(|call| call.verb == "watch")
        .count();
    assert_eq!(watches, 1);
    waiter.withdraw().await;
    holder.release().await.unwrap();
    bench.finish().await;
}

/// A waiter reads its own claim on the slow beat: who was raised names itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_priority_that_is_raised_counts_without_an_operator_too() {
    let bench = Bench::new().await;
    let spec = json!({"leaseDurationSeconds": 5, "queue": {"policy": "Priority"}});
    let lock = bench.lock_of(spec, "ranked").await;
    bench.make_lease(&lock, "").await;
    bench.open_status(&lock, 5).await;
    let holder = bench.hold("ranked", "holder").await;
    let library = bench.library().await;
    let first = library.lock("ranked").claimant("first").begin();
    bench.until_named("ranked").await;
    let before = bench.lease("ranked").await.next;
    let mut second = library.lock("ranked").claimant("second").begin();
    bench.until_waiting(2).await;
    let all = bench.claims().list(&ListParams::default()).await.unwrap();
    let claims = all.items.into_iter();
    let mut of_second = claims.filter(|claim| claim.spec.claimant.as_deref() == Some("second"));
    let claim = of_second.next().unwrap();
    let raised = json!({"spec": {"priority": 9}});
    bench
        .claims()
        .patch(
            &claim.name_any(),
            &PatchParams::default(),
            &Patch::Merge(raised),
        )
        .await
        .unwrap();
    until("it is the raised one's turn", 2 * BUSY, async || {
        bench.lease("ranked").await.next != before
    })
    .await;
    let next = bench.lease("ranked").await.next.unwrap();
    assert_eq!(next.name, claim.name_any());
    holder.release().await.unwrap();
    let guard = within(BUSY, "it is served", second.outcome()).await;
    first.withdraw().await;
    guard.unwrap().release().await.unwrap();
    bench.finish().await;
}

/// The chart's strictMode, with no operator there: it is waited for, in the queue, and that is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_holder_that_only_the_operator_may_end_is_left_to_it() {
    let bench = Bench::new().await;
    bench.opened("strict", 2).await;
    let dead = json!({"spec": {"holderIdentity": "dead/9", "leaseDurationSeconds": 2}});
    bench.edit_lease("strict", dead).await;
    let proxy = Proxy::new(&bench).await;
    // It names itself; then it may not take.
    proxy.fault("update", "leases", 1, Fault::Pass);
    proxy.always("update", "leases", Fault::Forbid(STRICT_MODE_REFUSAL));
    let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
    let asked = proxy.locks().lock("strict").claimant("waiter");
    let asked = asked.on_progress(move |progress| {
        if let Progress::Waiting(report) = progress
            && report.why == Some(Waiting::Operator)
        {
            let _ = say.send(report.to_string());
        }
    });
    let mut waiter = asked.begin();
    tokio::select! {
        outcome = waiter.outcome() => panic!("{outcome:?}"),
        words = within(BUSY, "it is said", said.recv()) => {
            let words = words.unwrap();
            assert!(words.contains("held by dead/9") && words.contains("operator"), "{words}");
        }
    }
    // Asked again on the slow beat: such a policy can go. And it does not give up.
    tokio::select! {
        outcome = waiter.outcome() => panic!("{outcome:?}"),
        () = until("it has asked twice more", 2 * BUSY, async || proxy.puts().len() >= 4) => {}
    }
    let puts = proxy.puts();
    let gap = puts[3].at.saturating_duration_since(puts[2].at);
    assert!(gap > Duration::from_secs(3), "{gap:?}");
    assert_eq!(bench.waiting().await, 1, "it keeps its place");
    proxy.heal();
    // What the operator does.
    let freed = json!({"spec": {"holderIdentity": ""}});
    bench.edit_lease("strict", freed).await;
    let guard = within(BUSY, "it is served", waiter.outcome()).await;
    guard.unwrap().release().await.unwrap();
    bench.finish().await;
}

/// The most that came within one tenth of a second, as in half of the rounds that long: a machine that stands still for
/// a moment makes a burst of its own.
fn usual_burst(at: &[Duration], round: Duration) -> usize {
    let mut rounds = BTreeMap::<_, BTreeMap<_, usize>>::new();
    for at in at {
        let tenths = rounds.entry(at.as_millis() / round.as_millis());
        *tenths.or_default().entry(at.as_millis() / 100).or_default() += 1;
    }
    let bursts = rounds
        .into_values()
        .map(|tenths| tenths.into_values().max());
    let mut bursts: Vec<_> = bursts.flatten().collect();
    bursts.sort_unstable();
    bursts[bursts.len() / 2]
}

/// The time between two renewals of one lock, as in half of all cases at least.
fn usual_gap(renewals: &[&Call]) -> Duration {
    let mut last = BTreeMap::new();
    let gaps = renewals.iter().filter_map(|call| {
        let before = last.insert(&call.name, call.at)?;
        Some(call.at.saturating_duration_since(before))
    });
    let mut gaps: Vec<_> = gaps.collect();
    gaps.sort_unstable();
    gaps[gaps.len() / 2]
}

/// kubernetes-sigs/kueue#15537: renewals starved behind bulk work of the same process.
#[tokio::test(flavor = "multi_thread")]
async fn one_process_keeps_many_locks_while_other_calls_queue() {
    let (locks, seconds) = if long() { (200, 15) } else { (50, 10) };
    let bench = Bench::new().await;
    let names: Vec<_> = (0..locks).map(|number| format!("lock-{number}")).collect();
    for name in &names {
        bench.opened(name, seconds).await;
    }
    let proxy = Proxy::new(&bench).await;
    let client = proxy.locks();
    let asked = names.iter().map(|name| client.lock(name).acquire());
    let guards: Vec<_> = join_all(asked)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    // Bulk work on the same client, as slow as a client-side limit makes it: it takes every connection that is there.
    proxy.always(
        "list",
        "lockclaims",
        Fault::DelayAnswer(Duration::from_millis(500)),
    );
    let claims =
        kube::Api::<leasehold::api::LockClaim>::namespaced(client.client(), &bench.namespace);
    let before = proxy.calls().len();
    let began = MonoInstant::now();
    let run_for = Duration::from_secs(2 * u64::from(seconds.unsigned_abs()));
    while MonoInstant::now().saturating_duration_since(began) < run_for {
        let list = ListParams::default();
        let calls = (0..50).map(|_| claims.list(&list));
        join_all(calls)
            .await
            .into_iter()
            .for_each(|list| assert!(list.is_ok()));
    }
    let took = MonoInstant::now()
        .saturating_duration_since(began)
        .as_secs_f64();
    let calls = proxy.calls().split_off(before);
    for guard in &guards {
        assert!(guard.is_held(), "{}", guard.lock());
    }
    let renewals: Vec<_> = calls.iter().filter(|call| call.verb == "update").collect();
    // They have connections of their own, on which nothing can be before them.
    let lines: BTreeSet<_> = renewals.iter().map(|call| call.connection).collect();
    let beside = calls.iter().filter(|call| lines.contains(&call.connection));
    for call in beside {
        assert_eq!(call.resource, "leases", "{call:?}");
        assert!(["update", "get"].contains(&call.verb), "{call:?}");
    }
    // One renewal a third of the lease each, and not in bursts.
    let writes = renewals.len();
    let period = f64::from(seconds) / 3.0;
    let most = f64::from(locks) * (took / period + 1.0);
    assert!(
        f64::from(u32::try_from(writes).unwrap()) <= most,
        "{writes} writes in {took} s"
    );
    let at = renewals.iter().map(|call| call.at);
    let at: Vec<_> = at.map(|at| at.saturating_duration_since(began)).collect();
    let burst = usual_burst(&at, Duration::from_secs_f64(period));
    assert!(burst * 2 <= names.len(), "{burst} in a tenth of a second");
    // Up to a tenth more by chance, so that those who began together do not stay together; a busy machine adds to that.
    let gap = usual_gap(&renewals).as_secs_f64();
    assert!(gap > 1.025 * period, "{gap} s");
    let releases = guards.into_iter().map(leasehold::client::Guard::release);
    join_all(releases)
        .await
        .into_iter()
        .for_each(|outcome| assert!(outcome.is_ok()));
    proxy.assert_guarded();
    bench.finish().await;
}
