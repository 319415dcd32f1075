//! What the operator's shell is asked to do.

#[cfg(doc)]
use super::Keeper;
use crate::engine::Moment;
use crate::engine::holds::ClaimEnd;
use crate::engine::record::{ClaimRef, LeaseRecord, SpecRecord};
use crate::engine::standing::Unavailable;

/// What the operator's shell is to do, then to tell the machine about that asked for it ([`Keeper`], or
/// [`Turns`](crate::engine::Turns)), then to ask again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OperatorMove {
    /// Create the Lease with this spec; answer with [`Keeper::lease_seen`].
    Create(SpecRecord),
    /// Add the slot's first entry (and `longestLeaseDurationSeconds`) to status by a guarded write; answer with
    /// [`Keeper::opened`] if that very write added it.
    Open,
    /// Read the lock from the server; answer with [`Keeper::lock_read`].
    ReadLock,
    /// Read this claim from the server; answer with [`Turns::claim_read`](crate::engine::Turns::claim_read).
    ReadClaim(ClaimRef),
    /// Ask the server whether a claim of this uid is there; answer with [`Keeper::holder_read`].
    ReadHolder(String),
    /// Write the final phase of this claim, whose Lease is freed next.
    Finish {
        /// The claim.
        claim: ClaimRef,
        /// How its hold ends.
        why: ClaimEnd,
    },
    /// Send this guarded write, which prolongs a Fixed hold; answer with [`Keeper::prolonged`].
    Prolong {
        /// The record to put in place.
        record: Box<LeaseRecord>,
        /// For how many seconds the grant then lasts in all.
        total: u32,
    },
    /// Send this guarded write; answer with [`Keeper::written`], or read the Lease again.
    Write {
        /// What it is for.
        what: OperatorWrite,
        /// The record to put in place.
        record: Box<LeaseRecord>,
        /// The Heartbeat claim to delete once the write has won.
        then_delete: Option<ClaimRef>,
    },
    /// Nothing to do before `until`, or before something changes.
    Wait {
        /// The next moment at which time alone changes the answer.
        until: Option<Moment>,
        /// Why the lock can't work, where it can't: for the condition Stalled.
        stalled: Option<Unavailable>,
    },
}

/// What a write of the operator's is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperatorWrite {
    /// Frees a Lease that was just made for a slot that nobody ever had.
    Free,
    /// Ends a silent holder.
    Expire,
    /// Ends a holder whose token is below the floor, or that holds longer than `maxHoldSeconds`.
    Revoke,
    /// Gives a foreign holder its token.
    Stamp,
    /// Tells how many slots may be taken.
    Slots,
    /// Says whose turn it is.
    Name,
    /// Says whose turn it is, over a claim that did not take its own.
    PassOver,
    /// Takes a slot for a Fixed or Pod claim.
    Take,
    /// Renews a Pod hold.
    Renew,
    /// Prolongs a Fixed hold.
    Prolong,
    /// Puts the annotation of a Fixed or Pod hold back.
    Restore,
    /// Ends a Fixed or Pod hold that was given up, or whose Pod has ended.
    End,
}

/// Whether a holder counts as lost, where `onHolderLost: Hold` keeps the slot locked after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Loss {
    /// It does not: it gave signs of life, or nothing of the kind is asked of the slot.
    #[default]
    None,
    /// It was seen silent for so long that it would have been ended under Release.
    Lost,
    /// This replica has not looked on for long enough to say, and has seen no sign of life yet.
    Unsure,
}

/// Nothing to do before `until`.
pub(in crate::engine) fn wait(until: Option<Moment>) -> OperatorMove {
    OperatorMove::Wait {
        until,
        stalled: None,
    }
}

/// A guarded write with nothing to do after it.
pub(in crate::engine) fn write(what: OperatorWrite, record: LeaseRecord) -> OperatorMove {
    OperatorMove::Write {
        what,
        record: Box::new(record),
        then_delete: None,
    }
}
