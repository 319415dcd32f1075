//! Running a command that must be dead before a deadline, whoever is frozen or killed meanwhile.
//!
//! This is the half of `leasehold run` that knows processes and nothing of Kubernetes. Linux only.
//!
//! ```text
//! wrapper (leasehold run, subreaper)          keeps the lock, extends the deadlines
//!  └─ guardian (same file, own session, subreaper, single-threaded)
//!      └─ command (own process group, dies with the guardian)
//!          └─ whatever it starts
//! ```
//!
//! Wrapper and guardian share a socket. Both know the [`Deadlines`], two instants of `CLOCK_BOOTTIME`: at `soft`
//! everything is sent TERM, at `hard` KILL. The wrapper moves them ([`SupervisorHandle::extend`]) after each
//! renewal; the guardian acknowledges. Each half enforces the last acknowledged ones by itself; the sooner of two,
//! while an answer is out. Each reads the clock first whenever it wakes up, before it looks at any message.
//!
//! # Guaranteed
//!
//! The command and all its descendants, also those that call `setsid`, fork twice or ignore TERM, are sent KILL no
//! later than at `hard` when
//!
//! - the wrapper is frozen, or killed, or the whole process group of the wrapper is: the guardian acts. A killed
//!   wrapper closes the socket: TERM at once, KILL after the grace or at `hard`, whichever is sooner;
//! - the guardian is frozen: the wrapper sends TERM shortly after `soft`, KILL at `hard`, and ends the guardian;
//! - the guardian is killed: the command dies with it (`PR_SET_PDEATHSIG`), the wrapper adopts the rest and kills it;
//! - the machine slept past the deadline: the timers run on boot time and fire on waking up.
//!
//! Nothing is started after `soft`. [`ChildEnded::all_reaped`] is true only if the kernel says that no descendant is
//! left, so the lock may be given back; a process killed at `hard` needs some milliseconds to be gone, so `hard` is
//! to lie that much before the lease can be taken.
//!
//! # Not guaranteed
//!
//! - A machine that its hypervisor stops is frozen with its clock, which may not count that time: then both halves
//!   believe in what was left of the deadlines.
//! - Both halves frozen past `hard`, or the guardian frozen and the wrapper killed: nobody acts until one thaws. Only
//!   a gate protects then.
//! - The guardian killed and the wrapper, before it had time to act, killed or frozen: the command dies with the
//!   guardian, its descendants live on, until the wrapper thaws. In a container the wrapper as PID 1 takes all with it.
//! - A set-user-ID command: the kernel takes the binding to the guardian from it, and we may not signal another
//!   user's processes. What can't be killed is reported in [`ChildEnded::left`], and the lock must then expire.
//! - A process in uninterruptible sleep dies only when it wakes up; it is reported in the same way.
//! - Work handed to a process outside the tree (a container engine, `systemd-run`, `at`, another machine).
//!
//! # For those who change this
//!
//! - Invariant: the guardian never has a second thread. `PR_SET_PDEATHSIG` is bound to the thread that forks.
//! - Invariant: the guardian's end of the socket is its standard input, so no descriptor number is ever trusted; the
//!   command's standard input travels over the socket. The command inherits neither end.
//! - Invariant: the wrapper never waits for "any" child, which would steal the status from others in the process.
//! - Invariant: a process group is signalled only while its leader is not reaped, so the number can't be another's.
//! - Deliberately absent: cgroups and PID namespaces, which an unprivileged container may not make; a terminal of
//!   its own for the command (it can read the terminal it inherits, but `/dev/tty` does not open).

mod command;
mod guardian;
mod keeper;
mod neighbours;
mod plan;
mod signals;
mod timer;
mod tree;
mod watched;
mod wire;
mod wrapper;

