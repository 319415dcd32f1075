//! Signals to the wrapper, as a stream.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

use super::Signal;

/// What the wrapper hears. TSTP is heard and dropped: a stopped wrapper could not renew, and its command would be
/// ended at the deadline, so Ctrl-Z does nothing.
const HEARD: [Signal; 10] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::WINCH,
    Signal::CONT,
    Signal::TSTP,
];

/// The signals sent to this process, from the moment of [`Signals::install`] on.
///
/// Before the command runs, one for which [`Signals::ends_waiting`] is true ends the wait with
/// [`exit_code_for_signal`]; while it runs, each is handed on with [`super::SupervisorHandle::forward`].
#[derive(Debug)]
pub struct Signals(Vec<(Signal, Listener)>);

impl Signals {
    /// Installs the handlers; needs a tokio runtime. To be called before waiting for the lock begins.
    ///
    /// HUP is left alone if it was ignored when the process started: under `nohup` the command is to survive the
    /// terminal. INT and QUIT are heard even then (a shell without job control ignores them for background jobs),
    /// since whoever sends them to a wrapper by hand means it.
    pub fn install() -> io::Result<Self> {
        let ignored = ignored_at_start();
        let mut listeners = Vec::with_capacity(HEARD.len());
        for heard in HEARD {
            if heard == Signal::HUP && ignored.contains(heard.as_raw()) {
                continue;
            }
            listeners.push((heard, signal(SignalKind::from_raw(heard.as_raw()))?));
        }
        Ok(Self(listeners))
    }

    /// The next signal. Safe to drop at any point: none is lost, but equal ones may be merged.
    pub async fn recv(&mut self) -> Signal {
        poll_fn(|context| {
            for (heard, listener) in &mut self.0 {
                while let Poll::Ready(Some(())) = listener.poll_recv(context) {
                    if *heard != Signal::TSTP {
                        return Poll::Ready(*heard);
                    }
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Whether this signal would end a program that does nothing about it.
    #[must_use]
    pub fn ends_waiting(signal: Signal) -> bool {
        signal != Signal::WINCH && signal != Signal::CONT
    }
}

/// 128 + n, as shells report an end by signal n.
#[must_use]
pub fn exit_code_for_signal(signal: i32) -> u8 {
    u8::try_from(128_i32.saturating_add(signal)).unwrap_or(u8::MAX)
}

/// A set of signals as the kernel prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SignalSet(u64);

impl SignalSet {
    pub fn contains(self, signal: i32) -> bool {
        u32::try_from(signal - 1)
            .ok()
            .and_then(|bit| self.0.checked_shr(bit))
            .is_some_and(|rest| rest & 1 == 1)
    }

    fn parse(status: &str) -> Option<Self> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))?;
        u64::from_str_radix(line.trim(), 16).ok().map(Self)
    }
}

/// The signals that this process ignores, as it was told to by whoever started it.
pub(super) fn ignored_at_start() -> SignalSet {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    SignalSet::parse(&status).unwrap_or(SignalSet(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_of_ignored_signals_is_read() {
        let set =
            SignalSet::parse("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n")
                .unwrap();
        assert!(set.contains(1) && set.contains(13));
        assert!(!set.contains(2) && !set.contains(0) && !set.contains(65));
    }

    #[test]
    fn exit_codes_of_signals_are_those_of_a_shell() {
        assert_eq!(
            [1, 2, 9, 15].map(exit_code_for_signal),
            [129, 130, 137, 143]
        );
    }
}
