//! A take that was not answered: it is sent again only where it would be made anew, else no attempt of it is applied any
//! more (R9).

use std::time::Duration;

use leasehold::engine::{
    Answer, ClaimRef, ClaimView, Claimant, LeaseRecord, LockView, Move, NextChange, OnHolderLost,
    Patience, Refusal, Requester, Seen, Standing, Take, Write, change,
};

use super::engine_words::{claim, claim_view, claimant, identity, lock, new_lease, uid};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A lock of two slots, their Leases, and one who wants it. Nobody else is there.
struct Stage {
    now: Duration,
    revision: u64,
    lock: Vec<LockView>,
    leases: Vec<LeaseRecord>,
    claims: Vec<ClaimView>,
    me: Claimant,
}

impl Stage {
    /// The first slot is held for an hour; the other one is as `second` says.
    fn new(patience: Patience, second: LeaseRecord) -> Self {
        let view = |number| LockView {
            number,
            max_holders: 2,
            ..lock()
        };
        let mut first = new_lease(100);
        first.spec.holder = identity("long");
        first.spec.duration_seconds = Some(3600);
        let second = LeaseRecord {
            uid: "L2".to_owned(),
            ..second
        };
        Self {
            now: secs(0),
            revision: 200,
            lock: vec![view(0), view(1)],
            leases: vec![first, second],
            claims: vec![],
            me: claimant(patience),
        }
    }

    /// The next thing that it does but for reads, which are answered as things are: few are enough for anything.
    fn does(&mut self) -> Move {
        for _ in 0..12 {
            let step = self.me.decide(self.now, 0);
            match step {
                Move::ReadLock => self.me.lock_read(Some(self.lock.clone()), self.now),
                Move::ReadLease(slot) => {
                    let lease = self.leases[slot as usize].clone();
                    self.me.lease_seen(slot, Some(lease), Seen::Read, self.now);
                }
                Move::ReadClaim(claim) => {
                    let counts = self.claims.iter().any(|other| other.claim == claim);
                    self.me.claim_read(&claim, counts);
                }
                Move::ListClaims => self.me.claims_listed(self.claims.clone()),
                Move::MakeClaim => {
                    self.claims.push(claim_view("me", 5));
                    self.me.joined(claim("me"), identity("me"));
                }
                other => return other,
            }
        }
        panic!("it goes on reading: {:?}", self.me);
    }

    fn writes(&mut self) -> Write {
        match self.does() {
            Move::Write(write) => write,
            other => panic!("it writes, not {other:?}"),
        }
    }

    fn takes(&mut self, slot: u32) -> Take {
        match self.writes() {
            Write::Take { slot: of, take } if of == slot => take,
            other => panic!("it takes slot {slot}, not {other:?}"),
        }
    }

    /// It sends its take of a slot and hears nothing.
    fn takes_without_an_answer(&mut self, slot: u32) -> Take {
        let take = self.takes(slot);
        let write = Write::Take {
            slot,
            take: take.clone(),
        };
        self.me.sending(&write);
        let unknown = self
            .me
            .answered(&write, Answer::Unknown, self.now, self.now);
        assert!(unknown.is_none());
        take
    }

    /// The other slot's Lease is changed by its `next` alone, and the take that is open can't be applied any more.
    fn settles(&mut self) -> LeaseRecord {
        let write = self.writes();
        let Write::Settle { slot: 1, record } = &write else {
            panic!("it settles, not {write:?}");
        };
        assert_ne!(record.next, self.leases[1].next);
        let same = LeaseRecord {
            next: self.leases[1].next.clone(),
            ..record.clone()
        };
        assert_eq!(same, self.leases[1]);
        self.applies(&write);
        self.leases[1].clone()
    }

    fn applies(&mut self, write: &Write) {
        self.revision += 1;
        let applied = LeaseRecord {
            resource_version: self.revision,
            ..write.record().clone()
        };
        self.leases[write.slot() as usize] = applied.clone();
        self.me.sending(write);
        let answer = Answer::Applied(applied);
        let held = self.me.answered(write, answer, self.now, self.now);
        assert_eq!(held.is_some(), matches!(write, Write::Take { .. }));
    }

    /// Somebody else changes a Lease, of which a watch tells.
    fn changes(&mut self, slot: u32, change: impl FnOnce(&mut LeaseRecord)) {
        self.revision += 1;
        let lease = &mut self.leases[slot as usize];
        lease.resource_version = self.revision;
        change(lease);
        let seen = Some(lease.clone());
        self.me.lease_seen(slot, seen, Seen::Watched, self.now);
    }

    fn is_named(&mut self, name: &str) {
        self.changes(0, |lease| lease.next = Some(claim(name)));
    }

