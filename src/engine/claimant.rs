//! What somebody who wants a lock does next, from the first read to the grant, or to having left the queue.
//!
//! A [`Claimant`] is fed with what its shell read and which answers its writes got, and says at any moment what to do:
//! [`Claimant::decide`]. It keeps the two promises that are easy to break: a write that was sent and not answered is
//! settled before anything else (R9), and a lock that is named for another is not taken.

use std::time::Duration;

use super::change::{self, NextChange, Requester, Take};
use super::holder::Held;
use super::moves::{Answer, Move, Patience, Refusal, Waiting, Write};
use super::queue::{ClaimView, Queue, QueueOrder};
use super::record::{ClaimRef, GrantNote, LeaseRecord};
use super::standing::{LockView, Observation, Seen, Standing, Unavailable, standing};
use super::{Moment, WallMicros};

/// How long a named claim may leave a takeable lock untaken before it is passed over by the one behind it.
pub const PASS_OVER_AFTER: Duration = Duration::from_secs(2);

/// Somebody who wants the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four independent facts, none of them a state"
)]
pub struct Claimant {
    who: Requester,
    patience: Patience,
    kill_grace: Duration,
    claim: Option<ClaimRef>,
    stopping: bool,
    lock: Known<LockView>,
    /// When the read of the lock was sent.
    lock_read: Moment,
    /// Whether the Lease has changed, or gone, since the lock was read.
    lock_is_older: bool,
    lease: Known<LeaseRecord>,
    seen: Option<Observation>,
    /// What a read of the claim named by `next` showed: whether it counts.
    next_counts: Option<(ClaimRef, bool)>,
    listed: Option<Listed>,
    /// Since when the lock has been takeable with this `next`.
    takeable: Option<(Moment, Option<ClaimRef>)>,
    /// The take that was sent and whose outcome is not settled.
    pending: Option<Take>,
    /// Whether an attempt of that take was never answered, so that it may still be applied.
    may_land: bool,
    must_read: bool,
}

/// Something that is read from the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Known<T> {
    Unread,
    Absent,
    Present(T),
}

impl<T> Known<T> {
    fn value(&self) -> Option<&T> {
        match self {
            Known::Present(value) => Some(value),
            _ => None,
        }
    }
}

/// A list of claims, and the state of the Lease when it was made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Listed {
    claims: Vec<ClaimView>,
    revision: u64,
    next: Option<ClaimRef>,
}

/// What `next` means to this claimant.
enum Turn {
    /// Nobody's: `next` is absent or names a claim that does not count.
    Nobodys { stale: bool },
    /// Its own.
    Mine,
    /// Another's.
    Anothers(ClaimRef),
    /// A read of that claim tells.
    Unknown(ClaimRef),
}

impl Claimant {
    /// Somebody who has read nothing yet. `kill_grace` is what its work needs to end.
    #[must_use]
    pub fn new(who: Requester, patience: Patience, kill_grace: Duration) -> Self {
        Self {
            who,
            patience,
            kill_grace,
            claim: None,
            stopping: false,
            lock: Known::Unread,
            lock_read: Moment::ZERO,
            lock_is_older: false,
            lease: Known::Unread,
            seen: None,
            next_counts: None,
            listed: None,
            takeable: None,
            pending: None,
            may_land: false,
            must_read: false,
        }
    }

