//! Waiting: for the watch, for a moment, for a server that answers again; and what is said meanwhile.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{Seeker, Step};
use crate::api::FencingToken;
use crate::client::calls::{backoff, pause_after};
use crate::client::claims::OwnClaim;
use crate::client::error::AcquireError;
use crate::client::watch::Sight;
use crate::client::{Progress, WaitReport};
use crate::engine::{
    ClaimRef, LeaseRecord, Moment, OnHolderLost, Patience, Refusal, Terms, Waiting,
};
use crate::lease::store::{CLAIMS, StoreError};

/// How often somebody who waits hears how things stand.
const REPORT_EVERY: Duration = Duration::from_secs(30);
/// How long a try waits for a lock that the operator has not made ready.
const TRY_READY_WITHIN: Duration = Duration::from_secs(5);
/// When a watch that was forbidden is asked for again.
const WATCH_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// The backoff after a refusal, about a second: the same each time, for it is soon over or believed.
const REFUSED: u32 = 3;
/// How long the first contact with the server may fail.
const FIRST_CONTACT_WITHIN: Duration = Duration::from_secs(30);

impl Seeker {
    fn waited(&self) -> Duration {
        self.mono().saturating_sub(self.started)
    }

    pub(super) async fn wait(&mut self, until: Option<Moment>, why: Waiting) -> Step {
        self.why = Some(why);
        let unready = matches!(
            why,
            Waiting::NoLease | Waiting::NotReady | Waiting::Conflict
        );
        if unready && self.patience == Patience::Try && self.waited() >= TRY_READY_WITHIN {
            return Step::Over(AcquireError::NotReady(Box::new(self.report(Some(why)))));
        }
        self.announce_wait(why, until);
        let wanted = self.claimant.watched();
        let wanted: Vec<_> = wanted.map(|slot| (slot, self.lease_name(slot))).collect();
        let now = self.mono();
        self.watches.keep(self.leases.api(), &wanted, now);
        let period = if !self.watches.are_open() || unready {
            self.terms().retry_period()
        } else {
            self.terms().slow_beat()
        };
        let next_beat = self.mono().saturating_add(jittered(period));
        let beat = *self.beat.get_or_insert(next_beat);
        let report = self.reported.map(|(_, at)| at.saturating_add(REPORT_EVERY));
        let try_over =
            (self.patience == Patience::Try).then(|| self.started.saturating_add(TRY_READY_WITHIN));
        let ends = match &self.ending {
            Some((_, by)) => [Some(*by), None, None],
            None => [report, self.wait_until, try_over],
        };
        let wake = ends
            .into_iter()
            .chain([until])
            .flatten()
            .fold(beat, Moment::min);
        let pause = wake.saturating_sub(self.mono());
        let sight = tokio::select! {
            sight = self.watches.next() => Some(sight),
            () = tokio::time::sleep(pause) => None,
        };
        match sight {
            Some((slot, Sight::Lease(found, seen))) => {
                // Calls may fail all the same, so their failures still count.
                self.contact = true;
                self.last_error = None;
                self.see(slot, Some(*found), seen);
                Step::Next
            }
            Some((slot, Sight::NoLease(seen))) => {
                self.see(slot, None, seen);
                Step::Next
            }
            Some((slot, Sight::Forbidden)) => {
                let again = self.mono().saturating_add(WATCH_AGAIN_AFTER);
                if self.watches.forbidden(slot, again) {
                    let lease = self.lease_name(slot);
                    tracing::warn!(%lease, "not allowed to watch the lease: reading it instead");
                }
                self.beat = None;
                Step::Next
            }
            None if self.mono() >= beat => self.slow_beat().await,
            None => Step::Next,
        }
    }

    fn terms(&self) -> Terms {
        let seconds = self.lease_duration().as_secs();
        Terms::fitting(u32::try_from(seconds).unwrap_or(u32::MAX), Duration::ZERO)
    }

    /// A silent holder is the operator's to end. It may be asked for again on the slow beat: such a policy can go.
    pub(super) fn leave_to_operator(&mut self) {
        let until = self.mono() + jittered(self.terms().slow_beat());
        self.claimant.leave_to_operator(until);
    }

    /// Nothing may be right only because a watch delivered: Lease, lock and claim are read now and then all the same.
    /// A beat that failed is repeated after its pause, not a whole beat later, and meanwhile the watch is listened to.
    async fn slow_beat(&mut self) -> Step {
        self.beat = None;
        match self.look_again().await {
            Step::Pause(pause) => {
                let pause = pause.min(jittered(self.terms().slow_beat()));
                self.beat = Some(self.mono().saturating_add(pause));
                Step::Next
            }
            step => step,
        }
    }