    fn first_is_free(&mut self) {
        self.changes(0, |lease| lease.spec.holder.clear());
    }

    fn hold(&mut self) {
        for view in &mut self.lock {
            view.on_holder_lost = OnHolderLost::Hold;
        }
    }
}

/// Its turn has come, the other slot's holder is silent, and its take of that is open.
fn before_a_silent_holder() -> Stage {
    let mut silent = new_lease(110);
    "dead/9".clone_into(&mut silent.spec.holder);
    silent.spec.duration_seconds = Some(15);
    let mut stage = Stage::new(Patience::Wait, silent);
    let Write::Name(named) = stage.writes() else {
        panic!("it names itself");
    };
    stage.applies(&Write::Name(named));
    assert!(matches!(stage.does(), Move::Wait { .. }));
    stage.now = secs(16);
    stage.takes_without_an_answer(1);
    stage
}

fn free() -> LeaseRecord {
    new_lease(110)
}

#[test]
fn a_take_that_would_be_made_anew_is_sent_again_right_after_a_read_of_the_lock() {
    let mut stage = before_a_silent_holder();
    let open = stage.takes_without_an_answer(1);
    assert_eq!(open, stage.takes_without_an_answer(1));
    let mut stage = Stage::new(Patience::Wait, free());
    let open = stage.takes_without_an_answer(1);
    // However late: with the times of the first attempt, since it is the same grant.
    stage.now = secs(3);
    assert_eq!(stage.me.decide(stage.now, 7), Move::ReadLease(1));
    let lease = Some(stage.leases[1].clone());
    stage.me.lease_seen(1, lease, Seen::Read, stage.now);
    assert_eq!(stage.me.decide(stage.now, 7), Move::ReadLock);
    assert_eq!(open, stage.takes(1));
}

#[test]
fn under_a_new_hold_no_attempt_is_applied_any_more_and_the_other_slot_is_as_good() {
    let mut stage = before_a_silent_holder();
    stage.hold();
    let settled = stage.settles();
    assert_eq!(settled.spec.holder, "dead/9");
    let waits = stage.does();
    assert!(matches!(waits, Move::Wait { .. }), "{waits:?}");
    assert!(!stage.me.is_unsettled());
    stage.first_is_free();
    stage.takes(0);
}

/// Where the other slot is free already it is not left aside either.
#[test]
fn the_slot_of_which_a_take_is_open_comes_first_and_if_it_cannot_be_had_another() {
    let mut stage = before_a_silent_holder();
    stage.first_is_free();
    stage.takes_without_an_answer(1);
    stage.hold();
    stage.settles();
    stage.takes(0);
}

/// It looks at every slot before it passes over a dead one, and is then done with looking.
#[test]
fn who_is_behind_a_dead_one_with_a_take_open_passes_over_it() {
    let mut stage = before_a_silent_holder();
    stage.claims.push(claim_view("dead", 7));
    stage.is_named("dead");
    stage.first_is_free();
    stage.hold();
    stage.settles();
    for at in [16, 17, 18, 19] {
        stage.now = secs(at);
        match stage.does() {
            Move::Wait { until, .. } => assert!(until > Some(stage.now)),
            Move::Write(write @ Write::PassOver(_)) => {
                assert_eq!(write.record().next, Some(claim("me")));
                stage.applies(&write);
                stage.takes(0);
                return;
            }
            other => panic!("it waits, or passes over, not {other:?}"),
        }
    }
    panic!("it passes over");
}

#[test]
fn what_the_lock_no_longer_allows_is_not_sent_again() {
    // A slot less.
    let mut stage = Stage::new(Patience::Wait, free());
    stage.takes_without_an_answer(1);
    stage.lock.truncate(1);
    stage.settles();
    assert!(matches!(stage.does(), Move::Write(Write::Name(_))));

    // A floor above its token.
    let mut stage = Stage::new(Patience::Wait, free());
    let open = stage.takes_without_an_answer(1);
    assert_eq!(open.grant.token.get(), 111);
    for view in &mut stage.lock {
        view.min_token = Some(500);
    }
    // Its first slot's holder has no token, and is below no floor.
    stage.settles();
    assert_eq!(stage.takes(1).grant.token.get(), 500);

    // A lock of the same name that was made anew.
    let mut stage = Stage::new(Patience::Wait, free());
    stage.takes_without_an_answer(1);
    for view in &mut stage.lock {
        view.uid = "lock-2".to_owned();
    }
    stage.settles();
    assert!(matches!(stage.does(), Move::Wait { .. }));

    // One that is being deleted.
    let mut stage = Stage::new(Patience::Wait, free());
    stage.takes_without_an_answer(1);
    stage.lock[0].deleting = true;
    stage.me.lock_read(Some(stage.lock.clone()), stage.now);
    stage.settles();
    assert_eq!(stage.does(), Move::Refuse(Refusal::NoLock));
}

