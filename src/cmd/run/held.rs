//! The command under the lock: started, kept in step with the renewals, ended, and the lock given back.

use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use leasehold::client::{Guard, LossReason, Released};
use leasehold::supervise::{
    ChildEnded, Deadlines, EXIT_NOT_EXECUTABLE, EndReason, Event, Events, Signals, StartError,
    StartSpec, Supervisor, SupervisorHandle, exit_code_for_signal,
};

use super::{Args, End};
use crate::cmd::say;

/// A lock that is held, and the command that runs under it.
pub(super) struct Held<'a> {
    pub(super) args: &'a Args,
    /// Only [`Held::release`] gives it back. Dropped on any other way out, the lease would be free while the command
    /// may still run; so there it is left to end by itself.
    pub(super) guard: ManuallyDrop<Guard>,
    pub(super) signals: Signals,
}

impl Held<'_> {
    pub(super) async fn run(mut self, program: PathBuf, supervisor: Supervisor) -> End {
        let (handle, events) = supervisor.split();
        let lost_code = self.args.lost_exit_code;
        // A signal that raced with the grant starts nothing.
        while let Some(signal) = self.signals.recv().now_or_never() {
            if Signals::ends_waiting(signal) {
                return self
                    .release(exit_code_for_signal(signal.as_raw()), "Signal")
                    .await;
            }
        }
        let Some(deadlines) = self.guard.deadlines() else {
            let reason = self.guard.lost().await;
            return self.lost(reason);
        };
        let started = handle.start(self.spec(program, convert(deadlines))).await;
        match started {
            Ok(_) => self.supervise(handle, events).await,
            Err(error) => {
                say(&error.to_string());
                match error {
                    StartError::TooLate => self.release(lost_code, "Expired").await,
                    _ => self.release(EXIT_NOT_EXECUTABLE, "NotStarted").await,
                }
            }
        }
    }

    fn spec(&self, program: PathBuf, deadlines: Deadlines) -> StartSpec {
        let guard = &self.guard;
        let env = [
            ("LEASEHOLD_LOCK", guard.lock().to_owned()),
            ("LEASEHOLD_NAMESPACE", guard.namespace().to_owned()),
            ("LEASEHOLD_SLOT", guard.slot().to_string()),
            ("LEASEHOLD_HOLDER", guard.identity().to_owned()),
            ("LEASEHOLD_FENCING_TOKEN", guard.token().to_string()),
        ];
        let mut words = self.args.command.iter().cloned();
        StartSpec {
            program,
            argv0: words.next().unwrap_or_default(),
            args: words.collect(),
            env: env
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            deadlines,
            kill_grace: self.kill_grace(),
        }
    }

    fn kill_grace(&self) -> Duration {
        let of_lease = self
            .guard
            .deadlines()
            .map(|at| at.work.saturating_duration_since(at.renew));
        of_lease
            .filter(|grace| !grace.is_zero())
            .or(self.args.kill_grace)
            .unwrap_or(Duration::from_secs(1))
    }

    /// Until the command and everything below it have ended.
    async fn supervise(mut self, handle: SupervisorHandle, mut events: Events) -> End {
        let grace = self.kill_grace();
        let mut lost = None;
        let mut moving = FuturesUnordered::new();
        let ended = loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::Ended(ended)) => break Some(ended),
                    Some(Event::Ending(Some(EndReason::Deadline))) => {
                        say("no renewal was answered in time: ending the command");
                    }
                    Some(Event::Ending(_)) => {}
                    None => break None,
                },
                signal = self.signals.recv() => handle.forward(signal),
                () = self.guard.deadlines_changed(), if lost.is_none() => if let Some(deadlines) = self.guard.deadlines() {
                    let handle = handle.clone();
                    moving.push(async move { handle.extend(convert(deadlines)).await });
                } else {
                    let reason = self.guard.lost().await;
                    say(&format!("lost lock {:?} ({}): ending the command", self.guard.lock(), reason.as_str()));
                    lost = Some(reason);
                    handle.end_now(grace);
                },
                Some(_) = moving.next() => {}
            }
        };
        drop(moving);
        self.finish(ended, lost).await
    }

    async fn finish(self, ended: Option<ChildEnded>, lost: Option<LossReason>) -> End {
        let lost_code = self.args.lost_exit_code;
        let Some(ended) = ended else {
            say("the supervisor ended without a word on the command: the lock is left to expire");
            return End::new(self.args.lost_exit_code, "SupervisorLost");
        };
        if !ended.all_reaped {
            say(&format!(
                "processes {:?} could not be killed: lock {:?} is not released, its lease ends by itself",
                ended.left,
                self.guard.lock()
            ));
            return self.end(self.args.lost_exit_code, "Unkillable");
        }
        if let Some(reason) = lost {
            return self.lost(reason);
        }
        match ended.killed_for {
            Some(EndReason::Deadline) => self.release(lost_code, "Expired").await,
            Some(EndReason::GuardianLost) => {
                say("the guardian process was frozen or killed, and the command ended with it");
                self.release(lost_code, "GuardianLost").await
            }
            _ => self.release(ended.exit_code(), "Completed").await,
        }
    }

    fn end(&self, code: u8, reason: &str) -> End {
        let (token, holder) = (
            Some(self.guard.token().get()),
            Some(self.guard.identity().to_owned()),
        );
        End {
            code,
            reason: reason.to_owned(),
            token,
            holder,
        }
    }

    fn lost(&self, reason: LossReason) -> End {
        self.end(self.args.lost_exit_code, reason.as_str())
    }

    /// Gives the lock back; no signal cuts that short.
    async fn release(self, code: u8, reason: &str) -> End {
        let end = self.end(code, reason);
        let (lock, lost_code) = (self.guard.lock().to_owned(), self.args.lost_exit_code);
        match ManuallyDrop::into_inner(self.guard).release().await {
            Ok(Released::Confirmed) => end,
            Ok(Released::AlreadyLost(why)) => {
                say(&format!(
                    "lock {lock:?} had been lost before the command ended ({})",
                    why.as_str()
                ));
                End {
                    code: lost_code,
                    reason: why.as_str().to_owned(),
                    ..end
                }
            }
            Err(error) => {
                say(&format!("lock {lock:?}: {error}"));
                end
            }
        }
    }
}

fn convert(deadlines: leasehold::client::Deadlines) -> Deadlines {
    Deadlines {
        soft: deadlines.renew,
        hard: deadlines.work,
    }
}
