//! The wrapper's side: what the lock half calls, from tokio tasks.
//!
//! Behind the handle works one thread ([`super::keeper`]), so that a busy or stuck runtime can't delay a deadline.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use tokio::sync::{mpsc, oneshot};

use super::keeper::{Keeper, Request};
use super::tree::is_proc_ours;
use super::wire::{Channel, ToWrapper, VERSION};
use super::{ChildEnded, Deadlines, EndReason, GUARDIAN_ARG, StartSpec};
use crate::clock::BootInstant;

/// For a machine under heavy load; an unloaded one needs milliseconds.
const GUARDIAN_READY_WITHIN: Duration = Duration::from_secs(10);

/// How to start the guardian.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file that holds the guardian: this program itself, unless a test runs in another one.
    pub guardian_exe: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        // Not its path: that may hold another version by now.
        Self {
            guardian_exe: PathBuf::from("/proc/self/exe"),
        }
    }
}

/// Why there is no guardian.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The system refused something that is needed.
    #[error(
        "can't start the guardian process ({0}); `leasehold run` needs Linux with /proc mounted"
    )]
    Io(#[from] io::Error),
    /// `/proc` is that of another PID namespace, so descendants could not be found, nor told from others.
    #[error(
        "/proc shows the processes of another PID namespace: mount the own one (unshare --mount-proc)"
    )]
    ForeignProc,
    /// The guardian did not answer.
    #[error("the guardian process did not come up within {} s", GUARDIAN_READY_WITHIN.as_secs())]
    NoAnswer,
    /// The program's file was replaced between its start and the start of the guardian.
    #[error("the guardian process is of another version; start again")]
    OtherVersion,
}

/// Why the command was not started, as far as anybody knows.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// `soft` had passed.
    #[error("the deadline passed before the command could be started")]
    TooLate,
    /// The system refused, or the guardian was lost meanwhile.
    #[error("the command can't be started: {0}")]
    Refused(String),
    /// The supervisor has ended, or something was started before.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// Why the deadlines were not moved. The command is being ended, or will be at the old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtendError {
    /// A deadline had passed, so the end has begun.
    #[error("the deadline passed before it was moved")]
    TooLate,
    /// The guardian did not answer until `soft`.
    #[error("the guardian process did not answer in time")]
    NotAcknowledged,
    /// The command and the supervisor have ended.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// The supervisor has ended: after the end of the command there is nothing to do for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor has ended")]
pub struct Gone;

/// What happens to the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// TERM was sent; KILL follows after the grace or at `hard`. `None`: the command has ended by itself and left
    /// descendants behind.
    Ending(Option<EndReason>),
    /// Over, also if it never began. The last event.
    Ended(ChildEnded),
}

/// The events of one command. Ends after [`Event::Ended`].
#[derive(Debug)]
pub struct Events(mpsc::UnboundedReceiver<Event>);

impl Events {
    /// The next event; `None` after the last one. Safe to drop at any point.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

/// A guardian that waits for a command.
#[derive(Debug)]
pub struct Supervisor {
    handle: SupervisorHandle,
    events: Events,
}

impl Supervisor {
    /// Starts the guardian and waits until it is ready. To be called from the main thread, before the process has any
    /// other thread or runtime: this process becomes a subreaper, and what it forks later is not ours to signal.
    pub fn spawn(options: &Options) -> Result<Self, SpawnError> {
        if !is_proc_ours()? {
            return Err(SpawnError::ForeignProc);
        }
        set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
        let (ours, theirs) = UnixStream::pair()?;
        let guardian = Command::new(&options.guardian_exe)
            .arg0("leasehold")
            .arg(GUARDIAN_ARG)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        let guardian = Pid::from_child(&guardian);
        let mut channel = Channel::new(ours.into())?;
        if let Err(error) = await_hello(&mut channel) {
            // It may not have read our message, but it has no command yet.
            let _ = kill_process(guardian, Signal::KILL);
            let _ = rustix::process::waitpid(Some(guardian), rustix::process::WaitOptions::empty());
            return Err(error);
        }
        let wake = Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?,
        );
        let (requests, inbox) = std::sync::mpsc::channel();
        let (outbox, events) = mpsc::unbounded_channel();
        let keeper = Keeper::new(channel, guardian, Arc::clone(&wake), inbox, outbox)?;
        thread::Builder::new()
            .name("supervise".to_owned())
            .spawn(move || keeper.run())?;
        let handle = SupervisorHandle(Arc::new(Remote {
            requests: Some(requests),
            wake,
        }));
        Ok(Self {
            handle,
            events: Events(events),
        })
    }