    /// The identity with which it takes, or would take.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.who.identity
    }

    /// Its claim, while it has one.
    #[must_use]
    pub fn claim(&self) -> Option<&ClaimRef> {
        self.claim.as_ref()
    }

    /// The Lease as last seen.
    #[must_use]
    pub fn lease(&self) -> Option<&LeaseRecord> {
        self.lease.value()
    }

    /// The lock as last read.
    #[must_use]
    pub fn lock(&self) -> Option<&LockView> {
        self.lock.value()
    }

    /// Its place in the queue, 1 for the one whose turn it is: about right.
    #[must_use]
    pub fn place(&self) -> Option<usize> {
        let (claim, lease) = (self.claim.as_ref()?, self.lease.value()?);
        self.queue(lease)?.place(lease.next.as_ref(), claim)
    }

    /// Whether the outcome of a take of its own is open.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.pending.is_some()
    }

    /// From now on it only settles what it sent and leaves the queue.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// The lock was read from the server; `None` if there is none. `now` is the moment before the read was sent: what
    /// it shows may be as old as that.
    pub fn lock_read(&mut self, lock: Option<LockView>, now: Moment) {
        self.lock = lock.map_or(Known::Absent, Known::Present);
        self.lock_read = now;
        self.lock_is_older = false;
    }

    /// The Lease was seen; `None` if there is none. An older state than the one known is passed over when it comes
    /// by watch, and a deletion, which may be that of an earlier Lease, is looked into; a read always counts. `now` is
    /// a moment after the sight.
    pub fn lease_seen(&mut self, lease: Option<LeaseRecord>, seen: Seen, now: Moment) {
        if let (Some(known), Some(lease), Seen::Watched) = (self.lease.value(), &lease, seen)
            && lease.resource_version <= known.resource_version
        {
            return;
        }
        self.must_read = seen == Seen::Watched && (self.must_read || lease.is_none());
        let Some(lease) = lease else {
            if seen == Seen::Read {
                self.lock_is_older |= !matches!(self.lease, Known::Absent);
                self.lease = Known::Absent;
                self.seen = None;
                self.takeable = None;
            }
            return;
        };
        let known = self.lease.value();
        self.lock_is_older |=
            known.is_none_or(|known| known.resource_version != lease.resource_version);
        if known.is_none_or(|known| known.uid != lease.uid || known.spec != lease.spec) {
            // Whatever was takeable was taken, or held, in between.
            self.takeable = None;
        }
        match &mut self.seen {
            Some(observation) => observation.note(&lease, seen, now),
            None => self.seen = Some(Observation::first(&lease, now)),
        }
        self.who.remembered = self.who.remembered.max(lease.last_token());
        self.lease = Known::Present(lease);
    }

    /// The claim that [`Move::ReadClaim`] named was read: `counts` if it exists with that uid, unfinished.
    pub fn claim_read(&mut self, claim: &ClaimRef, counts: bool) {
        self.next_counts = Some((claim.clone(), counts));
    }

    /// The claims were listed. A list without its own claim says that it was withdrawn: a living waiter makes another.
    pub fn claims_listed(&mut self, claims: Vec<ClaimView>) {
        if let Some(own) = &self.claim
            && !claims
                .iter()
                .any(|claim| claim.claim == *own && claim.waiting)
        {
            self.claim = None;
        }
        let (revision, next) = self
            .lease
            .value()
            .map_or((0, None), |l| (l.resource_version, l.next.clone()));
        self.listed = Some(Listed {
            claims,
            revision,
            next,
        });
    }

    /// Its claim is made: from now on its identity ends with the claim's uid.
    pub fn joined(&mut self, claim: ClaimRef, identity: String) {
        self.who.identity = identity;
        self.claim = Some(claim);
        self.listed = None;
    }

    /// Its claim is deleted.
    pub fn left(&mut self) {
        self.claim = None;
        self.listed = None;
    }

    /// The answer to [`Move::StartOver`].
    pub fn start_over(&mut self, identity: String) {
        self.who.identity = identity;
    }

    /// The write is about to be sent.
    pub fn sending(&mut self, write: &Write) {
        if let Write::Take(take) = write
            && self.pending.as_ref() != Some(take)
        {
            self.pending = Some(take.clone());
            self.may_land = false;
        }
    }

    /// The write, sent at `sent`, was answered. `Some` is the grant: the claimant's work ends there, but for a claim
    /// that it may have left.
    pub fn answered(
        &mut self,
        write: &Write,
        answer: Answer,
        sent: Moment,
        now: Moment,
    ) -> Option<Held> {
        match (write, answer) {
            (Write::Take(_) | Write::Confirm(_), Answer::Applied(record)) => {
                let unchanged = record.resource_version == write.record().resource_version;
                let mine = self
                    .pending
                    .as_ref()
                    .is_some_and(|take| record.grant_id().is(&take.grant));
                if unchanged || !mine {
                    self.may_land = true;
                    self.must_read = true;
                    return None;
                }
                let take = self.pending.take()?;
                self.who.remembered = take.grant.token.get();
                Some(Held::new(take.grant, record, sent, self.kill_grace))
            }
            (Write::Name(_) | Write::PassOver(_), Answer::Applied(record)) => {
                // A guarded write of its own that changed annotations only: nothing was missed in between.
                self.lease_seen(Some(record), Seen::Watched, now);
                None
            }
            (_, Answer::Refused) => {
                if !self.may_land {
                    self.pending = None;
                }
                self.must_read = true;
                None
            }
            (_, Answer::Unknown) => {
                self.may_land |= self.pending.is_some();
                self.must_read = true;
                None
            }
        }
    }

    /// What to do at `now`.
    pub fn decide(&mut self, now: Moment, wall: WallMicros) -> Move {
        if self.must_read || matches!(self.lease, Known::Unread) {
            return Move::ReadLease;
        }
        if let Some(settling) = self.settle(wall) {
            return settling;
        }
        if self.stopping {
            return self.leave();
        }
        match &self.lock {
            Known::Unread => return Move::ReadLock,
            Known::Absent => return Move::Refuse(Refusal::NoLock),
            Known::Present(lock) if lock.deleting => return Move::Refuse(Refusal::NoLock),
            Known::Present(_) => {}
        }
        self.seek(now, wall)
    }

    /// An unsettled take comes first: it was applied (then a renewal proves since when), or it can't be applied any
    /// more, or it is sent again: only one of the two can win, and both are the same grant.
    fn settle(&mut self, wall: WallMicros) -> Option<Move> {
        let take = self.pending.as_ref()?;
        let base = &take.record;
        if let Some(lease) = self.lease.value() {
            if lease.grant_id().is(&take.grant) {
                // The lock may be unread while stopping; what the take stored is then stored again.
                let renewal = self.lock.value().map_or_else(
                    || change::renew(&stand_in(base), lease, &take.grant, wall),
                    |lock| change::renew(lock, lease, &take.grant, wall),
                );
                return Some(Move::Write(Write::Confirm(renewal)));
            }
            if lease.uid == base.uid && lease.resource_version == base.resource_version {
                return Some(Move::Write(Write::Take(take.clone())));
            }
        }
        self.pending = None;
        None
    }

    /// Who withdraws while named moves `next` first.
    fn leave(&self) -> Move {
        let Some(claim) = self.claim.clone() else {
            return Move::Gone;
        };
        if let Some(lease) = self
            .lease
            .value()
            .filter(|lease| lease.next.as_ref() == Some(&claim))
        {
            if !self.list_is_fresh(lease) {
                return Move::ListClaims;
            }
            let after = self
                .queue(lease)
                .and_then(|queue| queue.after(&claim).cloned());
            return Move::Write(Write::Name(change::name(
                lease,
                after.filter(|after| *after != claim),
            )));
        }
        Move::DeleteClaim(claim)
    }

    fn seek(&mut self, now: Moment, wall: WallMicros) -> Move {
        let (Some(lease), Some(lock), Some(seen)) =
            (self.lease.value(), self.lock.value(), &self.seen)
        else {
            self.takeable = None;
            // A Lease goes with its lock.
            return if self.lock_is_older {
                Move::ReadLock
            } else {
                Move::Wait {
                    until: None,
                    why: Waiting::NoLease,
                }
            };
        };
        let standing = standing(lock, lease, seen, now);
        if let Standing::Unavailable(why) = standing {
            self.takeable = None;
            // What the Lease newly shows may come with a lock that was opened, or made again.
            return if self.lock_is_older {
                Move::ReadLock
            } else {
                unavailable(why)
            };
        }
        // An identity serves one grant: if this one's came and went unnoticed, it is spent.
        let spent = lease.spec.holder == self.who.identity
            || matches!(&lease.grant, GrantNote::V1(grant) if grant.holder == self.who.identity);
        if spent {
            return self
                .claim
                .clone()
                .map_or(Move::StartOver, Move::DeleteClaim);
        }
        if self.claim.is_some() && self.listed.is_none() {
            return Move::ListClaims;
        }
        if !standing.is_takeable() {
            self.takeable = None;
        } else if self
            .takeable
            .as_ref()
            .is_none_or(|(_, next)| *next != lease.next)
        {
            self.takeable = Some((now, lease.next.clone()));
        }
        if standing.is_takeable() {
            self.at_open_door(standing, now, wall)
        } else {
            self.at_closed_door(standing)
        }
    }

    /// The lock can be had by the one whose turn it is.
    fn at_open_door(&self, standing: Standing, now: Moment, wall: WallMicros) -> Move {
        let (Some(lease), Some(claim)) = (self.lease.value(), &self.claim) else {
            return self.at_open_door_without_claim(standing, wall);
        };
        match self.turn(lease) {
            Turn::Mine if !self.was_listed_when_named(lease) => Move::ListClaims,
            Turn::Mine => self.take(standing, self.next_after(lease, claim), wall),
            Turn::Nobodys { .. } if !self.list_is_fresh(lease) => Move::ListClaims,
            Turn::Nobodys { .. } => {
                match self.queue(lease).and_then(|queue| queue.first().cloned()) {
                    Some(first) if first == *claim => {
                        self.take(standing, self.next_after(lease, claim), wall)
                    }
                    first => Move::Write(Write::Name(change::name(lease, first))),
                }
            }
            Turn::Unknown(next) => Move::ReadClaim(next),
            Turn::Anothers(next) => self.pass_over(lease, &next, claim, now),
        }
    }

    fn at_open_door_without_claim(&self, standing: Standing, wall: WallMicros) -> Move {
        let Some(lease) = self.lease.value() else {
            return Move::ReadLease;
        };
        match self.turn(lease) {
            Turn::Nobodys { stale: false } => self.take(standing, NextChange::Keep, wall),
            Turn::Nobodys { stale: true } if !self.list_is_fresh(lease) => Move::ListClaims,
            Turn::Nobodys { stale: true } => {
                let first = self.queue(lease).and_then(|queue| queue.first().cloned());
                match (self.patience, first) {
                    // Others wait, though the one named is gone: queue behind them.
                    (Patience::Wait, Some(_)) => Move::MakeClaim,
                    (_, first) => self.take(standing, NextChange::Set(first), wall),
                }
            }
            Turn::Unknown(next) => Move::ReadClaim(next),
            Turn::Mine | Turn::Anothers(_) => self.queue_up(),
        }
    }

    /// The lock is held; the queue is kept in order meanwhile.
    fn at_closed_door(&self, standing: Standing) -> Move {
        let (Some(lease), Some(_)) = (self.lease.value(), &self.claim) else {
            return self.queue_up();
        };
        let until = match standing {
            Standing::Held { until } => Some(until),
            _ => None,
        };
        let why = if lease.is_missing() {
            Waiting::Missing
        } else {
            Waiting::Holder
        };
        match self.turn(lease) {
            Turn::Mine if !self.was_listed_when_named(lease) => Move::ListClaims,
            Turn::Nobodys { .. } if !self.list_is_fresh(lease) => Move::ListClaims,
            Turn::Nobodys { .. } => {
                let first = self.queue(lease).and_then(|queue| queue.first().cloned());
                Move::Write(Write::Name(change::name(lease, first)))
            }
            Turn::Unknown(next) => Move::ReadClaim(next),
            Turn::Mine | Turn::Anothers(_) => Move::Wait { until, why },
        }
    }

    fn queue_up(&self) -> Move {
        match self.patience {
            Patience::Wait => Move::MakeClaim,
            Patience::Try => Move::Refuse(Refusal::Busy),
        }
    }

    /// k places behind, after k times two seconds, and by a list made right before the write.
    fn pass_over(
        &self,
        lease: &LeaseRecord,
        next: &ClaimRef,
        claim: &ClaimRef,
        now: Moment,
    ) -> Move {
        let Some((since, _)) = &self.takeable else {
            return Move::ReadLease;
        };
        let behind = self
            .queue(lease)
            .and_then(|queue| queue.places_behind(next, claim))
            .unwrap_or(1)
            .max(1);
        let patience = PASS_OVER_AFTER.saturating_mul(u32::try_from(behind).unwrap_or(u32::MAX));
        let due = since.saturating_add(patience);
        if now < due {
            return Move::Wait {
                until: Some(due),
                why: Waiting::Turn,
            };
        }
        if !self.list_is_fresh(lease) {
            return Move::ListClaims;
        }
        let after = self
            .queue(lease)
            .and_then(|queue| queue.after(next).cloned());
        Move::Write(Write::PassOver(change::name(lease, after)))
    }

    fn take(&self, standing: Standing, next: NextChange, wall: WallMicros) -> Move {
        let (Some(lease), Some(seen)) = (self.lease.value(), &self.seen) else {
            return Move::ReadLease;
        };
        let Some(lock) = self.lock.value() else {
            return Move::ReadLock;
        };
        // Before a silent holder is replaced the lock is read again, for each attempt: Hold may be new.
        let is_fresh =
            !self.lock_is_older && was_expired_when_read(lock, self.lock_read, lease, seen);
        if standing == Standing::Expired && !is_fresh {
            return Move::ReadLock;
        }
        match change::take(lock, lease, standing, &self.who, next, wall) {
            Ok(take) => Move::Write(Write::Take(take)),
            Err(change::TakeRefused::NoTokenLeft) => Move::Refuse(Refusal::NoTokenLeft),
            Err(change::TakeRefused::NotTakeable) => Move::ReadLease,
        }
    }

    /// The claim after one's own, of the list made when one was named; `next` goes with the last.
    fn next_after(&self, lease: &LeaseRecord, claim: &ClaimRef) -> NextChange {
        NextChange::Set(
            self.queue(lease)
                .and_then(|queue| queue.after(claim).cloned()),
        )
    }

    fn turn(&self, lease: &LeaseRecord) -> Turn {
        let Some(next) = lease.next.clone() else {
            return Turn::Nobodys { stale: false };
        };
        if self.claim.as_ref() == Some(&next) {
            return Turn::Mine;
        }
        if lease.holder_uid() == Some(next.uid.as_str()) {
            return Turn::Nobodys { stale: true };
        }
        // A list made while this `next` stood tells as much as a read, and is there already for whoever queues.
        if let Some(listed) = self
            .listed
            .as_ref()
            .filter(|listed| listed.next.as_ref() == Some(&next))
        {
            let counts = listed
                .claims
                .iter()
                .any(|claim| claim.claim == next && claim.waiting);
            return if counts {
                Turn::Anothers(next)
            } else {
                Turn::Nobodys { stale: true }
            };
        }
        match &self.next_counts {
            Some((read, false)) if *read == next => Turn::Nobodys { stale: true },
            Some((read, true)) if *read == next => Turn::Anothers(next),
            // A waiter does not read the claim at each change: whoever is behind a dead one passes over it.
            _ if self.claim.is_some() && self.listed.is_some() => Turn::Anothers(next),
            _ => Turn::Unknown(next),
        }
    }

    fn queue(&self, lease: &LeaseRecord) -> Option<Queue> {
        self.listed.as_ref().map(|listed| {
            Queue::new(
                listed.claims.iter().cloned(),
                lease.holder_uid(),
                self.order(),
            )
        })
    }

    fn order(&self) -> QueueOrder {
        self.lock
            .value()
            .map_or(QueueOrder::Fifo, |lock| lock.order)
    }

    /// Whether the list was made after the Lease took its present state.
    fn list_is_fresh(&self, lease: &LeaseRecord) -> bool {
        self.listed
            .as_ref()
            .is_some_and(|listed| listed.revision == lease.resource_version)
    }

    fn was_listed_when_named(&self, lease: &LeaseRecord) -> bool {
        self.listed
            .as_ref()
            .is_some_and(|listed| listed.next == lease.next)
    }
}

/// Whether the lock was read at a moment at which the holder's time was up already.
fn was_expired_when_read(
    lock: &LockView,
    read: Moment,
    lease: &LeaseRecord,
    seen: &Observation,
) -> bool {
    standing(lock, lease, seen, read) == Standing::Expired
}

/// A lock that makes a renewal store what `base` stores, for one that leaves and has not read the lock.
fn stand_in(base: &LeaseRecord) -> LockView {
    let seconds = base
        .spec
        .duration_seconds
        .and_then(|seconds| u32::try_from(seconds).ok())
        .unwrap_or(1);
    LockView {
        duration_seconds: seconds,
        longest_seconds: Some(seconds),
        ..LockView::default()
    }
}

fn unavailable(why: Unavailable) -> Move {
    match why {
        Unavailable::NewerVersion => Move::Refuse(Refusal::NewerVersion),
        Unavailable::NotOurs => Move::Wait {
            until: None,
            why: Waiting::Conflict,
        },
        Unavailable::NotOpened | Unavailable::OtherLock | Unavailable::Deleting => Move::Wait {
            until: None,
            why: Waiting::NotReady,
        },
    }
}
