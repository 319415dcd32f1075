//! `DistributedLock`: what is asked of a lock, and what the operator saw of it.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::claim::HoldType;
use super::conditions;
use super::names::{
    MAX_HISTORY, MAX_HOLDERS, MAX_IDENTITY_CHARS, MAX_LEASE_SECONDS, MAX_LOCK_LEASE_SECONDS,
    MAX_NAME_CHARS, MAX_TOKEN,
};
use super::token::{FencingToken, zero_is_none};

/// What is asked of the lock.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "leasehold.dev",
    version = "v1alpha1",
    kind = "DistributedLock",
    doc = "A lock that holds, and fences: a lease that one claimant at a time keeps, with a token that only goes up.",
    namespaced,
    status = "DistributedLockStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "dlock",
    category = "leasehold",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Held",
        type_ = "string",
        json_path = ".status.held",
        description = "slots held of all slots"
    ),
    printcolumn(name = "Holder", type_ = "string", json_path = ".status.holder"),
    printcolumn(
        name = "Token",
        type_ = "integer",
        format = "int64",
        json_path = ".status.fencingToken",
        description = "the highest fencing token granted"
    ),
    printcolumn(name = "Waiters", type_ = "integer", json_path = ".status.waiters"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Lease",
        type_ = "string",
        json_path = ".status.leaseName",
        priority = "1"
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".status.slots[*].nodeName",
        priority = "1"
    )
)]
#[serde(rename_all = "camelCase", default)]
pub struct DistributedLockSpec {
    /// How long a crashed holder can block others, in seconds. Holders renew every third of it.
    #[schemars(range(min = 1, max = MAX_LOCK_LEASE_SECONDS))]
    pub lease_duration_seconds: i32,
    /// How many may hold it at once; more than one makes it a semaphore, a Lease a slot. Lowering it evicts nobody.
    #[schemars(range(min = 1, max = MAX_HOLDERS))]
    pub max_holders: i32,
    /// Who is next.
    pub queue: QueueSpec,
    /// Wait this much longer, in seconds, after a holder that did not release.
    #[schemars(range(min = 0, max = 3600))]
    pub lock_delay_seconds: i32,
    /// A holder stops itself after so many seconds, at least the lease; the operator revokes one lease length later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub max_hold_seconds: Option<i32>,
    /// What follows a holder that did not release: Release makes the lock free, Hold keeps it locked until revoked.
    pub on_holder_lost: OnHolderLost,
    /// Grants with a lower token are revoked, on every slot. It may only rise. Never keep it in Git.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_fencing_token: Option<FencingToken>,
    /// As minFencingToken, but for one slot each. A token may only rise, and no entry is removed. Never keep it in Git.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["slot"])
    )]
    pub slot_min_fencing_tokens: Vec<SlotMinFencingToken>,
    /// Use this Lease of another client, which consents by its label leasehold.dev/shared-with. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_NAME_CHARS))]
    pub lease_name: Option<String>,
    /// How many ended grants status remembers.
    #[schemars(range(min = 0, max = MAX_HISTORY))]
    pub history_limit: i32,
}

/// Who is next.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueSpec {
    /// FIFO: in the order of coming. Priority: higher priority first, then in the order of coming.
    pub policy: QueuePolicy,
    /// Claims beyond this number are rejected.
    #[schemars(range(min = 0, max = 10_000))]
    pub max_waiters: i32,
}

/// The order of the queue.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[schemars(inline)]
pub enum QueuePolicy {
    /// In the order of coming.
    #[default]
    #[serde(rename = "FIFO")]
    Fifo,
    /// Higher priority first, then in the order of coming.
    Priority,
}

/// What follows a holder that did not release.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[schemars(inline)]
pub enum OnHolderLost {
    /// The lock becomes free.
    #[default]
    Release,
    /// The lock stays locked until a person revokes the grant.
    Hold,
}

/// The lowest token that one slot still honours.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SlotMinFencingToken {
    /// The slot.
    #[schemars(range(min = 0, max = 63))]
    pub slot: i32,
    /// Grants of this slot with a lower token are revoked. It may only rise.
    pub token: FencingToken,
}

/// What the operator saw. It only reflects: nothing is granted by it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct DistributedLockStatus {
    /// The metadata.generation that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_TOKEN))]
    pub observed_generation: Option<i64>,
    /// Free, Held, or Abandoned (kept locked after a holder that was lost).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<LockPhase>,
    /// Slots held of all slots, such as 1/1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub held: Option<String>,
    /// Who holds it, in short: pod-3, or pod-3 +2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 330))]
    pub holder: Option<String>,
    /// The Lease of slot 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_NAME_CHARS))]
    pub lease_name: Option<String>,
    /// The highest fencing token granted. It never falls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<FencingToken>,
    /// The longest lease duration that a grant may store, in seconds. It only rises.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_LEASE_SECONDS))]
    pub longest_lease_duration_seconds: Option<i32>,
    /// One entry a slot, held or free. None is ever removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["slot"])
    )]
    pub slots: Vec<SlotStatus>,
    /// How many claims wait, written at most once a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub waiters: Option<i32>,
    /// The names of the first claims of the queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 5),
        inner(length(max = MAX_NAME_CHARS)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub next_waiters: Vec<String>,
    /// Grants that ended, the latest first. What the operator saw: it may have gaps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_HISTORY), extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<HistoryEntry>,
    /// Ready, Held, Stalled, and `TokenAheadOfRevision`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions::schema")]
    pub conditions: Vec<Condition>,
}

/// Whether anybody holds the lock.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[schemars(inline)]
pub enum LockPhase {
    /// No slot is held.
    Free,
    /// At least one slot is held.
    Held,
    /// A holder was lost and the lock stays locked until the grant is revoked.
    Abandoned,
    /// A phase of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Other,
}