    /// The two ends, to be used from different tasks. Dropping every handle ends the command.
    #[must_use]
    pub fn split(self) -> (SupervisorHandle, Events) {
        (self.handle, self.events)
    }
}

/// Drives the supervisor. When the last clone is dropped a running command is ended.
#[derive(Clone, Debug)]
pub struct SupervisorHandle(Arc<Remote>);

#[derive(Debug)]
struct Remote {
    requests: Option<Sender<Request>>,
    wake: Arc<OwnedFd>,
}

impl SupervisorHandle {
    /// Starts the command, once per supervisor; answers with its process id, which is also its group's. Its standard
    /// input is this process's. After an error nothing more is started, but a lost guardian may have got that far: what
    /// became of it is told by [`Event::Ended`], once every handle is dropped.
    pub async fn start(&self, spec: StartSpec) -> Result<i32, StartError> {
        let (reply, answer) = oneshot::channel();
        self.request(Request::Start {
            spec: Box::new(spec),
            reply,
        });
        answer.await.unwrap_or(Err(StartError::Gone(Gone)))
    }

    /// Moves the deadlines, later or sooner; answers once the guardian has taken them over, at the latest at the
    /// `soft` in force. Sooner ones are in force at once, later ones when this returns `Ok`. Dropping the future
    /// takes nothing back.
    pub async fn extend(&self, deadlines: Deadlines) -> Result<(), ExtendError> {
        let (reply, answer) = oneshot::channel();
        self.request(Request::Extend { deadlines, reply });
        answer.await.unwrap_or(Err(ExtendError::Gone(Gone)))
    }

    /// Sends a signal to the command's process group. Nothing happens if no command runs.
    pub fn forward(&self, signal: Signal) {
        self.request(Request::Forward(signal));
    }

    /// Ends everything: TERM now, KILL after `grace` or at `hard`. [`Event::Ended`] follows.
    pub fn end_now(&self, grace: Duration) {
        self.request(Request::End { grace });
    }

    fn request(&self, request: Request) {
        if let Some(requests) = &self.0.requests {
            // Refused only if the thread has ended; then the reply end is dropped, which says so.
            let _ = requests.send(request);
        }
        self.0.wake();
    }
}

impl Remote {
    fn wake(&self) {
        // Fails only if the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // First close, then wake, so that the thread sees the end.
        self.requests = None;
        self.wake();
    }
}

fn await_hello(socket: &mut Channel) -> Result<(), SpawnError> {
    let give_up = BootInstant::now() + GUARDIAN_READY_WITHIN;
    loop {
        socket.fill();
        match socket.next() {
            Some(ToWrapper::Hello { version: VERSION }) => return Ok(()),
            Some(_) => return Err(SpawnError::OtherVersion),
            None if socket.is_closed() => return Err(SpawnError::NoAnswer),
            None => {}
        }
        let left = give_up.saturating_duration_since(BootInstant::now());
        if left.is_zero() {
            return Err(SpawnError::NoAnswer);
        }
        let timeout = Timespec::try_from(left).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        // An interrupted or failed wait only makes the loop look again.
        let _ = poll(
            &mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)],
            Some(&timeout),
        );
    }
}
