//! Taking, keeping and giving back locks.
//!
//! # The contract
//!
//! * A [`Guard`] is handed out only after a 2xx to the guarded write that made this process the holder. Its token is
//!   higher than that of every earlier grant of the lock, and never changes.
//! * The grant is renewed every third of the lease duration, on a connection that serves renewals alone. Unless a renewal is answered
//!   in time, [`Guard::lost`] resolves at the renew deadline: 0.8 of the lease duration, less the kill grace, counted
//!   from before the last renewal that was answered was *sent*. Others may take the lock a full lease duration after
//!   that renewal at the earliest.
//! * So at no instant do two processes have a guard that says "held", unless a grant was revoked, or its Lease or lock
//!   deleted. A process that is *frozen* past its deadline does not know it: only the resource can refuse it. Send
//!   [`Guard::token`] with everything that you write, and have the resource refuse a lower one ([`crate::fence`]).
//! * [`Acquire::acquire`] may be dropped at any await (a time-out around it): a task of its own settles what was sent
//!   and gives back what was granted.
//! * [`Guard::release`] returns after a confirmed write, and after the queue is left; after it returns no further write
//!   is sent. A dropped guard is
//!   released in the background.
//! * Where the lock has `maxHoldSeconds`, [`Guard::lost`] resolves that long after the take was sent, with
//!   [`LossReason::MaxHold`]; released soon after, the lock is given back like any other.
//! * [`all`] takes several locks, all or none.
//! * [`Acquire::resume`] goes on with one's own grant after a restart of the process, before its deadline.
//!
//! # Limits
//!
//! With the API server or etcd's quorum unreachable nothing new is granted and holders stop at their deadline. Clocks
//! of machines need not agree, but must run at about the same speed: a fifth of the lease covers the difference. A
//! machine that its hypervisor stops is frozen with its clock, which may not count that time: what was left of the
//! deadline is then believed after it, until a renewal or the watch tells, and only the resource can refuse.
//! Everything runs on the tokio runtime that called `acquire`; a runtime that is blocked can't renew.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::client::Locks;
//!
//! let locks = Locks::infer().await?;
//! let guard = locks.lock("nightly-billing").acquire().await?;
//! let work = async { /* send guard.token() with every write */ };
//! tokio::select! {
//!     () = work => guard.release().await.map(drop)?,
//!     reason = guard.lost() => eprintln!("stopped: {}", reason.as_str()),
//! }
//! # Ok(())
//! # }
//! ```

mod acquire;
pub(crate) mod calls;
mod claims;
mod error;
mod guard;
mod guards;
pub mod identity;
mod keep;
pub mod renew;
mod resume;
mod several;
pub(crate) mod watch;

use std::sync::Arc;
use std::time::Duration;

pub use acquire::{Acquiring, Progress, WaitReport};
pub use error::{AcquireAllError, AcquireError, ConnectError, ReleaseError, ResumeError};
pub use guard::{Deadlines, Guard, Released, Resumable};
pub use guards::{Guards, Lost, OneReleased};
pub use several::{AcquireAll, AcquiringAll, all};

use crate::api::names::{MAX_PRIORITY, is_claimant, is_label};
use crate::clock::{Clock, SystemClock};
use crate::engine::{LockView, Patience, PodRef, Terms};

pub use crate::engine::{LossReason, Waiting};

/// The locks of one namespace.
#[derive(Clone)]
pub struct Locks {
    pub(crate) lifeline: Arc<renew::Lifeline>,
    pub(crate) client: kube::Client,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    /// The Pod that we are to the server, and its namespace.
    pod: Option<(PodRef, String)>,
}

impl Locks {
    /// The locks of the namespace that the environment tells: a kubeconfig's, or the Pod's own.
    pub async fn infer() -> Result<Self, ConnectError> {
        let config = kube::Config::infer()
            .await
            .map_err(|error| ConnectError::Config(error.to_string()))?;
        let namespace = config.default_namespace.clone();
        Self::new(config, &namespace)
    }

