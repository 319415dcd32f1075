//! The operator and the waiters of one lock, who all write `next`: they come to an agreement, and then to rest.

use std::time::Duration;

use leasehold::engine::{
    Answer, ClaimView, Claimant, Keeper, LeaseRecord, LockView, Move, OperatorMove, Patience,
    Queue, QueueOrder, Seen, Turns,
};

use super::engine_words::{claim, claimant, identity, lock, new_lease, ranked};

/// More writes than these few come to a decision with.
const TOO_MANY: usize = 20;

/// Everybody at the Lease of a lock that is held for an hour, each reacting to what the others wrote.
struct Table {
    lock: LockView,
    lease: LeaseRecord,
    claims: Vec<ClaimView>,
    operator: (Keeper, Turns),
    waiters: Vec<Claimant>,
    writes: usize,
}

impl Table {
    /// `names` as in the transcripts: `!` is one of whom the operator knows that its Pod is gone, though it lives; `*` one
    /// whose hold the operator keeps.
    fn new(order: QueueOrder, names: &[(&str, i32)]) -> Self {
        let lock = LockView { order, ..lock() };
        let mut lease = new_lease(100);
        lease.spec.holder = identity("long");
        lease.spec.duration_seconds = Some(3600);
        let claims: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(at, (name, priority))| ranked(name, at, *priority))
            .collect();
        let waiting = names.iter().filter(|(name, _)| !name.contains('*'));
        let waiters = waiting.map(|(name, _)| {
            let name = name.trim_end_matches('!');
            let mut waiter = claimant(Patience::Wait);
            waiter.lock_read(Some(vec![lock.clone()]), Duration::ZERO);
            waiter.lease_seen(0, Some(lease.clone()), Seen::Read, Duration::ZERO);
            waiter.joined(claim(name), identity(name));
            waiter
        });
        Self {
            waiters: waiters.collect(),
            lock,
            lease,
            claims,
            operator: (Keeper::default(), Turns::default()),
            writes: 0,
        }
    }

    fn put(&mut self, record: LeaseRecord) {
        assert_eq!(record.resource_version, self.lease.resource_version);
        self.lease = LeaseRecord {
            resource_version: self.lease.resource_version + 1,
            ..record
        };
        self.writes += 1;
        assert!(
            self.writes < TOO_MANY,
            "they write for ever: {:?}",
            self.lease.next
        );
    }

    /// Whether it wrote. It is told of each write that was answered, then asked again.
    fn operator_acts(&mut self, now: Duration) -> bool {
        let before = self.writes;
        loop {
            let (keeper, turns) = &mut self.operator;
            keeper.lock_read(self.lock.clone(), now);
            keeper.lease_seen(Some(self.lease.clone()), Seen::Watched, now);
            let OperatorMove::Wait { .. } = keeper.decide("operator", now, 0) else {
                panic!("the lock is held");
            };
            let holders = self.lease.holder_uid();
            let queue = Queue::new(self.claims.iter().cloned(), holders, self.lock.order);
            match turns.decide(&[keeper], &queue, |_| None, now, 0).1 {
                OperatorMove::Write { record, .. } => self.put(*record),
                OperatorMove::Wait { .. } => return self.writes > before,
                other => panic!("{other:?}"),
            }
        }
    }

    fn waiter_acts(&mut self, at: usize, now: Duration) -> bool {
        let mut waiter = self.waiters[at].clone();
        waiter.lease_seen(0, Some(self.lease.clone()), Seen::Watched, now);
        let wrote = loop {
            match waiter.decide(now, 0) {
                Move::ListClaims => {
                    let seen = |claim: &ClaimView| ClaimView {
                        dead: false,
                        ..claim.clone()
                    };
                    waiter.claims_listed(self.claims.iter().map(seen).collect());
                }
                Move::Write(write) => {
                    waiter.sending(&write);
                    self.put(write.record().clone());
                    waiter.answered(&write, Answer::Applied(self.lease.clone()), now, now);
                    break true;
                }
                Move::Wait { .. } => break false,
                other => panic!("{other:?}"),
            }
        };
        self.waiters[at] = waiter;
        wrote
    }

    /// Until nobody has anything to write: whose turn it is then.
    fn rests_at(mut self) -> Option<String> {
        for round in 0.. {
            let now = Duration::from_millis(10 * round);
            let mut wrote = self.operator_acts(now);
            for at in 0..self.waiters.len() {
                wrote |= self.waiter_acts(at, now);
            }
            if !wrote {
                break;
            }
        }
        self.lease.next.map(|next| next.name)
    }
}

#[test]
fn a_waiter_that_outlives_its_pod_and_the_operator_do_not_write_for_ever() {
    let alone = Table::new(QueueOrder::Fifo, &[("a!", 0)]);
    assert_eq!(alone.rests_at().as_deref(), Some("a"));
    let two = Table::new(QueueOrder::Fifo, &[("a!", 0), ("b", 0)]);
    assert_eq!(two.rests_at().as_deref(), Some("b"));
    let all = Table::new(QueueOrder::Fifo, &[("a!", 0), ("b!", 0)]);
    assert_eq!(all.rests_at().as_deref(), Some("a"));
    let behind = Table::new(QueueOrder::Fifo, &[("pod*!", 0), ("b!", 0)]);
    assert_eq!(behind.rests_at().as_deref(), Some("pod"));
    let nobody = Table::new(QueueOrder::Fifo, &[("pod*!", 0)]);
    assert_eq!(nobody.rests_at(), None);
}

#[test]
fn a_higher_waiter_that_outlives_its_pod_is_put_back_once() {
    let two = Table::new(QueueOrder::Priority, &[("b", 0), ("a!", 9)]);
    assert_eq!(two.rests_at().as_deref(), Some("b"));
    let three = Table::new(QueueOrder::Priority, &[("b", 0), ("c", 5), ("a!", 9)]);
    assert_eq!(three.rests_at().as_deref(), Some("c"));
}
