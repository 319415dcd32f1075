//! The operator while the server is slow or away, while nothing happens to many locks, and when everything is deleted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use leasehold::api::{ClaimPhase, LockClaimSpec};
use leasehold::clock::MonoInstant;

use super::operator_place::{fixed, with_pod};
use super::operator_rig::{Operator, Place, in_place, is_free, lasting, shows};
use super::operator_wire::Proxy;
use super::proxy::{self, Fault};
use super::run_bench::{BUSY, Bench, long, until};
use super::server;

/// ovn-kubernetes#3959, cloudnative-pg#8034: single replicas restarted after one slow answer, or with etcd.
#[tokio::test]
async fn a_slow_server_costs_no_lead_and_an_outage_neither_a_replica_nor_a_hold() {
    let with =
        |replicas| in_place(async move |place| a_slow_server_and_an_outage(&place, replicas).await);
    tokio::join!(with("one"), with("one two"));
}

async fn a_slow_server_and_an_outage(place: &Place, replicas: &str) {
    // The defaults, or a fifth of them.
    let unit = if long() { 5 } else { 1 };
    let times = [
        format!("--leader-lease-duration={}s", 3 * unit),
        format!("--leader-renew-deadline={}s", 2 * unit),
        format!("--leader-retry-period={}ms", 400 * unit),
    ];
    let times = times.each_ref().map(String::as_str);
    let mut operators = Vec::new();
    for name in replicas.split(' ') {
        let proxy = Proxy::start().await;
        let path = Some(&*proxy.kubeconfig);
        let operator = Operator::start_with(&place.namespace, name, &times, path).await;
        if operators.is_empty() {
            operator.leads().await;
        }
        operators.push((operator, proxy));
    }
    let delay = |milliseconds: u64| {
        for (_, proxy) in &operators {
            proxy.delay.store(milliseconds, Ordering::Relaxed);
        }
    };
    place.make_free("nightly", 600).await;
    let grant = place.take("nightly", "pod-3").await;
    place.is_shown("nightly", &grant).await;
    let terms = async || {
        let lease = place.lease("leasehold-operator").await;
        lease.record.spec.transitions
    };
    let before = terms().await;

    delay(800 * unit);
    let slow_until = MonoInstant::now() + Duration::from_secs(if long() { 60 } else { 8 });
    while MonoInstant::now() < slow_until {
        assert_eq!(terms().await, before, "{replicas}: the lead was lost");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    delay(3_600_000);
    tokio::time::sleep(Duration::from_secs(4 * unit)).await;
    delay(0);
    let leads = async || {
        for (operator, _) in &operators {
            if operator.metric("leasehold_leader").await == Some(1.0) {
                return true;
            }
        }
        false
    };
    until("one leads again", BUSY * 2, leads).await;
    // It works, too.
    place.make_free("another", 15).await;
    for (operator, _) in &mut operators {
        assert!(operator.runs(), "{}", operator.log());
    }
    let lease = place.lease("nightly").await.record;
    assert_eq!(lease.spec.holder, grant.holder);
    assert_eq!(lease.current_token(), Some(grant.token));
}

/// cilium/cilium#42920: a leader that had lost the lead finished what it was at, and wrote.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_loses_the_lead_in_the_middle_of_its_work_does_not_go_on_with_it() {
    let bench = Bench::new().await;
    let place = Place::new(&bench.client, &bench.namespace);
    let times = [
        "--leader-lease-duration=5s",
        "--leader-renew-deadline=4s",
        "--leader-retry-period=200ms",
    ];
    let proxy = proxy::Proxy::new(&bench).await;
    let path = proxy.kubeconfig();
    let first = Operator::start_with(&bench.namespace, "one", &times, Some(&path)).await;
    first.leads().await;
    let second = Operator::start(&bench.namespace, "two", &times).await;
    place.make_free("nightly", 1).await;
    let grant = place.take("nightly", "pod-3").await;
    place.is_shown("nightly", &grant).await;
    // It reads the lock before it ends a silent holder: that read hangs, and so do the renewals of its lead.
    let hangs = Fault::DelayRequest(Duration::from_secs(6));
    proxy.always("get", "distributedlocks", hangs);
    proxy.always("update", "leases", Fault::Hang);
    second.leads().await;
    place
        .lock_is("nightly", "the second ends the holder", is_free)
        .await;
    assert_eq!(first.metric("leasehold_leader").await, Some(0.0));
    let reads = || {
        let calls = proxy.calls().into_iter();
        calls.filter(|call| call.verb == "get" && call.resource == "distributedlocks")
    };
    assert!(reads().count() > 0, "it was at it");
    until("what it had asked is answered", BUSY, async || {
        reads().all(|call| call.code.is_some())
    })
    .await;
    // A new grant is what a stale write would hit.
    let next = place.take("nightly", "pod-4").await;
    place
        .lock_is("nightly", "the next grant is shown", |lock| {
            shows(lock, &next)
        })
        .await;
    // From when its lead could last no longer, before anybody else led: a lead counts from before its renewal is sent.
    let of_the_lead = |call: &proxy::Call| call.body["metadata"]["name"] == "leasehold-operator";
    let calls = proxy.calls();
    let mut renewed = calls
        .iter()
        .filter(|call| call.verb == "update" && of_the_lead(call) && call.code == Some(200));
    let over = renewed.next_back().expect("a renewal").at + Duration::from_secs(4);
    let wrote: Vec<_> = calls
        .iter()
        .filter(|call| call.at > over && call.writes() && !of_the_lead(call))
        .collect();
    assert!(wrote.is_empty(), "{wrote:?}");
    drop(first);
    bench.finish().await;
}

