//! Holds that have no process of their own: Fixed (for a time) and Pod (while a Pod lives). The operator takes, keeps
//! and ends them for their claims.
//!
//! Guarantees: a claim is shown as over before the operator frees its Lease; a claim that was shown as granted is never
//! taken again; a Pod hold does not end by time; nothing here ends a hold that its claim still wants, other than by the
//! rules that end any hold ([`standing`](super::standing)).
//!
//! Limits: without an operator nothing is taken for these claims, and a Pod hold does not end. Under
//! `onHolderLost: Hold` time does not end a Fixed hold either.

use std::time::Duration;

use super::change::{self, NextChange, Requester};
use super::operator::{OperatorMove, OperatorWrite, wait, write};
use super::queue::Queue;
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSight {
    /// Its uid; `None` where there was none.
    pub uid: Option<String>,
    /// Whether all its containers have ended.
    pub ended: bool,
}

/// How far a claim has come, as its status shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    if !in_view
        && grant
            .as_ref()
            .is_none_or(|grant| grant.hold == Hold::Heartbeat)
    {
        return None;
    }
    let uid = lease.holder_uid()?;
    let end = |why: ClaimEnd| {
        // Its token belongs into the note, also where the annotation was dropped.
        let mut known = LeaseRecord::clone(lease);
        if let Some(grant) = &grant {
            known.grant = GrantNote::V1(grant.clone());
        }
        let what = match why.kind() {
            EndKind::Revoked => OperatorWrite::Revoke,
            EndKind::Expired => OperatorWrite::Expire,
            EndKind::Released | EndKind::Ended => OperatorWrite::End,
        };
        write(
            what,
            change::end(&known, why.kind(), identity, why.words(), wall),
        )
    };
    let claim = match holder {
        Holder::InView(claim) => claim,
        Holder::Unknown => return Some(OperatorMove::ReadHolder(uid.to_owned())),
        Holder::OutOfView => return Some(wait(Some(now + LOOK_AGAIN))),
        Holder::Gone => return Some(end(ClaimEnd::Released)),
    };
    let finish = |why: ClaimEnd| OperatorMove::Finish {
        claim: claim.claim.clone(),
        why,
    };
    let shown = match claim.state {
        ClaimState::Over(why) => return Some(end(why)),
        ClaimState::Deleting { shown: true } => return Some(finish(ClaimEnd::Released)),
        ClaimState::Deleting { shown: false } => return Some(end(ClaimEnd::Released)),
        ClaimState::Waiting => None,
        ClaimState::Granted {
            slot: number,
            token,
            seconds,
        } => {
            let this = grant
                .as_ref()
                .is_none_or(|grant| grant.token.get() == token);
            if number != lock.number || !this {
                // A take of this claim that nobody was told of: it has another.
                return Some(end(ClaimEnd::Unused));
            }
            Some(seconds)
        }
    };
    let Some(grant) = &grant else {
        return Some(match shown {
            // Nobody was told of this take, and its token is lost: it can be taken again, with another.
            None => end(ClaimEnd::Unused),
            // The claim is shown as over first, since the Lease does not tell of its grant any more.
            Some(_) => wait(None),
        });
    };
    let over = |why: ClaimEnd| {
        if shown.is_some() {
            finish(why)
        } else {
            end(why)
        }
    };
    match slot.standing {
        Standing::Revoked => return Some(over(ClaimEnd::Revoked)),
        // The lock is read again for each attempt, see `Keeper`.
        Standing::Expired if !slot.expired_when_read => return Some(OperatorMove::ReadLock),
        Standing::Expired => return Some(over(ClaimEnd::Expired)),
        _ => {}
    }
    if lease.current_grant().is_none() {
        return Some(write(OperatorWrite::Restore, change::restore(lease, grant)));
    }
    Some(match &claim.wish {
        Wish::Fixed { seconds } => keep_fixed(slot, *seconds, shown.flatten(), now, wall),
        Wish::Pod { .. } if grant.pod.as_ref().is_some_and(|pod| claim.has_lost(pod)) => {
            over(ClaimEnd::PodEnded)
        }
        Wish::Pod { .. } => {
            let most = lock
                .max_hold_seconds
                .map(|most| Duration::from_secs(most.into()));
            let ends = most.map(|most| slot.held_since + most);
            if let Some(ends) = ends.filter(|ends| now >= *ends) {
                // The limit may have been raised since.
                let confirmed = slot.lock_read >= ends;
                return Some(if confirmed {
                    over(ClaimEnd::MaxHold)
                } else {
                    OperatorMove::ReadLock
                });
            }
            let renew = slot.unchanged_since + RENEW_AFTER;
            if now >= renew {
                let record = change::prolong(lease, MAX_LEASE_SECONDS.unsigned_abs(), wall);
                write(OperatorWrite::Renew, record)
            } else {
                wait(Some(ends.map_or(renew, |ends| ends.min(renew))))
            }
        }
    })
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
    let status = lock.slot.as_ref()?;
    let hold = status.hold.filter(|hold| *hold != Hold::Heartbeat)?;
    let is_its_token = claimed.map_or(status.token >= slot.remembered, |own| own == status.token);
    (status.holder == lease.spec.holder && is_its_token).then_some(())?;
    Some(Grant {
        uid: lease.uid.clone(),
        transitions: lease.spec.transitions,
        token: FencingToken::new(status.token).ok()?,
        hold,
        pod: status.pod.clone(),
        holder: lease.spec.holder.clone(),
    })
}

/// What the operator does for the claim whose turn it is, if `claim` tells that it keeps the hold of that one, and some
/// slot is free: the number of that slot, and the move. `None`: nothing to take.
#[must_use]
pub fn take(
    slots: &[SlotSight<'_>],
    queue: &Queue,
    claim: impl Fn(&ClaimRef) -> Option<HoldClaim>,
    wall: WallMicros,
) -> Option<(u32, OperatorMove)> {
    let front = slots.iter().find(|slot| slot.lock.number == 0)?;
    let named = front.lease.next.as_ref();
    let turn = named.map_or_else(|| queue.first(), Some)?;
    let waits = queue.claims().iter().find(|claim| claim.claim == *turn)?;
    let claim = claim(turn)?;
    let pod = claim.living_pod();
    if waits.dead || claim.hold() == Hold::Pod && pod.is_none() {
        return None;
    }
    let free = slots
        .iter()
        .filter(|slot| !slot.lock.is_surplus() && slot.standing == Standing::Free);
    let slot = free.min_by_key(|slot| slot.lock.number)?;
    let number = slot.lock.number;
    if number > 0 && named.is_none() {
        // It is named first: a take of this slot does not touch the queue.
        return None;
    }
    if slot.lock_read < slot.lease_changed {
        return Some((number, OperatorMove::ReadLock));
    }
    let who = Requester {
        identity: claim.identity.clone(),
        hold: claim.hold(),
        pod,
        note: None,
        remembered: slot.remembered,
    };
    let next = match number {
        0 => NextChange::Set(queue.after(turn).cloned()),
        _ => NextChange::Keep,
    };
    let taken = change::take(slot.lock, slot.lease, slot.standing, &who, next, wall).ok()?;
    let mut record = taken.record;
    record.spec.duration_seconds = Some(i64::from(match claim.wish {
        Wish::Fixed { seconds } => granted(slot.lock, seconds),
        Wish::Pod { .. } => MAX_LEASE_SECONDS.unsigned_abs(),
    }));
    Some((number, write(OperatorWrite::Take, record)))
}

#[cfg(test)]
mod tests;
