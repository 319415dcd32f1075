//! The proof that a lock is held.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::error::ReleaseError;
use super::renew::{boot_instant, boot_moment};
use crate::api::FencingToken;
use crate::clock::{BootInstant, Clock};
use crate::engine::{LossReason, Moment};

/// Until when a grant may be used, on the clock that runs through a suspend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// The renew deadline: the work is told to end (TERM) unless a renewal is answered before.
    pub renew: BootInstant,
    /// The work has ended by then (KILL).
    pub work: BootInstant,
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The Lease is free, by a write that was confirmed.
    Confirmed,
    /// There was nothing to give back any more: the grant had been lost.
    AlreadyLost(LossReason),
}

/// What the task that keeps the grant last knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Until then; and why it is lost then, as far as is known now.
    Held(Deadlines, LossReason),
    Lost(LossReason),
}

impl State {
    /// Why the grant may not be used at `now`, if it may not.
    pub(crate) fn loss(self, now: BootInstant) -> Option<LossReason> {
        match self {
            Self::Lost(reason) => Some(reason),
            Self::Held(deadlines, reason) => (now >= deadlines.renew).then_some(reason),
        }
    }
}

/// What a guard tells about its grant.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) lock: String,
    pub(crate) namespace: String,
    pub(crate) slot: i32,
    pub(crate) identity: String,
    pub(crate) token: FencingToken,
    pub(crate) granted: Moment,
    /// The grant as its annotation tells it.
    pub(crate) grant: String,
}

/// A grant, as much of it as its holder needs to go on with it after a restart: see [`Acquire::resume`].
///
/// [`Acquire::resume`]: super::Acquire::resume
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Resumable {
    /// The lock.
    pub lock: String,
    /// Its namespace.
    pub namespace: String,
    /// The slot.
    pub slot: i32,
    /// The grant: the text of the annotation `leasehold.dev/grant`.
    pub grant: String,
    /// The moment before the take was sent, from which `maxHoldSeconds` counts.
    pub granted: BootInstant,
}

/// What the server last said when it refused to renew the grant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal(Arc<Mutex<Option<String>>>);

impl Refusal {
    pub(crate) fn set(&self, words: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }

    fn get(&self) -> Option<String> {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        words.clone()
    }
}

/// A lock that is held. Dropped, it is released in the background; [`Guard::release`] tells how that went.
#[must_use = "a guard that is dropped gives the lock back"]
#[derive(Debug)]
pub struct Guard {
    pub(crate) facts: Facts,
    pub(crate) state: watch::Receiver<State>,
    pub(crate) release: oneshot::Sender<oneshot::Sender<Result<Released, ReleaseError>>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) refusal: Refusal,
}

