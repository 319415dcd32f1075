//! A lock of several slots, as its claimants see it: one queue, any free slot for the one whose turn it is.

use std::time::Duration;

use leasehold::engine::{
    Answer, ClaimView, Claimant, LeaseRecord, LockView, Move, Patience, QueueOrder, Refusal, Seen,
    Take, Write,
};

use super::engine_words::{claim, claim_view, claimant, identity, lock, new_lease};

const HOUR: i64 = 3600;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn views(slots: u32) -> Vec<LockView> {
    let view = |number| LockView {
        number,
        max_holders: slots,
        ..lock()
    };
    (0..slots).map(view).collect()
}

fn free(slot: u32, revision: u64) -> LeaseRecord {
    LeaseRecord {
        uid: format!("L{slot}"),
        ..new_lease(revision)
    }
}

fn held(slot: u32, revision: u64, by: &str) -> LeaseRecord {
    let mut record = free(slot, revision);
    record.spec.holder = identity(by);
    record.spec.duration_seconds = Some(HOUR);
    record
}

fn renewed(slot: u32, revision: u64, by: &str) -> LeaseRecord {
    let mut record = held(slot, revision, by);
    record.spec.renew_time = i64::try_from(revision).ok();
    record
}

fn named(record: LeaseRecord, name: &str) -> LeaseRecord {
    LeaseRecord {
        next: Some(claim(name)),
        ..record
    }
}

fn queue(names: &[&str]) -> Vec<ClaimView> {
    names
        .iter()
        .enumerate()
        .map(|(at, name)| claim_view(name, at))
        .collect()
}

/// `me`, waiting in this queue of a lock of two slots, who has read slot 0.
fn waiting(slot0: LeaseRecord, claims: &[&str]) -> Claimant {
    let mut me = claimant(Patience::Wait);
    me.lock_read(Some(views(2)), secs(0));
    me.lease_seen(0, Some(slot0), Seen::Read, secs(0));
    me.joined(claim("me"), identity("me"));
    me.claims_listed(queue(claims));
    me
}

fn take(step: Move) -> (u32, Take) {
    match step {
        Move::Write(Write::Take { slot, take }) => (slot, take),
        other => panic!("it takes, not {other:?}"),
    }
}

#[test]
fn whose_turn_it_is_takes_the_other_slot_while_the_first_is_held_for_an_hour() {
    let mut me = waiting(named(held(0, 100, "long"), "me"), &["me", "b"]);
    assert_eq!(me.watched(), 0..2, "it watches all");
    assert_eq!(me.decide(secs(1), 0), Move::ReadLease(1));
    me.lease_seen(1, Some(held(1, 90, "short")), Seen::Read, secs(1));
    assert!(matches!(me.decide(secs(1), 0), Move::Wait { .. }));
    me.lease_seen(1, Some(free(1, 120)), Seen::Watched, secs(2));
    // There may be fewer slots by now.
    assert_eq!(me.decide(secs(2), 0), Move::ReadLock);
    me.lock_read(Some(views(2)), secs(2));
    let (slot, grant) = take(me.decide(secs(2), 0));
    assert_eq!(slot, 1);
    assert_eq!(grant.record.next, None, "the queue stands on slot 0");
    assert_eq!(grant.grant.token.get(), 121, "of its own slot's revision");
    assert!(!grant.ahead_of_revision);
    let write = Write::Take { slot, take: grant };
    me.sending(&write);
    let applied = LeaseRecord {
        resource_version: 130,
        ..write.record().clone()
    };
    let held_now = me.answered(&write, Answer::Applied(applied), secs(2), secs(2));
    assert!(held_now.is_some());
    let served = me.served().expect("it is to move next on");
    let slot_0 = named(held(0, 131, "long"), "me");
    // Those who came since are in the list, its own claim is gone from it.
    let moved = served.moves_on(&slot_0, queue(&["a*", "-", "b"])[1..].to_vec());
    assert_eq!(moved.map(|record| record.next), Some(Some(claim("-"))));
    let moved = served.moves_on(&named(slot_0, "b"), vec![]);
    assert_eq!(moved, None, "somebody has moved it");
}

#[test]
fn a_take_of_slot_0_moves_next_in_the_same_write() {
    let mut me = waiting(named(free(0, 100), "me"), &["me", "b"]);
    let (slot, grant) = take(me.decide(secs(1), 0));
    assert_eq!((slot, grant.record.next), (0, Some(claim("b"))));
}

#[test]
fn a_slot_above_the_limit_is_not_taken_again() {
    let mut me = waiting(named(held(0, 100, "long"), "me"), &["me"]);
    me.lease_seen(1, Some(free(1, 120)), Seen::Read, secs(1));
    assert_eq!(me.decide(secs(1), 0), Move::ReadLock);
    me.lock_read(Some(views(1)), secs(1));
    assert!(matches!(me.decide(secs(1), 0), Move::Wait { .. }));
    assert_eq!(me.watched(), 0..1);
}

#[test]
fn who_comes_while_nobody_waits_takes_any_free_slot_and_else_is_told_at_once() {
    let mut me = claimant(Patience::Try);
    me.lock_read(Some(views(2)), secs(0));
    me.lease_seen(0, Some(held(0, 100, "a")), Seen::Read, secs(0));
    assert_eq!(me.decide(secs(0), 0), Move::ReadLease(1));
    let mut other = me.clone();
    other.lease_seen(1, Some(held(1, 101, "b")), Seen::Read, secs(0));
    assert_eq!(other.decide(secs(0), 0), Move::Refuse(Refusal::Busy));
    me.lease_seen(1, Some(free(1, 101)), Seen::Read, secs(0));
    assert_eq!(me.decide(secs(0), 0), Move::ReadLock);
    me.lock_read(Some(views(2)), secs(0));
    assert_eq!(take(me.decide(secs(0), 0)).0, 1);
    // Not over somebody whose turn it is, though a slot is free.
    me.lease_seen(
        0,
        Some(named(held(0, 102, "a"), "w")),
        Seen::Watched,
        secs(0),
    );
    assert_eq!(me.decide(secs(0), 0), Move::ReadClaim(claim("w")));
    me.claim_read(&claim("w"), true);
    assert_eq!(me.decide(secs(0), 0), Move::Refuse(Refusal::Busy));
}