#[test]
fn a_take_of_another_slot_is_not_sent_again_once_it_is_anothers_turn() {
    let mut stage = Stage::new(Patience::Wait, free());
    stage.takes_without_an_answer(1);
    stage.claims.push(claim_view("b", 1));
    stage.is_named("b");
    stage.settles();
    let waits = stage.does();
    assert!(matches!(waits, Move::Wait { .. }), "{waits:?}");
}

/// Its name is that of a claim which there never was: it stands in nobody's way, and the next take removes it.
#[test]
fn who_has_no_claim_settles_by_a_name_that_counts_for_nobody() {
    let mut stage = Stage::new(Patience::Try, free());
    stage.takes_without_an_answer(1);
    stage.lock.truncate(1);
    let settled = stage.settles();
    let nobody = ClaimRef {
        name: "nobody".to_owned(),
        uid: uid("me0"),
    };
    assert_eq!(settled.next, Some(nobody));
    assert_eq!(stage.does(), Move::Refuse(Refusal::Busy));
    stage.me.stop();
    assert_eq!(stage.does(), Move::Gone);

    let view = LockView {
        number: 1,
        max_holders: 2,
        ..lock()
    };
    let who = Requester::heartbeat(identity("b"));
    let standing = Standing::Free;
    let taken = change::take(&view, &settled, standing, &who, NextChange::Keep, 0).unwrap();
    assert_eq!(taken.record.next, None, "the queue stands on slot 0");
}

/// A proxy sends a take twice and passes on the answer to the second: the conflict is with its own write.
#[test]
fn a_take_that_is_refused_though_it_was_applied_is_found_by_the_read_after_it() {
    for (patience, stops) in [
        (Patience::Wait, false),
        (Patience::Try, false),
        (Patience::Wait, true),
    ] {
        let mut stage = Stage::new(patience, free());
        let take = stage.takes(1);
        stage.revision += 1;
        let mut applied = take.record.clone();
        applied.resource_version = stage.revision;
        stage.leases[1] = applied;
        let write = Write::Take { slot: 1, take };
        stage.me.sending(&write);
        let answer = stage
            .me
            .answered(&write, Answer::Refused, stage.now, stage.now);
        assert!(answer.is_none());
        if stops {
            stage.me.stop();
        }
        let found = stage.writes();
        assert!(matches!(found, Write::Confirm { slot: 1, .. }), "{found:?}");
    }
}

/// And one that was refused, and shows the Lease unchanged, is made anew, with a lock that may be another by now.
#[test]
fn a_take_that_is_refused_and_left_no_trace_is_over() {
    let mut stage = Stage::new(Patience::Wait, free());
    let write = Write::Take {
        slot: 1,
        take: stage.takes(1),
    };
    stage.me.sending(&write);
    let answer = stage
        .me
        .answered(&write, Answer::Refused, stage.now, stage.now);
    assert!(answer.is_none());
    stage.me.stop();
    assert_eq!(stage.does(), Move::Gone);
}

/// A Lease that somebody filled with the uid of a claim that waits: that claim is spent.
#[test]
fn who_waits_by_a_claim_for_which_somebody_else_holds_makes_another() {
    let mut stage = Stage::new(Patience::Wait, new_lease(110));
    stage.changes(0, |lease| {
        lease.spec.holder = format!("forged/{}", uid("me"));
    });
    let mut second = new_lease(120);
    second.spec.holder = identity("other");
    second.spec.duration_seconds = Some(3600);
    stage.leases[1] = LeaseRecord {
        uid: "L2".to_owned(),
        ..second
    };
    assert_eq!(stage.does(), Move::DeleteClaim(claim("me")));
}

#[test]
fn who_leaves_with_a_take_open_settles_it_first() {
    // Named on slot 0, with a take of that open: by moving `next` on.
    let mut stage = before_a_silent_holder();
    stage.settles_by_leaving();
    // A take that would be made anew is sent again, and given back once it is had.
    let mut stage = Stage::new(Patience::Wait, free());
    let open = stage.takes_without_an_answer(1);
    stage.me.stop();
    assert_eq!(open, stage.takes(1));
}

impl Stage {
    fn settles_by_leaving(&mut self) {
        self.hold();
        self.me.stop();
        self.settles();
        let write = self.writes();
        assert!(matches!(write, Write::Name(_)), "{write:?}");
        self.applies(&write);
        assert_eq!(self.does(), Move::DeleteClaim(claim("me")));
        self.me.left();
        assert_eq!(self.does(), Move::Gone);
    }
}
