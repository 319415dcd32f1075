//! What the server refuses the operator about one object stops nobody else.

use kube::api::PostParams;
use leasehold::api::{ClaimPhase, FixedHold, Hold, HoldType, LockClaim, LockClaimSpec, PodHold};

use super::operator_rig::{Operator, Place};
use super::proxy::{Fault, Proxy};
use super::run_bench::Bench;

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