#[test]
fn a_take_that_was_not_answered_is_settled_on_its_slot_before_another_is_tried() {
    let mut me = waiting(named(held(0, 100, "long"), "me"), &["me"]);
    me.lease_seen(1, Some(free(1, 120)), Seen::Read, secs(1));
    me.lock_read(Some(views(2)), secs(1));
    let (slot, grant) = take(me.decide(secs(1), 0));
    let write = Write::Take { slot, take: grant };
    me.sending(&write);
    assert_eq!(me.answered(&write, Answer::Unknown, secs(1), secs(2)), None);
    // Slot 0 comes free meanwhile.
    me.lease_seen(0, Some(named(free(0, 140), "me")), Seen::Watched, secs(2));
    assert_eq!(me.decide(secs(2), 0), Move::ReadLease(1));
    me.lease_seen(1, Some(free(1, 120)), Seen::Read, secs(2));
    assert_eq!(me.decide(secs(2), 0), Move::ReadLock);
    me.lock_read(Some(views(2)), secs(2));
    assert_eq!(me.decide(secs(2), 0), Move::Write(write), "the same again");
    // Another's write came first: it can't land any more.
    me.lease_seen(1, Some(held(1, 141, "b")), Seen::Read, secs(3));
    assert_eq!(take(me.decide(secs(3), 0)).0, 0);
}

#[test]
fn a_dead_head_is_passed_over_though_slot_0_is_held() {
    let mut me = waiting(named(held(0, 100, "long"), "dead"), &["dead", "me"]);
    assert_eq!(me.watched(), 0..1, "it is another's turn");
    assert!(matches!(me.decide(secs(1), 0), Move::Wait { .. }));
    let look = |me: &mut Claimant, at| {
        assert_eq!(me.decide(secs(at), 0), Move::ReadLease(1));
        me.lease_seen(1, Some(free(1, 90)), Seen::Read, secs(at));
    };
    me.look_around(secs(15));
    look(&mut me, 15);
    let until = |step: Move| match step {
        Move::Wait { until, .. } => until,
        other => panic!("it waits, not {other:?}"),
    };
    assert_eq!(until(me.decide(secs(15), 0)), Some(secs(17)));
    // Renewals of slot 0 are no reason to begin anew.
    me.lease_seen(
        0,
        Some(named(renewed(0, 103, "long"), "dead")),
        Seen::Watched,
        secs(16),
    );
    assert_eq!(until(me.decide(secs(16), 0)), Some(secs(17)));
    // It looks once more before it writes, and lists.
    look(&mut me, 17);
    assert_eq!(me.decide(secs(17), 0), Move::ListClaims);
    me.claims_listed(queue(&["dead", "me"]));
    let Move::Write(Write::PassOver(record)) = me.decide(secs(17), 0) else {
        panic!("it passes over");
    };
    assert_eq!(record.next, Some(claim("me")));
}

#[test]
fn who_looks_around_and_finds_all_held_passes_over_nobody() {
    let mut me = waiting(named(held(0, 100, "long"), "dead"), &["dead", "me"]);
    me.look_around(secs(15));
    me.lease_seen(1, Some(free(1, 90)), Seen::Read, secs(15));
    assert!(matches!(me.decide(secs(15), 0), Move::Wait { .. }));
    assert_eq!(me.decide(secs(17), 0), Move::ReadLease(1));
    me.lease_seen(1, Some(held(1, 99, "b")), Seen::Read, secs(17));
    assert!(matches!(me.decide(secs(30), 0), Move::Wait { .. }));
}

#[test]
fn a_claim_that_holds_another_slot_has_no_turn() {
    // It took slot 1 and died before it moved `next` on.
    let mut me = waiting(named(held(0, 100, "long"), "b"), &["b", "me"]);
    me.look_around(secs(15));
    me.lease_seen(1, Some(held(1, 90, "b")), Seen::Read, secs(15));
    let Move::Write(Write::Name(record)) = me.decide(secs(15), 0) else {
        panic!("it names the next one");
    };
    assert_eq!(record.next, Some(claim("me")));
}

#[test]
fn where_priority_counts_a_higher_claim_names_itself() {
    let ranked = |priority, order| {
        let mut me = claimant(Patience::Wait);
        let mut lock = views(1);
        lock[0].order = order;
        me.lock_read(Some(lock), secs(0));
        let lease = named(held(0, 100, "long"), "low");
        me.lease_seen(0, Some(lease), Seen::Read, secs(0));
        me.joined(claim("me"), identity("me"));
        let mut claims = queue(&["low", "me"]);
        claims[1].priority = priority;
        me.claims_listed(claims);
        me.decide(secs(1), 0)
    };
    match ranked(5, QueueOrder::Priority) {
        Move::Write(Write::Name(record)) => assert_eq!(record.next, Some(claim("me"))),
        other => panic!("it names itself, not {other:?}"),
    }
    assert!(matches!(ranked(0, QueueOrder::Priority), Move::Wait { .. }));
    assert!(matches!(ranked(5, QueueOrder::Fifo), Move::Wait { .. }));
}
