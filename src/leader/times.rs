//! The times of the election, and how they must fit together.

use std::time::Duration;

/// The times of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderTimes {
    lease_duration: Duration,
    pub(super) renew_deadline: Duration,
    pub(super) retry_period: Duration,
}

/// Why the times of an election do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaderTimesError {
    /// Leases keep whole seconds.
    #[error("the leader lease duration must be whole seconds, from 1 s to 1 h: it is {0:?}")]
    Duration(Duration),
    /// The lead must be given up before others may take it.
    #[error(
        "the leader renew deadline ({deadline:?}) must be three to four fifths of the lease duration ({duration:?})"
    )]
    Deadline {
        /// The renew deadline.
        deadline: Duration,
        /// The lease duration.
        duration: Duration,
    },
    /// There must be time for a second attempt.
    #[error(
        "the leader retry period ({retry:?}) must be above 0 and at most half of the renew deadline ({deadline:?})"
    )]
    Retry {
        /// The retry period.
        retry: Duration,
        /// The renew deadline.
        deadline: Duration,
    },
}

impl LeaderTimes {
    /// Checked times: retry period, well below the renew deadline, well below the lease duration.
    pub fn new(
        lease_duration: Duration,
        renew_deadline: Duration,
        retry_period: Duration,
    ) -> Result<Self, LeaderTimesError> {
        let whole = lease_duration.subsec_nanos() == 0;
        if !whole || !(1..=3600).contains(&lease_duration.as_secs()) {
            return Err(LeaderTimesError::Duration(lease_duration));
        }
        let fitting = lease_duration * 3 / 5..=lease_duration * 4 / 5;
        if !fitting.contains(&renew_deadline) {
            return Err(LeaderTimesError::Deadline {
                deadline: renew_deadline,
                duration: lease_duration,
            });
        }
        if retry_period.is_zero() || retry_period > renew_deadline / 2 {
            return Err(LeaderTimesError::Retry {
                retry: retry_period,
                deadline: renew_deadline,
            });
        }
        Ok(Self {
            lease_duration,
            renew_deadline,
            retry_period,
        })
    }

    /// The lease duration, as Leases keep it.
    pub(super) fn seconds(self) -> u32 {
        u32::try_from(self.lease_duration.as_secs()).unwrap_or(u32::MAX)
    }

    /// What the rules call the kill grace: how long before four fifths of the lease the lead is given up.
    pub(super) fn margin(self) -> Duration {
        (self.lease_duration * 4 / 5).saturating_sub(self.renew_deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn times_that_do_not_fit_together_are_refused() {
        assert!(LeaderTimes::new(s(15), s(10), s(2)).is_ok());
        assert!(LeaderTimes::new(s(15), s(12), s(2)).is_ok());
        for (duration, deadline, retry) in [
            (s(0), s(10), s(2)),
            (
                Duration::from_millis(1500),
                s(1),
                Duration::from_millis(100),
            ),
            (s(15), s(13), s(2)),
            (s(15), s(15), s(2)),
            (s(15), s(8), s(2)),
            (s(15), s(10), s(6)),
            (s(15), s(10), s(0)),
            (s(4000), s(10), s(2)),
        ] {
            assert!(
                LeaderTimes::new(duration, deadline, retry).is_err(),
                "{duration:?} {deadline:?} {retry:?}"
            );
        }
    }
}
