//! Locks of several slots, and locks whose queue goes by priority, at small bounds.

use leasehold::engine::{Patience, QueueOrder};

use super::checks::{budget, holds, long};
use super::world::{Action, Budget, Do, Fate, Setup};

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

/// A slot more, at any moment of a take, a wait or a release.
#[test]
fn a_slot_is_added() {
    let budget = budget(|b| {
        b.lower_limits = 1;
        b.raised_limits = 1;
    });
    holds(
        "more",
        Setup {
            operators: usize::from(long()),
            horizon: 2,
            prefix: vec![Action::LowerLimit],
            budget,
            ..both()
        },
    );
}

/// Held or free, given up and had again, in any order with takes and renewals.
#[test]
fn a_slot_is_given_up_and_added_again() {
    let budget = budget(|b| {
        b.lower_limits = 1;
        b.raised_limits = 1;
        b.renewals = u8::from(long());
    });
    holds(
        "fewer, then more",
        Setup {
            horizon: 2,
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

/// A client takes what it can have.
fn takes(number: usize) -> [Action; 2] {
    [
        Action::Client(number, Do::Step),
        Action::Client(number, Do::Land(Fate::Answered)),
    ]
}

/// Both slots are held, the first one for longer than the second, whose holder has died. One more waits.
fn second_silent(edit: impl FnOnce(&mut Budget)) -> Setup {
    let mut prefix = takes(0).to_vec();
    prefix.push(Action::Start(1));
    prefix.extend(takes(1));
    prefix.extend([Action::Crash(1), Action::Start(2)]);
    let budget = budget(|b| {
        b.crashes = 1;
        b.renewals = 2;
        edit(b);
    });
    Setup {
        clients: vec![Patience::Wait; 3],
        horizon: 2,
        budget,
        prefix,
        ..both()
    }
}

/// Its take of the second slot is not answered, then Hold forbids to send it again: the first slot is as good, once it
/// is free, and it holds one of them only.
#[test]
fn hold_is_new_while_a_take_of_the_other_slot_is_open() {
    holds(
        "both, new hold, late",
        second_silent(|b| {
            b.new_holds = 1;
            b.late_writes = 1;
        }),
    );
}

#[test]
fn a_slot_is_given_up_while_a_take_of_it_is_open() {
    holds(
        "both, fewer, late",
        second_silent(|b| {
            b.lower_limits = 1;
            b.late_writes = 1;
        }),
    );
}

/// The first slot goes to another meanwhile, with a higher token than that of the take.
#[test]
fn a_floor_is_raised_while_a_take_is_open() {
    let budget = budget(|b| {
        b.revocations = 1;
        b.late_writes = 1;
    });
    let mut prefix = takes(0).to_vec();
    prefix.extend([
        Action::Start(1),
        Action::Client(1, Do::Step),
        Action::Client(1, Do::Land(Fate::GivenUp)),
        Action::Release(0),
    ]);
    prefix.extend(takes(0));
    prefix.push(Action::Start(2));
    prefix.extend(takes(2));
    holds(
        "both, revoked, late",
        Setup {
            clients: vec![Patience::Wait; 3],
            prefix,
            horizon: 1,
            budget,
            ..both()
        },
    );
}

/// Who tries, too, settles what it sent before it leaves, and so does who stops.
#[test]
fn a_slot_is_given_up_while_a_take_of_one_who_leaves_is_open() {
    let budget = budget(|b| {
        b.lower_limits = 1;
        b.late_writes = 1;
        b.stops = 1;
    });
    let mut prefix = takes(0).to_vec();
    prefix.push(Action::Start(1));
    for (name, patience) in [
        ("both, fewer, try", Patience::Try),
        ("both, fewer, stop", Patience::Wait),
    ] {
        holds(
            name,
            Setup {
                clients: vec![Patience::Wait, patience],
                prefix: prefix.clone(),
                horizon: 1,
                budget,
                ..both()
            },
        );
    }
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
