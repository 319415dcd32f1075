//! A server that refuses the operator the same again and again, or changes nothing: it goes on, but not as fast as it is
//! answered, whether it leads or wants to.

use std::time::Duration;

use kube::api::PostParams;
use leasehold::api::{ClaimPhase, LockClaim, LockClaimSpec};
use leasehold::lease::FoundLease;

use super::operator_place::fixed as for_seconds;
use super::operator_refused::{behind_a_proxy, fixed};
use super::operator_rig::{Operator, Place, is_free, lasting};
use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, until};

/// How long is looked on. With pauses that double from 0.1 to 0.2 s there is room for six or seven looks at a lock.
const LOOK: Duration = Duration::from_secs(6);

/// How many calls of this verb come by from now on, while is looked on from the first one; `name` begins the object's
/// name.
async fn come_by(proxy: &Proxy, verb: &str, resource: &str, name: &str) -> usize {
    let before = proxy.calls().len();
    let count = || {
        let calls = proxy.calls().split_off(before).into_iter();
        calls
            .filter(|call| call.verb == verb && call.resource == resource)
            .filter(|call| call.name.starts_with(name))
            .count()
    };
    until("it is asked for", BUSY, async || count() > 0).await;
    tokio::time::sleep(LOOK).await;
    count()
}

/// A policy or a webhook in the way, a server that answers nothing but conflicts: the standby asks on its beat.
#[tokio::test(flavor = "multi_thread")]
async fn a_lead_that_is_refused_for_ever_is_not_asked_for_in_a_hurry() {
    let mut tests = Vec::new();
    for (what, fault) in [
        ("forbidden", Fault::Forbid("nobody leads here")),
        ("conflict", Fault::Refuse(409)),
        ("broken", Fault::Refuse(500)),
        ("unchanged", Fault::ChangeNothing),
    ] {
        tests.push(async move {
            let bench = Bench::new().await;
            let proxy = Proxy::new(&bench).await;
            proxy.always_of("update", "leases", "leasehold-operator", fault);
            let path = proxy.kubeconfig();
            let operator = Operator::start_with(&bench.namespace, "one", &[], Some(&path)).await;
            operator.is_ready().await;
            let puts = come_by(&proxy, "update", "leases", "leasehold").await;
            assert!((1..=6).contains(&puts), "{what}: {puts} writes in {LOOK:?}");
            let log = operator.log();
            let said = log.matches("was not given the lead").count();
            assert!((1..=2).contains(&said), "{what}: {log}");
            proxy.heal();
            operator.leads().await;
            drop(operator);
            bench.finish().await;
        });
    }
    futures::future::join_all(tests).await;
}