/// kubeflow/notebooks#1343, restatedev/restate-operator#138: every status write caused the next one.
#[tokio::test(flavor = "multi_thread")]
async fn many_held_locks_at_rest_cost_no_write_and_hardly_a_look() {
    let (count, seconds, idle) = if long() { (100, 15, 600) } else { (30, 6, 7) };
    in_place(async |place| {
        let proxy = Proxy::start().await;
        let path = Some(&*proxy.kubeconfig);
        let operator = Operator::start_with(&place.namespace, "one", &[], path).await;
        operator.leads().await;
        let names: Vec<_> = (0..count).map(|number| format!("lock-{number}")).collect();
        let locks = place.library().await;
        for name in &names {
            place.make(name, lasting(seconds)).await;
        }
        let asked = names.iter().map(|name| locks.lock(name).acquire());
        let guards: Vec<_> = join_all(asked).await;
        let guards: Vec<_> = guards
            .into_iter()
            .map(|guard| guard.expect("it is had"))
            .collect();
        for guard in &guards {
            place
                .lock_is(guard.lock(), "it is shown", |lock| {
                    lock.slot_token(0) == Some(guard.token())
                })
                .await;
        }
        let told = || {
            proxy
                .sent()
                .iter()
                .filter(|sent| sent.path.ends_with("/events"))
                .count()
        };
        until("all grants are told", BUSY, async || told() >= names.len()).await;
        let reconciles = "leasehold_reconcile_duration_seconds_count";
        let (sent, before) = (
            proxy.sent().len(),
            operator.metric(reconciles).await.expect("a count"),
        );
        tokio::time::sleep(Duration::from_secs(idle)).await;
        let after = operator.metric(reconciles).await.expect("a count");
        let sent = proxy.sent().split_off(sent);
        let wrote: Vec<_> = sent
            .iter()
            .filter(|sent| sent.writes() && !sent.is_of_the_election())
            .collect();
        assert!(wrote.is_empty(), "{wrote:?}");
        // Twice a lease duration, as with a single one, is plenty.
        let most = f64::from(count)
            * 2.0
            * (f64::from(u32::try_from(idle).expect("few")) / f64::from(seconds) + 1.0);
        assert!(
            after - before <= most,
            "{} looks, at most {most}",
            after - before
        );
        for guard in guards {
            assert!(guard.is_held(), "{}", guard.lock());
            guard.release().await.expect("it is given back");
        }
    })
    .await;
}