    async fn look_again(&mut self) -> Step {
        if let step @ (Step::Over(_) | Step::Gone | Step::Pause(_)) = self.read_lock().await {
            return step;
        }
        for slot in self.claimant.watched() {
            if let step @ (Step::Over(_) | Step::Gone | Step::Pause(_)) =
                self.read_lease(slot).await
            {
                return step;
            }
        }
        // The further behind, the less often, so that a long queue costs the server little.
        self.beats += 1;
        let behind = self.claimant.place().map_or(1, |place| place.max(2) - 1);
        if self.beats >= behind {
            self.beats = 0;
            self.claimant.look_around(self.mono());
        }
        match self.claimant.claim().cloned() {
            Some(claim) if self.watches.are_open() => self.look_after_claim(&claim).await,
            _ => Step::Next,
        }
    }

    pub(super) async fn look_after_claim(&mut self, claim: &ClaimRef) -> Step {
        match self.claims.own(claim, self.call_limit()).await {
            Ok(OwnClaim::Waits(priority)) => {
                self.fine(("get", CLAIMS));
                let doubted = self.doubtful.take().is_some();
                if doubted {
                    self.join(claim.clone());
                }
                self.claimant.ranks(priority);
                if doubted {
                    // It is listed anew: as often as lists are behind.
                    return Step::Pause(backoff(self.doubts));
                }
                Step::Next
            }
            Ok(OwnClaim::Gone) => {
                self.fine(("get", CLAIMS));
                self.doubtful = None;
                self.claimant.left();
                if self.ending.is_none() {
                    let lock = self.request.name.clone();
                    self.announce(&Progress::ClaimGone { lock });
                }
                // Another is made at once, unless that one goes in the same way.
                match self.doubts {
                    0 | 1 => Step::Next,
                    again => Step::Pause(backoff(again - 1)),
                }
            }
            Ok(OwnClaim::Rejected(message)) => {
                // It has told what it had to tell. Who can't delete it leaves it to its Pod's end.
                if let Err(error) = self.claims.delete(claim, self.call_limit()).await {
                    tracing::debug!(%error, "a rejected claim was not deleted");
                }
                self.doubtful = None;
                self.claimant.left();
                Step::Over(AcquireError::Rejected {
                    lock: self.request.name.clone(),
                    message,
                })
            }
            Err(error) => self.trouble(error),
        }
    }

    pub(super) async fn refused(&mut self, refusal: Refusal) -> Step {
        let lock = self.request.name.clone();
        match refusal {
            Refusal::Busy => Step::Over(AcquireError::Busy(Box::new(self.report(None)))),
            Refusal::NewerVersion => Step::Over(AcquireError::NewerVersion { lock }),
            Refusal::NoTokenLeft => Step::Over(AcquireError::NoTokenLeft { lock }),
            Refusal::NoLock if self.request.wait_for_lock => match self.read_lock().await {
                // It is being deleted.
                Step::Next => Step::Pause(backoff(3)),
                step => step,
            },
            Refusal::NoLock => Step::Over(self.no_such_lock()),
        }
    }

    /// There is no such lock: wait for it, if that was asked for.
    pub(super) fn without_lock(&mut self) -> Step {
        let tried = self.patience == Patience::Try && self.waited() >= TRY_READY_WITHIN;
        if !self.request.wait_for_lock || tried {
            return Step::Over(self.no_such_lock());
        }
        let now = self.mono();
        if self
            .no_lock_said
            .is_none_or(|said| now >= said.saturating_add(REPORT_EVERY))
        {
            self.no_lock_said = Some(now);
            self.announce(&Progress::NoSuchLock {
                lock: self.request.name.clone(),
            });
        }
        Step::Pause(backoff(3))
    }

    /// Why it was not had in time.
    pub(super) fn out_of_time(&mut self) -> AcquireError {
        match self.last_error.take() {
            Some(error @ StoreError::Forbidden { .. }) => AcquireError::Forbidden(error),
            Some(error) if !self.contact => AcquireError::Unreachable(error),
            _ if self.no_lock_said.is_some() => self.no_such_lock(),
            _ => AcquireError::TimedOut(Box::new(self.report(self.why))),
        }
    }

