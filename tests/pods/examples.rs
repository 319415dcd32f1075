//! The examples that run a program of one's own under a lock: in Pods of a namespace that takes restricted ones only,
//! with the rights that the manifests themselves give, under policies that deny.

use std::fs;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use leasehold::api::{DistributedLock, EndReason};

use super::examples_images::IMAGES;
use super::examples_works::{Works, assert_one_at_a_time, most_at_once};
use super::operator_rig::{ends, is_free};
use super::stage::{Team, example, shows, status_of};

/// Of the locks of the examples, where it matters.
const LEASE: Duration = Duration::from_secs(15);

/// A namespace for restricted Pods.
pub async fn team() -> Team {
    let team = Team::new().await;
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    team.kubectl(&["label", "namespace", &team.namespace, restricted]);
    team
}

/// Applies a text with images that the node has, or is given now.
pub fn apply_text(team: &Team, text: &str) {
    let mut text = text.to_owned();
    for image in &IMAGES {
        let named = format!("image: {}", image.example);
        if text.contains(&named) {
            tokio::task::block_in_place(|| image.ensure(team.cluster()));
            text = text.replace(&named, &format!("image: {}", image.name));
        }
    }
    let mut images = text.lines().filter(|line| line.contains(" image: "));
    assert!(images.all(|line| line.contains("localhost/")), "{text}");
    team.apply_text(&text);
}

/// Applies an example.
pub fn apply(team: &Team, name: &str) {
    apply_text(team, &example(name));
}

/// The commands in an example's first comment, a script to be run at the repository's root.
pub fn commands(name: &str) -> String {
    let path = xtask::repository().join("examples").join(name);
    let text = fs::read_to_string(path).expect("the example is there");
    let comment = text.lines().map_while(|line| line.strip_prefix('#'));
    let commands = comment.filter_map(|line| line.strip_prefix("   "));
    let commands: Vec<_> = commands.map(str::trim).collect();
    assert!(!commands.is_empty(), "{name}");
    commands.join("\n")
}

/// Waits until a lock shows this.
pub async fn lock_is(
    team: &Team,
    name: &str,
    what: &str,
    is_so: impl Fn(&DistributedLock) -> bool,
) -> DistributedLock {
    shows(team.place.locks.clone(), name, what, is_so).await
}

/// Waits until so many wait for a lock.
pub async fn waiters(team: &Team, lock: &str, count: i32) {
    lock_is(team, lock, &format!("{count} wait"), |lock| {
        let status = lock.status.as_ref();
        status.and_then(|status| status.waiters).unwrap_or(0) == count
    })
    .await;
}

/// Waits until a lock is free, and tells how often its holders gave it back; none may have ended otherwise.
pub async fn given_back(team: &Team, lock: &str, times: usize) {
    let lock = lock_is(team, lock, "it is free, and told of", |lock| {
        is_free(lock) && ends(lock).len() == times
    });
    assert_eq!(ends(&lock.await), vec![EndReason::Released; times]);
}

/// The one Pod of an app besides this one.
async fn other_pod(team: &Team, app: &str, than: &str) -> Pod {
    let labelled = ListParams::default().labels(&format!("app={app}"));
    let all = team.pods().list(&labelled).await;
    let mut others = all.expect("pods").items;
    others.retain(|pod| pod.name_any() != than);
    assert_eq!(others.len(), 1, "{others:#?}");
    others.remove(0)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.next().is_some_and(|ready| ready.status == "True")
}

fn create_job(team: &Team, name: &str, from: &str) {
    team.kubectl(&["create", "job", name, &format!("--from=cronjob/{from}")]);
}

