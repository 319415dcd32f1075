//! Several locks at once: all or none.
//!
//! # The contract
//!
//! * The locks are taken one after the other in one canonical order: by namespace, then by name. While it waits for a
//!   later one the earlier ones are held, and renewed. So those who take their locks through [`all`] never wait for
//!   each other in a circle.
//! * All or none: if one can't be had (busy, not in time, refused, an error), or the caller goes away, everything taken
//!   so far is given back and the queue is left before that is told.
//! * A lock that is lost while it waits for a later one (revoked, `maxHoldSeconds`, an outage) is no end: it gives all
//!   back and starts over, with new claims and new tokens, as long as the time allows.
//! * [`AcquireAll::wait`] is the time for all of them together.
//!
//! # Limits
//!
//! The locks are of one cluster. Whoever takes some of the same locks in another order (one guard after the other by
//! hand, a `leasehold run` inside another) can wait for us while we wait for it; then nobody gets on until a wait is
//! over. Take them through [`all`] everywhere, or in its order.
//!
//! Held while it waits, an earlier lock keeps others out without any work being done, and its `maxHoldSeconds` run from
//! its own grant. Deliberately absent: taking "whatever is free", and giving some back to let others go first.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{join, join_all};
use kube::api::Api;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::acquire::{Acquiring, Progress};
use super::calls::backoff;
use super::error::{AcquireAllError, AcquireError};
use super::guard::Guard;
use super::guards::{Guards, Lost};
use super::keep::{LockRead, read_lock};
use super::{Acquire, Listener};
use crate::clock::MonoInstant;
use crate::engine::Patience;
use crate::lease::view::lock_view;

/// How long the first look at all locks may take. Who gets no answer by then finds out lock by lock.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// Several locks, to be held together. What was set for one of them before stays.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::client::{self, Locks};
///
/// let locks = Locks::infer().await?;
/// let guards = client::all([locks.lock("billing"), locks.lock("ledger")]).acquire().await?;
/// let work = async { /* send guards.token("ledger") with every write to the ledger */ };
/// tokio::select! {
///     () = work => {}
///     lost = guards.lost() => eprintln!("stopped: lost {} ({})", lost.lock, lost.reason.as_str()),
/// }
/// for one in guards.release().await {
///     one.outcome?;
/// }
/// # Ok(())
/// # }
/// ```
pub fn all(locks: impl IntoIterator<Item = Acquire>) -> AcquireAll {
    AcquireAll {
        requests: locks.into_iter().collect(),
        wait: None,
        progress: None,
    }
}

/// What is asked of several locks; [`AcquireAll::acquire`] asks for it.
#[must_use = "nothing is asked for before acquire or try_acquire"]
#[derive(Clone)]
pub struct AcquireAll {
    requests: Vec<Acquire>,
    wait: Option<Duration>,
    progress: Option<Listener>,
}

impl AcquireAll {
    fn each(mut self, change: impl Fn(Acquire) -> Acquire) -> Self {
        self.requests = self.requests.into_iter().map(change).collect();
        self
    }

