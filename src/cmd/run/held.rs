//! The command under the locks: started, kept in step with the renewals, ended, and the locks given back.

use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt;
use futures::future::OptionFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use leasehold::client::{Guard, Guards, LossReason, Lost, Released};
use leasehold::clock::BootInstant;
use leasehold::supervise::{
    Deadlines, EndReason, Event, Events, Signal, Signals, StartError, StartSpec, Supervisor,
    SupervisorHandle, exit_code_for_signal,
};

use super::facts::{Facts, last_words};
use super::health::Health;
use super::verdict::{Verdict, judge};
use super::{Args, End};
use crate::cmd::say;

/// For the last word on a command that could not be started. The supervisor itself gives up on a process after 5 s.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(10);
/// What a guardian that lives needs to start a command is milliseconds: so long a signal waits for it.
const START_WITHIN: Duration = Duration::from_secs(1);

/// Locks that are held, and the command that runs under them.
pub(super) struct Held<'a> {
    pub(super) args: &'a Args,
    /// Only [`Held::release`] gives them back. Dropped on any other way out, the leases would be free while the command
    /// may still run; so there they are left to end by themselves.
    pub(super) guards: ManuallyDrop<Guards>,
    pub(super) signals: Signals,
    pub(super) health: Health,
}

impl Held<'_> {
    pub(super) async fn run(mut self, program: PathBuf, supervisor: Supervisor) -> End {
        let (handle, events) = supervisor.split();
        // A signal that raced with the grant starts nothing.
        while let Some(signal) = self.signals.recv().now_or_never() {
            if Signals::ends_waiting(signal) {
                let code = exit_code_for_signal(signal.as_raw());
                return self.release(code, "Signal", None).await;
            }
        }
        let Some(deadlines) = self.guards.deadlines() else {
            let lost = self.guards.lost().await;
            let (code, reason) = (self.args.lost_exit_code, lost.reason.as_str());
            let lock = &lost.lock;
            say(&format!(
                "lost lock {lock:?} ({reason}) before the command was started"
            ));
            return self.release(code, reason, Some(lost)).await;
        };
        self.health.held(&self.guards);
        let spec = self.spec(program, convert(deadlines));
        let (started, heard) = self.start(&handle, spec).await;
        match started {
            Ok(_) => {
                for signal in heard {
                    handle.forward(signal);
                }
                self.supervise(handle, events).await
            }
            Err(error) => {
                let ends = heard
                    .into_iter()
                    .find(|signal| Signals::ends_waiting(*signal));
                self.not_started(&error, ends, handle, events).await
            }
        }
    }

    /// Starts the command; also says which signals came meanwhile. Who is to end does not wait for a guardian that is
    /// frozen: after a moment both are ended, with the kill grace, for that guardian may have started the command.
    async fn start(
        &mut self,
        handle: &SupervisorHandle,
        spec: StartSpec,
    ) -> (Result<i32, StartError>, Vec<Signal>) {
        let grace = self.kill_grace();
        let mut heard = vec![];
        let mut starting = std::pin::pin!(handle.start(spec));
        let mut patience = std::pin::pin!(None);
        loop {
            tokio::select! {
                started = &mut starting => return (started, heard),
                signal = self.signals.recv() => {
                    if !heard.contains(&signal) {
                        heard.push(signal);
                    }
                    if Signals::ends_waiting(signal) && patience.is_none() {
                        patience.set(Some(tokio::time::sleep(START_WITHIN)));
                    }
                }
                Some(()) = OptionFuture::from(patience.as_mut().as_pin_mut()) => {
                    patience.set(Some(tokio::time::sleep(Duration::MAX)));
                    handle.end_now(grace);
                }
            }
        }
    }

    /// A guardian that was lost may have started the command and not said so: here too the last word decides. The
    /// supervisor ends, with that word, once nobody holds its handle.
    async fn not_started(
        self,
        error: &StartError,
        signal: Option<Signal>,
        handle: SupervisorHandle,
        mut events: Events,
    ) -> End {
        say(&error.to_string());
        drop(handle);
        let within = self.guards.deadlines().map_or(LAST_WORD_WITHIN, |at| {
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
        let ended = ended.ok().flatten();
        let verdict = judge(ended.as_ref(), None, too_late, self.args.lost_exit_code);
        self.finish(verdict.after(signal), None).await
    }

    fn spec(&self, program: PathBuf, deadlines: Deadlines) -> StartSpec {
        let env = super::facts::environment(&Facts::of(&self.guards));
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

    /// The shortest of all.
    fn kill_grace(&self) -> Duration {
        let deadlines = self.guards.iter().filter_map(Guard::deadlines);
        deadlines
            .map(|at| at.work.saturating_duration_since(at.renew))
            .filter(|grace| !grace.is_zero())
            .min()
            .or(self.args.request.kill_grace)
            .unwrap_or(Duration::from_secs(1))
    }

    /// Until the command and everything below it have ended.
    async fn supervise(mut self, handle: SupervisorHandle, mut events: Events) -> End {
        let grace = self.kill_grace();
        let mut lost: Option<Lost> = None;
        let mut moving = FuturesUnordered::new();
        let ended = loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::Ended(ended)) => break Some(ended),
                    // The guardian looks at the same clock, and may be the first to see it.
                    Some(Event::Ending(Some(EndReason::Deadline))) if lost.is_none() => {
                        lost = self.held_for_long_enough();
                        match &lost {
                            Some(lost) => self.tell_loss(lost),
                            None => say("no renewal was answered in time: ending the command"),
                        }
                    }
                    Some(Event::Ending(_)) => {}
                    None => break None,
                },
                signal = self.signals.recv() => handle.forward(signal),
                () = self.guards.deadlines_changed(), if lost.is_none() => if let Some(deadlines) = self.guards.deadlines() {
                    self.health.held(&self.guards);
                    let handle = handle.clone();
                    moving.push(async move { handle.extend(convert(deadlines)).await });
                } else {
                    let first = self.guards.lost().await;
                    // Words may have to wait for who reads them.
                    handle.end_now(grace);
                    self.tell_loss(&first);
                    lost = Some(first);
                },
                Some(_) = moving.next() => {}
            }
        };
        drop(moving);
        if lost.is_none()
            && let Some(ended) = &ended
            && ended.killed_for == Some(EndReason::Deadline)
        {
            lost = self.held_for_long_enough();
        }
        let reason = lost.as_ref().map(|lost| lost.reason);
        let verdict = judge(ended.as_ref(), reason, false, self.args.lost_exit_code);
        self.finish(verdict, lost).await
    }

    /// The lock whose `maxHoldSeconds` are over, if that is what came first.
    fn held_for_long_enough(&self) -> Option<Lost> {
        let lost = self.guards.lost().now_or_never();
        lost.filter(|lost| lost.reason == LossReason::MaxHold)
    }

    fn tell_loss(&self, lost: &Lost) {
        let (lock, reason) = (&lost.lock, lost.reason.as_str());
        let why = match lost.reason {
            LossReason::MaxHold => {
                format!("lock {lock:?} was held for its maxHoldSeconds ({reason})")
            }
            _ => format!("lost lock {lock:?} ({reason})"),
        };
        let refused = self.refusal(lost);
        self.health.not_held(&why);
        say(&format!("{why}: ending the command{refused}"));
    }

    /// What was refused, if that is why.
    fn refusal(&self, lost: &Lost) -> String {
        let guard = self.guards.get(&lost.lock);
        let words = guard
            .filter(|_| lost.reason == LossReason::Forbidden)
            .and_then(Guard::refusal);
        words.map_or_else(String::new, |words| format!("; {words}"))
    }

    async fn finish(self, verdict: Verdict, lost: Option<Lost>) -> End {
        if let Some(words) = verdict.words {
            say(&words);
        }
        if verdict.release {
            self.release(verdict.code, verdict.reason, lost).await
        } else {
            self.health.not_held(verdict.reason);
            let about = lost.map(|lost| lost.lock);
            last_words(
                &Facts::of(&self.guards),
                about.as_deref(),
                verdict.code,
                verdict.reason,
            )
        }
    }

    /// Gives the locks back, the last one first; no signal cuts that short. `lost` is what was told of before.
    async fn release(self, code: u8, reason: &str, lost: Option<Lost>) -> End {
        let facts = Facts::of(&self.guards);
        let told = lost.map(|lost| lost.lock);
        self.health.not_held("the command has ended");
        let mut end = last_words(&facts, told.as_deref(), code, reason);
        let mut silent = told.is_none();
        for one in ManuallyDrop::into_inner(self.guards).release().await {
            let lock = &one.lock;
            match one.outcome {
                Ok(Released::Confirmed) => {}
                Ok(Released::AlreadyLost(_)) if told.as_ref() == Some(lock) => {}
                Ok(Released::AlreadyLost(why)) => {
                    let why = why.as_str();
                    say(&format!(
                        "lock {lock:?} had been lost before the command ended ({why})"
                    ));
                    if silent {
                        silent = false;
                        end = last_words(&facts, Some(lock), self.args.lost_exit_code, why);
                    }
                }
                Err(error) => say(&format!("lock {lock:?}: {error}")),
            }
        }
        end
    }
}

fn convert(deadlines: leasehold::client::Deadlines) -> Deadlines {
    Deadlines {
        soft: deadlines.renew,
        hard: deadlines.work,
    }
}
