//! What tests of the operator ask of a lock's status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use leasehold::api::{DistributedLock, DistributedLockSpec, EndReason, find_condition, names};
use leasehold::engine::Grant;

/// A lock of this lease duration.
pub fn lasting(seconds: i32) -> DistributedLockSpec {
    DistributedLockSpec {
        lease_duration_seconds: seconds,
        ..DistributedLockSpec::default()
    }
}

/// Whether status says that the lock can be taken.
pub fn is_free(lock: &DistributedLock) -> bool {
    lock.slot_status(0)
        .is_some_and(leasehold::api::SlotStatus::is_free)
        && condition(lock, names::CONDITION_READY).0 == "True"
        && condition(lock, names::CONDITION_HELD).0 == "False"
}

/// Status and reason of a condition of the lock; empty where there is none.
pub fn condition(lock: &DistributedLock, type_: &str) -> (String, String) {
    let status = lock.status.as_ref();
    condition_in(status.map_or(&[], |status| &status.conditions), type_)
}

/// Status and reason of one of these; empty where it is not there.
pub fn condition_in(conditions: &[Condition], type_: &str) -> (String, String) {
    find_condition(conditions, type_)
        .map(|condition| (condition.status.clone(), condition.reason.clone()))
        .unwrap_or_default()
}

/// How the grants of the lock ended that its history tells of, the last one first.
pub fn ends(lock: &DistributedLock) -> Vec<EndReason> {
    let history = lock.status.iter().flat_map(|status| &status.history);
    history.map(|end| end.reason).collect()
}

/// Message of a condition; empty where there is none.
pub fn message(lock: &DistributedLock, type_: &str) -> String {
    let conditions = lock.status.iter().flat_map(|status| &status.conditions);
    let mut of_type = conditions.filter(|condition| condition.type_ == type_);
    of_type
        .next()
        .map_or_else(String::new, |c| c.message.clone())
}

/// Whether status shows this grant.
pub fn shows(lock: &DistributedLock, grant: &Grant) -> bool {
    shows_in(lock, 0, grant)
}

/// Whether status shows this grant in this slot.
pub fn shows_in(lock: &DistributedLock, slot: i32, grant: &Grant) -> bool {
    lock.slot_status(slot).is_some_and(|slot| {
        slot.holder_identity == grant.holder && slot.fencing_token == Some(grant.token)
    })
}
