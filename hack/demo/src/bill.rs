//! The work: charges the customers not yet charged, one by one, with the token of its grant.
//!
//! It is a plain job that never looks back. Whether it charges anybody twice is up to the lock and the ledger alone,
//! so it goes on also when the ledger refuses it.

use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use leasehold::api::FencingToken;
use leasehold::clock::MonoInstant;
use leasehold::fence::postgres::GateError;
use leasehold::fence::{Pass, Place};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::chronicle::Plot;
use crate::kind::Kind;
use crate::ledger::{Address, Ledger};
use crate::said::{Said, now};

/// How much of the job is to be done when the story's 85 s are over.
const DONE_PERCENT: usize = 70;
/// How much of the job keeps that pace: a little more, so that a blow that comes a little late finds what it should.
const PACED_PERCENT: usize = 74;
/// How many charges are on their way at once when there is no pace to keep. Each is a transaction of its own.
pub(crate) const IN_FLIGHT: usize = 4;
/// A file in memory, in every container.
const IN_MEMORY: &str = "/dev/shm/hoard";
/// Shorter waits are left out: the timer has whole milliseconds.
const TIMER_GRAIN: Duration = Duration::from_millis(2);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    ledger: Address,
    /// How many customers there are in all
    #[arg(long)]
    customers: usize,
    /// In how many milliseconds 70 % of all customers are to be charged
    #[arg(long)]
    pace_millis: u64,
    /// Shows the token with every charge to a ledger that is a gate
    #[arg(long)]
    gate: bool,
    /// Goes on when it is asked to end by SIGTERM
    #[arg(long)]
    deaf: bool,
    /// What the lock granted; `leasehold run` sets these
    #[command(flatten)]
    grant: Grant,
}

/// What `leasehold run` gives its command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Grant {
    #[arg(long, env = "LEASEHOLD_NAMESPACE")]
    namespace: String,
    #[arg(long, env = "LEASEHOLD_LOCK")]
    lock: String,
    #[arg(long, env = "LEASEHOLD_SLOT")]
    slot: i32,
    #[arg(long, env = "LEASEHOLD_HOLDER")]
    holder: String,
    #[arg(long, env = "LEASEHOLD_FENCING_TOKEN")]
    token: FencingToken,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    crate::runtime()?.block_on(async {
        // Who listens to a signal is not ended by it.
        let _deaf = args
            .deaf
            .then(|| signal(SignalKind::terminate()))
            .transpose()?;
        let asked = signal(SignalKind::user_defined1())?;
        tokio::select! {
            done = bill(args) => done,
            ended = hoard(asked) => ended,
        }
    })
}

/// The arguments of a worker, the name of this part first. It is to have charged 70 % of all after `pace`.
pub(crate) fn command(ledger: &Address, plot: Plot, pace: Duration) -> Vec<String> {
    let options = [
        ("--ledger-host", ledger.ledger_host.clone()),
        ("--ledger-port", ledger.ledger_port.to_string()),
        ("--schema", ledger.schema.clone()),
        ("--customers", plot.customers.to_string()),
        ("--pace-millis", pace.as_millis().to_string()),
    ];
    let mut command = vec!["bill".to_owned()];
    command.extend(
        options
            .into_iter()
            .flat_map(|(option, value)| [option.to_owned(), value]),
    );
    let gate = plot.kind.has_gate().then_some("--gate");
    let deaf = (plot.kind == Kind::Forced).then_some("--deaf");
    command.extend([gate, deaf].into_iter().flatten().map(str::to_owned));
    command
}

/// From SIGUSR1 on it fills files in memory, until its container has more than it may. Files, since memory of its own
/// would make it the process that the kernel ends: see `Container::let_first_process_be_killed`.
async fn hoard(mut asked: Signal) -> Result<ExitCode> {
    asked.recv().await;
    Said::Hoards { at: now() }.say()?;
    let mut hoard = File::create(IN_MEMORY).context("can't make a file in memory")?;
    let more = vec![1; 1 << 20];
    loop {
        hoard.write_all(&more).context("memory has no end")?;
        tokio::task::yield_now().await;
    }
}

