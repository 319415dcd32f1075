//! What can go wrong, one type an operation.

use std::time::Duration;

use super::acquire::WaitReport;
use super::guards::Lost;
use crate::api::names::{CLAIMANT_RULE, MAX_PRIORITY};
use crate::engine::{LossReason, TermsError};
use crate::lease::StoreError;

/// Why there is no connection to a server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Neither a kubeconfig nor a Pod's environment.
    #[error("no Kubernetes configuration: {0}; set KUBECONFIG, or run in a Pod")]
    Config(String),
    /// The configuration can't be used.
    #[error("the Kubernetes configuration cannot be used: {0}")]
    Client(String),
}

/// Why a lock was not acquired. Nothing is held, and nothing is left in the queue, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// Held, or another's turn, and it was not to wait.
    #[error("lock {:?} is busy: {}", .0.lock, .0)]
    Busy(Box<WaitReport>),
    /// Not had within the time given.
    #[error("lock {:?} was not to be had in time: {}", .0.lock, .0)]
    TimedOut(Box<WaitReport>),
    /// The operator refused the claim: too many wait already.
    #[error("the claim on lock {lock:?} was refused: {message}")]
    Rejected {
        /// The lock.
        lock: String,
        /// The operator's words.
        message: String,
    },
    /// There is no such lock.
    #[error("there is no lock {lock:?} in namespace {namespace:?}")]
    NoSuchLock {
        /// The lock.
        lock: String,
        /// The namespace.
        namespace: String,
    },
    /// The operator has not made the lock's Lease, or not opened it.
    #[error("lock {:?} is not ready: {}", .0.lock, .0)]
    NotReady(Box<WaitReport>),
    /// RBAC or a policy forbids what is needed.
    #[error(transparent)]
    Forbidden(StoreError),
    /// The server can't be reached, or refuses what it should not.
    #[error(transparent)]
    Unreachable(StoreError),
    /// The holder runs a newer version of Leasehold.
    #[error("lock {lock:?} was granted by a newer version of Leasehold: upgrade this one")]
    NewerVersion {
        /// The lock.
        lock: String,
    },
    /// No token below 2^53 is left.
    #[error(
        "lock {lock:?} has no fencing token below 2^53 left: make a new lock under another name"
    )]
    NoTokenLeft {
        /// The lock.
        lock: String,
    },
    /// A take was sent and never answered, and it could not be settled within one lease duration.
    #[error(
        "lock {lock:?}: a take was sent and not answered, and could not be settled within {within:?}; \
             if it was applied, the lease ends by itself"
    )]
    Unsettled {
        /// The lock.
        lock: String,
        /// One lease duration.
        within: Duration,
    },
    /// The times asked for do not fit the lock's.
    #[error("lock {lock:?}: {source}")]
    BadSettings {
        /// The lock.
        lock: String,
        /// What does not fit.
        source: TermsError,
    },
    /// The name can't be that of a lock.
    #[error(
        "{name:?} cannot be a lock's name: it must be a DNS label, at most 63 lower case letters, digits and '-'"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// The name can't be that of a claimant.
    #[error("{claimant:?} cannot be a claimant: it {CLAIMANT_RULE}")]
    BadClaimant {
        /// The name.
        claimant: String,
    },
    /// The priority is out of range.
    #[error("{priority} cannot be a priority: it must be from -{MAX_PRIORITY} to {MAX_PRIORITY}")]
    BadPriority {
        /// The priority.
        priority: i32,
    },
    /// The runtime ended under it.
    #[error("the runtime shut down while the lock was being acquired")]
    ShutDown,
}

/// Why several locks were not acquired together. None of them is held, and nothing is left in a queue, unless it says
/// so.
#[derive(Debug, thiserror::Error)]
pub enum AcquireAllError {
    /// One of them was not to be had.
    #[error("{error}")]
    Lock {
        /// The lock.
        lock: String,
        /// Its namespace.
        namespace: String,
        /// Why.
        error: Box<AcquireError>,
    },
    /// One was lost while another was asked for, and it was not to start over, or had no time for that.
    #[error(
        "lock {:?} was lost ({}) while lock {waited_for:?} was asked for, and there was no time to start over",
        .lost.lock,
        .lost.reason.as_str()
    )]
    Lost {
        /// Which one, and why.
        lost: Lost,
        /// The lock that was asked for meanwhile.
        waited_for: String,
    },
    /// The same lock twice.
    #[error("lock {lock:?} in namespace {namespace:?} is named twice: name each lock once")]
    Duplicate {
        /// The lock.
        lock: String,
        /// The namespace.
        namespace: String,
    },
    /// No lock at all.
    #[error("no lock is named: name at least one")]
    Empty,
    /// The runtime ended under it.
    #[error("the runtime shut down while the locks were being acquired")]
    ShutDown,
}

/// Why a grant was not resumed. It may not be used any more.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// It was lost meanwhile, or could not be renewed before its deadline.
    #[error("the grant of lock {lock:?} was lost before it could be resumed ({})", .reason.as_str())]
    Lost {
        /// The lock.
        lock: String,
        /// Why.
        reason: LossReason,
    },
    /// What was kept of it can't be read.
    #[error("what was kept of the grant cannot be read: {0:?} is no grant of this version")]
    Unreadable(String),
    /// It is another lock's.
    #[error("the grant that was kept is of lock {found:?}, not of lock {asked:?}")]
    OtherLock {
        /// The lock that was asked for.
        asked: String,
        /// The lock of the grant.
        found: String,
    },
}

/// Why a release was not confirmed. The lease ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// It was not answered before the lease ended.
    #[error("the release was not confirmed: {0}; the lease ends by itself within its duration")]
    Unconfirmed(String),
    /// The runtime ended under it.
    #[error(
        "the runtime shut down before the release was confirmed; the lease ends by itself within its duration"
    )]
    ShutDown,
}
