//! The task that takes a lock: it drives [`Claimant`] until a grant, a refusal, or until its caller is gone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::core::DeserializeGuard;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::calls::{CALL_LIMIT, backoff};
use super::claims::{ClaimStore, OwnClaim};
use super::error::AcquireError;
use super::guard::{Facts, Guard, State};
use super::identity::{claimant_name, holder_note, host_name, identity, random_uid};
use super::keep::{Keep, deadlines};
use super::renew::{Renewer, boot_moment};
use super::watch::{LeaseWatch, Sight};
use super::{Acquire, Grace};
use crate::api::DistributedLock;
use crate::engine::{
    Claimant, Held, Hold, LockView, Moment, Move, Patience, Refusal, Requester, Seen, Terms,
    Waiting, Write,
};
use crate::lease::store::Access;
use crate::lease::view::lock_view;
use crate::lease::{FoundLease, LeaseStore, Put, StoreError};

/// How often somebody who waits hears how things stand.
const REPORT_EVERY: Duration = Duration::from_secs(30);
/// How long a try waits for a lock that the operator has not made ready.
const TRY_READY_WITHIN: Duration = Duration::from_secs(5);
/// How long the first contact with the server may fail.
const FIRST_CONTACT_WITHIN: Duration = Duration::from_secs(30);

/// How things stand for somebody who waits.
#[derive(Clone, Debug)]
pub struct WaitReport {
    /// The lock.
    pub lock: String,
    /// What it waits for.
    pub why: Option<Waiting>,
    /// The Lease's `holderIdentity`; `None` when it is free.
    pub holder: Option<String>,
    /// Since when, by the holder's clock.
    pub since: Option<Timestamp>,
    /// The holder's token.
    pub token: Option<i64>,
    /// Whose turn it is, by the claim's name.
    pub next: Option<String>,
    /// One's own place in the queue, about.
    pub place: Option<usize>,
}

impl fmt::Display for WaitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Some(Waiting::NoLease) => f.write_str("its lease is not made yet: is the operator running?")?,
            Some(Waiting::NotReady) => f.write_str("the operator has not opened it yet")?,
            Some(Waiting::Conflict) => {
                f.write_str("its lease belongs to somebody else (LeaseConflict): see the lock's conditions")?;
            }
            Some(Waiting::Missing) => f.write_str(
                "its lease was deleted while perhaps held: nobody takes it before what that hides has ended",
            )?,
            Some(Waiting::Holder | Waiting::Turn) | None => match &self.holder {
                Some(holder) => write!(f, "held by {holder}")?,
                None => f.write_str("free, but it is another's turn")?,
            },
        }
        if let (Some(since), Some(_)) = (self.since, &self.holder) {
            write!(f, " since {since:.0}")?;
        }
        if let Some(token) = self.token {
            write!(f, " with token {token}")?;
        }
        if let Some(next) = &self.next {
            write!(f, "; next is {next}")?;
        }
        if let Some(place) = self.place {
            write!(f, "; place {place} in the queue")?;
        }
        Ok(())
    }
}

/// What somebody who waits hears.
#[derive(Clone, Debug)]
pub enum Progress {
    /// It waits, and how things stand: at the start, when the reason changes, and every 30 seconds.
    Waiting(WaitReport),
    /// There is no such lock yet, and it was to wait for it.
    NoSuchLock {
        /// The lock.
        lock: String,
    },
    /// The server does not answer; it goes on trying.
    Trouble(String),
}

/// A lock that is being asked for, by a task of its own: a caller that is gone leaves nothing behind.
///
/// Dropped, it withdraws in the background; [`Acquiring::withdraw`] waits until that is done.
#[must_use = "dropped, it withdraws from the queue"]
#[derive(Debug)]
pub struct Acquiring {
    answer: oneshot::Receiver<Result<Guard, AcquireError>>,
    task: JoinHandle<()>,
}

