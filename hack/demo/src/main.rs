//! The nightly-billing story (`cargo xtask demo`): 50,000 customers, ten contenders, one of them frozen at 85 s.
//!
//! One program plays all the parts, each a subcommand: the driver ([`story`]), who runs inside a Pod ([`contend`],
//! [`bill`]), and two helpers that see to it that nothing outlives the driver ([`pod`], [`janitor`]).
//!
//! Everything in it is real: the control plane, the operator, the ledger in `PostgreSQL`, the SIGSTOP and the SIGKILL.
//! Only the Pods are process trees on this machine, unless the story is told on a node ([`node`]).

mod bill;
mod chronicle;
mod contend;
mod janitor;
mod kind;
mod ledger;
mod node;
mod pod;
mod processes;
mod promises;
mod record;
mod said;
mod speed;
mod stage;
mod story;
mod svg;
mod telling;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tells the nightly-billing story four times: naive, fenced, with Leasehold, and with a crash.
///
/// With --node it is told in Pods on a real node, with the chart installed by Helm: the holder's container frozen by the
/// freezer and thawed, its node's kubelet killed, its Pod deleted, out of memory, deleted by force. It exits with 1 and
/// says what was not as promised.
#[derive(Parser)]
#[command(
    name = "nightly-billing",
    bin_name = "cargo xtask demo",
    version,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(flatten)]
    story: story::Args,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand)]
enum Part {
    /// Charges the customers not yet charged; started by whoever holds the lock
    #[command(hide = true)]
    Bill(bill::Args),
    /// Waits for the lock, takes it once, never looks back
    #[command(hide = true)]
    Contend(contend::Args),
    /// Becomes a command that ends with the driver
    #[command(hide = true)]
    Pod(pod::Args),
    /// Ends whatever the driver left behind
    #[command(hide = true)]
    Janitor(janitor::Args),
}

fn main() -> ExitCode {
    // An error only says that a provider is there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::parse();
    let result = match cli.part {
        None => story::run(&cli.story),
        Some(Part::Bill(args)) => bill::run(&args),
        Some(Part::Contend(args)) => contend::run(&args),
        Some(Part::Pod(args)) => pod::run(&args),
        Some(Part::Janitor(args)) => Ok(janitor::run(&args)),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// A runtime on this thread alone: what it starts is bound to a thread that lives as long as the process.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
