//! The task that keeps one grant: renews it, notices its loss, gives it back.

use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use kube::api::Api;
use kube::core::DeserializeGuard;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::Locks;
use super::calls::{CALL_LIMIT, pause_after};
use super::error::ReleaseError;
use super::guard::{Deadlines, Facts, Guard, Refusal, Released, State, sleep_until};
use super::renew::{Renewer, Round, boot_instant};
use super::watch::{LeaseWatch, Sight};
use crate::api::DistributedLock;
use crate::clock::Clock;
use crate::engine::{Held, LockView, LossReason, Moment, hold_end};
use crate::lease::StoreError;
use crate::lease::view::lock_view;

/// How long whoever gives the lock back, or has lost it, waits at most until the queue is left: by then every call was
/// tried a few times.
const LEFT_WITHIN: Duration = Duration::from_secs(5);

type Answer = oneshot::Sender<Result<Released, ReleaseError>>;

/// Everything that keeping a grant needs.
struct Keep {
    held: Held,
    /// The moment before the take was sent, from which `maxHoldSeconds` counts.
    granted: Moment,
    renewer: Renewer,
    lock: LockView,
    slot: i32,
    locks: Api<AnyLock>,
    watch: LeaseWatch,
    state: watch::Sender<State>,
    release: oneshot::Receiver<Answer>,
    /// The deletion of the claim that led to the grant: over before the lock is given back, if it can be, so that the
    /// claim is not named again; and in any case before that is answered.
    leaving: Option<JoinHandle<()>>,
    clock: Arc<dyn Clock>,
    refusal: Refusal,
}

/// A grant that was had a moment ago, and what keeping it needs.
pub(crate) struct Had {
    pub(crate) held: Held,
    pub(crate) granted: Moment,
    pub(crate) renewer: Renewer,
    pub(crate) lock: LockView,
    pub(crate) slot: i32,
    pub(crate) watch: LeaseWatch,
    pub(crate) leaving: Option<JoinHandle<()>>,
}

impl Had {
    /// Begins to keep it, in a task of its own: the guard.
    pub(crate) fn keep(self, locks: &Locks) -> Guard {
        let Self {
            mut held,
            granted,
            renewer,
            lock,
            slot,
            watch,
            leaving,
        } = self;
        let facts = Facts {
            lock: lock.name.clone(),
            namespace: locks.namespace.clone(),
            slot,
            identity: held.grant().holder.clone(),
            token: held.grant().token,
            granted,
            grant: held.grant().to_string(),
        };
        held.end_hold_at(hold_end(&lock, granted));
        let begun = State::Held(deadlines(&held), held.reason_at_deadline(None));
        let (tell, state) = watch::channel(begun);
        let (release, asked) = oneshot::channel();
        let keep = Keep {
            held,
            granted,
            renewer,
            lock,
            slot,
            locks: Api::namespaced(locks.client.clone(), &locks.namespace),
            watch,
            state: tell,
            release: asked,
            leaving,
            clock: Arc::clone(&locks.clock),
            refusal: Refusal::default(),
        };
        let refusal = keep.refusal.clone();
        tokio::spawn(keep.run());
        Guard {
            facts,
            state,
            release,
            clock: Arc::clone(&locks.clock),
            refusal,
        }
    }
}

/// Until when a grant may be used, for a guard.
fn deadlines(held: &Held) -> Deadlines {
    Deadlines {
        renew: boot_instant(held.renew_deadline()),
        work: boot_instant(held.work_deadline()),
    }
}

/// Tells until when the grant is good, and why it will be lost then if nothing better comes. An error, with the reason,
/// if it is lost already: once the deadline that was told has passed, whoever asked was told of the loss, and no answer
/// takes that back. So the clock is read while nobody can ask.
fn tell(
    state: &watch::Sender<State>,
    clock: &dyn Clock,
    held: &Held,
    trouble: Option<LossReason>,
) -> Result<(), LossReason> {
    let new = State::Held(deadlines(held), held.reason_at_deadline(trouble));
    let mut lost = None;
    state.send_if_modified(|told| {
        let now = clock.boot();
        lost = told.loss(now).or_else(|| new.loss(now));
        let tells = lost.is_none() && *told != new;
        if tells {
            *told = new;
        }
        tells
    });
    lost.map_or(Ok(()), Err)
}