impl Acquiring {
    pub(super) fn begin(request: Acquire, patience: Patience) -> Self {
        let (result, answer) = oneshot::channel();
        let task = tokio::spawn(async move {
            if is_lock_name(&request.name) {
                Seeker::new(request, patience).seek(result).await;
            } else {
                let _ = result.send(Err(AcquireError::BadName { name: request.name }));
            }
        });
        Self { answer, task }
    }

    /// The guard, or why there is none. Safe to drop and to call again until it has answered.
    pub async fn outcome(&mut self) -> Result<Guard, AcquireError> {
        (&mut self.answer)
            .await
            .unwrap_or(Err(AcquireError::ShutDown))
    }

    /// Gives up: leaves the queue, settles what was sent, gives back what was granted meanwhile, and returns when that
    /// is done, or after one lease duration at most.
    pub async fn withdraw(self) {
        let Self { answer, task } = self;
        drop(answer);
        let _ = task.await;
    }
}

fn is_lock_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= 63
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

type Caller = oneshot::Sender<Result<Guard, AcquireError>>;

/// One attempt to take a lock.
struct Seeker {
    request: Acquire,
    patience: Patience,
    claimant_name: String,
    claimant: Claimant,
    locks: Api<DeserializeGuard<DistributedLock>>,
    leases: LeaseStore,
    claims: ClaimStore,
    lease_name: Option<String>,
    found: Option<FoundLease>,
    watch: Option<LeaseWatch>,
    watch_forbidden: bool,
    started: Instant,
    /// When the wait is over; `None` for never.
    wait_until: Option<Instant>,
    /// Why the claimant was told to stop, and by when it must have.
    ending: Option<(Ending, Instant)>,
    contact: bool,
    failures: u32,
    reported: Option<(Option<Waiting>, Instant)>,
    beat: Option<Instant>,
}

/// Why the claimant leaves without the lock.
enum Ending {
    CallerGone,
    With(AcquireError),
}

impl Seeker {
    fn new(request: Acquire, patience: Patience) -> Self {
        let name = request
            .claimant
            .clone()
            .or_else(|| request.pod.as_ref().map(|pod| pod.name.clone()));
        let claimant_name = claimant_name(&name.unwrap_or_else(host_name));
        let who = Requester {
            identity: identity(&claimant_name, &random_uid()),
            hold: Hold::Heartbeat,
            pod: request.pod.clone(),
            note: Some(holder_note()),
            remembered: 0,
        };
        let grace = match request.kill_grace {
            Grace::UpTo(grace) | Grace::Exactly(grace) => grace,
        };
        let started = Instant::now();
        Self {
            claimant: Claimant::new(who, patience, grace),
            patience,
            claimant_name,
            locks: Api::namespaced(request.locks.client.clone(), &request.locks.namespace),
            leases: LeaseStore::new(request.locks.client.clone(), &request.locks.namespace),
            claims: ClaimStore::new(
                &request.locks.client,
                &request.locks.namespace,
                &request.name,
            ),
            lease_name: None,
            found: None,
            watch: None,
            watch_forbidden: false,
            started,
            wait_until: request.wait.and_then(|wait| started.checked_add(wait)),
            ending: None,
            contact: false,
            failures: 0,
            reported: None,
            beat: None,
            request,
        }
    }

    fn mono(&self) -> Moment {
        Duration::from_nanos(self.request.locks.clock.mono().as_nanos())
    }

    fn boot(&self) -> Moment {
        boot_moment(self.request.locks.clock.boot())
    }

