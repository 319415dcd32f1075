//! A node for a [`Cluster`]: containerd, kubelet, kube-proxy and kube-scheduler, and with them the whole control plane,
//! in namespaces of their own.
//!
//! Guarantee: of all that a node does to a machine (mounts, links, rules, settings, containers) nothing reaches this
//! one, and all of it ends with the first process in the namespaces, which ends with the supervisor. Only the cgroup
//! directories are the machine's. The supervisor thaws what is frozen in them, without which it would not die, and
//! removes them; where it was killed its undertaker does so, and where that was killed too the next node's supervisor.
//!
//! Limits: root, and cgroup v1. The network has no way out: images are loaded ([`Cluster::load`]), never pulled, and
//! there is no DNS. The one port that leads in is the API server's, [`Cluster::let_pods_reach`] opens others that lead
//! out.

mod config;
pub mod image;
pub mod oci;

use std::fs;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::geteuid;

use crate::apt;
use crate::cluster::{Cluster, Component};
use crate::controlplane::Programs as Built;
use crate::pki::{self, Authority, Subject};
use crate::supervisor::{NodeSpec, Probe, Program, State};

/// The name of the one node.
pub const NAME: &str = "node";
/// Its address: that of the API server for Pods, too.
pub const ADDRESS: &str = "10.0.0.10";
/// The image with a shell and small tools, for Pods of tests: see [`Cluster::load_busybox`].
pub const BUSYBOX: &str = "localhost/busybox:1";
/// What holds a Pod's namespaces.
const PAUSE: &str = "localhost/pause:1";
/// The Debian packages that a node needs.
const PACKAGES: [&str; 5] = [
    "containerd",
    "runc",
    "containernetworking-plugins",
    "nftables",
    "busybox-static",
];
/// The programs of those packages.
const NEEDED: [&str; 5] = [
    "containerd",
    "containerd-shim-runc-v2",
    "runc",
    "nft",
    "ctr",
];
/// Where distributions put the network plugins.
const CNI_FOLDERS: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];
/// The names under which it is in [`BUSYBOX`].
const TOOLS: [&str; 22] = [
    "cat", "date", "echo", "env", "false", "grep", "httpd", "id", "kill", "ls", "mkdir", "mv",
    "nc", "printf", "ps", "rm", "sed", "sh", "sleep", "test", "touch", "true",
];
const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// The first process in the namespaces, as the supervisor calls it.
const INIT: &str = "init";

/// Installs what a node needs, if it is missing and we may.
pub fn ensure_installed() -> Result<()> {
    ensure!(
        geteuid().is_root(),
        "a node needs root, for namespaces and cgroups: run as root, or use `--provider kind`"
    );
    ensure!(
        Path::new("/sys/fs/cgroup/pids/tasks").exists(),
        "a node needs cgroup v1, which this machine does not have: use `--provider kind`"
    );
    if missing().is_some() {
        apt::install("what a node needs", &PACKAGES, || missing().is_none())?;
    }
    match missing() {
        Some(what) => bail!("the packages {} brought no {what}", PACKAGES.join(", ")),
        None => Ok(()),
    }
}

fn missing() -> Option<&'static str> {
    NEEDED
        .into_iter()
        .find(|program| apt::find(program).is_none())
        .or_else(|| cni_folder().is_none().then_some("network plugins"))
        .or_else(|| busybox().is_none().then_some("busybox"))
}

fn cni_folder() -> Option<PathBuf> {
    CNI_FOLDERS
        .into_iter()
        .map(PathBuf::from)
        .find(|dir| dir.join("ptp").is_file())
}

fn busybox() -> Option<PathBuf> {
    apt::find("busybox")
}

/// A node that is about to be started with the servers of a cluster.
pub(crate) struct Node<'a> {
    dir: &'a Path,
    endpoint: String,
    cgroup: String,
}

impl<'a> Node<'a> {
    pub(crate) fn new(dir: &'a Path, endpoint: String) -> Self {
        let cgroup = format!("leasehold-{:016x}", RandomState::new().hash_one(0));
        Self {
            dir,
            endpoint,
            cgroup,
        }
    }

    fn file(&self, name: &str) -> String {
        self.dir
            .join("node")
            .join(name)
            .to_string_lossy()
            .into_owned()
    }

