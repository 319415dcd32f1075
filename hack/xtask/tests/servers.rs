//! Real servers: they come up side by side, and none is left behind however their owner or supervisor ends.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use xtask::cluster::{Cluster, Component, Options};
use xtask::postgres::Postgres;
use xtask::registry::has_ended;
use xtask::supervisor::State;

use support::{
    Named, SOON, all_pids, assert_ended_soon, assert_removed_soon, is_owner, kill_9, own, signal,
    start_owner, xtask,
};

#[test]
fn kill_9_of_the_supervisor_leaves_no_process() {
    let cluster = Named::new("kill");
    let up = cluster.run("up");
    assert!(
        up.status.success(),
        "{}",
        String::from_utf8_lossy(&up.stderr)
    );
    let dir = cluster.dir();
    let pids = all_pids(&dir);
    assert_eq!(pids.len(), 4);
    assert!(pids.iter().all(|pid| !has_ended(*pid)));

    kill_9(State::read(&dir).unwrap().pid);
    assert_ended_soon(pids);
    let list = xtask(&["cluster", "list"]);
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(
        list.lines()
            .any(|line| line.starts_with(&cluster.0) && line.ends_with("ended")),
        "{list}"
    );
    let env = cluster.run("env");
    assert_eq!(env.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&env.stderr)
            .contains("is not up; start it with `cargo xtask cluster up")
    );
}

#[test]
fn up_and_down_can_be_said_again_and_leave_nothing() {
    let cluster = Named::new("updown");
    assert!(cluster.run("up").status.success());
    let dir = cluster.dir();
    let pids = all_pids(&dir);
    let again = cluster.run("up");
    assert!(again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("is already up"));
    assert_eq!(all_pids(&dir), pids);

    // Frozen servers and a frozen supervisor end as well.
    for pid in &pids {
        signal(*pid, "-STOP");
    }
    assert!(cluster.run("down").status.success());
    assert_ended_soon(pids);
    assert!(!dir.exists());
    let again = cluster.run("down");
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("no cluster is called"));
}

#[test]
fn bad_names_are_refused_with_exit_code_2() {
    for name in ["A", "a/b", "", "owned-x"] {
        let output = xtask(&["cluster", "up", "--name", name]);
        assert_eq!(output.status.code(), Some(2), "{name}");
    }
}

/// Not a test of its own: the owner that the next one kills.
#[test]
fn owner() {
    if !is_owner() {
        return;
    }
    let cluster = thread::spawn(|| Cluster::start(&Options::default()).unwrap())
        .join()
        .unwrap();
    let postgres = Postgres::start().unwrap();
    // Its servers outlive the thread that started them.
    assert!(all_pids(cluster.dir()).iter().all(|pid| !has_ended(*pid)));
    own(&[cluster.dir(), postgres.socket_dir().parent().unwrap()]);
}

#[test]
fn kill_9_of_the_owner_leaves_neither_process_nor_folder() {
    let (mut owner, dirs) = start_owner(2);
    let pids: Vec<_> = dirs.iter().flat_map(|dir| all_pids(dir)).collect();
    assert_eq!(pids.len(), 6);
    // Stopped ones end as well.
    for pid in &pids {
        signal(*pid, "-STOP");
    }
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_ended_soon(pids);
    for dir in &dirs {
        assert_removed_soon(dir);
    }
}

#[test]
fn kill_9_of_owner_and_supervisors_leaves_no_process_and_the_next_removes_the_folders() {
    let (mut owner, dirs) = start_owner(2);
    let pids: Vec<_> = dirs.iter().flat_map(|dir| all_pids(dir)).collect();
    for dir in &dirs {
        kill_9(State::read(dir).unwrap().pid);
    }
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_ended_soon(pids);
    drop(Postgres::start().unwrap());
    drop(Cluster::start(&Options::default()).unwrap());
    for dir in &dirs {
        assert!(!dir.exists(), "{} is left behind", dir.display());
    }
}

#[test]
fn clusters_side_by_side_have_ports_and_authorities_of_their_own() {
    let start = || thread::spawn(|| Cluster::start(&Options::default()).unwrap());
    let [one, other] = [start(), start()].map(|cluster| cluster.join().unwrap());
    assert_ne!(one.endpoint(), other.endpoint());

    let account = one
        .kubectl(["get", "serviceaccount", "default", "--output=name"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&account.stdout),
        "serviceaccount/default\n"
    );
    // A kubeconfig for the one opens nothing on the other.
    let stranger = one.kubectl([
        "get",
        "namespaces",
        "--insecure-skip-tls-verify",
        "--server",
        other.endpoint(),
    ]);
    let refused = { stranger }.output().unwrap();
    assert!(!refused.status.success());
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("must be logged in"),
        "{refused:?}"
    );

    let pids = all_pids(one.dir());
    let dir = one.dir().to_path_buf();
    drop(one);
    assert_ended_soon(pids);
    assert!(!dir.exists());
    assert!(all_pids(other.dir()).iter().all(|pid| !has_ended(*pid)));
}

