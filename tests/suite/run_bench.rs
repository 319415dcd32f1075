//! A namespace with locks in it, and `leasehold run`s on them as real processes.
//!
//! No operator is needed: [`Bench::opened`] does what the operator does for a new lock, by hand. So these tests show
//! what holds while there is none.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use leasehold::api::{DistributedLock, LockClaim, LockClaimSpec};
use leasehold::client::{Guard, Locks};
use leasehold::clock::MonoInstant;
use leasehold::engine::LeaseRecord;
use leasehold::lease::FoundLease;
use serde_json::json;
use tokio::sync::OnceCell;
use xtask::cluster::Cluster;

use super::run_process::{Run, RunBuilder};
use super::server::{self, within};

/// What a machine that is busy with other tests may need for anything.
pub const BUSY: Duration = Duration::from_secs(20);

static CRDS: OnceCell<()> = OnceCell::const_new();

/// A namespace of one test, and a folder for what its processes write.
pub struct Bench {
    pub client: Client,
    pub namespace: String,
    folder: PathBuf,
    kubeconfig: PathBuf,
}

/// A line of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    pub word: String,
    pub claimant: String,
    pub token: i64,
    /// Seconds since the machine started.
    pub at: f64,
}

impl Bench {
    /// On the server that all tests share.
    pub async fn new() -> Self {
        let client = server::client().await;
        CRDS.get_or_init(|| server::install_crds(&client)).await;
        let kubeconfig = std::env::var_os("KUBECONFIG").expect("a server");
        Self::at(client, kubeconfig.into()).await
    }

    /// On a cluster of the test's own, without Leasehold's definitions yet.
    pub async fn on(cluster: &Cluster) -> Self {
        let config = server::config_of(&cluster.kubeconfig()).await;
        Self::at(server::client_of(config), cluster.kubeconfig()).await
    }

