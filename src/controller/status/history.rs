//! Grants that ended, as status remembers them, the latest first.

use super::{SlotSight, clip, last_grant};
use crate::api::names::{self, MAX_IDENTITY_CHARS};
use crate::api::{DistributedLockStatus, EndReason, FencingToken, HistoryEntry, SlotStatus};
use crate::controller::news::{end_reason, micro_time};
use crate::engine::WallMicros;

/// The history of `before`, and what has `ended` since.
pub(super) fn with(
    before: &DistributedLockStatus,
    mut ended: Vec<HistoryEntry>,
    limit: i32,
) -> Vec<HistoryEntry> {
    ended.sort_by_key(|end| (end.fencing_token, end.slot));
    let limit = usize::try_from(limit.clamp(0, names::MAX_HISTORY)).unwrap_or(0);
    let latest = ended.into_iter().rev().map(|end| HistoryEntry {
        holder_identity: clip(&end.holder_identity, MAX_IDENTITY_CHARS).to_owned(),
        ..end
    });
    latest.chain(before.history.clone()).take(limit).collect()
}

/// The ends of grants of one slot that history does not tell yet. `entry` is what status is to show of the slot now.
pub(super) fn ends_to_tell(
    before: &DistributedLockStatus,
    entry: &SlotStatus,
    slot: &SlotSight<'_>,
    wall: WallMicros,
) -> Vec<HistoryEntry> {
    let told = told_up_to(before, slot.number());
    let is_new = |token: Option<FencingToken>| token.is_some_and(|token| token.get() > told);
    let ends = slot.ends.iter().filter(|end| is_new(end.fencing_token));
    let mut ended: Vec<_> = ends.cloned().collect();
    let knows = |ended: &[HistoryEntry], token| ended.iter().any(|e| e.fencing_token == token);
    let shown = before
        .slots
        .iter()
        .find(|old| old.slot == slot.number() && !old.is_free() && is_new(old.fencing_token))
        .filter(|old| old.fencing_token != entry.fencing_token || entry.is_free());
    if let Some(unseen) = shown.filter(|old| !knows(&ended, old.fencing_token)) {
        ended.push(end_of(unseen, slot, wall));
    }
    let missed = missed_end(slot);
    ended.extend(
        missed.filter(|end| is_new(end.fencing_token) && !knows(&ended, end.fencing_token)),
    );
    ended.sort_by_key(|end| end.fencing_token);
    ended.dedup_by_key(|end| end.fencing_token);
    ended
}

/// Tokens of a slot rise, so a grant is new if its token is above all that were told. Those of a slot may all have left
/// the history, pushed out by those of others: then its entry says what was told.
fn told_up_to(before: &DistributedLockStatus, slot: i32) -> i64 {
    let of_slot = before.history.iter().filter(|old| old.slot == slot);
    if let Some(token) = of_slot.filter_map(|old| old.fencing_token).max() {
        return token.get();
    }
    let entry = before.slots.iter().find(|old| old.slot == slot);
    entry.map_or(0, |entry| {
        let token = entry.fencing_token.map_or(0, FencingToken::get);
        token - i64::from(!entry.is_free())
    })
}

/// The end of the grant that a free Lease tells of.
fn missed_end(slot: &SlotSight<'_>) -> Option<HistoryEntry> {
    let lease = slot.lease?;
    let grant = last_grant(lease)?;
    let noted = lease
        .ended
        .as_ref()
        .filter(|ended| ended.uid == lease.uid && ended.token == grant.token.get());
    Some(HistoryEntry {
        slot: slot.number(),
        holder_identity: grant.holder.clone(),
        fencing_token: Some(grant.token),
        acquire_time: lease.spec.acquire_time.and_then(micro_time),
        end_time: lease.spec.renew_time.and_then(micro_time),
        reason: noted.map_or(EndReason::Released, |ended| end_reason(ended.kind)),
    })
}

/// The end of a grant that status shows and whose end nobody saw: what the annotations still tell of it.
fn end_of(shown: &SlotStatus, slot: &SlotSight<'_>, wall: WallMicros) -> HistoryEntry {
    let token = shown.fencing_token.map(FencingToken::get);
    let noted = slot
        .lease
        .and_then(|lease| lease.ended.as_ref())
        .filter(|ended| Some(ended.token) == token);
    let reason = match (noted, slot.lease) {
        (Some(ended), _) => end_reason(ended.kind),
        // Other clients leave no note: they empty the Lease when they release, and replace who fell silent.
        (None, Some(lease)) if lease.is_free() => EndReason::Released,
        (None, Some(lease)) if !lease.is_missing() => EndReason::Expired,
        (None, _) => EndReason::Deleted,
    };
    HistoryEntry {
        slot: shown.slot,
        holder_identity: shown.holder_identity.clone(),
        fencing_token: shown.fencing_token,
        acquire_time: shown.acquire_time.clone(),
        end_time: micro_time(wall),
        reason,
    }
}