#[test]
fn servers_can_be_frozen_killed_and_started_again() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let ready = |cluster: &Cluster| {
        cluster
            .kubectl(["get", "--raw=/readyz", "--request-timeout=1s"])
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(ready(&cluster));
    cluster.freeze(Component::ApiServer).unwrap();
    assert!(!ready(&cluster));
    cluster.thaw(Component::ApiServer).unwrap();
    cluster.wait_ready().unwrap();

    assert!(
        cluster
            .kubectl(["create", "namespace", "kept"])
            .output()
            .unwrap()
            .status
            .success()
    );
    for component in [
        Component::ApiServer,
        Component::Etcd,
        Component::ControllerManager,
    ] {
        let before = cluster.pid(component).unwrap();
        let killed = cluster.kill(component).unwrap();
        assert_eq!(before, killed);
        assert!(has_ended(before));
        assert!(cluster.pid(component).is_err());
        let after = cluster.start_again(component).unwrap();
        assert_ne!(before, after);
        cluster.wait_ready().unwrap();
        assert_eq!(cluster.pid(component).unwrap(), after);
    }
    assert!(
        cluster
            .kubectl(["get", "namespace", "kept"])
            .output()
            .unwrap()
            .status
            .success()
    );

    // One that ends by itself is started again.
    let before = cluster.pid(Component::ControllerManager).unwrap();
    kill_9(before);
    let started = Instant::now();
    while cluster
        .pid(Component::ControllerManager)
        .is_ok_and(|pid| pid == before)
        || cluster.pid(Component::ControllerManager).is_err()
    {
        assert!(
            started.elapsed() < SOON,
            "kube-controller-manager was not started again"
        );
        thread::yield_now();
    }

    let shared = Cluster::attach(cluster.dir()).unwrap();
    assert_eq!(shared.endpoint(), cluster.endpoint());
    assert!(shared.kill(Component::Etcd).is_err());
}

#[test]
fn arguments_reach_the_servers_and_bad_ones_are_told_with_the_log() {
    let options = Options {
        fsync: true,
        apiserver_args: vec!["--no-such-flag".to_owned()],
        ..Options::default()
    };
    let error = format!("{:#}", Cluster::start(&options).unwrap_err());
    assert!(
        error.contains("kube-apiserver ended while starting"),
        "{error}"
    );
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
}

#[test]
fn etcd_and_the_api_answer_nobody_without_credentials() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let spec = fs::read_to_string(cluster.dir().join("spec.json")).unwrap();
    let etcd = spec
        .split("--listen-client-urls=https://127.0.0.1:")
        .nth(1)
        .unwrap();
    let port: u16 = etcd.split('"').next().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(b"GET /version HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(!answer.contains("etcdserver"), "{answer}");

    let empty = BTreeMap::from([("KUBECONFIG", "/dev/null")]);
    let anonymous = Command::new(cluster.programs().join("kubectl"))
        .envs(empty)
        .args([
            "get",
            "--raw=/version",
            "--insecure-skip-tls-verify",
            "--server",
            cluster.endpoint(),
            "--username=nobody",
            "--password=none",
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!anonymous.status.success());
}

#[test]
fn postgres_answers_with_the_password_and_ends_with_its_owner() {
    let postgres = Postgres::start().unwrap();
    let bin = xtask::postgres::find_programs().unwrap();
    let psql = |url: &str| {
        Command::new(bin.join("psql"))
            .args([url, "-Atc", "show fsync"])
            .env("PGPASSWORD", "wrong")
            .output()
            .unwrap()
    };
    let with_password = psql(&postgres.url());
    assert_eq!(
        String::from_utf8_lossy(&with_password.stdout),
        "off\n",
        "{with_password:?}"
    );
    let without = psql(&postgres.url().replace(postgres.password(), ""));
    assert!(!without.status.success());
    let socket = psql(&format!(
        "host={} port={} user={} dbname=postgres",
        postgres.socket_dir().display(),
        postgres.port(),
        Postgres::USER
    ));
    assert_eq!(
        String::from_utf8_lossy(&socket.stdout),
        "off\n",
        "{socket:?}"
    );

    let dir = postgres.socket_dir().parent().unwrap().to_path_buf();
    let pids = all_pids(&dir);
    drop(postgres);
    assert_ended_soon(pids);
    assert!(!dir.exists());
}