    /// Goes on until there is a grant, an error, or nobody left who wants one.
    async fn seek(&mut self, mut caller: Caller) {
        let outcome = loop {
            if self.ending.is_none() {
                if caller.is_closed() {
                    self.stop(Ending::CallerGone);
                } else if self.wait_until.is_some_and(|until| Instant::now() >= until) {
                    let report = Box::new(self.report(None));
                    self.stop(Ending::With(AcquireError::TimedOut(report)));
                }
            }
            if self
                .ending
                .as_ref()
                .is_some_and(|(_, by)| Instant::now() >= *by)
            {
                break Err(self.unsettled());
            }
            // The Lease's name is the lock's to tell.
            let step = if self.lease_name.is_none() && self.ending.is_none() {
                Move::ReadLock
            } else if self.lease_name.is_none() {
                Move::Gone
            } else {
                let wall = self.request.locks.clock.wall().as_microsecond();
                self.claimant.decide(self.mono(), wall)
            };
            match self.perform(step, &mut caller).await {
                Step::Next => {}
                Step::Granted(held) => break Ok(held),
                Step::Over(error) => match self.claimant.claim() {
                    // Leave the queue before saying so.
                    Some(_) => self.stop(Ending::With(error)),
                    None if self.claimant.is_unsettled() => self.stop(Ending::With(error)),
                    None => break Err(error),
                },
                Step::Gone => match self.ending.take() {
                    Some((Ending::With(error), _)) => break Err(error),
                    Some((Ending::CallerGone, _)) | None => return,
                },
            }
        };
        match outcome {
            Err(error) => {
                let _ = caller.send(Err(error));
            }
            Ok(held) => match self.guard(*held) {
                Ok(guard) => {
                    if let Err(Ok(unwanted)) = caller.send(Ok(guard)) {
                        let _ = unwanted.release().await;
                    }
                }
                Err(error) => {
                    let _ = caller.send(Err(error));
                }
            },
        }
    }

    fn stop(&mut self, ending: Ending) {
        if self.ending.is_none() {
            let within = self.lease_duration();
            self.ending = Some((ending, Instant::now() + within));
            self.claimant.stop();
        }
    }

    fn lease_duration(&self) -> Duration {
        self.claimant.lock().map_or(Duration::from_secs(5), |lock| {
            Duration::from_secs(u64::from(lock.duration_seconds.max(lock.granted_seconds())))
        })
    }

    fn unsettled(&mut self) -> AcquireError {
        let within = self.lease_duration();
        let unsettled = self.claimant.is_unsettled();
        match self.ending.take() {
            // Only a claim may be left behind: it goes with its Pod, or is passed over and deleted by the operator.
            Some((Ending::With(error), _)) if !unsettled => error,
            _ => AcquireError::Unsettled {
                lock: self.request.name.clone(),
                within,
            },
        }
    }

    async fn perform(&mut self, step: Move, caller: &mut Caller) -> Step {
        match step {
            Move::ReadLock => self.read_lock().await,
            Move::ReadLease => {
                let name = self.lease_name.clone().unwrap_or_default();
                match self.leases.get(&name, self.call_limit()).await {
                    Ok(found) => {
                        self.fine();
                        self.see(found, Seen::Read);
                        Step::Next
                    }
                    Err(error) => self.trouble(error).await,
                }
            }
            Move::ReadClaim(claim) => match self.claims.counts(&claim, self.call_limit()).await {
                Ok(counts) => {
                    self.fine();
                    self.claimant.claim_read(&claim, counts);
                    Step::Next
                }
                Err(error) => self.trouble(error).await,
            },
            Move::ListClaims => match self.claims.list(self.call_limit()).await {
                Ok(claims) => {
                    self.fine();
                    let had = self.claimant.claim().cloned();
                    self.claimant.claims_listed(claims);
                    match had.filter(|_| self.claimant.claim().is_none()) {
                        // Withdrawn or refused: which of the two?
                        Some(claim) => self.look_after_claim(&claim).await,
                        None => Step::Next,
                    }
                }
                Err(error) => self.trouble(error).await,
            },
            Move::MakeClaim => self.make_claim().await,
            Move::DeleteClaim(claim) => match self.claims.delete(&claim, self.call_limit()).await {
                Ok(()) => {
                    self.fine();
                    self.claimant.left();
                    Step::Next
                }
                Err(error) => self.trouble(error).await,
            },
            Move::StartOver => {
                self.claimant
                    .start_over(identity(&self.claimant_name, &random_uid()));
                Step::Next
            }
            Move::Write(write) => self.write(write).await,
            Move::Wait { until, why } => self.wait(until, why, caller).await,
            Move::Refuse(refusal) => self.refused(refusal).await,
            Move::Gone => Step::Gone,
        }
    }

