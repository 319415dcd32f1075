//! What the operator does for single slots: opening, surplus slots, and what Hold and maxHoldSeconds ask of it.

use std::time::Duration;

use leasehold::engine::{
    Keeper, LeaseRecord, Loss, OnHolderLost, OperatorMove, OperatorWrite, Seen, SlotView, change,
};

use super::engine_stage::{Stage, at, named, waits_until, writes};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_surplus_slot_is_neither_made_nor_opened_nor_waited_for() {
    let mut stage = Stage::new(2);
    stage.take(0, "x", at(0.0));
    stage.wait(&["a", "b"]);
    assert_eq!(stage.names(at(0.0)), Some(named("a")));
    stage.lock.max_holders = 1;
    stage.read_lock(at(1.0));
    stage.tells_slots(1, at(1.0));
    assert_eq!(
        waits_until(&stage.turn(at(9.0))),
        None,
        "slot 1 is free and not to be taken: nobody is passed over"
    );
    stage.keepers[1].lease_seen(None, Seen::Watched, at(2.0));
    assert_eq!(waits_until(&stage.keeps(1, at(2.0))), None, "not made");
    stage.see(1, at(3.0));
    stage.lock.slot = None;
    stage.read_lock(at(3.0));
    assert_eq!(waits_until(&stage.keeps(1, at(3.0))), None, "not opened");
    assert_eq!(stage.keeps(0, at(3.0)), OperatorMove::Open);
}

#[test]
fn a_silent_holder_of_a_surplus_slot_is_ended() {
    let mut stage = Stage::new(2);
    stage.take(1, "x", at(0.0));
    stage.lock.max_holders = 1;
    stage.read_lock(at(1.0));
    assert_eq!(waits_until(&stage.keeps(1, at(1.0))), Some(at(15.0)));
    assert_eq!(stage.keeps(1, at(15.0)), OperatorMove::ReadLock);
    stage.read_lock(at(15.0));
    let todo = stage.keeps(1, at(15.0));
    assert_eq!(writes(&todo), Some(OperatorWrite::Expire));
}

/// Onto an attempt that was not answered follows another, by then Hold may be new.
#[test]
fn the_lock_is_read_again_for_each_attempt_to_end_a_silent_holder() {
    let mut stage = Stage::new(1);
    stage.take(0, "x", at(0.0));
    for now in [15.0, 15.0, 18.0] {
        assert_eq!(stage.keeps(0, at(now)), OperatorMove::ReadLock);
        stage.read_lock(at(now));
        let todo = stage.keeps(0, at(now));
        assert_eq!(writes(&todo), Some(OperatorWrite::Expire));
        let unchanged = Some(stage.leases[0].clone());
        stage.keepers[0].lease_seen(unchanged, Seen::Read, at(now));
    }
    assert_eq!(stage.keeps(0, at(20.0)), OperatorMove::ReadLock);
    stage.lock.on_holder_lost = OnHolderLost::Hold;
    stage.read_lock(at(20.0));
    assert_eq!(waits_until(&stage.keeps(0, at(20.0))), None);
}

/// Each slot's first status entry is a guarded write: it frees the Lease read before it, no other slot's, no later one.
#[test]
fn the_opening_of_several_slots_frees_of_each_only_the_lease_that_was_read() {
    let mut stage = Stage::new(2);
    stage.lock.slot = None;
    stage.read_lock(at(0.0));
    for slot in 0..2 {
        let mut missing = stage.leases[slot].clone();
        missing.spec = change::missing(&stage.lock, 1);
        stage.put(slot, missing, at(0.0));
        assert_eq!(stage.keeps(slot, at(0.0)), OperatorMove::Open);
    }
    // Slot 1's is deleted and made again while the write is under way.
    let again = LeaseRecord {
        uid: "L9".to_owned(),
        ..stage.leases[1].clone()
    };
    stage.put(1, again, at(0.5));
    stage.lock.slot = Some(SlotView::default());
    stage.read_lock(at(1.0));
    for keeper in &mut stage.keepers {
        keeper.opened();
    }
    let todo = stage.keeps(0, at(1.0));
    assert_eq!(writes(&todo), Some(OperatorWrite::Free));
    assert_eq!(waits_until(&stage.keeps(1, at(1.0))), Some(at(15.5)));
}

#[test]
fn under_hold_a_holder_is_lost_after_its_duration_and_the_delay_and_a_renewal_brings_it_back() {
    let mut stage = Stage::new(1);
    stage.lock.on_holder_lost = OnHolderLost::Hold;
    stage.lock.lock_delay_seconds = 5;
    stage.read_lock(at(0.0));
    let grant = stage.take(0, "x", at(1.0));
    let loss = |stage: &Stage, now| stage.keepers[0].loss(at(now));
    assert_eq!(waits_until(&stage.keeps(0, at(2.0))), Some(at(21.0)));
    assert_eq!(loss(&stage, 20.9), Loss::None);
    assert_eq!(loss(&stage, 21.0), Loss::Lost);
    assert_eq!(waits_until(&stage.keeps(0, at(21.0))), None, "never ended");
    stage.renew(0, &grant, at(30.0));
    assert_eq!(loss(&stage, 30.0), Loss::None);
    // Another replica that has just begun to look cannot say yet; one renewal tells it.
    let mut other = Keeper::default();
    other.lock_read(stage.lock.clone(), at(30.0));
    other.lease_seen(Some(stage.leases[0].clone()), Seen::Read, at(30.0));
    assert_eq!(other.loss(at(49.0)), Loss::Unsure);
    assert_eq!(other.loss(at(50.0)), Loss::Lost);
    stage.renew(0, &grant, at(31.0));
    other.lease_seen(Some(stage.leases[0].clone()), Seen::Watched, at(31.0));
    assert_eq!(other.loss(at(49.0)), Loss::None);
    // Its token below the floor, it is revoked.
    stage.lock.min_token = Some(grant.token.get() + 1);
    stage.read_lock(at(60.0));
    let todo = stage.keeps(0, at(60.0));
    assert_eq!(writes(&todo), Some(OperatorWrite::Revoke));
}