/// How a server may refuse a write for ever.
fn refusals() -> [Fault; 4] {
    [
        Fault::Refuse(409),
        Fault::Refuse(404),
        Fault::ChangeNothing,
        Fault::RefuseFor(429, 1),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_holder_whose_end_is_refused_for_ever_is_not_ended_in_a_hurry() {
    let tests = refusals().map(async |fault| {
        let (bench, place, proxy, operator) = Box::pin(behind_a_proxy()).await;
        place.make_free("another", 1).await;
        let what = format!("{fault:?}");
        proxy.always_of("update", "leases", "another", fault);
        place.take("another", "pod-3").await;
        let writes = come_by(&proxy, "update", "leases", "another").await;
        assert!((1..=12).contains(&writes), "{what}: {writes} in {LOOK:?}");
        proxy.heal();
        let free = |lease: &FoundLease| lease.record.is_free();
        place.lease_is("another", "it is ended", free).await;
        drop(operator);
        bench.finish().await;
    });
    futures::future::join_all(tests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_opening_is_refused_for_ever_is_not_opened_in_a_hurry() {
    let tests = refusals().map(async |fault| {
        let (bench, place, proxy, operator) = Box::pin(behind_a_proxy()).await;
        let what = format!("{fault:?}");
        proxy.always_of("update", "distributedlocks", "another", fault);
        place.make("another", lasting(15)).await;
        let writes = come_by(&proxy, "update", "distributedlocks", "another").await;
        assert!((1..=12).contains(&writes), "{what}: {writes} in {LOOK:?}");
        proxy.heal();
        place.lock_is("another", "it is opened", is_free).await;
        drop(operator);
        bench.finish().await;
    });
    futures::future::join_all(tests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_meets_conflicts_for_ever_is_not_hurried() {
    let mut tests = Vec::new();
    for code in [409, 404] {
        tests.push(async move {
            let (bench, place, proxy, operator) = Box::pin(behind_a_proxy()).await;
            proxy.always("update", "distributedlocks", Fault::Refuse(code));
            let grant = place.take("nightly", "pod-3").await;
            let writes = come_by(&proxy, "update", "distributedlocks", "nightly").await;
            assert!((1..=12).contains(&writes), "{code}: {writes} in {LOOK:?}");
            proxy.heal();
            place.is_shown("nightly", &grant).await;
            drop(operator);
            bench.finish().await;
        });
    }
    futures::future::join_all(tests).await;
}

/// More than one look writes about.
const MANY: usize = 40;

async fn many_claims(place: &Place, spec: LockClaimSpec) {
    let claims = (0..MANY).map(|number| LockClaim::new(&format!("seat-{number}"), spec.clone()));
    let claims: Vec<_> = claims.collect();
    let params = PostParams::default();
    let made = claims
        .iter()
        .map(|claim| place.claims.create(&params, claim));
    for made in futures::future::join_all(made).await {
        made.expect("the claim is made");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_claims_whose_status_meets_conflicts_for_ever_are_not_looked_at_in_a_hurry() {
    let mut tests = Vec::new();
    for code in [409, 404] {
        tests.push(async move {
            let (bench, place, proxy, operator) = Box::pin(behind_a_proxy()).await;
            place.take("nightly", "pod-3").await;
            proxy.always("update", "lockclaims", Fault::Refuse(code));
            let spec = LockClaimSpec {
                hold: fixed(),
                ..LockClaimSpec::heartbeat("nightly")
            };
            many_claims(&place, spec).await;
            let writes = come_by(&proxy, "update", "lockclaims", "seat").await;
            // Of each as many as of one; while they are made each is news.
            assert!((1..=12 * MANY).contains(&writes), "{code}: {writes}");
            proxy.heal();
            let ticket = |claim: Option<&LockClaim>| {
                let status = claim.and_then(|claim| claim.status.as_ref());
                status.is_some_and(|status| status.ticket.is_some())
            };
            let last = format!("seat-{}", MANY - 1);
            place.claim_is(&last, "it is seen", ticket).await;
            drop(operator);
            bench.finish().await;
        });
    }
    futures::future::join_all(tests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_claims_that_can_not_be_deleted_are_not_looked_at_in_a_hurry() {
    let mut tests = Vec::new();
    for code in [409, 404] {
        tests.push(async move {
            let (bench, place, proxy, operator) = Box::pin(behind_a_proxy()).await;
            place.take("nightly", "pod-3").await;
            proxy.always("delete", "lockclaims", Fault::Refuse(code));
            let spec = LockClaimSpec {
                hold: fixed(),
                wait_timeout_seconds: Some(1),
                ttl_seconds_after_finished: Some(0),
                ..LockClaimSpec::heartbeat("nightly")
            };
            many_claims(&place, spec).await;
            let deletions = come_by(&proxy, "delete", "lockclaims", "seat").await;
            assert!((1..=12 * MANY).contains(&deletions), "{code}: {deletions}");
            proxy.heal();
            let last = format!("seat-{}", MANY - 1);
            place
                .claim_is(&last, "it is gone", |claim| claim.is_none())
                .await;
            drop(operator);
            bench.finish().await;
        });
    }
    futures::future::join_all(tests).await;
}

/// The end of a hold is shown before its Lease is freed: something on the way drops what it shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_end_is_never_shown_is_not_ended_in_a_hurry() {
    let (bench, place, proxy, operator) = Box::pin(behind_a_proxy()).await;
    place.claim("seat", for_seconds(3)).await;
    place.claim_in("seat", ClaimPhase::Granted).await;
    proxy.always("update", "lockclaims", Fault::ChangeNothing);
    let writes = come_by(&proxy, "update", "lockclaims", "seat").await;
    assert!((1..=12).contains(&writes), "{writes} in {LOOK:?}");
    proxy.heal();
    place.claim_in("seat", ClaimPhase::Expired).await;
    place.lock_is("nightly", "it is free", is_free).await;
    drop(operator);
    bench.finish().await;
}
