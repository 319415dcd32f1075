//! What must be up before a story can be told: control plane, operator, ledger.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::{Condition, await_condition};
use kube::{Client, Config, ResourceExt};
use leasehold::api::{DistributedLock, DistributedLockSpec, crds, is_condition_true, names};
use xtask::cluster::{Cluster, Options};
use xtask::postgres::Postgres;
use xtask::progress::Progress;

use crate::ledger::Address;
use crate::pod::{self, Surroundings};

/// The namespace of the story's locks.
pub(crate) const NAMESPACE: &str = "billing";
/// What the story's locks are called.
pub(crate) const LOCK: &str = "nightly-billing";
/// The namespace of the operator.
const OPERATOR_NAMESPACE: &str = "leasehold-system";
/// Where the program `leasehold` is, if not beside this one.
const PROGRAM: &str = "LEASEHOLD_BIN";
/// How long anything may take to become ready.
const READY: Duration = Duration::from_mins(1);

/// Everything that is up. It ends when this is dropped; a driver that is killed takes it along.
pub(crate) struct Stage {
    /// In the marks of its processes.
    run: String,
    /// The program `leasehold`.
    pub(crate) leasehold: PathBuf,
    pub(crate) client: Client,
    // Dropped in this order: first whoever uses the servers, then the servers.
    _operator: tokio::process::Child,
    _janitor: Janitor,
    postgres: Postgres,
    cluster: Cluster,
}

impl Stage {
    /// Builds what is missing, starts everything, and waits until it is ready.
    pub(crate) async fn set() -> Result<Self> {
        let leasehold = find_leasehold()?;
        let progress = Progress::start("Starting etcd, kube-apiserver and kube-controller-manager");
        let cluster = Cluster::start(&Options::default())?;
        progress.done(cluster.endpoint());
        let progress = Progress::start("Starting PostgreSQL");
        let postgres = Postgres::start()?;
        progress.done("");

        let progress = Progress::start("Starting the operator");
        let client = connect(&cluster.kubeconfig()).await?;
        install(&client).await?;
        let run = format!("run-{}", std::process::id());
        let janitor = Janitor::start(&run)?;
        let command = [
            leasehold.clone().into_os_string(),
            "operator".into(),
            format!("--namespace={OPERATOR_NAMESPACE}").into(),
            "--http-addr=127.0.0.1:0".into(),
        ];
        let log = cluster.dir().join("operator.log");
        let around = Surroundings {
            mark: format!("{run}/operator"),
            log: log.clone(),
            kubeconfig: cluster.kubeconfig(),
        };
        let operator = pod::spawn(&around, &command, Stdio::null())?;
        let stage = Self {
            run,
            leasehold,
            client,
            _operator: operator,
            _janitor: janitor,
            postgres,
            cluster,
        };
        // It is ready when it has opened a lock.
        make_lock(&stage.client, NAMESPACE, "curtain", 1)
            .await
            .with_context(|| last_words(&log))?;
        progress.done("");
        Ok(stage)
    }

    /// The way into the ledger of one telling.
    pub(crate) fn ledger(&self, schema: &str) -> Address {
        Address {
            ledger_host: self.postgres.socket_dir().display().to_string(),
            ledger_port: self.postgres.port(),
            ledger_password: None,
            schema: schema.to_owned(),
        }
    }

    /// What surrounds a Pod of one telling.
    pub(crate) fn surroundings(&self, telling: &str, pod: &str) -> Surroundings {
        Surroundings {
            mark: format!("{}/{telling}/{pod}", self.run),
            log: self.cluster.dir().join(format!("{telling}-{pod}.log")),
            kubeconfig: self.cluster.kubeconfig(),
        }
    }
}

/// Makes a lock, and waits until the operator has opened it.
pub(crate) async fn make_lock(
    client: &Client,
    namespace: &str,
    name: &str,
    lease_seconds: u32,
) -> Result<()> {
    let locks = Api::<DistributedLock>::namespaced(client.clone(), namespace);
    let spec = DistributedLockSpec {
        lease_duration_seconds: i32::try_from(lease_seconds)?,
        // Room for every contender's grant.
        history_limit: 50,
        ..DistributedLockSpec::default()
    };
    locks
        .create(&PostParams::default(), &DistributedLock::new(name, spec))
        .await?;
    let what = format!("the operator opens lock {name}");
    ready(&what, await_condition(locks, name, is_open()))
        .await?
        .with_context(|| what)?;
    Ok(())
}

fn is_open() -> impl Condition<DistributedLock> {
    |lock: Option<&DistributedLock>| {
        lock.and_then(|lock| lock.status.as_ref())
            .is_some_and(|status| is_condition_true(&status.conditions, names::CONDITION_READY))
    }
}

/// The end of a log, for the message of a failure.
pub(crate) fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

/// Where `cargo xtask demo` says, or beside this program.
fn find_leasehold() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(PROGRAM) {
        return Ok(path.into());
    }
    let this = std::env::current_exe().context("can't find this program")?;
    let beside = this.with_file_name("leasehold");
    if !beside.is_file() {
        bail!(
            "there is no program leasehold beside this one: run `cargo xtask demo`, or set {PROGRAM}"
        );
    }
    Ok(beside)
}

pub(crate) async fn connect(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

async fn install(client: &Client) -> Result<()> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let apply = PatchParams::apply("nightly-billing");
    for crd in crds() {
        let name = crd.name_any();
        api.patch(&name, &apply, &Patch::Apply(&crd)).await?;
        let what = format!("{name} is served");
        ready(
            &what,
            await_condition(api.clone(), &name, is_crd_established()),
        )
        .await??;
    }
    for name in [NAMESPACE, OPERATOR_NAMESPACE] {
        make_namespace(client, name).await?;
    }
    Ok(())
}

/// Makes a namespace.
pub(crate) async fn make_namespace(client: &Client, name: &str) -> Result<()> {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let namespace = Namespace {
        metadata,
        ..Namespace::default()
    };
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await?;
    Ok(())
}

/// Waits for what takes a while.
pub(crate) async fn ready<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    let done = tokio::time::timeout(READY, future).await;
    done.with_context(|| format!("not within {READY:?}: {what}"))
}

/// The process that ends what we leave behind: it notices when its pipe from us closes.
struct Janitor {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Janitor {
    fn start(run: &str) -> Result<Self> {
        let this = std::env::current_exe().context("can't find this program")?;
        let mut command = Command::new(this);
        command
            .args(["janitor", run])
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut child = command.spawn().context("can't start the janitor")?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.child.wait();
    }
}
