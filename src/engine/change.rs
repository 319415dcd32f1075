//! The records that a guarded write may put in place of the one that was read.
//!
//! Each function takes the record as read and gives the whole record to write; the writer sends it guarded by the
//! uid and the resourceVersion in it. Each one changes something, so that a 2xx proves a write (R1).

use super::WallMicros;
use super::record::{
    ClaimRef, EndKind, Ended, Grant, GrantNote, Hold, LeaseRecord, PodRef, SpecRecord,
};
use super::standing::{LockView, Standing};
use super::token::{TokenChoice, next_token};
use crate::api::FencingToken;
use crate::api::names::HOLDER_MISSING;

/// Who asks for the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requester {
    /// `<claimant>/<uid>`: used for one grant only.
    pub identity: String,
    /// How it will keep the lock.
    pub hold: Hold,
    /// The Pod it runs in.
    pub pod: Option<PodRef>,
    /// The annotation `leasehold.dev/holder`, for people.
    pub note: Option<String>,
    /// The highest token of this lock that the requester has seen; 0 for none.
    pub remembered: i64,
}

impl Requester {
    /// One that beats itself, of which nothing else is known.
    #[must_use]
    pub fn heartbeat(identity: impl Into<String>) -> Self {
        Self {
            identity: identity.into(),
            hold: Hold::Heartbeat,
            pod: None,
            note: None,
            remembered: 0,
        }
    }
}

/// What a take does with `next`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NextChange {
    /// Leaves it as it is.
    Keep,
    /// Names another claim, or none.
    Set(Option<ClaimRef>),
}

/// A grant, ready to be written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Take {
    /// The record that the guarded write puts in place; it still carries the resourceVersion that it replaces.
    pub record: LeaseRecord,
    /// The grant as its annotation tells it.
    pub grant: Grant,
    /// Whether the token is ahead of the revision.
    pub ahead_of_revision: bool,
}

/// Why no take can be made from a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeRefused {
    /// The Lease is not to be had.
    #[error("the lease is not takeable")]
    NotTakeable,
    /// No token below 2^53 is left.
    #[error("no fencing token below 2^53 is left: make a new lock under another name")]
    NoTokenLeft,
}

/// The grant that replaces `lease`, which stands as `standing` says. `next` counts for slot 0 only.
pub fn take(
    lock: &LockView,
    lease: &LeaseRecord,
    standing: Standing,
    who: &Requester,
    next: NextChange,
    now: WallMicros,
) -> Result<Take, TakeRefused> {
    if !standing.is_takeable() {
        return Err(TakeRefused::NotTakeable);
    }
    let TokenChoice {
        token,
        ahead_of_revision,
    } = next_token(lock, lease, who.remembered).ok_or(TakeRefused::NoTokenLeft)?;
    let transitions = if lease.spec.transitions >= i64::from(i32::MAX) {
        0
    } else {
        lease.spec.transitions + 1
    };
    let grant = Grant {
        uid: lease.uid.clone(),
        transitions,
        token,
        hold: who.hold,
        pod: who.pod.clone(),
        holder: who.identity.clone(),
    };
    let now = later(now, lease.spec.renew_time);
    let mut record = lease.clone();
    if !lease.is_free() {
        let (kind, reason) = match standing {
            Standing::Revoked => (EndKind::Revoked, "its token is below minFencingToken"),
            _ => (EndKind::Expired, "its lease ended without a renewal"),
        };
        record.ended = Some(end_note(lease, kind, &who.identity, reason));
    }
    record.spec.holder.clone_from(&who.identity);
    record.spec.transitions = transitions;
    record.spec.duration_seconds = Some(i64::from(lock.granted_seconds()));
    record.spec.acquire_time = Some(now);
    record.spec.renew_time = Some(now);
    record.grant = GrantNote::V1(grant.clone());
    record.holder_note.clone_from(&who.note);
    match next {
        // The queue stands on slot 0's Lease. What stands on another settled a take, and is of no more use.
        _ if lock.number > 0 => record.next = None,
        NextChange::Set(next) => record.next = next,
        NextChange::Keep => {}
    }
    Ok(Take {
        record,
        grant,
        ahead_of_revision,
    })
}

/// The renewal of `grant`, which `lease` shows as its own. Puts the annotation back where it is gone or altered.
#[must_use]
pub fn renew(lock: &LockView, lease: &LeaseRecord, grant: &Grant, now: WallMicros) -> LeaseRecord {
    let mut record = lease.clone();
    record.spec.renew_time = Some(later(now, lease.spec.renew_time));
    record.spec.duration_seconds = Some(i64::from(lock.granted_seconds()));
    if lease.current_grant() != Some(grant) {
        record.grant = GrantNote::V1(grant.clone());
    }
    record
}