    /// The certificates of its programs, and their files.
    pub(crate) fn write(&self, cluster: &str, api: &Authority) -> Result<()> {
        let dir = self.dir.join("node");
        fs::create_dir_all(dir.join("cni"))?;
        let kubelet = format!("system:node:{NAME}");
        for (name, user, group) in [
            ("kubelet", kubelet.as_str(), Some("system:nodes")),
            ("kube-proxy", "system:kube-proxy", None),
            ("kube-scheduler", "system:kube-scheduler", None),
        ] {
            let pair = api.issue(&Subject::Client(user, group))?;
            let path = dir.join(format!("{name}.kubeconfig"));
            pki::write_kubeconfig(&path, &self.endpoint, cluster, api.pem(), name, &pair)?;
        }
        api.issue(&Subject::Server(&[ADDRESS, NAME]))?
            .write(&dir, "kubelet-server")?;
        let client = Subject::Client("kube-apiserver-kubelet-client", Some("system:masters"));
        api.issue(&client)?.write(&dir, "kubelet-client")?;
        let cni = cni_folder().context("there are no network plugins")?;
        for (name, text) in [
            ("cgroup", self.cgroup.clone()),
            ("resolv.conf", String::new()),
            ("containerd.toml", config::containerd(self, &cni)),
            ("cni/node.conflist", config::network()),
            ("kubelet.json", config::kubelet(self)),
            ("kube-proxy.json", config::proxy(self)),
        ] {
            pki::write_private(&dir.join(name), &text)?;
        }
        Ok(())
    }

    /// Added to the arguments of kube-apiserver.
    pub(crate) fn api_args(&self) -> Vec<String> {
        let mut args = vec![
            "--bind-address=0.0.0.0".to_owned(),
            format!("--advertise-address={ADDRESS}"),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged".to_owned(),
            "--endpoint-reconciler-type=lease".to_owned(),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
        ];
        for (flag, file) in [
            ("client-certificate", "kubelet-client.crt"),
            ("client-key", "kubelet-client.key"),
        ] {
            args.push(format!("--kubelet-{flag}={}", self.file(file)));
        }
        let ca = self.dir.join("ca.crt");
        args.push(format!("--kubelet-certificate-authority={}", ca.display()));
        args
    }

    /// Added to the arguments of kube-controller-manager: a dead node is noticed while a test waits.
    pub(crate) fn manager_args() -> Vec<String> {
        [
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=12s",
        ]
        .map(ToOwned::to_owned)
        .to_vec()
    }

    /// Its programs.
    pub(crate) fn programs(&self, built: &Built) -> Result<Vec<Program>> {
        let api = Probe::Url(format!("{}/readyz", self.endpoint));
        let containerd = Probe::File(
            self.dir.join("containerd.log"),
            "containerd successfully booted",
        );
        let ours = |component: Component, args: Vec<String>, after: Vec<Probe>| Program {
            name: component.name(),
            path: built.path(component.name()),
            args,
            after,
            env: vec![
                format!("PATH={}", apt::SYSTEM_PATH),
                // In memory, and not the machine's.
                "TMPDIR=/run".to_owned(),
            ],
            inside: true,
            ..Program::default()
        };
        let mut runtime = ours(
            Component::Containerd,
            vec![format!("--config={}", self.file("containerd.toml"))],
            vec![],
        );
        runtime.path = apt::find(runtime.name).context("there is no containerd")?;
        let scheduler = vec![
            format!("--kubeconfig={}", self.file("kube-scheduler.kubeconfig")),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
        ];
        let kubelet = vec![
            format!("--config={}", self.file("kubelet.json")),
            format!("--kubeconfig={}", self.file("kubelet.kubeconfig")),
            format!("--hostname-override={NAME}"),
            format!("--node-ip={ADDRESS}"),
        ];
        let proxy = vec![format!("--config={}", self.file("kube-proxy.json"))];
        Ok(vec![
            runtime,
            ours(Component::Scheduler, scheduler, vec![api.clone()]),
            ours(Component::Kubelet, kubelet, vec![api.clone(), containerd]),
            ours(Component::Proxy, proxy, vec![api]),
        ])
    }

    /// What shows that it works.
    pub(crate) fn ready(&self) -> Probe {
        let url = format!("{}/api/v1/nodes/{NAME}", self.endpoint);
        Probe::Answer(url, r#""type":"Ready","status":"True""#)
    }

    /// Its namespaces, with a door to the API server.
    pub(crate) fn spec(&self, api: u16) -> NodeSpec {
        NodeSpec {
            address: format!("{ADDRESS}/24"),
            cgroup: self.cgroup.clone(),
            ports: vec![api],
        }
    }
}

/// What a node adds to a cluster.
impl Cluster {
    /// Whether it has a node.
    #[must_use]
    pub fn has_node(&self) -> bool {
        self.dir().join("node").is_dir()
    }

