//! From the beginning to the end: take or resume, hold, give back.

use std::io;
use std::mem::ManuallyDrop;
use std::time::Duration;

use futures::FutureExt;
use leasehold::client::{
    Acquire, Deadlines, Guard, Locks, LossReason, Released, Resumable, ResumeError,
};
use leasehold::clock::BootInstant;
use leasehold::supervise::Neighbours;
use serde_json::json;

use super::Args;
use super::begin::{Beginning, Here, Phase, State, Work};
use super::stop::Stop;
use super::told::{Told, file};
use super::volume::Volume;
use crate::cmd::run::asking::{connect, not_had};
use crate::cmd::run::facts::Facts;
use crate::cmd::run::{EXIT_UNAVAILABLE, EXIT_USAGE, End};
use crate::cmd::say;

/// A sidecar is given 2 s to stop in.
const STOP_WITHIN: Duration = Duration::from_millis(1700);
/// Of these, the folder may take so much.
const FOLDER_WITHIN: Duration = Duration::from_millis(300);
/// How long the first writing of the folder may take: until then nobody works under the lock.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// What of the app is left on TERM gets so long between TERM and KILL.
const LEFT_OVER_WITHIN: Duration = Duration::from_millis(300);
/// Where too many wait.
const EXIT_BUSY: u8 = 75;
/// The lock was lost.
pub(super) const EXIT_LOST: u8 = 76;
/// At the latest then the deadline is looked at again: timers do not run through a suspend.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Everything that the sidecar has.
pub(super) struct Life {
    pub(super) lock: String,
    pub(super) args: Args,
    pub(super) here: Here,
    pub(super) stop: Stop,
    pub(super) neighbours: Option<Neighbours>,
    pub(super) volume: Volume,
    pub(super) told: Told,
}

/// A grant and what is told of it. The guard is never dropped unless the lock may be given back: the app may still run.
pub(super) struct Holding {
    pub(super) guard: ManuallyDrop<Guard>,
    pub(super) facts: Facts,
    pub(super) work: Work,
}

impl Life {
    pub(super) async fn live(self, beginning: Beginning) -> End {
        match beginning {
            Beginning::Take => self.take().await,
            Beginning::Resume { grant, until, work } => self.resume(&grant, until, work).await,
            Beginning::Over { reason, work } => self.lost(&reason, work, None).await,
            Beginning::OtherLock(other) => {
                say(&format!(
                    "{} is the folder of the sidecar of lock {other:?}: name another by --dir",
                    self.args.dir.display()
                ));
                End::new(EXIT_USAGE, "Folder")
            }
        }
    }

    fn request(&self, locks: &Locks) -> Acquire {
        self.args.request.of(locks.lock(&self.lock))
    }

    async fn connect(&self) -> Result<Locks, End> {
        connect(self.args.namespace.as_deref())
            .await
            .map_err(|error| {
                say(&error.to_string());
                End::new(EXIT_UNAVAILABLE, "Unreachable")
            })
    }