fn jobs_complete(team: &Team, jobs: &[String]) {
    let mut args = vec!["wait", "--for=condition=Complete", "--timeout=120s"];
    args.extend(jobs.iter().map(String::as_str));
    tokio::task::block_in_place(|| team.kubectl(&args));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrapped_deployment_works_in_one_pod_at_a_time_while_it_is_scaled_killed_and_updated() {
    let team = team().await;
    let mut works = Works::of(&team, "mailer");
    apply(&team, "singleton.yaml");
    let first = works.begun_after(0).await;
    team.pod_is(&first.pod, "it is ready", is_ready).await;

    // Scaled by mistake: the second Pod waits, and works once the first one is gone.
    team.kubectl(&["scale", "deployment/mailer", "--replicas=2"]);
    waiters(&team, "mailer", 1).await;
    let waiting = other_pod(&team, "mailer", &first.pod).await;
    assert!(!is_ready(&waiting), "{waiting:#?}");
    assert_eq!(works.now().len(), 1);
    team.kubectl(&["delete", "pod", &first.pod, "--wait=false"]);
    let second = works.begun_after(1).await;
    assert_eq!(second.pod, waiting.name_any());
    team.pod_is(&second.pod, "it is ready", is_ready).await;

    // Back to one, it is the waiting Pod that goes. An update ends the old one first.
    waiters(&team, "mailer", 1).await;
    team.kubectl(&["scale", "deployment/mailer", "--replicas=1"]);
    waiters(&team, "mailer", 0).await;
    assert_eq!(works.now().len(), 2, "{:?}", works.now());
    team.kubectl(&["rollout", "restart", "deployment/mailer"]);
    let third = works.begun_after(2).await;
    let status = ["rollout", "status", "deployment/mailer", "--timeout=120s"];
    tokio::task::block_in_place(|| team.kubectl(&status));

    team.kubectl(&["delete", "deployment/mailer", "--wait=false"]);
    let all = works.ended(3).await;
    assert_one_at_a_time(&all);
    assert_eq!(all[2].pod, third.pod);
    given_back(&team, "mailer", 3).await;
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_with_the_sidecar_starts_its_app_in_one_pod_at_a_time() {
    let team = team().await;
    let mut works = Works::of(&team, "importer");
    apply(&team, "sidecar.yaml");
    let first = works.begun_after(0).await;

    team.kubectl(&["scale", "deployment/importer", "--replicas=2"]);
    waiters(&team, "importer", 1).await;
    let waiting = other_pod(&team, "importer", &first.pod).await;
    let app = status_of(&waiting, "importer");
    let started = app.is_some_and(|app| app.container_id.is_some());
    assert!(!started, "{waiting:#?}");
    team.kubectl(&["delete", "pod", &first.pod, "--wait=false"]);
    let second = works.begun_after(1).await;
    assert_eq!(second.pod, waiting.name_any());

    team.pod_is(&second.pod, "it is ready", is_ready).await;
    waiters(&team, "importer", 1).await;
    team.kubectl(&["scale", "deployment/importer", "--replicas=0"]);
    let all = works.ended(2).await;
    assert_one_at_a_time(&all);
    given_back(&team, "importer", 2).await;
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_cron_job_run_one_after_the_other_and_a_killed_one_again() {
    let team = team().await;
    let mut works = Works::of(&team, "billing");
    apply(&team, "cronjob.yaml");
    // By its comment, and once more meanwhile.
    let by_hand = "kubectl create job tonight --from=cronjob/nightly-billing";
    assert!(commands("cronjob.yaml").contains(by_hand));
    for job in ["tonight", "once-more"] {
        create_job(&team, job, "nightly-billing");
    }
    works.ended(2).await;
    // A Pod that is evicted has not done its job: another one begins once it has ended.
    create_job(&team, "evicted", "nightly-billing");
    let evicted = works.begun_after(2).await;
    team.kubectl(&["delete", "pod", &evicted.pod, "--wait=false"]);
    let all = works.ended(4).await;
    assert_one_at_a_time(&all);
    let jobs = ["job/tonight", "job/once-more", "job/evicted"];
    jobs_complete(&team, &jobs.map(str::to_owned));
    given_back(&team, "nightly-billing", 4).await;
    team.finish().await;
}

/// A `StatefulSet` keeps to one Pod of a name, until it is deleted by force: then both run.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_pod_of_an_ordinal_works_only_after_the_one_that_was_deleted_by_force() {
    let team = team().await;
    let mut works = Works::of(&team, "shard");
    apply(&team, "statefulset.yaml");
    let begun = works
        .until("each ordinal works", |works| works.len() == 2)
        .await;
    let mut pods: Vec<_> = begun.iter().map(|work| work.pod.as_str()).collect();
    pods.sort_unstable();
    assert_eq!(pods, ["shard-0", "shard-1"]);
    assert_eq!(most_at_once(&begun), 2, "each has a lock of its own");

    let old = team.pods().get("shard-0").await.expect("the pod").uid();
    tokio::task::block_in_place(|| {
        team.kubectl(&["delete", "pod", "shard-0", "--force", "--grace-period=0"]);
    });
    // The kubelet gives such a Pod two seconds. Killed, it says nothing, and its lease must be over first.
    let begun = works.until("the new one works, and the old one is over", |works| {
        works.len() == 3 && works.iter().any(|work| work.over)
    });
    let (mut zero, one): (Vec<_>, Vec<_>) = begun
        .await
        .into_iter()
        .partition(|work| work.pod == "shard-0");
    let killed = zero[0].begin + LEASE.as_secs_f64();
    zero[0].end.get_or_insert(killed);
    assert_one_at_a_time(&zero);
    assert!(!one[0].over, "the other ordinal goes on");
    let new = team.pods().get("shard-0").await.expect("the pod").uid();
    assert_ne!(old, new);
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_jobs_three_work_at_once() {
    let team = team().await;
    let mut works = Works::of(&team, "import");
    apply(&team, "semaphore.yaml");
    let ten: Vec<_> = (1..=10).map(|n| format!("import-{n}")).collect();
    let by_comment = commands("semaphore.yaml");
    assert!(by_comment.contains("create job \"import-$n\" --from=cronjob/import;"));
    tokio::task::block_in_place(|| {
        for job in &ten {
            create_job(&team, job, "import");
        }
    });
    let all = works.ended(10).await;
    assert_eq!(most_at_once(&all), 3, "{all:#?}");
    for slot in 0..3 {
        let mut of_slot = all.clone();
        of_slot.retain(|work| work.slot == slot);
        assert!(!of_slot.is_empty(), "slot {slot} was never taken");
        assert_one_at_a_time(&of_slot);
    }
    let jobs: Vec<_> = ten.iter().map(|job| format!("job/{job}")).collect();
    jobs_complete(&team, &jobs);
    team.finish().await;
}

/// Locks of every shape are opened by the operator.
#[tokio::test(flavor = "multi_thread")]
async fn the_locks_of_every_shape_become_ready() {
    let team = team().await;
    apply(&team, "locks.yaml");
    let all = team.place.locks.list(&ListParams::default()).await;
    let all = all.expect("locks").items;
    assert_eq!(all.len(), 5);
    for lock in all {
        lock_is(&team, &lock.name_any(), "it is free", is_free).await;
    }
    team.finish().await;
}
