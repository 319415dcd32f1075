//! What the conditions of a lock say, over all its slots.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Sight, SlotSight, Trouble, clip};
use crate::api::names::{self, MAX_IDENTITY_CHARS, MAX_MESSAGE_CHARS};
use crate::api::{ConditionStatus, DistributedLockStatus, LockPhase, set_condition};
use crate::engine::token::next_token;
use crate::engine::{LeaseRecord, Loss, OnHolderLost, Unavailable, WallMicros, missing_floor};

/// The most holders, or troubles, that one message names.
const NAMED: usize = 5;

/// Sets all conditions of a status that is complete but for them.
pub(super) fn set(status: &mut DistributedLockStatus, sight: &Sight<'_>, holders: &[&str]) {
    let abandoned = status.phase == Some(LockPhase::Abandoned);
    let generation = sight.lock.metadata.generation;
    let now = whole_seconds(sight.wall);
    let conditions = &mut status.conditions;
    let mut set = |type_: &str, status: ConditionStatus, reason: &str, message: &str| {
        let message = clip(message, MAX_MESSAGE_CHARS);
        set_condition(conditions, type_, status, reason, message, generation, &now);
    };
    if let Some((held, reason, message)) = held(sight, holders, abandoned) {
        set(names::CONDITION_HELD, held.into(), reason, &message);
    }
    let troubles: Vec<_> = sight
        .slots
        .iter()
        .filter_map(|slot| trouble(sight, slot).map(|words| (slot, words)))
        .collect();
    let all = troubles.iter().map(|(_, words)| words.clone()).collect();
    let trouble = summary(all);
    let opens_first = sight
        .slots
        .first()
        .is_some_and(|slot| slot.open && slot.lease.is_some_and(LeaseRecord::is_missing));
    if opens_first {
        // The freeing follows this write; should the operator die in between, the next one ends the `missing`.
        let message = "the lock is being opened";
        set(
            names::CONDITION_READY,
            ConditionStatus::Unknown,
            names::REASON_PENDING,
            message,
        );
    } else {
        let ready = trouble.is_none();
        let (reason, message) = trouble.unwrap_or((
            names::REASON_READY,
            "the operator has its Lease in order, and shows it here".to_owned(),
        ));
        set(names::CONDITION_READY, ready.into(), reason, &message);
    }
    // Only what a person must look into: tools give up at once on what is stalled.
    let grave = troubles
        .into_iter()
        .filter(|(slot, _)| needs_a_person(slot));
    match summary(grave.map(|(_, words)| words).collect()) {
        Some((reason, message)) => set(
            names::CONDITION_STALLED,
            ConditionStatus::True,
            reason,
            &message,
        ),
        None => set(
            names::CONDITION_STALLED,
            ConditionStatus::False,
            names::REASON_OK,
            "nothing hinders the operator",
        ),
    }
    let (ahead, reason, message) = token_ahead(sight);
    set(names::CONDITION_TOKEN_AHEAD, ahead.into(), reason, message);
}

/// Status, reason and message of Held; `None` to leave what is there.
fn held(
    sight: &Sight<'_>,
    holders: &[&str],
    abandoned: bool,
) -> Option<(bool, &'static str, String)> {
    if abandoned {
        let lost: Vec<_> = sight.slots.iter().filter_map(lost_words).collect();
        return (!lost.is_empty()).then(|| (true, names::REASON_ABANDONED, few(&lost, "; ")));
    }
    let real: Vec<_> = holders
        .iter()
        .filter(|holder| **holder != names::HOLDER_MISSING)
        .map(|holder| clip(holder, MAX_IDENTITY_CHARS).to_owned())
        .collect();
    Some(if !real.is_empty() {
        let words = format!("held by {}", few(&real, ", "));
        (true, names::REASON_HELD, words)
    } else if !holders.is_empty() {
        let words = "whoever held the deleted Lease may still believe in it".to_owned();
        (true, names::REASON_LEASE_MISSING, words)
    } else {
        (false, names::REASON_FREE, "nobody holds it".to_owned())
    })
}

/// A holder that is lost, and what frees the slot.
fn lost_words(slot: &SlotSight<'_>) -> Option<String> {
    let lease = slot.lease.filter(|_| slot.loss == Loss::Lost)?;
    let holder = clip(&lease.spec.holder, MAX_IDENTITY_CHARS);
    let what = if slot.view.max_holders <= 1 && slot.view.number == 0 {
        "the lock".to_owned()
    } else {
        format!("slot {}", slot.view.number)
    };
    let lost = format!("{holder} fell silent and onHolderLost is Hold, so {what} stays locked");
    Some(match lease.current_token() {
        Some(token) => format!(
            "{lost}: once its work has ended for certain, set spec.{} to free it",
            slot.floor(token.get().saturating_add(1))
        ),
        None => format!(
            "{lost}; its grant annotation is gone: once its work has ended for certain, delete the Lease, and raise \
             minFencingToken to what Stalled will name"
        ),
    })
}

