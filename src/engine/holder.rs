//! What a holder may believe (R4): its deadline moves only by a 2xx to its own write, counted from before that
//! write was sent.

use std::time::Duration;

use super::record::{EndKind, Grant, GrantId, LeaseRecord};
use super::standing::LockView;
use super::terms::Terms;
use super::{Moment, WallMicros, change};
use crate::api::names::MAX_LEASE_SECONDS;

/// Why a grant was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// Another holder is in the Lease, or somebody emptied it.
    TakenOver,
    /// Its token fell below `minFencingToken`, or an operator said so.
    Revoked,
    /// The Lease or the lock was deleted.
    Deleted,
    /// No renewal was answered until the renew deadline.
    Unreachable,
    /// The server refused the renewals until the renew deadline.
    Forbidden,
    /// The lease ran out, or was found to have run out.
    Expired,
    /// `maxHoldSeconds` was reached.
    MaxHold,
}

impl LossReason {
    /// The word used in messages, metrics and the termination log.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LossReason::TakenOver => "TakenOver",
            LossReason::Revoked => "Revoked",
            LossReason::Deleted => "Deleted",
            LossReason::Unreachable => "Unreachable",
            LossReason::Forbidden => "Forbidden",
            LossReason::Expired => "Expired",
            LossReason::MaxHold => "MaxHold",
        }
    }
}

/// A grant that this process has, and until when it may believe so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    grant: Grant,
    kill_grace: Duration,
    /// The record as last known to carry the grant; supplies the resourceVersion of the next write.
    record: LeaseRecord,
    /// When the last write was sent that a 2xx answered.
    proven: Moment,
    /// The shortest duration that the Lease may store: that of the last 2xx, or of a shorter one sent since.
    stored: Duration,
    /// When the hold ends whatever is renewed: see [`hold_end`].
    hold_end: Option<Moment>,
}

/// When a hold whose take was sent at `granted` ends, however well it is renewed: `maxHoldSeconds` after.
#[must_use]
pub fn hold_end(lock: &LockView, granted: Moment) -> Option<Moment> {
    lock.max_hold_seconds
        .map(|seconds| granted.saturating_add(Duration::from_secs(u64::from(seconds))))
}

impl Held {
    /// A grant whose write, sent at `sent`, was answered by a 2xx with `record`.
    #[must_use]
    pub fn new(grant: Grant, record: LeaseRecord, sent: Moment, kill_grace: Duration) -> Self {
        let stored = duration_of(&record);
        Self {
            grant,
            kill_grace,
            record,
            proven: sent,
            stored,
            hold_end: None,
        }
    }

    /// From now on the hold ends at `end` at the latest.
    pub fn end_hold_at(&mut self, end: Option<Moment>) {
        self.hold_end = end;
    }

    /// The grant: token, identity, Pod.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The record with which the next guarded write starts.
    #[must_use]
    pub fn record(&self) -> &LeaseRecord {
        &self.record
    }

