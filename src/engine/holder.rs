//! What a holder may believe (R4): its deadline moves only by a 2xx to its own write, counted from before that
//! write was sent.

use std::time::Duration;

use super::record::{EndKind, Grant, GrantId, LeaseRecord};
use super::standing::LockView;
use super::{Moment, WallMicros, change};

/// The times of one lease: T, renew deadline (0.8 T less the kill grace), retry period (the larger of 200 ms and T/15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    duration: Duration,
    kill_grace: Duration,
}

/// Why times do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// The lease is shorter than a second.
    #[error("a lease must last at least 1 s")]
    TooShort,
    /// The kill grace leaves too little of the lease to renew it in.
    #[error(
        "the kill grace of {grace:?} is more than a fifth of the lease duration of {duration:?}: use at most {most:?}"
    )]
    GraceTooLong {
        /// What was asked for.
        grace: Duration,
        /// The lease duration.
        duration: Duration,
        /// What is possible.
        most: Duration,
    },
}

impl Terms {
    /// Checked terms of a lease of `duration` whose work needs `kill_grace` to end.
    pub fn new(duration: Duration, kill_grace: Duration) -> Result<Self, TermsError> {
        if duration < Duration::from_secs(1) {
            return Err(TermsError::TooShort);
        }
        let most = duration / 5;
        if kill_grace > most {
            return Err(TermsError::GraceTooLong {
                grace: kill_grace,
                duration,
                most,
            });
        }
        Ok(Self {
            duration,
            kill_grace,
        })
    }

    /// The terms of a lease of `seconds`, with as much of `kill_grace` as fits.
    #[must_use]
    pub fn fitting(seconds: u32, kill_grace: Duration) -> Self {
        let duration = Duration::from_secs(u64::from(seconds.max(1)));
        Self {
            duration,
            kill_grace: kill_grace.min(duration / 5),
        }
    }

    /// T.
    #[must_use]
    pub fn duration(self) -> Duration {
        self.duration
    }

    /// What the work gets between TERM and KILL.
    #[must_use]
    pub fn kill_grace(self) -> Duration {
        self.kill_grace
    }

    /// After that long without a renewal the work is told to end.
    #[must_use]
    pub fn renew_deadline(self) -> Duration {
        self.work_deadline().saturating_sub(self.kill_grace)
    }

    /// After that long without a renewal the work has ended: 0.8 T; the rest is for clocks that run unevenly.
    #[must_use]
    pub fn work_deadline(self) -> Duration {
        self.duration * 4 / 5
    }

    /// How long to wait after a renewal that failed.
    #[must_use]
    pub fn retry_period(self) -> Duration {
        (self.duration / 15).max(Duration::from_millis(200))
    }

    /// How long after a renewal was sent the next one is: a third of T, and up to a tenth of that more, by `jitter`
    /// from 0 to 1.
    #[must_use]
    pub fn renew_period(self, jitter: f64) -> Duration {
        (self.duration / 3).mul_f64(1.0 + 0.1 * jitter.clamp(0.0, 1.0))
    }

    /// T within 5 to 30 s: how often what a watch should have told is read all the same.
    #[must_use]
    pub fn slow_beat(self) -> Duration {
        self.duration
            .clamp(Duration::from_secs(5), Duration::from_secs(30))
    }
}

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
        }
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

    /// When the work is told to end (TERM), unless a renewal is answered before.
    #[must_use]
    pub fn renew_deadline(&self) -> Moment {
        self.proven.saturating_add(self.terms().renew_deadline())
    }

    /// When the work has ended (KILL), unless a renewal is answered before.
    #[must_use]
    pub fn work_deadline(&self) -> Moment {
        self.proven.saturating_add(self.terms().work_deadline())
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

fn duration_of(record: &LeaseRecord) -> Duration {
    Duration::from_secs(
        record
            .spec
            .duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(1)
            .max(1),
    )
}