/// The renewal of a hold that the operator keeps: it lasts for `seconds` from now.
#[must_use]
pub fn prolong(lease: &LeaseRecord, seconds: u32, now: WallMicros) -> LeaseRecord {
    let mut record = lease.clone();
    record.spec.renew_time = Some(later(now, lease.spec.renew_time));
    record.spec.duration_seconds = Some(i64::from(seconds));
    record
}

/// The return of an annotation that was dropped by hand; spec stays as it is.
#[must_use]
pub fn restore(lease: &LeaseRecord, grant: &Grant) -> LeaseRecord {
    LeaseRecord {
        grant: GrantNote::V1(grant.clone()),
        ..lease.clone()
    }
}

/// The end of the present holder's grant: the Lease is free, and says how that came about.
#[must_use]
pub fn end(
    lease: &LeaseRecord,
    kind: EndKind,
    by: &str,
    reason: &str,
    now: WallMicros,
) -> LeaseRecord {
    let mut record = lease.clone();
    record.ended = Some(end_note(lease, kind, by, reason));
    free_spec(&mut record.spec, now);
    record.holder_note = None;
    record
}

/// The release of `grant` by its holder.
#[must_use]
pub fn release(lease: &LeaseRecord, grant: &Grant, reason: &str, now: WallMicros) -> LeaseRecord {
    let mut record = end(lease, EndKind::Released, &grant.holder, reason, now);
    // The holder knows its token even where the annotation was dropped; the next grant must stay above it.
    if let Some(ended) = &mut record.ended {
        ended.token = grant.token.get();
    }
    record
}

/// The freeing of a `missing` that hides nothing: no grant ends with it.
#[must_use]
pub fn open(lease: &LeaseRecord, now: WallMicros) -> LeaseRecord {
    let mut record = lease.clone();
    free_spec(&mut record.spec, now);
    record
}

/// The naming of whose turn it is; `None` for nobody's.
#[must_use]
pub fn name(lease: &LeaseRecord, next: Option<ClaimRef>) -> LeaseRecord {
    LeaseRecord {
        next,
        ..lease.clone()
    }
}

/// Tells how many slots may be taken, so that whoever is named learns of new ones.
#[must_use]
pub fn tell_slots(lease: &LeaseRecord, slots: u32) -> LeaseRecord {
    LeaseRecord {
        slots: Some(slots),
        ..lease.clone()
    }
}

/// The stamp that gives a foreign holder its token; spec stays as it is. `None` when no token is left.
#[must_use]
pub fn stamp(lock: &LockView, lease: &LeaseRecord, remembered: i64) -> Option<LeaseRecord> {
    let TokenChoice {
        token,
        ahead_of_revision: _,
    } = next_token(lock, lease, remembered)?;
    let grant = Grant {
        uid: lease.uid.clone(),
        transitions: lease.spec.transitions,
        token,
        hold: Hold::Heartbeat,
        pod: None,
        holder: lease.spec.holder.clone(),
    };
    Some(LeaseRecord {
        grant: GrantNote::V1(grant),
        ..lease.clone()
    })
}

/// The spec with which a Lease is made: held, since a create can't be guarded and a late one after a deletion must
/// not look free.
#[must_use]
pub fn missing(lock: &LockView, now: WallMicros) -> SpecRecord {
    SpecRecord {
        holder: HOLDER_MISSING.to_owned(),
        duration_seconds: Some(i64::from(
            lock.duration_seconds.max(lock.longest_seconds.unwrap_or(0)),
        )),
        transitions: 0,
        acquire_time: Some(now),
        renew_time: Some(now),
        rest: String::new(),
    }
}

/// `now`, but later than `old`: a write must change something even when the clock stands still.
fn later(now: WallMicros, old: Option<WallMicros>) -> WallMicros {
    old.map_or(now, |old| now.max(old.saturating_add(1)))
}

/// An empty holder with a duration of 1, as client-go leaves it; transitions stay.
fn free_spec(spec: &mut SpecRecord, now: WallMicros) {
    spec.holder.clear();
    spec.duration_seconds = Some(1);
    spec.renew_time = Some(later(now, spec.renew_time));
}

fn end_note(lease: &LeaseRecord, kind: EndKind, by: &str, reason: &str) -> Ended {
    Ended {
        uid: lease.uid.clone(),
        transitions: lease.spec.transitions,
        token: lease.current_token().map_or(0, FencingToken::get),
        kind,
        by: by.to_owned(),
        reason: reason.to_owned(),
    }
}
