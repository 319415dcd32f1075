//! Words for people about work that takes a while: one line that changes on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often a plain line is written where there is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);
const TERMINAL_EVERY: Duration = Duration::from_millis(100);

/// Tells how a piece of work gets on, on standard error.
#[derive(Debug)]
pub struct Progress {
    what: String,
    started: Instant,
    told: Option<Instant>,
    terminal: bool,
}

impl Progress {
    /// Says that `what` begins.
    #[must_use]
    pub fn start(what: impl Into<String>) -> Self {
        let progress = Self {
            what: what.into(),
            started: Instant::now(),
            told: None,
            terminal: io::stderr().is_terminal(),
        };
        if !progress.terminal {
            eprintln!("{} …", progress.what);
        }
        progress
    }

    /// Says where the work is; not so often as to be a burden.
    pub fn tell(&mut self, detail: &str) {
        let (every, first) = if self.terminal {
            (TERMINAL_EVERY, None)
        } else {
            (PLAIN_EVERY, Some(self.started))
        };
        if self
            .told
            .or(first)
            .is_some_and(|told| told.elapsed() < every)
        {
            return;
        }
        self.told = Some(Instant::now());
        let line = format!(
            "{} … {} {detail}",
            self.what,
            elapsed(self.started.elapsed())
        );
        if self.terminal {
            let short: String = line.chars().take(110).collect();
            eprint!("\r\x1b[2K{short}");
            let _ = io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    /// Says that the work is done.
    pub fn done(self, detail: &str) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
        let comma = if detail.is_empty() { "" } else { ", " };
        eprintln!(
            "{}: {}{comma}{detail}",
            self.what,
            elapsed(self.started.elapsed())
        );
    }

    /// Leaves the line as it is, for an error to follow.
    pub fn give_up(self) {
        if self.terminal {
            eprintln!();
        }
    }
}

/// `4.2 s`, `1 min 05 s`.
#[must_use]
pub fn elapsed(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_people_tell_them() {
        assert_eq!(elapsed(Duration::from_millis(4_240)), "4.2 s");
        assert_eq!(elapsed(Duration::from_secs(65)), "1 min 05 s");
        assert_eq!(elapsed(Duration::from_mins(10)), "10 min 00 s");
    }
}
