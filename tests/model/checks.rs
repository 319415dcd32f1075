//! The model at small bounds, walked in whole.

use leasehold::engine::{OnHolderLost, Patience};
use stateright::{Checker, HasDiscoveries, Model};

use super::fair;
use super::world::{Action, Budget, Do, Fate, Play, Setup};

/// Walks every state.
pub fn holds(name: &str, setup: Setup) {
    let setup = if long() {
        Setup {
            seconds: setup.seconds + 1,
            horizon: setup.horizon + 2,
            ..setup
        }
    } else {
        setup
    };
    let started = leasehold::clock::MonoInstant::now();
    let checker = Play::new(setup.clone())
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    println!(
        "{name}: {} states, depth {}, {:?}",
        checker.unique_state_count(),
        checker.max_depth(),
        leasehold::clock::MonoInstant::now().saturating_duration_since(started)
    );
    for (property, path) in checker.discoveries() {
        if property == "somebody is served" {
            continue;
        }
        let last = path.last_state().clone();
        let why = fair::ticks_to_the_end(&Play::new(setup.clone()), &last);
        panic!(
            "{name}: {property}: {:#?}\n{last:#?}\n{why:?}",
            path.into_actions()
        );
    }
    checker.assert_any_discovery("somebody is served");
}

/// Raised bounds: more of everything, for minutes instead of seconds.
pub fn long() -> bool {
    std::env::var_os("LEASEHOLD_LONG").is_some()
}

pub fn budget(edit: impl FnOnce(&mut Budget)) -> Budget {
    let mut budget = Budget::default();
    edit(&mut budget);
    budget
}

#[test]
fn two_clients_and_an_operator_without_faults() {
    holds("calm", Setup { ..Setup::default() });
}

#[test]
fn writes_that_land_late_or_are_not_answered() {
    let budget = budget(|b| {
        b.late_writes = 1;
        b.lost_answers = 1;
        b.stops = 1;
    });
    holds(
        "late",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

/// Clients behind a proxy that repeats what it got no answer to: the conflict is with their own write.
#[test]
fn writes_that_a_proxy_repeats() {
    for patience in [Patience::Wait, Patience::Try] {
        let budget = budget(|b| {
            b.repeats = 1;
            b.stops = 1;
        });
        holds(
            "repeated",
            Setup {
                clients: vec![patience, Patience::Wait],
                operators: 0,
                budget,
                ..Setup::default()
            },
        );
    }
}

#[test]
fn answers_that_come_late() {
    let budget = budget(|b| {
        b.slow_answers = 1;
        b.renewals = 1;
        b.pauses = 1;
    });
    holds(
        "slow",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn crashes_and_pauses_without_an_operator() {
    let budget = budget(|b| {
        b.crashes = 1;
        b.renewals = 1;
        b.pauses = 2;
    });
    holds(
        "crash",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn crashes_with_an_operator() {
    let budget = budget(|b| {
        b.crashes = 1;
        b.pauses = 1;
    });
    holds(
        "crash-op",
        Setup {
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn a_lease_is_deleted() {
    let budget = budget(|b| {
        b.lease_deletions = 1;
    });
    holds(
        "deleted",
        Setup {
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn two_operators_open_a_lock_whose_lease_is_deleted() {
    let budget = budget(|b| {
        b.lease_deletions = 1;
    });
    holds(
        "opening",
        Setup {
            clients: vec![Patience::Wait; 1],
            operators: 2,
            opened: false,
            horizon: 2,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn annotations_are_dropped_and_transitions_reset() {
    let budget = budget(|b| {
        b.dropped_annotations = 1;
        b.reset_transitions = 1;
        b.renewals = 1;
    });
    holds(
        "dropped",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn a_foreign_elector_shares_the_lease() {
    let budget = budget(|b| {
        b.foreign_terms = 1;
        b.foreign_crashes = 1;
        b.renewals = 1;
    });
    holds(
        "foreign",
        Setup {
            clients: vec![Patience::Wait; 1],
            foreign: true,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn a_claim_is_deleted() {
    let budget = budget(|b| {
        b.claim_deletions = 1;
        b.crashes = 1;
    });
    holds(
        "claim",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn three_clients_of_whom_one_dies() {
    let budget = budget(|b| {
        b.crashes = 1;
    });
    holds(
        "three",
        Setup {
            clients: vec![Patience::Wait; 3],
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn under_hold_a_silent_holder_stays() {
    let budget = budget(|b| {
        b.crashes = 1;
        b.lease_deletions = 1;
    });
    holds(
        "hold",
        Setup {
            on_holder_lost: OnHolderLost::Hold,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn hold_is_new_while_a_holder_is_silent() {
    let budget = budget(|b| {
        b.crashes = 1;
        b.new_holds = 1;
        b.lost_answers = 1;
    });
    holds(
        "new hold",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
    let budget = Budget {
        lost_answers: 0,
        late_writes: 1,
        ..budget
    };
    holds(
        "new hold, late",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
    // The operator's attempts, too.
    holds(
        "new hold, late, operated",
        Setup {
            clients: vec![Patience::Wait; 1],
            budget,
            ..Setup::default()
        },
    );
    let budget = Budget {
        late_writes: 0,
        ..budget
    };
    holds(
        "new hold, operated",
        Setup {
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn a_floor_is_raised() {
    let budget = budget(|b| {
        b.revocations = 1;
        b.crashes = 1;
    });
    holds(
        "revoked",
        Setup {
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn the_duration_changes() {
    let budget = budget(|b| {
        b.new_duration = 1;
        b.renewals = 1;
        b.lost_answers = 1;
        b.pauses = u8::from(long());
    });
    holds(
        "shorter",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn the_duration_changes_and_the_lease_is_deleted() {
    let budget = budget(|b| {
        b.new_duration = 2 + u8::from(long());
        b.lease_deletions = 1;
    });
    // The operator has shown the new duration in status: takes may store it.
    let prefix = vec![
        Action::NewDuration,
        Action::Operator(0, Do::Step),
        Action::Operator(0, Do::Land(Fate::Answered)),
    ];
    holds(
        "longer",
        Setup {
            seconds: 1,
            mirrors: true,
            horizon: if long() { 2 } else { 1 },
            budget,
            prefix,
            ..Setup::default()
        },
    );
}

#[test]
fn an_old_spec_is_put_back() {
    let budget = budget(|b| {
        b.restored_specs = 1;
        b.renewals = 1;
        b.relists = 1;
        b.pauses = u8::from(long());
    });
    holds(
        "spec",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn an_old_lease_is_put_back() {
    let budget = budget(|b| {
        b.restored_leases = 1;
        b.dropped_annotations = 1;
    });
    holds(
        "restored",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn one_tries_while_others_wait() {
    let budget = budget(|b| {
        b.crashes = 1;
        b.late_writes = 1;
    });
    holds(
        "try",
        Setup {
            clients: vec![Patience::Wait, Patience::Try],
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn one_asks_again_at_once() {
    let budget = budget(|b| {
        b.again = 1;
    });
    holds(
        "again",
        Setup {
            operators: 0,
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn an_operator_dies_and_another_begins() {
    let budget = budget(|b| {
        b.operator_crashes = 1;
        b.operator_starts = 1;
        b.crashes = 1;
    });
    holds(
        "operators",
        Setup {
            budget,
            ..Setup::default()
        },
    );
}

#[test]
fn others_act_between_two_reads() {
    let budget = budget(|b| {
        b.crashes = 1;
    });
    holds(
        "fine",
        Setup {
            operators: 0,
            fine: true,
            budget,
            ..Setup::default()
        },
    );
}
