//! A real Kubernetes control plane on loopback: etcd, kube-apiserver and kube-controller-manager.
//!
//! Guarantee: a [`Cluster`] has ports, certificates and data of its own, is ready when [`Cluster::start`] returns (the
//! default service account is there), and ends with its owner in whatever way that ends. Nothing in it answers without
//! a certificate or a token. It has no nodes, and Pods stay pending, unless [`Options::node`] asks for one: see
//! [`crate::node`].

mod layout;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::cache;
use crate::controlplane::Programs;
use crate::folder::{self, OwnedFolder};
use crate::node::{self, Node};
use crate::pki;
use crate::ports;
use crate::supervisor::{State, Supervisor};

use layout::Layout;

/// The variable by which a shared cluster is handed on: its folder.
pub const SHARED: &str = "LEASEHOLD_TEST_CLUSTER";

/// The folder with the copy of etcd's data.
const BACKUP: &str = "etcd.backup";

/// The servers of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler, of a cluster with a node.
    Scheduler,
    /// The node's containerd.
    Containerd,
    /// The node's kubelet.
    Kubelet,
    /// The node's kube-proxy.
    Proxy,
}

impl Component {
    /// The name of its program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
            Self::Proxy => "kube-proxy",
        }
    }
}

/// What a cluster is to be like; the default suits tests.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether it has a node, on which Pods run. That needs root.
    pub node: bool,
    /// Whether etcd waits for its disk. Needed only where something is measured.
    pub fsync: bool,
    /// Added to the arguments of kube-apiserver.
    pub apiserver_args: Vec<String>,
    /// Added to the arguments of etcd.
    pub etcd_args: Vec<String>,
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    // Before the folder: fields are dropped in order, and the supervisor uses the folder.
    supervisor: Option<Mutex<Supervisor>>,
    _owned: Option<OwnedFolder>,
    dir: PathBuf,
    programs: PathBuf,
    endpoint: String,
}

impl Cluster {
    /// Starts one that ends when it is dropped, or when this process ends. The programs are built first if need be.
    pub fn start(options: &Options) -> Result<Self> {
        let programs = Programs::ensure()?;
        if options.node {
            node::ensure_installed()?;
        }
        let cluster = ports::until_bound(|| {
            let folder = OwnedFolder::new(&run_folder()?, "cluster", 0o700)?;
            let dir = folder.path().to_path_buf();
            let (supervisor, endpoint) = start_in(&dir, &programs, "leasehold", options, true)?;
            Ok(Self {
                supervisor: Some(Mutex::new(supervisor)),
                _owned: Some(folder),
                dir,
                programs: programs.dir().to_path_buf(),
                endpoint,
            })
        })?;
        if options.node {
            cluster.load_pause()?;
        }
        Ok(cluster)
    }

    /// The running cluster of a folder; it lives on when this is dropped.
    pub fn attach(dir: &Path) -> Result<Self> {
        let read = |name| fs::read_to_string(dir.join(name)).map(|text| text.trim().to_owned());
        if !folder::is_locked(&dir.join(folder::SUPERVISOR_LOCK)) {
            bail!("no cluster runs in {}", dir.display());
        }
        let (Ok(endpoint), Ok(programs)) = (read("endpoint"), read("programs")) else {
            bail!("the cluster in {} is not ready", dir.display());
        };
        Ok(Self {
            supervisor: None,
            _owned: None,
            dir: dir.to_path_buf(),
            programs: programs.into(),
            endpoint,
        })
    }

    /// The cluster that `cargo xtask test` shares among test programs by [`SHARED`]; without it, one of our own.
    pub fn shared_or_start() -> Result<Self> {
        match env::var_os(SHARED) {
            Some(dir) => Self::attach(Path::new(&dir)),
            None => Self::start(&Options::default()),
        }
    }

