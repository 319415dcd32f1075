//! Story time and machine time.

use std::time::Duration;

use clap::ValueEnum;

/// How many story seconds pass in a second. All of these keep lease durations whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Speed {
    /// Real time: a telling takes two and a half minutes; all are told side by side
    #[value(name = "1")]
    Real,
    /// Three times as fast
    #[value(name = "3")]
    Three,
    /// Five times as fast: about two minutes in all
    #[value(name = "5")]
    Five,
    /// Fifteen times as fast; what the machine itself takes begins to show
    #[value(name = "15")]
    Fifteen,
}

impl Speed {
    /// The factor.
    pub(crate) fn factor(self) -> u32 {
        match self {
            Self::Real => 1,
            Self::Three => 3,
            Self::Five => 5,
            Self::Fifteen => 15,
        }
    }

    /// How long this machine takes for so many story seconds.
    pub(crate) fn real(self, story_seconds: f64) -> Duration {
        Duration::from_secs_f64(story_seconds / f64::from(self.factor()))
    }

    /// How many whole seconds a lease of this story length has.
    pub(crate) fn lease_seconds(self, story_seconds: u32) -> u32 {
        (story_seconds / self.factor()).max(1)
    }

    /// The story second of a moment, both in microseconds of the wall clock.
    pub(crate) fn story(self, since: i64, at: i64) -> f64 {
        Duration::from_micros((at - since).unsigned_abs()).as_secs_f64()
            * f64::from(self.factor())
            * if at < since { -1.0 } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_durations_stay_whole_at_every_speed() {
        for speed in Speed::value_variants() {
            for seconds in [15, 120] {
                assert_eq!(speed.lease_seconds(seconds) * speed.factor(), seconds);
            }
        }
    }

    #[test]
    fn story_time_runs_faster_by_the_factor() {
        assert_eq!(Speed::Five.real(85.0), Duration::from_secs(17));
        assert!((Speed::Five.story(1_000_000, 18_000_000) - 85.0).abs() < 1e-9);
        assert!((Speed::Real.story(1_000_000, 0) + 1.0).abs() < 1e-9);
    }
}