/// The first ones, and how many there are more.
fn few(words: &[String], between: &str) -> String {
    let first = words[..words.len().min(NAMED)].join(between);
    match words.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// The first reason, with the words of all.
fn summary(troubles: Vec<(&'static str, String)>) -> Option<(&'static str, String)> {
    let reason = troubles.first()?.0;
    let words: Vec<_> = troubles.into_iter().map(|(_, words)| words).collect();
    Some((reason, few(&words, "; ")))
}

fn token_ahead(sight: &Sight<'_>) -> (bool, &'static str, &'static str) {
    let usable = sight.slots.iter().filter(|slot| slot.trouble.is_none());
    let next = usable.filter_map(|slot| Some(next_token(&slot.view, slot.lease?, 0)));
    let (mut ahead, mut none_left) = (false, false);
    for choice in next {
        none_left |= choice.is_none();
        ahead |= choice.is_some_and(|choice| choice.ahead_of_revision);
    }
    if none_left {
        return (
            true,
            names::REASON_TOKEN_AHEAD,
            "no fencing token below 2^53 is left: make a new lock under another name",
        );
    }
    if ahead {
        return (
            true,
            names::REASON_TOKEN_AHEAD,
            "the next token comes from status, annotation or minFencingToken, not from the revision (an etcd restore, \
             or a raised floor): keep status and annotations until the cluster's revision is above it, or make a new \
             lock under another name",
        );
    }
    (false, names::REASON_OK, "tokens come from the revision")
}

/// Whether what is wrong does not go by itself: an earlier lock's Lease, or one that is being deleted, does.
fn needs_a_person(slot: &SlotSight<'_>) -> bool {
    !matches!(
        slot.trouble,
        Some(Trouble::Unavailable(
            Unavailable::OtherLock | Unavailable::Deleting
        ))
    )
}

/// Reason and message, where something is wrong with a slot that may be taken.
fn trouble(sight: &Sight<'_>, slot: &SlotSight<'_>) -> Option<(&'static str, String)> {
    if slot.view.is_surplus() {
        return None;
    }
    let lease = sight.lock.slot_lease_name(slot.number());
    let name = &slot.view.name;
    Some(match &slot.trouble {
        Some(Trouble::TakenBy(other)) => (
            names::REASON_LEASE_CONFLICT,
            format!(
                "Lease {lease} belongs to the lock {other}: name another Lease, or delete one of the two locks"
            ),
        ),
        Some(Trouble::Election) => (
            names::REASON_LEASE_CONFLICT,
            format!(
                "Lease {lease} is the one by which the operator elects its leader: name another Lease"
            ),
        ),
        Some(Trouble::Unavailable(Unavailable::NotOurs)) if slot.view.adopts => (
            names::REASON_NOT_SHARED,
            format!(
                "Lease {lease} is there and its owner has not consented: \
                 kubectl label lease {lease} {}={name}",
                names::LABEL_SHARED_WITH
            ),
        ),
        Some(Trouble::Unavailable(Unavailable::NotOurs)) => (
            names::REASON_LEASE_CONFLICT,
            format!(
                "Lease {lease} is there without the label {}={name}, so it belongs to something else and is left \
                     alone: make the lock under another name, or set leaseName to share it",
                names::LABEL_LOCK
            ),
        ),
        Some(Trouble::Unavailable(Unavailable::OtherLock)) => (
            names::REASON_LEASE_CONFLICT,
            format!(
                "Lease {lease} belongs to an earlier lock of this name and waits for the garbage collector"
            ),
        ),
        Some(Trouble::Unavailable(Unavailable::Deleting)) => (
            names::REASON_LEASE_CONFLICT,
            format!("Lease {lease} is being deleted: a finalizer on it keeps it"),
        ),
        Some(Trouble::Unavailable(Unavailable::NewerVersion)) => (
            names::REASON_UNKNOWN_GRANT,
            "the grant was written by a newer Leasehold: upgrade the operator".to_owned(),
        ),
        Some(Trouble::Unavailable(Unavailable::NotOpened)) => return None,
        None => {
            let record = slot.lease.filter(|lease| lease.is_missing())?;
            slot.holder()?;
            let frees = slot.floor(missing_floor(&slot.view, record));
            let words = match slot.view.on_holder_lost {
                OnHolderLost::Release => format!(
                    "Lease {lease} was deleted and made again: nobody takes it before whatever held it must have \
                     ended. If that has ended, {frees} frees it now"
                ),
                OnHolderLost::Hold => format!(
                    "Lease {lease} was made anew and onHolderLost is Hold: it stays locked, since somebody may have \
                     held it. Once that has ended for certain, {frees} frees it"
                ),
            };
            (names::REASON_LEASE_MISSING, words)
        }
    })
}

/// Conditions keep whole seconds.
fn whole_seconds(wall: WallMicros) -> Time {
    Time(
        k8s_openapi::jiff::Timestamp::from_second(wall.div_euclid(1_000_000))
            .unwrap_or(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
    )
}
