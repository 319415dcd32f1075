//! The wrapper's supervising thread: passes requests on to the guardian, and stands in for it.
//!
//! The guardian acts first; this thread gives it a moment at `soft`, none at `hard`. Once the guardian is gone, what
//! it was the parent of has become ours.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use tokio::sync::{mpsc, oneshot};

use super::guardian::KILL_GIVE_UP_AFTER;
use super::timer::BootTimer;
use super::tree::{
    Process, descendants, has_children, kill_all, living_below, reap, signal_all, snapshot,
};
use super::watched::{GUARDIAN_LATE_AFTER, Watched};
use super::wire::{Channel, ToGuardian, ToWrapper};
use super::wrapper::{Event, ExtendError, StartError};
use super::{ChildEnded, ChildStatus, Deadlines, EndReason, StartSpec};
use crate::clock::BootInstant;

/// So many walks that find nobody, `KILL_PASS_EVERY` apart, prove that nobody is left.
const SURE_AFTER_WALKS: u32 = 10;
/// Between two walks while killing.
const KILL_PASS_EVERY: Duration = Duration::from_millis(20);

/// What the handle asks for.
#[derive(Debug)]
pub(super) enum Request {
    Start {
        spec: Box<StartSpec>,
        reply: oneshot::Sender<Result<i32, StartError>>,
    },
    Extend {
        deadlines: Deadlines,
        reply: oneshot::Sender<Result<(), ExtendError>>,
    },
    Forward(Signal),
    End {
        grace: Duration,
    },
}

pub(super) struct Keeper {
    channel: Channel,
    guardian: Pid,
    wake: Arc<OwnedFd>,
    inbox: Receiver<Request>,
    outbox: mpsc::UnboundedSender<Event>,
    timer: BootTimer,
    child_ended: UnixStream,
    someone_ended: bool,
    /// All handles are gone.
    abandoned: bool,
    command: Option<Watched>,
}

