//! `leasehold sidecar` as a real process: what it tells while it waits, holds and stops.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold::clock::BootInstant;
use leasehold::engine::EndKind;
use leasehold::supervise::Signal;
use serde_json::Value;

use super::docs::read;
use super::run_bench::{BUSY, Bench, until};
use super::run_health::{code, free_address, get};
use super::run_process::{Run, RunBuilder};

/// A sidecar's folder and addresses, which outlive its process as those of a Pod do.
pub struct Pod {
    pub dir: PathBuf,
    pub app: String,
    pub probes: String,
}

impl Pod {
    pub fn new(bench: &Bench) -> Self {
        let dir = bench.new_folder();
        fs::create_dir(&dir).unwrap();
        Self {
            dir,
            app: free_address(),
            probes: free_address(),
        }
    }

    /// The sidecar's container, to be started.
    pub fn sidecar(&self, bench: &Bench, lock: &str) -> RunBuilder {
        bench
            .sidecar(lock)
            .option("--dir", self.dir.to_str().unwrap())
            .option("--http-addr", &self.app)
            .option("--probe-addr", &self.probes)
    }

    /// What the app reads; `None` where there is no file.
    pub fn file(&self) -> Option<Value> {
        let text = fs::read_to_string(self.dir.join("grant.json")).ok()?;
        Some(serde_json::from_str(&text).expect("a whole file"))
    }

    /// Whether the file that is there has outlived its deadline.
    pub fn is_past_the_deadline(&self) -> bool {
        let file = self.file().expect("the app's file");
        seconds_now() > file["deadlineUptimeSeconds"].as_f64().expect("a deadline") + 0.01
    }

    /// Code and body of `GET /v1/grant`; `None` while nobody listens.
    pub async fn grant(&self) -> Option<(u16, Value)> {
        let (code, body) = get(&self.app, "/v1/grant").await?;
        Some((code, serde_json::from_str(&body).expect("JSON")))
    }

    pub async fn until_held(&self) -> Value {
        until("the lock is held", BUSY, async || {
            code(&self.probes, "/heldz").await == Some(200)
        })
        .await;
        let (code, told) = self.grant().await.expect("it answers");
        assert_eq!(code, 200, "{told}");
        told
    }

    /// Waits until it says why it does not hold the lock, and checks that the file is gone.
    pub async fn until_not_held(&self, why: &str) {
        let what = format!("it says {why:?}");
        until(&what, BUSY, async || {
            let told = self.grant().await;
            told.is_some_and(|(code, told)| {
                code == 503 && told["reason"].as_str().unwrap().contains(why)
            })
        })
        .await;
        assert_eq!(code(&self.probes, "/heldz").await, Some(503));
        until("the file is gone", BUSY, async || self.file().is_none()).await;
    }

    /// `leasehold probe` with these words.
    pub fn probe(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["probe", "--timeout", "10s", "--addr", &self.app])
            .args(words)
            .output()
            .expect("the program runs")
    }

    pub async fn metrics(&self) -> String {
        let told = get(&self.probes, "/metrics").await;
        told.expect("it answers").1
    }
}

/// A sidecar that runs.
pub struct Sidecar {
    pub pod: Pod,
    pub run: Run,
}

impl Sidecar {
    /// It holds the lock.
    pub async fn held(bench: &Bench, lock: &str) -> Self {
        Self::with(bench, lock, |builder| builder).await
    }

    /// The same, started in another way.
    pub async fn with(
        bench: &Bench,
        lock: &str,
        how: impl FnOnce(RunBuilder) -> RunBuilder,
    ) -> Self {
        let pod = Pod::new(bench);
        let run = how(pod.sidecar(bench, lock)).start();
        pod.until_held().await;
        Self { pod, run }
    }

    /// Waits until it says that the lock was lost, and why.
    pub async fn until_lost(&self, reason: &str) {
        self.pod.until_not_held(&format!("({reason})")).await;
    }

    /// The container is killed and started again.
    pub async fn killed_and_started_again(&mut self, bench: &Bench, lock: &str) {
        self.killed().await;
        self.run = self.pod.sidecar(bench, lock).start();
    }

    pub async fn killed(&mut self) {
        self.run.signal(Signal::KILL);
        assert_eq!(self.run.exits(BUSY).await.code, 137);
    }

    /// TERM ends it in good order.
    pub async fn stops(&mut self) {
        self.run.signal(Signal::TERM);
        self.run.exits(BUSY).await.assert(0, &[]);
    }

