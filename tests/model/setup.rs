//! What one run of the model looks at, and how often each thing may happen.

use leasehold::engine::{OnHolderLost, Patience, QueueOrder};

use super::kept::Asks;
use super::mutations::Broken;
use super::world::Action;

/// What one run of the model looks at.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what there is, each by itself"
)]
pub struct Setup {
    /// The lock's lease duration; a tick is a second.
    pub seconds: u32,
    pub slots: u32,
    /// Whether somebody outside the model holds slot 0 for much longer than the model looks.
    pub occupied: bool,
    pub order: QueueOrder,
    pub clients: Vec<Patience>,
    /// The clients' priorities; 0 where none is said.
    pub priorities: Vec<i32>,
    pub operators: usize,
    /// Whether a foreign elector shares the Lease.
    pub foreign: bool,
    /// Whether the operator has made and opened the Lease before the start.
    pub opened: bool,
    /// Whether the operator mirrors token, holder and durations to status.
    pub mirrors: bool,
    pub max_hold_seconds: Option<u32>,
    pub lock_delay_seconds: u32,
    pub on_holder_lost: OnHolderLost,
    /// Whether an operator's watch of claims and lock may be behind its watch of Leases.
    pub lags: bool,
    /// Fixed and Pod claims that are there from the start, before those of the clients.
    pub asks: Vec<Asks>,
    /// Whether others may act between two reads of a client, not only between a read and a write.
    pub fine: bool,
    /// The last tick.
    pub horizon: u32,
    pub budget: Budget,
    /// What has happened before the start.
    pub prefix: Vec<Action>,
    /// The rule that is broken on purpose.
    pub broken: Option<Broken>,
    /// The most ticks that it may take, without faults, until everybody is served.
    pub bound: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seconds: 2,
            slots: 1,
            occupied: false,
            order: QueueOrder::Fifo,
            priorities: Vec::new(),
            clients: vec![Patience::Wait; 2],
            operators: 1,
            foreign: false,
            opened: true,
            mirrors: false,
            max_hold_seconds: None,
            lock_delay_seconds: 0,
            on_holder_lost: OnHolderLost::Release,
            fine: false,
            lags: false,
            asks: Vec::new(),
            horizon: 3,
            budget: Budget::default(),
            prefix: Vec::new(),
            broken: None,
            bound: 40,
        }
    }
}

/// How often each thing may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Ticks that pass while somebody had something to do: pauses and slow networks.
    pub pauses: u8,
    pub renewals: u8,
    /// Applied, and never answered.
    pub lost_answers: u8,
    /// Applied, and answered as a conflict: a proxy sent it twice.
    pub repeats: u8,
    /// Given up by the sender, applied at any later time or never.
    pub late_writes: u8,
    /// Applied at once, answered at any later time.
    pub slow_answers: u8,
    /// A list in place of the watch events that were waiting.
    pub relists: u8,
    pub crashes: u8,
    pub stops: u8,
    /// Rounds of clients that ask again after a release.
    pub again: u8,
    pub operator_crashes: u8,
    pub operator_starts: u8,
    pub lease_deletions: u8,
    pub claim_deletions: u8,
    pub dropped_annotations: u8,
    pub reset_transitions: u8,
    /// The spec that a holder's previous renewal had, put back by hand.
    pub restored_specs: u8,
    /// A saved copy of an old Lease in place of a deleted one.
    pub restored_leases: u8,
    /// The lock's duration set to this.
    pub new_duration: u8,
    pub revocations: u8,
    /// A floor for the first slot alone.
    pub slot_floors: u8,
    /// `maxHolders` lowered by one.
    pub lower_limits: u8,
    /// `maxHolders` raised by one, where it was lowered.
    pub raised_limits: u8,
    /// `maxHoldSeconds` set to this.
    pub new_max_hold: u8,
    /// Raised seconds of Fixed claims.
    pub extensions: u8,
    pub kept_deletions: u8,
    /// The Pod of Pod claims ends.
    pub pod_ends: u8,
    /// Renewals by the one outside the model who holds slot 0.
    pub outer_renewals: u8,
    /// `onHolderLost` set to Hold.
    pub new_holds: u8,
    /// Terms of the foreign elector.
    pub foreign_terms: u8,
    pub foreign_crashes: u8,
}
