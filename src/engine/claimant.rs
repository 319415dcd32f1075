//! What somebody who wants a lock does next, from the first read to the grant, or to having left the queue.
//!
//! A [`Claimant`] is fed with what its shell read and which answers its writes got, and says at any moment what to do:
//! [`Claimant::decide`]. It keeps the two promises that are easy to break: a take that was sent and not answered is
//! settled before anything else is written (R9), and a lock that is named for another is not taken.
//!
//! A lock of several slots has one queue and one `next`, on slot 0's Lease. Who is named watches all slots and takes
//! whichever it can have; everybody else watches slot 0 only, and looks at the others before passing over
//! ([`Claimant::look_around`]).

mod seek;
mod settle;
mod sight;

use std::collections::BTreeMap;
use std::time::Duration;

use self::sight::{Known, Listed, Sight};
use super::change::{self, Requester, Take};
use super::holder::Held;
use super::moves::{Answer, Move, Patience, Refusal, Write};
use super::queue::{ClaimView, Queue, QueueOrder};
use super::record::{ClaimRef, LeaseRecord};
use super::standing::{LockView, Seen};
use super::{Moment, WallMicros};

/// How long a named claim may leave a takeable lock untaken before it is passed over by the one behind it.
pub const PASS_OVER_AFTER: Duration = Duration::from_secs(2);

/// Somebody who wants the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claimant {
    who: Requester,
    patience: Patience,
    kill_grace: Duration,
    claim: Option<ClaimRef>,
    stopping: bool,
    /// The lock, as each slot sees it.
    lock: Known<Vec<LockView>>,
    /// When the read of the lock was sent.
    lock_read: Moment,
    /// Whether that read is the last thing that happened: what is decided next is decided right after it.
    lock_is_new: bool,
    /// Slot 0 always; the others as they are looked at.
    slots: BTreeMap<u32, Sight>,
    /// What a read of the claim named by `next` showed: whether it counts.
    next_counts: Option<(ClaimRef, bool)>,
    listed: Option<Listed>,
    takeable: Option<Takeable>,
    /// Whom it named itself in place of. Who is put back to that one does not go before it again: whoever did that has a
    /// reason, and the two would write for ever.
    went_before: Option<ClaimRef>,
    /// The take that was sent, of which slot, and whose outcome is not settled.
    pending: Option<(u32, Take)>,
    /// Whether an attempt of that take was never answered, so that it may still be applied.
    may_land: bool,
    /// When it began to look at the slots that it does not watch.
    looking: Option<Moment>,
    /// Until then it replaces no holder: a policy leaves that to the operator.
    barred: Option<Moment>,
}

/// Since when a slot has been takeable, without a change, while `next` said this.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Takeable {
    since: Moment,
    slot: u32,
    next: Option<ClaimRef>,
}

/// A claim that was served by another slot than 0: `next`, on slot 0's Lease, is to move on from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Served {
    own: ClaimView,
    holders: Vec<String>,
    order: QueueOrder,
}

impl Served {
    /// The write that moves `next` on, by a list of claims made after its own claim went; `None` where `next` names
    /// another by now.
    #[must_use]
    pub fn moves_on(&self, lease: &LeaseRecord, claims: Vec<ClaimView>) -> Option<LeaseRecord> {
        let own = &self.own.claim;
        if lease.next.as_ref() != Some(own) {
            return None;
        }
        let others = claims.into_iter().filter(|claim| claim.claim != *own);
        let holders = self.holders.iter().map(String::as_str);
        let queue = Queue::new(others.chain([self.own.clone()]), holders, self.order);
        Some(change::name(lease, queue.after(own).cloned()))
    }
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
            lock_is_new: false,
            slots: BTreeMap::from([(0, Sight::default())]),
            next_counts: None,
            listed: None,
            takeable: None,
            went_before: None,
            pending: None,
            may_land: false,
            looking: None,
            barred: None,
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

    /// A slot's Lease as last seen.
    #[must_use]
    pub fn lease(&self, slot: u32) -> Option<&LeaseRecord> {
        self.slots.get(&slot)?.lease.value()
    }

    /// The lock as last read, as this slot sees it.
    #[must_use]
    pub fn lock(&self, slot: u32) -> Option<&LockView> {
        self.lock.value()?.get(usize::try_from(slot).ok()?)
    }

