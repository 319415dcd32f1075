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
    /// A real control plane on loopback, with a real node if asked for
    #[command(subcommand)]
    Cluster(cmd::cluster::Args),
    /// Run all tests against a control plane of their own
    Test(cmd::test::Args),
    /// Run everything that a change must pass: fmt, clippy, generated files, tests
    Ci(cmd::ci::Args),
    /// Make the files that come from the code: crds/
    Gen(cmd::generate::Args),
    /// Tell the nightly-billing story, on a real control plane and a real `PostgreSQL`
    Demo(cmd::demo::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.chore {
        Chore::Cluster(args) => cmd::cluster::run(&args),
        Chore::Test(args) => cmd::test::run(&args),
        Chore::Ci(args) => Ok(cmd::ci::run(&args)),
        Chore::Gen(args) => cmd::generate::run(&args),
        Chore::Demo(args) => cmd::demo::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
