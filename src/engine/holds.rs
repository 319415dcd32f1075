//! Holds that have no process of their own: Fixed (for a time) and Pod (while a Pod lives). The operator takes, keeps
//! and ends them for their claims.
//!
//! Guarantees: a claim is shown as over before the operator frees its Lease; a claim that was shown as granted is never
//! taken again; a Pod hold does not end by time; nothing here ends a hold that its claim still wants, other than by the
//! rules that end any hold ([`standing`](super::standing)).
//!
//! Limits: without an operator nothing is taken for these claims, and a Pod hold does not end. Under
//! `onHolderLost: Hold` time does not end a Fixed hold either.

mod proven;
mod takes;

use std::time::Duration;

pub use self::proven::end_proven;
pub(super) use self::takes::take;
use super::change;
use super::operator::{OperatorMove, OperatorWrite, wait, write};
use super::record::{ClaimRef, EndKind, Grant, GrantNote, Hold, LeaseRecord, PodRef};
use super::standing::{LockView, Standing, availability};
use super::{Moment, WallMicros};
use crate::api::FencingToken;
use crate::api::names::MAX_LEASE_SECONDS;

/// How often a Pod hold is renewed: a third of what it stores, so that observers see it alive.
const RENEW_AFTER: Duration = Duration::from_secs(MAX_LEASE_SECONDS as u64 / 3);
/// How long a claim that a read has shown may take to come into view.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A claim whose hold the operator keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HoldClaim {
    /// Name and uid.
    pub claim: ClaimRef,
    /// `<claimant>/<uid>`.
    pub identity: String,
    /// How long it wants to hold.
    pub wish: Wish,
    /// How far it has come.
    pub state: ClaimState,
}

/// How long a claim wants to hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// For a time.
    Fixed {
        /// So many seconds.
        seconds: u32,
    },
    /// While a Pod lives.
    Pod {
        /// Its name.
        name: String,
        /// Its uid; `None` for that of the Pod that is there at the grant.
        uid: Option<String>,
        /// What is known of the Pod of that name; `None` while it was not read.
        sight: Option<PodSight>,
    },
}

/// What was read of the Pod of a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodSight {
    /// Its uid; `None` where there was none.
    pub uid: Option<String>,
    /// Whether all its containers have ended.
    pub ended: bool,
}

/// How far a claim has come, as its status shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimState {
    /// It waits, or nobody was told yet that it holds.
    Waiting,
    /// It is shown as granted.
    Granted {
        /// The slot.
        slot: u32,
        /// The token.
        token: i64,
        /// For how many seconds, where it ends by itself.
        seconds: Option<u32>,
    },
    /// It is over, in this way.
    Over(ClaimEnd),
    /// It is being deleted; `shown` says whether it is shown as granted.
    Deleting {
        /// Whether its status still says that it holds.
        shown: bool,
    },
}

/// How the hold of a claim ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimEnd {
    /// The claim was deleted.
    Released,
    /// Its Pod has ended or is gone.
    PodEnded,
    /// Its time is over.
    Expired,
    /// Its token is below the floor, or somebody took it away.
    Revoked,
    /// It was held for `maxHoldSeconds`.
    MaxHold,
    /// The claim was over before anybody was told that it holds.
    Unused,
}

impl ClaimEnd {
    /// The word for it on the Lease.
    #[must_use]
    pub fn kind(self) -> EndKind {
        match self {
            ClaimEnd::Released | ClaimEnd::Unused => EndKind::Released,
            ClaimEnd::PodEnded => EndKind::Ended,
            ClaimEnd::Expired => EndKind::Expired,
            ClaimEnd::Revoked | ClaimEnd::MaxHold => EndKind::Revoked,
        }
    }

    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            ClaimEnd::Released => "its claim was deleted",
            ClaimEnd::PodEnded => "its Pod has ended",
            ClaimEnd::Expired => "its time was over",
            ClaimEnd::Revoked => "it was revoked",
            ClaimEnd::MaxHold => "it was held for maxHoldSeconds",
            ClaimEnd::Unused => "its claim was over before anybody was told of it",
        }
    }
}

/// What the operator knows of the claim behind a holder.
#[derive(Clone, Copy, Debug)]
pub enum Holder<'a> {
    /// It is in view.
    InView(&'a HoldClaim),
    /// It is not in view, and may be there all the same.
    Unknown,
    /// It was read not long ago and is there, only not in view yet.
    OutOfView,
    /// There is no such claim any more.
    Gone,
}

/// One slot, as its keeper sees it.
#[derive(Clone, Debug)]
pub struct SlotSight<'a> {
    /// The lock, for this slot.
    pub lock: &'a LockView,
    /// The moment before that was read.
    pub lock_read: Moment,
    /// Its Lease.
    pub lease: &'a LeaseRecord,
    /// When that was last seen to change in whatever.
    pub lease_changed: Moment,
    /// How it stands.
    pub standing: Standing,
    /// Whether it stood as expired already when the lock was read.
    pub expired_when_read: bool,
    /// Since when its spec is seen unchanged.
    pub unchanged_since: Moment,
    /// Since when its present grant is seen.
    pub held_since: Moment,
    /// For how many seconds this replica has prolonged that grant.
    pub prolonged_to: Option<u32>,
    /// The highest token of the slot that was seen.
    pub remembered: i64,
}

