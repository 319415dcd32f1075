//! TERM and INT.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears the signals that stop the sidecar; a second one changes nothing.
#[derive(Debug)]
pub(super) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Installs the handlers, before anything is under way.
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Resolves with the next one. Safe to drop.
    pub(super) async fn heard(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