    /// How long to wait at most until all are held; without it, for as long as it takes.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.wait = Some(at_most);
        self
    }

    /// As [`Acquire::claimant`], for all.
    pub fn claimant(self, claimant: &str) -> Self {
        self.each(|request| request.claimant(claimant))
    }

    /// As [`Acquire::wait_for_lock`], for all.
    pub fn wait_for_lock(self) -> Self {
        self.each(Acquire::wait_for_lock)
    }

    /// As [`Acquire::kill_grace`], for all: it must fit each of them.
    pub fn kill_grace(self, grace: Duration) -> Self {
        self.each(|request| request.kill_grace(grace))
    }

    /// As [`Acquire::kill_grace_up_to`], for all.
    pub fn kill_grace_up_to(self, grace: Duration) -> Self {
        self.each(|request| request.kill_grace_up_to(grace))
    }

    /// As [`Acquire::priority`], for all.
    pub fn priority(self, priority: i32) -> Self {
        self.each(|request| request.priority(priority))
    }

    /// As [`Acquire::on_progress`], for all.
    pub fn on_progress(mut self, report: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        let listener: Listener = Arc::new(report);
        self.progress = Some(Arc::clone(&listener));
        self.each(|mut request| {
            request.progress = Some(Arc::clone(&listener));
            request
        })
    }

    /// Takes all of the locks, waiting in their queues for as long as [`AcquireAll::wait`] allows.
    pub async fn acquire(self) -> Result<Guards, AcquireAllError> {
        self.begin().outcome().await
    }

    /// Takes all of the locks if they can be had at once, else none.
    pub async fn try_acquire(self) -> Result<Guards, AcquireAllError> {
        self.begin_try().outcome().await
    }

    /// Starts what [`AcquireAll::acquire`] does, for a caller that wants to wait until a withdrawal is over too.
    pub fn begin(self) -> AcquiringAll {
        // No time to wait is not "no try".
        if self.wait == Some(Duration::ZERO) {
            return self.begin_try();
        }
        AcquiringAll::begin(self, Patience::Wait)
    }

    /// Starts what [`AcquireAll::try_acquire`] does.
    pub fn begin_try(self) -> AcquiringAll {
        AcquiringAll::begin(self, Patience::Try)
    }

    /// Puts the locks in their order; refuses what can't work before anything is taken.
    fn sort(&mut self) -> Result<(), AcquireAllError> {
        if self.requests.is_empty() {
            return Err(AcquireAllError::Empty);
        }
        let key = |request: &Acquire| (request.locks.namespace.clone(), request.name.clone());
        self.requests.sort_by_cached_key(key);
        for pair in self.requests.windows(2) {
            if let [one, other] = pair
                && key(one) == key(other)
            {
                let (namespace, lock) = key(one);
                return Err(AcquireAllError::Duplicate { lock, namespace });
            }
        }
        for request in &self.requests {
            request.check().map_err(|error| failed(request, error))?;
        }
        Ok(())
    }
}

fn failed(request: &Acquire, error: AcquireError) -> AcquireAllError {
    AcquireAllError::Lock {
        lock: request.name.clone(),
        namespace: request.locks.namespace.clone(),
        error: Box::new(error),
    }
}

/// Several locks that are being asked for, by a task of its own: a caller that is gone leaves nothing behind.
///
/// Dropped, it withdraws in the background; [`AcquiringAll::withdraw`] waits until that is done.
#[must_use = "dropped, it withdraws from the queues and gives back what it has"]
#[derive(Debug)]
pub struct AcquiringAll {
    answer: oneshot::Receiver<Result<Guards, AcquireAllError>>,
    task: JoinHandle<()>,
}

type Caller = oneshot::Sender<Result<Guards, AcquireAllError>>;

impl AcquiringAll {
    fn begin(mut request: AcquireAll, patience: Patience) -> Self {
        let (result, answer) = oneshot::channel();
        let task = tokio::spawn(async move {
            match request.sort() {
                Ok(()) => Collector::new(request, patience).collect(result).await,
                Err(error) => {
                    let _ = result.send(Err(error));
                }
            }
        });
        Self { answer, task }
    }

    /// The guards, or why there are none. Safe to drop and to call again until it has answered.
    pub async fn outcome(&mut self) -> Result<Guards, AcquireAllError> {
        (&mut self.answer)
            .await
            .unwrap_or(Err(AcquireAllError::ShutDown))
    }

    /// Gives up: leaves the queue, gives back what was granted, and returns when that is done, or when the leases have
    /// ended by themselves.
    pub async fn withdraw(self) {
        let Self { mut answer, task } = self;
        answer.close();
        if let Ok(Ok(had)) = answer.try_recv() {
            had.release().await;
        }
        let _ = task.await;
    }
}

/// One attempt to take several locks.
struct Collector {
    request: AcquireAll,
    patience: Patience,
    started: MonoInstant,
}

/// How one way through all locks ended. Nothing is held but by `Had`.
enum Round {
    Had(Guards),
    CallerGone,
    Failed(AcquireAllError),
    /// One was lost while this one was asked for.
    Lost(Lost, String),
}

/// What came first while a lock was asked for.
enum Asked {
    Answered(Result<Guard, AcquireError>),
    Lost(Lost),
    CallerGone,
}

impl Collector {
    fn new(request: AcquireAll, patience: Patience) -> Self {
        let started = request.requests[0].locks.clock.mono();
        Self {
            request,
            patience,
            started,
        }
    }

    /// What is left of the time for all; `None` for all the time in the world.
    fn left(&self) -> Option<Duration> {
        let now = self.request.requests[0].locks.clock.mono();
        let gone = now.saturating_duration_since(self.started);
        self.request.wait.map(|wait| wait.saturating_sub(gone))
    }

