//! Chores of this repository: `cargo xtask --help`.

mod cmd;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// A real control plane on loopback
    #[command(subcommand)]
    Cluster(cmd::cluster::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.chore {
        Chore::Cluster(args) => cmd::cluster::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
