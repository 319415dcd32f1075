//! What tests of the operator share: the real program as a process, raw holders, and waiting for what a watch shows.

// Named, since programs of other folders use these files too.
#[path = "operator_words.rs"]
mod words;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use leasehold::api::{DistributedLock, DistributedLockSpec, LockClaim};
use leasehold::client::Locks;
use leasehold::client::identity::{identity, random_uid};
use leasehold::clock::{Clock, SystemClock};
use leasehold::engine::change::{self, NextChange, Requester};
use leasehold::engine::{Grant, PodRef, Standing};
use leasehold::lease::view::lock_view;
use leasehold::lease::{FoundLease, LeaseStore, Put, lease_resource};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub use self::words::*;
use super::server::{self, within};

/// More than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(20);

/// For `Operator::start`: a lead that dies is over soon, and one that lives is not lost on a busy machine.
pub const QUICK: &[&str] = &[
    "--leader-lease-duration=3s",
    "--leader-renew-deadline=2200ms",
    "--leader-retry-period=100ms",
];

/// One replica of the operator, as a process of its own that looks after one namespace. Ended when dropped.
pub struct Operator {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl Operator {
    /// Starts one and waits until it serves health.
    pub async fn start(namespace: &str, name: &str, more: &[&str]) -> Self {
        Self::start_with(namespace, name, more, None).await
    }

    /// Starts one and waits until it leads.
    pub async fn leading(namespace: &str) -> Self {
        let operator = Self::start(namespace, "one", &[]).await;
        operator.leads().await;
        operator
    }

    /// Starts one that reaches the server as `kubeconfig` says.
    pub async fn start_with(
        namespace: &str,
        name: &str,
        more: &[&str],
        kubeconfig: Option<&Path>,
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command
            .args(["operator", "--http-addr", "127.0.0.1:0"])
            .args(["--namespace", namespace, "--watch-namespace", namespace])
            .args(["--identity", name])
            .args(more);
        if let Some(kubeconfig) = kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        Self::spawn(command).await
    }

    /// Starts what this command says, and waits until it serves health.
    pub async fn spawn(mut command: Command) -> Self {
        command
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the operator starts");
        let stderr = child.stderr.take().expect("it has a log");
        let log = Arc::new(Mutex::new(vec![]));
        let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
        let lines = log.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("address=") {
                    let _ = say.send(rest.split(' ').next().unwrap_or_default().to_owned());
                }
                lines.lock().expect("the log").push(line);
            }
        });
        let address = within(LONG, "the operator serves", said.recv()).await;
        let address = address.and_then(|text| text.parse().ok());
        Self {
            child,
            address: address.unwrap_or_else(|| {
                panic!(
                    "it does not serve: {}",
                    log.lock().expect("the log").join("\n")
                )
            }),
            log,
        }
    }

    /// Waits until it leads.
    pub async fn leads(&self) {
        self.eventually("it leads", async || {
            self.metric("leasehold_leader").await == Some(1.0)
        })
        .await;
    }

    /// Waits until it is ready, leader or not.
    pub async fn is_ready(&self) {
        self.eventually("it is ready", async || {
            self.get("/readyz").await.is_some_and(|got| got.0 == 200)
        })
        .await;
    }

    /// Waits until something is so.
    pub async fn eventually(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let so = async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let so = tokio::time::timeout(LONG, so).await;
        assert!(so.is_ok(), "not within {LONG:?}: {what}\n{}", self.log());
    }

    /// The value of a metric, by its name with its labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics").await?;
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Status and body of an answer; `None` while it does not answer.
    pub async fn get(&self, path: &str) -> Option<(u16, String)> {
        let ask = async {
            let mut stream = TcpStream::connect(self.address).await.ok()?;
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            let (head, body) = answer.split_once("\r\n\r\n")?;
            let status = head.split(' ').nth(1)?.parse().ok()?;
            Some((status, body.to_owned()))
        };
        tokio::time::timeout(Duration::from_secs(1), ask)
            .await
            .ok()?
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("the log").join("\n")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within(LONG, "the operator ends", ended).await
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the operator said:\n{}", self.log());
        }
    }
}

