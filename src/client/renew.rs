//! Renewing and releasing one grant, on a connection of its own.
//!
//! Used by [`Guard`](super::Guard) for locks and by the operator for its election: one loop for both.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::Released;
use super::calls::make_strict;
use crate::clock::{BootInstant, Clock};
use crate::engine::{EndKind, Held, LockView, LossReason, Moment};
use crate::lease::{FoundLease, LeaseStore, Put, StoreError};

/// A moment of the clock that runs through a suspend, as the rules take it.
#[must_use]
pub fn boot_moment(instant: BootInstant) -> Moment {
    Duration::from_nanos(instant.as_nanos())
}

/// How one round of renewing ended.
#[derive(Debug)]
pub enum Round {
    /// A 2xx: the deadline has moved.
    Renewed,
    /// The grant is still ours, the record is newer: renew again at once.
    Again,
    /// No answer that tells; try again after the retry period, while the renew deadline allows.
    Failed(LossReason, StoreError),
    /// Lost: nothing may be written any more.
    Lost(LossReason),
}

/// Renews and releases one grant of one Lease.
pub struct Renewer {
    config: kube::Config,
    namespace: String,
    name: String,
    store: LeaseStore,
    found: FoundLease,
    clock: Arc<dyn Clock>,
}

impl Renewer {
    /// For the Lease `name`, which is `found` with the grant. Opens a client of its own.
    pub fn new(
        mut config: kube::Config,
        namespace: &str,
        name: &str,
        found: FoundLease,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, kube::Error> {
        make_strict(&mut config);
        let store = LeaseStore::new(kube::Client::try_from(config.clone())?, namespace);
        Ok(Self {
            config,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            store,
            found,
            clock,
        })
    }

    /// Now, as the holder's deadlines count.
    #[must_use]
    pub fn now(&self) -> Moment {
        boot_moment(self.clock.boot())
    }

    /// Sends one renewal, bounded by the renew deadline. Without an answer after a third of the time left it is sent
    /// once more, on a new connection: only one of the two can win, and a dead connection costs no lock.
    pub async fn renew(&mut self, held: &mut Held, lock: &LockView) -> Round {
        let record = held.renewal(lock, self.clock.wall().as_microsecond());
        held.sending(&record);
        let left = held.renew_deadline().saturating_sub(self.now());
        if left.is_zero() {
            return Round::Lost(LossReason::Expired);
        }
        let mut attempts = FuturesUnordered::new();
        let attempt = |store: LeaseStore, left: Duration| {
            let (name, found, record, clock) = (&self.name, &self.found, &record, &self.clock);
            async move {
                let sent = boot_moment(clock.boot());
                (sent, store.put(name, found, record, left).await)
            }
        };
        attempts.push(attempt(self.store.clone(), left));
        let hedge = tokio::time::sleep((left / 3).max(Duration::from_millis(100)));
        tokio::pin!(hedge);
        let mut unknown = None;
        let mut hedged = false;
        let mut spare = None;
        let answered = loop {
            tokio::select! {
                answer = attempts.next() => match answer {
                    Some((_, Put::Unknown(error))) => unknown = Some(error),
                    Some(answer) => break Some(answer),
                    None => break None,
                },
                () = &mut hedge, if !hedged => {
                    hedged = true;
                    let left = held.renew_deadline().saturating_sub(self.now());
                    spare = self.fresh_store();
                    if let Some(store) = spare.clone() {
                        attempts.push(attempt(store, left));
                    }
                }
            }
        };
        drop(attempts);
        // A connection that did not answer in time is not used again.
        if let Some(store) =
            spare.or_else(|| unknown.is_some().then(|| self.fresh_store()).flatten())
        {
            self.store = store;
        }
        match answered {
            Some((sent, Put::Applied(found))) => {
                if held.renewed(&found.record, sent) {
                    self.found = *found;
                    return Round::Renewed;
                }
                self.reread(held, lock, None).await
            }
            Some((_, Put::Forbidden(error))) => {
                self.reread(held, lock, Some((LossReason::Forbidden, error)))
                    .await
            }
            Some((_, Put::Refused(error))) => {
                self.reread(held, lock, Some((LossReason::Unreachable, error)))
                    .await
            }
            Some((_, Put::Conflict | Put::Gone)) => self.reread(held, lock, None).await,
            Some((_, Put::Unknown(error))) => Round::Failed(LossReason::Unreachable, error),
            None => Round::Failed(
                LossReason::Unreachable,
                unknown.unwrap_or_else(|| StoreError::timed_out(self.access(), left)),
            ),
        }
    }

    /// Reads the Lease: is the grant still ours? Moves no deadline. `cause` is why a write was refused, if it was: then
    /// there is no use in writing again at once.
    pub async fn reread(
        &mut self,
        held: &mut Held,
        lock: &LockView,
        cause: Option<(LossReason, StoreError)>,
    ) -> Round {
        let left = held.renew_deadline().saturating_sub(self.now());
        match self
            .store
            .get(&self.name, left.max(Duration::from_millis(50)))
            .await
        {
            Ok(found) => {
                if let Err(reason) =
                    held.reread(found.as_ref().map(|found| &found.record), Some(lock))
                {
                    return Round::Lost(reason);
                }
                if let Some(found) = found {
                    self.found = found;
                }
                cause.map_or(Round::Again, |(reason, error)| Round::Failed(reason, error))
            }
            Err(error @ StoreError::Forbidden { .. }) => {
                Round::Failed(LossReason::Forbidden, error)
            }
            Err(error) => {
                if let Some(store) = self.fresh_store() {
                    self.store = store;
                }
                Round::Failed(LossReason::Unreachable, error)
            }
        }
    }

    /// Gives the grant back, and returns once that is certain, one way or the other. Tries until the lease would have
    /// ended by itself. An error says why it is not certain.
    pub async fn release(
        &mut self,
        held: &mut Held,
        lock: &LockView,
        reason: &str,
    ) -> Result<Released, String> {
        let mut trouble = String::from("there was no time left");
        let mut attempt = 0;
        loop {
            let left = held.lease_end().saturating_sub(self.now());
            if left.is_zero() {
                return Err(trouble);
            }
            let record = held.release(reason, self.clock.wall().as_microsecond());
            let limit = left.min(Duration::from_secs(5));
            match self
                .store
                .put(&self.name, &self.found, &record, limit)
                .await
            {
                Put::Applied(found) if found.record.resource_version != record.resource_version => {
                    return Ok(Released::Confirmed);
                }
                Put::Applied(_) | Put::Conflict | Put::Gone => {}
                Put::Forbidden(error) | Put::Refused(error) | Put::Unknown(error) => {
                    trouble = error.to_string();
                }
            }
            match self.store.get(&self.name, limit).await {
                Ok(found) => {
                    let record = found.as_ref().map(|found| &found.record);
                    let ended =
                        record.and_then(|record| record.end_of(&held.id(), held.grant().token));
                    if ended.is_some_and(|ended| ended.kind == EndKind::Released) {
                        return Ok(Released::Confirmed);
                    }
                    if let Err(reason) = held.reread(record, Some(lock)) {
                        return Ok(Released::AlreadyLost(reason));
                    }
                    if let Some(found) = found {
                        self.found = found;
                    }
                }
                Err(error) => {
                    trouble = error.to_string();
                    if let Some(store) = self.fresh_store() {
                        self.store = store;
                    }
                }
            }
            if attempt > 0 {
                let pause =
                    super::calls::backoff(attempt).min(held.lease_end().saturating_sub(self.now()));
                tokio::time::sleep(pause).await;
            }
            attempt += 1;
        }
    }

    fn fresh_store(&self) -> Option<LeaseStore> {
        let client = kube::Client::try_from(self.config.clone()).ok()?;
        Some(LeaseStore::new(client, &self.namespace))
    }

    fn access(&self) -> crate::lease::Access {
        crate::lease::Access {
            verb: "update",
            resource: "leases.coordination.k8s.io",
            name: self.name.clone(),
            namespace: self.namespace.clone(),
        }
    }
}
