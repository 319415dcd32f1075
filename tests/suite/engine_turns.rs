//! Whose turn it is, as the operator sees to it over all slots; and its takes for claims whose holds it keeps.

use leasehold::engine::{ClaimState, HoldClaim, OperatorMove, OperatorWrite, QueueOrder, Wish};

use super::engine_stage::{Stage, at, named, waits_until, writes};
use super::engine_words::{claim, identity, ranked};

#[test]
fn a_claim_that_holds_any_slot_is_not_next_any_more() {
    let mut stage = Stage::new(3);
    stage.take(0, "x", at(0.0));
    stage.wait(&["a", "b", "c"]);
    assert_eq!(stage.names(at(0.0)), Some(named("a")));
    // It takes slot 2 and dies before its second write.
    stage.take(2, "a", at(1.0));
    assert_eq!(stage.names(at(1.0)), Some(named("b")), "at once");
    // Lowered: slot 2 is above the limit, and its holder waits no more all the same.
    stage.name(Some("a"), at(2.0));
    stage.lock.max_holders = 1;
    stage.read_lock(at(2.0));
    stage.tells_slots(1, at(2.0));
    assert_eq!(stage.names(at(2.0)), Some(named("b")));
}

#[test]
fn two_seconds_count_from_seeing_any_slot_takeable_and_this_next() {
    let mut stage = Stage::new(2);
    let x = stage.take(0, "x", at(0.0));
    let y = stage.take(1, "y", at(0.0));
    stage.wait(&["a", "b", "c"]);
    assert_eq!(stage.names(at(0.0)), Some(named("a")));
    assert_eq!(waits_until(&stage.turn(at(9.0))), None, "both are held");
    stage.release(1, &y, at(10.0));
    assert_eq!(waits_until(&stage.turn(at(10.0))), Some(at(12.0)));
    // Another slot that becomes free restarts nothing, and one that is taken while another stays free neither.
    stage.release(0, &x, at(11.0));
    assert_eq!(waits_until(&stage.turn(at(11.0))), Some(at(12.0)));
    let passed = Some((Some("b".to_owned()), Some("a".to_owned())));
    assert_eq!(stage.names(at(12.0)), passed);
    stage.wait(&["b", "c"]);
    // Its own write restarts the count; so does a time in which nothing was free.
    assert_eq!(waits_until(&stage.turn(at(12.5))), Some(at(14.5)));
    let x = stage.take(0, "x2", at(13.0));
    stage.take(1, "y2", at(13.0));
    assert_eq!(waits_until(&stage.turn(at(13.0))), None);
    stage.release(0, &x, at(13.5));
    assert_eq!(waits_until(&stage.turn(at(14.6))), Some(at(16.6)));
}

#[test]
fn a_hold_between_two_looks_restarts_the_two_seconds() {
    let mut stage = Stage::new(2);
    stage.take(0, "x", at(0.0));
    stage.wait(&["a", "b"]);
    assert_eq!(stage.names(at(0.0)), Some(named("a")));
    assert_eq!(waits_until(&stage.turn(at(0.0))), Some(at(2.0)));
    let y = stage.take(1, "y", at(1.2));
    stage.release(1, &y, at(1.4));
    assert_eq!(waits_until(&stage.turn(at(1.5))), Some(at(3.5)));
}

#[test]
fn a_higher_claim_goes_first_where_priority_counts_and_only_there() {
    let mut stage = Stage::new(1);
    stage.take(0, "x", at(0.0));
    stage.claims = vec![ranked("low", 1, 0), ranked("high", 2, 5)];
    assert_eq!(stage.names(at(0.0)), Some(named("low")));
    assert_eq!(stage.names(at(1.0)), None, "in the order of coming");
    stage.order = QueueOrder::Priority;
    assert_eq!(stage.names(at(2.0)), Some(named("high")));
    // A claim's priority may be edited.
    stage.claims = vec![ranked("low", 1, 9), ranked("high", 2, 5)];
    assert_eq!(stage.names(at(3.0)), Some(named("low")));
    stage.claims = vec![ranked("low", 1, 9), ranked("high", 2, 9)];
    assert_eq!(stage.names(at(4.0)), None, "an equal one does not");
}

/// A Fixed claim keeps its place: its rank must not bring it back at once, or two would be named in turn for ever.
#[test]
fn a_claim_that_was_passed_over_is_not_brought_back_by_its_rank_before_somebody_took() {
    let mut stage = Stage::new(1);
    stage.order = QueueOrder::Priority;
    stage.claims = vec![ranked("low", 1, 0), ranked("high*", 2, 5)];
    assert_eq!(stage.names(at(0.0)), Some(named("high")));
    assert_eq!(waits_until(&stage.turn(at(0.0))), Some(at(2.0)));
    assert_eq!(stage.names(at(2.0)), Some(named("low")));
    assert_eq!(waits_until(&stage.turn(at(2.5))), Some(at(4.5)));
    // Once somebody took, it counts again.
    stage.take(0, "x", at(3.0));
    assert_eq!(stage.names(at(3.0)), Some(named("high")));
}

