//! The times of one lease: when it is renewed, when its work ends, how often what a watch should tell is read.

use std::time::Duration;

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