    async fn take(mut self) -> End {
        let locks = match self.connect().await {
            Ok(locks) => locks,
            Err(end) => return end,
        };
        let mut acquiring = self.request(&locks).begin();
        let outcome = tokio::select! {
            biased;
            () = self.stop.heard() => {
                acquiring.withdraw().await;
                return End::new(0, "Stopped");
            }
            outcome = acquiring.outcome() => outcome,
        };
        let guard = match outcome {
            Ok(guard) => guard,
            Err(error) => {
                let waits = self.args.request.wait_for_lock;
                return not_had(EXIT_BUSY, waits, &locks, &self.lock, &error).await;
            }
        };
        // Nobody was told of it yet, so no work of it can be about.
        let Some(deadlines) = guard.deadlines() else {
            let reason = guard.lost().await;
            let _ = guard.release().await;
            return self.end(EXIT_LOST, reason.as_str(), None);
        };
        let work = Work {
            ends: deadlines.work,
            grace: deadlines.work.saturating_duration_since(deadlines.renew),
            spared: self
                .neighbours
                .map(Neighbours::containers)
                .unwrap_or_default(),
        };
        let holding = Holding::new(guard, work);
        let showing = self.show(&holding, deadlines.renew);
        match first(self.stop.heard(), showing, FIRST_WITHIN).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                say(&format!("cannot write to the folder: {error}"));
                let _ = ManuallyDrop::into_inner(holding.guard).release().await;
                return End::new(EXIT_USAGE, "Folder");
            }
            None => return self.stopped(holding).await,
        }
        self.told.held(&holding.facts, deadlines.renew);
        self.told.count_grant("taken");
        self.hold(holding, Some(deadlines)).await
    }

    /// Goes on with what an earlier process of this sidecar had; nothing is vouched for before a renewal of our own was
    /// answered.
    async fn resume(mut self, grant: &Resumable, until: BootInstant, work: Work) -> End {
        self.told
            .not_held("restarted: the grant is not proven again yet");
        self.volume.remove_at(until);
        let locks = match self.connect().await {
            Ok(locks) => locks,
            Err(end) => return end,
        };
        let request = self.request(&locks);
        let mut resuming = std::pin::pin!(request.resume(grant, until));
        let (outcome, stopped) = tokio::select! {
            biased;
            () = self.stop.heard() => {
                let late = tokio::time::timeout(STOP_WITHIN / 2, &mut resuming).await;
                let Ok(outcome) = late else {
                    return End::new(0, "Stopped");
                };
                (outcome, true)
            }
            outcome = &mut resuming => (outcome, false),
        };
        match outcome {
            Ok(guard) if stopped => self.stopped(Holding::new(guard, work)).await,
            Ok(guard) => {
                say(&format!("resumed the grant of lock {:?}", self.lock));
                self.told.count_grant("resumed");
                self.hold(Holding::new(guard, work), None).await
            }
            Err(ResumeError::Lost { reason, .. }) => self.lost(reason.as_str(), work, None).await,
            Err(error @ ResumeError::Unreadable(_)) => {
                say(&error.to_string());
                self.lost("StateUnreadable", work, None).await
            }
            Err(error @ ResumeError::OtherLock { .. }) => {
                say(&format!("{error}; name another folder by --dir"));
                End::new(EXIT_USAGE, "Folder")
            }
        }
    }

    /// Writes the grant to the volume: for the app, and for a restart.
    fn show(
        &self,
        holding: &Holding,
        until: BootInstant,
    ) -> impl Future<Output = io::Result<()>> + use<> {
        let phase = Phase::Held {
            grant: holding.guard.resumable(),
            until,
        };
        let state = State::new(&self.here, &self.lock, holding.work.clone(), phase);
        self.volume.hold(state, file(&holding.facts, until), until)
    }

    /// Until it is lost or given back. `shown` is what was told already.
    async fn hold(mut self, mut holding: Holding, mut shown: Option<Deadlines>) -> End {
        loop {
            if let Some(reason) = holding.guard.lost().now_or_never() {
                let work = holding.work.clone();
                return self.lost(reason.as_str(), work, Some(holding)).await;
            }
            let Some(deadlines) = holding.guard.deadlines() else {
                continue;
            };
            if shown != Some(deadlines) {
                holding.work.ends = deadlines.work;
                self.told.held(&holding.facts, deadlines.renew);
                // A disk that hangs delays nothing here: the file that is there goes by its own, earlier deadline.
                let written = self.show(&holding, deadlines.renew);
                if let Ok(Err(error)) = tokio::time::timeout(FOLDER_WITHIN, written).await {
                    say(&format!("cannot write to the folder: {error}"));
                }
                if shown.is_some_and(|shown| shown.renew < deadlines.renew) {
                    self.told.count_renewal();
                }
                shown = Some(deadlines);
                continue;
            }
            let left = deadlines
                .renew
                .saturating_duration_since(BootInstant::now());
            tokio::select! {
                biased;
                () = self.stop.heard() => return self.stopped(holding).await,
                () = holding.guard.deadlines_changed() => {}
                () = tokio::time::sleep(left.min(LOOK_EVERY)) => {}
            }
        }
    }

    /// TERM: a native sidecar is stopped once the app's containers have ended.
    async fn stopped(self, holding: Holding) -> End {
        let since = BootInstant::now();
        self.told.not_held("stopping: the lock is given back");
        let work = holding.work.clone();
        let state = self.over("Released", work);
        if !matches!(
            tokio::time::timeout(FOLDER_WITHIN, self.volume.over(state)).await,
            Ok(Ok(()))
        ) {
            say("cannot withdraw the grant from the folder in time");
        }
        let kill_at = since + LEFT_OVER_WITHIN;
        let spared = &holding.work.spared;
        if self.neighbours.is_some() && !self.end_app(spared, kill_at).await {
            return self.end(EXIT_LOST, "Unkillable", Some(&holding.facts));
        }
        let facts = holding.facts;
        let left = STOP_WITHIN.saturating_sub(BootInstant::now().saturating_duration_since(since));
        let released = ManuallyDrop::into_inner(holding.guard).release();
        let (code, reason) = match tokio::time::timeout(left, released).await {
            Ok(Ok(Released::Confirmed)) => (0, "Stopped"),
            Ok(Ok(Released::AlreadyLost(reason))) => (0, reason.as_str()),
            Ok(Err(error)) => {
                say(&format!("lock {:?}: {error}", self.lock));
                (EXIT_UNAVAILABLE, "Unconfirmed")
            }
            Err(_) => {
                say(&format!(
                    "lock {:?}: the release was not confirmed in time; the lease ends by itself within its duration",
                    self.lock
                ));
                (EXIT_UNAVAILABLE, "Unconfirmed")
            }
        };
        self.end(code, reason, Some(&facts))
    }

    /// The state of a grant that is over.
    pub(super) fn over(&self, reason: &str, work: Work) -> State {
        let reason = reason.to_owned();
        State::new(&self.here, &self.lock, work, Phase::Over { reason })
    }

    /// The end of the process, about this grant.
    pub(super) fn end(&self, code: u8, reason: &str, facts: Option<&Facts>) -> End {
        let mut end = End::new(code, reason);
        end.lock = Some(self.lock.clone());
        if let Some(facts) = facts {
            end.token = json!(facts.token);
            end.holder = Some(facts.holder.clone());
        }
        end
    }
}

