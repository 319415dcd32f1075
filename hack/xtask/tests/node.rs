//! A real node: Pods run on it, and nothing of it is left on the machine however it ends.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;

use serde_json::{Value, json};
use xtask::cluster::{Cluster, Component, Options};
use xtask::node::image::{self, Stage};
use xtask::node::{self, BUSYBOX};
use xtask::supervisor::State;

use support::{
    Named, all_pids, assert_ended_soon, assert_removed_soon, is_owner, kill_9, own, start_owner,
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
        let asleep = pids.iter().any(|pid| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\0"))
        });
        assert!(asleep, "the Pod's process is not among {pids:?}");
        Self {
            dir: cluster.dir().to_path_buf(),
            cgroups,
            pids,
        }
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
    assert!(named.run("down").status.success());
    traces.assert_no_process_and_no_mount();
    traces.assert_no_cgroup();
    assert!(!traces.dir.exists());
}

/// Not a test of its own: the owner that the next one kills.
#[test]
fn owner() {
    if is_owner() {
        own(&[node().dir()]);
    }
}

#[test]
fn kill_9_of_the_owner_leaves_no_process_no_mount_no_cgroup_and_no_folder() {
    let (mut owner, dirs) = start_owner(1);
    let traces = Traces::of(&Cluster::attach(&dirs[0]).unwrap());
    owner.kill().unwrap();
    owner.wait().unwrap();
    traces.assert_no_process_and_no_mount();
    traces.assert_no_cgroup();
    assert_removed_soon(&traces.dir);
}

#[test]
fn kill_9_of_the_supervisor_leaves_at_most_cgroups_and_the_next_node_removes_those() {
    let cluster = node();
    let traces = Traces::of(&cluster);
    kill_9(State::read(cluster.dir()).unwrap().pid);
    traces.assert_no_process_and_no_mount();
    drop(cluster);
    assert!(!traces.dir.exists());
    drop(node());
    traces.assert_no_cgroup();
}

#[test]
fn kill_9_of_the_first_process_inside_ends_all_and_leaves_no_cgroup() {
    let cluster = node();
    let mut traces = Traces::of(&cluster);
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