/// One namespace's locks, claims and Leases, as tests handle them.
pub struct Place {
    pub client: Client,
    pub namespace: String,
    pub locks: Api<DistributedLock>,
    pub claims: Api<LockClaim>,
    pub leases: Api<DynamicObject>,
    pub store: LeaseStore,
}

impl Place {
    pub fn new(client: &Client, namespace: &str) -> Self {
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            locks: Api::namespaced(client.clone(), namespace),
            claims: Api::namespaced(client.clone(), namespace),
            leases: Api::namespaced_with(client.clone(), namespace, &lease_resource()),
            store: LeaseStore::new(client.clone(), namespace),
        }
    }

    /// The client library.
    pub async fn library(&self) -> Locks {
        Locks::new(server::config().await, &self.namespace).expect("a client")
    }

    /// Makes a lock.
    pub async fn make(&self, name: &str, spec: DistributedLockSpec) -> DistributedLock {
        let lock = DistributedLock::new(name, spec);
        let made = self.locks.create(&PostParams::default(), &lock).await;
        made.expect("the lock is made")
    }

    /// Makes a lock with this lease duration, and waits until it can be taken.
    pub async fn make_free(&self, name: &str, seconds: i32) -> DistributedLock {
        self.make_free_of(name, lasting(seconds)).await
    }

    /// Makes a lock of this spec, and waits until it can be taken.
    pub async fn make_free_of(&self, name: &str, spec: DistributedLockSpec) -> DistributedLock {
        self.make(name, spec).await;
        self.lock_is(name, "it is free", is_free).await
    }

    /// Waits until status shows this grant.
    pub async fn is_shown(&self, name: &str, grant: &Grant) -> DistributedLock {
        self.lock_is(name, "it is shown", |lock| shows(lock, grant))
            .await
    }

    /// Waits until the lock shows this.
    pub async fn lock_is(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&DistributedLock) -> bool,
    ) -> DistributedLock {
        let so = await_condition(
            self.locks.clone(),
            name,
            |lock: Option<&DistributedLock>| lock.is_some_and(&is_so),
        );
        let Ok(lock) = tokio::time::timeout(LONG, so).await else {
            panic!(
                "not within {LONG:?}: {what}: {:#?}",
                self.locks.get(name).await
            );
        };
        lock.expect("a watch").expect("a lock")
    }

    /// Waits until the leader has looked at the lock once more: it has done by then whatever it does of what it knows.
    pub async fn is_looked_at(&self, name: &str) -> DistributedLock {
        let lock = self.locks.get(name).await.expect("the lock");
        let another = json!({"spec": {"historyLimit": lock.spec.history_limit + 1}});
        self.edit_lock(name, &another).await;
        self.lock_is(name, "it was looked at", |lock| {
            let seen = lock.status.as_ref().and_then(|s| s.observed_generation);
            seen == lock.metadata.generation
        })
        .await
    }

    /// Waits until the Lease shows this.
    pub async fn lease_is(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&FoundLease) -> bool,
    ) -> FoundLease {
        let so = await_condition(
            self.leases.clone(),
            name,
            |lease: Option<&DynamicObject>| {
                lease
                    .cloned()
                    .and_then(FoundLease::read)
                    .as_ref()
                    .is_some_and(&is_so)
            },
        );
        let Ok(lease) = tokio::time::timeout(LONG, so).await else {
            panic!(
                "not within {LONG:?}: {what}: {:#?}",
                self.leases.get_opt(name).await
            );
        };
        let lease = lease.expect("a watch");
        lease.and_then(FoundLease::read).expect("a lease")
    }

    /// The Lease.
    pub async fn lease(&self, name: &str) -> FoundLease {
        let found = self.store.get(name, LONG).await;
        found.expect("it can be read").expect("it is there")
    }

    /// Takes a free lock as a holder that will never renew.
    pub async fn take(&self, name: &str, claimant: &str) -> Grant {
        self.take_as(name, identity(claimant, &random_uid())).await
    }

    /// The same, under this identity.
    pub async fn take_as(&self, name: &str, identity: String) -> Grant {
        self.take_in(name, 0, identity, None).await
    }

    /// Takes a free slot as a holder that will never renew.
    pub async fn take_slot(&self, name: &str, slot: i32, claimant: &str) -> Grant {
        let identity = identity(claimant, &random_uid());
        self.take_in(name, slot, identity, None).await
    }

    /// The same, under this identity, from within this Pod.
    pub async fn take_in(
        &self,
        name: &str,
        slot: i32,
        identity: String,
        pod: Option<PodRef>,
    ) -> Grant {
        let lock = self.locks.get(name).await.expect("the lock");
        let who = Requester {
            pod,
            note: Some(json!({"node": "node-7", "host": "h", "pid": 1}).to_string()),
            ..Requester::heartbeat(identity)
        };
        let view = lock_view(&lock, slot, false);
        let lease = lock.slot_lease_name(slot);
        let wall = SystemClock.wall().as_microsecond();
        loop {
            let found = self.lease(&lease).await;
            assert!(found.record.is_free(), "{:?}", found.record);
            let take = change::take(
                &view,
                &found.record,
                Standing::Free,
                &who,
                NextChange::Keep,
                wall,
            );
            let take = take.expect("a free lock can be taken");
            match self.store.put(&lease, &found, &take.record, LONG).await {
                Put::Applied(_) => return take.grant,
                // The operator may just have named somebody.
                Put::Conflict => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Gives a grant back, as its holder does.
    pub async fn release(&self, lease: &str, grant: &Grant) {
        loop {
            let found = self.lease(lease).await;
            let freed = change::release(&found.record, grant, "done", 1);
            match self.store.put(lease, &found, &freed, LONG).await {
                Put::Applied(_) => return,
                Put::Conflict => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Renews a grant, as its holder does; one that has ended it leaves alone.
    pub async fn renew(&self, name: &str, slot: i32, grant: &Grant) {
        let lock = self.locks.get(name).await.expect("the lock");
        let view = lock_view(&lock, slot, false);
        let lease = lock.slot_lease_name(slot);
        loop {
            let found = self.lease(&lease).await;
            if !found.record.grant_id().is(grant) {
                return;
            }
            let wall = SystemClock.wall().as_microsecond();
            let renewed = change::renew(&view, &found.record, grant, wall);
            match self.store.put(&lease, &found, &renewed, LONG).await {
                Put::Applied(_) => return,
                Put::Conflict => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Renews a grant again and again, for as long as this is awaited.
    pub async fn go_on(&self, name: &str, slot: i32, grant: &Grant) {
        loop {
            self.renew(name, slot, grant).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Merges `patch` into an object of the Leases, as people do by hand.
    pub async fn edit_lease(&self, name: &str, patch: &Value) {
        let patched = self
            .leases
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.expect("the lease can be edited");
    }

    /// Merges `patch` into a lock.
    pub async fn edit_lock(&self, name: &str, patch: &Value) {
        let patched = self
            .locks
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.expect("the lock can be edited");
    }

    /// Deletes a Lease.
    pub async fn delete_lease(&self, name: &str) {
        let deleted = self.leases.delete(name, &DeleteParams::default()).await;
        deleted.expect("the lease can be deleted");
    }

    /// Makes a Lease as another client does.
    pub async fn make_lease(&self, name: &str, labels: &Value, spec: &Value) -> FoundLease {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "labels": labels}, "spec": spec,
        });
        let lease = serde_json::from_value(lease).expect("a lease");
        let made = self.leases.create(&PostParams::default(), &lease).await;
        FoundLease::read(made.expect("it is made")).expect("a lease")
    }
}

/// Runs `test` in a namespace of its own.
pub async fn in_place(test: impl AsyncFnOnce(Place)) {
    let client = server::client().await;
    server::install_crds(&client).await;
    server::with_namespace(&client, async |namespace| {
        test(Place::new(&client, &namespace)).await;
    })
    .await;
}