/// Each waiter that comes or goes would cost a status write, and each of these an event of every watch of locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_coming_and_going_of_waiters_is_written_at_most_once_a_second() {
    let bench = Bench::new().await;
    let place = Place::new(&bench.client, &bench.namespace);
    let proxy = proxy::Proxy::new(&bench).await;
    let path = proxy.kubeconfig();
    let operator = Operator::start_with(&bench.namespace, "one", &[], Some(&path)).await;
    operator.leads().await;
    place.make_free("nightly", 600).await;
    let grant = place.take("nightly", "pod-3").await;
    place.is_shown("nightly", &grant).await;
    let (since, began) = (proxy.calls().len(), MonoInstant::now());
    for number in 0..40 {
        place.queue_up(&format!("c{number}"), "nightly").await;
        if number % 4 == 3 {
            place.delete_claim(&format!("c{}", number - 1)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    place.has_waiters("nightly", 30).await;
    let took = MonoInstant::now().saturating_duration_since(began);
    let calls = proxy.calls().split_off(since).into_iter();
    let writes = calls
        .filter(|call| call.verb == "update" && call.resource == "distributedlocks")
        .count();
    assert!(writes >= 3, "{writes} writes: nobody was told meanwhile");
    let most = took.as_secs_f64() + 2.0;
    assert!(
        f64::from(u32::try_from(writes).expect("few")) <= most,
        "{writes} writes in {took:?}"
    );
    drop(operator);
    bench.finish().await;
}

/// kubeflow, operator-sdk#6677: finalizers that nobody removes.
#[tokio::test]
async fn locks_claims_and_namespaces_go_with_the_operator_up_or_down() {
    let client = server::client().await;
    server::install_crds(&client).await;
    tokio::join!(all_goes(&client, true), all_goes(&client, false));
}

async fn all_goes(client: &kube::Client, up: bool) {
    let namespaces = Api::<Namespace>::all(client.clone());
    let namespace = Namespace {
        metadata: ObjectMeta {
            generate_name: Some("goes-".to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let made = namespaces.create(&PostParams::default(), &namespace).await;
    let name = made.expect("a namespace").name_any();
    let place = Place::new(client, &name);
    let mut operator = Some(Operator::leading(&name).await);
    for lock in ["held", "free", "stays", "seat", "job"] {
        place.make_free(lock, 600).await;
    }
    place.make_pod("web").await;
    for (lock, spec) in [("seat", fixed(600)), ("job", with_pod("web", None))] {
        let spec = LockClaimSpec {
            lock_name: lock.to_owned(),
            ..spec
        };
        place.claim(&format!("for-{lock}"), spec).await;
        place
            .claim_in(&format!("for-{lock}"), ClaimPhase::Granted)
            .await;
    }
    for lock in ["held", "stays"] {
        place.take(lock, "pod-3").await;
        place.queue_up(&format!("for-{lock}"), lock).await;
    }
    if !up {
        operator = None;
    }
    let delete = DeleteParams::background();
    let (locks, claims) = (["held", "free", "seat", "job"], ["held", "seat", "job"]);
    for lock in locks {
        place.locks.delete(lock, &delete).await.expect("it goes");
    }
    for lock in claims {
        place.delete_claim(&format!("for-{lock}")).await;
    }
    until("nothing of them is left", BUSY, async || {
        let mut left = false;
        for lock in claims {
            let claim = place.claims.get_opt(&format!("for-{lock}")).await;
            left |= claim.expect("an answer").is_some();
        }
        for lock in locks {
            let kept = place.locks.get_opt(lock).await.expect("an answer");
            let lease = place.leases.get_opt(lock).await.expect("an answer");
            left |= kept.is_some() || lease.is_some();
        }
        !left
    })
    .await;
    namespaces.delete(&name, &delete).await.expect("it goes");
    until("the namespace is gone", BUSY * 3, async || {
        namespaces
            .get_opt(&name)
            .await
            .expect("an answer")
            .is_none()
    })
    .await;
    drop(operator);
}
