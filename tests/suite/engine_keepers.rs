//! The operator's machines over several slots: one keeper a slot, one queue for all; and what Priority, Hold and
//! maxHoldSeconds ask of them.

use std::time::Duration;

use leasehold::engine::{
    ClaimView, Grant, Hold, Keeper, LeaseRecord, LockView, Loss, Moment, NextChange, OnHolderLost,
    OperatorMove, OperatorWrite, Queue, QueueOrder, Requester, Seen, SlotView, Standing, Turns,
    change,
};

use super::engine_words::{claim, claim_view, identity, new_lease};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: f64) -> Moment {
    Moment::from_secs_f64(seconds)
}

/// A lock of some slots, each with a free Lease that all is known of, and its operator.
struct Stage {
    lock: LockView,
    leases: Vec<LeaseRecord>,
    revision: u64,
    keepers: Vec<Keeper>,
    turns: Turns,
    claims: Vec<ClaimView>,
    order: QueueOrder,
}

impl Stage {
    fn new(slots: u32) -> Self {
        let lock = LockView {
            name: "lock".to_owned(),
            uid: "lock-1".to_owned(),
            max_holders: slots,
            duration_seconds: 15,
            longest_seconds: Some(15),
            slot: Some(SlotView::default()),
            ..LockView::default()
        };
        let leases = (0..slots).map(|slot| LeaseRecord {
            uid: format!("L{slot}"),
            slots: (slot == 0).then_some(slots),
            ..new_lease(100 + u64::from(slot))
        });
        let mut stage = Self {
            lock,
            leases: leases.collect(),
            revision: 200,
            keepers: (0..slots).map(|_| Keeper::default()).collect(),
            turns: Turns::default(),
            claims: vec![],
            order: QueueOrder::Fifo,
        };
        stage.read_lock(Moment::ZERO);
        for slot in 0..stage.leases.len() {
            stage.see(slot, Moment::ZERO);
        }
        stage
    }

    fn read_lock(&mut self, now: Moment) {
        for (number, keeper) in (0..).zip(&mut self.keepers) {
            let lock = LockView {
                number,
                ..self.lock.clone()
            };
            keeper.lock_read(lock, now);
        }
    }

    fn see(&mut self, slot: usize, now: Moment) {
        let lease = Some(self.leases[slot].clone());
        self.keepers[slot].lease_seen(lease, Seen::Watched, now);
    }

    fn put(&mut self, slot: usize, record: LeaseRecord, now: Moment) {
        self.revision += 1;
        self.leases[slot] = LeaseRecord {
            resource_version: self.revision,
            ..record
        };
        self.see(slot, now);
    }

    fn take(&mut self, slot: usize, who: &str, now: Moment) -> Grant {
        let who = Requester {
            identity: identity(who),
            hold: Hold::Heartbeat,
            pod: None,
            note: None,
            remembered: 0,
        };
        let standing = Standing::Free;
        let take = change::take(
            &self.lock,
            &self.leases[slot],
            standing,
            &who,
            NextChange::Keep,
            1,
        );
        let take = take.expect("a free slot");
        self.put(slot, take.record, now);
        take.grant
    }

    fn renew(&mut self, slot: usize, grant: &Grant, now: Moment) {
        let renewed = change::renew(&self.lock, &self.leases[slot], grant, 1);
        self.put(slot, renewed, now);
    }

    fn release(&mut self, slot: usize, grant: &Grant, now: Moment) {
        let freed = change::release(&self.leases[slot], grant, "done", 1);
        self.put(slot, freed, now);
    }

    fn name(&mut self, next: Option<&str>, now: Moment) {
        let named = change::name(&self.leases[0], next.map(claim));
        self.put(0, named, now);
    }

    fn wait(&mut self, names: &[&str]) {
        self.claims = names
            .iter()
            .zip(1..)
            .map(|(n, at)| claim_view(n, at))
            .collect();
    }

    /// What the operator does for one slot.
    fn keeps(&mut self, slot: usize, now: Moment) -> OperatorMove {
        self.keepers[slot].decide("operator", now, 1)
    }

    /// What it does about the turn, after it has asked for every slot.
    fn turn(&mut self, now: Moment) -> OperatorMove {
        for slot in 0..self.keepers.len() {
            self.keeps(slot, now);
        }
        let holders = self.leases.iter().filter_map(LeaseRecord::holder_uid);
        let queue = Queue::new(self.claims.iter().cloned(), holders, self.order);
        let keepers: Vec<_> = self.keepers.iter().collect();
        self.turns.decide(&keepers, &queue, now)
    }

    /// The claim that it names, and the one that it deletes after that; the write is made.
    fn names(&mut self, now: Moment) -> Option<(Option<String>, Option<String>)> {
        let OperatorMove::Write {
            record,
            then_delete,
            ..
        } = self.turn(now)
        else {
            return None;
        };
        let next = record.next.as_ref().map(|next| next.name.clone());
        self.put(0, *record, now);
        Some((next, then_delete.map(|claim| claim.name)))
    }

    /// First of all it tells how many slots there are, once.
    fn tells_slots(&mut self, count: u32, now: Moment) {
        let OperatorMove::Write { what, record, .. } = self.turn(now) else {
            panic!("it tells the number of slots");
        };
        assert_eq!((what, record.slots), (OperatorWrite::Slots, Some(count)));
        self.put(0, *record, now);
    }
}

fn waits_until(todo: &OperatorMove) -> Option<Moment> {
    match todo {
        OperatorMove::Wait { until, .. } => *until,
        other => panic!("it waits: {other:?}"),
    }
}

fn writes(todo: &OperatorMove) -> Option<OperatorWrite> {
    match todo {
        OperatorMove::Write { what, .. } => Some(*what),
        _ => None,
    }
}

fn named(name: &str) -> (Option<String>, Option<String>) {
    (Some(name.to_owned()), None)
}

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

fn ranked(name: &str, ticket: usize, priority: i32) -> ClaimView {
    ClaimView {
        priority,
        ..claim_view(name, ticket)
    }
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
    stage.lock.max_hold_seconds = Some(10);
    stage.read_lock(at(103.0));
    stage.renew(0, &grant, at(114.0));
    assert_eq!(waits_until(&stage.keeps(0, at(114.0))), Some(at(125.0)));
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
