//! How a Lease stands towards somebody who wants it (R3), judged by what this very writer observed.

use std::time::Duration;

use super::Moment;
use super::queue::QueueOrder;
use super::record::{GrantNote, Hold, LeaseRecord, PodRef, SpecRecord};
use crate::api::names::MAX_LEASE_SECONDS;

/// What happens to a lock whose holder fell silent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnHolderLost {
    /// It is free for the next one.
    #[default]
    Release,
    /// It stays locked until somebody revokes it.
    Hold,
}

/// The slot's entry in the lock's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotView {
    /// The last token that status shows; 0 for none yet.
    pub token: i64,
    /// The holder that status shows; empty for none.
    pub holder: String,
    /// How that holder keeps it.
    pub hold: Option<Hold>,
    /// The Pod of that holder.
    pub pod: Option<PodRef>,
    /// The lease duration of the slot's last grant, unless its claim's final phase is written already.
    pub duration_seconds: Option<u32>,
}

/// What the rules need to know of a `DistributedLock`, for one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockView {
    /// Name of the lock.
    pub name: String,
    /// uid of the lock.
    pub uid: String,
    /// The slot that this view is of.
    pub number: u32,
    /// `spec.maxHolders`: how many slots may be taken.
    pub max_holders: u32,
    /// `spec.queue.policy`.
    pub order: QueueOrder,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// `spec.leaseDurationSeconds`.
    pub duration_seconds: u32,
    /// `spec.lockDelaySeconds`.
    pub lock_delay_seconds: u32,
    /// `spec.maxHoldSeconds`.
    pub max_hold_seconds: Option<u32>,
    /// `spec.onHolderLost`.
    pub on_holder_lost: OnHolderLost,
    /// `spec.minFencingToken`, or the slot's.
    pub min_token: Option<i64>,
    /// Whether `spec.leaseName` names another client's Lease.
    pub adopts: bool,
    /// `status.longestLeaseDurationSeconds`: no Heartbeat write stores more.
    pub longest_seconds: Option<u32>,
    /// The slot's entry in status: until there is one, nobody takes, expires or revokes it.
    pub slot: Option<SlotView>,
}

impl LockView {
    /// Whether the slot lies above `maxHolders`: its Lease is kept, its holder is evicted by nobody, and nobody takes
    /// it again.
    #[must_use]
    pub fn is_surplus(&self) -> bool {
        self.number >= self.max_holders.max(1)
    }

    /// The duration that a Heartbeat take or renewal stores: the lock's, but no more than status shows.
    #[must_use]
    pub fn granted_seconds(&self) -> u32 {
        self.longest_seconds
            .map_or(self.duration_seconds, |longest| {
                longest.min(self.duration_seconds)
            })
            .max(1)
    }
}

/// Where a record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    /// The next event of an unbroken watch: nothing was missed in between.
    Watched,
    /// A get or a list: states in between may have been missed.
    Read,
}

/// Since when this observer has seen a Lease's uid and spec unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    uid: String,
    resource_version: u64,
    spec: SpecRecord,
    since: Moment,
}

impl Observation {
    /// The first sight of a Lease.
    #[must_use]
    pub fn first(lease: &LeaseRecord, now: Moment) -> Self {
        Self {
            uid: lease.uid.clone(),
            resource_version: lease.resource_version,
            spec: lease.spec.clone(),
            since: now,
        }
    }

    /// Takes note of `lease`. Any change of spec starts the clock again, and so does a read whose resourceVersion
    /// differs, since changes there and back may have been missed. An edit of annotations seen by watch does not.
    pub fn note(&mut self, lease: &LeaseRecord, seen: Seen, now: Moment) {
        let missed = seen == Seen::Read && lease.resource_version != self.resource_version;
        if missed || lease.uid != self.uid || lease.spec != self.spec {
            *self = Self::first(lease, now);
        } else {
            self.resource_version = lease.resource_version;
        }
    }

