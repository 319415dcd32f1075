//! What `run` and `sidecar` both may say about the locks that they ask for.

use std::time::Duration;

use leasehold::api::names::MAX_PRIORITY;
use leasehold::client::Acquire;

use super::run::asking::report;
use super::{parse_claimant, parse_duration};

/// What the work gets to end in, where a fifth of the lease is not less.
pub(super) const DEFAULT_KILL_GRACE: Duration = Duration::from_secs(10);

/// How a lock is asked for.
#[derive(Clone, clap::Args)]
pub struct Request {
    /// Who holds it, as people will see it; by default the Pod's name, or the host's
    #[arg(long = "as", value_name = "CLAIMANT", value_parser = parse_claimant)]
    claimant: Option<String>,
    /// Before whom to be served where the lock's queue goes by priority: higher first, from -1000 to 1000
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(i64::from(-MAX_PRIORITY)..=i64::from(MAX_PRIORITY))
    )]
    priority: i32,
    /// What the command, or the app, gets to end in once the lock is lost, between TERM and KILL; at most a fifth of the
    /// lease duration, which is also the default, up to 10s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(super) kill_grace: Option<Duration>,
    /// If there is no such lock, wait until somebody makes it
    #[arg(long)]
    pub(super) wait_for_lock: bool,
}

impl Request {
    /// The same, of this lock; how the wait goes on is said.
    pub(super) fn of(&self, lock: Acquire) -> Acquire {
        let Self {
            claimant,
            priority,
            kill_grace,
            wait_for_lock,
        } = self;
        let mut lock = lock.on_progress(report).priority(*priority);
        if let Some(claimant) = claimant {
            lock = lock.claimant(claimant);
        }
        if *wait_for_lock {
            lock = lock.wait_for_lock();
        }
        match kill_grace {
            Some(grace) => lock.kill_grace(*grace),
            None => lock.kill_grace_up_to(DEFAULT_KILL_GRACE),
        }
    }
}
