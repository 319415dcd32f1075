//! Public bug reports that only a kubelet can show: see docs/cases.md.

use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use kube::runtime::wait::await_condition;
use leasehold::api::EndReason;
use leasehold::clock::MonoInstant;
use serde_json::json;
use xtask::cluster::Component;

use super::death::exit_code;
use super::node::{LEADS_FOR, LOCK, MINUTE, WORKS, assert_at_once, rough, wrapped};
use super::operator_rig::ends;
use super::processes::{has_argument, zombies_below};
use super::release::LEASEHOLD;
use super::run_bench::until;
use super::server::within;
use super::stage::{LONG, Team, status_of};

/// spring-cloud/spring-cloud-kubernetes#210: it found itself in the record, by the name of its Pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_the_kubelet_starts_again_is_another_claimant() {
    let team = Team::new().await;
    team.lock(LOCK, 8).await;
    let mut made = wrapped("web-0", LOCK, WORKS);
    made["spec"]["restartPolicy"] = json!("Always");
    team.apply(&[made]);
    let first = team.held_by(LOCK, "web-0").await;
    let pod = team.container_runs("web-0", "main").await;
    team.container(&pod, "main").kill();
    let second = team.next_grant(LOCK, &first).await;
    assert_ne!(second.holder, first.holder);
    assert_eq!(second.pod, first.pod, "in the same Pod");
    let pod = team.container_runs("web-0", "main").await;
    let restarts = status_of(&pod, "main").map(|status| status.restart_count);
    assert_eq!(restarts, Some(1));
    // The kubelet may start what it reports as ended again, so that proves nothing.
    let lock = team
        .lock_is(LOCK, "the end is told", |lock| !ends(lock).is_empty())
        .await;
    assert_eq!(ends(&lock), [EndReason::Expired]);
    team.finish().await;
}

/// relizaio/rearm#269, kubernetes/kubernetes#66892: signals were lost on PID 1, orphans became zombies.
#[tokio::test(flavor = "multi_thread")]
async fn as_the_first_process_of_a_container_it_reaps_and_ends_with_its_pod() {
    let team = Team::new().await;
    team.lock(LOCK, MINUTE).await;
    let script = "i=0; while [ $i -lt 50 ]; do (sh -c 'exit 0' &); i=$((i+1)); done; \
                  echo ready; trap 'exit 9' TERM; sleep 1000000 & wait";
    team.apply(&[wrapped("init", LOCK, script)]);
    team.said("init", "main", |logs| logs.contains("ready").then_some(()))
        .await;
    let pod = team.container_runs("init", "main").await;
    let first = team.container(&pod, "main").first();
    assert!(has_argument(first, "run"), "it is leasehold");
    until("no zombie is left below PID 1", LONG, async || {
        zombies_below(first) == 0
    })
    .await;

    let began = MonoInstant::now();
    // The Pod is gone soon after.
    let (pods, delete) = (team.pods(), DeleteParams::default());
    let (_, deleted) = tokio::join!(
        team.pod_is("init", "the command's own exit code", |pod| {
            exit_code(pod, "main") == Some(9)
        }),
        pods.delete("init", &delete),
    );
    deleted.expect("it can be deleted");
    assert_at_once(began, "from the deletion of a Pod to its end");
    let lock = team
        .lock_is(LOCK, "the end is told", |lock| !ends(lock).is_empty())
        .await;
    assert_eq!(ends(&lock), [EndReason::Released]);
    team.finish().await;
}

/// Says when it starts, and when it has ended, which takes until it is let.
const TWICE: &str = "say() { read now rest </proc/uptime; echo $1 $now; }; \
                     end() { until test -e /stage/end; do sleep 1; done; say end; exit 1; }; \
                     trap end TERM; say start; sleep 1000000 & wait";

/// The moment of which a command of [`TWICE`] tells.
fn told(logs: &str, word: &str) -> Option<f64> {
    let line = logs.lines().find_map(|line| line.strip_prefix(word))?;
    line.trim().parse().ok()
}

