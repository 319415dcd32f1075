//! Locks and the Pods that hold them; and what a test does to a container's processes, or to a whole node, behind the
//! kubelet's back.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject};
use kube::runtime::wait::await_condition;
use kube::{Resource, ResourceExt};
use leasehold::api::DistributedLock;
use leasehold::clock::MonoInstant;
use leasehold::engine::{Grant, LeaseRecord};
use leasehold::lease::FoundLease;
use leasehold::supervise::Signal;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use xtask::cluster::Cluster;

use super::operator_rig::{is_free, lasting};
use super::processes::signal;
use super::release::{LEASEHOLD, Own};
use super::render::chart;
use super::stage::{LONG, Team, WRAPPED, least_rights, node, pod, status_of};

/// The lock of a test that has one.
pub const LOCK: &str = "nightly";
/// Works until it is told to end.
pub const WORKS: &str = "echo works; trap 'exit 0' TERM; sleep 1000000 & wait";
/// A lease so long that nobody waits for its end.
pub const MINUTE: i32 = 60;
/// What a hand-over takes that does not wait for that, on a machine that is busy elsewhere.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Says how long it took, which must be nothing beside a lease of a [`MINUTE`].
pub fn assert_at_once(since: MonoInstant, what: &str) {
    let took = MonoInstant::now().saturating_duration_since(since);
    println!("{what}: {took:?}");
    assert!(took < AT_ONCE, "{what}: {took:?}");
}

/// A Pod of the account of this name as the lock's, in which `leasehold run` is the first process.
pub fn wrapped(name: &str, lock: &str, script: &str) -> Value {
    let asks = format!("--lock={lock}");
    let command = ["leasehold", "run", &asks, "--", "sh", "-c", script];
    let mut pod = pod(name, WRAPPED, &command);
    pod["spec"]["serviceAccountName"] = json!(lock);
    pod
}

/// Waits until an object shows this.
async fn until<K>(api: Api<K>, name: &str, what: &str, is_so: impl Fn(&K) -> bool) -> K
where
    K: Clone + Debug + DeserializeOwned + Resource + Send + 'static,
{
    let so = await_condition(api.clone(), name, |object: Option<&K>| {
        object.is_some_and(&is_so)
    });
    let Ok(found) = tokio::time::timeout(LONG, so).await else {
        let found = api.get_opt(name).await;
        panic!("not within {LONG:?}: {name}: {what}: {found:#?}");
    };
    found.expect("a watch").expect("an object")
}

/// Locks.
impl Team {
    /// Makes a lock that can be taken, and an account of its name that may hold it.
    pub async fn lock(&self, name: &str, seconds: i32) {
        self.account(name, &least_rights(name));
        self.place.make(name, lasting(seconds)).await;
        self.lock_is(name, "it is free", is_free).await;
    }

    /// Waits until a lock shows this.
    pub async fn lock_is(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&DistributedLock) -> bool,
    ) -> DistributedLock {
        until(self.place.locks.clone(), name, what, is_so).await
    }

    /// Waits until a Lease shows this.
    pub async fn lease_is(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&LeaseRecord) -> bool,
    ) -> LeaseRecord {
        let read =
            |lease: &DynamicObject| FoundLease::read(lease.clone()).map(|found| found.record);
        let lease = until(self.place.leases.clone(), name, what, |lease| {
            read(lease).as_ref().is_some_and(&is_so)
        });
        read(&lease.await).expect("a lease")
    }

    /// Waits until a Pod holds the lock; its grant.
    pub async fn held_by(&self, lock: &str, pod: &str) -> Grant {
        let what = format!("{pod} holds it");
        self.granted(lock, &what, |grant| {
            grant.pod.as_ref().is_some_and(|of| of.name == pod)
        })
        .await
    }

    /// Waits for the next grant, whoever gets it.
    pub async fn next_grant(&self, lock: &str, after: &Grant) -> Grant {
        let what = "another grant";
        self.granted(lock, what, |grant| grant.token > after.token)
            .await
    }

    /// Waits for such a grant.
    pub async fn granted(&self, lock: &str, what: &str, is_it: impl Fn(&Grant) -> bool) -> Grant {
        let is_it = |lease: &LeaseRecord| lease.current_grant().is_some_and(&is_it);
        let lease = self.lease_is(lock, what, is_it).await;
        lease.current_grant().expect("a grant").clone()
    }

    /// Waits until somebody is in the queue.
    pub async fn is_waited_for(&self, lock: &str) {
        self.lease_is(lock, "somebody waits", |lease| lease.next.is_some())
            .await;
    }

    /// The grant stands, also once the operator has looked at all that it was told.
    pub async fn assert_still_held(&self, lock: &str, grant: &Grant) {
        self.place.is_looked_at(lock).await;
        let lease = self.place.lease(lock).await.record;
        assert_eq!(lease.current_grant(), Some(grant));
    }

    /// Revokes a grant, as people on call do.
    pub async fn revoke(&self, lock: &str, grant: &Grant) {
        let floor = json!({"spec": {"minFencingToken": grant.token.get() + 1}});
        self.place.edit_lock(lock, &floor).await;
    }

    /// A container that has been started.
    pub fn container(&self, pod: &Pod, name: &str) -> Container {
        let id = status_of(pod, name).and_then(|status| status.container_id.as_deref());
        let id = id.and_then(|id| id.strip_prefix("containerd://"));
        let of_pod = format!("pod{}", pod.uid().expect("a uid"));
        let below = Path::new(&of_pod).join(id.expect("it was started"));
        let kubepods = self.cluster().cgroup().expect("a node").join("kubepods");
        let path = ["", "burstable", "besteffort"]
            .map(|class| kubepods.join(class).join(&below))
            .into_iter()
            .find(|path| in_hierarchy("pids", path).is_dir());
        Container(path.expect("its cgroup"))
    }
}

