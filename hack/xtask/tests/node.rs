//! A real node: Pods run on it, and nothing of it is left on the machine however it ends.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xtask::cluster::{Cluster, Component, Options};
use xtask::node::image::{self, Stage};
use xtask::node::{self, BUSYBOX};
use xtask::registry::has_ended;
use xtask::supervisor::State;

use support::{
    Named, SOON, all_pids, assert_ended_soon, assert_removed_soon, is_owner, kill_9, own, signal,
    start_owner,
};

/// A Pod starts in a second or two; this is for a machine that is busy elsewhere.
const STARTED: &str = "--timeout=120s";
/// What the image may weigh.
const LARGEST_IMAGE: u64 = 20 << 20;

fn node() -> Cluster {
    Cluster::start(&Options {
        node: true,
        ..Options::default()
    })
    .unwrap()
}

/// Runs kubectl, and returns what it prints.
fn kubectl(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.kubectl(args.iter().copied()).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {args:?}: {words}");
    String::from_utf8(output.stdout).unwrap()
}

fn apply(cluster: &Cluster, objects: &[Value]) {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    let mut child = cluster
        .kubectl(["apply", "--filename=-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(list.to_string().as_bytes()).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// A Pod that the restricted Pod security standard lets in.
fn pod(name: &str, image: &str, command: &[&str], args: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "main",
                "image": image,
                "command": command,
                "args": args,
                "securityContext": {
                    "readOnlyRootFilesystem": true,
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] },
                },
            }],
        },
    })
}

/// What a Pod printed that ran to its end.
fn output_of(cluster: &Cluster, name: &str) -> String {
    let pod = format!("pod/{name}");
    kubectl(
        cluster,
        &[
            "wait",
            "--for=jsonpath={.status.phase}=Succeeded",
            &pod,
            STARTED,
        ],
    );
    kubectl(cluster, &["logs", &pod])
}

#[test]
fn a_pod_of_the_products_image_runs_without_root_and_without_writing() {
    let cluster = node();
    let archive = image::product(Stage::Replaced).unwrap();
    // Of the program, which is all there is in it: the archive is compressed.
    let weight = fs::metadata(image::program().unwrap()).unwrap().len();
    assert!(weight <= LARGEST_IMAGE, "the program has {weight} bytes");
    assert_eq!(cluster.load(&archive).unwrap(), [image::PRODUCT]);

    apply(
        &cluster,
        &[pod("version", image::PRODUCT, &[], &["--version"])],
    );
    assert!(output_of(&cluster, "version").starts_with("leasehold "));

    // There is no shell in it, nor anything else.
    let shell = cluster
        .kubectl(["run", "shell", "--restart=Never", "--image", image::PRODUCT])
        .args(["--command", "--", "/bin/sh"])
        .output()
        .unwrap();
    assert!(shell.status.success());
    let failed = "--for=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}=128";
    kubectl(&cluster, &["wait", failed, "pod/shell", STARTED]);
}

#[test]
fn pods_reach_services_the_api_server_and_what_a_test_lets_them() {
    let cluster = node();
    cluster.load_busybox().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    cluster.let_pods_reach(port).unwrap();
    let answers = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"machine\n").unwrap();
    });

    let serve =
        "mkdir /tmp/www && echo service >/tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www";
    let mut server = pod("server", BUSYBOX, &["sh", "-c", serve], &[]);
    server["spec"]["volumes"] = json!([{ "name": "tmp", "emptyDir": {} }]);
    server["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "tmp", "mountPath": "/tmp" }]);
    server["spec"]["containers"][0]["readinessProbe"] =
        json!({ "httpGet": { "path": "/", "port": 8080 }, "periodSeconds": 1 });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "server" },
        "spec": { "selector": { "app": "server" }, "clusterIP": "10.96.0.80", "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    apply(&cluster, &[server, service]);
    kubectl(
        &cluster,
        &["wait", "--for=condition=Ready", "pod/server", STARTED],
    );

    // The service's rules come a moment after its Pod is ready, hence the second try and those after it.
    let ask = format!(
        "until printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc 10.96.0.80 80 | grep service; do :; done; \
         nc {address} {port} </dev/null; \
         nc $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo api",
        address = node::ADDRESS
    );
    apply(
        &cluster,
        &[pod("client", BUSYBOX, &["sh", "-c", &ask], &[])],
    );
    assert_eq!(output_of(&cluster, "client"), "service\nmachine\napi\n");
    answers.join().unwrap();

    let id = kubectl(&cluster, &["exec", "server", "--", "id", "-u"]);
    assert_eq!(id, "65532\n");
}

#[test]
fn a_killed_kubelet_is_noticed_and_comes_back() {
    let cluster = node();
    let is = |status: &str| {
        let condition = format!("--for=condition=Ready={status}");
        kubectl(&cluster, &["wait", &condition, "node/node", STARTED]);
    };
    is("True");
    cluster.kill(Component::Kubelet).unwrap();
    is("Unknown");
    cluster.start_again(Component::Kubelet).unwrap();
    is("True");
}

