//! The three clocks, and which question each may answer.
//!
//! - [`BootInstant`], `CLOCK_BOOTTIME`: until when we hold (R4). It runs on through a suspend, so a laptop or a node
//!   that wakes up after its lease has ended knows so. Read it again before work goes on.
//! - [`MonoInstant`], `CLOCK_MONOTONIC`: since when an object was seen unchanged (R3). It stands still through a
//!   suspend, which errs to the safe side: an observer that slept has observed nothing.
//! - [`Timestamp`], the wall clock: what people read (`acquireTime`, `renewTime`). No wall time of another machine is
//!   ever compared to end a hold (R8). It is cut to microseconds, because that is what a `MicroTime` keeps: a
//!   nanosecond `now()` is not equal to itself after a round trip.
//!
//! All arithmetic saturates: a year-9999 time or a forged duration can't overflow it. This is the only module that
//! reads a clock (`clippy.toml` forbids it elsewhere); what must be tested with chosen times takes a [`Clock`].

use std::fmt;
use std::ops::Add;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use k8s_openapi::jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_CLOCK: ClockId = ClockId::Boottime;
// Darwin's CLOCK_MONOTONIC runs on while the machine sleeps.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT_CLOCK: ClockId = ClockId::Monotonic;

macro_rules! instant {
    ($(#[$doc:meta])* $name:ident, $clock:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The latest instant there is: further than any duration reaches.
            pub const MAX: Self = Self(u64::MAX);

            /// Reads the system's clock.
            #[must_use]
            pub fn now() -> Self {
                let now = clock_gettime($clock);
                let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
                let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
                Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
            }

            /// The instant that lies `nanos` nanoseconds after the clock's zero.
            #[must_use]
            pub const fn from_nanos(nanos: u64) -> Self {
                Self(nanos)
            }

            /// Nanoseconds since the clock's zero.
            #[must_use]
            pub const fn as_nanos(self) -> u64 {
                self.0
            }

            /// The instant `duration` later, at most [`Self::MAX`].
            #[must_use]
            pub fn saturating_add(self, duration: Duration) -> Self {
                Self(self.0.saturating_add(nanos(duration)))
            }

            /// The instant `duration` earlier, at least the clock's zero.
            #[must_use]
            pub fn saturating_sub(self, duration: Duration) -> Self {
                Self(self.0.saturating_sub(nanos(duration)))
            }

            /// How long after `earlier` this instant lies; zero if it does not.
            #[must_use]
            pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
                Duration::from_nanos(self.0.saturating_sub(earlier.0))
            }
        }

        impl Add<Duration> for $name {
            type Output = Self;

            /// Saturates like `saturating_add`.
            fn add(self, duration: Duration) -> Self {
                self.saturating_add(duration)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({}.{:09})"), self.0 / 1_000_000_000, self.0 % 1_000_000_000)
            }
        }
    };
}

instant! {
    /// An instant of `CLOCK_BOOTTIME`, which runs on through a suspend. The same in every process of the machine.
    BootInstant, BOOT_CLOCK
}
instant! {
    /// An instant of `CLOCK_MONOTONIC`, which stands still through a suspend.
    MonoInstant, ClockId::Monotonic
}

/// A duration in nanoseconds; what is longer than 584 years counts as that.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Cuts a wall time to the microseconds that a `MicroTime` keeps.
#[must_use]
pub fn truncate_to_micros(time: Timestamp) -> Timestamp {
    // A microsecond count taken from a timestamp is always in range.
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

/// Where time comes from: the system, or a test.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Now, for deadlines of a hold.
    fn boot(&self) -> BootInstant;
    /// Now, for how long something was seen unchanged.
    fn mono(&self) -> MonoInstant;
    /// Now, for people; whole microseconds.
    fn wall(&self) -> Timestamp;
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The system's clock, ready to be shared.
    #[must_use]
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    fn boot(&self) -> BootInstant {
        BootInstant::now()
    }

    fn mono(&self) -> MonoInstant {
        MonoInstant::now()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn wall(&self) -> Timestamp {
        truncate_to_micros(Timestamp::now())
    }
}

/// A clock that moves only when told to. Clones show the same time.
#[derive(Clone, Debug)]
pub struct FakeClock(Arc<Mutex<FakeTimes>>);

#[derive(Clone, Copy, Debug)]
struct FakeTimes {
    boot: BootInstant,
    mono: MonoInstant,
    wall: Timestamp,
}

impl FakeClock {
    /// A clock that shows this wall time, 1,000 s after the boot.
    #[must_use]
    pub fn new(wall: Timestamp) -> Self {
        let since_boot = 1_000_000_000_000;
        Self(Arc::new(Mutex::new(FakeTimes {
            boot: BootInstant::from_nanos(since_boot),
            mono: MonoInstant::from_nanos(since_boot),
            wall: truncate_to_micros(wall),
        })))
    }

    /// Lets time pass on all three clocks.
    pub fn advance(&self, by: Duration) {
        self.change(|times| {
            times.boot = times.boot + by;
            times.mono = times.mono + by;
            times.wall = times.wall.checked_add(by).unwrap_or(Timestamp::MAX);
        });
    }

    /// Lets time pass as in a suspend: `CLOCK_MONOTONIC` stands still.
    pub fn suspend(&self, for_: Duration) {
        self.change(|times| {
            times.boot = times.boot + for_;
            times.wall = times.wall.checked_add(for_).unwrap_or(Timestamp::MAX);
        });
    }

    /// Sets the wall clock, forward or back; the others do not notice.
    pub fn set_wall(&self, wall: Timestamp) {
        self.change(|times| times.wall = truncate_to_micros(wall));
    }

    fn change(&self, change: impl FnOnce(&mut FakeTimes)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn read(&self) -> FakeTimes {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for FakeClock {
    /// 2026-01-01T00:00:00Z.
    fn default() -> Self {
        Self::new(Timestamp::from_second(1_767_225_600).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

impl Clock for FakeClock {
    fn boot(&self) -> BootInstant {
        self.read().boot
    }

    fn mono(&self) -> MonoInstant {
        self.read().mono
    }

    fn wall(&self) -> Timestamp {
        self.read().wall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate_instead_of_overflowing() {
        let now = BootInstant::now();
        assert_eq!(now + Duration::MAX, BootInstant::MAX);
        assert_eq!(
            now.saturating_sub(Duration::MAX),
            BootInstant::from_nanos(0)
        );
        assert_eq!(
            now.saturating_duration_since(now + Duration::from_secs(1)),
            Duration::ZERO
        );
    }

    #[test]
    fn a_suspend_moves_boot_time_only() {
        let clock = FakeClock::default();
        let (boot, mono) = (clock.boot(), clock.mono());
        clock.suspend(Duration::from_mins(1));
        assert_eq!(
            clock.boot().saturating_duration_since(boot),
            Duration::from_mins(1)
        );
        assert_eq!(clock.mono(), mono);
        clock.advance(Duration::from_secs(1));
        assert_eq!(
            clock.mono().saturating_duration_since(mono),
            Duration::from_secs(1)
        );
    }

    #[test]
    fn wall_time_survives_a_round_trip_through_micro_time() {
        let now = SystemClock.wall();
        let text = serde_json::to_string(
            &k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(now),
        )
        .unwrap();
        let back: k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime =
            serde_json::from_str(&text).unwrap();
        assert_eq!(back.0, now);
    }
}