#[test]
fn a_claim_that_was_read_and_went_before_it_came_into_view_is_read_again() {
    // Named by what the operator saw of the claims a while ago.
    let mut stage = Stage::new(1);
    stage.name(Some("a"), at(0.0));
    let read = || OperatorMove::ReadClaim(claim("a"));
    assert_eq!(stage.turn(at(0.0)), read());
    stage.turns.claim_read(&claim("a"), true);
    assert_eq!(waits_until(&stage.turn(at(0.1))), Some(at(1.1)));
    assert_eq!(stage.turn(at(1.1)), read());
    stage.turns.claim_read(&claim("a"), false);
    assert_eq!(stage.names(at(1.1)), Some((None, None)));
}

#[test]
fn what_was_to_be_written_about_the_turn_is_written_again_where_it_did_not_win() {
    // `next` is taken away from a dead claim.
    let mut stage = Stage::new(1);
    stage.wait(&["a!"]);
    stage.name(Some("a"), at(0.0));
    assert_eq!(writes(&stage.turn(at(0.0))), Some(OperatorWrite::Name));
    stage.name(Some("a"), at(0.1));
    assert_eq!(stage.names(at(0.1)), Some((None, None)));
    assert_eq!(writes(&stage.turn(at(0.1))), None);
    // Its waiter lives and names it: the two would write for ever.
    stage.name(Some("a"), at(0.2));
    assert_eq!(writes(&stage.turn(at(0.2))), None);
    // The first claim is named by who begins to lead.
    let mut stage = Stage::new(1);
    stage.wait(&["a", "b"]);
    stage.name(Some("b"), at(0.0));
    stage.turns.begin_to_lead();
    assert_eq!(writes(&stage.turn(at(0.0))), Some(OperatorWrite::Name));
    stage.name(Some("b"), at(0.1));
    assert_eq!(stage.names(at(0.1)), Some(named("a")));
    assert_eq!(writes(&stage.turn(at(0.1))), None);
    stage.name(Some("b"), at(0.2));
    assert_eq!(writes(&stage.turn(at(0.2))), None, "once");
}

/// A waiting claim whose hold the operator keeps.
fn seat(name: &str) -> HoldClaim {
    HoldClaim {
        claim: claim(name),
        identity: identity(name),
        wish: Wish::Fixed { seconds: 60 },
        state: ClaimState::Waiting,
    }
}

/// What it writes about the turn, on which slot's Lease, and whom that names.
fn written(todo: (u32, OperatorMove)) -> (u32, OperatorWrite, Option<String>) {
    let (slot, OperatorMove::Write { what, record, .. }) = todo else {
        panic!("it writes: {todo:?}");
    };
    (slot, what, record.next.map(|next| next.name))
}

#[test]
fn the_operator_takes_for_who_is_first_or_named_before_it_says_anything_else_about_the_turn() {
    let some = |name: &str| Some(name.to_owned());
    let mut stage = Stage::new(2);
    stage.wait(&["seat*", "b"]);
    let kept = [seat("seat")];
    // Nobody is named: the take of slot 0 does it in one write, and names the next one.
    let todo = stage.turn_with(&kept, at(0.0));
    assert_eq!(written(todo), (0, OperatorWrite::Take, some("b")));
    // The other slot only by who is named: `next` stands on slot 0's Lease.
    stage.take(0, "x", at(0.0));
    let todo = stage.turn_with(&kept, at(0.0));
    assert_eq!(written(todo), (0, OperatorWrite::Name, some("seat")));
    stage.name(Some("seat"), at(0.0));
    let todo = stage.turn_with(&kept, at(0.0));
    assert_eq!(written(todo), (1, OperatorWrite::Take, None));
    // So it is where it would otherwise be passed over by now.
    let todo = stage.turn_with(&[], at(3.0));
    assert_eq!(written(todo), (0, OperatorWrite::PassOver, some("b")));
    let todo = stage.turn_with(&kept, at(3.0));
    assert_eq!(written(todo), (1, OperatorWrite::Take, None));
    // Who is no claim of its own is left to take for itself.
    stage.name(Some("b"), at(4.0));
    let (_, todo) = stage.turn_with(&kept, at(4.0));
    assert_eq!(waits_until(&todo), Some(at(6.0)));
}

#[test]
fn what_is_to_be_said_of_the_turn_goes_before_a_take_for_who_is_named() {
    let mut stage = Stage::new(2);
    stage.claims = vec![ranked("seat*", 1, 0), ranked("high", 2, 5)];
    stage.name(Some("seat"), at(0.0));
    let kept = [seat("seat")];
    let todo = stage.turn_with(&kept, at(0.0));
    assert_eq!(
        written(todo),
        (0, OperatorWrite::Take, Some("high".to_owned()))
    );
    // A higher claim came.
    stage.order = QueueOrder::Priority;
    let todo = stage.turn_with(&kept, at(0.0));
    assert_eq!(
        written(todo),
        (0, OperatorWrite::Name, Some("high".to_owned()))
    );
    // The number of slots is not told yet.
    stage.order = QueueOrder::Fifo;
    stage.lock.max_holders = 1;
    stage.read_lock(at(1.0));
    let todo = stage.turn_with(&kept, at(1.0));
    assert_eq!(
        written(todo),
        (0, OperatorWrite::Slots, Some("seat".to_owned()))
    );
    stage.tells_slots(1, at(1.0));
    stage.read_lock(at(1.0));
    let todo = stage.turn_with(&kept, at(1.0));
    assert_eq!(written(todo).1, OperatorWrite::Take);
}
