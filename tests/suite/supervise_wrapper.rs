//! A wrapper without Kubernetes, and the means to watch what becomes of its command.
//!
//! The wrapper is this test binary started again: the guardian must come from the real program, but what drives it
//! needs no lock here, only deadlines that move or do not.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use leasehold::clock::BootInstant;
use leasehold::supervise::{
    ChildEnded, Deadlines, Event, Events, Options, Signal, Signals, StartSpec, Supervisor,
    SupervisorHandle, resolve_command,
};
use serde::{Deserialize, Serialize};

use crate::processes::{Family, has_argument};

/// The file that holds a [`Setup`]; its presence turns [`wrapper_process`] into a wrapper.
const SETUP: &str = "LEASEHOLD_TEST_WRAPPER";
/// The test that becomes a wrapper.
const WRAPPER: &str = "supervise_wrapper::wrapper_process";
/// What a busy machine may need to run a process that is due, and the kernel to end one.
pub const SLACK: Duration = Duration::from_secs(3);

/// The wrapper's exit code if nothing was started.
pub const NOT_STARTED: i32 = 76;

/// What the wrapper does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub command: Vec<String>,
    /// From each renewal to TERM.
    pub soft: Duration,
    /// From each renewal to KILL.
    pub hard: Duration,
    pub kill_grace: Duration,
    /// Renews this often; `None` never.
    pub renew_every: Option<Duration>,
    /// Ends the command on TERM, INT, HUP and QUIT instead of only handing them on.
    pub end_on_signal: bool,
    /// Asks for the end after this long.
    pub end_after: Option<Duration>,
    /// Is ready once the guardian is, and starts the command when [`Tree::go`] says so.
    pub held_back: bool,
    /// Filled in by [`Setup::start`].
    pub report: PathBuf,
}

impl Setup {
    /// Renewed until the command ends.
    pub fn new(command: &[&str]) -> Self {
        Self {
            command: command.iter().map(ToString::to_string).collect(),
            soft: Duration::from_secs(20),
            hard: Duration::from_secs(30),
            kill_grace: Duration::from_secs(10),
            renew_every: Some(Duration::from_millis(50)),
            end_on_signal: false,
            end_after: None,
            held_back: false,
            report: PathBuf::new(),
        }
    }

    /// Runs a script, which finds the path to touch when it is ready in `$READY`.
    pub fn script(script: &str) -> Self {
        Self::new(&["sh", "-c", script])
    }

    pub fn deadlines(mut self, soft_ms: u64, hard_ms: u64) -> Self {
        self.soft = Duration::from_millis(soft_ms);
        self.hard = Duration::from_millis(hard_ms);
        self
    }

    pub fn kill_grace(mut self, kill_grace: Duration) -> Self {
        self.kill_grace = kill_grace;
        self
    }

    /// Starts the wrapper, in a process group of its own.
    pub fn start(self) -> Tree {
        self.start_below(&[])
    }

    /// Starts the wrapper below another program.
    pub fn start_below(mut self, outer: &[&str]) -> Tree {
        let folder = Folder::new();
        self.report = folder.path().join("report");
        let setup = folder.path().join("setup");
        fs::write(&setup, serde_json::to_vec(&self).unwrap()).unwrap();
        let this = std::env::current_exe().unwrap();
        let mut argv: Vec<OsString> = outer.iter().map(OsString::from).collect();
        argv.push(this.into());
        let mut command = Command::new(&argv[0]);
        command
            .args(&argv[1..])
            .args(["--exact", WRAPPER, "--nocapture"])
            .env(SETUP, &setup)
            .env("READY", folder.path().join("ready"))
            .stdout(Stdio::null());
        let tag = folder.path().file_name().unwrap().to_str().unwrap();
        Tree {
            family: Family::start(&mut command, tag),
            below_another: !outer.is_empty(),
            folder,
            setup: self,
        }
    }
}

/// A folder that goes with its owner.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let name = format!("leasehold-supervise-{:016x}", rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A wrapper and everything below it.
pub struct Tree {
    family: Family,
    below_another: bool,
    folder: Folder,
    setup: Setup,
}

impl Tree {
    /// Waits until the command has said that it is ready.
    pub fn ready(self) -> Self {
        until("the script is ready", SLACK * 3, || {
            self.folder.path().join("ready").exists()
        });
        self
    }

    /// Lets a wrapper go on that was held back.
    pub fn go(&self) {
        fs::write(self.folder.path().join("go"), "").unwrap();
    }

    pub fn wrapper(&self) -> i32 {
        let first = self.family.first();
        if !self.below_another {
            return first;
        }
        self.family
            .all()
            .into_iter()
            .find(|&pid| pid != first && has_argument(pid, WRAPPER))
            .expect("the wrapper runs")
    }

    pub fn guardian(&self) -> Option<i32> {
        self.family.guardian()
    }

    /// The command and its descendants, those alive.
    pub fn commands(&self) -> BTreeSet<i32> {
        self.family.commands(|pid| has_argument(pid, WRAPPER))
    }