/// A container as this machine sees it: its path below every hierarchy of cgroups.
pub struct Container(PathBuf);

fn in_hierarchy(hierarchy: &str, path: &Path) -> PathBuf {
    Path::new("/sys/fs/cgroup").join(hierarchy).join(path)
}

impl Container {
    /// All of its processes.
    pub fn processes(&self) -> Vec<i32> {
        let file = in_hierarchy("pids", &self.0).join("cgroup.procs");
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// The one that is PID 1 in there.
    pub fn first(&self) -> i32 {
        let is_first = |pid: &i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            numbers.is_some_and(|numbers| numbers.split_whitespace().last() == Some("1"))
        };
        let first = self.processes().into_iter().find(is_first);
        first.expect("a first process")
    }

    /// kill -9 of everything in it; nobody in there can do anything about it.
    pub fn kill(&self) {
        let give_up = MonoInstant::now() + LONG;
        loop {
            let all = self.processes();
            if all.is_empty() {
                return;
            }
            for &pid in &all {
                signal(pid, Signal::KILL);
            }
            assert!(MonoInstant::now() < give_up, "{all:?} live on");
            std::thread::yield_now();
        }
    }

    /// Stops it in its tracks until the answer is dropped.
    pub fn freeze(&self) -> Frozen {
        let frozen = Frozen(in_hierarchy("freezer", &self.0).join("freezer.state"));
        let give_up = MonoInstant::now() + LONG;
        fs::write(&frozen.0, "FROZEN").expect("it can be frozen");
        while !fs::read_to_string(&frozen.0).is_ok_and(|state| state.trim() == "FROZEN") {
            assert!(MonoInstant::now() < give_up, "it does not freeze");
            std::thread::yield_now();
        }
        frozen
    }
}

/// A frozen container.
pub struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "THAWED");
    }
}

/// How the leader of the node that tests break keeps its lead, in seconds.
pub const LEADS_FOR: i32 = 6;

/// A namespace on a node whose parts tests break and mend, one test at a time; with a release of one replica.
pub async fn rough() -> (Team, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::const_new(());
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let turn = TURN.lock().await;
    let cluster = tokio::task::spawn_blocking(rough_node).await;
    let own = Own::at(cluster.expect("a node")).await;
    let times = json!({
        "leaseDuration": format!("{LEADS_FOR}s"), "renewDeadline": "4s", "retryPeriod": "1s",
    });
    let values = json!({"image": {"tag": "dev"}, "replicas": 1, "leaderElection": times});
    INSTALLED
        .get_or_init(async || {
            own.install(&chart(), &LEASEHOLD, &values, &["--wait"])
                .expect("it can be installed");
        })
        .await;
    (Team::on(own).await, turn)
}

fn rough_node() -> Arc<Cluster> {
    static NODE: OnceLock<Arc<Cluster>> = OnceLock::new();
    NODE.get_or_init(|| Arc::new(node())).clone()
}