    /// The times of the lease as it is stored.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms::fitting(
            u32::try_from(self.stored.as_secs()).unwrap_or(u32::MAX),
            self.kill_grace,
        )
    }

    /// When the last write was sent that a 2xx answered.
    #[must_use]
    pub fn proven(&self) -> Moment {
        self.proven
    }

    /// When the work is told to end (TERM), unless a renewal is answered before; never later than the hold ends.
    #[must_use]
    pub fn renew_deadline(&self) -> Moment {
        let of_lease = self.renew_deadline_of_lease();
        self.hold_end.map_or(of_lease, |end| end.min(of_lease))
    }

    /// When the work has ended (KILL), unless a renewal is answered before.
    #[must_use]
    pub fn work_deadline(&self) -> Moment {
        let terms = self.terms();
        let of_lease = self.proven.saturating_add(terms.work_deadline());
        let of_hold = self
            .hold_end
            .map(|end| end.saturating_add(terms.kill_grace()));
        of_hold.map_or(of_lease, |end| end.min(of_lease))
    }

    fn renew_deadline_of_lease(&self) -> Moment {
        self.proven.saturating_add(self.terms().renew_deadline())
    }

    /// Whether it is the end of the hold that comes first, not that of the lease.
    fn ends_by_hold(&self) -> bool {
        self.hold_end
            .is_some_and(|end| end <= self.renew_deadline_of_lease())
    }

    /// Why the grant is lost if the renew deadline comes; `trouble` is why the renewals failed, if they did.
    #[must_use]
    pub fn reason_at_deadline(&self, trouble: Option<LossReason>) -> LossReason {
        if self.ends_by_hold() {
            LossReason::MaxHold
        } else {
            trouble.unwrap_or(LossReason::Expired)
        }
    }

    /// Until when the grant may be given back. After the end of the hold that is for as long as the lease runs: only
    /// the renewals have stopped, and an orderly stop should not be taken for a holder that fell silent.
    #[must_use]
    pub fn release_deadline(&self) -> Moment {
        if self.ends_by_hold() {
            self.lease_end()
        } else {
            self.renew_deadline()
        }
    }

    /// From when on others may take the lease at the earliest, as this holder counts.
    #[must_use]
    pub fn lease_end(&self) -> Moment {
        self.proven.saturating_add(self.stored)
    }

    /// Whether the grant may be used at `now`.
    #[must_use]
    pub fn is_held(&self, now: Moment) -> bool {
        now < self.renew_deadline()
    }

    /// When the next renewal is due.
    #[must_use]
    pub fn renew_at(&self, jitter: f64) -> Moment {
        self.proven
            .saturating_add(self.terms().renew_period(jitter))
    }

    /// The record that renews the grant. Call [`Held::sending`] with it right before it is sent.
    #[must_use]
    pub fn renewal(&self, lock: &LockView, now: WallMicros) -> LeaseRecord {
        change::renew(lock, &self.record, &self.grant, now)
    }

    /// The same, but storing the duration that is stored.
    #[must_use]
    pub fn renewal_as_stored(&self, now: WallMicros) -> LeaseRecord {
        let seconds = u32::try_from(self.stored.as_secs()).unwrap_or(u32::MAX);
        let same = LockView {
            duration_seconds: seconds,
            longest_seconds: Some(seconds),
            ..LockView::default()
        };
        self.renewal(&same, now)
    }

    /// Whether the shorter duration that `renewal` stores would leave little or nothing of the hold when it is sent,
    /// as its deadline counts from the last 2xx. A renewal that stores what is stored, answered first, makes room.
    #[must_use]
    pub fn is_cut_short_by(&self, renewal: &LeaseRecord, now: Moment) -> bool {
        let shorter = duration_of(renewal);
        let seconds = u32::try_from(shorter.as_secs()).unwrap_or(u32::MAX);
        let most = Terms::fitting(seconds, self.kill_grace).renew_deadline();
        shorter < self.stored && now.saturating_add(most / 2) >= self.proven.saturating_add(most)
    }

    /// Whether a Lease that shows the grant stores less than this holder counts on, such as after an edit by hand: then
    /// others may take it earlier.
    #[must_use]
    pub fn is_shortened_by(&self, lease: &LeaseRecord) -> bool {
        duration_of(lease) < self.stored
    }

    /// Whether the Lease stores more than the lock asks for by now.
    #[must_use]
    pub fn stores_more_than(&self, lock: &LockView) -> bool {
        self.stored > Duration::from_secs(u64::from(lock.granted_seconds()))
    }

    /// A renewal is about to be sent: a shorter duration moves the deadline down at once, whatever the answer.
    pub fn sending(&mut self, renewal: &LeaseRecord) {
        self.stored = self.stored.min(duration_of(renewal));
    }

    /// A renewal sent at `sent` was answered by a 2xx with `answer`. `false` if it proves nothing: it changed
    /// nothing, or does not show the grant.
    #[must_use]
    pub fn renewed(&mut self, answer: &LeaseRecord, sent: Moment) -> bool {
        let changed = answer.resource_version != self.record.resource_version;
        if !changed || !self.is_mine(answer) {
            return false;
        }
        self.stored = duration_of(answer);
        self.proven = self.proven.max(sent);
        self.record = answer.clone();
        true
    }

    /// What a read shows: `Ok` if the grant is still there (the read supplies the resourceVersion and moves no
    /// deadline), else why it is lost.
    pub fn reread(
        &mut self,
        lease: Option<&LeaseRecord>,
        lock: Option<&LockView>,
    ) -> Result<(), LossReason> {
        let Some(lease) = lease else {
            return Err(LossReason::Deleted);
        };
        if self.is_mine(lease) {
            // An edit by hand may have shortened what observers wait for; nothing read ever lengthens it.
            self.stored = self.stored.min(duration_of(lease));
            self.record = lease.clone();
            return Ok(());
        }
        if lease.uid != self.record.uid {
            return Err(LossReason::Deleted);
        }
        let id = self.id();
        if let Some(ended) = lease.end_of(&id, self.grant.token) {
            return Err(match ended.kind {
                EndKind::Expired => LossReason::Expired,
                EndKind::Revoked => LossReason::Revoked,
                EndKind::Released | EndKind::Ended => LossReason::TakenOver,
            });
        }
        let floor = lock.and_then(|lock| lock.min_token).unwrap_or(0);
        Err(if floor > self.grant.token.get() {
            LossReason::Revoked
        } else {
            LossReason::TakenOver
        })
    }

    /// The record that gives the grant back.
    #[must_use]
    pub fn release(&self, reason: &str, now: WallMicros) -> LeaseRecord {
        change::release(&self.record, &self.grant, reason, now)
    }

    /// What "mine" compares.
    #[must_use]
    pub fn id(&self) -> GrantId {
        let Grant {
            uid,
            transitions,
            holder,
            ..
        } = &self.grant;
        GrantId {
            uid: uid.clone(),
            holder: holder.clone(),
            transitions: *transitions,
        }
    }

    /// Whether a record shows this very grant.
    #[must_use]
    pub fn is_mine(&self, lease: &LeaseRecord) -> bool {
        lease.grant_id().is(&self.grant)
    }
}