/// What came of what is waited for, and not for longer than that; `None` if it is to stop before.
async fn first<T>(
    stop: impl Future<Output = ()>,
    awaited: impl Future<Output = io::Result<T>>,
    within: Duration,
) -> Option<io::Result<T>> {
    tokio::select! {
        biased;
        () = stop => None,
        outcome = tokio::time::timeout(within, awaited) => {
            let hangs = || io::Error::new(io::ErrorKind::TimedOut, "its disk does not answer");
            Some(outcome.unwrap_or_else(|_| Err(hangs())))
        }
    }
}

impl Holding {
    fn new(guard: Guard, work: Work) -> Self {
        Self {
            facts: Facts::of_one(&guard),
            guard: ManuallyDrop::new(guard),
            work,
        }
    }
}

/// Why, for people.
pub(super) fn words(lock: &str, reason: &str) -> String {
    match reason {
        "Released" => format!("lock {lock:?} was given back: nothing is taken again for this Pod"),
        "StateUnreadable" => format!(
            "what was kept of the grant of lock {lock:?} cannot be read: nothing is taken again for this Pod"
        ),
        "BootUnknown" => format!(
            "lock {lock:?} was held, perhaps before the machine was started again: its boot id cannot be read, so nothing is taken again for this Pod"
        ),
        _ if reason == LossReason::MaxHold.as_str() => {
            format!("lock {lock:?} was held for its maxHoldSeconds ({reason})")
        }
        _ => format!("lost lock {lock:?} ({reason})"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    /// A disk that hangs: the folder's thread does not answer.
    #[tokio::test]
    async fn a_disk_that_hangs_keeps_nobody_from_stopping_nor_the_lock_for_good() {
        let hangs = pending::<io::Result<()>>;
        let stopped = first(ready(()), hangs(), FIRST_WITHIN).await;
        assert!(stopped.is_none());
        let late = first(pending(), hangs(), Duration::from_millis(1)).await;
        assert_eq!(late.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        let written = first(pending(), ready(Ok(())), FIRST_WITHIN).await;
        assert!(written.unwrap().is_ok());
    }
}
