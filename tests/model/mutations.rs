//! One rule broken at a time, in the shells around the engine: the model must notice each.

use std::collections::BTreeSet;

use leasehold::api::FencingToken;
use leasehold::engine::{
    Answer, ClaimState, Claimant, GrantNote, Hold, LeaseRecord, LockView, Patience, SlotView, Take,
    Write, change,
};
use stateright::{Checker, HasDiscoveries, Model};

use super::kept::Kept;
use super::part::Part;
use super::world::{Action, Budget, Do, Fate, Play, Setup};

/// What a client with a lease duration of its own believes in.
pub const OWN_SECONDS: i64 = 1;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// R1: writes are guarded by the resourceVersion alone.
    NoUid,
    /// R4: the deadline counts from the answer, not from before the sending.
    CountsFromAnswer,
    /// R4: a read that shows the grant moves the deadline.
    ReadProves,
    /// R4: the answer to a renewal counts also once the deadline has passed.
    TakesLossBack,
    /// R9: a take that was not answered is forgotten.
    ForgetsTakes,
    /// R2: the token is the annotation's plus one.
    CountsTokens,
    /// The queue: `next` is for others.
    TakesOutOfTurn,
    /// R3: a holder is judged by the judge's own duration.
    ExpiresByOwnDuration,
    /// R3: a Lease is made free.
    CreatesFree,
    /// R3: a `missing` is judged by today's duration.
    MissingByTodaysDuration,
    /// R3: a list does not restart the clock.
    RelistKeepsClock,
    /// R3: the lock is not read again before a silent holder is replaced.
    KeepsTheLock,
    /// The queue: nobody passes over a dead head.
    NeverPassesOver,
    /// R3: the first status entry frees whatever `missing` is there by then.
    FreesWhatItFinds,
    /// Semaphores: who was served by another slot than 0 leaves `next` as it is, and so does the operator.
    NeverMovesOn,
    /// Semaphores: nobody looks at the slots that it does not watch.
    WatchesTheFirstSlotOnly,
    /// Priority: a lower claim names itself too.
    NamesItself,
    /// Holds: a final phase is not looked at before a hold is taken.
    ForgetsPhases,
    /// Holds: the Lease is freed, and the claim is not shown as over before.
    FreesFirst,
    /// Holds: a Pod hold is taken for one that is renewed by its holder.
    EndsPodsByTime,
    /// Limits: a holder goes on after `maxHoldSeconds`.
    OutstaysItsLimit,
}

impl Broken {
    /// Whether it is somebody stranded that shows it: what other broken rules leave undone costs many steps to find.
    pub fn strands(self) -> bool {
        matches!(
            self,
            Broken::NeverPassesOver
                | Broken::NeverMovesOn
                | Broken::WatchesTheFirstSlotOnly
                | Broken::NamesItself
        )
    }
}

/// The lock as a broken shell reads it, for one slot.
pub fn lock(broken: Option<Broken>, mut lock: LockView) -> LockView {
    if broken == Some(Broken::MissingByTodaysDuration) {
        lock.longest_seconds = lock.longest_seconds.map(|_| lock.duration_seconds);
        lock.slot = lock.slot.map(|slot| SlotView {
            duration_seconds: None,
            ..slot
        });
    }
    lock
}

/// The Lease as a broken shell of a client reads it.
pub fn lease(broken: Option<Broken>, lease: Option<&LeaseRecord>) -> Option<LeaseRecord> {
    let mut lease = lease?.clone();
    match broken {
        Some(Broken::ExpiresByOwnDuration) if !lease.is_free() => {
            lease.spec.duration_seconds = Some(OWN_SECONDS);
        }
        Some(Broken::TakesOutOfTurn) => lease.next = None,
        _ => {}
    }
    Some(lease)
}

/// The Lease as a broken shell of an operator reads it.
pub fn kept_lease(broken: Option<Broken>, lease: Option<&LeaseRecord>) -> Option<LeaseRecord> {
    let mut lease = lease?.clone();
    if let (Some(Broken::EndsPodsByTime), GrantNote::V1(grant)) = (broken, &mut lease.grant)
        && grant.hold == Hold::Pod
    {
        grant.hold = Hold::Heartbeat;
        lease.spec.duration_seconds = Some(OWN_SECONDS);
    }
    Some(lease)
}