    fn call_limit(&self) -> Duration {
        let end = self.ending.as_ref().map(|(_, by)| *by).or(self.wait_until);
        let left = end.map_or(CALL_LIMIT, |end| {
            end.saturating_duration_since(Instant::now())
        });
        left.clamp(Duration::from_secs(1), CALL_LIMIT)
    }

    fn fine(&mut self) {
        self.contact = true;
        self.failures = 0;
    }

    fn see(&mut self, found: Option<FoundLease>, seen: Seen) {
        let now = self.mono();
        self.claimant
            .lease_seen(found.as_ref().map(|found| found.record.clone()), seen, now);
        // The object must be the one whose record the claimant decides by.
        if self.claimant.lease() == found.as_ref().map(|found| &found.record) {
            self.found = found;
        }
    }

    async fn read_lock(&mut self) -> Step {
        let access = Access {
            verb: "get",
            resource: "distributedlocks.leasehold.dev",
            name: self.request.name.clone(),
            namespace: self.request.locks.namespace.clone(),
        };
        let limit = self.call_limit();
        let lock = match tokio::time::timeout(limit, self.locks.get_opt(&self.request.name)).await {
            Err(_) => return self.trouble(StoreError::timed_out(access, limit)).await,
            Ok(Err(error)) => return self.trouble(StoreError::of(access, &error)).await,
            Ok(Ok(lock)) => lock,
        };
        self.fine();
        let now = self.mono();
        let Some(lock) = lock else {
            if self.request.wait_for_lock && self.ending.is_none() {
                self.announce(Progress::NoSuchLock {
                    lock: self.request.name.clone(),
                });
                tokio::time::sleep(backoff(3)).await;
                return Step::Next;
            }
            return Step::Over(self.no_such_lock());
        };
        match lock.0 {
            Err(error) => {
                self.trouble(StoreError::Unreachable {
                    access,
                    message: format!("it cannot be decoded: {}", error.error),
                })
                .await
            }
            Ok(lock) => {
                let view = lock_view(&lock, 0, false);
                if let Err(error) = self.check_grace(&view) {
                    return Step::Over(error);
                }
                self.lease_name = Some(lock.slot_lease_name(0));
                self.claimant.lock_read(Some(view), now);
                Step::Next
            }
        }
    }

    /// Settings that can't work are refused before anything is written.
    fn check_grace(&self, lock: &LockView) -> Result<(), AcquireError> {
        let Grace::Exactly(grace) = self.request.kill_grace else {
            return Ok(());
        };
        let duration = Duration::from_secs(u64::from(lock.granted_seconds()));
        Terms::new(duration, grace)
            .map(drop)
            .map_err(|source| AcquireError::BadSettings {
                lock: self.request.name.clone(),
                source,
            })
    }

    async fn make_claim(&mut self) -> Step {
        let suffix: String = random_uid()
            .chars()
            .filter(char::is_ascii_hexdigit)
            .take(10)
            .collect();
        let name = format!(
            "{}-{suffix}",
            self.request.name.chars().take(52).collect::<String>()
        );
        let made = self
            .claims
            .make(
                &name,
                &self.claimant_name,
                self.request.pod.as_ref(),
                self.call_limit(),
            )
            .await;
        match made {
            Ok(claim) => {
                self.fine();
                let identity = identity(&self.claimant_name, &claim.uid);
                self.claimant.joined(claim, identity);
                Step::Next
            }
            Err(error) => self.trouble(error).await,
        }
    }

