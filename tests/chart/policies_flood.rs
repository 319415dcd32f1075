//! Renewals have seats of their own in the API server: a flood of lists in `workload-low` takes none of them.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use leasehold::client::{Guard, Locks};
use serde_json::json;
use xtask::cluster::{Cluster, Options};

use super::operator_rig::lasting;
use super::policies_stage::{Actor, Stage, user_of};
use super::run_bench::{BUSY, long, until};
use super::server::{self, within};

const HOLDERS: usize = 50;
/// How long the flood lasts: twice the lease.
const FLOOD: Duration = Duration::from_secs(30);
/// Lists in all: some get the server's seats and keep them, the rest stand in its queues.
const LISTS: usize = 64;
/// What each list returns, in objects of a quarter of a megabyte: more than the buffers of a connection hold.
const OBJECTS: usize = 64;

/// A server with few seats, so that a small flood fills them.
fn cluster() -> &'static Cluster {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let seats = [
        "--max-requests-inflight=24",
        "--max-mutating-requests-inflight=16",
    ];
    let options = Options {
        apiserver_args: seats.map(str::to_owned).to_vec(),
        ..Options::default()
    };
    // It ends with this process.
    Box::leak(Box::new(Cluster::start(&options).expect("a control plane")))
}

/// Asks for lists and does not read the answers, for [`FLOOD`] at most: each keeps its seat in the server meanwhile.
fn flood(client: &Client, namespace: &str) -> tokio::task::JoinHandle<()> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let client = client.clone();
    tokio::spawn(async move {
        let lists = (0..LISTS).map(|_| {
            let request = kube::core::Request::new(&path).list(&ListParams::default());
            let client = client.clone();
            async move {
                let unread = client.request_stream(request.expect("a request")).await;
                std::future::pending::<()>().await;
                drop(unread);
            }
        });
        let _ = tokio::time::timeout(FLOOD, join_all(lists)).await;
    })
}

async fn hold_all(holder: &Actor, namespace: &str) -> Vec<Guard> {
    let config = server::config_of(&holder.kubeconfig).await;
    let locks = Locks::new(config, namespace).expect("a client");
    let asked = (0..HOLDERS).map(|number| {
        locks
            .lock(&format!("lock-{number}"))
            .claimant("holder")
            .acquire()
    });
    let guards = within(BUSY * 3, "all locks are held", join_all(asked)).await;
    guards
        .into_iter()
        .map(|guard| guard.expect("it is free"))
        .collect()
}

/// How many of the guards were lost while the flood lasted; and whether the flood was one: others had to wait.
async fn flooded(stage: &Stage, flooder: &Actor, bystander: &Actor, guards: &[Guard]) -> usize {
    let flood = flood(&flooder.client, stage.namespace());
    let api: Api<ConfigMap> = Api::namespaced(bystander.client.clone(), stage.namespace());
    until("a bystander gets no seat", BUSY, async || {
        tokio::time::timeout(Duration::from_secs(3), api.get("kube-root-ca.crt"))
            .await
            .is_err()
    })
    .await;
    flood.await.expect("the flood ends");
    guards.iter().filter(|guard| !guard.is_held()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_holders_lose_nothing_while_another_account_floods_the_server_with_lists() {
    let stage = Stage::bare(cluster()).await;
    stage.apply_release(&json!({"admissionPolicies": "Off", "flowSchema": {"enabled": true}}));
    let operator = stage.operator().await;
    let place = stage.place();
    let names: Vec<String> = (0..HOLDERS)
        .map(|number| format!("lock-{number}"))
        .collect();
    for name in &names {
        place.make(name, lasting(15)).await;
    }
    place
        .lock_is(
            &names[HOLDERS - 1],
            "it is free",
            super::operator_rig::is_free,
        )
        .await;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    stage.account("holder", &user_of(&names, &["use"]));
    let read = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
    stage.account("flooder", &read);
    stage.account("bystander", &read);
    let accounts = ["holder", "flooder", "bystander"].map(|name| stage.person(name));
    let [holder, flooder, bystander] = join_all(accounts).await.try_into().ok().expect("three");
    let maps: Api<ConfigMap> = Api::namespaced(stage.bench.client.clone(), stage.namespace());
    for number in 0..OBJECTS {
        let data = [("filler".to_owned(), "x".repeat(256 << 10))].into();
        let metadata = ObjectMeta {
            name: Some(format!("filler-{number}")),
            ..ObjectMeta::default()
        };
        let map = ConfigMap {
            metadata,
            data: Some(data),
            ..ConfigMap::default()
        };
        maps.create(&PostParams::default(), &map)
            .await
            .expect("it is made");
    }

    let guards = hold_all(&holder, stage.namespace()).await;
    let lost = flooded(&stage, &flooder, &bystander, &guards).await;
    assert_eq!(lost, 0, "with the priority level: {}", operator.log());

    if long() {
        // What happens without; for docs/policies.md.
        for kind in ["flowschemas", "prioritylevelconfigurations"] {
            let selector = format!(
                "-lapp.kubernetes.io/instance={}",
                super::policies_stage::RELEASE
            );
            let deleted = stage
                .cluster
                .kubectl(["delete", kind, &selector])
                .status()
                .expect("kubectl");
            assert!(deleted.success());
        }
        let without = flooded(&stage, &flooder, &bystander, &guards).await;
        println!("without the priority level {without} of {HOLDERS} holders lost their locks");
    }
    for guard in guards {
        let _ = guard.release().await;
    }
    drop(operator);
    stage.bench.finish().await;
}