impl Keeper {
    pub fn new(
        channel: Channel,
        guardian: Pid,
        wake: Arc<OwnedFd>,
        inbox: Receiver<Request>,
        outbox: mpsc::UnboundedSender<Event>,
    ) -> io::Result<Self> {
        let (child_ended, notify) = UnixStream::pair()?;
        child_ended.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, notify)?;
        let timer = BootTimer::new()?;
        Ok(Self {
            channel,
            guardian,
            wake,
            inbox,
            outbox,
            timer,
            child_ended,
            someone_ended: true,
            abandoned: false,
            command: None,
        })
    }

    /// Until the command has ended, or will never be started. Whatever makes this return, the closed socket tells
    /// the guardian.
    pub fn run(mut self) {
        loop {
            if let Some(ended) = self.do_what_is_due().or_else(|| self.listen()) {
                return self.finish(ended);
            }
            self.take_requests();
            if self.someone_ended {
                self.someone_ended = false;
                // As PID 1, or after a lost guardian, we are the parent of orphans too.
                for orphan in adopted(self.guardian) {
                    reap(orphan);
                }
            }
            if self.command.is_none() && (self.abandoned || self.channel.is_closed()) {
                return self.finish(ChildEnded::not_started());
            }
            if self.sleep().is_err() {
                // Without sleep there is no watching: the closed socket makes the guardian end the command.
                return;
            }
        }
    }

    /// The deadlines, on boot time, before anything else. Returns the end if we had to bring it about.
    fn do_what_is_due(&mut self) -> Option<ChildEnded> {
        let watched = self.command.as_mut()?;
        let now = BootInstant::now();
        let Deadlines { soft, hard } = watched.in_force();
        if now >= hard {
            let reason = *watched.ending.get_or_insert(EndReason::Deadline);
            watched.note_killed_for(reason);
            watched.next_pass = Some(now + KILL_PASS_EVERY);
            kill_all(self.guardian.as_raw_nonzero().get(), || {
                self.below_guardian()
            });
            if now >= hard + GUARDIAN_LATE_AFTER {
                // Its report may be in already, if it was us who were frozen.
                return Some(self.listen().unwrap_or_else(|| self.stand_in()));
            }
        } else if watched.term_at().is_some_and(|at| now >= at) {
            watched.termed = true;
            let reason = *watched.ending.get_or_insert(EndReason::Deadline);
            watched.note_killed_for(reason);
            let _ = self.outbox.send(Event::Ending(Some(reason)));
            let below = self.below_guardian();
            signal_all(&below, Signal::TERM);
            signal_all(&below, Signal::CONT);
        }
        if now >= soft {
            self.command.as_mut()?.give_up_pending();
        }
        None
    }

    /// The guardian's messages; the end if it has reported it, or is gone.
    fn listen(&mut self) -> Option<ChildEnded> {
        self.channel.flush();
        self.channel.fill();
        while let Some(message) = self.channel.next() {
            let watched = self.command.as_mut()?;
            match message {
                ToWrapper::Hello { .. } => {}
                ToWrapper::Started { pid } => {
                    watched.pid = Pid::from_raw(pid);
                    if let Some(starting) = watched.starting.take() {
                        let _ = starting.send(Ok(pid));
                    }
                }
                ToWrapper::NotStarted { too_late, message } => {
                    let error = if too_late {
                        StartError::TooLate
                    } else {
                        StartError::Refused(message)
                    };
                    if let Some(starting) = watched.starting.take() {
                        let _ = starting.send(Err(error));
                    }
                    self.command = None;
                }
                ToWrapper::Extended { id, accepted } => watched.extended(id, accepted),
                ToWrapper::Ending { reason } => {
                    watched.guardian_ends = true;
                    watched.ending = watched.ending.or(reason);
                    let _ = self.outbox.send(Event::Ending(reason));
                }
                ToWrapper::Ended(ended) => {
                    // One that was frozen found the command ended, and can't know that it was by us.
                    return Some(ChildEnded {
                        killed_for: ended.killed_for.or(watched.killed_for),
                        ..ended
                    });
                }
            }
        }
        (self.channel.is_closed() && self.command.is_some()).then(|| self.stand_in())
    }

    fn take_requests(&mut self) {
        let mut counter = [0_u8; 8];
        // Only empties the counter; who comes later wakes us again.
        let _ = rustix::io::read(&self.wake, &mut counter);
        loop {
            match self.inbox.try_recv() {
                Ok(Request::Start { spec, reply }) => self.start(*spec, reply),
                Ok(Request::Extend { deadlines, reply }) => self.extend(deadlines, reply),
                Ok(Request::Forward(signal)) => {
                    self.tell(&ToGuardian::Forward {
                        signal: signal.as_raw(),
                    });
                }
                Ok(Request::End { grace }) => self.end(grace, EndReason::Requested),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    if !self.abandoned {
                        self.abandoned = true;
                        if let Some(grace) = self.command.as_ref().map(|watched| watched.kill_grace)
                        {
                            self.end(grace, EndReason::WrapperLost);
                        }
                    }
                    return;
                }
            }
        }
    }

    fn start(&mut self, spec: StartSpec, reply: oneshot::Sender<Result<i32, StartError>>) {
        if self.command.is_some() {
            let _ = reply.send(Err(StartError::Refused(
                "one was started before".to_owned(),
            )));
            return;
        }
        if BootInstant::now() >= spec.deadlines.ordered().soft {
            let _ = reply.send(Err(StartError::TooLate));
            return;
        }
        let mut watched = Watched::new(spec.deadlines.ordered(), spec.kill_grace);
        let sent = io::stdin().as_fd().try_clone_to_owned().and_then(|stdin| {
            self.channel
                .send_with_fd(&ToGuardian::Start(Box::new(spec.into())), stdin)
        });
        match sent {
            Ok(()) => {
                watched.starting = Some(reply);
                self.command = Some(watched);
            }
            Err(error) => {
                let _ = reply.send(Err(StartError::Refused(error.to_string())));
            }
        }
    }

    fn extend(&mut self, deadlines: Deadlines, reply: oneshot::Sender<Result<(), ExtendError>>) {
        let Some(watched) = &mut self.command else {
            let _ = reply.send(Err(ExtendError::TooLate));
            return;
        };
        if BootInstant::now() >= watched.in_force().soft {
            let _ = reply.send(Err(ExtendError::TooLate));
            return;
        }
        let deadlines = deadlines.ordered();
        let id = watched.asked_to_extend(deadlines, reply);
        self.tell(&ToGuardian::Extend { id, deadlines });
    }

    fn end(&mut self, grace: Duration, reason: EndReason) {
        let Some(watched) = &mut self.command else {
            return;
        };
        watched.asked_to_end(BootInstant::now(), grace, reason);
        self.tell(&ToGuardian::End { grace });
    }

    fn sleep(&mut self) -> io::Result<()> {
        self.timer
            .set(self.command.as_ref().map(Watched::next_wake))?;
        let interest = if self.channel.wants_to_write() {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        let mut fds = [
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&self.child_ended, PollFlags::IN),
            PollFd::new(&self.channel, interest),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut buffer = [0_u8; 64];
        while matches!(rustix::io::read(&self.child_ended, &mut buffer), Ok(count) if count > 0) {
            self.someone_ended = true;
        }
        Ok(())
    }

    /// Kills everything without the guardian, it included, and tells how it ended.
    fn stand_in(&mut self) -> ChildEnded {
        let give_up = BootInstant::now() + KILL_GIVE_UP_AFTER;
        let main = self.command.as_ref().and_then(|watched| watched.pid);
        let known = self.command.as_ref().and_then(|watched| watched.ending);
        let reason = known.unwrap_or(EndReason::GuardianLost);
        if known.is_none() {
            let _ = self.outbox.send(Event::Ending(Some(reason)));
        }
        // It may be frozen; KILL ends it all the same. From then on its children are ours.
        let _ = kill_process(self.guardian, Signal::KILL);
        let mut guardian_reaped = false;
        let mut empty_walks = 0;
        let mut status = ChildStatus::Unknown;
        loop {
            guardian_reaped = guardian_reaped || is_reaped(self.guardian);
            // Nobody of another session can be in our group.
            kill_all(0, || commands_below(own_pid()));
            for orphan in adopted(self.guardian) {
                if let (Some(ended), true) = (reap(orphan), Pid::from_raw(orphan) == main) {
                    status = ChildStatus::from(ended);
                }
            }
            let left = commands_below(own_pid());
            empty_walks = if guardian_reaped && left.is_empty() {
                empty_walks + 1
            } else {
                0
            };
            // A walk can miss who forks and exits; the kernel misses nobody. But it also counts children that other
            // parts of this process have started, and then several walks must do.
            let all_reaped =
                empty_walks > 0 && (!has_children() || empty_walks >= SURE_AFTER_WALKS);
            if all_reaped || BootInstant::now() >= give_up {
                let left = left.iter().map(|process| process.pid).collect();
                return ChildEnded {
                    status,
                    all_reaped,
                    left,
                    killed_for: Some(reason),
                };
            }
            self.pause();
        }
    }

    /// Until a child ends, or for one pass.
    fn pause(&self) {
        let _ = self.timer.set(Some(BootInstant::now() + KILL_PASS_EVERY));
        let mut fds = [
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.child_ended, PollFlags::IN),
        ];
        let _ = poll(&mut fds, None);
        let mut buffer = [0_u8; 64];
        while matches!(rustix::io::read(&self.child_ended, &mut buffer), Ok(count) if count > 0) {}
    }

    fn below_guardian(&self) -> Vec<Process> {
        living_below(self.guardian.as_raw_nonzero().get())
    }

    fn finish(mut self, ended: ChildEnded) {
        if !is_reaped(self.guardian) {
            let _ = kill_process(self.guardian, Signal::KILL);
            // If something could not be killed, it may be the guardian itself: the word must not wait for that.
            while ended.all_reaped
                && matches!(
                    waitpid(Some(self.guardian), WaitOptions::empty()),
                    Err(Errno::INTR)
                )
            {}
        }
        let _ = self.outbox.send(Event::Ended(ended));
        if let Some(starting) = self.command.as_mut().and_then(|it| it.starting.take()) {
            let _ = starting.send(Err(StartError::Refused(
                "the guardian process was lost".to_owned(),
            )));
        }
    }

    fn tell(&mut self, message: &ToGuardian) {
        // These messages are small and always serialise; a guardian that is gone is noticed by its closed socket.
        let _ = self.channel.send(message);
    }
}