    pub fn signal_group(&self, signal: Signal) {
        self.family.signal_group(signal);
    }

    /// Waits until nothing of the command is alive.
    pub fn commands_end_within(&self, within: Duration) {
        self.gone_within(within, || self.commands().is_empty());
    }

    /// Waits until wrapper and guardian have ended as well.
    pub fn all_end_within(&self, within: Duration) {
        self.gone_within(within, || self.family.all().is_empty());
    }

    fn gone_within(&self, within: Duration, gone: impl Fn() -> bool) {
        let give_up = BootInstant::now() + within;
        while !gone() {
            assert!(
                BootInstant::now() < give_up,
                "alive after {within:?}:\n{}",
                self.family.describe()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end of the wrapper (or of the program around it).
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        let mut status = None;
        until("the wrapper has ended", within, || {
            status = self.family.ended();
            status.is_some()
        });
        status.unwrap()
    }

    /// Waits for the end of all, which must have left nothing behind; what the wrapper reported.
    pub fn finish(mut self, within: Duration) -> (ExitStatus, ChildEnded) {
        let status = self.wait(within);
        assert_eq!(
            self.commands(),
            BTreeSet::new(),
            "alive after the end was reported"
        );
        let report = fs::read(self.folder.path().join("report")).expect("the wrapper reports");
        (status, serde_json::from_slice(&report).unwrap())
    }

    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Waits until something is true; fails if it is not in time.
pub fn until(what: &str, within: Duration, mut done: impl FnMut() -> bool) {
    let give_up = BootInstant::now() + within;
    while !done() {
        assert!(
            BootInstant::now() < give_up,
            "not within {within:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Does nothing as a test; as a wrapper it exits by the command's code.
#[test]
fn wrapper_process() {
    if let Some(setup) = std::env::var_os(SETUP) {
        let setup = serde_json::from_slice(&fs::read(setup).unwrap()).unwrap();
        std::process::exit(run_wrapper(&setup));
    }
}

fn run_wrapper(setup: &Setup) -> i32 {
    let path = std::env::var_os("PATH");
    let program = match resolve_command(setup.command[0].as_ref(), path.as_deref()) {
        Ok(program) => program,
        Err(error) => {
            eprintln!("{error}");
            return error.exit_code().into();
        }
    };
    let guardian_exe = PathBuf::from(env!("CARGO_BIN_EXE_leasehold"));
    let supervisor = Supervisor::spawn(&Options { guardian_exe }).unwrap();
    if setup.held_back {
        fs::write(std::env::var_os("READY").unwrap(), "").unwrap();
        let go = setup.report.with_file_name("go");
        until("it is let go", SLACK * 10, || go.exists());
    }
    let spec = StartSpec {
        program,
        argv0: OsString::from(&setup.command[0]),
        args: setup.command[1..].iter().map(OsString::from).collect(),
        env: vec![("GIVEN_BY_WRAPPER".into(), "yes".into())],
        deadlines: deadlines(setup),
        kill_grace: setup.kill_grace,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (handle, events) = supervisor.split();
    let (code, ended) = runtime.block_on(drive(setup, spec, handle, events));
    let temporary = setup.report.with_extension("new");
    let mut file = fs::File::create(&temporary).unwrap();
    file.write_all(&serde_json::to_vec(&ended).unwrap())
        .unwrap();
    fs::rename(temporary, &setup.report).unwrap();
    code
}

/// The exit code, and how it ended.
async fn drive(
    setup: &Setup,
    spec: StartSpec,
    handle: SupervisorHandle,
    mut events: Events,
) -> (i32, ChildEnded) {
    let mut signals = Signals::install().unwrap();
    if let Err(error) = handle.start(spec).await {
        eprintln!("{error}");
        drop(handle);
        loop {
            if let Event::Ended(ended) = events.next().await.expect("the events end with Ended") {
                return (NOT_STARTED, ended);
            }
        }
    }
    let mut renew = tokio::time::interval(setup.renew_every.unwrap_or(Duration::from_hours(1)));
    let end = tokio::time::sleep(setup.end_after.unwrap_or(Duration::from_hours(1)));
    tokio::pin!(end);
    let mut end_asked = false;
    let mut renewing = setup.renew_every.is_some();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Event::Ended(ended)) => return (ended.exit_code().into(), ended),
                Some(Event::Ending(_)) => {}
                None => panic!("the events end with Ended"),
            },
            heard = signals.recv() => {
                handle.forward(heard);
                if setup.end_on_signal && Signals::ends_waiting(heard) {
                    handle.end_now(setup.kill_grace);
                }
            }
            _ = renew.tick(), if renewing => renewing = handle.extend(deadlines(setup)).await.is_ok(),
            () = &mut end, if !end_asked => {
                end_asked = true;
                handle.end_now(setup.kill_grace);
            }
        }
    }
}

fn deadlines(setup: &Setup) -> Deadlines {
    let now = BootInstant::now();
    Deadlines {
        soft: now + setup.soft,
        hard: now + setup.hard,
    }
}