use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use command::{ResolveError, resolve_command};
pub use neighbours::{Mark, Neighbours, NotShared};
pub use rustix::process::Signal;
use rustix::process::WaitStatus;
pub use signals::{Signals, exit_code_for_signal};
pub use wrapper::{
    Event, Events, ExtendError, Gone, Options, SpawnError, StartError, Supervisor, SupervisorHandle,
};

use crate::clock::BootInstant;

/// The shell's exit code for a command that was found but can't be run.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// The shell's exit code for a command that was not found.
pub const EXIT_NOT_FOUND: u8 = 127;

/// Hidden subcommand: the guardian.
const GUARDIAN_ARG: &str = "__guardian";
/// Hidden subcommand: the shim that becomes the command.
const EXEC_ARG: &str = "__exec";

/// Runs a hidden subcommand if this process was started as one. To be called first in `main`, before the command line
/// is parsed and before there is any runtime or thread.
#[must_use]
pub fn run_if_hidden() -> Option<ExitCode> {
    let mut args: VecDeque<OsString> = env::args_os().skip(1).collect();
    let first = args.pop_front()?;
    if first == GUARDIAN_ARG {
        Some(guardian::main())
    } else if first == EXEC_ARG {
        Some(command::exec_main(args.into_iter()))
    } else {
        None
    }
}

/// Until when the command may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    /// Everything is sent TERM, and nothing starts any more.
    pub soft: BootInstant,
    /// Everything is sent KILL.
    pub hard: BootInstant,
}

impl Deadlines {
    /// The sooner of both, each for itself.
    fn min(self, other: Self) -> Self {
        Self {
            soft: self.soft.min(other.soft),
            hard: self.hard.min(other.hard),
        }
    }

    /// A `soft` beyond `hard` would be a TERM after the KILL.
    fn ordered(self) -> Self {
        Self {
            soft: self.soft.min(self.hard),
            hard: self.hard,
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct StartSpec {
    /// The file, as [`resolve_command`] found it.
    pub program: PathBuf,
    /// What the command sees as its own name: what the user typed.
    pub argv0: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables to set on top of the wrapper's environment; these win.
    pub env: Vec<(OsString, OsString)>,
    /// Until when it may run, at first.
    pub deadlines: Deadlines,
    /// From TERM to KILL where no deadline is sooner: for what outlives the command, and after a loss of the wrapper.
    pub kill_grace: Duration,
}

/// Why the command was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// `soft` or `hard` passed.
    Deadline,
    /// The caller asked for it.
    Requested,
    /// The wrapper was killed, or let go of the supervisor.
    WrapperLost,
    /// The guardian was killed, or did not act at a deadline.
    GuardianLost,
}

/// How the command itself ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChildStatus {
    /// It exited with this code.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// The guardian was lost, and the status with it.
    Unknown,
    /// No process of it ever existed.
    NotStarted,
}

impl From<WaitStatus> for ChildStatus {
    fn from(status: WaitStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signaled(signal),
            (None, None) => Self::Unknown,
        }
    }
}

/// The end of the command and of everything below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildEnded {
    /// How the command itself ended.
    pub status: ChildStatus,
    /// Nothing of it is left. Unless this is true the lock must not be given back.
    pub all_reaped: bool,
    /// What could not be killed.
    pub left: Vec<i32>,
    /// Set if the command was still running when we began to end it.
    pub killed_for: Option<EndReason>,
}

impl ChildEnded {
    fn not_started() -> Self {
        Self {
            status: ChildStatus::NotStarted,
            all_reaped: true,
            left: Vec::new(),
            killed_for: None,
        }
    }

    /// The exit code to hand on: the command's own, or 128 + n for signal n.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.status {
            ChildStatus::Exited(code) => u8::try_from(code & 0xff).unwrap_or(1),
            ChildStatus::Signaled(signal) => exit_code_for_signal(signal),
            ChildStatus::Unknown => exit_code_for_signal(Signal::KILL.as_raw()),
            ChildStatus::NotStarted => EXIT_NOT_EXECUTABLE,
        }
    }
}
