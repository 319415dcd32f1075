//! `LockClaim`: a place in the queue.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::{self, ConditionStatus, set_condition};
use super::names::{
    CONDITION_GRANTED, CONDITION_READY, CONDITION_STALLED, MAX_IDENTITY_CHARS, MAX_NAME_CHARS,
    MAX_PRIORITY, MAX_TOKEN, REASON_OK,
};
use super::token::FencingToken;

/// What is claimed. Immutable but for priority and hold.fixed.seconds.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "leasehold.dev",
    version = "v1alpha1",
    kind = "LockClaim",
    doc = "A place in the queue of a lock.",
    namespaced,
    status = "LockClaimStatus",
    derive = "PartialEq",
    shortname = "lclaim",
    category = "leasehold",
    selectable = ".spec.lockName",
    selectable = ".status.phase",
    printcolumn(name = "Lock", type_ = "string", json_path = ".spec.lockName"),
    printcolumn(name = "Claimant", type_ = "string", json_path = ".status.claimant"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Token",
        type_ = "integer",
        format = "int64",
        json_path = ".status.fencingToken"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Hold",
        type_ = "string",
        json_path = ".spec.hold.type",
        priority = "1"
    ),
    printcolumn(
        name = "Priority",
        type_ = "integer",
        json_path = ".spec.priority",
        priority = "1"
    ),
    printcolumn(
        name = "Expires",
        type_ = "string",
        json_path = ".status.expireTime",
        priority = "1"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct LockClaimSpec {
    /// The lock, in the claim's namespace.
    #[schemars(length(min = 1, max = 63))]
    pub lock_name: String,
    /// Who claims; the claim's name where it is unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_NAME_CHARS))]
    pub claimant: Option<String>,
    /// Higher goes first where the lock's policy is Priority.
    #[serde(default)]
    #[schemars(range(min = -MAX_PRIORITY, max = MAX_PRIORITY))]
    pub priority: i32,
    /// Give up after this many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub wait_timeout_seconds: Option<i32>,
    /// How the lock is kept once it is granted.
    pub hold: Hold,
    /// Delete the claim this many seconds after it has finished; unset keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// How the lock is kept once it is granted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// Heartbeat: the claimant takes and renews it itself. Fixed: for a time. Pod: as long as a Pod runs.
    #[serde(rename = "type")]
    pub type_: HoldType,
    /// For Fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedHold>,
    /// For Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodHold>,
}

/// How a grant is kept.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[schemars(inline)]
pub enum HoldType {
    /// The claimant takes, renews and releases it itself.
    #[default]
    Heartbeat,
    /// It ends by itself after a time.
    Fixed,
    /// It lasts as long as a Pod.
    Pod,
}

/// A hold that ends by itself.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FixedHold {
    /// For so many seconds. It may only rise.
    #[schemars(range(min = 1, max = 86_400))]
    pub seconds: i32,
}

/// A hold that lasts until that Pod is gone or has ended, never by time alone.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodHold {
    /// The Pod, in the claim's namespace.
    #[schemars(length(min = 1, max = MAX_NAME_CHARS))]
    pub name: String,
    /// Its uid, so that another Pod of that name is not taken for it. Where it is unset the grant binds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 36))]
    pub uid: Option<String>,
}

/// What became of the claim.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct LockClaimStatus {
    /// The metadata.generation that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_TOKEN))]
    pub observed_generation: Option<i64>,
    /// Pending, Granted, or how it finished. A final phase never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<ClaimPhase>,
    /// Who claims: `spec.claimant`, or the claim's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_NAME_CHARS))]
    pub claimant: Option<String>,
    /// The place in the order of coming: the claim's resourceVersion when it was first seen, written once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_TOKEN))]
    pub ticket: Option<i64>,
    /// The slot that was granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 63))]
    pub slot: Option<i32>,
    /// The Lease that was granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_NAME_CHARS))]
    pub lease_name: Option<String>,
    /// The holderIdentity of the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_IDENTITY_CHARS))]
    pub holder_identity: Option<String>,
    /// The token of the grant, written once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<FencingToken>,
    /// When it was granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant_time: Option<Time>,
    /// When the grant ends by itself, for Fixed holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_time: Option<Time>,
    /// Ready (the same as Granted), Granted, Stalled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions::schema")]
    pub conditions: Vec<Condition>,
}