    async fn collect(self, mut caller: Caller) {
        let looked = tokio::select! {
            looked = self.look() => looked,
            () = caller.closed() => return,
        };
        let outcome = match looked {
            Ok(()) => self.rounds(&mut caller).await,
            Err(error) => Some(Err(error)),
        };
        if let Some(outcome) = outcome
            && let Err(Ok(unwanted)) = caller.send(outcome)
        {
            unwanted.release().await;
        }
    }

    /// Whether each lock is there and its times fit: better found out now than after a long wait for the first one.
    async fn look(&self) -> Result<(), AcquireAllError> {
        let requests = &self.request.requests;
        if requests.len() < 2 {
            return Ok(());
        }
        let within = LOOK_WITHIN.min(self.left().unwrap_or(LOOK_WITHIN));
        let reads = requests.iter().map(|request| {
            let Acquire { locks, name, .. } = request;
            let api = Api::namespaced(locks.client.clone(), &locks.namespace);
            tokio::time::timeout(within, read_lock(api, name.clone()))
        });
        for (request, read) in requests.iter().zip(join_all(reads).await) {
            let checked = match read.unwrap_or(LockRead::NoAnswer) {
                LockRead::Gone if !request.wait_for_lock => Err(AcquireError::NoSuchLock {
                    lock: request.name.clone(),
                    namespace: request.locks.namespace.clone(),
                }),
                LockRead::Found(lock) => match lock.0 {
                    Ok(lock) => request.check_grace(&lock_view(&lock, 0, false)),
                    Err(_) => Ok(()),
                },
                LockRead::Gone | LockRead::NoAnswer => Ok(()),
            };
            checked.map_err(|error| failed(request, error))?;
        }
        Ok(())
    }

    /// `None` if nobody wants them any more.
    async fn rounds(&self, caller: &mut Caller) -> Option<Result<Guards, AcquireAllError>> {
        let mut again = 0;
        loop {
            let (lost, waited_for) = match self.round(caller).await {
                Round::Had(guards) => return Some(Ok(guards)),
                Round::Failed(error) => return Some(Err(error)),
                Round::CallerGone => return None,
                Round::Lost(lost, waited_for) => (lost, waited_for),
            };
            let left = self.left();
            if self.patience == Patience::Try || left == Some(Duration::ZERO) {
                return Some(Err(AcquireAllError::Lost { lost, waited_for }));
            }
            if let Some(tell) = &self.request.progress {
                tell(&Progress::StartingOver {
                    lock: lost.lock,
                    reason: lost.reason,
                    waited_for,
                });
            }
            let pause = backoff(again);
            tokio::select! {
                () = tokio::time::sleep(left.map_or(pause, |left| left.min(pause))) => {}
                () = caller.closed() => return None,
            }
            again += 1;
        }
    }

    /// Takes one after the other; gives all back if one is not to be had, or is lost meanwhile.
    async fn round(&self, caller: &mut Caller) -> Round {
        let mut guards = Guards::default();
        for request in &self.request.requests {
            let mut acquiring = self.ask(request);
            let asked = tokio::select! {
                biased;
                () = caller.closed() => Asked::CallerGone,
                lost = guards.lost() => Asked::Lost(lost),
                outcome = acquiring.outcome() => Asked::Answered(outcome),
            };
            let ended = match asked {
                Asked::Answered(Ok(guard)) => {
                    guards.push(guard);
                    continue;
                }
                Asked::Answered(Err(error)) => {
                    guards.release().await;
                    return Round::Failed(failed(request, error));
                }
                Asked::Lost(lost) => Round::Lost(lost, request.name.clone()),
                Asked::CallerGone => Round::CallerGone,
            };
            join(acquiring.withdraw(), guards.release()).await;
            return ended;
        }
        // One may have been lost in the moment in which the last one was had.
        if let Some(lost) = guards.lost().now_or_never() {
            guards.release().await;
            let last = self.request.requests.last();
            return Round::Lost(lost, last.map(|last| last.name.clone()).unwrap_or_default());
        }
        Round::Had(guards)
    }

    fn ask(&self, request: &Acquire) -> Acquiring {
        let request = request.clone();
        if self.patience == Patience::Try || request.has_no_time() {
            return request.begin_try();
        }
        let times = [request.wait, self.left()];
        match times.into_iter().flatten().min() {
            // No time at all would be a try, which has other answers.
            Some(left) => request.wait(left.max(Duration::from_millis(1))).begin(),
            None => request.begin(),
        }
    }
}