/// Cut as everybody else cuts it who looks at the Lease.
fn duration_of(record: &LeaseRecord) -> Duration {
    Duration::from_secs(
        record
            .spec
            .duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(1)
            .clamp(1, u64::from(MAX_LEASE_SECONDS.unsigned_abs())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::record::{GrantNote, Hold, SpecRecord};

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn lock(max_hold_seconds: Option<u32>) -> LockView {
        LockView {
            duration_seconds: 15,
            longest_seconds: Some(15),
            max_hold_seconds,
            ..LockView::default()
        }
    }

    /// Taken at 10 s, for 15 s, with a kill grace of 3 s.
    fn held() -> Held {
        let grant = Grant {
            uid: "L1".to_owned(),
            transitions: 1,
            token: crate::api::FencingToken::new(7).unwrap(),
            hold: Hold::Heartbeat,
            pod: None,
            holder: "a/1".to_owned(),
        };
        let record = LeaseRecord {
            uid: "L1".to_owned(),
            resource_version: 7,
            lock_label: Some("lock".to_owned()),
            spec: SpecRecord {
                holder: "a/1".to_owned(),
                duration_seconds: Some(15),
                transitions: 1,
                ..SpecRecord::default()
            },
            grant: GrantNote::V1(grant.clone()),
            ..LeaseRecord::default()
        };
        Held::new(grant, record, secs(10), secs(3))
    }

    fn renew(held: &mut Held, lock: &LockView, sent: Moment) {
        let mut renewal = held.renewal(lock, 0);
        held.sending(&renewal);
        renewal.resource_version += 1;
        assert!(held.renewed(&renewal, sent));
    }

    #[test]
    fn a_hold_ends_max_hold_seconds_after_its_take_was_sent_however_well_it_is_renewed() {
        let (mut held, lock) = (held(), lock(Some(20)));
        assert_eq!(hold_end(&lock, held.proven()), Some(secs(30)));
        held.end_hold_at(hold_end(&lock, held.proven()));
        assert_eq!(held.renew_deadline(), secs(19), "the lease ends before");
        assert_eq!(held.reason_at_deadline(None), LossReason::Expired);
        assert_eq!(held.release_deadline(), held.renew_deadline());
        renew(&mut held, &lock, secs(25));
        // The work is told to end then, not before, and has its grace.
        assert_eq!(held.renew_deadline(), secs(30));
        assert_eq!(held.work_deadline(), secs(33));
        assert!(held.is_held(secs(29)) && !held.is_held(secs(30)));
        let trouble = Some(LossReason::Unreachable);
        assert_eq!(held.reason_at_deadline(trouble), LossReason::MaxHold);
        // Only the renewals have stopped: it may be given back while the lease runs.
        assert_eq!(held.release_deadline(), secs(40));
    }

    #[test]
    fn the_work_has_ended_before_the_lease_could_be_taken_though_the_hold_ends_later() {
        let mut held = held();
        held.end_hold_at(Some(secs(20)));
        assert_eq!(held.renew_deadline(), secs(19));
        held.end_hold_at(Some(secs(18)));
        assert_eq!(held.renew_deadline(), secs(18));
        assert_eq!(held.work_deadline(), secs(21));
        held.end_hold_at(Some(secs(19)));
        assert_eq!(held.work_deadline(), secs(22), "0.8 T, and no more");
    }

    #[test]
    fn a_duration_that_is_stored_counts_for_a_day_at_most_as_for_those_who_wait() {
        let mut stored = held().record().clone();
        stored.spec.duration_seconds = Some(10 * 86_400);
        stored.resource_version += 1;
        let mut held = held();
        assert!(held.renewed(&stored, secs(20)));
        assert_eq!(held.lease_end(), secs(20 + 86_400));
        assert_eq!(held.work_deadline(), secs(20 + 86_400 * 4 / 5));
    }

    #[test]
    fn the_limit_of_today_counts_from_the_take() {
        let mut held = held();
        held.end_hold_at(hold_end(&lock(None), secs(10)));
        assert_eq!(held.renew_deadline(), secs(19));
        held.end_hold_at(hold_end(&lock(Some(5)), secs(10)));
        assert_eq!(held.renew_deadline(), secs(15), "a shorter one at once");
        held.end_hold_at(hold_end(&lock(None), secs(10)));
        assert_eq!(held.renew_deadline(), secs(19));
    }
}
