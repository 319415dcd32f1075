//! Broken rules of locks of several slots, of priority, and of holds that the operator keeps: the model must notice
//! each.

use leasehold::engine::{Patience, QueueOrder};

use super::checks_holds::kept;
use super::kept::Asks;
use super::mutations::{Broken, is_noticed};
use super::world::{Budget, Setup};

/// Three clients of a lock of two slots, of which somebody outside the model holds the first.
fn second() -> Setup {
    Setup {
        slots: 2,
        occupied: true,
        clients: vec![Patience::Wait; 3],
        operators: 0,
        ..Setup::default()
    }
}

const STRANDED: &str = "nobody is stranded";

#[test]
fn a_turn_that_is_not_moved_on_is_noticed() {
    // It is repaired, but not at once: whoever is behind looks around on the slow beat.
    is_noticed(
        Broken::NeverMovesOn,
        STRANDED,
        Setup {
            bound: 6,
            ..second()
        },
    );
}

#[test]
fn a_slot_that_nobody_looks_at_is_noticed() {
    let budget = Budget {
        crashes: 1,
        ..Budget::default()
    };
    is_noticed(
        Broken::WatchesTheFirstSlotOnly,
        STRANDED,
        Setup { budget, ..second() },
    );
}

#[test]
fn a_slot_that_was_given_up_and_is_taken_is_noticed() {
    let budget = Budget {
        lower_limits: 1,
        ..Budget::default()
    };
    is_noticed(
        Broken::KeepsTheLock,
        "slots above the limit are not taken",
        Setup { budget, ..second() },
    );
}

#[test]
fn a_take_of_the_other_slot_out_of_turn_is_noticed() {
    is_noticed(Broken::TakesOutOfTurn, "nobody takes out of turn", second());
}

#[test]
fn two_that_name_themselves_in_turn_are_noticed() {
    is_noticed(
        Broken::NamesItself,
        STRANDED,
        Setup {
            order: QueueOrder::Priority,
            priorities: vec![0, 0, 5],
            clients: vec![Patience::Wait; 3],
            operators: 0,
            ..Setup::default()
        },
    );
}

#[test]
fn a_hold_that_is_taken_again_is_noticed() {
    is_noticed(
        Broken::ForgetsPhases,
        "a claim is granted once",
        kept(Asks::Fixed(1)),
    );
}

#[test]
fn a_lease_that_is_freed_before_its_claim_is_over_is_noticed() {
    is_noticed(
        Broken::FreesFirst,
        "a claim is over before its lease is freed",
        kept(Asks::Fixed(1)),
    );
}

#[test]
fn a_pod_hold_that_ends_by_time_is_noticed() {
    is_noticed(
        Broken::EndsPodsByTime,
        "a hold lasts for as long as it was granted",
        kept(Asks::Pod),
    );
}

#[test]
fn a_holder_that_outstays_its_limit_is_noticed() {
    let budget = Budget {
        renewals: 4,
        ..Budget::default()
    };
    is_noticed(
        Broken::OutstaysItsLimit,
        "who keeps to maxHoldSeconds is not cut short",
        Setup {
            clients: vec![Patience::Wait],
            max_hold_seconds: Some(1),
            horizon: 6,
            budget,
            ..Setup::default()
        },
    );
}
