//! What the operator does for one slot of a lock: it makes the Lease, opens it, ends silent holders, revokes, stamps
//! foreign holders. Whose turn it is concerns all slots: see [`turns`](super::turns). It grants nothing to Heartbeat
//! claims: takers take.
//!
//! A [`Keeper`] is fed by every replica, leader or not, so that a change of leader postpones no expiry; only the
//! leader asks it what to do.

mod moves;

use std::time::Duration;

pub use self::moves::{Loss, OperatorMove, OperatorWrite};
pub(super) use self::moves::{wait, write};
use super::change;
use super::holds::{Holder, LOOK_AGAIN, SlotSight};
use super::record::{EndKind, GrantId, Hold, LeaseRecord};
use super::standing::{
    LockView, Observation, OnHolderLost, Seen, Standing, Unavailable, availability, lost_at,
    standing, stored_duration,
};
use super::terms::Terms;
use super::token::next_token;
use super::{Moment, WallMicros};

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
    /// Since when the leader has seen a take of the slot possible.
    takeable: Option<Moment>,
    /// Since when this replica has itself seen the present grant; only where it matters: the lock limits how long one
    /// may last, or the hold is one that the operator keeps.
    held: Option<(GrantId, Moment)>,
    /// `maxHoldSeconds` as last looked at.
    limit: Option<u32>,
    /// When that was seen to be set or lowered, if the present grant may be older: its holder need not know of it yet.
    limited: Option<Moment>,
    /// For how many seconds this replica has prolonged a grant.
    prolonged: Option<(GrantId, u32)>,
    /// What a read showed of the claim with this uid: when, and whether it is gone.
    holder_read: Option<(String, Moment, bool)>,
    /// Whether the holder has given a sign of life that this replica saw; only under Hold.
    lives: bool,
}

impl Keeper {
    /// From now on this replica leads: what it began to open in an earlier term was perhaps opened by another.
    pub fn begin_to_lead(&mut self) {
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
        // The Lease was last seen to change at that moment: the grant was there then.
        self.note_hold(self.changed);
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
        if let (Some(known), Some(lease)) = (&self.lease, &lease)
            && known.grant_id() != lease.grant_id()
        {
            // Who takes under a limit knows of it in good time: it reads the lock soon after.
            self.limited = None;
        }
        let revision = |lease: &Option<LeaseRecord>| lease.as_ref().map(|l| l.resource_version);
        if revision(&self.lease) != revision(&lease) {
            self.changed = now;
        }
        if !same {
            // Whatever was takeable was taken, or held, in between.
            self.takeable = None;
            self.lives = self.lease.is_some() && self.holds_after_loss();
        }
        self.lease = lease;
        self.note_limit(now);
        self.note_hold(now);
    }

    /// Sees whether `maxHoldSeconds` was set or lowered.
    fn note_limit(&mut self, now: Moment) {
        let limit = self.lock().and_then(|lock| lock.max_hold_seconds);
        if let Some(seconds) = limit
            && self.limit.is_none_or(|known| seconds < known)
        {
            self.limited = Some(now);
        }
        self.limit = limit;
    }

    /// Renewals, and edits of annotations, change nothing here.
    fn note_hold(&mut self, now: Moment) {
        let limited = self
            .lock()
            .is_some_and(|lock| lock.max_hold_seconds.is_some());
        let holds = |lease: &&LeaseRecord| !lease.is_free() && !lease.is_missing();
        let grant = self.lease.as_ref().filter(holds).filter(|lease| {
            let known = self.held.as_ref();
            let kept = lease
                .current_grant()
                .is_some_and(|grant| grant.hold != Hold::Heartbeat);
            // One whose annotation was dropped is still the same.
            limited || kept || known.is_some_and(|(known, _)| *known == lease.grant_id())
        });
        let grant = grant.map(LeaseRecord::grant_id);
        if self.held.as_ref().map(|(known, _)| known) != grant.as_ref() {
            self.held = grant.map(|grant| (grant, now));
        }
    }

    /// This replica's own guarded write added the slot's first status entry.
    pub fn opened(&mut self) {
        self.opened = self.opening.take();
    }