    async fn write(&mut self, write: Write) -> Step {
        let (Some(name), Some(found)) = (self.lease_name.clone(), self.found.clone()) else {
            return Step::Next;
        };
        if found.record.resource_version != write.record().resource_version
            || found.record.uid != write.record().uid
        {
            // The object at hand is not the one that the write replaces: read it again.
            return match self.leases.get(&name, self.call_limit()).await {
                Ok(found) => {
                    self.see(found, Seen::Read);
                    Step::Next
                }
                Err(error) => self.trouble(error).await,
            };
        }
        self.claimant.sending(&write);
        let sent = self.boot();
        let put = self
            .leases
            .put(&name, &found, write.record(), self.call_limit())
            .await;
        let now = self.mono();
        let held = self.claimant.answered(&write, put.answer(), sent, now);
        match put {
            Put::Applied(applied) => {
                self.fine();
                self.found = Some(*applied);
                match held {
                    Some(held) => self.granted(held).await,
                    None => Step::Next,
                }
            }
            Put::Conflict | Put::Gone => Step::Next,
            Put::Forbidden(error) | Put::Refused(error) | Put::Unknown(error) => {
                self.trouble(error).await
            }
        }
    }

    /// A take answered too late to be used is released, and so is one that nobody wants any more.
    async fn granted(&mut self, held: Held) -> Step {
        let wanted = !matches!(self.ending, Some((Ending::CallerGone, _)));
        if wanted && held.is_held(self.boot()) {
            return Step::Granted(Box::new(held));
        }
        let mut held = held;
        let Some((mut renewer, lock)) = self.renewer() else {
            return Step::Next;
        };
        let reason = if wanted {
            "the take was answered too late"
        } else {
            "nobody waits for it any more"
        };
        if let Err(error) = renewer.release(&mut held, &lock, reason).await {
            tracing::warn!(lock = %self.request.name, error, "a lock that was granted too late was not released");
        }
        self.found = None;
        self.claimant.lease_seen(None, Seen::Read, self.mono());
        self.see_again().await
    }

    async fn see_again(&mut self) -> Step {
        let name = self.lease_name.clone().unwrap_or_default();
        match self.leases.get(&name, self.call_limit()).await {
            Ok(found) => {
                self.see(found, Seen::Read);
                Step::Next
            }
            Err(error) => self.trouble(error).await,
        }
    }

    fn renewer(&self) -> Option<(Renewer, LockView)> {
        let locks = &self.request.locks;
        let renewer = Renewer::new(
            locks.config.clone(),
            &locks.namespace,
            self.lease_name.as_ref()?,
            self.found.clone()?,
            Arc::clone(&locks.clock),
        );
        Some((renewer.ok()?, self.claimant.lock()?.clone()))
    }

    fn guard(&mut self, held: Held) -> Result<Guard, AcquireError> {
        let Some((renewer, lock)) = self.renewer() else {
            return Err(AcquireError::Unsettled {
                lock: self.request.name.clone(),
                within: self.lease_duration(),
            });
        };
        let facts = Facts {
            lock: self.request.name.clone(),
            namespace: self.request.locks.namespace.clone(),
            slot: 0,
            identity: held.grant().holder.clone(),
            token: held.grant().token,
        };
        let (state_sender, state) = watch::channel(State::Held(deadlines(&held)));
        let (release, release_receiver) = oneshot::channel();
        let leaving = self.claimant.claim().cloned().map(|claim| {
            let claims = self.claims.clone();
            tokio::spawn(async move {
                for attempt in 0..5 {
                    match claims.delete(&claim, CALL_LIMIT).await {
                        Ok(()) => return,
                        Err(error) => {
                            tracing::debug!(%error, "a claim that was served is not deleted yet")
                        }
                    }
                    tokio::time::sleep(backoff(attempt)).await;
                }
            })
        });
        let lease_name = self.lease_name.clone().unwrap_or_default();
        let keep = Keep {
            held,
            renewer,
            lock,
            slot: 0,
            locks: self.locks.clone(),
            watch: self
                .watch
                .take()
                .unwrap_or_else(|| LeaseWatch::new(self.leases.api().clone(), &lease_name)),
            state: state_sender,
            release: release_receiver,
            leaving,
            clock: Arc::clone(&self.request.locks.clock),
        };
        tokio::spawn(keep.run());
        Ok(Guard {
            facts,
            state,
            release,
            clock: Arc::clone(&self.request.locks.clock),
        })
    }

