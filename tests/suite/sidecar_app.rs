//! A sidecar that ends the app: containers that share a process namespace, stood for by processes in one of their own.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use leasehold::engine::EndKind;
use leasehold::supervise::Signal;
use serde_json::json;

use super::processes::{Family, as_pid_1, children_of, signal};
use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench, until};
use super::run_process::{Run, RunBuilder};
use super::sidecar::Pod;

/// Does not end by TERM, nor by the end of its parent or group.
const STUBBORN: &str = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & while :; do sleep 1; done";

/// A process namespace with a first process that does nothing, as a Pod's has.
struct Shared {
    pause: Family,
    containers: Vec<Family>,
}

impl Shared {
    async fn new() -> Self {
        let [unshare, flags, mount] = as_pid_1();
        let mut command = Command::new(unshare);
        command.args([flags, mount, "sleep", "600"]);
        let pause = Family::start(&mut command, &tag());
        until("the first process is there", BUSY, async || {
            pause.all().len() > 1 && !children_of(pause.first()).is_empty()
        })
        .await;
        let shared = Self {
            pause,
            containers: vec![],
        };
        // It is forked before its /proc is mounted.
        until("its processes are seen", BUSY, async || {
            let words = shared.words();
            let mut look = Command::new(words[0].clone());
            look.args(&words[1..])
                .args(["sh", "-c", "test \"$(cat /proc/1/comm)\" = sleep"]);
            look.stderr(Stdio::null()).status().unwrap().success()
        })
        .await;
        shared
    }

    /// The words before a program's own that start it as a container of this Pod.
    fn words(&self) -> Vec<String> {
        let first = children_of(self.pause.first())[0].to_string();
        let mut words = ["nsenter", "-t", &first, "-m", "-p"]
            .map(str::to_owned)
            .to_vec();
        if !rustix::process::geteuid().is_root() {
            words.extend(["-U", "--preserve-credentials"].map(str::to_owned));
        }
        words
    }

    /// A container that runs a script; the number by which it is known.
    fn start(&mut self, script: &str) -> usize {
        let words = self.words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["sh", "-c", script]);
        self.containers.push(Family::start(&mut command, &tag()));
        self.containers.len() - 1
    }

    /// The processes of a container, without the one that waits for it outside.
    fn living(&self, container: usize) -> BTreeSet<i32> {
        let family = &self.containers[container];
        let mut all = family.all();
        all.remove(&family.first());
        all
    }

    /// Whether a container has run and nothing of it is left.
    fn has_ended(&mut self, container: usize) -> bool {
        let family = &mut self.containers[container];
        family.ended().is_some() && family.all().is_empty()
    }

    async fn until_living(&self, container: usize, count: usize) {
        let what = format!("{count} processes or more live");
        until(&what, BUSY, async || self.living(container).len() >= count).await;
    }

    fn sidecar(&self, builder: RunBuilder) -> RunBuilder {
        let words = self.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        builder.below(&words).with(&["--end-app"])
    }
}