    /// On a server of the test's own.
    pub async fn at(client: Client, kubeconfig: PathBuf) -> Self {
        let api = Api::<Namespace>::all(client.clone());
        let made = Namespace {
            metadata: ObjectMeta {
                generate_name: Some("run-".to_owned()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let made = api.create(&PostParams::default(), &made).await.unwrap();
        let folder = std::env::temp_dir().join(format!("leasehold-{:016x}", rand::random::<u64>()));
        fs::create_dir(&folder).unwrap();
        Self {
            client,
            namespace: made.name_any(),
            folder,
            kubeconfig,
        }
    }

    /// Cleans up in the background; a failed test leaves all to be looked at.
    pub async fn finish(self) {
        let api = Api::<Namespace>::all(self.client.clone());
        api.delete(&self.namespace, &DeleteParams::background())
            .await
            .unwrap();
        fs::remove_dir_all(&self.folder).unwrap();
    }

    pub fn locks(&self) -> Api<DistributedLock> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn claims(&self) -> Api<LockClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The client library, without any proxy.
    pub async fn library(&self) -> Locks {
        Locks::new(self.config().await, &self.namespace).unwrap()
    }

    /// A new file for something of the test.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder
            .join(format!("{:016x}.{name}", rand::random::<u64>()))
    }

    /// Makes a lock that nobody has opened.
    pub async fn lock(&self, name: &str, seconds: i32) -> DistributedLock {
        let spec = json!({"leaseDurationSeconds": seconds});
        self.lock_of(spec, name).await
    }

    /// Makes a lock of this spec.
    pub async fn lock_of(&self, spec: serde_json::Value, name: &str) -> DistributedLock {
        let lock = json!({
            "apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
            "metadata": {"name": name}, "spec": spec,
        });
        let lock = serde_json::from_value(lock).unwrap();
        let made = self.locks().create(&PostParams::default(), &lock).await;
        made.unwrap()
    }

    /// Makes a lock and opens it, as the operator would: its Lease, then its first status.
    pub async fn opened(&self, name: &str, seconds: i32) -> DistributedLock {
        let lock = self.lock(name, seconds).await;
        self.make_lease(&lock, "").await;
        self.open_status(&lock, seconds).await;
        lock
    }

    /// The same for a lock of so many slots.
    pub async fn opened_slots(&self, name: &str, seconds: i32, slots: i32) -> DistributedLock {
        let spec = json!({"leaseDurationSeconds": seconds, "maxHolders": slots});
        let lock = self.lock_of(spec, name).await;
        for slot in 0..slots {
            self.make_slot_lease(&lock, slot, "").await;
        }
        self.open_status_of(&lock, seconds, slots).await;
        lock
    }

    /// The Lease of a lock; the holder is empty for a free one.
    pub async fn make_lease(&self, lock: &DistributedLock, holder: &str) {
        self.make_slot_lease(lock, 0, holder).await;
    }

    async fn make_slot_lease(&self, lock: &DistributedLock, slot: i32, holder: &str) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": lock.slot_lease_name(slot),
                "labels": {"leasehold.dev/lock": lock.name_any()},
                "ownerReferences": [lock.owner_ref(&()).unwrap()],
            },
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": lock.spec.lease_duration_seconds},
        });
        let lease = serde_json::from_value(lease).unwrap();
        self.leases()
            .create(&PostParams::default(), &lease)
            .await
            .unwrap();
    }

    /// The first entry of status, without which nobody takes.
    pub async fn open_status(&self, lock: &DistributedLock, longest: i32) {
        self.open_status_of(lock, longest, 1).await;
    }

    async fn open_status_of(&self, lock: &DistributedLock, longest: i32, slots: i32) {
        let entry = |slot| json!({"slot": slot, "fencingToken": 0, "holderIdentity": ""});
        let status = json!({"status": {
            "slots": (0..slots).map(entry).collect::<Vec<_>>(),
            "longestLeaseDurationSeconds": longest,
        }});
        self.locks()
            .patch_status(
                &lock.name_any(),
                &PatchParams::default(),
                &Patch::Merge(status),
            )
            .await
            .unwrap();
    }

    /// The Lease as the rules see it.
    pub async fn lease(&self, name: &str) -> LeaseRecord {
        let api = Api::namespaced_with(
            self.client.clone(),
            &self.namespace,
            &leasehold::lease::lease_resource(),
        );
        FoundLease::read(api.get(name).await.unwrap())
            .unwrap()
            .record
    }

    /// How many claims there are.
    pub async fn waiting(&self) -> usize {
        self.claims()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len()
    }

    /// Waits until so many claims are there.
    pub async fn until_waiting(&self, count: usize) {
        let what = format!("{count} claims are there");
        until(&what, BUSY, async || self.waiting().await == count).await;
    }

    /// A `leasehold run` to be started.
    pub fn run(&self, lock: &str) -> RunBuilder {
        self.run_in(&self.namespace, lock)
    }

    /// The same, of a lock in this namespace.
    pub fn run_in(&self, namespace: &str, lock: &str) -> RunBuilder {
        self.on_lock(RunBuilder::new(self.new_folder()), namespace, lock)
            .env("JOURNAL", self.journal_file())
    }

    /// A `leasehold sidecar` to be started.
    pub fn sidecar(&self, lock: &str) -> RunBuilder {
        let sidecar = RunBuilder::of(self.new_folder(), "sidecar");
        self.on_lock(sidecar, &self.namespace, lock)
    }

    fn on_lock(&self, builder: RunBuilder, namespace: &str, lock: &str) -> RunBuilder {
        builder
            .option("--lock", lock)
            .option("--namespace", namespace)
            .env("KUBECONFIG", &self.kubeconfig)
    }

    /// The name of a folder that is not there yet.
    pub fn new_folder(&self) -> PathBuf {
        self.folder.join(format!("{:016x}", rand::random::<u64>()))
    }

    /// A `leasehold run` that has the lock, and works on.
    pub async fn works(&self, lock: &str, claimant: &str) -> Run {
        let run = self.run(lock).by(claimant).works_on().start();
        self.until_noted("start", claimant, BUSY).await;
        run
    }

    /// A `leasehold run` gets the lock, and ends.
    pub async fn serves(&self, lock: &str, claimant: &str) {
        let ended = self.run(lock).by(claimant).works_for("0").ends().await;
        ended.assert(0, &[]);
    }

    /// Edits the spec of a lock.
    pub async fn edit_lock(&self, name: &str, spec: serde_json::Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let locks = self.locks();
        let edited = locks.patch(name, &PatchParams::default(), &patch).await;
        edited.unwrap();
    }

    /// Takes a lock by the library, without any proxy.
    pub async fn hold(&self, lock: &str, claimant: &str) -> Guard {
        hold(&self.library().await, lock, claimant).await
    }

    /// Waits until it is somebody's turn.
    pub async fn until_named(&self, lock: &str) {
        until("somebody is named", BUSY, async || {
            self.lease(lock).await.next.is_some()
        })
        .await;
    }

    /// Puts something on the Lease by hand.
    pub async fn edit_lease(&self, name: &str, patch: serde_json::Value) {
        self.leases()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// A waiter's claim that no process stands behind.
    pub async fn claim_of_nobody(&self, name: &str, lock: &str) -> LockClaim {
        let mut claim = LockClaim::new(name, LockClaimSpec::heartbeat(lock));
        claim
            .labels_mut()
            .insert("leasehold.dev/lock".to_owned(), lock.to_owned());
        self.claims()
            .create(&PostParams::default(), &claim)
            .await
            .unwrap()
    }

    /// Deletes all claims.
    pub async fn forget_claims(&self) {
        let all = ListParams::default();
        self.claims()
            .delete_collection(&DeleteParams::default(), &all)
            .await
            .unwrap();
    }

    /// A kubeconfig of a service account that may do just this: `(group, resource, verbs)`.
    pub async fn account(&self, name: &str, rules: &[(&str, &str, &[&str])]) -> PathBuf {
        let allowed: Vec<_> = rules
            .iter()
            .map(|(group, resource, verbs)| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs}))
            .collect();
        let meta = json!({"name": name});
        let subject =
            json!([{"kind": "ServiceAccount", "name": name, "namespace": self.namespace}]);
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let create = PostParams::default();
        let account = serde_json::from_value(json!({"metadata": meta})).unwrap();
        accounts.create(&create, &account).await.unwrap();
        let api: Api<Role> = Api::namespaced(self.client.clone(), &self.namespace);
        let made = serde_json::from_value(json!({"metadata": meta, "rules": allowed})).unwrap();
        api.create(&create, &made).await.unwrap();
        let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), &self.namespace);
        let made = json!({"metadata": meta, "subjects": subject, "roleRef": role});
        bindings
            .create(&create, &serde_json::from_value(made).unwrap())
            .await
            .unwrap();
        let token = accounts
            .create_token_request(name, &create, &TokenRequest::default())
            .await
            .unwrap();

        let text = fs::read_to_string(&self.kubeconfig).unwrap();
        let mut kubeconfig: serde_json::Value = serde_norway::from_str(&text).unwrap();
        kubeconfig["users"][0]["user"] = json!({"token": token.status.unwrap().token});
        let path = self.folder.join(format!("{name}.kubeconfig"));
        fs::write(&path, kubeconfig.to_string()).unwrap();
        path
    }

    /// What the commands noted, in order.
    pub fn journal(&self) -> Vec<Note> {
        let text = fs::read_to_string(self.journal_file()).unwrap_or_default();
        text.lines()
            .map(|line| {
                let mut words = line.split(' ');
                let mut next = || words.next().unwrap().to_owned();
                let (word, holder, token, at) = (next(), next(), next(), next());
                Note {
                    word,
                    claimant: holder.split('/').next().unwrap().to_owned(),
                    token: token.parse().unwrap(),
                    at: at.parse().unwrap(),
                }
            })
            .collect()
    }

    /// Where commands note what they do.
    pub fn journal_file(&self) -> PathBuf {
        self.folder.join("journal")
    }

    /// The highest token that a command was given.
    pub fn highest_token(&self) -> i64 {
        let tokens = self.journal().into_iter().map(|note| note.token);
        tokens.max().unwrap_or(0)
    }

    /// Begins a new journal.
    pub fn forget_journal(&self) {
        fs::remove_file(self.journal_file()).unwrap();
    }

    /// Who noted `word`, in order.
    pub fn noted(&self, word: &str) -> Vec<String> {
        let notes = self.journal().into_iter();
        notes
            .filter(|note| note.word == word)
            .map(|note| note.claimant)
            .collect()
    }

    /// Waits until a claimant noted a word.
    pub async fn until_noted(&self, word: &str, claimant: &str, within: Duration) -> Note {
        let find = || {
            self.journal()
                .into_iter()
                .find(|note| note.word == word && note.claimant == claimant)
        };
        until(
            &format!("{claimant} notes {word}: {:?}", self.journal()),
            within,
            async || find().is_some(),
        )
        .await;
        find().unwrap()
    }

    /// Nobody shows life after the next one has started, and tokens rise.
    pub fn assert_one_at_a_time(&self) {
        let journal = self.journal();
        let mut running: Option<&Note> = None;
        let mut last = 0;
        for note in &journal {
            match note.word.as_str() {
                // Who was killed notes no end, so a start ends what was before; a later beat of that one is told.
                "start" => {
                    // A stock elector has none.
                    if note.token != 0 {
                        assert!(
                            note.token > last,
                            "{note:?} has no higher token: {journal:#?}"
                        );
                        last = note.token;
                    }
                    running = Some(note);
                }
                "end" => running = None,
                "beat" => assert_eq!(
                    running.map(|running| (running.token, &running.claimant)),
                    Some((note.token, &note.claimant)),
                    "{note:?} outside of its turn: {journal:#?}"
                ),
                _ => {}
            }
        }
    }
}

/// Takes a lock by the library.
pub async fn hold(locks: &Locks, lock: &str, claimant: &str) -> Guard {
    let asked = locks.lock(lock).claimant(claimant).acquire();
    let what = format!("{claimant} has the lock {lock}");
    within(BUSY, &what, asked).await.unwrap()
}

/// The last thing that a claimant noted.
pub fn last_of(journal: &[Note], claimant: &str) -> Note {
    let mut notes = journal.iter().rev();
    notes
        .find(|note| note.claimant == claimant)
        .unwrap()
        .clone()
}

/// Waits until something is true; fails if it is not in time.
pub async fn until(what: &str, within: Duration, mut done: impl AsyncFnMut() -> bool) {
    let give_up = MonoInstant::now() + within;
    while !done().await {
        assert!(
            MonoInstant::now() < give_up,
            "not within {within:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether the long variants are asked for.
pub fn long() -> bool {
    std::env::var_os("LEASEHOLD_LONG").is_some()
}