/// What a node leaves on a machine while it runs.
struct Traces {
    dir: PathBuf,
    cgroups: Vec<PathBuf>,
    pids: BTreeSet<u32>,
    /// The Pod's process.
    asleep: u32,
}

impl Traces {
    /// Those of a node on which a Pod runs.
    fn of(cluster: &Cluster) -> Self {
        cluster.load_busybox().unwrap();
        // It does not end by itself, nor by SIGTERM.
        apply(
            cluster,
            &[pod("stays", BUSYBOX, &["sleep", "1000000"], &[])],
        );
        kubectl(
            cluster,
            &["wait", "--for=condition=Ready", "pod/stays", STARTED],
        );

        let init = cluster.node_pid().unwrap();
        let namespace = |pid: u32, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
        for kind in ["mnt", "net", "pid"] {
            assert_ne!(namespace(init, kind), namespace(std::process::id(), kind));
        }
        // Containers have process namespaces of their own, in turn; all are below the first process.
        let pids: BTreeSet<u32> = below(init)
            .into_iter()
            .chain(all_pids(cluster.dir()))
            .collect();
        let name = cluster.cgroup().unwrap();
        let cgroups: Vec<_> = fs::read_dir("/sys/fs/cgroup")
            .unwrap()
            .map(|hierarchy| hierarchy.unwrap().path().join(&name))
            .filter(|dir| dir.exists())
            .collect();
        assert!(cgroups.len() >= 8, "{cgroups:?}");
        let asleep = pids.iter().copied().find(|pid| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\0"))
        });
        let asleep = asleep.unwrap_or_else(|| panic!("the Pod's process is not among {pids:?}"));
        Self {
            dir: cluster.dir().to_path_buf(),
            cgroups,
            pids,
            asleep,
        }
    }

    /// The freezer's folder of the Pod's container.
    fn freezer(&self) -> PathBuf {
        let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", self.asleep)).unwrap();
        let path = cgroups
            .lines()
            .find_map(|line| line.split_once(":freezer:/"))
            .unwrap()
            .1;
        Path::new("/sys/fs/cgroup/freezer").join(path)
    }

    /// Freezes the container, and the Pod with it: then no signal reaches them, not even SIGKILL.
    fn freeze(&self) {
        let container = self.freezer();
        for dir in [container.as_path(), container.parent().unwrap()] {
            let state = dir.join("freezer.state");
            fs::write(&state, "FROZEN").unwrap();
            let started = Instant::now();
            while fs::read_to_string(&state).unwrap().trim() != "FROZEN" {
                assert!(started.elapsed() < SOON, "it does not freeze");
                thread::yield_now();
            }
        }
    }

    fn assert_nothing(&self) {
        self.assert_no_process_and_no_mount();
        self.assert_no_cgroup();
        assert_removed_soon(&self.dir);
    }

    fn assert_no_process_and_no_mount(&self) {
        assert_ended_soon(self.pids.iter().copied());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.dir.to_str().unwrap()), "{mounts}");
        assert!(!mounts.contains("io.containerd"), "{mounts}");
    }

    fn assert_no_cgroup(&self) {
        for dir in &self.cgroups {
            assert_removed_soon(dir);
        }
    }
}

/// The children of a process, and theirs.
fn below(ancestor: u32) -> BTreeSet<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok()
    };
    let numbers = fs::read_dir("/proc").unwrap();
    numbers
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            std::iter::successors(parent(*pid), |pid| parent(*pid)).any(|pid| pid == ancestor)
        })
        .collect()
}

#[test]
fn down_leaves_no_process_no_mount_no_cgroup_and_no_folder() {
    let named = Named::new("node");
    let up = named.run_with("up", &["--node"]);
    assert!(
        up.status.success(),
        "{}",
        String::from_utf8_lossy(&up.stderr)
    );
    let traces = Traces::of(&Cluster::attach(&named.dir()).unwrap());
    traces.freeze();
    assert!(named.run("down").status.success());
    assert!(!traces.dir.exists());
    traces.assert_nothing();
}

/// Not a test of its own: the owner that the next one kills.
#[test]
fn owner() {
    if is_owner() {
        own(&[node().dir()]);
    }
}

/// What a node could change of the machine: devices, routes, mounts, and what kubelet and kube-proxy like to set.
fn machine() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let devices = fs::read_dir("/sys/class/net").unwrap();
    let devices: BTreeSet<_> = devices.map(|device| device.unwrap().file_name()).collect();
    all.insert("devices".to_owned(), format!("{devices:?}"));
    for file in [
        "net/route",
        "self/mountinfo",
        "sys/kernel/keys/root_maxbytes",
        "sys/kernel/keys/root_maxkeys",
        "sys/kernel/panic",
        "sys/kernel/panic_on_oops",
        "sys/net/bridge/bridge-nf-call-iptables",
        "sys/net/ipv4/conf/all/forwarding",
        "sys/net/ipv4/conf/all/route_localnet",
        "sys/net/ipv4/conf/all/rp_filter",
        "sys/net/ipv4/ip_forward",
        "sys/net/netfilter/nf_conntrack_max",
        "sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
        "sys/net/netfilter/nf_conntrack_tcp_timeout_established",
        "sys/vm/overcommit_memory",
        "sys/vm/panic_on_oom",
    ] {
        // What is not there comes with a module of the kernel, which the first use of it loads.
        if let Ok(text) = fs::read_to_string(Path::new("/proc").join(file)) {
            all.insert(file.to_owned(), text);
        }
    }
    all
}

