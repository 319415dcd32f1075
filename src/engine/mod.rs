//! The rules of the lock, and nothing else: no Kubernetes client, no runtime, no clock, no randomness.
//!
//! Everything here is a function of what was read (a [`LockView`], a [`LeaseRecord`], claims), of what the caller
//! itself observed and when ([`Observation`]), and of the time, which is always an argument. The answer is either a
//! value that says how things stand, or the whole record that one guarded write is to put in place of the one read.
//! The operator, the client library, the tests and the model checker call these same functions.
//!
//! * [`record`]: what a Lease says: holder, grant, `next`, `ended`; and the text of those annotations.
//! * [`token`]: which fencing token a grant gets (R2).
//! * [`standing`]: may this writer replace the holder it sees, and when (R3).
//! * [`queue`]: the order of claims, who comes after whom.
//! * [`change`]: the records that may be written: take, renew, release, end, name, stamp (R1, R2, R9).
//! * [`claimant`]: what somebody who wants the lock does next; [`moves`]: what it asks of its shell.
//! * [`holder`]: what somebody who has it may still believe (R4); [`terms`]: the times of a lease.
//! * [`holds`]: what the operator does for claims whose hold it keeps.
//! * [`operator`]: what the operator does next for one slot; [`turns`]: for the one queue of all slots.
//!
//! Invariants: a token never falls and changes only with a grant; whoever may take may do so only by replacing the
//! record that it read; no wall clock of another machine is compared.

pub mod change;
pub mod claimant;
pub mod holder;
pub mod holds;
pub mod moves;
pub mod operator;
pub mod queue;
pub mod record;
pub mod standing;
pub mod terms;
pub mod token;
pub mod turns;

pub use change::{NextChange, Requester, Take, TakeRefused};
pub use claimant::{Claimant, Served};
pub use holder::{Held, LossReason, hold_end};
pub use holds::{ClaimEnd, ClaimState, HoldClaim, Holder, PodSight, SlotSight, Wish};
pub use moves::{Answer, Move, Patience, Refusal, Waiting, Write};
pub use operator::{Keeper, Loss, OperatorMove, OperatorWrite};
pub use queue::{ClaimView, Queue, QueueOrder};
pub use record::{
    ClaimRef, EndKind, Ended, Grant, GrantId, GrantNote, Hold, LeaseRecord, PodRef, SpecRecord,
};
pub use standing::{
    LockView, Observation, OnHolderLost, Seen, SlotView, Standing, Unavailable, missing_floor,
};
pub use terms::{Terms, TermsError};
pub use token::TokenChoice;
pub use turns::Turns;

/// A moment on a clock of the writer's own that never goes back, counted from any fixed start.
///
/// Observations use the monotonic clock, a holder's deadlines the one that runs through a suspend: two clocks, never
/// compared with each other, nor with another machine's.
pub type Moment = std::time::Duration;

/// A wall-clock time in microseconds since 1970: written for people to read, never compared between machines.
pub type WallMicros = i64;