impl Keep {
    /// Keeps the grant until it is lost or given back.
    async fn run(mut self) {
        let mut renew_at = self.held.renew_at(rand::random());
        let mut watching = true;
        // What was known of the lock may be as old as a waiter's slow beat: the first look comes sooner.
        let first = self.held.terms().duration() / 3;
        let mut beat = self
            .renewer
            .now()
            .saturating_add(first.min(self.held.terms().slow_beat()));
        let mut trouble: Option<LossReason> = None;
        let mut refused = false;
        let mut shortened = false;
        let mut refresh = std::pin::pin!(None);
        loop {
            if let Err(reason) = tell(&self.state, &*self.clock, &self.held, trouble) {
                return self.lose(reason).await;
            }
            let wake = renew_at.min(self.held.renew_deadline());
            let round = tokio::select! {
                answer = &mut self.release => return self.give_back(answer.ok(), trouble).await,
                () = sleep_until(&*self.clock, wake) => {
                    if self.renewer.now() >= self.held.renew_deadline() {
                        continue;
                    }
                    let (state, clock) = (&self.state, &*self.clock);
                    let trouble = trouble.or(Some(LossReason::Unreachable));
                    // If it is lost there is no time left to send anything in.
                    let tell = |held: &Held| {
                        let _ = tell(state, clock, held, trouble);
                    };
                    self.renewer.renew(&mut self.held, &self.lock, tell).await
                }
                sight = self.watch.next(), if watching => match self.look(&sight) {
                    Look::Mine => continue,
                    Look::Blind => { watching = false; continue }
                    Look::Doubt => self.renewer.reread(&mut self.held, &self.lock, None).await,
                },
                () = sleep_until(&*self.clock, beat) => {
                    beat = self.renewer.now().saturating_add(self.held.terms().slow_beat());
                    // Beside the renewals, not before them.
                    refresh.set(Some(read_lock(self.locks.clone(), self.lock.name.clone())));
                    continue;
                }
                found = OptionFuture::from(refresh.as_mut().as_pin_mut()), if refresh.is_some() => {
                    refresh.set(None);
                    let found = found.unwrap_or(LockRead::NoAnswer);
                    if matches!(found, LockRead::NoAnswer) {
                        beat = beat.min(self.renewer.now().saturating_add(self.pause()));
                    }
                    if let Err(reason) = self.note_lock(found) {
                        return self.lose(reason).await;
                    }
                    continue;
                }
            };
            match round {
                Round::Renewed => {
                    trouble = None;
                    self.refusal.set(None);
                    refused = false;
                    // A shorter lease has a quicker beat.
                    beat = beat.min(
                        self.renewer
                            .now()
                            .saturating_add(self.held.terms().slow_beat()),
                    );
                    // Once at once: something in the server's way may lengthen each.
                    shortened = !shortened && self.held.stores_more_than(&self.lock);
                    renew_at = if shortened {
                        self.renewer.now()
                    } else {
                        self.held.renew_at(rand::random())
                    };
                }
                // Once at once; a server that goes on refusing what it then shows unchanged is not to be hurried.
                Round::Again => {
                    let pause = if refused {
                        trouble.get_or_insert(LossReason::Unreachable);
                        self.pause()
                    } else {
                        Duration::ZERO
                    };
                    renew_at = self.renewer.now().saturating_add(pause);
                    refused = true;
                }
                Round::Failed(reason, error) => {
                    let forbidden = matches!(error, StoreError::Forbidden { .. });
                    self.refusal.set(forbidden.then(|| error.to_string()));
                    if trouble != Some(reason) {
                        tracing::warn!(lock = %self.lock.name, %error, "a renewal failed; trying again until the renew deadline");
                    }
                    trouble = Some(reason);
                    let now = self.renewer.now();
                    let left = self.held.renew_deadline().saturating_sub(now);
                    renew_at = now.saturating_add(pause_after(&error, self.pause(), left));
                }
                Round::Lost(reason) => return self.lose(reason).await,
            }
        }
    }

    /// The retry period, with jitter.
    fn pause(&self) -> Duration {
        let period = self.held.terms().retry_period();
        period.mul_f64(0.75 + 0.5 * rand::random::<f64>())
    }

    fn look(&self, sight: &Sight) -> Look {
        let known = self.held.record().resource_version;
        match sight {
            Sight::Forbidden => Look::Blind,
            Sight::Lease(found, _)
                if found.record.resource_version < known
                    || (self.held.is_mine(&found.record)
                        && !self.held.is_shortened_by(&found.record)) =>
            {
                Look::Mine
            }
            // Deleted, another's, or edited so that others wait for less: a read decides, since a watch may lag behind.
            Sight::Lease(..) | Sight::NoLease(_) => Look::Doubt,
        }
    }

