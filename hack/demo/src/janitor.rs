//! The janitor ends whatever a driver left behind, in whatever way the driver ended.
//!
//! It reads from the driver's pipe until that closes, which the kernel does even for a driver that was killed.

use std::io::{self, Read};
use std::process::ExitCode;

use crate::processes::Which;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run whose processes are to end.
    run: String,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    // Out of reach of Ctrl-C in the driver's terminal. An error only says that we lead a session already.
    let _ = rustix::process::setsid();
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
    Which::Run(args.run.clone()).kill();
    ExitCode::SUCCESS
}
