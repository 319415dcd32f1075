//! What the server makes of the definitions beyond judging objects: columns, short names, selectors.

use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use kube::core::Request;
use leasehold::api::{LockClaim, LockClaimSpec};
use serde_json::Value;

use super::server;

#[tokio::test]
async fn claims_can_be_selected_by_lock_and_phase() {
    let client = server::client().await;
    server::install_crds(&client).await;
    let test = server::with_namespace(&client, async |namespace| {
        let api = Api::<LockClaim>::namespaced(client.clone(), &namespace);
        for (name, lock) in [("a", "x"), ("b", "x"), ("c", "y")] {
            api.create(
                &PostParams::default(),
                &LockClaim::new(name, LockClaimSpec::heartbeat(lock)),
            )
            .await
            .unwrap();
        }
        // Phase is a default here: no status was ever written.
        for (selector, found) in [
            ("spec.lockName=x", vec!["a", "b"]),
            ("spec.lockName=y,status.phase=Pending", vec!["c"]),
            ("status.phase=Granted", vec![]),
        ] {
            let list = api
                .list(&ListParams::default().fields(selector))
                .await
                .unwrap();
            let names: Vec<_> = list
                .iter()
                .filter_map(|claim| claim.metadata.name.as_deref())
                .collect();
            assert_eq!(names, found, "{selector}");
        }
    });
    test.await;
}

#[tokio::test]
async fn people_see_the_columns_of_the_design() {
    let client = server::client().await;
    server::install_crds(&client).await;
    let columns = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (narrow, wide) = served_columns(&client, "distributedlocks").await;
    assert_eq!(
        narrow,
        columns(&["Name", "Phase", "Held", "Holder", "Token", "Waiters", "Age"])
    );
    assert_eq!(wide, columns(&["Lease", "Node"]));
    let (narrow, wide) = served_columns(&client, "lockclaims").await;
    assert_eq!(
        narrow,
        columns(&["Name", "Lock", "Claimant", "Phase", "Token", "Age"])
    );
    assert_eq!(wide, columns(&["Hold", "Priority", "Expires"]));
}

/// The columns of `kubectl get`, and those that `-o wide` adds.
async fn served_columns(client: &Client, plural: &str) -> (Vec<String>, Vec<String>) {
    let list = Request::new(format!("/apis/leasehold.dev/v1alpha1/{plural}"));
    let mut request = list.list(&ListParams::default()).unwrap();
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io"
        .parse()
        .unwrap();
    request.headers_mut().insert("accept", table);
    let table: Value = client.request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap();
    let named = |wide: bool| {
        let chosen = columns
            .iter()
            .filter(|column| (column["priority"] == 1) == wide);
        chosen
            .map(|column| column["name"].as_str().unwrap().to_owned())
            .collect()
    };
    (named(false), named(true))
}