/// The claims as a broken shell of an operator sees them.
pub fn kept(broken: Option<Broken>, kept: &mut [Part<Kept>]) {
    if broken == Some(Broken::ForgetsPhases) {
        for kept in kept {
            if let ClaimState::Over(_) = kept.claim.state {
                kept.edit(|kept| kept.claim.state = ClaimState::Waiting);
            }
        }
    }
}

/// The write that a broken shell sends.
pub fn write(broken: Option<Broken>, write: Write) -> Write {
    let Write::Take { slot, take } = write else {
        return write;
    };
    if broken != Some(Broken::CountsTokens) {
        return Write::Take { slot, take };
    }
    let last = match &take.record.ended {
        Some(ended) => ended.token,
        None => 0,
    };
    let mut grant = take.grant;
    grant.token = FencingToken::new(last + 1).unwrap();
    let mut record = take.record;
    record.grant = GrantNote::V1(grant.clone());
    let take = Take {
        record,
        grant,
        ahead_of_revision: false,
    };
    Write::Take { slot, take }
}

/// What a broken shell writes where the claimant would wait.
pub fn instead_of_waiting(broken: Option<Broken>, mind: &Claimant) -> Option<Write> {
    let (claim, lease) = (mind.claim()?, mind.lease(0)?);
    let others = lease.next.as_ref().is_some_and(|next| next != claim);
    (broken == Some(Broken::NamesItself) && others)
        .then(|| Write::Name(change::name(lease, Some(claim.clone()))))
}

/// Whether a broken shell does not send the write.
pub fn is_dropped(broken: Option<Broken>, write: &Write) -> bool {
    broken == Some(Broken::NeverPassesOver) && matches!(write, Write::PassOver(_))
}

/// The answer that a broken shell hands on.
pub fn answer(broken: Option<Broken>, answer: Answer) -> Answer {
    match (broken, answer) {
        (Some(Broken::ForgetsTakes), Answer::Unknown) => Answer::Refused,
        (_, answer) => answer,
    }
}

/// The model fails with the rule broken, by `property`, and it does not fail with the rule kept.
pub fn is_noticed(broken: Broken, property: &'static str, setup: Setup) {
    let setup = Setup {
        broken: Some(broken),
        ..setup
    };
    let checker = Play::new(setup)
        .checker()
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([property])))
        .target_state_count(3_000_000)
        .spawn_bfs()
        .join();
    let found = checker.discovery(property);
    let Some(path) = found else {
        panic!(
            "{broken:?} went unnoticed as {property:?}: {} states, {:?}",
            checker.unique_state_count(),
            checker.discoveries().keys()
        );
    };
    let actions: Vec<_> = path.into_actions();
    println!(
        "{broken:?}: {} states, {actions:?}",
        checker.unique_state_count()
    );
}

fn two() -> Setup {
    Setup::default()
}

const BELIEVERS: &str = "one believer at a time";
const TOKENS: &str = "tokens rise with each grant";

#[test]
fn a_put_without_uid_is_noticed() {
    let budget = Budget {
        late_writes: 1,
        lease_deletions: 1,
        ..Budget::default()
    };
    is_noticed(
        Broken::NoUid,
        "a deleted lease stays deleted",
        Setup { budget, ..two() },
    );
}

#[test]
fn a_deadline_counted_from_the_answer_is_noticed() {
    let budget = Budget {
        pauses: 3,
        slow_answers: 1,
        ..Budget::default()
    };
    is_noticed(
        Broken::CountsFromAnswer,
        BELIEVERS,
        Setup {
            budget,
            operators: 0,
            ..two()
        },
    );
}

#[test]
fn a_read_that_moves_the_deadline_is_noticed() {
    let budget = Budget {
        pauses: 3,
        renewals: 1,
        lost_answers: 1,
        ..Budget::default()
    };
    is_noticed(
        Broken::ReadProves,
        BELIEVERS,
        Setup {
            budget,
            operators: 0,
            ..two()
        },
    );
}