async fn bill(args: &Args) -> Result<ExitCode> {
    let begin = MonoInstant::now();
    let Grant {
        namespace,
        lock,
        slot,
        holder,
        token,
    } = args.grant.clone();
    Said::Started {
        at: now(),
        token: token.get(),
        holder: holder.clone(),
    }
    .say()?;
    let gate = args.gate.then(|| Place::new(namespace, lock, slot));
    let ledger = match Ledger::enter(&args.ledger, gate, Pass::new(token, holder)).await {
        Ok(ledger) => ledger,
        Err(error) if matches!(error.downcast_ref(), Some(GateError::Refused(_))) => {
            Said::ShutOut { at: now() }.say()?;
            return Err(error);
        }
        Err(error) => return Err(error),
    };
    let customers = ledger.load().await?;
    Said::Loaded {
        at: now(),
        customers: u64::try_from(customers.len())?,
    }
    .say()?;

    let pace = Pace::new(
        args.customers,
        customers.len(),
        Duration::from_millis(args.pace_millis),
    );
    let mut counts = Counts::default();
    let mut in_flight = FuturesUnordered::new();
    for (done, customer) in customers.into_iter().enumerate() {
        let due = begin + pace.due(done);
        let mut room = IN_FLIGHT;
        if due > MonoInstant::now() {
            // In time: one by one. Only a job that is late has several on their way.
            room = 1;
            let wait = due.saturating_duration_since(MonoInstant::now());
            if wait >= TIMER_GRAIN {
                counts.await_room(&mut in_flight, 1).await?;
                tokio::time::sleep(wait).await;
            }
        }
        in_flight.push(ledger.charge(customer));
        counts.await_room(&mut in_flight, room).await?;
    }
    counts.await_room(&mut in_flight, 1).await?;
    let Counts { charged, refused } = counts;
    Said::Ended {
        at: now(),
        charged,
        refused,
    }
    .say()?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Default)]
struct Counts {
    charged: u64,
    refused: u64,
}

impl Counts {
    /// Counts answers until fewer than `room` charges are on their way.
    async fn await_room<F: Future<Output = Result<bool>>>(
        &mut self,
        in_flight: &mut FuturesUnordered<F>,
        room: usize,
    ) -> Result<()> {
        while in_flight.len() >= room
            && let Some(answer) = in_flight.next().await
        {
            if answer.context("a charge failed")? {
                self.charged += 1;
            } else {
                self.refused += 1;
            }
        }
        Ok(())
    }
}

/// When each charge is due.
#[derive(Debug)]
struct Pace {
    /// How many keep the pace.
    paced: usize,
    /// The time for one.
    each: Duration,
}

impl Pace {
    /// The pace of a job that found `left` of `all` customers, and that is to have done 70 % of all after `time`. Who
    /// goes on with what another began is in a hurry, and keeps none.
    fn new(all: usize, left: usize, time: Duration) -> Self {
        let done = u32::try_from(all * DONE_PERCENT / 100).unwrap_or(u32::MAX);
        let paced = if left == all {
            all * PACED_PERCENT / 100
        } else {
            0
        };
        Self {
            paced,
            each: time / done.max(1),
        }
    }

    /// How long after the beginning the charge after `done` others is due. What is beyond the pace is due at once: it
    /// goes as fast as the ledger takes it.
    fn due(&self, done: usize) -> Duration {
        if done >= self.paced {
            return Duration::ZERO;
        }
        self.each * u32::try_from(done).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_holder_keeps_the_pace_and_its_successor_does_not_wait() {
        let first = Pace::new(50_000, 50_000, Duration::from_secs(85));
        assert_eq!(first.due(0), Duration::ZERO);
        let half = first.due(17_500);
        assert!((half.as_secs_f64() - 42.5).abs() < 0.001, "{half:?}");
        assert!(first.due(35_000) > Duration::from_secs(84));
        assert_eq!(first.due(37_000), Duration::ZERO);
        let second = Pace::new(50_000, 15_000, Duration::from_secs(85));
        assert_eq!(second.due(1), Duration::ZERO);
        assert_eq!(Pace::new(1, 1, Duration::MAX).due(0), Duration::ZERO);
    }
}
