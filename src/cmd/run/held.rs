//! The command under the lock: started, kept in step with the renewals, ended, and the lock given back.

use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use leasehold::client::{Guard, LossReason, Released};
use leasehold::clock::BootInstant;
use leasehold::supervise::{
    ChildEnded, ChildStatus, Deadlines, EndReason, Event, Events, Signals, StartError, StartSpec,
    Supervisor, SupervisorHandle, exit_code_for_signal,
};

use super::{Args, End};
use crate::cmd::say;

/// For the last word on a command that could not be started. The supervisor itself gives up on a process after 5 s.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(10);

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
            return self.end(self.args.lost_exit_code, reason.as_str());
        };
        match handle.start(self.spec(program, convert(deadlines))).await {
            Ok(_) => self.supervise(handle, events).await,
            Err(error) => self.not_started(&error, handle, events).await,
        }
    }

    /// A guardian that was lost may have started the command and not said so: here too the last word decides. The
    /// supervisor ends, with that word, once nobody holds its handle.
    async fn not_started(
        self,
        error: &StartError,
        handle: SupervisorHandle,
        mut events: Events,
    ) -> End {
        say(&error.to_string());
        drop(handle);
        let within = self.guard.deadlines().map_or(LAST_WORD_WITHIN, |at| {
            let left = at.work.saturating_duration_since(BootInstant::now());
            left.min(LAST_WORD_WITHIN)
        });
        let last_word = async {
            while let Some(event) = events.next().await {
                if let Event::Ended(ended) = event {
                    return Some(ended);
                }
            }
            None
        };
        let ended = tokio::time::timeout(within, last_word).await;
        let too_late = matches!(error, StartError::TooLate);
        self.finish(ended.ok().flatten(), None, too_late).await
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
        self.finish(ended, lost, false).await
    }

    async fn finish(
        self,
        ended: Option<ChildEnded>,
        lost: Option<LossReason>,
        too_late: bool,
    ) -> End {
        let verdict = judge(ended.as_ref(), lost, too_late, self.args.lost_exit_code);
        if let Some(words) = verdict.words {
            say(&words);
        }
        if verdict.release {
            self.release(verdict.code, verdict.reason).await
        } else {
            self.end(verdict.code, verdict.reason)
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

/// What the end of the command means for the lock and for this process.
struct Verdict {
    /// The lock is given back; else it is left to end by itself.
    release: bool,
    code: u8,
    reason: &'static str,
    words: Option<String>,
}

impl Verdict {
    fn new(release: bool, code: u8, reason: &'static str) -> Self {
        Self {
            release,
            code,
            reason,
            words: None,
        }
    }

    fn saying(self, words: impl Into<String>) -> Self {
        Self {
            words: Some(words.into()),
            ..self
        }
    }
}

/// The one place that decides whether the lock is given back: only if nothing of the command is known to be left.
fn judge(
    ended: Option<&ChildEnded>,
    lost: Option<LossReason>,
    too_late: bool,
    lost_code: u8,
) -> Verdict {
    let Some(ended) = ended else {
        return Verdict::new(false, lost_code, "SupervisorLost")
            .saying("no word came on what became of the command: the lock is left to expire");
    };
    if !ended.all_reaped {
        return Verdict::new(false, lost_code, "Unkillable").saying(format!(
            "processes {:?} could not be killed: the lock is not released, its lease ends by itself",
            ended.left
        ));
    }
    if let Some(reason) = lost {
        return Verdict::new(false, lost_code, reason.as_str());
    }
    match (ended.killed_for, ended.status) {
        (Some(EndReason::Deadline), _) => Verdict::new(true, lost_code, "Expired"),
        (Some(EndReason::GuardianLost), _) => Verdict::new(true, lost_code, "GuardianLost")
            .saying("the guardian process was frozen or killed, and the command ended with it"),
        (_, ChildStatus::NotStarted) if too_late => Verdict::new(true, lost_code, "Expired"),
        (_, ChildStatus::NotStarted) => Verdict::new(true, ended.exit_code(), "NotStarted"),
        _ => Verdict::new(true, ended.exit_code(), "Completed"),
    }
}

fn convert(deadlines: leasehold::client::Deadlines) -> Deadlines {
    Deadlines {
        soft: deadlines.renew,
        hard: deadlines.work,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: u8 = 76;

    fn ended(status: ChildStatus) -> ChildEnded {
        ChildEnded {
            status,
            all_reaped: true,
            left: vec![],
            killed_for: None,
        }
    }

    fn judged(ended: &ChildEnded, too_late: bool) -> (bool, u8, &'static str) {
        let verdict = judge(Some(ended), None, too_late, LOST);
        (verdict.release, verdict.code, verdict.reason)
    }

    /// However the command came to its end, and whether it was started: nothing else counts then.
    #[test]
    fn a_lock_is_not_given_back_while_something_lives_or_nobody_knows() {
        let exited = ended(ChildStatus::Exited(0));
        let not_started = ended(ChildStatus::NotStarted);
        let killed = ChildEnded {
            killed_for: Some(EndReason::GuardianLost),
            ..ended(ChildStatus::Unknown)
        };
        let revoked = Some(LossReason::Revoked);
        for (ended, lost, too_late) in [
            (&exited, None, false),
            (&exited, revoked, false),
            (&killed, None, false),
            (&not_started, None, false),
            (&not_started, None, true),
        ] {
            let alive = ChildEnded {
                all_reaped: false,
                left: vec![42],
                ..ended.clone()
            };
            let verdict = judge(Some(&alive), lost, too_late, LOST);
            let seen = (verdict.release, verdict.code, verdict.reason);
            assert_eq!(seen, (false, LOST, "Unkillable"), "{alive:?}");
            assert!(verdict.words.unwrap().contains("[42]"));
            assert!(!judge(None, lost, too_late, LOST).release);
        }
        assert!(!judge(Some(&exited), revoked, false, LOST).release);
    }

    #[test]
    fn what_is_known_to_be_over_gives_the_lock_back() {
        let not_started = ended(ChildStatus::NotStarted);
        assert_eq!(judged(&not_started, false), (true, 126, "NotStarted"));
        assert_eq!(judged(&not_started, true), (true, LOST, "Expired"));
        let exited = ended(ChildStatus::Exited(3));
        assert_eq!(judged(&exited, false), (true, 3, "Completed"));
        for (killed_for, reason) in [
            (EndReason::Deadline, "Expired"),
            (EndReason::GuardianLost, "GuardianLost"),
        ] {
            let killed = ChildEnded {
                killed_for: Some(killed_for),
                ..ended(ChildStatus::Unknown)
            };
            assert_eq!(judged(&killed, false), (true, LOST, reason));
        }
    }
}