    pub(super) fn no_such_lock(&self) -> AcquireError {
        AcquireError::NoSuchLock {
            lock: self.request.name.clone(),
            namespace: self.request.locks.namespace.clone(),
        }
    }

    /// What is forbidden stays forbidden; a server that does not answer may do so again. But an API server that has just
    /// started forbids everything for a moment, until it knows the roles: who has queued had the right to, and does not
    /// give up its place for that.
    pub(super) fn trouble(&mut self, error: StoreError) -> Step {
        let access = (error.access().verb, error.access().resource);
        let times = self.failures.failed(access);
        // Once an outage, and once for a call that fails while others succeed.
        let first = self.last_error.is_none() && self.failures.is_news(access);
        let mut pause = pause_after(&error, backoff(times), self.left());
        if self.claimant.is_unsettled() {
            // What is open may be a grant already: it is confirmed while its lease runs, or runs out in vain.
            pause = pause.min(self.lease_duration() / 3);
        }
        if self.ending.is_some() {
            // Leaving: try again until the time for it is over.
            return Step::Pause(pause);
        }
        if let StoreError::Forbidden { .. } = &error {
            let now = self.mono();
            let queued = self.claimant.claim().is_some() || self.doubtful.is_some();
            if self.refusals.refused(access, now) || !queued {
                return Step::Over(AcquireError::Forbidden(error));
            }
            if first {
                self.announce(&Progress::Trouble(error.to_string()));
            }
            self.last_error = Some(error);
            return Step::Pause(backoff(REFUSED));
        }
        let give_up = match self.patience {
            Patience::Try => self.waited() >= TRY_READY_WITHIN,
            Patience::Wait => !self.contact && self.waited() >= FIRST_CONTACT_WITHIN,
        };
        if give_up || matches!(error, StoreError::Refused { .. }) {
            return Step::Over(AcquireError::Unreachable(error));
        }
        if first {
            self.announce(&Progress::Trouble(error.to_string()));
        }
        self.last_error = Some(error);
        if self.patience == Patience::Try {
            let left = TRY_READY_WITHIN.saturating_sub(self.waited());
            return Step::Pause(pause.min(left));
        }
        Step::Pause(pause)
    }

    fn announce_wait(&mut self, why: Waiting, until: Option<Moment>) {
        if self.request.progress.is_none() || self.ending.is_some() {
            return;
        }
        // A turn that comes in the next moment is not worth a word.
        let quiet = why == Waiting::Turn && self.reported.is_none();
        let due = self.reported.is_none_or(|(said, at)| {
            said != why && why != Waiting::Turn || self.mono() >= at.saturating_add(REPORT_EVERY)
        });
        if due && !quiet {
            self.reported = Some((why, self.mono()));
            let mut report = self.report(Some(why));
            // While it is another's turn, `until` is that one's time, not a holder's.
            if matches!(why, Waiting::Holder | Waiting::Missing) {
                report.lease_ends_in = until.map(|until| until.saturating_sub(self.mono()));
            }
            self.announce(&Progress::Waiting(report));
        }
    }

    pub(super) fn announce(&self, progress: &Progress) {
        if let Some(tell) = &self.request.progress {
            tell(progress);
        }
    }

    pub(super) fn report(&self, why: Option<Waiting>) -> WaitReport {
        let lease = self.claimant.lease(0);
        let holder = lease
            .map(|lease| lease.spec.holder.clone())
            .filter(|holder| !holder.is_empty());
        let lock = self.claimant.lock(0);
        WaitReport {
            lock: self.request.name.clone(),
            why,
            slots: lock.map_or(1, |lock| lock.max_holders),
            stays_locked: lock.is_some_and(|lock| lock.on_holder_lost == OnHolderLost::Hold),
            since: lease
                .and_then(|lease| lease.spec.acquire_time)
                .and_then(|micros| Timestamp::from_microsecond(micros).ok()),
            token: lease
                .and_then(LeaseRecord::current_token)
                .map(FencingToken::get),
            next: lease
                .and_then(|lease| lease.next.as_ref())
                .filter(|next| self.claimant.claim() != Some(next))
                .map(|next| self.claimants.get(&next.uid).unwrap_or(&next.name).clone()),
            place: self.claimant.place(),
            lease_ends_in: None,
            holder,
        }
    }
}

/// Give or take a quarter, so that those who began together do not go on together.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(0.75 + rand::random::<f64>() / 2.0)
}