impl Guard {
    /// The fencing token of this grant: higher than that of every earlier one. Send it with everything that you write
    /// under the lock. It never changes; do not read "the current token" from anywhere else.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.facts.token
    }

    /// The lock's name.
    #[must_use]
    pub fn lock(&self) -> &str {
        &self.facts.lock
    }

    /// The lock's namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.facts.namespace
    }

    /// The slot, 0 for a lock with one holder.
    #[must_use]
    pub fn slot(&self) -> i32 {
        self.facts.slot
    }

    /// The Lease's `holderIdentity`: `<claimant>/<uid>`.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.facts.identity
    }

    /// What the same holder needs to go on with this grant after a restart of its process, before its deadline and on
    /// the same boot of the machine.
    #[must_use]
    pub fn resumable(&self) -> Resumable {
        Resumable {
            lock: self.facts.lock.clone(),
            namespace: self.facts.namespace.clone(),
            slot: self.facts.slot,
            grant: self.facts.grant.clone(),
            granted: boot_instant(self.facts.granted),
        }
    }

    /// Until when the grant may be used without another renewal; `None` once it is lost.
    #[must_use]
    pub fn deadlines(&self) -> Option<Deadlines> {
        match *self.state.borrow() {
            State::Held(deadlines, _) => Some(deadlines),
            State::Lost(_) => None,
        }
    }

    /// Whether the grant may be used right now, by this process's own clock. Read it before each step that matters;
    /// it does not replace the token. Once it says no, it is no for good.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// The clock is read while nothing new can be told: so what is a loss here is one for the task that renews, too.
    fn loss(&self) -> Option<LossReason> {
        let told = self.state.borrow();
        told.loss(self.clock.boot())
    }

    /// Resolves once the grant may not be used any more, with the reason. That is final: no renewal is sent any more,
    /// and the answer to one that was under way changes nothing. Safe to drop and to call again.
    pub async fn lost(&self) -> LossReason {
        let mut state = self.state.clone();
        loop {
            state.mark_unchanged();
            // The task that renews says so earlier; this is also for one that does not get to run.
            if let Some(reason) = self.loss() {
                return reason;
            }
            let Some(deadlines) = self.deadlines() else {
                continue;
            };
            let changed = tokio::select! {
                changed = state.changed() => changed.is_ok(),
                () = sleep_until(&*self.clock, boot_moment(deadlines.renew)) => true,
            };
            if !changed && matches!(*state.borrow(), State::Held(..)) {
                // The task is gone with its runtime: nobody renews any more.
                return LossReason::Expired;
            }
        }
    }

    /// What was refused and in which words, for a grant that is lost as [`LossReason::Forbidden`]; `None` while renewals
    /// are allowed.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        self.refusal.get()
    }

    /// Waits for the next change of [`Guard::deadlines`]: a renewal was answered, or the grant was lost.
    pub async fn deadlines_changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Gives the lock back and returns once that is confirmed. After it returns, no further write is sent.
    ///
    /// Dropped before it returns, the release goes on in the background.
    pub async fn release(self) -> Result<Released, ReleaseError> {
        let (answer, answered) = oneshot::channel();
        if self.release.send(answer).is_err() {
            // The task has ended: the grant was lost, or the runtime is gone.
            return match *self.state.borrow() {
                State::Lost(reason) => Ok(Released::AlreadyLost(reason)),
                State::Held(..) => Err(ReleaseError::ShutDown),
            };
        }
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => match *self.state.borrow() {
                State::Lost(reason) => Ok(Released::AlreadyLost(reason)),
                State::Held(..) => Err(ReleaseError::ShutDown),
            },
        }
    }
}

/// Sleeps until a moment of the clock that runs through a suspend; tokio's own does not, so it looks every second.
pub(crate) async fn sleep_until(clock: &dyn Clock, at: Moment) {
    loop {
        let left = at.saturating_sub(boot_moment(clock.boot()));
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;
    use k8s_openapi::jiff::SignedDuration;

    /// A guard that may be used for 12 s more, and what its task would change.
    fn guard(clock: &FakeClock) -> (Guard, watch::Sender<State>) {
        let renew = clock.boot() + Duration::from_secs(12);
        let deadlines = Deadlines { renew, work: renew };
        let (tell, state) = watch::channel(State::Held(deadlines, LossReason::Expired));
        let facts = Facts {
            lock: "nightly".to_owned(),
            namespace: "team-a".to_owned(),
            slot: 0,
            identity: "pod-3/9b2e".to_owned(),
            token: FencingToken::new(42).expect("a token"),
            granted: boot_moment(clock.boot()),
            grant: String::new(),
        };
        let guard = Guard {
            facts,
            state,
            release: oneshot::channel().0,
            clock: Arc::new(clock.clone()),
            refusal: Refusal::default(),
        };
        (guard, tell)
    }

    /// kubernetes/kubernetes#125761: the system clock is set an hour ahead; a node is suspended for a minute.
    #[tokio::test]
    async fn a_suspend_past_the_deadline_ends_the_hold_and_a_jump_of_the_wall_clock_does_not() {
        let clock = FakeClock::default();
        let (guard, _task) = guard(&clock);
        let hour = SignedDuration::from_hours(1);
        for jump in [hour, -hour, -hour] {
            clock.set_wall(clock.wall() + jump);
            assert!(guard.is_held());
        }
        clock.advance(Duration::from_secs(5));
        assert!(guard.is_held());
        // No timer of the process has run out meanwhile.
        clock.suspend(Duration::from_mins(1));
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, LossReason::Expired);
    }
}