#[test]
fn who_holds_beyond_max_hold_seconds_and_a_lease_is_revoked_renewals_or_not() {
    let mut stage = Stage::new(1);
    stage.lock.max_hold_seconds = Some(60);
    stage.read_lock(at(0.0));
    let grant = stage.take(0, "x", at(10.0));
    let mut now = at(10.0);
    while now < at(84.0) {
        stage.renew(0, &grant, now);
        assert_eq!(writes(&stage.keeps(0, now)), None, "{now:?}");
        now += 5 * SECOND;
    }
    assert_eq!(stage.keeps(0, at(85.0)), OperatorMove::ReadLock);
    // The limit was raised meanwhile.
    stage.lock.max_hold_seconds = Some(65);
    stage.read_lock(at(85.0));
    stage.renew(0, &grant, at(89.0));
    assert_eq!(waits_until(&stage.keeps(0, at(89.0))), Some(at(90.0)));
    assert_eq!(stage.keeps(0, at(90.0)), OperatorMove::ReadLock);
    stage.read_lock(at(90.0));
    let OperatorMove::Write { what, record, .. } = stage.keeps(0, at(90.0)) else {
        panic!("it is revoked");
    };
    assert_eq!(what, OperatorWrite::Revoke);
    let ended = record.ended.as_ref().expect("a note");
    assert_eq!(ended.token, grant.token.get());
    assert!(ended.reason.contains("maxHoldSeconds"), "{}", ended.reason);
    // The next grant has its whole time.
    stage.put(0, *record, at(90.0));
    stage.take(0, "y", at(91.0));
    stage.renew(0, &grant, at(95.0));
    assert_eq!(waits_until(&stage.keeps(0, at(95.0))), Some(at(110.0)));
}

/// When the limit came while it was held, the time counts from what this replica has seen itself.
#[test]
fn a_limit_that_is_new_counts_from_when_the_grant_was_last_seen_to_change() {
    let mut stage = Stage::new(1);
    let grant = stage.take(0, "x", at(0.0));
    stage.renew(0, &grant, at(100.0));
    stage.lock.max_hold_seconds = Some(20);
    stage.read_lock(at(103.0));
    assert_eq!(waits_until(&stage.keeps(0, at(103.0))), Some(at(115.0)));
    stage.renew(0, &grant, at(114.0));
    assert_eq!(waits_until(&stage.keeps(0, at(114.0))), Some(at(129.0)));
    stage.renew(0, &grant, at(124.0));
    assert_eq!(waits_until(&stage.keeps(0, at(124.0))), Some(at(135.0)));
}

#[test]
fn foreign_holders_are_not_held_to_max_hold_seconds() {
    let mut stage = Stage::new(1);
    stage.lock.max_hold_seconds = Some(1);
    stage.lock.duration_seconds = 1;
    stage.read_lock(at(0.0));
    let mut now = at(0.0);
    let mut taken = stage.leases[0].clone();
    taken.spec.holder = "elector_1".to_owned();
    stage.put(0, taken, now);
    for _ in 0..20 {
        now += SECOND / 2;
        let OperatorMove::Write { what, record, .. } = stage.keeps(0, now) else {
            let mut renewed = stage.leases[0].clone();
            renewed.spec.renew_time = Some(i64::try_from(now.as_micros()).unwrap_or(0));
            stage.put(0, renewed, now);
            continue;
        };
        assert_eq!(what, OperatorWrite::Stamp);
        stage.put(0, *record, now);
    }
}

/// Under Hold a holder that fell silent is for a person to judge; one that renews beyond its limit is revoked.
#[test]
fn under_hold_max_hold_seconds_revoke_only_who_goes_on_renewing() {
    for goes_on in [false, true] {
        let mut stage = Stage::new(1);
        stage.lock.on_holder_lost = OnHolderLost::Hold;
        stage.lock.max_hold_seconds = Some(60);
        stage.read_lock(at(0.0));
        let grant = stage.take(0, "x", at(0.0));
        stage.renew(0, &grant, at(if goes_on { 61.0 } else { 59.0 }));
        stage.read_lock(at(75.0));
        let todo = stage.keeps(0, at(75.0));
        assert_eq!(
            writes(&todo).is_some(),
            goes_on,
            "goes on: {goes_on}: {todo:?}"
        );
        if !goes_on {
            assert_eq!(stage.keepers[0].loss(at(75.0)), Loss::Lost);
        }
    }
}