/// Whether this child of ours is gone, its status collected now or before.
fn is_reaped(child: Pid) -> bool {
    matches!(
        waitpid(Some(child), WaitOptions::NOHANG),
        Ok(Some(_)) | Err(Errno::CHILD)
    )
}

/// What descends from the guardian. It leads a session of its own and nobody can join another session, so whoever
/// shares ours was started by other parts of this process (a credential plugin) and is left alone.
fn of_other_session() -> impl Fn(&Process) -> bool {
    // Not `getsid`: in a PID namespace whose PID 1 we are, it may be 0, which rustix does not expect.
    let own = Process::read(own_pid()).map_or(0, |process| process.session);
    move |process| process.session != own
}

/// The guardian and everything of the command, wherever it hangs below `root`; zombies included.
fn commands_below(root: i32) -> Vec<Process> {
    let is_ours = of_other_session();
    let mut found = descendants(&snapshot(), root);
    found.retain(is_ours);
    found
}

/// The zombies that we are to reap: children of ours that we have not started.
fn adopted(guardian: Pid) -> Vec<i32> {
    let (own, guardian, is_ours) = (
        own_pid(),
        guardian.as_raw_nonzero().get(),
        of_other_session(),
    );
    snapshot()
        .into_iter()
        .filter(|process| {
            process.parent == own && process.zombie && process.pid != guardian && is_ours(process)
        })
        .map(|process| process.pid)
        .collect()
}

fn own_pid() -> i32 {
    getpid().as_raw_nonzero().get()
}
