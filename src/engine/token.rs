//! The fencing token of a grant (R2): the resourceVersion just read, plus one, and above everything remembered.

use super::record::LeaseRecord;
use super::standing::LockView;
use crate::api::FencingToken;
use crate::api::names::MAX_ANNOTATION_TOKEN;

/// Which token the next grant gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenChoice {
    /// The token.
    pub token: FencingToken,
    /// Whether something remembered stood above the revision (an etcd restore, a raised floor): worth an event and
    /// the condition `TokenAheadOfRevision`.
    pub ahead_of_revision: bool,
}

/// The token for a grant that replaces `lease`, above `remembered` (the highest that the writer has itself seen; 0
/// for none). `None` when no number below 2^53 is left.
///
/// Guarantee: above every token that an earlier write of this Lease, or of one of the same name before it, can have
/// carried, since each of those is at most the revision of its own write. Needs no counter, so nothing can be lost.
#[must_use]
pub fn next_token(lock: &LockView, lease: &LeaseRecord, remembered: i64) -> Option<TokenChoice> {
    let revision = i64::try_from(lease.resource_version).ok()?.checked_add(1)?;
    let slot = lock.slot.as_ref().map_or(0, |slot| slot.token);
    let floor = lock.min_token.unwrap_or(0);
    // Where the lock itself has gone above 2^52 (a floor set by a typo), so have its grants.
    let noted = if slot.max(floor) > MAX_ANNOTATION_TOKEN {
        lease.highest_noted_token()
    } else {
        lease.last_token()
    };
    let above = noted.max(slot).max(remembered).checked_add(1)?;
    let floor = above.max(floor);
    let token = FencingToken::new(revision.max(floor)).ok()?;
    Some(TokenChoice {
        token,
        ahead_of_revision: floor > revision,
    })
}
