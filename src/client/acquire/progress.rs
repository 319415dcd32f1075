//! What somebody who waits hears.

use std::fmt;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::api::names::HOLDER_MISSING;
use crate::engine::{LossReason, Waiting};

/// What to do about an operator that does nothing.
const LASTS: &str = ", which takes a second: if this lasts, see that one runs, and that it looks after this namespace";

/// What stands in for a holder after a deletion.
const MISSING: &str =
    "its lease was deleted while perhaps held: nobody takes it before what that hides has ended";

/// How things stand for somebody who waits.
#[derive(Clone, Debug)]
pub struct WaitReport {
    /// The lock.
    pub lock: String,
    /// What it waits for.
    pub why: Option<Waiting>,
    /// How many slots the lock has. Of more than one, what is said of the holder is about slot 0's.
    pub slots: u32,
    /// The Lease's `holderIdentity`; `None` when it is free.
    pub holder: Option<String>,
    /// Since when, by the holder's clock.
    pub since: Option<Timestamp>,
    /// The holder's token.
    pub token: Option<i64>,
    /// Whether the lock stays locked after a holder that is lost (`onHolderLost: Hold`).
    pub stays_locked: bool,
    /// Whose turn it is: the claimant, or the claim's name where that was not listed.
    pub next: Option<String>,
    /// One's own place in the queue, about.
    pub place: Option<usize>,
    /// When the holder's lease ends, from now, unless it is renewed.
    pub lease_ends_in: Option<Duration>,
}

impl fmt::Display for WaitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Some(Waiting::NoLease) => write!(f, "the operator has not made its lease yet{LASTS}")?,
            Some(Waiting::NotReady) => write!(f, "the operator has not opened it yet{LASTS}")?,
            Some(Waiting::Conflict) => {
                write!(
                    f,
                    "its lease is another's, or not shared with it: `kubectl describe dlock {}` says what to do",
                    self.lock
                )?;
            }
            Some(Waiting::Missing) => f.write_str(MISSING)?,
            Some(Waiting::Operator) => {
                match self.holder.as_deref() {
                    Some(HOLDER_MISSING) | None => f.write_str(MISSING)?,
                    Some(holder) => self.tell_holder(holder, f)?,
                }
                f.write_str(
                    ", which fell silent; strict mode leaves it to the operator to end that: see that one runs",
                )?;
            }
            Some(Waiting::Holder | Waiting::Turn) | None => match &self.holder {
                Some(holder) => self.tell_holder(holder, f)?,
                None if self.why.is_none() && self.next.is_none() => {
                    f.write_str("there was no time to look at it")?;
                }
                None => f.write_str("free, but it is another's turn")?,
            },
        }
        if let Some(left) = self.lease_ends_in {
            write!(
                f,
                "; its lease ends in {} s unless it is renewed",
                left.as_secs() + 1
            )?;
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

impl WaitReport {
    fn tell_holder(&self, holder: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "held by {holder}")?;
        if let Some(since) = self.since {
            write!(f, " since {since:.0}")?;
        }
        if self.slots > 1 {
            write!(f, " (slot 0 of {})", self.slots)?;
        }
        if let Some(token) = self.token {
            write!(f, " with token {token}")?;
        }
        if self.stays_locked {
            f.write_str("; should it be lost, a person must free the lock (onHolderLost: Hold)")?;
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
    /// Its claim is gone: deleted by somebody, or passed over since its turn was not taken. It makes another.
    ClaimGone {
        /// The lock.
        lock: String,
    },
    /// The lock is had, but the claim that led to it can't be deleted: it costs those behind it time.
    ClaimLeft(String),
    /// The server does not answer; it goes on trying.
    Trouble(String),
    /// One of several locks was lost while another was asked for: all are given back, then asked for again.
    StartingOver {
        /// The lock that was lost.
        lock: String,
        /// Why.
        reason: LossReason,
        /// The lock that was asked for meanwhile.
        waited_for: String,
    },
}
