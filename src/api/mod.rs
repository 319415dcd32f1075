//! What users and other programs see: the kinds of `leasehold.dev/v1alpha1`, the fencing token, and all names.
//!
//! Types only: no client, no clock, no decision. Decoding is lenient (unknown fields and phases of a newer version,
//! a missing status), the API server is strict: its schema and CEL rules are in [`crds`].

#[expect(
    clippy::duplicated_attributes,
    reason = "every column has a name and a type"
)]
mod claim;
mod conditions;
#[expect(
    clippy::duplicated_attributes,
    reason = "every column has a name and a type"
)]
mod lock;
pub mod names;
mod rules;
mod schema;
mod token;

pub use claim::{
    ClaimPhase, FixedHold, Hold, HoldType, LockClaim, LockClaimSpec, LockClaimStatus, PodHold,
};
pub use conditions::{ConditionStatus, find_condition, is_condition_true, set_condition};
pub use lock::{
    DistributedLock, DistributedLockSpec, DistributedLockStatus, EndReason, HistoryEntry,
    LockPhase, OnHolderLost, QueuePolicy, QueueSpec, SlotMinFencingToken, SlotStatus,
    slot_lease_name,
};
pub use schema::crds;
pub use token::{FencingToken, InvalidToken};
