//! Locks of several slots, and locks whose queue goes by priority, at small bounds.

use leasehold::engine::{Patience, QueueOrder};

use super::checks::{budget, holds, long};
use super::world::Setup;

/// A lock of two slots, of which somebody outside the model holds the first: everybody comes by the second.
fn second() -> Setup {
    Setup {
        slots: 2,
        occupied: true,
        operators: 0,
        ..Setup::default()
    }
}

/// Nobody waits for a beat of anything: whose turn is over moves `next` on.
#[test]
fn three_are_served_by_the_other_slot_one_after_the_other() {
    holds(
        "second, three",
        Setup {
            clients: vec![Patience::Wait; 3],
            horizon: 1,
            bound: 6,
            ..second()
        },
    );
}

fn both() -> Setup {
    Setup {
        occupied: false,
        ..second()
    }
}

/// A low one, then a higher one, while somebody outside holds the lock: they have nothing but the turn to quarrel
/// about.
fn ranked() -> Setup {
    Setup {
        order: QueueOrder::Priority,
        priorities: vec![0, 5],
        operators: 0,
        ..Setup::default()
    }
}

#[test]
fn everybody_is_served_by_the_other_slot() {
    let budget = budget(|b| b.outer_renewals = 1);
    holds("second", Setup { budget, ..second() });
}

#[test]
fn a_head_dies_that_waits_for_the_other_slot() {
    let budget = budget(|b| b.crashes = 1);
    holds(
        "second, crash",
        Setup {
            clients: vec![Patience::Wait; if long() { 3 } else { 2 }],
            budget,
            ..second()
        },
    );
}

#[test]
fn an_operator_sees_to_the_other_slot() {
    let budget = budget(|b| b.crashes = 1);
    holds(
        "second, operated",
        Setup {
            operators: 1,
            budget,
            ..second()
        },
    );
}

#[test]
fn takes_of_the_other_slot_are_lost_and_late() {
    let budget = budget(|b| {
        b.late_writes = 1;
        b.lost_answers = 1;
    });
    holds(
        "second, late",
        Setup {
            horizon: 2,
            budget,
            ..second()
        },
    );
}

#[test]
fn three_share_two_slots() {
    holds(
        "both",
        Setup {
            clients: vec![Patience::Wait; 3],
            horizon: 1,
            ..both()
        },
    );
}

#[test]
fn two_slots_are_shared_before_an_operator() {
    holds(
        "both, operated",
        Setup {
            clients: vec![Patience::Wait; if long() { 3 } else { 2 }],
            operators: 1,
            horizon: 2,
            ..both()
        },
    );
}

#[test]
fn a_holder_of_one_of_two_slots_dies() {
    let budget = budget(|b| {
        b.crashes = 1;
        b.pauses = 1;
        b.renewals = u8::from(long());
    });
    holds("both, crash", Setup { budget, ..both() });
}

#[test]
fn a_slot_is_given_up() {
    let budget = budget(|b| {
        b.lower_limits = 1;
        b.crashes = 1;
    });
    holds("fewer", Setup { budget, ..both() });
}

#[test]
fn a_slot_is_given_up_before_an_operator() {
    let budget = budget(|b| b.lower_limits = 1);
    holds(
        "fewer, operated",
        Setup {
            operators: 1,
            budget,
            ..both()
        },
    );
}

#[test]
fn the_lease_of_either_slot_is_deleted() {
    let budget = budget(|b| b.lease_deletions = 1);
    holds(
        "both, deleted",
        Setup {
            operators: 1,
            horizon: 1,
            budget,
            ..both()
        },
    );
}

#[test]
fn one_tries_while_others_share_two_slots() {
    holds(
        "both, try",
        Setup {
            clients: vec![Patience::Wait, Patience::Wait, Patience::Try],
            horizon: 2,
            ..both()
        },
    );
}

#[test]
fn others_act_between_the_reads_of_two_slots() {
    holds(
        "both, fine",
        Setup {
            fine: true,
            horizon: 1,
            ..both()
        },
    );
}

#[test]
fn a_higher_one_goes_first() {
    let budget = budget(|b| {
        b.crashes = 1;
        b.again = 1;
    });
    holds("ranked", Setup { budget, ..ranked() });
}

#[test]
fn a_higher_one_goes_first_of_three() {
    let budget = budget(|b| b.crashes = 1);
    holds(
        "ranked three",
        Setup {
            clients: vec![Patience::Wait; 3],
            priorities: vec![0, 0, 5],
            horizon: u32::from(long()),
            budget,
            ..ranked()
        },
    );
}

#[test]
fn a_higher_one_goes_first_before_an_operator_too() {
    let budget = budget(|b| b.crashes = 1);
    holds(
        "ranked, operated",
        Setup {
            operators: 1,
            horizon: 2,
            budget,
            ..ranked()
        },
    );
}

#[test]
fn ranks_and_slots_go_together() {
    let budget = budget(|b| b.crashes = 1);
    holds(
        "ranked slots",
        Setup {
            slots: 2,
            occupied: true,
            clients: vec![Patience::Wait; 3],
            priorities: vec![0, 0, 5],
            horizon: u32::from(long()),
            budget,
            ..ranked()
        },
    );
}
