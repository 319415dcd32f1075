//! The sidecar in Pods that a kubelet runs, as docs/sidecar.md tells.

use k8s_openapi::api::core::v1::Pod;
use leasehold::api::{EndReason, LockPhase};
use leasehold::clock::MonoInstant;
use leasehold::engine::{Grant, Hold};
use serde_json::{Value, json};
use xtask::node::BUSYBOX;
use xtask::node::image::PRODUCT;

use super::death::exit_code;
use super::node::{LOCK, MINUTE, assert_at_once};
use super::operator_place::fixed;
use super::operator_rig::ends;
use super::stage::{Team, least_rights, pod, status_of};

/// An app that shows the grant which it found, and works until it is told to end.
pub const APP: &str = "cat /var/run/leasehold/grant.json; trap 'exit 0' TERM; sleep 1000000 & wait";
/// One that nobody can tell to end.
pub const STUBBORN: &str =
    "cat /var/run/leasehold/grant.json; trap '' TERM; while :; do sleep 1; done";

/// A Pod whose container `main` runs `app` beside the sidecar of a lock, which gets these arguments more.
pub fn with_sidecar(name: &str, lock: &str, app: &str, more: &[&str]) -> Value {
    let mut made = pod(name, BUSYBOX, &["sh", "-c", app]);
    let mount = |read_only: bool| json!([{"name": "leasehold-grant", "mountPath": "/var/run/leasehold", "readOnly": read_only}]);
    let ours = |name: &str, args: &[&str]| {
        let mut container = pod(name, PRODUCT, &[])["spec"]["containers"][0].take();
        container["name"] = json!(name);
        container["args"] = json!([&["sidecar"][..], args].concat());
        container["volumeMounts"] = mount(false);
        container
    };
    let asks = format!("--lock={lock}");
    let mut sidecar = ours("leasehold", &[&[&*asks][..], more].concat());
    sidecar["restartPolicy"] = json!("Always");
    sidecar["startupProbe"] = json!({
        "httpGet": {"path": "/heldz", "port": 7118},
        "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 1_000_000,
    });
    let spec = &mut made["spec"];
    spec["serviceAccountName"] = json!(lock);
    spec["terminationGracePeriodSeconds"] = json!(10);
    spec["initContainers"] = json!([ours("leasehold-begin", &["--new-work"]), sidecar]);
    spec["containers"][0]["volumeMounts"] = mount(true);
    spec["volumes"] = json!([
        {"name": "leasehold-grant", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]);
    made
}

impl Team {
    /// Makes a Pod with a sidecar, and waits until its app works; the Pod and its grant.
    async fn works(&self, lock: &str, made: Value) -> (Pod, Grant) {
        let name = made["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned();
        self.apply(&[made]);
        let grant = self.held_by(lock, &name).await;
        let pod = self.container_runs(&name, "main").await;
        assert_eq!(self.token(&name).await, grant.token.get());
        (pod, grant)
    }

    /// The token that the app found when it began.
    pub async fn token(&self, pod: &str) -> i64 {
        self.token_of(pod, "main").await
    }

    /// The token that a container found when it began.
    pub async fn token_of(&self, pod: &str, container: &str) -> i64 {
        self.said(pod, container, |logs| {
            let grant: Value = serde_json::from_str(logs.lines().next()?).ok()?;
            grant["token"].as_i64()
        })
        .await
    }
}

/// Which container of this name it is: another one after a restart.
pub fn id<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let status = status_of(pod, container)?;
    let runs = status.state.as_ref()?.running.is_some();
    status.container_id.as_deref().filter(|_| runs)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_app_is_held_back_until_the_lock_is_held_and_a_deleted_pod_hands_it_on() {
    let team = Team::new().await;
    team.lock(LOCK, MINUTE).await;
    team.place.claim("before", fixed(3600)).await;
    let before = team
        .granted(LOCK, "the claim holds it", |grant| {
            grant.hold == Hold::Fixed
        })
        .await;

    team.apply(&[with_sidecar("first", LOCK, APP, &[])]);
    team.is_waited_for(LOCK).await;
    let waits = team.container_runs("first", "leasehold").await;
    let sidecar = status_of(&waits, "leasehold").expect("a status");
    assert_eq!(sidecar.started, Some(false), "the probe has not passed");
    let app = status_of(&waits, "main").expect("a status");
    assert_eq!(app.container_id, None, "it was not begun");
    team.place.delete_claim("before").await;
    let first = team.held_by(LOCK, "first").await;
    assert!(first.token > before.token);
    team.container_runs("first", "main").await;
    assert_eq!(team.token("first").await, first.token.get());

    team.apply(&[with_sidecar("second", LOCK, APP, &[])]);
    team.is_waited_for(LOCK).await;
    let began = MonoInstant::now();
    team.kubectl(&["delete", "pod", "first", "--wait=false"]);
    let second = team.held_by(LOCK, "second").await;
    assert_at_once(began, "from the deletion of a Pod to the next holder");
    assert!(second.token > first.token);
    assert_eq!(team.token("second").await, second.token.get());
    let lock = team
        .lock_is(LOCK, "both ends are told", |lock| ends(lock).len() == 2)
        .await;
    assert_eq!(ends(&lock), [EndReason::Released; 2]);
    team.finish().await;
}

/// The kubelet and the app live, the sidecar can do nothing: it is for this that the app has its probe. Where nothing is
/// started again the kubelet ends the whole Pod, by the grace of the Pod and not of the probe.
#[tokio::test(flavor = "multi_thread")]
async fn the_probe_of_an_app_whose_sidecar_is_frozen_ends_it_before_its_lease() {
    let team = Team::new().await;
    let mut frozen = vec![];
    for (lock, restarts) in [("again", "Always"), ("once", "Never")] {
        team.lock(lock, MINUTE).await;
        let mut made = with_sidecar(lock, lock, STUBBORN, &[]);
        made["spec"]["restartPolicy"] = json!(restarts);
        // That of examples/sidecar.yaml.
        made["spec"]["containers"][0]["livenessProbe"] = json!({
            "httpGet": {"path": "/heldz", "port": 7118},
            "periodSeconds": 2, "timeoutSeconds": 1, "failureThreshold": 2, "terminationGracePeriodSeconds": 4,
        });
        let (pod, grant) = team.works(lock, made).await;
        let began = MonoInstant::now();
        let sidecar = team.container(&pod, "leasehold").freeze();
        frozen.push((lock, grant, began, sidecar));
    }
    for (lock, grant, began, _) in &frozen {
        team.pod_is(lock, "the app has ended", |pod| {
            let restarts = status_of(pod, "main").map(|status| status.restart_count);
            exit_code(pod, "main").is_some() || restarts > Some(0)
        })
        .await;
        let took = MonoInstant::now().saturating_duration_since(*began);
        println!("{lock}: from the freezing of a sidecar to the end of its app: {took:?}");
        let lease = team.place.lease(lock).await.record;
        assert_eq!(lease.current_grant(), Some(grant), "nobody has it yet");
    }
    drop(frozen);
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_sidecar_goes_on_with_its_grant_and_after_a_loss_the_pod_begins_again() {
    let team = Team::new().await;
    team.lock(LOCK, MINUTE).await;
    let mut made = with_sidecar("again", LOCK, APP, &["--on-loss=exit"]);
    made["spec"]["restartPolicy"] = json!("Always");
    made["spec"]["initContainers"][1]["restartPolicyRules"] = json!([
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [76]}},
    ]);
    let (pod, first) = team.works(LOCK, made).await;
    let app = id(&pod, "main").map(str::to_owned);

    let lease = team.place.lease(LOCK).await.record;
    team.container(&pod, "leasehold").kill();
    let pod = team
        .pod_is("again", "the sidecar vouches for its grant again", |pod| {
            let sidecar = status_of(pod, "leasehold");
            sidecar.is_some_and(|status| status.restart_count > 0 && status.started == Some(true))
        })
        .await;
    let after = team.place.lease(LOCK).await.record;
    assert_eq!(
        after.current_grant(),
        Some(&first),
        "same token, same holder"
    );
    assert_ne!(
        after.spec.renew_time, lease.spec.renew_time,
        "renewed by the new process"
    );
    assert_eq!(id(&pod, "main"), app.as_deref(), "the app works on");

    let began = MonoInstant::now();
    team.revoke(LOCK, &first).await;
    let second = team.next_grant(LOCK, &first).await;
    assert_at_once(began, "from a revoke to the next grant of the same Pod");
    assert_ne!(second.holder, first.holder);
    assert_eq!(second.pod, first.pod);
    team.pod_is("again", "the app works again", |pod| {
        id(pod, "main").is_some_and(|id| Some(id) != app.as_deref())
    })
    .await;
    assert_eq!(team.token("again").await, second.token.get());
    let lock = team
        .lock_is(LOCK, "the end is told", |lock| !ends(lock).is_empty())
        .await;
    assert_eq!(ends(&lock), [EndReason::Revoked]);
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_shared_process_namespace_the_sidecar_kills_an_app_that_ignores_term() {
    let team = Team::new().await;
    team.lock(LOCK, 15).await;
    let mut made = with_sidecar("shared", LOCK, STUBBORN, &["--end-app"]);
    made["spec"]["shareProcessNamespace"] = json!(true);
    let (_, grant) = team.works(LOCK, made).await;
    let began = MonoInstant::now();
    team.revoke(LOCK, &grant).await;
    team.pod_is("shared", "the app was killed", |pod| {
        exit_code(pod, "main") == Some(137)
    })
    .await;
    assert_at_once(began, "from a revoke to the end of a stubborn app");
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
    team.pod_is("shared", "its work is over", |pod| {
        phase(pod).as_deref() == Some("Failed")
    })
    .await;
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_a_deployment_makes_another_pod_with_another_grant() {
    let team = Team::new().await;
    team.lock(LOCK, MINUTE).await;
    let mut rights = least_rights(LOCK);
    let delete = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]});
    rights.as_array_mut().expect("rules").push(delete);
    team.account(LOCK, &rights);
    let mut template = with_sidecar("app", LOCK, APP, &["--on-loss=delete-pod"]);
    template["spec"]["restartPolicy"] = json!("Always");
    let labels = json!({"app": "app"});
    team.apply(&[json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "app"},
        "spec": {
            "replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    })]);
    let first = team.granted(LOCK, "a Pod holds it", |_| true).await;
    let pod = first.pod.clone().expect("a Pod").name;
    team.container_runs(&pod, "main").await;

    let began = MonoInstant::now();
    team.revoke(LOCK, &first).await;
    let second = team.next_grant(LOCK, &first).await;
    assert_at_once(
        began,
        "from a revoke to the grant of a Deployment's next Pod",
    );
    let next = second.pod.clone().expect("a Pod").name;
    assert_ne!(next, pod);
    Box::pin(team.pod_goes(&pod)).await;
    assert_eq!(team.token(&next).await, second.token.get());
    team.finish().await;
}

/// A sidecar gets two seconds; the app has ended before.
#[tokio::test(flavor = "multi_thread")]
async fn when_a_jobs_work_is_done_the_lock_is_given_back_with_it() {
    let team = Team::new().await;
    team.lock(LOCK, MINUTE).await;
    let app = "cat /var/run/leasehold/grant.json";
    let template = with_sidecar("job", LOCK, app, &[]);
    team.apply(&[json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"},
        "spec": {"backoffLimit": 0, "template": {"spec": template["spec"]}},
    })]);
    let lock = team
        .lock_is(LOCK, "it was held, and is free", |lock| {
            !ends(lock).is_empty()
        })
        .await;
    assert_eq!(ends(&lock), [EndReason::Released]);
    let status = lock.status.as_ref().expect("a status");
    assert_eq!(status.phase, Some(LockPhase::Free));
    let done = [
        "wait",
        "--for=condition=Complete",
        "job/job",
        "--timeout=120s",
    ];
    team.kubectl(&done);
    let pods = team.kubectl(&["get", "pods", "--selector=job-name=job", "--output=json"]);
    let pods: Value = serde_json::from_str(&pods).expect("JSON");
    let pod: Pod = serde_json::from_value(pods["items"][0].clone()).expect("a Pod");
    assert_eq!(
        exit_code(&pod, "leasehold"),
        Some(0),
        "nothing was left undone"
    );
    team.finish().await;
}
