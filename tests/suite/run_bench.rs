//! A namespace with locks in it, and `leasehold run`s on them as real processes.
//!
//! No operator is needed: [`Bench::opened`] does what the operator does for a new lock, by hand. So these tests show
//! what holds while there is none.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use leasehold::api::{DistributedLock, LockClaim, LockClaimSpec};
use leasehold::client::Locks;
use leasehold::clock::MonoInstant;
use leasehold::engine::LeaseRecord;
use leasehold::lease::FoundLease;
use leasehold::supervise::Signal;
use rustix::process::{Pid, kill_process_group};
use serde_json::json;
use tokio::sync::OnceCell;

use super::server;
use super::supervise_wrapper::{has_argument, processes, signal};

/// Is in the environment of a wrapper, its guardian, its command and all below.
const TAG: &str = "LEASEHOLD_TEST_RUN";
/// What a machine that is busy with other tests may need for anything.
pub const BUSY: Duration = Duration::from_secs(20);

/// Defines `note WORD`, which adds a line to the journal.
const PRELUDE: &str = r#"note() { read -r up rest < /proc/uptime; echo "$1 $LEASEHOLD_HOLDER $LEASEHOLD_FENCING_TOKEN $up" >> "$JOURNAL"; }
"#;

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

    /// The Lease of a lock; the holder is empty for a free one.
    pub async fn make_lease(&self, lock: &DistributedLock, holder: &str) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": lock.name_any(),
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
        let status = json!({"status": {
            "slots": [{"slot": 0, "fencingToken": 0, "holderIdentity": ""}],
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
        let folder = self.folder.join(format!("{:016x}", rand::random::<u64>()));
        fs::create_dir(&folder).unwrap();
        RunBuilder {
            words: vec![
                "run".into(),
                "--lock".into(),
                lock.into(),
                "--namespace".into(),
                self.namespace.clone().into(),
            ],
            command: vec!["true".into()],
            env: vec![
                ("KUBECONFIG".into(), self.kubeconfig.clone().into()),
                ("JOURNAL".into(), self.journal_file().into()),
            ],
            folder,
        }
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

/// The last thing that a claimant noted.
pub fn last_of(journal: &[Note], claimant: &str) -> Note {
    let mut notes = journal.iter().rev();
    notes
        .find(|note| note.claimant == claimant)
        .unwrap()
        .clone()
}

/// A `leasehold run`, not started yet.
pub struct RunBuilder {
    words: Vec<OsString>,
    command: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    folder: PathBuf,
}

impl RunBuilder {
    /// Words before the `--`.
    pub fn with(mut self, words: &[&str]) -> Self {
        self.words.extend(words.iter().map(OsString::from));
        self
    }

    /// The claimant's name.
    pub fn by(self, claimant: &str) -> Self {
        self.with(&["--as", claimant])
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    pub fn command(mut self, words: &[&str]) -> Self {
        self.command = words.iter().map(OsString::from).collect();
        self
    }

    /// A shell script, in which `note WORD` adds a line to the journal.
    pub fn script(self, script: &str) -> Self {
        self.command(&["sh", "-c", &format!("{PRELUDE}{script}")])
    }

    /// A command that notes its start, works for so many seconds, and notes its end.
    pub fn works_for(self, seconds: &str) -> Self {
        self.script(&format!("note start; sleep {seconds}; note end"))
    }

    /// A command that notes its start, shows that it lives, and does not end by itself.
    pub fn works_on(self) -> Self {
        self.script(
            "trap 'note end; exit 143' TERM; note start; while :; do sleep 0.05; note beat; done",
        )
    }

    /// Starts it, in a process group of its own.
    pub fn start(self) -> Run {
        let tag = self.folder.file_name().unwrap().to_os_string();
        let file = |name: &str| fs::File::create(self.folder.join(name)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(&self.words)
            .arg("--")
            .args(&self.command)
            .envs(self.env)
            .env(TAG, &tag)
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .process_group(0)
            .spawn()
            .unwrap();
        Run {
            child,
            tag: tag.into_string().unwrap(),
            folder: self.folder,
            code: None,
        }
    }

    /// Runs it to its end.
    pub async fn ends(self) -> Ended {
        self.start().ends(BUSY * 3).await
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// It must have ended with `code`, and its words contain each of `words`.
    #[track_caller]
    pub fn assert(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {}", self.stderr);
        }
    }
}

/// A `leasehold run` that was started: wrapper, guardian, command.
pub struct Run {
    child: Child,
    tag: String,
    folder: PathBuf,
    code: Option<i32>,
}

impl Run {
    pub fn wrapper(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn guardian(&self) -> i32 {
        self.tagged()
            .into_iter()
            .find(|&pid| has_argument(pid, "__guardian"))
            .expect("a guardian")
    }

    /// The command and its descendants, those alive.
    pub fn commands(&self) -> BTreeSet<i32> {
        let mut pids = self.tagged();
        // One without words is on its way out: a guardian, perhaps.
        pids.retain(|&pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let guards = words
                .split(|&byte| byte == 0)
                .any(|word| word == b"__guardian");
            pid != self.wrapper() && !words.is_empty() && !guards
        });
        pids
    }

    /// Everybody with our tag. A zombie has no environment any more, so it counts as dead.
    pub fn tagged(&self) -> BTreeSet<i32> {
        let needle = format!("{TAG}={}", self.tag);
        processes()
            .filter(|pid| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment
                    .split(|&byte| byte == 0)
                    .any(|entry| entry == needle.as_bytes())
            })
            .collect()
    }

    /// Sends the wrapper a signal.
    pub fn signal(&self, what: Signal) {
        signal(self.wrapper(), what);
    }

    /// Sends the wrapper's process group a signal.
    pub fn signal_group(&self, what: Signal) {
        let _ = kill_process_group(Pid::from_raw(self.wrapper()).unwrap(), what);
    }

    /// Sends every process of the tree a signal.
    pub fn signal_tree(&self, what: Signal) {
        for pid in self.tagged() {
            signal(pid, what);
        }
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(self.folder.join("stderr")).unwrap_or_default()
    }

    /// Waits until its words contain `words`.
    pub async fn says(&self, words: &str) {
        let what = format!("it says {words:?}");
        until(&what, BUSY, async || self.stderr().contains(words)).await;
    }

    /// Its exit code, if it has ended; 128 + n for a signal.
    pub fn code(&mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        if self.code.is_none() {
            let status = self.child.try_wait().unwrap();
            self.code =
                status.map(|status| status.code().unwrap_or(128 + status.signal().unwrap_or(0)));
        }
        self.code
    }

    /// Waits for its end, after which nothing of its command may be alive.
    pub async fn ends(mut self, within: Duration) -> Ended {
        let ended = self.exits(within).await;
        assert_eq!(
            self.commands(),
            BTreeSet::new(),
            "alive after the end: {ended:?}"
        );
        ended
    }

    /// Waits for the end of the wrapper alone.
    pub async fn exits(&mut self, within: Duration) -> Ended {
        until("the run has ended", within, async || self.code().is_some()).await;
        Ended {
            code: self.code.unwrap(),
            stdout: fs::read_to_string(self.folder.join("stdout")).unwrap_or_default(),
            stderr: self.stderr(),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Only after a failed test, or a test of killing, is anyone left here; also a frozen one dies of KILL.
        self.signal_tree(Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