/// How far a claim has come: Pending, then Granted, then Released, Expired or Revoked; or it ends without a grant.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[schemars(inline)]
pub enum ClaimPhase {
    /// It waits.
    #[default]
    Pending,
    /// It holds a slot.
    Granted,
    /// It gave its slot back.
    Released,
    /// Its time is over.
    Expired,
    /// It was taken away.
    Revoked,
    /// It did not get the lock in time.
    TimedOut,
    /// It was refused.
    Rejected,
    /// A phase of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Other,
}

impl LockClaimSpec {
    /// A claim on this lock that its claimant keeps by heartbeat, all else as by default.
    pub fn heartbeat(lock: impl Into<String>) -> Self {
        Self {
            lock_name: lock.into(),
            claimant: None,
            priority: 0,
            wait_timeout_seconds: None,
            hold: Hold::default(),
            ttl_seconds_after_finished: None,
        }
    }
}

impl ClaimPhase {
    /// Whether the claim is over; an unknown phase is not taken for over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Granted | Self::Other => false,
            Self::Released | Self::Expired | Self::Revoked | Self::TimedOut | Self::Rejected => {
                true
            }
        }
    }
}

impl LockClaimStatus {
    /// Sets the phase and the conditions that go with it, as said about this generation.
    ///
    /// Tools that judge by conditions (kstatus, Flux, Argo CD) read it thus: while it waits they go on waiting, once it
    /// is granted they go on, and when it is over, in whatever way, they give up, as it never becomes ready again.
    pub fn set_phase(
        &mut self,
        phase: ClaimPhase,
        reason: &str,
        message: &str,
        generation: Option<i64>,
        now: &Time,
    ) {
        self.observed_generation = generation;
        self.phase = Some(phase);
        let over = phase.is_final();
        let granted = phase == ClaimPhase::Granted;
        let ready = if granted || over {
            granted.into()
        } else {
            ConditionStatus::Unknown
        };
        let stalled = if over {
            (reason, message)
        } else {
            (REASON_OK, "nothing hinders the operator")
        };
        for (type_, status, (reason, message)) in [
            (CONDITION_READY, ready, (reason, message)),
            (CONDITION_GRANTED, granted.into(), (reason, message)),
            (CONDITION_STALLED, over.into(), stalled),
        ] {
            let conditions = &mut self.conditions;
            set_condition(conditions, type_, status, reason, message, generation, now);
        }
    }
}

impl LockClaim {
    /// The phase; Pending while status says nothing.
    #[must_use]
    pub fn phase(&self) -> ClaimPhase {
        self.status
            .as_ref()
            .and_then(|s| s.phase)
            .unwrap_or_default()
    }

    /// Who claims: `spec.claimant`, else the claim's name.
    #[must_use]
    pub fn claimant(&self) -> String {
        self.spec
            .claimant
            .clone()
            .unwrap_or_else(|| self.name_any())
    }

    /// The `holderIdentity` of this claim's grant, `<claimant>/<uid>`; `None` for a claim that no server has made.
    #[must_use]
    pub fn holder_identity(&self) -> Option<String> {
        Some(format!(
            "{}/{}",
            self.claimant(),
            self.metadata.uid.as_ref()?
        ))
    }

    /// How a Lease names this claim in `leasehold.dev/next`: `<claim name>/<claim uid>`.
    #[must_use]
    pub fn next_reference(&self) -> Option<String> {
        Some(format!(
            "{}/{}",
            self.metadata.name.as_ref()?,
            self.metadata.uid.as_ref()?
        ))
    }

    /// The place in the order of coming: the ticket, else the claim's own resourceVersion.
    #[must_use]
    pub fn ticket(&self) -> Option<i64> {
        let written = self.status.as_ref().and_then(|s| s.ticket);
        written.or_else(|| self.metadata.resource_version.as_ref()?.parse().ok())
    }
}
