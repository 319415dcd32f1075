//! The task that takes a lock: it drives [`Claimant`] until a grant, a refusal, or until its caller is gone.

mod progress;
mod refusals;
mod steps;
mod waiting;
mod watches;

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::Api;
use kube::core::DeserializeGuard;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use self::progress::{Progress, WaitReport};
use self::refusals::{Failures, Refusals, Right};
use self::watches::Watches;
use super::calls::CALL_LIMIT;
use super::claims::ClaimStore;
use super::error::AcquireError;
use super::guard::Guard;
use super::identity::{claimant_name, holder_note, host_name, identity, own_pod, random_uid};
use super::renew::boot_moment;
use super::{Acquire, Grace};
use crate::api::{self, DistributedLock};
use crate::engine::{ClaimRef, Claimant, Held, Moment, Move, Patience, Requester, Seen, Waiting};
use crate::lease::store::{CLAIMS, StoreError};
use crate::lease::{FoundLease, LeaseStore};

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
            match request.check() {
                Ok(()) => Seeker::new(request, patience).seek(result).await,
                Err(error) => {
                    let _ = result.send(Err(error));
                }
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
        let Self { mut answer, task } = self;
        answer.close();
        // It may have been granted in this very moment.
        if let Ok(Ok(had)) = answer.try_recv() {
            let _ = had.release().await;
        }
        let _ = task.await;
    }
}

/// Now, as waits and observations count.
fn mono(request: &Acquire) -> Moment {
    Duration::from_nanos(request.locks.clock.mono().as_nanos())
}

type Caller = oneshot::Sender<Result<Guard, AcquireError>>;