    /// The slots to watch: all of them for the one whose turn it is, slot 0 for everybody else, and up to that of which
    /// a take is open.
    #[must_use]
    pub fn watched(&self) -> std::ops::Range<u32> {
        let wanted = if self.is_named() {
            self.slot_count()
        } else {
            1
        };
        let open = self.pending.as_ref().map_or(0, |(slot, _)| slot + 1);
        0..wanted.max(open)
    }

    /// Its place in the queue, 1 for the one whose turn it is: about right.
    #[must_use]
    pub fn place(&self) -> Option<usize> {
        let (claim, lease) = (self.claim.as_ref()?, self.lease(0)?);
        self.queue()?.place(lease.next.as_ref(), claim)
    }

    /// Whether the outcome of a take of its own is open.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.pending.is_some()
    }

    /// The server refused to have a holder replaced by anybody but the operator. It takes only what is free until then.
    pub fn leave_to_operator(&mut self, until: Moment) {
        self.barred = Some(until);
    }

    /// From now on it only settles what it sent and leaves the queue.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// The lock was read from the server, one view a slot that may be taken; `None` if there is none. `now` is the
    /// moment before the read was sent: what it shows may be as old as that.
    pub fn lock_read(&mut self, lock: Option<Vec<LockView>>, now: Moment) {
        self.lock = lock.map_or(Known::Absent, Known::Present);
        self.lock_read = now;
        self.lock_is_new = true;
        for sight in self.slots.values_mut() {
            sight.lock_is_older = false;
        }
    }

    /// A slot's Lease was seen; `None` if there is none. An older state than the one known is passed over when it
    /// comes by watch, and a deletion, which may be that of an earlier Lease, is looked into; a read always counts.
    /// `now` is a moment after the sight.
    pub fn lease_seen(&mut self, slot: u32, lease: Option<LeaseRecord>, seen: Seen, now: Moment) {
        // A read takes its time.
        self.lock_is_new &= seen == Seen::Watched;
        let change = self.slots.entry(slot).or_default().note(lease, seen, now);
        if change.spec && self.takeable.as_ref().is_some_and(|of| of.slot == slot) {
            // It was taken, or held, in between.
            self.takeable = None;
        }
        if slot == 0 && change.next {
            // Who is named looks at every slot anew; everybody else does not watch them.
            self.forget_others();
        }
    }

    /// It is time to look at the slots that are not watched: whoever is named may be dead, though slot 0 does not show
    /// it. Of use only to somebody who waits for a lock of several slots.
    pub fn look_around(&mut self, now: Moment) {
        if self.slot_count() > 1 && self.claim.is_some() && !self.is_named() {
            self.forget_others();
            self.looking = Some(now);
        }
    }

    fn forget_others(&mut self) {
        let open = self.pending.as_ref().map(|(slot, _)| *slot);
        for (slot, sight) in &mut self.slots {
            if *slot != 0 && Some(*slot) != open {
                sight.forget();
            }
        }
        self.looking = None;
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
            .lease(0)
            .map_or((0, None), |l| (l.resource_version, l.next.clone()));
        self.listed = Some(Listed {
            claims,
            revision,
            next,
        });
    }

    /// A read of its claim showed this priority. If that was edited, its place is another: the claims are listed anew.
    pub fn ranks(&mut self, priority: i32) {
        let own = self.claim.as_ref();
        let mut listed = self.listed.iter().flat_map(|listed| &listed.claims);
        if listed.any(|view| Some(&view.claim) == own && view.priority != priority) {
            self.listed = None;
        }
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
        if let Write::Take { slot, take } = write {
            let open = self.pending.replace((*slot, take.clone()));
            // The attempt before this one was not answered, or it would not be open.
            self.may_land = open == self.pending;
        }
    }

    /// The write, sent at `sent`, was answered. `Some` is the grant: the claimant's work ends there, but for a claim
    /// that it may have left, and for [`Claimant::served`].
    pub fn answered(
        &mut self,
        write: &Write,
        answer: Answer,
        sent: Moment,
        now: Moment,
    ) -> Option<Held> {
        let slot = write.slot();
        match (write, answer) {
            (Write::Take { .. } | Write::Confirm { .. }, Answer::Applied(record)) => {
                let unchanged = record.resource_version == write.record().resource_version;
                let mine = self
                    .pending
                    .as_ref()
                    .is_some_and(|(_, take)| record.grant_id().is(&take.grant));
                if unchanged || !mine {
                    self.may_land = true;
                    self.read_again(slot);
                    return None;
                }
                let (_, take) = self.pending.take()?;
                let token = take.grant.token.get();
                let held = Held::new(take.grant, record.clone(), sent, self.kill_grace);
                self.lease_seen(slot, Some(record), Seen::Watched, now);
                let sight = self.slots.entry(slot).or_default();
                sight.remembered = sight.remembered.max(token);
                Some(held)
            }
            (
                Write::Name(_) | Write::PassOver(_) | Write::Settle { .. },
                Answer::Applied(record),
            ) => {
                if !matches!(write, Write::Settle { .. })
                    && self.claim.is_some()
                    && record.next == self.claim
                {
                    self.went_before = self.lease(0).and_then(|lease| lease.next.clone());
                }
                // A guarded write of its own that changed annotations only: nothing was missed in between.
                self.lease_seen(slot, Some(record), Seen::Watched, now);
                None
            }
            // A conflict may be with this very write, if a proxy sent it twice: a read tells.
            (_, Answer::Refused) => {
                self.read_again(slot);
                None
            }
            (_, Answer::Unknown) => {
                self.may_land |= self.pending.is_some();
                self.read_again(slot);
                None
            }
        }
    }

    fn read_again(&mut self, slot: u32) {
        self.slots.entry(slot).or_default().must_read = true;
    }

    /// After a grant of another slot than 0: what is needed to move `next` on from this claimant's own claim, where it
    /// names that. Until it is moved nobody behind is served.
    #[must_use]
    pub fn served(&self) -> Option<Served> {
        let (claim, lease) = (self.claim.as_ref()?, self.lease(0)?);
        let named = lease.next.as_ref() == Some(claim);
        let mut claims = self.listed.as_ref()?.claims.iter();
        let own = claims.find(|view| view.claim == *claim).filter(|_| named)?;
        // Its own slot is not in the list of holders: it still has its place, so that the one after it is found.
        let holders = self.slots.values().filter_map(Sight::holder_uid);
        Some(Served {
            own: own.clone(),
            holders: holders
                .filter(|uid| *uid != claim.uid)
                .map(str::to_owned)
                .collect(),
            order: self.order(),
        })
    }

    /// What to do at `now`.
    pub fn decide(&mut self, now: Moment, wall: WallMicros) -> Move {
        let lock_is_new = std::mem::take(&mut self.lock_is_new);
        let queue = &self.slots[&0];
        if queue.must_read || matches!(queue.lease, Known::Unread) {
            return Move::ReadLease(0);
        }
        if let Some(settling) = self.settle(wall) {
            return settling;
        }
        let open = self.pending.is_some();
        let wanted = if self.stopping && !open {
            self.leave()
        } else {
            self.seek_lock(lock_is_new, now, wall)
        };
        if open {
            self.settle_before(wanted, lock_is_new)
        } else {
            wanted
        }
    }

    fn seek_lock(&mut self, lock_is_new: bool, now: Moment, wall: WallMicros) -> Move {
        match &self.lock {
            Known::Unread => return Move::ReadLock,
            Known::Absent => return Move::Refuse(Refusal::NoLock),
            Known::Present(views) => match views.first() {
                Some(lock) if !lock.deleting => {}
                _ => return Move::Refuse(Refusal::NoLock),
            },
        }
        self.seek(lock_is_new, now, wall)
    }

    /// Whether it is its turn.
    fn is_named(&self) -> bool {
        self.claim.is_some()
            && self.lease(0).and_then(|lease| lease.next.as_ref()) == self.claim.as_ref()
    }

    fn slot_count(&self) -> u32 {
        self.lock
            .value()
            .and_then(|views| u32::try_from(views.len()).ok())
            .unwrap_or(1)
            .max(1)
    }

    /// The claim after this one, never this one itself.
    fn after(&self, claim: &ClaimRef) -> Option<ClaimRef> {
        self.queue()?.after(claim).cloned()
    }

    fn queue(&self) -> Option<Queue> {
        let holders = self.slots.values().filter_map(Sight::holder_uid);
        self.listed
            .as_ref()
            .map(|listed| Queue::new(listed.claims.iter().cloned(), holders, self.order()))
    }

    fn order(&self) -> QueueOrder {
        self.lock(0).map_or(QueueOrder::Fifo, |lock| lock.order)
    }

    /// Whether the list was made after slot 0's Lease took its present state.
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