/// One slot as the operator saw it. A free slot has no holder and keeps its token.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct SlotStatus {
    /// The slot, from 0.
    #[schemars(range(min = 0, max = 63))]
    pub slot: i32,
    /// The token of the present grant, or of the last one; 0 before the first. It never falls.
    #[serde(with = "zero_is_none")]
    #[schemars(schema_with = "zero_is_none::schema")]
    pub fencing_token: Option<FencingToken>,
    /// The Lease's holderIdentity; empty when the slot is free.
    #[schemars(length(max = MAX_IDENTITY_CHARS))]
    pub holder_identity: String,
    /// The holder in short: its identity without the uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_IDENTITY_CHARS))]
    pub claimant: Option<String>,
    /// How it is held. Absent for a holder that is no client of Leasehold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldType>,
    /// The duration stored in the Lease, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub lease_duration_seconds: Option<i32>,
    /// The holder's Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_NAME_CHARS))]
    pub pod_name: Option<String>,
    /// The uid of the holder's Pod.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 36))]
    pub pod_uid: Option<String>,
    /// The node of the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_NAME_CHARS))]
    pub node_name: Option<String>,
    /// When it was taken, by the holder's clock: for people only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,
}

/// A grant that ended.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// The slot.
    #[schemars(range(min = 0, max = 63))]
    pub slot: i32,
    /// Who held it.
    #[schemars(length(max = MAX_IDENTITY_CHARS))]
    pub holder_identity: String,
    /// The token of the grant; absent for a foreign holder that never got one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<FencingToken>,
    /// When it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,
    /// When its end was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<MicroTime>,
    /// How it ended.
    pub reason: EndReason,
}

/// How a grant ended.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[schemars(inline)]
pub enum EndReason {
    /// The holder gave it back.
    Released,
    /// The holder was silent for the lease duration.
    Expired,
    /// It fell below a minimal token, or a person ended it.
    Revoked,
    /// Its Lease was deleted.
    Deleted,
    /// Its Pod has ended.
    Ended,
    /// A reason of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Other,
}

impl Default for DistributedLockSpec {
    fn default() -> Self {
        Self {
            lease_duration_seconds: 15,
            max_holders: 1,
            queue: QueueSpec::default(),
            lock_delay_seconds: 0,
            max_hold_seconds: None,
            on_holder_lost: OnHolderLost::default(),
            min_fencing_token: None,
            slot_min_fencing_tokens: vec![],
            lease_name: None,
            history_limit: 10,
        }
    }
}

impl Default for QueueSpec {
    fn default() -> Self {
        Self {
            policy: QueuePolicy::default(),
            max_waiters: 1000,
        }
    }
}

impl DistributedLockSpec {
    /// The lease duration, within its bounds whatever was stored.
    #[must_use]
    pub fn effective_lease_duration(&self) -> Duration {
        seconds(self.lease_duration_seconds.clamp(1, MAX_LOCK_LEASE_SECONDS))
    }

    /// The wait after a holder that did not release.
    #[must_use]
    pub fn effective_lock_delay(&self) -> Duration {
        seconds(self.lock_delay_seconds.clamp(0, 3600))
    }

    /// How long one grant may last, if there is a limit.
    #[must_use]
    pub fn effective_max_hold(&self) -> Option<Duration> {
        self.max_hold_seconds.map(|s| seconds(s.max(1)))
    }

    /// The number of slots.
    #[must_use]
    pub fn effective_max_holders(&self) -> i32 {
        self.max_holders.clamp(1, MAX_HOLDERS)
    }

    /// The lowest token that this slot still honours: the higher of the lock's and the slot's.
    #[must_use]
    pub fn effective_min_fencing_token(&self, slot: i32) -> Option<FencingToken> {
        let of_slot = self
            .slot_min_fencing_tokens
            .iter()
            .find(|m| m.slot == slot)
            .map(|m| m.token);
        self.min_fencing_token.max(of_slot)
    }
}

/// The name of a slot's Lease, where slot 0's is `name`; slot n > 0 adds `.n`.
#[must_use]
pub fn slot_lease_name(name: &str, slot: u32) -> String {
    match slot {
        0 => name.to_owned(),
        n => format!("{name}.{n}"),
    }
}

impl DistributedLock {
    /// The name of the Lease of slot 0: the lock's own, or `leaseName`.
    #[must_use]
    pub fn lease_name(&self) -> String {
        self.spec
            .lease_name
            .clone()
            .unwrap_or_else(|| self.name_any())
    }

    /// The name of the Lease of a slot; slot n > 0 adds `.n`.
    #[must_use]
    pub fn slot_lease_name(&self, slot: i32) -> String {
        slot_lease_name(&self.lease_name(), slot.unsigned_abs())
    }

    /// What status says of a slot; `None` until the operator has mirrored it once.
    #[must_use]
    pub fn slot_status(&self, slot: i32) -> Option<&SlotStatus> {
        self.status.as_ref()?.slots.iter().find(|s| s.slot == slot)
    }

    /// The last token that status knows for a slot.
    #[must_use]
    pub fn slot_token(&self, slot: i32) -> Option<FencingToken> {
        self.slot_status(slot)?.fencing_token
    }

    /// `status.longestLeaseDurationSeconds`, if the operator has written it.
    #[must_use]
    pub fn longest_lease_duration(&self) -> Option<Duration> {
        let longest = self.status.as_ref()?.longest_lease_duration_seconds?;
        Some(seconds(longest.clamp(1, MAX_LEASE_SECONDS)))
    }
}

impl SlotStatus {
    /// Whether nobody holds the slot.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.holder_identity.is_empty()
    }
}

fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(seconds.unsigned_abs().into())
}
