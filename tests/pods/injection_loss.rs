//! Loss of the lock in Pods into which the sidecar was injected: how their work ends, and how it begins again.

use std::path::PathBuf;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use leasehold::api::names;
use leasehold::clock::MonoInstant;
use leasehold::engine::Grant;
use serde_json::{Value, json};
use xtask::node::BUSYBOX;

use super::death::exit_code;
use super::injection::{job, recreated};
use super::node::{MINUTE, assert_at_once};
use super::run_bench::until;
use super::sidecar::{STUBBORN, id};
use super::stage::{LONG, Team, least_rights, pod, shows, since};

/// The template of Pods that do stubborn work under the lock of this name, by its account.
fn template(lock: &str) -> Value {
    let made = pod(lock, BUSYBOX, &["sh", "-c", STUBBORN]);
    let mut template = json!({
        "metadata": {"labels": {"app": lock}, "annotations": {names::ANNOTATION_LOCK: lock}},
        "spec": made["spec"],
    });
    template["spec"]["serviceAccountName"] = json!(lock);
    template["spec"]["terminationGracePeriodSeconds"] = json!(4);
    template
}

/// With another way to go on after a loss.
fn on_loss(mut template: Value, how: &str) -> Value {
    template["metadata"]["annotations"][names::ANNOTATION_ON_LOSS] = json!(how);
    template
}

/// What works under a lock.
struct Work {
    lock: &'static str,
    grant: Grant,
    pod: Pod,
    processes: Vec<i32>,
}

impl Work {
    /// Waits until the container of the lock's holder works, with the token of its grant.
    async fn of(team: &Team, lock: &'static str, container: &str) -> Self {
        let grant = team.granted(lock, "a Pod holds it", |_| true).await;
        Self::under(team, lock, grant, container).await
    }

    async fn under(team: &Team, lock: &'static str, grant: Grant, container: &str) -> Self {
        let name = grant.pod.clone().expect("a Pod").name;
        let pod = team.container_runs(&name, container).await;
        assert_eq!(team.token_of(&name, container).await, grant.token.get());
        let processes = team.container(&pod, container).processes();
        Self {
            lock,
            grant,
            pod,
            processes,
        }
    }

    /// Ends the grant by decree, and waits until nothing is left of the work.
    async fn is_revoked(&self, team: &Team) {
        let began = MonoInstant::now();
        team.revoke(self.lock, &self.grant).await;
        until("its work has ended", LONG, async || {
            let paths = self.processes.iter().map(|pid| format!("/proc/{pid}"));
            !paths.map(PathBuf::from).any(|process| process.exists())
        })
        .await;
        println!(
            "{}: from a revoke to the end of its work: {:?}",
            self.lock,
            since(began)
        );
    }

    /// The same container of the same Pod works again, with the token of another grant.
    async fn begins_again(&self, team: &Team, container: &str) {
        let next = team.next_grant(self.lock, &self.grant).await;
        assert_eq!(next.pod, self.grant.pod, "in the same Pod");
        let before = id(&self.pod, container).map(str::to_owned);
        let name = self.pod.name_any();
        team.pod_is(&name, "it works again", |pod| {
            id(pod, container).is_some_and(|id| Some(id) != before.as_deref())
        })
        .await;
        assert_eq!(team.token_of(&name, container).await, next.token.get());
    }
}

/// Also a Job's Pod, whose restart policy is Never, begins again, and has not failed.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_the_pods_of_a_deployment_and_of_a_job_begin_again_with_another_grant() {
    let team = Team::new().await;
    for lock in ["importer", "nightly"] {
        team.lock(lock, MINUTE).await;
    }
    team.apply(&[
        recreated("importer", template("importer")),
        job("nightly", &template("nightly")),
    ]);
    for lock in ["importer", "nightly"] {
        let work = Work::of(&team, lock, "main").await;
        let began = MonoInstant::now();
        work.is_revoked(&team).await;
        assert_at_once(began, "from a revoke to the end of an injected app");
        work.begins_again(&team, "main").await;
    }
    let jobs: Api<Job> = Api::namespaced(team.client.clone(), &team.namespace);
    shows(jobs, "nightly", "no Pod of it has failed", |job| {
        let status = job.status.as_ref();
        status.is_some_and(|status| status.active == Some(1) && status.failed.is_none())
    })
    .await;
    team.finish().await;
}

/// What runs before the app runs under the lock, too.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_an_init_container_begins_again_with_another_grant() {
    let team = Team::new().await;
    team.lock("importer", MINUTE).await;
    let mut prepares = template("importer");
    let mut first = prepares["spec"]["containers"][0].clone();
    first["name"] = json!("first");
    prepares["spec"]["initContainers"] = json!([first]);
    team.apply(&[recreated("importer", prepares)]);
    let work = Work::of(&team, "importer", "first").await;
    let began = MonoInstant::now();
    work.is_revoked(&team).await;
    assert_at_once(began, "from a revoke to the end of an init container");
    work.begins_again(&team, "first").await;
    team.finish().await;
}

/// Nothing starts the app again there, and the probe ends it.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_a_job_whose_sidecar_stays_makes_another_pod() {
    let team = Team::new().await;
    team.lock("nightly", MINUTE).await;
    team.apply(&[job("nightly", &on_loss(template("nightly"), "stay"))]);
    let work = Work::of(&team, "nightly", "main").await;
    work.is_revoked(&team).await;
    let first = work.pod.name_any();
    let failed = |pod: &Pod| {
        let phase = pod.status.as_ref()?.phase.as_deref()?;
        (phase == "Failed").then(|| exit_code(pod, "main"))
    };
    let ended = team
        .pod_is(&first, "it has failed", |pod| failed(pod).is_some())
        .await;
    assert_eq!(failed(&ended), Some(Some(137)), "it was killed");
    let next = team.next_grant("nightly", &work.grant).await;
    let next = Work::under(&team, "nightly", next, "main").await;
    assert_ne!(next.pod.name_any(), first);
    team.finish().await;
}

/// The sidecar ends the app, and what the kubelet starts in its place until the Pod is gone.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_a_deployment_makes_another_pod_for_one_that_was_deleted() {
    let team = Team::new().await;
    team.lock("importer", MINUTE).await;
    let mut rights = least_rights("importer");
    let delete = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]});
    rights.as_array_mut().expect("rules").push(delete);
    team.account("importer", &rights);
    let mut shared = on_loss(template("importer"), "delete-pod");
    shared["spec"]["shareProcessNamespace"] = json!(true);
    shared["spec"]["securityContext"]["runAsUser"] = json!(4711);
    team.apply(&[recreated("importer", shared)]);
    let work = Work::of(&team, "importer", "main").await;
    work.is_revoked(&team).await;
    let next = team.next_grant("importer", &work.grant).await;
    let next = Work::under(&team, "importer", next, "main").await;
    assert_ne!(next.pod.name_any(), work.pod.name_any());
    team.finish().await;
}