    /// Takes note of a write of the observer's own that changed annotations only: it missed nothing in between,
    /// since the write was guarded by the record that it had seen.
    pub fn note_own_write(&mut self, lease: &LeaseRecord, now: Moment) {
        self.note(lease, Seen::Watched, now);
    }

    /// Since when.
    #[must_use]
    pub fn since(&self) -> Moment {
        self.since
    }

    /// Whether it speaks of this record.
    #[must_use]
    pub fn is_of(&self, lease: &LeaseRecord) -> bool {
        self.uid == lease.uid
            && self.resource_version == lease.resource_version
            && self.spec == lease.spec
    }
}

/// Why a Lease can't be taken, expired or revoked, whatever its holder does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unavailable {
    /// Status has no entry for the slot yet: the operator has not opened the lock.
    NotOpened,
    /// The Lease belongs to an earlier lock of the same name and waits for the garbage collector.
    OtherLock,
    /// The Lease, or the lock, is being deleted.
    Deleting,
    /// The Lease is not ours (no label, no consent): `LeaseConflict`.
    NotOurs,
    /// Its grant was written by a newer version: upgrade.
    NewerVersion,
}

/// How a Lease stands towards a writer who would replace its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// No holder.
    Free,
    /// The holder was silent for the whole of its lease, seen by this writer.
    Expired,
    /// The holder's token is below the lock's `minFencingToken`.
    Revoked,
    /// Held; this writer may call it expired at that moment, if nothing changes until then.
    Held {
        /// The earliest moment.
        until: Moment,
    },
    /// Held, and time alone does not end it (a Pod hold, `onHolderLost: Hold`).
    HeldWithoutEnd,
    /// Not to be touched.
    Unavailable(Unavailable),
}

impl Standing {
    /// Whether a take may replace what is there.
    #[must_use]
    pub fn is_takeable(self) -> bool {
        matches!(self, Standing::Free | Standing::Expired | Standing::Revoked)
    }
}

/// Whether the Lease is the lock's own to use.
#[must_use]
pub fn availability(lock: &LockView, lease: &LeaseRecord) -> Option<Unavailable> {
    if lock.deleting || lease.deleting {
        return Some(Unavailable::Deleting);
    }
    if lease
        .owners
        .iter()
        .any(|(name, uid)| *name == lock.name && *uid != lock.uid)
    {
        return Some(Unavailable::OtherLock);
    }
    let consents = lease.shared_with.as_deref() == Some(&lock.name);
    let ours = lease.lock_label.as_deref() == Some(&lock.name);
    if (lock.adopts && !consents) || (!lock.adopts && !ours) {
        return Some(Unavailable::NotOurs);
    }
    if matches!(lease.grant, GrantNote::Unknown(_)) {
        return Some(Unavailable::NewerVersion);
    }
    // Without the longest duration a `missing` could be called expired too early.
    if lock.slot.is_none() || lock.longest_seconds.is_none() {
        return Some(Unavailable::NotOpened);
    }
    None
}

/// How `lease` stands, for a writer that has `seen` it and whose clock shows `now`.
///
/// Before it acts on `Expired`, the writer reads the lock again and asks once more: Hold may be new, and for a
/// `missing` the longest duration may have risen.
#[must_use]
pub fn standing(lock: &LockView, lease: &LeaseRecord, seen: &Observation, now: Moment) -> Standing {
    if let Some(why) = availability(lock, lease) {
        return Standing::Unavailable(why);
    }
    if lease.is_free() {
        return Standing::Free;
    }
    if is_revoked(lock, lease) {
        return Standing::Revoked;
    }
    if lock.on_holder_lost == OnHolderLost::Hold || is_pod_hold(lock, lease) {
        return Standing::HeldWithoutEnd;
    }
    let until = seen.since().saturating_add(silence_needed(lock, lease));
    if seen.is_of(lease) && now >= until {
        Standing::Expired
    } else {
        Standing::Held { until }
    }
}