impl HoldClaim {
    /// The Pod whose life the hold would follow, where it is there and lives; `None` also for other holds.
    #[must_use]
    pub fn living_pod(&self) -> Option<PodRef> {
        let Wish::Pod { name, uid, sight } = &self.wish else {
            return None;
        };
        let sight = sight.as_ref().filter(|sight| !sight.ended)?;
        let there = sight.uid.clone()?;
        uid.as_ref()
            .is_none_or(|uid| *uid == there)
            .then(|| PodRef {
                name: name.clone(),
                uid: there,
            })
    }

    /// Whether its Pod is known not to be there: it has to wait for it, and is skipped meanwhile.
    #[must_use]
    pub fn lacks_its_pod(&self) -> bool {
        matches!(&self.wish, Wish::Pod { sight: Some(_), .. }) && self.living_pod().is_none()
    }

    /// Whether the Pod that its grant is bound to has ended or is gone.
    fn has_lost(&self, bound: &PodRef) -> bool {
        let Wish::Pod {
            sight: Some(sight), ..
        } = &self.wish
        else {
            return false;
        };
        sight.ended || sight.uid.as_ref() != Some(&bound.uid)
    }

    fn finish(&self, why: ClaimEnd) -> OperatorMove {
        OperatorMove::Finish {
            claim: self.claim.clone(),
            why,
        }
    }

    fn seconds_shown(&self) -> Option<u32> {
        match self.state {
            ClaimState::Granted { seconds, .. } => seconds,
            _ => None,
        }
    }

    fn token_shown(&self) -> Option<i64> {
        match self.state {
            ClaimState::Granted { token, .. } => Some(token),
            _ => None,
        }
    }

    fn hold(&self) -> Hold {
        match self.wish {
            Wish::Fixed { .. } => Hold::Fixed,
            Wish::Pod { .. } => Hold::Pod,
        }
    }
}

/// For how many seconds a claim that wants `seconds` is granted: no longer than `maxHoldSeconds`.
fn granted(lock: &LockView, seconds: u32) -> u32 {
    let most = lock.max_hold_seconds.unwrap_or(u32::MAX);
    seconds.min(most).clamp(1, MAX_LEASE_SECONDS.unsigned_abs())
}

/// What the operator does about a slot that is held for a Fixed or Pod claim; `None` where it is not: then the keeper
/// decides.
#[must_use]
pub fn keep(
    slot: &SlotSight<'_>,
    holder: Holder<'_>,
    identity: &str,
    now: Moment,
    wall: WallMicros,
) -> Option<OperatorMove> {
    let SlotSight { lock, lease, .. } = slot;
    if lease.is_free() || lease.is_missing() || availability(lock, lease).is_some() {
        return None;
    }
    let claimed = match holder {
        Holder::InView(claim) => claim.token_shown(),
        _ => None,
    };
    let grant = shown_grant(slot, claimed);
    let in_view = matches!(holder, Holder::InView(_));
    let hold = grant
        .as_ref()
        .map_or_else(|| hold_shown(slot), |grant| Some(grant.hold));
    if !in_view && hold.is_none_or(|hold| hold == Hold::Heartbeat) {
        return None;
    }
    let uid = lease.holder_uid()?;
    let end = |why| end(slot, grant.as_ref(), why, identity, wall);
    let claim = match holder {
        Holder::InView(claim) => claim,
        Holder::Unknown => return Some(OperatorMove::ReadHolder(uid.to_owned())),
        Holder::OutOfView => return Some(wait(Some(now + LOOK_AGAIN))),
        Holder::Gone => return Some(end(ClaimEnd::Released)),
    };
    match claim.state {
        ClaimState::Over(why) => Some(end(why)),
        ClaimState::Deleting { shown: true } => Some(claim.finish(ClaimEnd::Released)),
        ClaimState::Deleting { shown: false } => Some(end(ClaimEnd::Released)),
        // A take of this claim that nobody was told of: it has another.
        ClaimState::Granted { slot: number, .. } if number != lock.number => {
            Some(end(ClaimEnd::Unused))
        }
        // The grant that it is shown with was of this slot, and is over, or its token was altered by hand: the claim is
        // shown as over first.
        ClaimState::Granted { token, .. }
            if grant.as_ref().is_some_and(|g| g.token.get() != token) =>
        {
            Some(wait(None))
        }
        _ => Some(match &grant {
            Some(grant) => keep_grant(slot, claim, grant, identity, now, wall),
            // Nobody was told of this take, and its token is lost: it can be taken again, with another.
            None if claim.state == ClaimState::Waiting => end(ClaimEnd::Unused),
            // The claim is shown as over first, since the Lease does not tell of its grant any more.
            None => wait(None),
        }),
    }
}

