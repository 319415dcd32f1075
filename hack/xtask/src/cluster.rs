//! A real Kubernetes control plane on loopback: etcd, kube-apiserver and kube-controller-manager.
//!
//! Guarantee: a [`Cluster`] has ports, certificates and data of its own, is ready when [`Cluster::start`] returns (the
//! default service account is there), and ends with its owner in whatever way that ends. Nothing in it answers without
//! a certificate or a token. It has no nodes, and Pods stay pending, unless [`Options::node`] asks for one: see
//! [`crate::node`].

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
use crate::pki::{self, Authority, Subject};
use crate::ports;
use crate::supervisor::{Probe, Program, Spec, State, Supervisor};

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

/// What a cluster is made of: its folder and its ports.
struct Layout<'a> {
    dir: &'a Path,
    name: &'a str,
    etcd: u16,
    peer: u16,
    api: u16,
    node: Option<Node<'a>>,
}

impl Layout<'_> {
    fn endpoint(&self) -> String {
        format!("https://127.0.0.1:{}", self.api)
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }

    /// Two authorities, so that no certificate for the API opens etcd.
    fn write_certificates(&self) -> Result<()> {
        let etcd = Authority::new("etcd-ca")?;
        pki::write_private(&self.dir.join("etcd-ca.crt"), etcd.pem())?;
        etcd.issue(&Subject::Server(&["localhost", "127.0.0.1"]))?
            .write(self.dir, "etcd")?;
        etcd.issue(&Subject::Client("kube-apiserver", None))?
            .write(self.dir, "etcd-client")?;

        let api = Authority::new("kubernetes-ca")?;
        pki::write_private(&self.dir.join("ca.crt"), api.pem())?;
        let names = [
            "localhost",
            "127.0.0.1",
            node::ADDRESS,
            "10.96.0.1",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        api.issue(&Subject::Server(&names))?
            .write(self.dir, "apiserver")?;
        let admin = api.issue(&Subject::Client("kubernetes-admin", Some("system:masters")))?;
        admin.write(self.dir, "admin")?;
        pki::write_kubeconfig(
            &self.dir.join("kubeconfig"),
            &self.endpoint(),
            self.name,
            api.pem(),
            "admin",
            &admin,
        )?;
        let manager = api.issue(&Subject::Client("system:kube-controller-manager", None))?;
        let path = self.dir.join("controller-manager.kubeconfig");
        pki::write_kubeconfig(
            &path,
            &self.endpoint(),
            self.name,
            api.pem(),
            "controller-manager",
            &manager,
        )?;
        pki::write_signing_key(self.dir, "service-account")?;
        match &self.node {
            Some(node) => node.write(self.name, &api),
            None => Ok(()),
        }
    }

    fn spec(&self, programs: &Programs, options: &Options, owned: bool) -> Result<Spec> {
        let program = |component: Component, args: Vec<String>, after: Vec<Probe>| Program {
            name: component.name(),
            path: programs.path(component.name()),
            args,
            after,
            inside: self.node.is_some(),
            ..Program::default()
        };
        let readyz = format!("{}/readyz", self.endpoint());
        let account = format!(
            "{}/api/v1/namespaces/default/serviceaccounts/default",
            self.endpoint()
        );
        let mut etcd = self.etcd_args();
        if !options.fsync {
            etcd.push("--unsafe-no-fsync".to_owned());
        }
        etcd.extend(options.etcd_args.iter().cloned());
        let (mut api, mut manager) = (self.api_args(), self.manager_args());
        let mut servers = vec![Probe::Url(readyz.clone()), Probe::Url(account)];
        let mut more = Vec::new();
        if let Some(node) = &self.node {
            // Of a flag that is given twice the last one counts.
            api.extend(node.api_args());
            manager.extend(Node::manager_args());
            more = node.programs(programs)?;
            servers.push(node.ready());
        }
        api.extend(options.apiserver_args.iter().cloned());
        let mut started = vec![
            program(Component::Etcd, etcd, vec![]),
            program(Component::ApiServer, api, vec![]),
            program(
                Component::ControllerManager,
                manager,
                vec![Probe::Url(readyz)],
            ),
        ];
        started.extend(more);
        Ok(Spec {
            node: self.node.as_ref().map(|node| node.spec(self.api)),
            programs: started,
            ready: servers,
            tls: Some([
                self.file("ca.crt"),
                self.file("admin.crt"),
                self.file("admin.key"),
            ]),
            remove_folder: owned,
        })
    }

    fn etcd_args(&self) -> Vec<String> {
        let (client, peer) = (
            format!("https://127.0.0.1:{}", self.etcd),
            format!("https://127.0.0.1:{}", self.peer),
        );
        vec![
            "--name=leasehold".to_owned(),
            format!("--data-dir={}", self.file("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=leasehold={peer}"),
            "--client-cert-auth".to_owned(),
            format!("--trusted-ca-file={}", self.file("etcd-ca.crt")),
            format!("--cert-file={}", self.file("etcd.crt")),
            format!("--key-file={}", self.file("etcd.key")),
            "--peer-client-cert-auth".to_owned(),
            format!("--peer-trusted-ca-file={}", self.file("etcd-ca.crt")),
            format!("--peer-cert-file={}", self.file("etcd.crt")),
            format!("--peer-key-file={}", self.file("etcd.key")),
        ]
    }

    fn api_args(&self) -> Vec<String> {
        vec![
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.api),
            format!("--etcd-servers=https://127.0.0.1:{}", self.etcd),
            format!("--etcd-cafile={}", self.file("etcd-ca.crt")),
            format!("--etcd-certfile={}", self.file("etcd-client.crt")),
            format!("--etcd-keyfile={}", self.file("etcd-client.key")),
            format!("--tls-cert-file={}", self.file("apiserver.crt")),
            format!("--tls-private-key-file={}", self.file("apiserver.key")),
            format!("--client-ca-file={}", self.file("ca.crt")),
            "--anonymous-auth=false".to_owned(),
            // Lists are added to one another, unlike other flags that are given twice.
            format!(
                "--authorization-mode={}",
                if self.node.is_some() {
                    "Node,RBAC"
                } else {
                    "RBAC"
                }
            ),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            format!(
                "--service-account-key-file={}",
                self.file("service-account.pub")
            ),
            format!(
                "--service-account-signing-key-file={}",
                self.file("service-account.key")
            ),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            // There are no nodes to reach it from, and loopback addresses are refused in endpoints.
            "--endpoint-reconciler-type=none".to_owned(),
            "--profiling=false".to_owned(),
        ]
    }

    fn manager_args(&self) -> Vec<String> {
        let kubeconfig = self.file("controller-manager.kubeconfig");
        vec![
            format!("--kubeconfig={kubeconfig}"),
            // No port of its own: the default service account shows that it works.
            "--secure-port=0".to_owned(),
            "--leader-elect=false".to_owned(),
            "--use-service-account-credentials".to_owned(),
            format!(
                "--service-account-private-key-file={}",
                self.file("service-account.key")
            ),
            format!("--root-ca-file={}", self.file("ca.crt")),
            // At the default rate the default service account comes five seconds late.
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
            "--profiling=false".to_owned(),
        ]
    }
}