/// When a holder that `onHolderLost: Hold` protects counts as lost, if nothing changes until then: it was silent for
/// as long as would end it under Release. `None` where time says nothing of that kind: nobody holds it, a `missing`
/// stands in, or a Pod or a number of seconds ends it.
#[must_use]
pub fn lost_at(lock: &LockView, lease: &LeaseRecord, seen: &Observation) -> Option<Moment> {
    let protected = lock.on_holder_lost == OnHolderLost::Hold
        && availability(lock, lease).is_none()
        && !lease.is_free()
        && !lease.is_missing()
        && !is_revoked(lock, lease)
        && !is_pod_hold(lock, lease)
        && lease
            .current_grant()
            .is_none_or(|grant| grant.hold == Hold::Heartbeat);
    protected.then(|| seen.since().saturating_add(silence_needed(lock, lease)))
}

/// How long a holder must have been silent at least, without the lock delay: the duration that it stored.
#[must_use]
pub fn stored_duration(lock: &LockView, lease: &LeaseRecord) -> Duration {
    let stored = lease
        .spec
        .duration_seconds
        .and_then(|seconds| u32::try_from(seconds).ok())
        .filter(|seconds| *seconds > 0);
    let seconds = stored.unwrap_or(lock.duration_seconds);
    // One forged value must not pin a lock for 68 years.
    Duration::from_secs(u64::from(seconds.min(MAX_LEASE_SECONDS.unsigned_abs())))
}

/// Whether the holder's token is below the floor. A holder without a token is below none; a `missing` may hide any
/// grant up to the revision that made it, so only a floor at or above its revision ends it.
fn is_revoked(lock: &LockView, lease: &LeaseRecord) -> bool {
    let Some(floor) = lock.min_token else {
        return false;
    };
    if lease.is_missing() {
        return floor >= missing_floor(lock, lease);
    }
    lease
        .current_token()
        .is_some_and(|token| token.get() < floor)
}

/// The lowest `minFencingToken` that ends a `missing`: above every token that it may hide. Each of those is below its
/// revision, unless it was ahead of the revision; then status or an annotation knows it.
#[must_use]
pub fn missing_floor(lock: &LockView, lease: &LeaseRecord) -> i64 {
    let shown = lock.slot.as_ref().map_or(0, |slot| slot.token);
    let known = shown.max(lease.last_token()).saturating_add(1);
    i64::try_from(lease.resource_version)
        .unwrap_or(i64::MAX)
        .max(known)
}

/// A Pod hold never ends by time; status still knows it when the annotation was dropped by hand.
fn is_pod_hold(lock: &LockView, lease: &LeaseRecord) -> bool {
    let noted = lease
        .current_grant()
        .is_some_and(|grant| grant.hold == Hold::Pod);
    let mirrored = lock
        .slot
        .as_ref()
        .is_some_and(|slot| slot.hold == Some(Hold::Pod) && slot.holder == lease.spec.holder);
    noted || mirrored
}

/// How long a holder must have been silent: the duration it stored (the lock's where it stored none), never today's
/// spec of the lock; for a `missing` the longest that it may hide. Plus the lock delay.
fn silence_needed(lock: &LockView, lease: &LeaseRecord) -> Duration {
    let mut silence = stored_duration(lock, lease);
    if lease.is_missing() {
        let hidden = lock.slot.as_ref().and_then(|slot| slot.duration_seconds);
        let others = [Some(lock.duration_seconds), hidden, lock.longest_seconds];
        let longest = others.into_iter().flatten().max().unwrap_or(0);
        let longest = longest.min(MAX_LEASE_SECONDS.unsigned_abs());
        silence = silence.max(Duration::from_secs(longest.into()));
    }
    silence + Duration::from_secs(lock.lock_delay_seconds.into())
}
