//! What the operator does for one slot of a lock: it makes the Lease, opens it, ends silent holders, revokes, stamps
//! foreign holders, repairs `next`. It grants nothing to Heartbeat claims: takers take.
//!
//! A [`Keeper`] is fed by every replica, leader or not, so that a change of leader postpones no expiry; only the
//! leader asks it what to do.

use super::change;
use super::claimant::PASS_OVER_AFTER;
use super::queue::Queue;
use super::record::{ClaimRef, EndKind, Hold, LeaseRecord, SpecRecord};
use super::standing::{LockView, Observation, Seen, Standing, Unavailable, availability, standing};
use super::{Moment, WallMicros};

/// What the operator's shell is to do for a slot, then to tell the keeper about, then to ask again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OperatorMove {
    /// Create the Lease with this spec; answer with [`Keeper::lease_seen`].
    Create(SpecRecord),
    /// Add the slot's first entry (and `longestLeaseDurationSeconds`) to status by a guarded write; answer with
    /// [`Keeper::opened`] if that very write added it.
    Open,
    /// Read the lock from the server; answer with [`Keeper::lock_read`].
    ReadLock,
    /// Read this claim from the server; answer with [`Keeper::claim_read`].
    ReadClaim(ClaimRef),
    /// Send this guarded write; answer with [`Keeper::written`], or read the Lease again.
    Write {
        /// What it is for.
        what: OperatorWrite,
        /// The record to put in place.
        record: Box<LeaseRecord>,
        /// The Heartbeat claim to delete once the write has won.
        then_delete: Option<ClaimRef>,
    },
    /// Nothing to do before `until`, or before something changes.
    Wait {
        /// The next moment at which time alone changes the answer.
        until: Option<Moment>,
        /// Why the lock can't work, where it can't: for the condition Stalled.
        stalled: Option<Unavailable>,
    },
}

/// What a write of the operator's is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperatorWrite {
    /// Frees a Lease that was just made for a slot that nobody ever had.
    Free,
    /// Ends a silent holder.
    Expire,
    /// Ends a holder whose token is below the floor.
    Revoke,
    /// Gives a foreign holder its token.
    Stamp,
    /// Says whose turn it is.
    Name,
    /// Says whose turn it is, over a claim that did not take its own.
    PassOver,
}

/// What one operator replica knows of one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Keeper {
    lock: Option<(LockView, Moment)>,
    lease: Option<LeaseRecord>,
    /// When the Lease was last seen to change, in whatever.
    changed: Moment,
    seen: Option<Observation>,
    remembered: i64,
    /// uid and resourceVersion of the Lease that was there before the first status entry was written.
    opening: Option<(String, u64)>,
    /// The same, once this replica's own write added that entry.
    opened: Option<(String, u64)>,
    next_counts: Option<(ClaimRef, bool)>,
    takeable: Option<(Moment, Option<ClaimRef>)>,
    /// Whether it has not yet put the first claim first since it began to lead.
    begins_to_lead: bool,
}

impl Keeper {
    /// From now on this replica leads: it names the first claim, so that those passed over while nobody led get
    /// their place back.
    pub fn begin_to_lead(&mut self) {
        self.begins_to_lead = true;
        self.opening = None;
        self.opened = None;
    }

    /// The lock was read from the server; `now` is the moment before the read was sent. Of a lock that came by watch
    /// nobody knows how old it is: give the moment of the last read.
    pub fn lock_read(&mut self, lock: LockView, now: Moment) {
        if self
            .lock
            .as_ref()
            .is_some_and(|(known, _)| known.uid != lock.uid)
        {
            *self = Self {
                lease: self.lease.take(),
                changed: self.changed,
                seen: self.seen.take(),
                ..Self::default()
            };
        }
        self.remembered = self
            .remembered
            .max(lock.slot.as_ref().map_or(0, |slot| slot.token));
        self.lock = Some((lock, now));
    }

