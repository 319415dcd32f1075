//! What the tests of servers and of the node share.

// Each test program uses some of it.
#![allow(dead_code)]

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use xtask::registry::has_ended;
use xtask::supervisor::State;

/// Killed processes are gone in milliseconds; this is for a machine that is busy elsewhere.
pub const SOON: Duration = Duration::from_secs(10);

/// Says to a test named `owner` that it is the process to be killed, not a test.
const OWNER: &str = "XTASK_TEST_OWNER";

pub fn is_owner() -> bool {
    env::var_os(OWNER).is_some()
}

/// Tells whoever started the owner which folders are there while it lives, and lives on.
pub fn own(dirs: &[&Path]) {
    for dir in dirs {
        println!("OWNS {}", dir.display());
    }
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

/// This test program as a process that owns something: so many folders.
pub fn start_owner(count: usize) -> (Child, Vec<PathBuf>) {
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["--exact", "owner", "--nocapture"])
        .env(OWNER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let dirs: Vec<_> = lines
        .filter_map(|line| line.split_once("OWNS ").map(|(_, dir)| PathBuf::from(dir)))
        .take(count)
        .collect();
    assert_eq!(dirs.len(), count);
    (owner, dirs)
}

pub fn kill_9(pid: u32) {
    signal(pid, "-9");
}

/// A signal as `kill` takes it.
pub fn signal(pid: u32, signal: &str) {
    let status = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success(), "kill {signal} {pid}");
}

pub fn assert_ended_soon(pids: impl IntoIterator<Item = u32>) {
    let started = Instant::now();
    for pid in pids {
        while !has_ended(pid) {
            assert!(started.elapsed() < SOON, "process {pid} is left behind");
            thread::yield_now();
        }
    }
}

pub fn assert_removed_soon(dir: &Path) {
    let started = Instant::now();
    while dir.exists() {
        assert!(started.elapsed() < SOON, "{} is left behind", dir.display());
        thread::yield_now();
    }
}

pub fn all_pids(dir: &Path) -> Vec<u32> {
    let state = State::read(dir).unwrap();
    assert_eq!(state.text, "ready");
    state.pids.into_values().chain([state.pid]).collect()
}

pub fn xtask(args: &[&str]) -> process::Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A cluster by name, taken down whatever the test does.
pub struct Named(pub String);

impl Named {
    pub fn new(what: &str) -> Self {
        Self(format!("test-{what}-{}", process::id()))
    }

    pub fn run(&self, verb: &str) -> process::Output {
        self.run_with(verb, &[])
    }

    pub fn run_with(&self, verb: &str, more: &[&str]) -> process::Output {
        xtask(&[&["cluster", verb, "--name", &self.0], more].concat())
    }

    /// From what `env` prints.
    pub fn dir(&self) -> PathBuf {
        let output = self.run("env");
        let text = String::from_utf8(output.stdout).unwrap();
        let kubeconfig = text
            .lines()
            .find_map(|line| line.strip_prefix("export KUBECONFIG='"))
            .unwrap();
        Path::new(kubeconfig.trim_end_matches('\''))
            .parent()
            .unwrap()
            .to_path_buf()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = self.run("down");
    }
}
