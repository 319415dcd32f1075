//! What the server refuses the operator about one object stops nobody else.

use std::time::Duration;

use kube::api::PostParams;
use leasehold::api::{ClaimPhase, FixedHold, Hold, HoldType, LockClaim, LockClaimSpec, PodHold};
use leasehold::lease::FoundLease;

use super::operator_rig::{Operator, Place};
use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, until};

async fn claim(place: &Place, name: &str, hold: Hold) {
    let spec = LockClaimSpec {
        hold,
        ..LockClaimSpec::heartbeat("nightly")
    };
    let claim = LockClaim::new(name, spec);
    let made = place.claims.create(&PostParams::default(), &claim).await;
    made.expect("the claim is made");
}

fn with_pod(name: &str) -> Hold {
    let pod = PodHold {
        name: name.to_owned(),
        uid: None,
    };
    Hold {
        type_: HoldType::Pod,
        fixed: None,
        pod: Some(pod),
    }
}

pub fn fixed() -> Hold {
    Hold {
        type_: HoldType::Fixed,
        fixed: Some(FixedHold { seconds: 600 }),
        pod: None,
    }
}

/// Such as by a policy, or as the object is from an older version.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_status_can_not_be_written_stops_no_other() {
    refuses(|proxy| proxy.always_of("update", "lockclaims", "a", Fault::Refuse(422))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_can_not_be_read_stops_only_who_needs_it() {
    refuses(|proxy| proxy.always("get", "pods", Fault::Refuse(403))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_can_not_be_read_is_served_all_the_same() {
    refuses(|proxy| proxy.always_of("get", "lockclaims", "b", Fault::Refuse(403))).await;
}

/// An operator that leads, behind a proxy, and a free lock.
pub async fn behind_a_proxy() -> (Bench, Place, Proxy, Operator) {
    let bench = Bench::new().await;
    let place = Place::new(&bench.client, &bench.namespace);
    let proxy = Proxy::new(&bench).await;
    let path = proxy.kubeconfig();
    let operator = Operator::start_with(&bench.namespace, "one", &[], Some(&path)).await;
    operator.leads().await;
    place.make_free("nightly", 15).await;
    (bench, place, proxy, operator)
}

/// `a` waits for a Pod that is not there; `b`, behind it, is served.
async fn refuses(fault: impl FnOnce(&Proxy)) {
    let (bench, place, proxy, operator) = Box::pin(behind_a_proxy()).await;
    fault(&proxy);
    claim(&place, "a", with_pod("nobody")).await;
    claim(&place, "b", fixed()).await;
    let granted =
        |claim: Option<&LockClaim>| claim.is_some_and(|claim| claim.phase() == ClaimPhase::Granted);
    place.claim_is("b", "it is granted", granted).await;
    drop(operator);
    bench.finish().await;
}

/// A withdrawn claim is not taken for, though the operator has not heard of its end: it would hold what nobody wants.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_for_a_claim_that_is_gone_though_no_watch_has_told_so() {
    let (bench, place, proxy, operator) = Box::pin(behind_a_proxy()).await;
    let holder = place.take("nightly", "pod-3").await;
    claim(&place, "seat", fixed()).await;
    let named = |lease: &FoundLease| lease.record.next.is_some();
    place.lease_is("nightly", "it is its turn", named).await;
    // From now on only the watch of claims tells nothing.
    proxy.always("watch", "lockclaims", Fault::Refuse(503));
    proxy.always("list", "lockclaims", Fault::Refuse(503));
    let before = proxy.calls().len();
    proxy.go_down();
    until("its connections break", BUSY, async || {
        let calls = proxy.calls().split_off(before);
        calls.iter().filter(|call| call.verb == "connect").count() > 1
    })
    .await;
    proxy.come_up();
    place.delete_claim("seat").await;
    place.release("nightly", &holder).await;
    let over = |lease: &FoundLease| lease.record.is_free() && lease.record.next.is_none();
    let lease = place.lease_is("nightly", "it is nobody's turn", over).await;
    assert_eq!(lease.record.spec.transitions, holder.transitions);
    drop(operator);
    bench.finish().await;
}

/// Without RBAC each watch is refused: that is said once, with what is missing, and not asked for many times a second.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_without_permissions_says_so_once_and_does_not_hurry() {
    const KINDS: [&str; 4] = [
        "distributedlocks.leasehold.dev",
        "lockclaims.leasehold.dev",
        "leases.coordination.k8s.io",
        "pods",
    ];
    let bench = Bench::new().await;
    let proxy = Proxy::new(&bench).await;
    for kind in KINDS {
        let plural = kind.split('.').next().unwrap();
        proxy.always("list", plural, Fault::Refuse(403));
    }
    let path = proxy.kubeconfig();
    let operator = Operator::start_with(&bench.namespace, "one", &[], Some(&path)).await;
    let namespace = &bench.namespace;
    let said = |kind: &str| format!("not allowed to list {kind} in namespace \"{namespace}\"");
    let all = async || {
        KINDS
            .iter()
            .all(|kind| operator.log().contains(&said(kind)))
    };
    operator.eventually("it says what is missing", all).await;
    let lists = || {
        let calls = proxy.calls().into_iter();
        calls.filter(|call| (call.verb, &call.resource[..]) == ("list", "pods"))
    };
    // Seven attempts take at least 0.4 + 0.8 + 1.6 + 3.2 + 6.4 + 12.8 s.
    let first = lists().next().unwrap().at;
    tokio::time::sleep(Duration::from_secs(12)).await;
    let soon = lists().filter(|call| call.at < first + Duration::from_secs(20));
    assert!(soon.count() < 7);
    let log = operator.log();
    assert!(!log.contains("kube_runtime"), "{log}");
    for kind in KINDS {
        // Two of the watches are of Leases.
        let times = if kind.starts_with("leases") { 2 } else { 1 };
        assert_eq!(log.matches(&said(kind)).count(), times, "{log}");
    }
    drop(operator);
    bench.finish().await;
}