fn tag() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Sends TERM to the sidecar itself, not to who waits for it outside.
async fn stops(mut run: Run) {
    for pid in children_of(run.wrapper()) {
        signal(pid, Signal::TERM);
    }
    run.exits(BUSY).await.assert(0, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_app_is_ended_before_the_lease_can_be_taken_and_who_was_there_before_lives_on() {
    let bench = Bench::new().await;
    bench.opened("a", 5).await;
    let proxy = Proxy::new(&bench).await;
    let mut shared = Shared::new().await;
    let earlier = shared.start("while :; do sleep 1; done");
    shared.until_living(earlier, 2).await;
    let pod = Pod::new(&bench);
    let sidecar = pod
        .sidecar(&bench, "a")
        .env("KUBECONFIG", proxy.kubeconfig());
    let sidecar = shared.sidecar(sidecar).start();
    pod.until_held().await;
    let app = shared.start(STUBBORN);
    shared.until_living(app, 4).await;
    let waiting = bench.library().await.lock("a").claimant("another").begin();
    bench.until_waiting(1).await;
    proxy.always("*", "*", Fault::Hang);
    proxy.swallow_open_connections();
    let mut waiting = waiting;
    let guard = waiting.outcome().await.unwrap();
    assert_eq!(shared.living(app), BTreeSet::new(), "{}", sidecar.stderr());
    assert!(!shared.living(earlier).is_empty());
    guard.release().await.unwrap();
    stops(sidecar).await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn once_the_app_has_ended_a_lock_that_was_held_for_long_enough_is_given_back() {
    let bench = Bench::new().await;
    let (_shared, sidecar) = given_back(&bench).await;
    stops(sidecar).await;
    bench.finish().await;
}

/// A lock that was revoked may be another's already: the app is not left alone until the lease would have ended.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_revoke_an_app_that_does_not_end_by_itself_is_killed_after_its_grace() {
    let bench = Bench::new().await;
    bench.opened("a", 300).await;
    let mut shared = Shared::new().await;
    let pod = Pod::new(&bench);
    let sidecar = pod.sidecar(&bench, "a").option("--kill-grace", "1s");
    let sidecar = shared.sidecar(sidecar).start();
    pod.until_held().await;
    let app = shared.start(STUBBORN);
    shared.until_living(app, 4).await;
    let emptied = json!({"spec": {"holderIdentity": ""}});
    bench.edit_lease("a", emptied).await;
    until("the app has ended", BUSY, async || {
        shared.living(app).is_empty()
    })
    .await;
    pod.until_not_held("(TakenOver)").await;
    stops(sidecar).await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_is_ended_though_nobody_reads_the_sidecars_words() {
    let bench = Bench::new().await;
    bench.opened("a", 300).await;
    let mut shared = Shared::new().await;
    let pod = Pod::new(&bench);
    let sidecar = pod.sidecar(&bench, "a").option("--kill-grace", "1s");
    let sidecar = shared.sidecar(sidecar).unread().start();
    pod.until_held().await;
    let app = shared.start(STUBBORN);
    shared.until_living(app, 4).await;
    let emptied = json!({"spec": {"holderIdentity": ""}});
    bench.edit_lease("a", emptied).await;
    until("the app has ended", BUSY, async || {
        shared.living(app).is_empty()
    })
    .await;
    stops(sidecar).await;
    bench.finish().await;
}

/// The kubelet starts an app again that was ended, and one whose image it was still pulling for the first time.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_started_after_the_loss_is_ended_too() {
    let bench = Bench::new().await;
    let (mut shared, sidecar) = given_back(&bench).await;
    for _ in 0..2 {
        let late = shared.start(STUBBORN);
        until("what was started has ended", BUSY, async || {
            shared.has_ended(late)
        })
        .await;
    }
    stops(sidecar).await;
    bench.finish().await;
}

/// Of a lock that was held for long enough: nothing of the app is left, as it was given back.
async fn given_back(bench: &Bench) -> (Shared, Run) {
    let spec = json!({
        "leaseDurationSeconds": 6, "maxHoldSeconds": 6, "onHolderLost": "Hold",
    });
    let lock = bench.lock_of(spec, "a").await;
    bench.make_lease(&lock, "").await;
    bench.open_status(&lock, 6).await;
    let mut shared = Shared::new().await;
    let pod = Pod::new(bench);
    let sidecar = shared.sidecar(pod.sidecar(bench, "a")).start();
    pod.until_held().await;
    let app = shared.start(STUBBORN);
    shared.until_living(app, 4).await;
    until("it is given back", BUSY, async || {
        bench.lease("a").await.is_free()
    })
    .await;
    assert_eq!(shared.living(app), BTreeSet::new());
    let ended = bench.lease("a").await.ended.expect("an end");
    assert_eq!(ended.kind, EndKind::Released);
    pod.until_not_held("(MaxHold)").await;
    (shared, sidecar)
}

/// TERM came though the app still runs: by hand, say. The lock is not free before the app has ended.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_by_hand_it_ends_what_is_left_of_the_app_before_it_gives_the_lock_back() {
    let bench = Bench::new().await;
    bench.opened("a", 30).await;
    let mut shared = Shared::new().await;
    let pod = Pod::new(&bench);
    let sidecar = shared.sidecar(pod.sidecar(&bench, "a")).start();
    pod.until_held().await;
    let app = shared.start(STUBBORN);
    shared.until_living(app, 4).await;
    stops(sidecar).await;
    assert_eq!(shared.living(app), BTreeSet::new());
    assert!(bench.lease("a").await.is_free());
    bench.finish().await;
}