    /// The locks of `namespace`, on the server that `config` names. What a lock must not leave to a client's defaults
    /// (retries, time-outs) is set here, whatever `config` says.
    pub fn new(config: kube::Config, namespace: &str) -> Result<Self, ConnectError> {
        let client = calls::strict_client(config.clone())
            .map_err(|error| ConnectError::Client(error.to_string()))?;
        Ok(Self {
            pod: identity::own_pod_of(&config),
            lifeline: Arc::new(renew::Lifeline::new(config)),
            client,
            namespace: namespace.to_owned(),
            clock: SystemClock::shared(),
        })
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The client behind it, for reads of your own. An answer that says when to come back (429, 503) is an error of the
    /// kind [`kube::Error::Service`], which [`TooBusy::of`](crate::lease::store::TooBusy::of) finds.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The lock of this name, not asked for yet.
    pub fn lock(&self, name: &str) -> Acquire {
        let (pod, home) = self.pod.clone().unzip();
        Acquire {
            locks: self.clone(),
            name: name.to_owned(),
            claimant: None,
            pod,
            pod_namespace: home,
            wait: None,
            wait_for_lock: false,
            kill_grace: Grace::UpTo(Duration::ZERO),
            priority: 0,
            progress: None,
        }
    }
}

/// What is asked of a lock; [`Acquire::acquire`] asks for it.
#[must_use = "nothing is asked for before acquire or try_acquire"]
#[derive(Clone)]
pub struct Acquire {
    pub(crate) locks: Locks,
    pub(crate) name: String,
    pub(crate) claimant: Option<String>,
    pub(crate) pod: Option<PodRef>,
    pub(crate) pod_namespace: Option<String>,
    pub(crate) wait: Option<Duration>,
    pub(crate) wait_for_lock: bool,
    pub(crate) kill_grace: Grace,
    pub(crate) priority: i32,
    pub(crate) progress: Option<Listener>,
}

type Listener = Arc<dyn Fn(&Progress) + Send + Sync>;

/// What the work gets between "stop" and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grace {
    /// That long, or less where the lease is too short for it.
    UpTo(Duration),
    /// That long, or nothing is taken.
    Exactly(Duration),
}

impl Acquire {
    /// Who asks, as people will see it: by default the Pod's name, or the host's.
    pub fn claimant(mut self, claimant: &str) -> Self {
        self.claimant = Some(claimant.to_owned());
        self
    }

    /// How long to wait at most; without it, for as long as it takes.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.wait = Some(at_most);
        self
    }

    /// Wait for the lock to be made, instead of failing when there is none of this name.
    pub fn wait_for_lock(mut self) -> Self {
        self.wait_for_lock = true;
        self
    }

    /// How long the work may need to end once the grant is lost; at most a fifth of the lease duration. It comes off
    /// the renew deadline. The default is zero.
    pub fn kill_grace(mut self, grace: Duration) -> Self {
        self.kill_grace = Grace::Exactly(grace);
        self
    }

    /// The same, but less where a fifth of the lease duration is less.
    pub fn kill_grace_up_to(mut self, grace: Duration) -> Self {
        self.kill_grace = Grace::UpTo(grace);
        self
    }

    /// Before whom to be served where the lock's queue goes by priority: higher before lower, from -1000 to 1000. The
    /// default is 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Called when the wait begins, every 30 seconds of it, and when it turns out why nothing moves.
    pub fn on_progress(mut self, report: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(report));
        self
    }

    /// Takes the lock, waiting in its queue for as long as [`Acquire::wait`] allows.
    pub async fn acquire(self) -> Result<Guard, AcquireError> {
        self.begin().outcome().await
    }

    /// Takes the lock if it can be had at once.
    pub async fn try_acquire(self) -> Result<Guard, AcquireError> {
        self.begin_try().outcome().await
    }

    /// Starts what [`Acquire::acquire`] does, for a caller that wants to wait until a withdrawal is over too.
    pub fn begin(self) -> Acquiring {
        if self.has_no_time() {
            return self.begin_try();
        }
        Acquiring::begin(self, Patience::Wait)
    }

    /// Starts what [`Acquire::try_acquire`] does.
    pub fn begin_try(mut self) -> Acquiring {
        if self.has_no_time() {
            // No time to wait is not "no try".
            self.wait = None;
        }
        Acquiring::begin(self, Patience::Try)
    }

    pub(crate) fn has_no_time(&self) -> bool {
        self.wait == Some(Duration::ZERO)
    }

    /// Refuses what can't work before anything is asked for.
    pub(crate) fn check(&self) -> Result<(), AcquireError> {
        if !is_label(&self.name) {
            let name = self.name.clone();
            return Err(AcquireError::BadName { name });
        }
        if let Some(claimant) = self.claimant.as_deref().filter(|name| !is_claimant(name)) {
            let claimant = claimant.to_owned();
            return Err(AcquireError::BadClaimant { claimant });
        }
        if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&self.priority) {
            let priority = self.priority;
            return Err(AcquireError::BadPriority { priority });
        }
        Ok(())
    }

    /// Settings that can't work are refused before anything is written.
    pub(crate) fn check_grace(&self, lock: &LockView) -> Result<(), AcquireError> {
        let Grace::Exactly(grace) = self.kill_grace else {
            return Ok(());
        };
        let duration = Duration::from_secs(u64::from(lock.granted_seconds()));
        Terms::new(duration, grace)
            .map(drop)
            .map_err(|source| AcquireError::BadSettings {
                lock: self.name.clone(),
                source,
            })
    }
}