    /// The Lease was seen; `None` if there is none.
    pub fn lease_seen(&mut self, lease: Option<LeaseRecord>, seen: Seen, now: Moment) {
        if let (Some(known), Some(lease), Seen::Watched) = (&self.lease, &lease, seen)
            && lease.resource_version <= known.resource_version
        {
            return;
        }
        match (&lease, &mut self.seen) {
            (Some(lease), Some(observation)) => observation.note(lease, seen, now),
            (Some(lease), none) => *none = Some(Observation::first(lease, now)),
            (None, some) => *some = None,
        }
        if let Some(lease) = &lease {
            self.remembered = self.remembered.max(lease.last_token());
        }
        let same = matches!((&self.lease, &lease), (Some(known), Some(lease))
            if known.uid == lease.uid && known.spec == lease.spec);
        let revision = |lease: &Option<LeaseRecord>| lease.as_ref().map(|l| l.resource_version);
        if revision(&self.lease) != revision(&lease) {
            self.changed = now;
        }
        if !same {
            // Whatever was takeable was taken, or held, in between.
            self.takeable = None;
        }
        self.lease = lease;
    }

    /// The claim that [`OperatorMove::ReadClaim`] named was read: `counts` if it exists with that uid, unfinished.
    pub fn claim_read(&mut self, claim: &ClaimRef, counts: bool) {
        self.next_counts = Some((claim.clone(), counts));
    }

    /// This replica's own guarded write added the slot's first status entry.
    pub fn opened(&mut self) {
        self.opened = self.opening.take();
    }

    /// A write of the operator's was answered by a 2xx with `record`.
    pub fn written(&mut self, record: LeaseRecord, now: Moment) {
        self.lease_seen(Some(record), Seen::Watched, now);
    }

    /// The Lease as last seen.
    #[must_use]
    pub fn lease(&self) -> Option<&LeaseRecord> {
        self.lease.as_ref()
    }

    /// How the Lease stands for this replica.
    #[must_use]
    pub fn standing(&self, now: Moment) -> Option<Standing> {
        let ((lock, _), lease, seen) = (
            self.lock.as_ref()?,
            self.lease.as_ref()?,
            self.seen.as_ref()?,
        );
        Some(standing(lock, lease, seen, now))
    }

    /// What the leader does at `now`, with the claims that it has in view.
    pub fn decide(
        &mut self,
        queue: &Queue,
        identity: &str,
        now: Moment,
        wall: WallMicros,
    ) -> OperatorMove {
        let Some((lock, _)) = &self.lock else {
            return OperatorMove::ReadLock;
        };
        if lock.deleting {
            return wait(None);
        }
        let (Some(lease), Some(seen)) = (&self.lease, &self.seen) else {
            self.takeable = None;
            return OperatorMove::Create(change::missing(lock, wall));
        };
        match availability(lock, lease) {
            None => {}
            Some(Unavailable::NotOpened) => {
                self.opening = Some((lease.uid.clone(), lease.resource_version));
                return OperatorMove::Open;
            }
            Some(why) => {
                return OperatorMove::Wait {
                    until: None,
                    stalled: Some(why),
                };
            }
        }
        if let Some((uid, revision)) = self.opened.take()
            && lease.is_missing()
            && lease.uid == uid
            && lease.resource_version == revision
        {
            return write(OperatorWrite::Free, change::open(lease, wall));
        }
        match standing(lock, lease, seen, now) {
            Standing::Revoked => {
                let reason = "its token is below minFencingToken";
                return write(
                    OperatorWrite::Revoke,
                    change::end(lease, EndKind::Revoked, identity, reason, wall),
                );
            }
            Standing::Expired => return self.expire(identity, wall),
            _ => {}
        }
        if is_unstamped_foreigner(lease)
            && let Some(record) = change::stamp(lock, lease, self.remembered)
        {
            return write(OperatorWrite::Stamp, record);
        }
        self.keep_queue(queue, now)
    }

    /// Before a silent holder is ended the lock is read again, for each attempt: Hold may be new, and the longest
    /// duration too.
    fn expire(&self, identity: &str, wall: WallMicros) -> OperatorMove {
        let (Some((lock, read)), Some(lease), Some(seen)) = (&self.lock, &self.lease, &self.seen)
        else {
            return OperatorMove::ReadLock;
        };
        if *read < self.changed || standing(lock, lease, seen, *read) != Standing::Expired {
            return OperatorMove::ReadLock;
        }
        let reason = "its lease ended without a renewal";
        write(
            OperatorWrite::Expire,
            change::end(lease, EndKind::Expired, identity, reason, wall),
        )
    }

