//! The command line. One file a subcommand, each with its `Args` and a `run(Args) -> ExitCode`.
//!
//! A new subcommand is a module, a variant of [`Command`] and a line in [`Cli::run`]. Data goes to stdout, words to
//! stderr.

use std::process::ExitCode;

mod crd;
pub mod guard;

/// Distributed locks for Kubernetes that hold, and fence.
#[derive(clap::Parser)]
#[command(
    name = "leasehold",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Crd(crd::Args),
}

impl Cli {
    /// Runs the subcommand on this, the main thread.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Crd(args) => crd::run(&args),
        }
    }
}