/// How long somebody who leaves tries to delete its claim.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

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
    /// By slot: the objects of which the claimant knows the records.
    found: BTreeMap<u32, FoundLease>,
    /// By uid: whose claims were listed last.
    claimants: BTreeMap<String, String>,
    watches: Watches,
    started: Moment,
    /// When the wait is over; `None` for never.
    wait_until: Option<Moment>,
    /// Why the claimant was told to stop, and by when it must have.
    ending: Option<(Ending, Moment)>,
    contact: bool,
    failures: Failures,
    /// The states of Leases, by slot, that a write was last turned down for: uid and resourceVersion.
    turned_down: BTreeMap<u32, (String, u64)>,
    /// The name of a claim whose creation is not settled.
    making: Option<String>,
    /// A claim of its own that waits no longer, as a list of claims said; why is not known yet.
    doubtful: Option<ClaimRef>,
    /// How often in a row a list did not show a claim of its own.
    doubts: u32,
    /// The latest failure, while nothing has succeeded since.
    last_error: Option<StoreError>,
    refusals: Refusals,
    /// When somebody was last told that there is no such lock; `None` while there is.
    no_lock_said: Option<Moment>,
    /// What it last waited for.
    why: Option<Waiting>,
    reported: Option<(Waiting, Moment)>,
    beat: Option<Moment>,
    /// Slow beats since the slots that are not watched were looked at.
    beats: usize,
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
            .or_else(|| own_pod().map(|pod| pod.name));
        let claimant_name = claimant_name(&name.unwrap_or_else(host_name));
        let who = Requester {
            pod: request.pod.clone(),
            note: Some(holder_note()),
            ..Requester::heartbeat(identity(&claimant_name, &random_uid()))
        };
        let grace = match request.kill_grace {
            Grace::UpTo(grace) | Grace::Exactly(grace) => grace,
        };
        let started = mono(&request);
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
            found: BTreeMap::new(),
            claimants: BTreeMap::new(),
            watches: Watches::default(),
            started,
            wait_until: request.wait.map(|wait| started.saturating_add(wait)),
            ending: None,
            contact: false,
            failures: Failures::default(),
            turned_down: BTreeMap::new(),
            making: None,
            doubtful: None,
            doubts: 0,
            last_error: None,
            refusals: Refusals::default(),
            no_lock_said: None,
            why: None,
            reported: None,
            beat: None,
            beats: 0,
            request,
        }
    }

    fn mono(&self) -> Moment {
        mono(&self.request)
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
                } else if self.wait_until.is_some_and(|until| self.mono() >= until) {
                    let error = self.out_of_time();
                    self.stop(Ending::With(error));
                }
            }
            if self
                .ending
                .as_ref()
                .is_some_and(|(_, by)| self.mono() >= *by)
            {
                break Err(self.unsettled());
            }
            // Nothing of it is left in the cluster: nothing to read or write for.
            let nothing_left = self.has_left();
            if self.ending.is_some()
                && let Some(name) = self.making.clone()
            {
                if let Step::Pause(pause) = self.find_claim(&name).await {
                    self.pause(pause, &mut caller).await;
                }
                continue;
            }
            if let Some(claim) = self.doubtful.clone() {
                let done = if self.ending.is_some() {
                    self.delete_claim(&claim).await
                } else {
                    tokio::select! {
                        biased;
                        done = self.look_after_claim(&claim) => done,
                        () = caller.closed() => Step::Next,
                    }
                };
                match done {
                    Step::Pause(pause) => self.pause(pause, &mut caller).await,
                    Step::Over(error) if !self.has_left() => self.stop(Ending::With(error)),
                    Step::Over(error) => break Err(error),
                    _ => {}
                }
                continue;
            }
            // The Lease's name is the lock's to tell.
            let step = if self.ending.is_some() && nothing_left {
                Move::Gone
            } else if self.lease_name.is_none() {
                Move::ReadLock
            } else {
                let wall = self.request.locks.clock.wall().as_microsecond();
                self.claimant.decide(self.mono(), wall)
            };
            // A read is given up with its caller; what is written is settled first.
            let reads = !matches!(
                step,
                Move::Write(_) | Move::MakeClaim | Move::DeleteClaim(_)
            );
            let done = if reads && self.ending.is_none() {
                tokio::select! {
                    biased;
                    done = self.perform(step) => done,
                    () = caller.closed() => Step::Next,
                }
            } else {
                self.perform(step).await
            };
            match done {
                Step::Next => {}
                Step::Pause(pause) => self.pause(pause, &mut caller).await,
                Step::Granted(slot, held) => break Ok((slot, held)),
                // Leave the queue, and settle what was sent, before saying so.
                Step::Over(error) if !self.has_left() => self.stop(Ending::With(error)),
                Step::Over(error) => break Err(error),
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
            Ok((slot, held)) => match self.guard(slot, *held) {
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

    /// Waits for so long, but not beyond its own end, nor its caller's.
    async fn pause(&mut self, pause: Duration, caller: &mut Caller) {
        tokio::select! {
            () = tokio::time::sleep(pause.min(self.left())) => {}
            () = caller.closed(), if self.ending.is_none() => {}
        }
    }

    /// How long until its own end.
    fn left(&self) -> Duration {
        let end = self.ending.as_ref().map(|(_, by)| *by).or(self.wait_until);
        end.map_or(Duration::MAX, |end| end.saturating_sub(self.mono()))
    }

    /// Whether nothing of it is in the cluster, nor may come to be.
    fn has_left(&self) -> bool {
        self.claimant.claim().is_none()
            && !self.claimant.is_unsettled()
            && self.making.is_none()
            && self.doubtful.is_none()
    }

    fn stop(&mut self, ending: Ending) {
        if self.ending.is_none() {
            // A take that is open must be settled. A claim left behind is only passed over, and not worth so long a wait.
            let within = if self.claimant.is_unsettled() {
                self.lease_duration()
            } else {
                self.lease_duration().min(LEAVE_WITHIN)
            };
            self.ending = Some((ending, self.mono().saturating_add(within)));
            self.claimant.stop();
        }
    }

    fn lease_duration(&self) -> Duration {
        self.claimant
            .lock(0)
            .map_or(Duration::from_secs(5), |lock| {
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

    async fn perform(&mut self, step: Move) -> Step {
        match step {
            Move::ReadLock => self.read_lock().await,
            Move::ReadLease(slot) => self.read_lease(slot).await,
            Move::ReadClaim(claim) => match self.claims.counts(&claim, self.call_limit()).await {
                Ok(counts) => {
                    self.fine(("get", CLAIMS));
                    self.claimant.claim_read(&claim, counts);
                    Step::Next
                }
                Err(error) => self.trouble(error),
            },
            Move::ListClaims => match self.claims.list(self.call_limit()).await {
                Ok(claims) => {
                    self.fine(("list", CLAIMS));
                    let had = self.claimant.claim().cloned();
                    let (claims, claimants): (Vec<_>, Vec<_>) = claims.into_iter().unzip();
                    let uids = claims.iter().map(|claim| claim.claim.uid.clone());
                    self.claimants = uids.zip(claimants).collect();
                    self.claimant.claims_listed(claims);
                    // Withdrawn or refused: which of the two is seen to next.
                    self.doubtful = had.filter(|_| self.claimant.claim().is_none());
                    self.doubts = self.doubtful.as_ref().map_or(0, |_| self.doubts + 1);
                    Step::Next
                }
                Err(error) => self.trouble(error),
            },
            Move::MakeClaim => self.make_claim().await,
            Move::DeleteClaim(claim) => self.delete_claim(&claim).await,
            Move::StartOver => {
                self.claimant
                    .start_over(identity(&self.claimant_name, &random_uid()));
                Step::Next
            }
            Move::Write(write) => self.write(write).await,
            Move::Wait { until, why } => self.wait(until, why).await,
            Move::Refuse(refusal) => self.refused(refusal).await,
            Move::Gone => Step::Gone,
        }
    }

    async fn delete_claim(&mut self, claim: &ClaimRef) -> Step {
        match self.claims.delete(claim, self.call_limit()).await {
            Ok(()) => {
                self.fine(("delete", CLAIMS));
                self.doubtful = None;
                self.claimant.left();
                Step::Next
            }
            // Who leaves for want of rights has no use in trying for long: what stays behind is passed over.
            Err(error @ StoreError::Forbidden { .. })
                if matches!(
                    self.ending,
                    Some((Ending::With(AcquireError::Forbidden(_)), _))
                ) =>
            {
                self.announce(&Progress::ClaimLeft(error.to_string()));
                self.doubtful = None;
                self.claimant.left();
                Step::Next
            }
            Err(error) => self.trouble(error),
        }
    }

    fn call_limit(&self) -> Duration {
        let left = match self.ending {
            // A call that hangs leaves time for it to be made again.
            Some(_) => self.left() / 3,
            None => self.left(),
        };
        left.clamp(Duration::from_secs(1), CALL_LIMIT)
    }

    /// A call of this kind was answered as it should be.
    fn fine(&mut self, access: Right) {
        self.refusals.allowed(access);
        self.failures.succeeded(access);
        self.contact = true;
        self.last_error = None;
    }

    /// The name of a slot's Lease.
    fn lease_name(&self, slot: u32) -> String {
        let name = self.lease_name.as_deref().unwrap_or_default();
        api::slot_lease_name(name, slot)
    }

    fn see(&mut self, slot: u32, found: Option<FoundLease>, seen: Seen) {
        let now = self.mono();
        if seen == Seen::Read
            && let (Some(known), Some(found)) = (self.claimant.lease(slot), &found)
            && found.record.resource_version < known.resource_version
        {
            // Revisions went back (a restore of etcd): a watch from a future one would tell nothing, so list again.
            self.watches.end(slot);
        }
        let record = found.as_ref().map(|found| found.record.clone());
        self.claimant.lease_seen(slot, record, seen, now);
        // The object must be the one whose record the claimant decides by.
        match (self.claimant.lease(slot), found) {
            (None, _) => drop(self.found.remove(&slot)),
            (Some(known), Some(found)) if *known == found.record => {
                self.found.insert(slot, found);
            }
            (Some(_), _) => {}
        }
    }
}

/// What came of a move.
enum Step {
    Next,
    /// The same, after a while.
    Pause(Duration),
    Granted(u32, Box<Held>),
    Over(AcquireError),
    Gone,
}
