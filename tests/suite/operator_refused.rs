//! What the server refuses the operator about one object stops nobody else.

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

fn fixed() -> Hold {
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

/// `a` waits for a Pod that is not there; `b`, behind it, is served.
async fn refuses(fault: impl FnOnce(&Proxy)) {
    let bench = Bench::new().await;
    let place = Place::new(&bench.client, &bench.namespace);
    let proxy = Proxy::new(&bench).await;
    let path = proxy.kubeconfig();
    let operator = Operator::start_with(&bench.namespace, "one", &[], Some(&path)).await;
    operator.leads().await;
    place.make_free("nightly", 15).await;
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
    let bench = Bench::new().await;
    let place = Place::new(&bench.client, &bench.namespace);
    let proxy = Proxy::new(&bench).await;
    let path = proxy.kubeconfig();
    let operator = Operator::start_with(&bench.namespace, "one", &[], Some(&path)).await;
    operator.leads().await;
    place.make_free("nightly", 15).await;
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
