//! What a claimant knows of each slot's Lease, and of the claims.

use crate::engine::Moment;
use crate::engine::queue::ClaimView;
use crate::engine::record::{ClaimRef, GrantNote, LeaseRecord};
use crate::engine::standing::{LockView, Observation, Seen, Standing, standing};

/// Something that is read from the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Known<T> {
    #[default]
    Unread,
    Absent,
    Present(T),
}

impl<T> Known<T> {
    pub(super) fn value(&self) -> Option<&T> {
        match self {
            Known::Present(value) => Some(value),
            _ => None,
        }
    }
}

/// One slot's Lease as this claimant saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sight {
    pub(super) lease: Known<LeaseRecord>,
    pub(super) seen: Option<Observation>,
    pub(super) must_read: bool,
    /// Whether the Lease has changed, or gone, since the lock was read.
    pub(super) lock_is_older: bool,
    /// The highest token of this slot that was ever seen here.
    pub(super) remembered: i64,
}

/// What a sight changed.
pub(super) struct Change {
    /// Another holder, duration, or Lease: whatever was takeable was taken, or held, in between.
    pub(super) spec: bool,
    /// Another's turn.
    pub(super) next: bool,
}

impl Sight {
    /// An older state than the one known is passed over when it comes by watch, and a deletion, which may be that of an
    /// earlier Lease, is looked into; a read always counts.
    pub(super) fn note(&mut self, lease: Option<LeaseRecord>, seen: Seen, now: Moment) -> Change {
        let mut change = Change {
            spec: false,
            next: false,
        };
        if let (Some(known), Some(lease), Seen::Watched) = (self.lease.value(), &lease, seen)
            && lease.resource_version <= known.resource_version
        {
            return change;
        }
        self.must_read = seen == Seen::Watched && (self.must_read || lease.is_none());
        let known = self.lease.value();
        let Some(lease) = lease else {
            if seen == Seen::Read {
                self.lock_is_older |= !matches!(self.lease, Known::Absent);
                change = Change {
                    spec: true,
                    next: known.is_some_and(|known| known.next.is_some()),
                };
                self.lease = Known::Absent;
                self.seen = None;
            }
            return change;
        };
        self.lock_is_older |=
            known.is_none_or(|known| known.resource_version != lease.resource_version);
        change.next = known.is_none_or(|known| known.next != lease.next);
        let other = known.map(|known| known.uid != lease.uid || known.spec != lease.spec);
        let since = self.seen.as_ref().map(Observation::since);
        match &mut self.seen {
            Some(observation) => observation.note(&lease, seen, now),
            None => self.seen = Some(Observation::first(&lease, now)),
        }
        // Of one that was not looked at for a while the observation tells.
        change.spec = other.unwrap_or_else(|| self.seen.as_ref().map(Observation::since) != since);
        self.remembered = self.remembered.max(lease.last_token());
        self.lease = Known::Present(lease);
        change
    }

    /// How the Lease stands; `None` where it was not read, or is not there.
    pub(super) fn standing(&self, lock: &LockView, now: Moment) -> Option<Standing> {
        Some(standing(
            lock,
            self.lease.value()?,
            self.seen.as_ref()?,
            now,
        ))
    }

    /// Whether `identity` holds the slot, or held it last.
    pub(super) fn shows(&self, identity: &str) -> bool {
        self.lease.value().is_some_and(|lease| {
            lease.spec.holder == identity
                || matches!(&lease.grant, GrantNote::V1(grant) if grant.holder == identity)
        })
    }

    /// The uid of the claim that holds the slot.
    pub(super) fn holder_uid(&self) -> Option<&str> {
        self.lease.value().and_then(LeaseRecord::holder_uid)
    }

    /// Nobody watches it any more: what it showed may be over. Since when it was silent is kept.
    pub(super) fn forget(&mut self) {
        self.lease = Known::Unread;
    }
}

/// A list of claims, and the state of slot 0's Lease when it was made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Listed {
    pub(super) claims: Vec<ClaimView>,
    pub(super) revision: u64,
    pub(super) next: Option<ClaimRef>,
}