    async fn wait(&mut self, until: Option<Moment>, why: Waiting, caller: &mut Caller) -> Step {
        let unready = matches!(
            why,
            Waiting::NoLease | Waiting::NotReady | Waiting::Conflict
        );
        if unready && self.patience == Patience::Try && self.started.elapsed() >= TRY_READY_WITHIN {
            return Step::Over(AcquireError::NotReady(Box::new(self.report(Some(why)))));
        }
        self.announce_wait(why);
        let name = self.lease_name.clone().unwrap_or_default();
        if self.watch.is_none() && !self.watch_forbidden {
            self.watch = Some(LeaseWatch::new(self.leases.api().clone(), &name));
        }
        let terms = Terms::fitting(
            u32::try_from(self.lease_duration().as_secs()).unwrap_or(u32::MAX),
            Duration::ZERO,
        );
        let period = if self.watch_forbidden || unready {
            terms.retry_period()
        } else {
            terms.slow_beat()
        };
        let beat = *self.beat.get_or_insert_with(|| {
            Instant::now() + period.mul_f64(0.75 + rand::random::<f64>() / 2.0)
        });
        let mut wake = beat.min(self.reported.map_or(beat, |(_, at)| at + REPORT_EVERY));
        if let Some(until) = until {
            wake = wake.min(Instant::now() + until.saturating_sub(self.mono()));
        }
        if let Some(end) = self.wait_until {
            wake = wake.min(end);
        }
        if self.patience == Patience::Try {
            wake = wake.min(self.started + TRY_READY_WITHIN);
        }
        let watched = async {
            match &mut self.watch {
                Some(watch) => watch.next().await,
                None => std::future::pending().await,
            }
        };
        let sight = tokio::select! {
            sight = watched => Some(sight),
            () = tokio::time::sleep_until(wake) => None,
            () = caller.closed() => return Step::Next,
        };
        match sight {
            Some(Sight::Lease(found, seen)) => {
                self.fine();
                self.see(Some(*found), seen);
                Step::Next
            }
            Some(Sight::NoLease(seen)) => {
                self.see(None, seen);
                Step::Next
            }
            Some(Sight::Forbidden) => {
                tracing::warn!(lease = %name, "not allowed to watch the lease: reading it instead");
                self.watch = None;
                self.watch_forbidden = true;
                self.beat = None;
                Step::Next
            }
            None if Instant::now() >= beat => self.slow_beat(unready).await,
            None => Step::Next,
        }
    }

    /// Nothing may be right only because a watch delivered: Lease, lock and claim are read now and then all the same.
    async fn slow_beat(&mut self, unready: bool) -> Step {
        self.beat = None;
        if unready {
            if let step @ (Step::Over(_) | Step::Gone) = self.read_lock().await {
                return step;
            }
        }
        if let step @ (Step::Over(_) | Step::Gone) = self.see_again().await {
            return step;
        }
        match self.claimant.claim().cloned() {
            Some(claim) if !self.watch_forbidden => self.look_after_claim(&claim).await,
            _ => Step::Next,
        }
    }