#[test]
fn nothing_of_the_machine_is_changed() {
    let before = machine();
    let cluster = node();
    let mut during = machine();
    drop(cluster);
    let mut after = machine();
    for seen in [&mut during, &mut after] {
        seen.retain(|what, _| before.contains_key(what));
    }
    assert_eq!(during, before, "while it runs");
    assert_eq!(after, before, "afterwards");
}

#[test]
fn kill_9_of_the_owner_leaves_no_process_no_mount_no_cgroup_and_no_folder() {
    let (mut owner, dirs) = start_owner(1);
    let traces = Traces::of(&Cluster::attach(&dirs[0]).unwrap());
    owner.kill().unwrap();
    owner.wait().unwrap();
    traces.assert_nothing();
}

#[test]
fn kill_9_of_the_owner_leaves_nothing_of_what_is_stopped_or_frozen_again_and_again() {
    let (mut owner, dirs) = start_owner(1);
    let traces = Traces::of(&Cluster::attach(&dirs[0]).unwrap());
    traces.freeze();
    // The supervisor too, and the first process inside: neither can do anything before the owner ends.
    for pid in &traces.pids {
        signal(*pid, "-STOP");
    }
    let state = traces.freezer().parent().unwrap().join("freezer.state");
    let freezing = thread::spawn(move || {
        while fs::write(&state, "FROZEN").is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    });
    owner.kill().unwrap();
    owner.wait().unwrap();
    traces.assert_nothing();
    freezing.join().unwrap();
}

#[test]
fn kill_9_of_the_supervisor_leaves_nothing_of_what_is_frozen() {
    let cluster = node();
    let traces = Traces::of(&cluster);
    traces.freeze();
    kill_9(State::read(cluster.dir()).unwrap().pid);
    traces.assert_no_process_and_no_mount();
    traces.assert_no_cgroup();
    drop(cluster);
    assert!(!traces.dir.exists());
}

#[test]
fn the_next_node_ends_what_is_frozen_where_supervisor_and_undertaker_were_killed() {
    let cluster = node();
    let traces = Traces::of(&cluster);
    traces.freeze();
    let state = State::read(cluster.dir()).unwrap();
    kill_9(state.pids["undertaker"]);
    kill_9(state.pid);
    assert_ended_soon([state.pid]);
    drop(cluster);
    assert!(!has_ended(traces.asleep), "the kernel ended what is frozen");
    drop(node());
    traces.assert_nothing();
}

/// A freezer's folder that is no node's.
struct Foreign(PathBuf);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        let started = Instant::now();
        while fs::remove_dir(&self.0).is_err() && started.elapsed() < SOON {
            thread::yield_now();
        }
    }
}

/// Nobody thaws what is not the node's. It stands for what no kernel can end: a process in the state D.
#[test]
fn what_can_not_be_ended_is_named_instead_of_waited_for() {
    let named = Named::new("stuck");
    assert!(named.run_with("up", &["--node"]).status.success());
    let traces = Traces::of(&Cluster::attach(&named.dir()).unwrap());
    let foreign = Foreign(PathBuf::from(format!("/sys/fs/cgroup/freezer/{}", named.0)));
    fs::create_dir(&foreign.0).unwrap();
    fs::write(foreign.0.join("cgroup.procs"), traces.asleep.to_string()).unwrap();
    fs::write(foreign.0.join("freezer.state"), "FROZEN").unwrap();

    let down = named.run("down");
    let words = String::from_utf8_lossy(&down.stderr);
    assert_eq!(down.status.code(), Some(1), "{words}");
    let process = format!("{} (sleep) D", traces.asleep);
    assert!(words.contains(&process), "{words}");
    assert!(traces.dir.exists());
    assert_ended_soon([State::read(&traces.dir).unwrap().pid]);

    drop(foreign);
    traces.assert_no_process_and_no_mount();
    traces.assert_no_cgroup();
    assert!(named.run("down").status.success());
    assert!(!traces.dir.exists());
}

#[test]
fn kill_9_of_the_first_process_inside_ends_all_and_leaves_no_cgroup() {
    let cluster = node();
    let mut traces = Traces::of(&cluster);
    traces.freeze();
    // The supervisor waits for us to read the logs.
    traces.pids.remove(&State::read(cluster.dir()).unwrap().pid);
    kill_9(cluster.node_pid().unwrap());
    traces.assert_no_process_and_no_mount();
    traces.assert_no_cgroup();
}

#[test]
fn a_cluster_without_a_node_says_so() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let error = cluster.load_busybox().unwrap_err().to_string();
    assert!(error.contains("has no node"), "{error}");
    assert!(cluster.let_pods_reach(1).is_err());
    assert!(!cluster.has_node());
}