    /// What a read of the lock says. An error if it ends the grant: deleting a held lock is a revoke, and so is a floor
    /// above the token, whether or not an operator is there to act on it.
    fn note_lock(&mut self, found: LockRead) -> Result<(), LossReason> {
        match found {
            // It is asked again soon.
            LockRead::NoAnswer => Ok(()),
            LockRead::Gone => Err(LossReason::Deleted),
            LockRead::Found(lock) => match lock.0 {
                Ok(lock) if lock.metadata.uid.as_deref() != Some(&self.lock.uid) => {
                    Err(LossReason::Deleted)
                }
                Ok(lock) => {
                    self.lock = lock_view(&lock, self.slot, false);
                    // The work gets its kill grace, also where the new end is long past.
                    let now = self.renewer.now();
                    let end = hold_end(&self.lock, self.granted).map(|end| end.max(now));
                    self.held.end_hold_at(end);
                    let token = self.held.grant().token.get();
                    if self.lock.min_token.is_some_and(|floor| token < floor) {
                        return Err(LossReason::Revoked);
                    }
                    Ok(())
                }
                Err(_) => Ok(()),
            },
        }
    }

    async fn lose(mut self, reason: LossReason) {
        self.tell_loss(reason);
        if reason == LossReason::MaxHold {
            // Only the renewals have stopped: while the lease runs the grant is still there to be given back.
            let end = self.held.release_deadline();
            tokio::select! {
                answer = &mut self.release => self.give_back(answer.ok(), None).await,
                () = sleep_until(&*self.clock, end) => self.end_leaving().await,
            }
        } else {
            self.end_leaving().await;
        }
    }

    /// Nothing is written any more once this returns: who leaves the queue has done so, or is stopped. A claim that stays
    /// behind is passed over.
    async fn end_leaving(&mut self) {
        if let Some(mut leaving) = self.leaving.take()
            && tokio::time::timeout(LEFT_WITHIN, &mut leaving)
                .await
                .is_err()
        {
            leaving.abort();
            let _ = leaving.await;
        }
    }

    /// The first loss is the one that counts.
    fn tell_loss(&self, reason: LossReason) {
        let mut first = None;
        self.state.send_if_modified(|told| {
            if matches!(told, State::Lost(_)) {
                return false;
            }
            let reason = told.loss(self.clock.boot()).unwrap_or(reason);
            *told = State::Lost(reason);
            first = Some(reason);
            true
        });
        // Words may have to wait for who reads them.
        if let Some(reason) = first {
            let grant = self.held.grant();
            tracing::warn!(lock = %self.lock.name, token = %grant.token, reason = reason.as_str(), "the lock was lost");
        }
    }

    async fn give_back(mut self, answer: Option<Answer>, trouble: Option<LossReason>) {
        // After a loss nothing is written, also when the loss and the release meet.
        if self.renewer.now() >= self.held.release_deadline() {
            let reason = self.held.reason_at_deadline(trouble);
            self.tell_loss(reason);
            self.end_leaving().await;
            if let Some(answer) = answer {
                let _ = answer.send(Ok(Released::AlreadyLost(reason)));
            }
            return;
        }
        if let Some(leaving) = &mut self.leaving {
            // Most of the time that is left is for the release itself.
            let left = self
                .held
                .release_deadline()
                .saturating_sub(self.renewer.now());
            let limit = (left / 3).min(Duration::from_secs(2));
            if tokio::time::timeout(limit, leaving).await.is_ok() {
                self.leaving = None;
            }
        }
        let reason = if answer.is_some() {
            "released by its holder"
        } else {
            "dropped by its holder"
        };
        let outcome = self
            .renewer
            .release(&mut self.held, &self.lock, reason)
            .await;
        if let Ok(Released::AlreadyLost(reason)) = outcome {
            self.tell_loss(reason);
        }
        self.end_leaving().await;
        match (answer, outcome) {
            (Some(answer), outcome) => {
                let _ = answer.send(outcome.map_err(ReleaseError::Unconfirmed));
            }
            (None, Err(error)) => {
                tracing::warn!(lock = %self.lock.name, error, "a dropped lock was not released");
            }
            (None, Ok(_)) => {}
        }
    }
}

pub(crate) type AnyLock = DeserializeGuard<DistributedLock>;

/// What a read of the lock gave.
pub(crate) enum LockRead {
    NoAnswer,
    Gone,
    Found(Box<AnyLock>),
}

pub(crate) async fn read_lock(locks: Api<AnyLock>, name: String) -> LockRead {
    match tokio::time::timeout(CALL_LIMIT, locks.get_opt(&name)).await {
        Ok(Ok(Some(lock))) => LockRead::Found(Box::new(lock)),
        Ok(Ok(None)) => LockRead::Gone,
        Ok(Err(_)) | Err(_) => LockRead::NoAnswer,
    }
}

enum Look {
    Mine,
    Doubt,
    Blind,
}