    /// The API server's address.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The folder with its certificates, data and logs (`NAME.log`).
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A kubeconfig of a member of `system:masters`.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// The folder with `kubectl` and the servers' programs.
    #[must_use]
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// A `kubectl` command for this cluster, to be given more arguments.
    #[must_use]
    pub fn kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(self.programs.join("kubectl"));
        command.env("KUBECONFIG", self.kubeconfig()).args(args);
        command
    }

    /// What a program needs in its environment to use this cluster: KUBECONFIG, PATH with kubectl, and [`SHARED`].
    #[must_use]
    pub fn env(&self) -> [(&'static str, OsString); 3] {
        let mut path = self.programs.clone().into_os_string();
        if let Some(rest) = env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        [
            ("KUBECONFIG", self.kubeconfig().into()),
            ("PATH", path),
            (SHARED, self.dir.clone().into()),
        ]
    }

    /// A server's process at this moment.
    pub fn pid(&self, component: Component) -> Result<u32> {
        let pids = State::read(&self.dir)?.pids;
        pids.get(component.name())
            .copied()
            .with_context(|| format!("{} is not running", component.name()))
    }

    /// Stops a server's process in its tracks, by SIGSTOP.
    pub fn freeze(&self, component: Component) -> Result<()> {
        self.signal(component, Signal::STOP)
    }

    /// Lets a frozen server go on, by SIGCONT.
    pub fn thaw(&self, component: Component) -> Result<()> {
        self.signal(component, Signal::CONT)
    }

    /// Ends a server by SIGKILL; it stays down until [`Cluster::start_again`]. Only for a cluster of one's own.
    pub fn kill(&self, component: Component) -> Result<u32> {
        self.supervisor()?
            .command(&format!("stop {}", component.name()))
    }

    /// Starts a killed server again, and returns its process; see [`Cluster::wait_ready`].
    pub fn start_again(&self, component: Component) -> Result<u32> {
        self.supervisor()?
            .command(&format!("start {}", component.name()))
    }

    /// Kills a server, starts it again, and waits until all is ready.
    pub fn restart(&self, component: Component) -> Result<()> {
        self.kill(component)?;
        self.start_again(component)?;
        self.wait_ready()
    }

    /// Keeps a copy of etcd's data, as a backup does; etcd is down for that moment.
    pub fn back_up(&self) -> Result<()> {
        self.kill(Component::Etcd)?;
        folder::copy(&self.dir.join("etcd"), &self.dir.join(BACKUP))?;
        self.start_again(Component::Etcd)?;
        self.wait_ready()
    }

    /// Puts the last copy of etcd's data back, with the API server stopped meanwhile, as etcd's manual asks for. What was
    /// written since is undone, and revisions go back.
    pub fn restore(&self) -> Result<()> {
        self.kill(Component::ApiServer)?;
        self.kill(Component::Etcd)?;
        let data = self.dir.join("etcd");
        fs::remove_dir_all(&data)?;
        folder::copy(&self.dir.join(BACKUP), &data)?;
        self.start_again(Component::Etcd)?;
        self.start_again(Component::ApiServer)?;
        self.wait_ready()
    }

    /// Waits until the API server says that it is ready, for a minute at most.
    pub fn wait_ready(&self) -> Result<()> {
        self.supervisor()?.command("ready").map(drop)
    }

    fn signal(&self, component: Component, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid(component)?)
            .ok()
            .and_then(Pid::from_raw)
            .context("no such process")?;
        kill_process(pid, signal).with_context(|| format!("can't signal {}", component.name()))
    }

    pub(crate) fn supervisor(&self) -> Result<MutexGuard<'_, Supervisor>> {
        let supervisor = self
            .supervisor
            .as_ref()
            .context("a shared cluster's servers are not for one test to restart")?;
        Ok(supervisor.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Where the folders of running clusters are.
pub(crate) fn run_folder() -> Result<PathBuf> {
    let path = cache::root()?.join("run");
    fs::create_dir_all(&path)?;
    Ok(path)
}

/// Starts a cluster in an empty folder, on ports that were free a moment ago: see [`ports::until_bound`].
pub(crate) fn start_in(
    dir: &Path,
    programs: &Programs,
    name: &str,
    options: &Options,
    owned: bool,
) -> Result<(Supervisor, String)> {
    let [etcd, peer, api] = ports::pick()?;
    let layout = Layout {
        dir,
        name,
        etcd,
        peer,
        api,
        node: options
            .node
            .then(|| Node::new(dir, format!("https://127.0.0.1:{api}"))),
    };
    layout.write_certificates()?;
    let spec = layout.spec(programs, options, owned)?;
    let supervisor =
        Supervisor::start(programs, dir, &spec).context("the control plane did not start")?;
    pki::write_private(
        &dir.join("programs"),
        &format!("{}\n", programs.dir().display()),
    )?;
    pki::write_private(&dir.join("endpoint"), &format!("{}\n", layout.endpoint()))?;
    Ok((supervisor, layout.endpoint()))
}