    /// A write of the operator's was answered by a 2xx with `record`.
    pub fn written(&mut self, record: LeaseRecord, now: Moment) {
        self.lease_seen(Some(record), Seen::Watched, now);
    }

    /// The write of [`OperatorMove::Prolong`] was answered by a 2xx.
    pub fn prolonged(&mut self, total: u32) {
        let grant = self.lease.as_ref().map(LeaseRecord::grant_id);
        self.prolonged = grant.map(|grant| (grant, total));
    }

    /// For how many seconds this replica has prolonged the present grant.
    #[must_use]
    pub fn prolonged_to(&self) -> Option<u32> {
        let (grant, total) = self.prolonged.as_ref()?;
        (*grant == self.lease.as_ref()?.grant_id()).then_some(*total)
    }

    /// The claim that [`OperatorMove::ReadHolder`] asked for was looked for at `now`.
    pub fn holder_read(&mut self, uid: &str, gone: bool, now: Moment) {
        self.holder_read = Some((uid.to_owned(), now, gone));
    }

    /// What is known of the claim behind the holder while it is not in view.
    #[must_use]
    pub fn holder_out_of_view(&self, now: Moment) -> Holder<'static> {
        let holder = self.lease.as_ref().and_then(LeaseRecord::holder_uid);
        match &self.holder_read {
            Some((uid, _, true)) if holder == Some(uid) => Holder::Gone,
            Some((uid, read, false)) if holder == Some(uid) && now < *read + LOOK_AGAIN => {
                Holder::OutOfView
            }
            _ => Holder::Unknown,
        }
    }

    /// The slot for those who see to Fixed and Pod holds; `None` while lock or Lease are not known.
    #[must_use]
    pub fn sight(&self, now: Moment) -> Option<SlotSight<'_>> {
        let ((lock, read), lease, seen) = (
            self.lock.as_ref()?,
            self.lease.as_ref()?,
            self.seen.as_ref()?,
        );
        let when_read = standing(lock, lease, seen, *read);
        Some(SlotSight {
            lock,
            lock_read: *read,
            lease,
            lease_changed: self.changed,
            standing: standing(lock, lease, seen, now),
            expired_when_read: *read >= self.changed && when_read == Standing::Expired,
            unchanged_since: seen.since(),
            held_since: self.held.as_ref().map_or(now, |(_, since)| *since),
            prolonged_to: self.prolonged_to(),
            remembered: self.remembered,
        })
    }

    /// The Lease as last seen.
    #[must_use]
    pub fn lease(&self) -> Option<&LeaseRecord> {
        self.lease.as_ref()
    }

    /// The lock as last read.
    #[must_use]
    pub fn lock(&self) -> Option<&LockView> {
        self.lock.as_ref().map(|(lock, _)| lock)
    }

    /// Since when the leader has seen a take of the slot possible: by then its queue may move.
    #[must_use]
    pub fn takeable_since(&self) -> Option<Moment> {
        self.takeable
    }

    /// When the holder counts as lost, where `onHolderLost: Hold` keeps the slot locked after it.
    #[must_use]
    pub fn lost_at(&self) -> Option<Moment> {
        lost_at(self.lock()?, self.lease.as_ref()?, self.seen.as_ref()?)
    }

    /// Whether the holder counts as lost at `now`.
    #[must_use]
    pub fn loss(&self, now: Moment) -> Loss {
        match self.lost_at() {
            None => Loss::None,
            Some(at) if at <= now => Loss::Lost,
            Some(_) if self.lives => Loss::None,
            Some(_) => Loss::Unsure,
        }
    }

    fn holds_after_loss(&self) -> bool {
        self.lock()
            .is_some_and(|lock| lock.on_holder_lost == OnHolderLost::Hold)
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

    /// What the leader does at `now`.
    pub fn decide(&mut self, identity: &str, now: Moment, wall: WallMicros) -> OperatorMove {
        let todo = self.next_move(identity, now, wall);
        self.note_attempt(&todo);
        todo
    }

    /// Call it with each move that [`holds`](super::holds) asks for: what was read of the lock counts for one attempt to
    /// end a holder. If that is not answered, the next one is made by a new read.
    pub fn note_attempt(&mut self, todo: &OperatorMove) {
        let ends = match todo {
            OperatorMove::Finish { .. } => true,
            OperatorMove::Write { what, .. } => matches!(
                what,
                OperatorWrite::Expire | OperatorWrite::Revoke | OperatorWrite::End
            ),
            _ => false,
        };
        if let (true, Some((_, read))) = (ends, &mut self.lock) {
            *read = Moment::ZERO;
        }
    }

    fn next_move(&mut self, identity: &str, now: Moment, wall: WallMicros) -> OperatorMove {
        self.note_takeable(now);
        if self.lease.is_some() {
            self.note_limit(now);
        }
        let Some((lock, read)) = &self.lock else {
            return OperatorMove::ReadLock;
        };
        if lock.deleting {
            return wait(None);
        }
        let (Some(lease), Some(seen)) = (&self.lease, &self.seen) else {
            return if lock.is_surplus() {
                wait(None)
            } else {
                OperatorMove::Create(change::missing(lock, wall))
            };
        };
        match availability(lock, lease) {
            None => {}
            Some(Unavailable::NotOpened) if lock.is_surplus() => return wait(None),
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
        let stands = standing(lock, lease, seen, now);
        match stands {
            Standing::Revoked => {
                let reason = "its token is below minFencingToken";
                return revoke(lease, identity, reason, wall);
            }
            Standing::Expired => return self.expire(identity, wall),
            _ => {}
        }
        let outstays = self.outstays_at();
        if outstays.is_some_and(|at| now >= at) {
            // The limit may have been raised since.
            return if outstays.is_some_and(|at| *read >= at) {
                revoke(
                    lease,
                    identity,
                    "it was held for maxHoldSeconds and a lease",
                    wall,
                )
            } else {
                OperatorMove::ReadLock
            };
        }
        if is_unstamped_foreigner(lease)
            && let Some(record) = change::stamp(lock, lease, self.remembered)
        {
            return write(OperatorWrite::Stamp, record);
        }
        let expires = match stands {
            Standing::Held { until } => Some(until),
            _ => None,
        };
        let lost = self.lost_at().filter(|at| *at > now);
        wait([expires, outstays, lost].into_iter().flatten().min())
    }

    fn note_takeable(&mut self, now: Moment) {
        let offered = self.lock().is_some_and(|lock| !lock.is_surplus());
        // Where no token is left nobody can take: whoever is named is not passed over for that.
        let has_token = |(lock, lease)| next_token(lock, lease, self.remembered).is_some();
        let takeable = offered
            && self.standing(now).is_some_and(Standing::is_takeable)
            && self.lock().zip(self.lease()).is_some_and(has_token);
        self.takeable = takeable.then(|| self.takeable.unwrap_or(now));
    }

    /// When the holder, a client of ours, has held for as long as it may and one lease more: it has stopped itself,
    /// unless it does not keep to the limit. Of one that was set or lowered under it, it knows after a slow beat.
    ///
    /// Under `onHolderLost: Hold` only a holder that was seen to renew beyond its limit: one that fell silent is lost,
    /// which is for a person to judge.
    fn outstays_at(&self) -> Option<Moment> {
        let (lock, lease, (_, since)) = (self.lock()?, self.lease.as_ref()?, self.held.as_ref()?);
        let limit = Duration::from_secs(lock.max_hold_seconds?.into());
        let grant = lease.current_grant()?;
        if grant.hold != Hold::Heartbeat || !looks_like_ours(lease) {
            return None;
        }
        let duration = stored_duration(lock, lease);
        let seconds = u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
        let beat = Terms::fitting(seconds, Duration::ZERO).slow_beat();
        let known = self.limited.map(|at| at.saturating_add(beat));
        let over = since.saturating_add(limit).max(known.unwrap_or_default());
        let renewed_beyond = self.seen.as_ref()?.since() >= over;
        (lock.on_holder_lost == OnHolderLost::Release || renewed_beyond)
            .then(|| over.saturating_add(duration))
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
}

fn revoke(lease: &LeaseRecord, identity: &str, reason: &str, wall: WallMicros) -> OperatorMove {
    let record = change::end(lease, EndKind::Revoked, identity, reason, wall);
    write(OperatorWrite::Revoke, record)
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
