//! What those inside the Pods tell the driver: one line of JSON on standard output each.

use std::io::{self, Write};

use leasehold::clock::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

/// One line. Times are microseconds of the wall clock, which all of this machine share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub(crate) enum Said {
    /// A naive contender took the lock.
    Took {
        /// When the write was sent.
        at: i64,
        /// The token of the grant.
        token: i64,
        /// The identity of the grant.
        holder: String,
    },
    /// The work began.
    Started {
        /// When.
        at: i64,
        /// The token it was given.
        token: i64,
        /// The identity it was given.
        holder: String,
    },
    /// The gate let nothing in, from the first moment.
    ShutOut {
        /// When.
        at: i64,
    },
    /// The customers not yet charged are loaded.
    Loaded {
        /// When.
        at: i64,
        /// How many.
        customers: u64,
    },
    /// The memory of the work runs away.
    Hoards {
        /// When.
        at: i64,
    },
    /// The work ended.
    Ended {
        /// When.
        at: i64,
        /// How many charges the ledger took.
        charged: u64,
        /// How many it refused.
        refused: u64,
    },
}

impl Said {
    /// Says it.
    pub(crate) fn say(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, self)?;
        out.write_all(b"\n")?;
        out.flush()
    }
}

/// Now, in microseconds of the wall clock.
pub(crate) fn now() -> i64 {
    SystemClock.wall().as_microsecond()
}