/// The end of the grant: its token belongs into the note, also where the annotation was dropped.
fn end(
    slot: &SlotSight<'_>,
    grant: Option<&Grant>,
    why: ClaimEnd,
    identity: &str,
    wall: WallMicros,
) -> OperatorMove {
    let mut known = slot.lease.clone();
    if let Some(grant) = grant {
        known.grant = GrantNote::V1(grant.clone());
    }
    let kind = why.kind();
    let what = match kind {
        EndKind::Revoked => OperatorWrite::Revoke,
        EndKind::Expired => OperatorWrite::Expire,
        EndKind::Released | EndKind::Ended => OperatorWrite::End,
    };
    write(what, change::end(&known, kind, identity, why.words(), wall))
}

/// The same for the grant of a claim that goes on wanting it.
fn keep_grant(
    slot: &SlotSight<'_>,
    claim: &HoldClaim,
    grant: &Grant,
    identity: &str,
    now: Moment,
    wall: WallMicros,
) -> OperatorMove {
    let shown = matches!(claim.state, ClaimState::Granted { .. });
    let over = |why| {
        if shown {
            claim.finish(why)
        } else {
            end(slot, Some(grant), why, identity, wall)
        }
    };
    match slot.standing {
        Standing::Revoked => return over(ClaimEnd::Revoked),
        // The lock is read again for each attempt, see `Keeper`.
        Standing::Expired if !slot.expired_when_read => return OperatorMove::ReadLock,
        Standing::Expired => return over(ClaimEnd::Expired),
        _ => {}
    }
    if slot.lease.current_grant().is_none() {
        let record = change::restore(slot.lease, grant);
        return write(OperatorWrite::Restore, record);
    }
    if let Wish::Fixed { seconds } = claim.wish {
        return keep_fixed(slot, seconds, claim.seconds_shown(), now, wall);
    }
    if grant.pod.as_ref().is_some_and(|pod| claim.has_lost(pod)) {
        return over(ClaimEnd::PodEnded);
    }
    let most = slot.lock.max_hold_seconds;
    let ends = most.map(|most| slot.held_since + Duration::from_secs(most.into()));
    match ends.filter(|ends| now >= *ends) {
        // The limit may have been raised since.
        Some(ends) if slot.lock_read < ends => return OperatorMove::ReadLock,
        Some(_) => return over(ClaimEnd::MaxHold),
        None => {}
    }
    let renew = slot.unchanged_since + RENEW_AFTER;
    if now >= renew {
        let record = change::prolong(slot.lease, MAX_LEASE_SECONDS.unsigned_abs(), wall);
        return write(OperatorWrite::Renew, record);
    }
    wait(Some(ends.map_or(renew, |ends| ends.min(renew))))
}

/// A claim whose seconds were raised is prolonged: by what is left of them, as far as this replica has itself seen the
/// grant last. One that began to look later sees less of it, and ends the hold later, never earlier.
fn keep_fixed(
    slot: &SlotSight<'_>,
    seconds: u32,
    shown: Option<u32>,
    now: Moment,
    wall: WallMicros,
) -> OperatorMove {
    let until = match slot.standing {
        Standing::Held { until } => Some(until),
        _ => None,
    };
    let total = granted(slot.lock, seconds);
    let known = shown.map(|shown| shown.max(slot.prolonged_to.unwrap_or(0)));
    if known.is_none_or(|known| total <= known) {
        return wait(until);
    }
    let seen = now.saturating_sub(slot.held_since).as_secs();
    let left = u64::from(total).saturating_sub(seen);
    match u32::try_from(left) {
        Ok(left) if left > 0 => OperatorMove::Prolong {
            record: Box::new(change::prolong(slot.lease, left, wall)),
            total,
        },
        _ => wait(until),
    }
}

/// The grant that the Lease shows; where its annotation was dropped by hand, what the lock's status still knows of it:
/// if its claim is shown as granted with that token too, or no later one was seen since.
fn shown_grant(slot: &SlotSight<'_>, claimed: Option<i64>) -> Option<Grant> {
    let SlotSight { lock, lease, .. } = slot;
    if let Some(grant) = lease.current_grant() {
        return Some(grant.clone());
    }
    let hold = hold_shown(slot).filter(|hold| *hold != Hold::Heartbeat)?;
    let status = lock.slot.as_ref()?;
    let is_its_token = claimed.map_or(status.token >= slot.remembered, |own| own == status.token);
    is_its_token.then_some(())?;
    Some(Grant {
        uid: lease.uid.clone(),
        transitions: lease.spec.transitions,
        token: FencingToken::new(status.token).ok()?,
        hold,
        pod: status.pod.clone(),
        holder: lease.spec.holder.clone(),
    })
}

/// How the holder keeps it, as status shows.
fn hold_shown(slot: &SlotSight<'_>) -> Option<Hold> {
    let status = slot.lock.slot.as_ref()?;
    status
        .hold
        .filter(|_| status.holder == slot.lease.spec.holder)
}

#[cfg(test)]
mod tests;