    /// Reads the file without a pause, as no app would, until it is asked how often that was too late.
    pub fn read_the_file(&self) -> Reader {
        let stop = Arc::new(AtomicBool::new(false));
        let (file, stopped) = (self.pod.dir.join("grant.json"), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut late = 0;
            while !stopped.load(Ordering::SeqCst) {
                let now = seconds_now();
                if let Ok(text) = fs::read_to_string(&file) {
                    let told: Value = serde_json::from_str(&text).expect("a whole file");
                    let deadline = told["deadlineUptimeSeconds"].as_f64().expect("a deadline");
                    late += usize::from(now > deadline + 0.01);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            late
        });
        Reader { stop, thread }
    }
}

/// As `/proc/uptime` counts, but finer.
fn seconds_now() -> f64 {
    Duration::from_nanos(BootInstant::now().as_nanos()).as_secs_f64()
}

/// Somebody who reads the file all the time.
pub struct Reader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Reader {
    /// How often it could read a grant after the deadline in it.
    pub fn late_reads(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_app_is_held_back_until_the_lock_is_held_and_term_gives_it_back() {
    let bench = Bench::new().await;
    bench.opened("a", 15).await;
    let holder = bench.hold("a", "holder").await;
    let pod = Pod::new(&bench);
    assert_eq!(
        pod.probe(&["--live"]).status.code(),
        Some(1),
        "nobody there"
    );
    let mut run = pod.sidecar(&bench, "a").by("pod-3").start();
    bench.until_waiting(1).await;
    assert_eq!(code(&pod.probes, "/livez").await, Some(200));
    pod.until_not_held("waiting for lock \"a\"").await;
    let told = pod.probe(&[]);
    assert_eq!(told.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&told.stderr).contains("waiting for lock"));
    assert_eq!(pod.probe(&["--live"]).status.code(), Some(0));

    holder.release().await.unwrap();
    let told = pod.until_held().await;
    let lease = bench.lease("a").await;
    assert_eq!(told["lock"], "a");
    assert_eq!(told["namespace"], bench.namespace.as_str());
    assert_eq!(told["slot"], 0);
    assert_eq!(told["holder"], lease.spec.holder.as_str());
    assert!(lease.spec.holder.starts_with("pod-3/"));
    assert_eq!(told["token"], lease.current_token().unwrap().get());
    let left = told["remainingSeconds"].as_f64().unwrap();
    assert!(left > 0.0 && left < 15.0, "{left}");
    let file = pod.file().expect("the app's file");
    for field in ["lock", "namespace", "slot", "holder", "token"] {
        assert_eq!(file[field], told[field], "{field}");
    }
    assert_eq!(pod.probe(&[]).status.code(), Some(0));
    let printed = pod.probe(&["--grant"]);
    let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(printed["token"], told["token"]);
    // The grant is the app's to ask for, not everybody's on the Pod's network.
    assert_eq!(code(&pod.probes, "/v1/grant").await, Some(404));

    run.signal(Signal::TERM);
    // Within the 2 s that it is given; later it would say so, and exit with 69.
    run.exits(BUSY).await.assert(0, &[]);
    let lease = bench.lease("a").await;
    assert!(lease.is_free());
    assert_eq!(lease.ended.unwrap().kind, EndKind::Released);
    assert_eq!(pod.file(), None);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_grant_stays_the_same_over_renewals_and_the_file_keeps_up() {
    let bench = Bench::new().await;
    bench.opened("a", 2).await;
    let mut sidecar = Sidecar::held(&bench, "a").await;
    let first = sidecar.pod.file().expect("the app's file");
    let deadline = |file: &Value| file["deadlineUptimeSeconds"].as_f64().unwrap();
    let reader = sidecar.read_the_file();
    until("two leases long", BUSY, async || {
        sidecar
            .pod
            .file()
            .is_some_and(|file| deadline(&file) > deadline(&first) + 4.0)
    })
    .await;
    assert_eq!(sidecar.pod.file().unwrap()["token"], first["token"]);
    assert_eq!(reader.late_reads(), 0);
    let metrics = sidecar.pod.metrics().await;
    assert!(metrics.contains("leasehold_sidecar_grants_total{how=\"taken\"} 1\n"));
    assert!(metrics.contains("leasehold_sidecar_held 1\n"));
    let page = read("docs/metrics.md");
    let shown: BTreeSet<&str> = metrics
        .lines()
        .filter(|line| line.starts_with("leasehold_"))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    assert!(shown.len() >= 4, "{metrics}");
    for metric in shown {
        assert!(
            page.contains(&format!("`{metric}`")),
            "docs/metrics.md: {metric}"
        );
    }
    sidecar.stops().await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn term_while_it_waits_leaves_the_queue() {
    let bench = Bench::new().await;
    bench.opened("a", 15).await;
    let holder = bench.hold("a", "holder").await;
    let pod = Pod::new(&bench);
    let mut run = pod.sidecar(&bench, "a").start();
    bench.until_waiting(1).await;
    run.signal(Signal::TERM);
    run.exits(BUSY).await.assert(0, &[]);
    assert_eq!(bench.waiting().await, 0);
    holder.release().await.unwrap();
    bench.finish().await;
}