    fn keep_queue(&mut self, queue: &Queue, now: Moment) -> OperatorMove {
        let (Some(lease), Some(standing)) = (&self.lease, self.standing(now)) else {
            return wait(None);
        };
        let until = match standing {
            Standing::Held { until } => Some(until),
            _ => None,
        };
        if !standing.is_takeable() {
            self.takeable = None;
        } else if self
            .takeable
            .as_ref()
            .is_none_or(|(_, next)| *next != lease.next)
        {
            self.takeable = Some((now, lease.next.clone()));
        }
        let first = queue.first();
        let Some(next) = &lease.next else {
            self.begins_to_lead = false;
            return first.map_or_else(|| wait(until), |first| name(lease, Some(first)));
        };
        if !queue.contains(next) {
            let holds = lease.holder_uid() == Some(next.uid.as_str());
            return match &self.next_counts {
                _ if holds => name(lease, first),
                Some((read, false)) if read == next => name(lease, first),
                // It is there, only not in view yet.
                Some((read, true)) if read == next => {
                    let claim = next.clone();
                    self.pass_over(&claim, first.cloned().as_ref(), None, until, now)
                }
                _ => OperatorMove::ReadClaim(next.clone()),
            };
        }
        if std::mem::take(&mut self.begins_to_lead) && first.is_some_and(|first| first != next) {
            return name(lease, first);
        }
        let named = queue.claims().iter().find(|claim| claim.claim == *next);
        if named.is_some_and(|claim| claim.dead) {
            return name(lease, queue.after(next));
        }
        let heartbeat = named.is_some_and(|claim| claim.hold == Hold::Heartbeat);
        let (claim, after) = (next.clone(), queue.after(next).cloned());
        self.pass_over(
            &claim,
            after.as_ref(),
            heartbeat.then(|| claim.clone()),
            until,
            now,
        )
    }

    /// Two seconds after the lock was seen takeable with this `next`.
    fn pass_over(
        &self,
        next: &ClaimRef,
        after: Option<&ClaimRef>,
        then_delete: Option<ClaimRef>,
        until: Option<Moment>,
        now: Moment,
    ) -> OperatorMove {
        let (Some(lease), Some((since, _))) = (&self.lease, &self.takeable) else {
            return wait(until);
        };
        let due = since.saturating_add(PASS_OVER_AFTER);
        if now < due {
            return wait(Some(until.map_or(due, |until| until.min(due))));
        }
        let after = after.filter(|after| *after != next);
        if after.is_none() && then_delete.is_none() {
            // Nobody is behind it, and it keeps its place: to name nobody, then it again, would go on for ever.
            return wait(until);
        }
        // With nobody behind it there is nobody to name: the claim goes, and with it what `next` says.
        let record = Box::new(change::name(lease, after.cloned()));
        OperatorMove::Write {
            what: OperatorWrite::PassOver,
            record,
            then_delete,
        }
    }
}

/// A holder without a token that is none of ours. One of ours whose annotation was dropped puts it back itself, and
/// nobody stamps over a living grant.
fn is_unstamped_foreigner(lease: &LeaseRecord) -> bool {
    !lease.is_free()
        && !lease.is_missing()
        && lease.current_grant().is_none()
        && !looks_like_ours(lease)
}

/// `<claimant>/<uuid>`: other clients join name and uuid by other characters.
fn looks_like_ours(lease: &LeaseRecord) -> bool {
    let uuid =
        |uid: &str| uid.len() == 36 && uid.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    lease.holder_uid().is_some_and(uuid)
}

fn wait(until: Option<Moment>) -> OperatorMove {
    OperatorMove::Wait {
        until,
        stalled: None,
    }
}

fn write(what: OperatorWrite, record: LeaseRecord) -> OperatorMove {
    OperatorMove::Write {
        what,
        record: Box::new(record),
        then_delete: None,
    }
}

fn name(lease: &LeaseRecord, next: Option<&ClaimRef>) -> OperatorMove {
    write(OperatorWrite::Name, change::name(lease, next.cloned()))
}
