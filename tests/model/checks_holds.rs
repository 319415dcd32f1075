//! Holds without a process, and holds that are limited, at small bounds.

use leasehold::engine::{OnHolderLost, Patience};

use super::checks::{budget, holds, long};
use super::kept::Asks;
use super::world::Setup;

/// One client, and one claim that the operator keeps.
pub fn kept(asks: Asks) -> Setup {
    Setup {
        clients: vec![Patience::Wait],
        asks: vec![asks],
        mirrors: true,
        ..Setup::default()
    }
}

#[test]
fn a_fixed_hold_lasts_for_its_seconds() {
    let budget = budget(|b| {
        b.pauses = u8::from(long());
        b.lost_answers = 1;
    });
    holds(
        "fixed",
        Setup {
            budget,
            ..kept(Asks::Fixed(2))
        },
    );
}

#[test]
fn a_fixed_hold_is_prolonged() {
    let budget = budget(|b| b.extensions = 1);
    holds(
        "fixed, longer",
        Setup {
            clients: vec![Patience::Try],
            horizon: 2,
            budget,
            ..kept(Asks::Fixed(1))
        },
    );
}

#[test]
fn an_operator_dies_while_it_takes_for_a_claim() {
    let budget = budget(|b| {
        b.operator_crashes = 1;
        b.operator_starts = 1;
        b.late_writes = u8::from(long());
    });
    holds(
        "fixed, operators",
        Setup {
            horizon: 1,
            budget,
            ..kept(Asks::Fixed(1))
        },
    );
}

#[test]
fn two_operators_keep_the_same_claims() {
    let budget = budget(|b| b.late_writes = 1);
    holds(
        "fixed, doubled",
        Setup {
            clients: vec![Patience::Try],
            operators: 2,
            horizon: 1,
            budget,
            ..kept(Asks::Fixed(1))
        },
    );
}

#[test]
fn the_lease_of_a_fixed_hold_is_deleted() {
    let budget = budget(|b| b.lease_deletions = 1);
    holds(
        "fixed, deleted",
        Setup {
            horizon: 2,
            budget,
            ..kept(Asks::Fixed(3))
        },
    );
}

#[test]
fn a_claim_that_holds_is_deleted_or_loses_its_annotation() {
    let with = |budget| Setup {
        horizon: 1,
        budget,
        ..kept(Asks::Fixed(1))
    };
    let deleted = budget(|b| b.kept_deletions = 1);
    holds("fixed, given up", with(deleted));
    let dropped = budget(|b| b.dropped_annotations = 1);
    holds(
        "fixed, dropped",
        Setup {
            clients: vec![Patience::Try],
            ..with(dropped)
        },
    );
}

#[test]
fn a_pod_hold_ends_with_its_pod() {
    let budget = budget(|b| {
        b.pod_ends = 1;
        b.operator_crashes = u8::from(long());
        b.operator_starts = u8::from(long());
    });
    holds(
        "pod",
        Setup {
            horizon: 2,
            budget,
            ..kept(Asks::Pod)
        },
    );
}

#[test]
fn the_annotation_of_a_pod_hold_is_dropped() {
    let budget = budget(|b| b.dropped_annotations = 1);
    holds(
        "pod, dropped",
        Setup {
            horizon: 2,
            budget,
            ..kept(Asks::Pod)
        },
    );
}

#[test]
fn a_claim_is_kept_beside_two_slots() {
    holds(
        "fixed slots",
        Setup {
            slots: 2,
            occupied: true,
            horizon: 1,
            ..kept(Asks::Fixed(1))
        },
    );
}

#[test]
fn the_watch_of_claims_is_behind() {
    let budget = budget(|b| b.operator_crashes = u8::from(long()));
    holds(
        "fixed, behind",
        Setup {
            lags: true,
            horizon: 2,
            budget,
            ..kept(Asks::Fixed(1))
        },
    );
}

#[test]
fn two_operators_are_behind() {
    holds(
        "fixed, two behind",
        Setup {
            clients: Vec::new(),
            operators: 2,
            lags: true,
            horizon: 2,
            ..kept(Asks::Fixed(1))
        },
    );
}

#[test]
fn a_claim_is_revoked() {
    let budget = budget(|b| b.slot_floors = 1);
    holds(
        "fixed, revoked",
        Setup {
            horizon: 1,
            budget,
            ..kept(Asks::Fixed(2))
        },
    );
}

#[test]
fn a_holder_stops_after_the_longest_hold() {
    let budget = budget(|b| {
        b.renewals = 3;
        b.pauses = 1;
        b.crashes = 1;
    });
    holds(
        "max hold",
        Setup {
            max_hold_seconds: Some(2),
            clients: vec![Patience::Wait],
            horizon: 5,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn a_delay_follows_a_holder_that_did_not_release() {
    let budget = budget(|b| {
        b.crashes = 1;
        b.renewals = 1;
    });
    holds(
        "delay",
        Setup {
            lock_delay_seconds: 1,
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn a_floor_of_one_slot_ends_its_holder_alone() {
    let budget = budget(|b| {
        b.slot_floors = 1;
    });
    holds(
        "slot floor",
        Setup {
            slots: 2,
            horizon: 2,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn under_hold_nobody_replaces_the_silent_holder_of_a_slot() {
    let budget = budget(|b| b.crashes = 1);
    holds(
        "hold, slots",
        Setup {
            slots: 2,
            operators: 0,
            on_holder_lost: OnHolderLost::Hold,
            budget,
            ..Setup::default()
        },
    );
}