/// kubernetes/kubernetes#130683, #120790, #62772, #102959: a Job with parallelism 1 runs two Pods.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_pods_that_a_job_runs_at_once_the_second_waits_for_the_end_of_the_first() {
    let team = Team::new().await;
    team.lock(LOCK, MINUTE).await;
    let mut spec = wrapped("job", LOCK, TWICE)["spec"].take();
    spec["terminationGracePeriodSeconds"] = json!(120);
    spec["volumes"] = json!([{"name": "stage", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "stage", "mountPath": "/stage"}]);
    team.apply(&[json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"},
        "spec": {
            "parallelism": 1, "completions": 1, "podReplacementPolicy": "TerminatingOrFailed",
            "template": {"spec": spec},
        },
    })]);
    let first = team.granted(LOCK, "a Pod holds it", |_| true).await;
    let name = first.pod.clone().expect("a Pod").name;
    team.said(&name, "main", |logs| told(logs, "start")).await;
    let mut follow = team.cluster().kubectl(["--namespace", &team.namespace]);
    follow
        .args(["logs", "--follow", &name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let follow = follow.spawn().expect("kubectl runs");

    team.kubectl(&["delete", "pod", &name, "--wait=false"]);
    team.is_waited_for(LOCK).await;
    let of_job = ListParams::default().labels("job-name=job");
    let pods = team.pods().list(&of_job).await.expect("Pods").items;
    let runs = |pod: &&Pod| exit_code(pod, "main").is_none();
    assert_eq!(pods.iter().filter(runs).count(), 2, "two Pods at once");
    let lease = team.place.lease(LOCK).await.record;
    assert_eq!(lease.current_grant(), Some(&first), "and one holder");

    team.kubectl(&["exec", &name, "--", "touch", "/stage/end"]);
    let second = team.next_grant(LOCK, &first).await;
    let next = second.pod.clone().expect("a Pod").name;
    let start = team.said(&next, "main", |logs| told(logs, "start")).await;
    let logs = tokio::task::spawn_blocking(|| follow.wait_with_output()).await;
    let logs = logs.expect("it is read").expect("kubectl ends");
    let end = told(&String::from_utf8_lossy(&logs.stdout), "end");
    assert!(end.is_some_and(|end| end <= start), "{end:?} {start:?}");
    team.finish().await;
}

/// ovn-kubernetes/ovn-kubernetes#3959, cloudnative-pg/cloudnative-pg#8034: "leader election lost" was a restart, again and
/// again. The times of the chart are what the leader goes by.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_costs_the_operators_pod_no_restart_and_no_holder_its_lock() {
    let (team, _turn) = rough().await;
    team.lock(LOCK, 600).await;
    team.apply(&[wrapped("holder", LOCK, WORKS)]);
    let grant = team.held_by(LOCK, "holder").await;
    let leases: Api<Lease> = Api::namespaced(team.client.clone(), LEASEHOLD.namespace);
    let election = "leasehold-operator";
    let spec = leases.get(election).await.expect("a leader").spec;
    let before = spec.expect("a spec");
    assert_eq!(before.lease_duration_seconds, Some(LEADS_FOR));

    let outage = Duration::from_secs(8);
    assert!(outage.as_secs() > LEADS_FOR.unsigned_abs().into());
    let cluster = team.cluster();
    cluster.freeze(Component::ApiServer).expect("it is frozen");
    tokio::time::sleep(outage).await;
    cluster.thaw(Component::ApiServer).expect("it goes on");
    let leads = await_condition(leases.clone(), election, |lease: Option<&Lease>| {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        spec.is_some_and(|spec| {
            let led = spec
                .holder_identity
                .as_ref()
                .is_some_and(|holder| !holder.is_empty());
            led && spec.acquire_time > before.acquire_time
        })
    });
    let leads = within(LONG, "it leads again", leads).await;
    leads.expect("a watch");
    let all: Api<Pod> = Api::namespaced(team.client.clone(), LEASEHOLD.namespace);
    let pods = all.list(&ListParams::default()).await.expect("Pods").items;
    let restarts = |pod: &Pod| status_of(pod, "operator").map(|status| status.restart_count);
    assert_eq!(pods.iter().map(restarts).collect::<Vec<_>>(), [Some(0)]);
    team.assert_still_held(LOCK, &grant).await;
    team.finish().await;
}
