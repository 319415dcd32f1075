//! The sidecar, injected by the server into Pods that ask for a lock by an annotation.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use leasehold::api::names;
use leasehold::clock::MonoInstant;
use leasehold::engine::EndKind;
use serde_json::{Value, json};
use xtask::node::BUSYBOX;

use super::lease_watch::LeaseWatch;
use super::operator_rig::lasting;
use super::run_bench::until;
use super::server::within;
use super::stage::{LONG, Team, least_rights, pod, status_of};

/// What one holder's end may cost the next.
const HAND_OVER: Duration = Duration::from_secs(2);
/// Works until it is asked to end, and does so at once.
const WORKS_ON: &str = "cat /var/run/leasehold/grant.json; echo; trap 'exit 0' TERM; \
                        while :; do sleep 1 & wait $!; done";
const WORKS_ONCE: &str = "cat /var/run/leasehold/grant.json";
const KUBECTL_WAITS: &str = "--timeout=2m";

/// A namespace for nothing but restricted Pods, with a lock, an account that may hold it, and one that may make Pods.
async fn team_with(lock: &str) -> Team {
    let team = Team::new().await;
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    team.kubectl(&["label", "namespace", &team.namespace, restricted]);
    // The liveness probe that is injected has time enough in it.
    team.place.make_free_of(lock, lasting(30)).await;
    team.account("app", &least_rights(lock));
    let make_pods = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]);
    team.account("maker", &make_pods);
    team
}

/// A Pod that works under a lock without a word of it in its spec.
fn app(name: &str, lock: &str, script: &str) -> Value {
    let mut pod = pod(name, BUSYBOX, &["sh", "-c", script]);
    pod["metadata"]["annotations"] = json!({names::ANNOTATION_LOCK: lock});
    pod["spec"]["serviceAccountName"] = json!("app");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(4);
    pod
}

/// The same as the template of a controller.
fn template(name: &str, lock: &str, script: &str) -> Value {
    let app = app(name, lock, script);
    let mut template = json!({"metadata": app["metadata"], "spec": app["spec"]});
    template["metadata"]["labels"] = json!({"app": name});
    template
}

/// A Deployment of one Pod that is never beside another.
pub fn recreated(name: &str, mut template: Value) -> Value {
    template["spec"]["restartPolicy"] = json!("Always");
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "strategy": {"type": "Recreate"}, "selector": {"matchLabels": {"app": name}}, "template": template,
        },
    })
}

/// A Job that is done with one Pod of it.
pub fn job(name: &str, template: &Value) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template},
    })
}

fn token_in(said: &str) -> Option<i64> {
    let grant = said.lines().find(|line| line.starts_with('{'))?;
    serde_json::from_str::<Value>(grant).ok()?["token"].as_i64()
}

/// Waits until the Pod has its place in the queue, and its app does not run.
async fn waits(team: &Team, name: &str, lock: &str) {
    team.place.has_waiters(lock, 1).await;
    let waits = |pod: &Pod| {
        let sidecar = status_of(pod, "leasehold");
        let held_back = status_of(pod, "main").is_some_and(|status| {
            let waiting = status
                .state
                .as_ref()
                .and_then(|state| state.waiting.as_ref());
            waiting.is_some() && status.restart_count == 0
        });
        held_back && sidecar.is_some_and(|status| status.started != Some(true))
    };
    team.pod_is(name, "its sidecar waits for the lock", waits)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_pods_one_works_and_the_other_takes_over_within_two_seconds_of_its_end() {
    let team = team_with("importer").await;
    let make = |name: &str| {
        let made = team.create_as("maker", &[app(name, "importer", WORKS_ON)]);
        made.expect("it may make Pods");
    };
    make("first");
    let token = team.said("first", "main", token_in).await;
    let lease = team.place.lease("importer").await;
    let grant = lease.record.current_grant().expect("it is held").clone();
    assert_eq!(grant.token.get(), token);
    assert!(grant.pod.is_some_and(|pod| pod.name == "first"));
    make("second");
    waits(&team, "second", "importer").await;

    let first = team.container_runs("first", "main").await;
    let pids = team.container(&first, "main").processes();
    assert!(!pids.is_empty(), "the app has processes");
    let mut held = LeaseWatch::of(&team.client, &team.namespace, "importer").await;
    team.kubectl(&["delete", "pod", "first", "--wait=false"]);
    until("the first one's app ends", LONG, async || {
        let mut processes = pids.iter().map(|pid| PathBuf::from(format!("/proc/{pid}")));
        !processes.any(|process| process.exists())
    })
    .await;
    let ended = MonoInstant::now();
    let next = held.until(|name| name == "second");
    let (_, at) = within(LONG, "the second one takes it", next).await;
    let took = at.saturating_duration_since(ended);
    println!("taken {took:?} after the app's end");
    assert!(took < HAND_OVER, "{took:?}");

    let record = team.place.lease("importer").await.record;
    let end = record.ended.as_ref().expect("it was ended");
    assert_eq!((end.kind, end.token), (EndKind::Released, token));
    let second = record.current_grant().expect("it is held");
    assert!(second.token.get() > token);
    let told = team.said("second", "main", token_in).await;
    assert_eq!(told, second.token.get());
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_of_jobs_and_deployments_are_enough_and_other_pods_are_left_alone() {
    let team = team_with("nightly").await;
    let importer = template("importer", "nightly", WORKS_ON);
    team.apply(&[recreated("importer", importer)]);
    team.kubectl(&["rollout", "status", "deployment/importer", KUBECTL_WAITS]);
    let before = team.said("deployment/importer", "main", token_in).await;

    let once = template("nightly", "nightly", WORKS_ONCE);
    team.apply(&[job("nightly", &once)]);
    let of_the_job = ListParams::default().labels("app=nightly");
    let mut name = None;
    until("the Job has made its Pod", LONG, async || {
        let pods = team.pods().list(&of_the_job).await.expect("pods");
        name = pods.items.first().map(ResourceExt::name_any);
        name.is_some()
    })
    .await;
    waits(&team, &name.expect("a Pod"), "nightly").await;
    team.kubectl(&["scale", "deployment/importer", "--replicas=0"]);
    team.kubectl(&[
        "wait",
        "--for=condition=complete",
        "job/nightly",
        KUBECTL_WAITS,
    ]);
    let after = team.said("job/nightly", "main", token_in).await;
    assert!(after > before, "{after} after {before}");
    // The sidecar was the last one to end.
    let lease = team.place.lease("nightly").await;
    assert!(lease.record.is_free(), "{:?}", lease.record);

    let plain = pod("plain", BUSYBOX, &["sleep", "1000000"]);
    let made = team.create_as("maker", &[plain]);
    made.expect("it may make Pods");
    let plain = team.container_runs("plain", "main").await;
    let spec = plain.spec.expect("a spec");
    assert!(spec.init_containers.unwrap_or_default().is_empty());
    let probes = spec.containers.iter().map(|main| &main.liveness_probe);
    assert!(probes.flatten().next().is_none());
    team.finish().await;
}
