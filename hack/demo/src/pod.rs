//! A process tree that stands for a Pod, and the little program at its root.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::UnboundedSender;

use crate::processes::{MARK, Which};
use crate::said::{Said, now};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The process that this one ends with.
    #[arg(long)]
    parent: i32,
    /// The command to become.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the command: in a session of its own, and bound to end with the driver.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    setsid().context("can't begin a session")?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(rustix::process::Pid::as_raw_pid) != Some(args.parent) {
        bail!("the driver is gone");
    }
    let error = std::process::Command::new(&args.command[0])
        .args(&args.command[1..])
        .exec();
    Err(error).with_context(|| format!("can't run {}", args.command[0].display()))
}

/// What comes out of a Pod.
#[derive(Debug)]
pub(crate) enum News {
    /// A line of its own.
    Said(Said),
    /// Its root ended.
    Exited {
        /// When, in microseconds of the wall clock.
        at: i64,
        /// How.
        how: Exit,
    },
    /// Of a Pod on a node: its object was deleted.
    Gone {
        /// When, in microseconds of the wall clock.
        at: i64,
    },
    /// Of a Pod on a node: the process that works has ended.
    WorkEnded {
        /// When, in microseconds of the wall clock.
        at: i64,
    },
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// As its kubelet tells it: the reason, and the code.
    Container(String, i32),
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}

/// What surrounds a tree.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    /// The mark in the environment of all its processes.
    pub(crate) mark: String,
    /// Where its words go.
    pub(crate) log: PathBuf,
    /// The control plane it uses.
    pub(crate) kubeconfig: PathBuf,
}

/// A running tree. It ends when this is dropped.
pub(crate) struct Pod {
    which: Which,
}

impl Pod {
    /// Starts `command` as the root of a tree; `news` gets what it says and how it ends, with its `index`.
    pub(crate) fn start(
        around: &Surroundings,
        command: &[OsString],
        index: usize,
        news: UnboundedSender<(usize, News)>,
    ) -> Result<Self> {
        let mut child = spawn(around, command, Stdio::piped())?;
        let stdout = child.stdout.take().context("no pipe from the Pod")?;
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(said) = serde_json::from_str(&line) {
                    let _ = news.send((index, News::Said(said)));
                }
            }
            if let Ok(status) = child.wait().await {
                let _ = news.send((
                    index,
                    News::Exited {
                        at: now(),
                        how: status.into(),
                    },
                ));
            }
        });
        Ok(Self {
            which: Which::Pod(around.mark.clone()),
        })
    }

    /// SIGSTOP for every process of the tree; returns how many.
    pub(crate) fn freeze(&self) -> usize {
        self.which.freeze()
    }

    /// SIGCONT for every process of the tree.
    pub(crate) fn thaw(&self) {
        self.which.thaw();
    }

    /// SIGKILL for every process of the tree; returns how many.
    pub(crate) fn kill(&self) -> usize {
        self.which.kill()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.which.kill();
    }
}

/// Starts a marked command that ends with this process. To be called on a thread that lives as long as the process:
/// the kernel binds the two by thread.
pub(crate) fn spawn(around: &Surroundings, command: &[OsString], stdout: Stdio) -> Result<Child> {
    let Surroundings {
        mark,
        log,
        kubeconfig,
    } = around;
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("can't open {}", log.display()))?;
    let this = std::env::current_exe().context("can't find this program")?;
    Command::new(this)
        .args(["pod", "--parent", &std::process::id().to_string(), "--"])
        .args(command)
        .env(MARK, mark)
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(log)
        .spawn()
        .context("can't start a Pod")
}
