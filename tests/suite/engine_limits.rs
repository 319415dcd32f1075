//! `maxHoldSeconds`, as the operator enforces it on who does not keep to it.

use leasehold::api::names::MAX_TOKEN;
use leasehold::engine::{Grant, Keeper, Moment, OperatorMove, OperatorWrite, SlotView};

use super::engine_stage::{Stage, at, named, writes};

/// A lock of one slot and a lease of a second: its holders look at the lock every five.
fn stage(limit: Option<u32>) -> Stage {
    let mut stage = Stage::new(1);
    stage.lock.duration_seconds = 1;
    stage.lock.longest_seconds = Some(1);
    limits(&mut stage, limit, at(0.0));
    stage
}

/// The limit is seen by watch, as ever, and looked at.
fn limits(stage: &mut Stage, limit: Option<u32>, now: Moment) {
    stage.lock.max_hold_seconds = limit;
    stage.read_lock(Moment::ZERO);
    stage.keeps(0, now);
}

/// When the holder, renewing every half second from `now` on, is found to have held for too long.
fn revoked_at(stage: &mut Stage, grant: &Grant, mut now: Moment) -> Moment {
    for _ in 0..200 {
        stage.renew(0, grant, now);
        // The lock is read once more before that.
        if stage.keeps(0, now) == OperatorMove::ReadLock {
            return now;
        }
        now += at(0.5);
    }
    panic!("it may hold for ever");
}

#[test]
fn a_limit_that_was_there_at_the_grant_is_enforced_one_lease_later() {
    let mut stage = stage(Some(2));
    let grant = stage.take(0, "x", at(10.0));
    assert_eq!(revoked_at(&mut stage, &grant, at(10.0)), at(13.0));
}

/// Two claims that the operator takes for, at the limit of all tokens: to pass them over by turns would go on for ever.
#[test]
fn where_no_token_is_left_nobody_is_passed_over() {
    for (token, passed) in [(MAX_TOKEN, false), (7, true)] {
        let mut stage = Stage::new(1);
        stage.lock.slot = Some(SlotView {
            token,
            ..SlotView::default()
        });
        stage.read_lock(at(0.0));
        stage.wait(&["a*", "b*"]);
        assert_eq!(stage.names(at(0.0)), Some(named("a")));
        for seconds in [1.0, 2.0, 4.0, 6.0] {
            stage.turn(at(seconds));
        }
        let writes = writes(&stage.turn(at(8.0)));
        let expected = passed.then_some(OperatorWrite::PassOver);
        assert_eq!(writes, expected, "after token {token}");
    }
}

#[test]
fn of_a_limit_that_comes_or_falls_while_it_holds_the_holder_learns_first() {
    for before in [None, Some(3600)] {
        let mut stage = stage(before);
        let grant = stage.take(0, "x", at(10.0));
        stage.renew(0, &grant, at(99.5));
        limits(&mut stage, Some(1), at(100.0));
        let revoked = revoked_at(&mut stage, &grant, at(100.0));
        assert_eq!(revoked, at(106.0), "{before:?}");
    }
    // Who does not know of a limit that rises has stopped all the sooner.
    let mut stage = stage(Some(2));
    let grant = stage.take(0, "x", at(10.0));
    limits(&mut stage, Some(3), at(11.0));
    assert_eq!(revoked_at(&mut stage, &grant, at(11.0)), at(14.0));
}

/// A replica that begins to look does not know since when there is a limit.
#[test]
fn a_replica_that_has_just_begun_gives_the_holder_its_slow_beat() {
    let mut stage = stage(Some(1));
    let grant = stage.take(0, "x", at(10.0));
    stage.keepers[0] = Keeper::default();
    stage.read_lock(at(19.0));
    stage.see(0, at(20.0));
    assert_eq!(revoked_at(&mut stage, &grant, at(20.0)), at(26.0));
    // The next grant is under the limit from its beginning.
    stage.release(0, &grant, at(30.0));
    let grant = stage.take(0, "y", at(31.0));
    assert_eq!(revoked_at(&mut stage, &grant, at(31.0)), at(33.0));
}
