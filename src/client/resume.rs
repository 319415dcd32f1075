//! Going on with a grant after a restart of the process that had it.
//!
//! The grant is proven again by a renewal of one's own, guarded like any other: only its 2xx moves the deadline, and
//! before it there is no guard. A Lease that shows another grant is left alone, whoever's it is: what was kept names one
//! grant, by the Lease's uid, the holder and the transition.

use std::sync::Arc;
use std::time::Duration;

use kube::api::Api;

use super::calls::{asked_of, backoff};
use super::error::ResumeError;
use super::guard::{Guard, Resumable};
use super::keep::{Had, LockRead, read_lock};
use super::renew::{Renewer, Round, boot_moment};
use super::watch::LeaseWatch;
use super::{Acquire, Grace};
use crate::api::names::MAX_LOCK_LEASE_SECONDS;
use crate::api::slot_lease_name;
use crate::clock::BootInstant;
use crate::engine::{Grant, GrantNote, Held, LeaseRecord, LockView, LossReason, Moment, hold_end};
use crate::lease::view::lock_view;
use crate::lease::{LeaseStore, StoreError};

/// No lock's lease lasts longer, so no deadline that was told lies further away.
const LEASE_MOST: Duration = Duration::from_secs(MAX_LOCK_LEASE_SECONDS.unsigned_abs() as u64);

impl Acquire {
    /// Goes on with a grant that an earlier process of this holder had and did not give back, such as
    /// [`Guard::resumable`] told and a file kept. Tries until `until`, the renew deadline that the earlier process last
    /// knew; after it, or on another boot of the machine, the grant is lost, and must not be resumed. A deadline that
    /// lies further away than the lease lasts is believed no more than that.
    ///
    /// Dropped, it leaves the grant to end by itself.
    pub async fn resume(&self, kept: &Resumable, until: BootInstant) -> Result<Guard, ResumeError> {
        if (&kept.lock, &kept.namespace) != (&self.name, &self.locks.namespace) {
            return Err(ResumeError::OtherLock {
                asked: self.name.clone(),
                found: kept.lock.clone(),
            });
        }
        let GrantNote::V1(grant) = GrantNote::parse(Some(&kept.grant)) else {
            return Err(ResumeError::Unreadable(kept.grant.clone()));
        };
        let now = boot_moment(self.locks.clock.boot());
        let resuming = Resuming {
            request: self,
            slot: kept.slot,
            granted: boot_moment(kept.granted),
            until: boot_moment(until).min(now.saturating_add(LEASE_MOST)),
            leases: LeaseStore::new(self.locks.client.clone(), &self.locks.namespace),
            grant,
        };
        resuming.run().await.map_err(|reason| ResumeError::Lost {
            lock: self.name.clone(),
            reason,
        })
    }
}

struct Resuming<'a> {
    request: &'a Acquire,
    slot: i32,
    granted: Moment,
    until: Moment,
    leases: LeaseStore,
    grant: Grant,
}

/// The shortest wait between two attempts.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// There was no answer that tells.
const UNANSWERED: Attempt = Attempt::Again(LossReason::Unreachable, Duration::ZERO);

/// What came of one attempt.
enum Attempt {
    Had(Box<Had>),
    /// Nothing yet; why, in case there is no time for another, and how long the server asked to wait.
    Again(LossReason, Duration),
    Lost(LossReason),
}

impl Resuming<'_> {
    async fn run(&self) -> Result<Guard, LossReason> {
        let mut trouble = LossReason::Expired;
        let mut attempts = 0;
        loop {
            let left = self.left();
            if left.is_zero() {
                return Err(trouble);
            }
            // A renewal that is cut off here is settled by the next look, or nobody cares any more.
            let attempt = tokio::time::timeout(left, self.attempt()).await;
            let asked = match attempt.unwrap_or(UNANSWERED) {
                // As of any deadline: an answer that comes after it is too late.
                Attempt::Had(_) if self.left().is_zero() => return Err(trouble),
                Attempt::Had(had) => return Ok(had.keep(&self.request.locks)),
                Attempt::Lost(reason) => return Err(reason),
                Attempt::Again(reason, asked) => {
                    trouble = reason;
                    asked
                }
            };
            // Time for another attempt is left.
            let pause = backoff(attempts).max(asked_of(asked));
            tokio::time::sleep(pause.min(self.left() / 2).max(SHORTEST_PAUSE)).await;
            attempts += 1;
        }
    }

    fn left(&self) -> Duration {
        let now = boot_moment(self.request.locks.clock.boot());
        self.until.saturating_sub(now)
    }

    async fn attempt(&self) -> Attempt {
        let locks = &self.request.locks;
        let api = Api::namespaced(locks.client.clone(), &locks.namespace);
        let lock = match read_lock(api, self.request.name.clone()).await {
            LockRead::Gone => return Attempt::Lost(LossReason::Deleted),
            LockRead::NoAnswer => return UNANSWERED,
            LockRead::Found(lock) => match lock.0 {
                Ok(lock) => lock,
                Err(_) => return UNANSWERED,
            },
        };
        let name = slot_lease_name(&lock.lease_name(), self.slot.unsigned_abs());
        let lock = lock_view(&lock, self.slot, false);
        if lock
            .min_token
            .is_some_and(|floor| self.grant.token.get() < floor)
        {
            return Attempt::Lost(LossReason::Revoked);
        }
        let found = match self.leases.get(&name, self.left()).await {
            Ok(Some(found)) if found.record.uid == self.grant.uid => found,
            Ok(_) => return Attempt::Lost(LossReason::Deleted),
            Err(error @ StoreError::Forbidden { .. }) => {
                return Attempt::Again(LossReason::Forbidden, error.retry_after());
            }
            Err(error) => return Attempt::Again(LossReason::Unreachable, error.retry_after()),
        };
        let mut held = self.held(&lock, &found.record);
        if let Err(reason) = held.reread(Some(&found.record), Some(&lock)) {
            return Attempt::Lost(reason);
        }
        let (line, clock) = (Arc::clone(&locks.lifeline), Arc::clone(&locks.clock));
        let Ok(mut renewer) = Renewer::new(line, &locks.namespace, &name, found, clock) else {
            return UNANSWERED;
        };
        match renewer.renew(&mut held, &lock, |_| ()).await {
            Round::Renewed => Attempt::Had(Box::new(Had {
                held,
                granted: self.granted,
                renewer,
                lock,
                slot: self.slot,
                watch: LeaseWatch::new(self.leases.api().clone(), &name),
                leaving: None,
            })),
            Round::Again => UNANSWERED,
            Round::Failed(reason, error) => Attempt::Again(reason, error.retry_after()),
            Round::Lost(reason) => Attempt::Lost(reason),
        }
    }

    /// The grant as the earlier process left it: lost at `until`, unless a renewal is answered before.
    fn held(&self, lock: &LockView, record: &LeaseRecord) -> Held {
        let grace = match self.request.kill_grace {
            Grace::UpTo(grace) | Grace::Exactly(grace) => grace,
        };
        let held = |proven| Held::new(self.grant.clone(), record.clone(), proven, grace);
        let lasts = held(Duration::ZERO).renew_deadline();
        // Nothing is proven that is yet to be sent, whatever was kept: the clock of another boot may be far ahead.
        let now = boot_moment(self.request.locks.clock.boot());
        let mut held = held(self.until.saturating_sub(lasts).min(now));
        held.end_hold_at(hold_end(lock, self.granted));
        held
    }
}
