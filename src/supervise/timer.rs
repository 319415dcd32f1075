//! Waking up at an instant of boot time.
//!
//! A `poll` time-out runs on `CLOCK_MONOTONIC` and would oversleep a suspend; a timer on `CLOCK_BOOTTIME` fires as
//! soon as the machine is awake again. Who wakes up still reads the clock: a process can be frozen between the two.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::clock::BootInstant;

/// A timer that is readable from a given instant on.
#[derive(Debug)]
pub(super) struct BootTimer(OwnedFd);

impl BootTimer {
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Sets the instant, replacing the last one; `None` stops the timer.
    pub fn set(&self, at: Option<BootInstant>) -> io::Result<()> {
        // All zeros would stop the timer, so an instant in the far past is written as 1 ns.
        let nanos = at.map_or(0, |at| at.as_nanos().max(1));
        let it_value = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
        };
        let spec = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value,
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
