//! The guardian: a small synchronous process that owns the command and its deadlines.
//!
//! One loop: sleep until something happens; read the clock and do what is due, before anything else; then listen to
//! the wrapper, collect the dead, and see whether all is over.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, setsid, wait,
};
use rustix::thread::set_name;
use signal_hook::consts::signal as number;

use super::plan::{Due, Plan};
use super::timer::BootTimer;
use super::tree::{Process, has_children, kill_all, living_below, signal_all};
use super::wire::{Channel, StartFrame, ToGuardian, ToWrapper, VERSION};
use super::{ChildEnded, ChildStatus, EXEC_ARG, EndReason, signals};
use crate::clock::BootInstant;

/// Between two walks while killing: who forked during the last one is found by the next.
const KILL_PASS_EVERY: Duration = Duration::from_millis(20);
/// After so long what is left is in uninterruptible sleep or another user's; go on without it, saying so.
pub(super) const KILL_GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// Runs the guardian on the socket that is its standard input.
pub(super) fn main() -> ExitCode {
    match Guardian::set_up().and_then(Guardian::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasehold: the guardian failed: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Guardian {
    channel: Channel,
    timer: BootTimer,
    child_ended: UnixStream,
    command: Option<Running>,
}

/// The command, from its start until everything is over.
struct Running {
    main: Pid,
    plan: Plan,
    kill_grace: Duration,
    /// Set when the command itself is reaped; its group is not signalled from then on.
    status: Option<ChildStatus>,
    killed_for: Option<EndReason>,
    give_up_at: Option<BootInstant>,
}

impl Guardian {
    fn set_up() -> io::Result<Self> {
        // Away from the wrapper's session and group: neither Ctrl-C nor a KILL of that group reaches us.
        setsid()?;
        // `ps` would show "exe". Without "leasehold", `pkill -9 leasehold` ends only one half.
        set_name(c"lock-guardian")?;
        set_child_subreaper(Some(getpid()))?;
        survive_signals()?;
        let (child_ended, wake) = UnixStream::pair()?;
        child_ended.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(number::SIGCHLD, wake)?;
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        let mut channel = Channel::new(socket)
            .map_err(|_| io::Error::other("__guardian is internal to `leasehold run`"))?;
        channel.send(&ToWrapper::Hello { version: VERSION })?;
        Ok(Self {
            channel,
            timer: BootTimer::new()?,
            child_ended,
            command: None,
        })
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            self.do_what_is_due();
            self.listen();
            self.collect();
            self.do_what_is_due();
            if self.is_over() {
                return self.say_goodbye();
            }
            self.sleep()?;
        }
    }

    fn do_what_is_due(&mut self) {
        let Some(running) = &mut self.command else {
            return;
        };
        let now = BootInstant::now();
        match running.plan.due(now) {
            Due::Term => {
                running.begin_end();
                tell_ending(&mut self.channel, running);
            }
            Due::Kill => {
                running.note_reason();
                running.give_up_at = Some(now + KILL_GIVE_UP_AFTER);
            }
            Due::Nothing => {}
        }
        if running.plan.is_killing() {
            running.kill_everything();
        }
    }

    fn listen(&mut self) {
        self.channel.flush();
        self.channel.fill();
        while let Some(message) = self.channel.next() {
            match (message, &mut self.command) {
                (ToGuardian::Start(frame), None) => self.start(&frame),
                (ToGuardian::Extend { id, deadlines }, running) => {
                    let accepted = running
                        .as_mut()
                        .is_some_and(|running| running.plan.extend(BootInstant::now(), deadlines));
                    self.tell(&ToWrapper::Extended { id, accepted });
                }
                (ToGuardian::Forward { signal }, Some(running)) => running.forward(signal),
                (ToGuardian::End { grace }, Some(running)) => {
                    let kill_at = BootInstant::now() + grace;
                    if running.plan.end(Some(EndReason::Requested), kill_at) {
                        running.begin_end();
                        tell_ending(&mut self.channel, running);
                    }
                }
                (ToGuardian::Start(_), Some(_))
                | (ToGuardian::Forward { .. } | ToGuardian::End { .. }, None) => {}
            }
        }
        if let (true, Some(running)) = (self.channel.is_closed(), &mut self.command) {
            let kill_at = BootInstant::now() + running.kill_grace;
            if running.plan.end(Some(EndReason::WrapperLost), kill_at) {
                running.begin_end();
            }
        }
    }

    fn start(&mut self, frame: &StartFrame) {
        let too_late = BootInstant::now() >= frame.deadlines.ordered().soft;
        let started = match self.channel.take_fd() {
            _ if too_late => Err(io::Error::other("the deadline has passed")),
            Some(stdin) => spawn_shim(frame, stdin),
            None => Err(io::Error::other("its standard input got lost")),
        };
        match started {
            Ok(main) => {
                self.command = Some(Running {
                    main,
                    plan: Plan::new(frame.deadlines),
                    kill_grace: frame.kill_grace,
                    status: None,
                    killed_for: None,
                    give_up_at: None,
                });
                self.tell(&ToWrapper::Started {
                    pid: main.as_raw_nonzero().get(),
                });
            }
            Err(error) => {
                self.tell(&ToWrapper::NotStarted {
                    too_late,
                    message: error.to_string(),
                });
            }
        }
    }

    /// Reaps whoever ended. As a subreaper we are the parent of every orphan below us.
    fn collect(&mut self) {
        let mut buffer = [0_u8; 64];
        while matches!(rustix::io::read(&self.child_ended, &mut buffer), Ok(count) if count > 0) {}
        let Some(running) = &mut self.command else {
            return;
        };
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == running.main => {
                    running.status = Some(status.into());
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        // The command has ended by itself: what it left behind goes too.
        if running.status.is_some()
            && has_children()
            && running
                .plan
                .end(None, BootInstant::now() + running.kill_grace)
        {
            running.begin_end();
            tell_ending(&mut self.channel, running);
        }
    }

    fn is_over(&self) -> bool {
        match &self.command {
            None => self.channel.is_closed(),
            Some(running) => {
                (running.status.is_some() && !has_children())
                    || running
                        .give_up_at
                        .is_some_and(|at| BootInstant::now() >= at)
            }
        }
    }

    /// Reports how it ended, to whoever is still there.
    fn say_goodbye(mut self) -> io::Result<()> {
        let Some(running) = self.command.take() else {
            return Ok(());
        };
        let all_reaped = !has_children();
        let left = if all_reaped {
            Vec::new()
        } else {
            living_below(own_pid())
                .iter()
                .map(|process| process.pid)
                .collect()
        };
        self.tell(&ToWrapper::Ended(ChildEnded {
            status: running.status.unwrap_or(ChildStatus::Unknown),
            all_reaped,
            left,
            killed_for: running.killed_for,
        }));
        // A frozen wrapper reads this when it thaws: what the socket has taken stays readable.
        while self.channel.wants_to_write() && !self.channel.is_closed() {
            self.timer.set(None)?;
            self.sleep_on_channel_only()?;
            self.channel.fill();
            self.channel.flush();
        }
        Ok(())
    }

    fn sleep(&mut self) -> io::Result<()> {
        let wake = self.command.as_ref().map(|running| {
            if running.plan.is_killing() {
                BootInstant::now() + KILL_PASS_EVERY
            } else {
                running.plan.next_wake()
            }
        });
        self.timer.set(wake)?;
        if self.channel.is_closed() {
            // A closed socket would be ready for ever.
            let fds = [
                PollFd::new(&self.timer, PollFlags::IN),
                PollFd::new(&self.child_ended, PollFlags::IN),
            ];
            return sleep_on(fds);
        }
        sleep_on([
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.child_ended, PollFlags::IN),
            PollFd::new(&self.channel, interest(&self.channel)),
        ])
    }

    fn sleep_on_channel_only(&self) -> io::Result<()> {
        sleep_on([PollFd::new(&self.channel, interest(&self.channel))])
    }

    fn tell(&mut self, message: &ToWrapper) {
        tell(&mut self.channel, message);
    }
}

impl Running {
    /// TERM to all, and CONT, for a stopped process can't act on the TERM.
    fn begin_end(&mut self) {
        self.note_reason();
        self.signal_everything(Signal::TERM);
        self.signal_everything(Signal::CONT);
    }

    fn note_reason(&mut self) {
        // It may have ended by itself just now, not yet reaped.
        let runs = self.status.is_none() && Process::runs(self.main);
        if runs && self.killed_for.is_none() {
            self.killed_for = self.plan.reason();
        }
    }

    /// The group first, in one stroke, then whoever is outside of it.
    fn signal_everything(&self, signal: Signal) {
        self.signal_group(signal);
        let group = self
            .status
            .is_none()
            .then_some(self.main.as_raw_nonzero().get());
        let mut outside = living_below(own_pid());
        outside.retain(|process| Some(process.group) != group);
        signal_all(&outside, signal);
    }

    fn kill_everything(&self) {
        self.signal_group(Signal::KILL);
        kill_all(own_pid(), || living_below(own_pid()));
    }

    /// Once the command is reaped, the number of its group may be another's.
    fn signal_group(&self, signal: Signal) {
        if self.status.is_none() {
            // Refused only if the group has just ended, or every member is another user's.
            let _ = kill_process_group(self.main, signal);
        }
    }

    fn forward(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.signal_group(signal);
        }
    }
}

