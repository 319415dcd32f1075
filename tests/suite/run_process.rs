//! `leasehold run` as a real process: started, signalled, watched, and its tree found.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use leasehold::supervise::Signal;
use rustix::io::ioctl_fionbio;

use super::processes::{Family, signal};
use super::run_bench::{BUSY, until};

/// Defines `note WORD`, which adds a line to the journal.
const PRELUDE: &str = r#"note() { read -r up rest < /proc/uptime; echo "$1 $LEASEHOLD_HOLDER $LEASEHOLD_FENCING_TOKEN $up" >> "$JOURNAL"; }
"#;

/// Puts `$POD_TOKEN` where a Pod finds its token, in a mount namespace of our own, and becomes what follows.
const AS_IN_A_POD: &str = r#"mount -t tmpfs none /var/run && cd /var/run && mkdir -p secrets/kubernetes.io/serviceaccount &&
printf %s "$POD_TOKEN" > secrets/kubernetes.io/serviceaccount/token && cd "$OLDPWD" && exec "$@""#;

/// A `leasehold run`, not started yet.
pub struct RunBuilder {
    /// What it is started below.
    outer: Vec<OsString>,
    words: Vec<OsString>,
    command: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    folder: PathBuf,
    is_unread: bool,
}

impl RunBuilder {
    /// A run that leaves its words in this new folder.
    pub fn new(folder: PathBuf) -> Self {
        Self::of(folder, "run").command(&["true"])
    }

    /// Another subcommand, which runs no command.
    pub fn of(folder: PathBuf, subcommand: &str) -> Self {
        fs::create_dir(&folder).unwrap();
        Self {
            outer: vec![],
            words: vec![subcommand.into()],
            command: vec![],
            env: vec![],
            folder,
            is_unread: false,
        }
    }

    /// An option with its value.
    pub fn option(self, name: &str, value: &str) -> Self {
        self.with(&[name, value])
    }

    /// Words before the `--`.
    pub fn with(mut self, words: &[&str]) -> Self {
        self.words.extend(words.iter().map(OsString::from));
        self
    }

    /// The claimant's name.
    pub fn by(self, claimant: &str) -> Self {
        self.with(&["--as", claimant])
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// As in the Pod whose token this is.
    pub fn in_pod(self, token: &str) -> Self {
        let namespaces = if rustix::process::geteuid().is_root() {
            "-m"
        } else {
            "-Urm"
        };
        self.below(&["unshare", namespaces, "sh", "-c", AS_IN_A_POD, "sh"])
            .env("POD_TOKEN", token)
    }

    /// Started by another program, to which these words and then its own are given.
    pub fn below(mut self, outer: &[&str]) -> Self {
        self.outer = outer.iter().map(OsString::from).collect();
        self
    }

    /// Nobody reads its words, and the pipe that they go to is full.
    pub fn unread(mut self) -> Self {
        self.is_unread = true;
        self
    }

    pub fn command(mut self, words: &[&str]) -> Self {
        self.command = words.iter().map(OsString::from).collect();
        self
    }

    /// A shell script, in which `note WORD` adds a line to the journal.
    pub fn script(self, script: &str) -> Self {
        self.command(&["sh", "-c", &format!("{PRELUDE}{script}")])
    }

    /// A command that notes its start, works for so many seconds, and notes its end.
    pub fn works_for(self, seconds: &str) -> Self {
        self.script(&format!("note start; sleep {seconds}; note end"))
    }

    /// A command that notes its start, shows that it lives, and does not end by itself.
    pub fn works_on(self) -> Self {
        self.script(
            "trap 'note end; exit 143' TERM; note start; while :; do sleep 0.05; note beat; done",
        )
    }

    /// Starts it, in a process group of its own.
    pub fn start(self) -> Run {
        let file = |name: &str| fs::File::create(self.folder.join(name)).unwrap();
        let mut argv = self.outer;
        argv.push(env!("CARGO_BIN_EXE_leasehold").into());
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).args(&self.words);
        if !self.command.is_empty() {
            command.arg("--").args(&self.command);
        }
        command
            .envs(self.env)
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        let unread = self.is_unread.then(full_pipe);
        let unread = unread.map(|(reader, writer)| {
            command.stderr(writer);
            reader
        });
        let tag = self.folder.file_name().unwrap().to_str().unwrap();
        Run {
            family: Family::start(&mut command, tag),
            folder: self.folder,
            code: None,
            _unread: unread,
        }
    }

    /// Runs it to its end.
    pub async fn ends(self) -> Ended {
        self.start().ends(BUSY * 3).await
    }
}

fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'.'; 512]).is_ok() {}
    ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// It must have ended with `code`, and its words contain each of `words`.
    #[track_caller]
    pub fn assert(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {}", self.stderr);
        }
    }
}

/// A `leasehold run` that was started: wrapper, guardian, command.
pub struct Run {
    family: Family,
    folder: PathBuf,
    code: Option<i32>,
    /// Open, so that writers wait.
    _unread: Option<PipeReader>,
}

impl Run {
    pub fn wrapper(&self) -> i32 {
        self.family.first()
    }

    pub fn guardian(&self) -> i32 {
        self.family.guardian().expect("a guardian")
    }

    /// The command and its descendants, those alive.
    pub fn commands(&self) -> BTreeSet<i32> {
        self.family.commands(|pid| pid == self.wrapper())
    }

    /// Wrapper, guardian, command and all below, those alive.
    pub fn alive(&self) -> BTreeSet<i32> {
        self.family.all()
    }

    /// Sends the wrapper a signal.
    pub fn signal(&self, what: Signal) {
        signal(self.wrapper(), what);
    }

    /// Sends the wrapper's process group a signal.
    pub fn signal_group(&self, what: Signal) {
        self.family.signal_group(what);
    }

    /// Sends every process of the tree a signal.
    pub fn signal_tree(&self, what: Signal) {
        self.family.signal_all(what);
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(self.folder.join("stderr")).unwrap_or_default()
    }

    /// Waits until its words contain `words`.
    pub async fn says(&self, words: &str) {
        let what = format!("it says {words:?}");
        until(&what, BUSY, async || self.stderr().contains(words)).await;
    }

    /// Its exit code, if it has ended; 128 + n for a signal.
    pub fn code(&mut self) -> Option<i32> {
        if self.code.is_none() {
            let status = self.family.ended();
            self.code =
                status.map(|status| status.code().unwrap_or(128 + status.signal().unwrap_or(0)));
        }
        self.code
    }

    /// Waits for its end, after which nothing of its command may be alive.
    pub async fn ends(mut self, within: Duration) -> Ended {
        let ended = self.exits(within).await;
        assert_eq!(
            self.commands(),
            BTreeSet::new(),
            "alive after the end: {ended:?}"
        );
        ended
    }

    /// Waits for the end of the wrapper alone.
    pub async fn exits(&mut self, within: Duration) -> Ended {
        until("the run has ended", within, async || self.code().is_some()).await;
        Ended {
            code: self.code.unwrap(),
            stdout: fs::read_to_string(self.folder.join("stdout")).unwrap_or_default(),
            stderr: self.stderr(),
        }
    }
}