#[test]
fn a_loss_that_is_taken_back_is_noticed() {
    let budget = Budget {
        pauses: 1,
        renewals: 1,
        slow_answers: 1,
        ..Budget::default()
    };
    is_noticed(
        Broken::TakesLossBack,
        "a loss is final",
        Setup {
            budget,
            operators: 0,
            ..two()
        },
    );
}

#[test]
fn a_forgotten_take_is_noticed() {
    let budget = Budget {
        late_writes: 1,
        stops: 1,
        ..Budget::default()
    };
    is_noticed(
        Broken::ForgetsTakes,
        "who is gone holds nothing",
        Setup { budget, ..two() },
    );
}

#[test]
fn a_counted_token_is_noticed() {
    let budget = Budget {
        lease_deletions: 1,
        ..Budget::default()
    };
    is_noticed(Broken::CountsTokens, TOKENS, Setup { budget, ..two() });
}

#[test]
fn a_take_out_of_turn_is_noticed() {
    let clients = vec![Patience::Wait; 3];
    is_noticed(
        Broken::TakesOutOfTurn,
        "nobody takes out of turn",
        Setup { clients, ..two() },
    );
}

#[test]
fn an_expiry_by_a_duration_of_ones_own_is_noticed() {
    is_noticed(Broken::ExpiresByOwnDuration, BELIEVERS, two());
}

#[test]
fn a_lease_made_free_is_noticed() {
    let budget = Budget {
        lease_deletions: 1,
        ..Budget::default()
    };
    is_noticed(Broken::CreatesFree, BELIEVERS, Setup { budget, ..two() });
}

#[test]
fn a_missing_judged_by_todays_duration_is_noticed() {
    let budget = Budget {
        lease_deletions: 1,
        new_duration: 1,
        pauses: 1,
        ..Budget::default()
    };
    // Held for two seconds, of which the lock knows nothing any more.
    let prefix = vec![
        Action::Client(0, Do::Step),
        Action::Client(0, Do::Land(Fate::Answered)),
        Action::NewDuration,
        Action::DeleteLease(0),
    ];
    is_noticed(
        Broken::MissingByTodaysDuration,
        BELIEVERS,
        Setup {
            budget,
            prefix,
            ..two()
        },
    );
}

#[test]
fn a_list_that_keeps_the_clock_is_noticed() {
    let budget = Budget {
        pauses: 2,
        renewals: 1,
        relists: 1,
        restored_specs: 1,
        ..Budget::default()
    };
    is_noticed(
        Broken::RelistKeepsClock,
        BELIEVERS,
        Setup {
            budget,
            operators: 0,
            ..two()
        },
    );
}

#[test]
fn a_freeing_of_a_later_missing_is_noticed() {
    // The operator stalls between its first status entry and the freeing; the other one ends the `missing`.
    let budget = Budget {
        lease_deletions: 1,
        pauses: 2,
        ..Budget::default()
    };
    let stalls = |what| Action::Operator(0, what);
    let ends = |what| Action::Operator(1, what);
    let prefix = vec![
        stalls(Do::Step),
        stalls(Do::Land(Fate::Answered)),
        stalls(Do::Step),
        stalls(Do::Land(Fate::Answered)),
        ends(Do::Step),
        Action::Tick,
        Action::Tick,
        ends(Do::Step),
        ends(Do::Land(Fate::Answered)),
    ];
    is_noticed(
        Broken::FreesWhatItFinds,
        BELIEVERS,
        Setup {
            budget,
            operators: 2,
            opened: false,
            prefix,
            ..two()
        },
    );
}

#[test]
fn a_lock_that_is_not_read_again_is_noticed() {
    let budget = Budget {
        new_holds: 1,
        crashes: 1,
        ..Budget::default()
    };
    is_noticed(
        Broken::KeepsTheLock,
        "under Hold a silent holder stays",
        Setup {
            budget,
            operators: 0,
            ..two()
        },
    );
}

#[test]
fn a_head_that_nobody_passes_over_is_noticed() {
    let budget = Budget {
        crashes: 1,
        again: 1,
        ..Budget::default()
    };
    is_noticed(
        Broken::NeverPassesOver,
        "nobody is stranded",
        Setup {
            budget,
            operators: 0,
            ..two()
        },
    );
}
