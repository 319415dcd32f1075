//! What a [`Claimant`] asks its shell to do, and how the shell answers.

use super::Moment;
use super::change::Take;
#[cfg(doc)]
use super::claimant::Claimant;
use super::record::{ClaimRef, LeaseRecord};

/// What to do when the lock is not to be had at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Queue and wait.
    Wait,
    /// Give up.
    Try,
}

/// What the shell is to do, then to tell the claimant about, then to ask again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::large_enum_variant,
    reason = "a write is rare, and moved once or twice"
)]
pub enum Move {
    /// Read the lock; answer with [`Claimant::lock_read`].
    ReadLock,
    /// Read the Lease of this slot; answer with [`Claimant::lease_seen`].
    ReadLease(u32),
    /// Read one claim; answer with [`Claimant::claim_read`].
    ReadClaim(ClaimRef),
    /// List the lock's claims; answer with [`Claimant::claims_listed`].
    ListClaims,
    /// Make a claim; answer with [`Claimant::joined`].
    MakeClaim,
    /// Delete this claim of one's own, whether or not it is still there; answer with [`Claimant::left`].
    DeleteClaim(ClaimRef),
    /// Draw a new identity; answer with [`Claimant::start_over`].
    StartOver,
    /// Send this guarded write; call [`Claimant::sending`] right before and [`Claimant::answered`] after.
    Write(Write),
    /// Nothing to do before `until`, or before something changes.
    Wait {
        /// The next moment at which time alone changes the answer.
        until: Option<Moment>,
        /// What it waits for, for messages.
        why: Waiting,
    },
    /// The end: not to be had.
    Refuse(Refusal),
    /// The end: nothing of this claimant is left in the cluster.
    Gone,
}

/// A guarded write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// Takes a slot.
    Take {
        /// The slot.
        slot: u32,
        /// The grant.
        take: Take,
    },
    /// Renews a grant whose take was not answered, so that its deadline has a start.
    Confirm {
        /// The slot.
        slot: u32,
        /// The record to put in place.
        record: LeaseRecord,
    },
    /// Changes a Lease by its annotation `next` alone, so that a take of it that was not answered, and may not be sent
    /// again, can't be applied any more. What it says counts on slot 0's Lease only.
    Settle {
        /// The slot.
        slot: u32,
        /// The record to put in place.
        record: LeaseRecord,
    },
    /// Says whose turn it is, on slot 0's Lease.
    Name(LeaseRecord),
    /// Says whose turn it is, over one that did not take its own, on slot 0's Lease.
    PassOver(LeaseRecord),
}

impl Write {
    /// The record to put in place.
    #[must_use]
    pub fn record(&self) -> &LeaseRecord {
        match self {
            Write::Take { take, .. } => &take.record,
            Write::Confirm { record, .. }
            | Write::Settle { record, .. }
            | Write::Name(record)
            | Write::PassOver(record) => record,
        }
    }

    /// The slot whose Lease it writes.
    #[must_use]
    pub fn slot(&self) -> u32 {
        match self {
            Write::Take { slot, .. } | Write::Confirm { slot, .. } | Write::Settle { slot, .. } => {
                *slot
            }
            Write::Name(_) | Write::PassOver(_) => 0,
        }
    }
}

/// How a guarded write was answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::large_enum_variant,
    reason = "an answer is moved once or twice"
)]
pub enum Answer {
    /// 2xx, with the record that is now there.
    Applied(LeaseRecord),
    /// Refused, and certainly not applied by this attempt: 409, 403, 404, 422.
    Refused,
    /// Nobody knows: a time-out, a broken connection, a 5xx.
    Unknown,
}

/// What a claimant waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// There is no Lease: the operator has not made it.
    NoLease,
    /// The operator has not opened the lock, or an earlier one of its name is being cleaned up.
    NotReady,
    /// Somebody holds it.
    Holder,
    /// Its holder fell silent, and a policy leaves it to the operator to end that.
    Operator,
    /// It was deleted while perhaps held: nobody takes it before what it may hide has ended.
    Missing,
    /// It is somebody else's turn.
    Turn,
    /// The Lease is somebody else's (`LeaseConflict`).
    Conflict,
}

/// Why a claimant can't have the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Held, or another's turn, and it was not to wait.
    Busy,
    /// There is no such lock, or it is being deleted.
    NoLock,
    /// The holder runs a newer version: upgrade.
    NewerVersion,
    /// No token below 2^53 is left.
    NoTokenLeft,
}
