//! The examples of leader election: the same service in Rust, with the library, and in Python and Go by HTTP alone.

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::examples::{apply_text, lock_is, team, waiters};
use super::operator_rig::is_free;
use super::stage::{LONG, Team, example};

/// One write of a leader.
#[derive(Clone, Debug, PartialEq)]
struct Beat {
    token: i64,
    pod: String,
}

/// All that leaders wrote into their `ConfigMap`.
struct Board {
    told: watch::Receiver<Vec<Beat>>,
    watching: JoinHandle<()>,
}

impl Board {
    fn of(team: &Team, name: &str) -> Self {
        let (tell, told) = watch::channel(vec![]);
        let api = Api::<ConfigMap>::namespaced(team.client.clone(), &team.namespace);
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let watching = tokio::spawn(async move {
            let mut seen = watcher(api, config)
                .default_backoff()
                .applied_objects()
                .boxed();
            while let Some(object) = seen.next().await {
                if let Some(beat) = object.ok().and_then(|object| read(&object)) {
                    tell.send_modify(|beats| beats.push(beat));
                }
            }
        });
        Self { told, watching }
    }

    /// Waits until a leader with a higher token writes, and goes on writing.
    async fn leads_after(&mut self, token: i64) -> Beat {
        let higher = |beats: &Vec<Beat>| {
            let mut later = beats.iter().filter(|beat| beat.token > token);
            later.nth(1).cloned()
        };
        let so = self.told.wait_for(|beats| higher(beats).is_some());
        let found = tokio::time::timeout(LONG, so).await;
        let found = found.map(|beats| higher(&beats.expect("it is watched")));
        found.ok().flatten().unwrap_or_else(|| {
            panic!("nobody leads after {token}: {:#?}", *self.told.borrow());
        })
    }

    /// Tokens never fell, and each was one leader's.
    fn assert_one_at_a_time(&self) {
        let beats = self.told.borrow();
        for pair in beats.windows(2) {
            let (before, after) = (&pair[0], &pair[1]);
            let same = before.token == after.token && before.pod == after.pod;
            assert!(same || before.token < after.token, "{beats:#?}");
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn read(object: &ConfigMap) -> Option<Beat> {
    let data = object.data.as_ref()?;
    Some(Beat {
        token: data.get("token")?.parse().ok()?,
        pod: data.get("leader")?.clone(),
    })
}

/// What two replicas do of which one leads, whatever they are written in.
async fn elects(team: &Team, name: &str, manifests: &str) -> Beat {
    let mut board = Board::of(team, name);
    apply_text(team, manifests);
    let first = board.leads_after(0).await;
    waiters(team, name, 1).await;

    // Its Pod goes: the other one leads, at once, since the lead is given back.
    team.kubectl(&["delete", "pod", &first.pod, "--wait=false"]);
    let second = board.leads_after(first.token).await;
    assert_ne!(second.pod, first.pod);
    waiters(team, name, 1).await;

    // The lead is taken from it: it steps down in good order, and queues again behind the other one.
    let floor = json!({"spec": {"minFencingToken": second.token + 1}});
    team.place.edit_lock(name, &floor).await;
    let third = board.leads_after(second.token).await;
    assert_ne!(third.pod, second.pod);
    let led = format!("leads with token {}", second.token);
    let in_order = |words: &str| {
        let after = words.split_once(&led)?.1;
        after.contains("steps down").then_some(())
    };
    team.said(&second.pod, "leader", in_order).await;
    waiters(team, name, 1).await;
    let revoked = team.pods().get(&second.pod).await.expect("it lives on");
    assert_eq!(restarts(&revoked), 0);
    board.assert_one_at_a_time();
    third
}

/// The resource has seen a token far above the lock's: whoever leads is refused, and does not keep the lead idle.
async fn gives_back_when_refused(team: &Team, name: &str, leader: &Beat) {
    let ahead = json!({"data": {"token": (1_i64 << 52).to_string()}}).to_string();
    team.kubectl(&["patch", "configmap", name, "--patch", &ahead]);
    let refused = |words: &str| words.contains("refused").then_some(());
    team.said(&leader.pod, "leader", refused).await;
    lock_is(team, name, "another leads", |lock| {
        let token = lock.status.as_ref().and_then(|status| status.fencing_token);
        token.is_some_and(|token| token.get() > leader.token)
    })
    .await;
}

fn restarts(pod: &Pod) -> i32 {
    let containers = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    containers.map(|container| container.restart_count).sum()
}

/// All replicas are told to stop, and the lead is given back.
async fn stops(team: &Team, name: &str) {
    team.kubectl(&["scale", &format!("deployment/{name}"), "--replicas=0"]);
    lock_is(team, name, "it is free", is_free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rust_service_elects_its_leader_and_serves_with_all_replicas() {
    let team = team().await;
    let leader = elects(&team, "leader-rust", &example("leader-rust.yaml")).await;
    let labelled = ListParams::default().labels("app=leader-rust");
    let pods = team.pods().list(&labelled).await.expect("pods");
    for pod in pods {
        let name = pod.name_any();
        team.pod_is(&name, "it serves", |pod| {
            let status = pod
                .status
                .iter()
                .flat_map(|s| s.container_statuses.iter().flatten());
            status.clone().count() > 0 && status.clone().all(|status| status.ready)
        })
        .await;
        let url = format!(
            "/api/v1/namespaces/{}/pods/{name}:8080/proxy/",
            team.namespace
        );
        let says = team.kubectl(&["get", "--raw", &url]);
        let leads = says == format!("leads with token {}", leader.token);
        assert_eq!(leads, name == leader.pod, "{name} says {says}");
    }
    gives_back_when_refused(&team, "leader-rust", &leader).await;
    stops(&team, "leader-rust").await;
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_service_elects_its_leader_by_http_alone() {
    let team = team().await;
    let folder = xtask::repository().join("examples/leader-python");
    let manifests = team.kubectl(&["kustomize", folder.to_str().expect("a path")]);
    let leader = elects(&team, "leader-python", &manifests).await;
    gives_back_when_refused(&team, "leader-python", &leader).await;
    stops(&team, "leader-python").await;
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_go_service_elects_its_leader_by_http_alone() {
    let team = team().await;
    let leader = elects(&team, "leader-go", &example("leader-go/leader.yaml")).await;
    gives_back_when_refused(&team, "leader-go", &leader).await;
    stops(&team, "leader-go").await;
    team.finish().await;
}
