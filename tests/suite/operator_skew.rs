//! An operator older than what clients and definitions of a newer version write, and one newer than the definitions.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use leasehold::api::{ClaimPhase, LockClaim, LockClaimSpec, names};
use serde_json::json;
use xtask::cluster::{Cluster, Options};

use super::operator_place::fixed;
use super::operator_rig::{LONG, Operator, Place, is_free, lasting};
use super::server::{client_of, config_of, install_crds, within};

/// Definitions that know one more type of hold; a claim of that type.
async fn claim_of_the_future(place: &Place, name: &str, lock: &str) -> DynamicObject {
    let definitions = Api::<CustomResourceDefinition>::all(place.client.clone());
    let types = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/hold/properties/type/enum/-";
    let more = json!([{"op": "add", "path": types, "value": "Later"}]);
    let more = Patch::Json::<()>(serde_json::from_value(more).expect("a patch"));
    let patched = definitions
        .patch("lockclaims.leasehold.dev", &PatchParams::default(), &more)
        .await;
    patched.expect("the definition can be changed");
    let claim = json!({
        "apiVersion": "leasehold.dev/v1alpha1", "kind": "LockClaim", "metadata": {"name": name},
        "spec": {"lockName": lock, "hold": {"type": "Later"}},
    });
    let claim: DynamicObject = serde_json::from_value(claim).expect("an object");
    let resource = ApiResource::erase::<LockClaim>(&());
    let claims =
        Api::<DynamicObject>::namespaced_with(place.client.clone(), &place.namespace, &resource);
    within(LONG, "the new type is accepted", async {
        loop {
            match claims.create(&PostParams::default(), &claim).await {
                Ok(made) => return made,
                // The new definition is not served yet.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_be_decoded_holds_up_nobody_even_when_it_is_named() {
    let cluster = Cluster::start(&Options::default()).expect("a control plane");
    let client = client_of(config_of(&cluster.kubeconfig()).await);
    install_crds(&client).await;
    let place = Place::new(&client, "default");
    let operator = Operator::start_with("default", "one", &[], Some(&cluster.kubeconfig())).await;
    operator.leads().await;
    place.make_free("nightly", 60).await;
    let grant = place.take("nightly", "pod-1").await;
    place.is_shown("nightly", &grant).await;
    let later = claim_of_the_future(&place, "later", "nightly").await;
    let uid = later.metadata.uid.expect("a uid");
    let named =
        json!({"metadata": {"annotations": {names::ANNOTATION_NEXT: format!("later/{uid}")}}});
    place.edit_lease("nightly", &named).await;
    let behind = LockClaimSpec {
        lock_name: "nightly".to_owned(),
        ..fixed(600)
    };
    place.claim("behind", behind).await;
    place.release("nightly", &grant).await;
    place.claim_in("behind", ClaimPhase::Granted).await;
    let found = place.lease("nightly").await.record;
    let claim = place.claims.get("behind").await.expect("the claim");
    assert_eq!(found.holder_uid(), claim.metadata.uid.as_deref());
    // The lock's status follows, too.
    place
        .lock_is("nightly", "it shows its holder", |lock| {
            let status = lock.status.as_ref();
            status.and_then(|status| status.fencing_token) > Some(grant.token)
        })
        .await;
}

/// slauger/openvox-operator#555: `helm upgrade` of other charts leaves old definitions, which drop new fields of status.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_newer_than_the_definitions_does_nothing_until_they_are_upgraded() {
    let cluster = Cluster::start(&Options::default()).expect("a control plane");
    let client = client_of(config_of(&cluster.kubeconfig()).await);
    install_crds(&client).await;
    // As those before the chart were.
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let field = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/claimant";
    let less = json!([{"op": "remove", "path": field}]);
    let less = Patch::Json::<()>(serde_json::from_value(less).expect("a patch"));
    let patched = definitions
        .patch("lockclaims.leasehold.dev", &PatchParams::default(), &less)
        .await;
    patched.expect("the definition can be changed");
    let place = Place::new(&client, "default");
    place.make("nightly", lasting(15)).await;
    let operator = Operator::start_with("default", "one", &[], Some(&cluster.kubeconfig())).await;
    operator
        .eventually("it says which field would be dropped", async || {
            operator.get("/readyz").await.is_some_and(|(status, body)| {
                status == 503
                    && body.contains("status.claimant")
                    && body.contains(names::HOW_TO_INSTALL)
            })
        })
        .await;
    let leases = place.leases.list(&ListParams::default()).await;
    assert!(leases.expect("a list").items.is_empty(), "not even a lead");
    let lock = place.locks.get("nightly").await.expect("the lock");
    assert!(lock.status.is_none_or(|status| status.slots.is_empty()));
    install_crds(&client).await;
    operator.leads().await;
    place.lock_is("nightly", "it is free", is_free).await;
}