    async fn look_after_claim(&mut self, claim: &crate::engine::ClaimRef) -> Step {
        match self.claims.own(claim, self.call_limit()).await {
            Ok(OwnClaim::Waits) => Step::Next,
            Ok(OwnClaim::Gone) => {
                self.claimant.left();
                Step::Next
            }
            Ok(OwnClaim::Rejected(message)) => Step::Over(AcquireError::Rejected {
                lock: self.request.name.clone(),
                message,
            }),
            Err(error) => self.trouble(error).await,
        }
    }

    async fn refused(&mut self, refusal: Refusal) -> Step {
        let lock = self.request.name.clone();
        match refusal {
            Refusal::Busy => Step::Over(AcquireError::Busy(Box::new(self.report(None)))),
            Refusal::NewerVersion => Step::Over(AcquireError::NewerVersion { lock }),
            Refusal::NoTokenLeft => Step::Over(AcquireError::NoTokenLeft { lock }),
            Refusal::NoLock if self.request.wait_for_lock => {
                tokio::time::sleep(backoff(3)).await;
                self.read_lock().await
            }
            Refusal::NoLock => Step::Over(self.no_such_lock()),
        }
    }

    fn no_such_lock(&self) -> AcquireError {
        AcquireError::NoSuchLock {
            lock: self.request.name.clone(),
            namespace: self.request.locks.namespace.clone(),
        }
    }

    /// What is forbidden stays forbidden; a server that does not answer may do so again.
    async fn trouble(&mut self, error: StoreError) -> Step {
        if self.ending.is_some() {
            // Leaving: try again until the time for it is over.
            self.failures += 1;
            tokio::time::sleep(backoff(self.failures)).await;
            return Step::Next;
        }
        let error = match error {
            StoreError::Forbidden { .. } => return Step::Over(AcquireError::Forbidden(error)),
            error => error,
        };
        let give_up = match self.patience {
            Patience::Try => self.started.elapsed() >= TRY_READY_WITHIN,
            Patience::Wait => !self.contact && self.started.elapsed() >= FIRST_CONTACT_WITHIN,
        };
        if give_up || matches!(error, StoreError::Refused { .. }) {
            return Step::Over(AcquireError::Unreachable(error));
        }
        if self.failures == 0 {
            self.announce(Progress::Trouble(error.to_string()));
        }
        self.failures += 1;
        tokio::time::sleep(backoff(self.failures)).await;
        Step::Next
    }

    fn announce_wait(&mut self, why: Waiting) {
        if self.request.progress.is_none() || self.ending.is_some() {
            return;
        }
        // A turn that comes in the next moment is not worth a word.
        let quiet = why == Waiting::Turn && self.reported.is_none();
        let due = self.reported.is_none_or(|(said, at)| {
            said != Some(why) && why != Waiting::Turn || at.elapsed() >= REPORT_EVERY
        });
        if due && !quiet {
            self.reported = Some((Some(why), Instant::now()));
            let report = self.report(Some(why));
            self.announce(Progress::Waiting(report));
        }
    }

    fn announce(&self, progress: Progress) {
        if let Some(tell) = &self.request.progress {
            tell(&progress);
        }
    }

    fn report(&self, why: Option<Waiting>) -> WaitReport {
        let lease = self.claimant.lease();
        let holder = lease
            .map(|lease| lease.spec.holder.clone())
            .filter(|holder| !holder.is_empty());
        WaitReport {
            lock: self.request.name.clone(),
            why,
            since: lease
                .and_then(|lease| lease.spec.acquire_time)
                .and_then(|micros| Timestamp::from_microsecond(micros).ok()),
            token: lease
                .and_then(|lease| lease.current_token())
                .map(crate::api::FencingToken::get),
            next: lease
                .and_then(|lease| lease.next.as_ref())
                .filter(|next| self.claimant.claim() != Some(next))
                .map(|next| next.name.clone()),
            place: self.claimant.place(),
            holder,
        }
    }
}

/// What came of a move.
enum Step {
    Next,
    Granted(Box<Held>),
    Over(AcquireError),
    Gone,
}