    /// The first process in the node's namespaces: when it is killed, everything in there is.
    pub fn node_pid(&self) -> Result<u32> {
        let pids = State::read(self.dir())?.pids;
        pids.get(INIT)
            .copied()
            .context("the cluster has no node: start it with `--node`")
    }

    /// The path below each cgroup hierarchy that is the node's: Pods are in `kubepods` below it.
    pub fn cgroup(&self) -> Result<PathBuf> {
        let name = fs::read_to_string(self.dir().join("node/cgroup"))
            .context("the cluster has no node: start it with `--node`")?;
        Ok(name.into())
    }

    /// Gives the node the images of an archive, such as [`image::product`] makes, and returns their names.
    pub fn load(&self, archive: &Path) -> Result<Vec<String>> {
        let file = File::open(archive)
            .with_context(|| format!("can't open the image {}", archive.display()))?;
        let socket = format!("/proc/{}/root{CONTAINERD_SOCKET}", self.node_pid()?);
        let ctr = apt::find("ctr").context("there is no ctr: it comes with containerd")?;
        let output = Command::new(ctr)
            .args(["--address", &socket, "--namespace=k8s.io"])
            .args(["images", "import", "-"])
            .stdin(file)
            .output()
            .context("can't run ctr")?;
        if !output.status.success() {
            bail!(
                "the node refused the image {}: {}",
                archive.display(),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        // `unpacking localhost/x:1 (sha256:…)...done`
        let words = String::from_utf8_lossy(&output.stdout);
        Ok(words
            .lines()
            .filter_map(|line| line.strip_prefix("unpacking ")?.split(' ').next())
            .map(ToOwned::to_owned)
            .collect())
    }

    /// Gives the node [`BUSYBOX`], whose containers run `sh`, `nc` and the like.
    pub fn load_busybox(&self) -> Result<()> {
        self.load_busybox_with(BUSYBOX, vec![])
    }

    /// The same tools under another name, and more: as an image of people's own that has a program of ours in it.
    pub fn load_busybox_with(&self, name: &str, more: Vec<oci::Entry<'_>>) -> Result<()> {
        let program = fs::read(busybox().context("there is no busybox: install busybox-static")?)?;
        let links: Vec<_> = TOOLS.iter().map(|tool| format!("bin/{tool}")).collect();
        let mut entries = vec![oci::Entry::Program("bin/busybox", &program)];
        entries.extend(links.iter().map(|link| oci::Entry::Link(link, "busybox")));
        entries.extend(more);
        let image = oci::Image {
            name,
            entries: &entries,
            entrypoint: &[],
            user: "65532:65532",
        };
        self.load_made(&image)
    }

    /// The image without which no Pod starts.
    pub(crate) fn load_pause(&self) -> Result<()> {
        let program = fs::read(self.programs().join("pause"))?;
        let image = oci::Image {
            name: PAUSE,
            entries: &[oci::Entry::Program("pause", &program)],
            entrypoint: &["/pause"],
            user: "65535:65535",
        };
        self.load_made(&image)
    }

    /// Gives the node an image that is made here.
    pub fn load_made(&self, image: &oci::Image<'_>) -> Result<()> {
        self.node_pid()?;
        let name = image.name.replace(['/', ':'], "-");
        let path = self.dir().join(format!("node/{name}.tar"));
        fs::write(&path, image.archive())?;
        self.load(&path)?;
        fs::remove_file(path)?;
        Ok(())
    }

    /// Lets Pods reach a port on this machine's loopback, at the same port of [`ADDRESS`].
    pub fn let_pods_reach(&self, port: u16) -> Result<()> {
        let door = format!("forward {ADDRESS}:{port} 127.0.0.1:{port}");
        self.supervisor()?.command(&door).map(drop)
    }

    /// A command inside the namespaces, with the machine's files as the node sees them.
    pub fn inside(&self, program: &str) -> Result<Command> {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.node_pid()?.to_string()])
            .args(["--mount", "--net", "--pid", "--wdns=/", program])
            .env("PATH", apt::SYSTEM_PATH)
            .stdin(Stdio::null());
        Ok(command)
    }
}
