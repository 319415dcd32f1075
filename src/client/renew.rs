//! Renewing and releasing one grant, on a connection of its own.
//!
//! Used by [`Guard`](super::Guard) for locks and by the operator for its election: one loop for both.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::Released;
use super::calls::{asked_of, backoff, strict_client};
use crate::clock::{BootInstant, Clock};
use crate::engine::{EndKind, Held, LeaseRecord, LockView, LossReason, Moment};
use crate::lease::{FoundLease, LeaseStore, Put, StoreError};

/// A moment of the clock that runs through a suspend, as the rules take it.
#[must_use]
pub fn boot_moment(instant: BootInstant) -> Moment {
    Duration::from_nanos(instant.as_nanos())
}

/// The same, as others take it.
#[must_use]
pub fn boot_instant(moment: Moment) -> BootInstant {
    BootInstant::from_nanos(u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX))
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

/// The connection that renewals use and nothing else does: shared by all locks of a process, made anew by whoever
/// first finds it dead.
pub struct Lifeline {
    config: kube::Config,
    current: Mutex<Option<Wire>>,
}

/// A client, and how many there were before it.
#[derive(Clone)]
struct Wire {
    number: u64,
    client: kube::Client,
}

impl Lifeline {
    /// A connection to the server of `config`, made when it is first needed.
    #[must_use]
    pub fn new(config: kube::Config) -> Self {
        Self {
            config,
            current: Mutex::new(None),
        }
    }

    /// The client in use.
    fn wire(&self) -> Result<Wire, kube::Error> {
        self.after(None)
    }

    /// The client after the one of this number: only the first who asks makes it.
    fn after(&self, dead: Option<u64>) -> Result<Wire, kube::Error> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let number = match &*current {
            Some(wire) if dead != Some(wire.number) => return Ok(wire.clone()),
            Some(wire) => wire.number + 1,
            None => 0,
        };
        let client = strict_client(self.config.clone())?;
        Ok(current.insert(Wire { number, client }).clone())
    }
}

/// Renews and releases one grant of one Lease.
pub struct Renewer {
    lifeline: Arc<Lifeline>,
    wire: u64,
    namespace: String,
    name: String,
    store: LeaseStore,
    found: FoundLease,
    clock: Arc<dyn Clock>,
    /// Whether the last renewal that was answered made room for a shorter duration.
    made_room: bool,
}

impl Renewer {
    /// For the Lease `name`, which is `found` with the grant.
    pub fn new(
        lifeline: Arc<Lifeline>,
        namespace: &str,
        name: &str,
        found: FoundLease,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, kube::Error> {
        let wire = lifeline.wire()?;
        Ok(Self {
            store: LeaseStore::new(wire.client, namespace),
            wire: wire.number,
            lifeline,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            found,
            clock,
            made_room: false,
        })
    }

    /// Now, as the holder's deadlines count.
    #[must_use]
    pub fn now(&self) -> Moment {
        boot_moment(self.clock.boot())
    }

    /// Sends one renewal, bounded by the renew deadline.
    ///
    /// `sending` is called right before, with the deadlines as they are from then on: a shorter duration moves them
    /// down whatever the answer.
    pub async fn renew(
        &mut self,
        held: &mut Held,
        lock: &LockView,
        sending: impl FnOnce(&Held),
    ) -> Round {
        let wall = self.clock.wall().as_microsecond();
        let mut record = held.renewal(lock, wall);
        let makes_room = !self.made_room && held.is_cut_short_by(&record, self.now());
        if makes_room {
            record = held.renewal_as_stored(wall);
        }
        held.sending(&record);
        sending(held);
        let left = held.renew_deadline().saturating_sub(self.now());
        if left.is_zero() {
            return Round::Lost(held.reason_at_deadline(None));
        }
        let (sent, put) = self.put(&record, left).await;
        match put {
            Put::Applied(found) => {
                if held.renewed(&found.record, sent) {
                    self.made_room = makes_room;
                    self.found = *found;
                    return Round::Renewed;
                }
                self.reread(held, lock, None).await
            }
            Put::Forbidden(error) => {
                self.reread(held, lock, Some((LossReason::Forbidden, error)))
                    .await
            }
            Put::Refused(error) => {
                self.reread(held, lock, Some((LossReason::Unreachable, error)))
                    .await
            }
            Put::Conflict | Put::Gone => self.reread(held, lock, None).await,
            Put::Unknown(error) => Round::Failed(LossReason::Unreachable, error),
        }
    }

    /// Sends one write, which has so much time left. Without an answer after a third of it, it is sent once more, on a new
    /// connection: only one of the two can win, and a dead connection costs no lock, nor a release. With the answer: when
    /// what was answered was sent.
    async fn put(&mut self, record: &LeaseRecord, left: Duration) -> (Moment, Put) {
        let began = self.now();
        let mut attempts = FuturesUnordered::new();
        let attempt = |store: LeaseStore, left: Duration| {
            let (name, found, clock) = (&self.name, &self.found, &self.clock);
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
                    let end = began.saturating_add(left);
                    spare = self.spare();
                    if let Some((_, store)) = spare.clone() {
                        attempts.push(attempt(store, end.saturating_sub(self.now())));
                    }
                }
            }
        };
        drop(attempts);
        // A connection that did not answer in time is not used again.
        if let Some(spare) = spare.or_else(|| unknown.is_some().then(|| self.spare()).flatten()) {
            self.change_to(spare);
        }
        answered.unwrap_or_else(|| {
            let error = unknown.unwrap_or_else(|| StoreError::timed_out(self.access(), left));
            (began, Put::Unknown(error))
        })
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
                if let Some(spare) = self.spare() {
                    self.change_to(spare);
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
            // Once again at once: mostly the Lease was edited, or the answer got lost.
            let mut pause = if attempt > 0 {
                backoff(attempt)
            } else {
                Duration::ZERO
            };
            let record = held.release(reason, self.clock.wall().as_microsecond());
            let limit = left.min(Duration::from_secs(5));
            match self.put(&record, limit).await.1 {
                Put::Applied(found) if found.record.resource_version != record.resource_version => {
                    return Ok(Released::Confirmed);
                }
                Put::Applied(_) | Put::Conflict | Put::Gone => {}
                Put::Forbidden(error) | Put::Refused(error) | Put::Unknown(error) => {
                    pause = pause.max(asked_of(error.retry_after()));
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
                    pause = pause.max(asked_of(error.retry_after()));
                    trouble = error.to_string();
                    if let Some(spare) = self.spare() {
                        self.change_to(spare);
                    }
                }
            }
            let left = held.lease_end().saturating_sub(self.now());
            tokio::time::sleep(pause.min(left / 2)).await;
            attempt += 1;
        }
    }

    /// Another connection than the one in use.
    fn spare(&self) -> Option<(u64, LeaseStore)> {
        let wire = self.lifeline.after(Some(self.wire)).ok()?;
        Some((wire.number, LeaseStore::new(wire.client, &self.namespace)))
    }

    fn change_to(&mut self, (wire, store): (u64, LeaseStore)) {
        self.wire = wire;
        self.store = store;
    }

    fn access(&self) -> crate::lease::Access {
        crate::lease::Access {
            verb: "update",
            resource: crate::lease::store::LEASES,
            name: self.name.clone(),
            namespace: self.namespace.clone(),
        }
    }
}