fn tell(channel: &mut Channel, message: &ToWrapper) {
    // Our messages are small and always serialise; a wrapper that is gone is noticed by its closed socket.
    let _ = channel.send(message);
}

fn tell_ending(channel: &mut Channel, running: &Running) {
    tell(
        channel,
        &ToWrapper::Ending {
            reason: running.killed_for,
        },
    );
}

fn interest(channel: &Channel) -> PollFlags {
    if channel.wants_to_write() {
        PollFlags::IN | PollFlags::OUT
    } else {
        PollFlags::IN
    }
}

fn sleep_on<const N: usize>(mut fds: [PollFd<'_>; N]) -> io::Result<()> {
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn own_pid() -> i32 {
    getpid().as_raw_nonzero().get()
}

/// The guardian outlives every signal that a supervisor of the whole tree may send to each process in it: the
/// wrapper is told too and decides. Handlers, not "ignore", which the command would inherit.
fn survive_signals() -> io::Result<()> {
    let ignored = signals::ignored_at_start();
    for signal in [
        number::SIGTERM,
        number::SIGINT,
        number::SIGHUP,
        number::SIGQUIT,
        number::SIGUSR1,
        number::SIGUSR2,
        number::SIGALRM,
        number::SIGTSTP,
        number::SIGTTIN,
        number::SIGTTOU,
    ] {
        if !ignored.contains(signal) {
            signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
        }
    }
    Ok(())
}

/// Starts the shim that becomes the command, in a process group of its own.
fn spawn_shim(frame: &StartFrame, stdin: OwnedFd) -> io::Result<Pid> {
    let child = Command::new("/proc/self/exe")
        .arg0("leasehold")
        .arg(EXEC_ARG)
        .arg(own_pid().to_string())
        .arg(&frame.program)
        .arg(&frame.argv0)
        .args(&frame.args)
        .envs(frame.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(stdin))
        .process_group(0)
        .spawn()?;
    Ok(Pid::from_child(&child))
}
