//! The hidden subcommands `__guardian` and `__exec`: the process half of `leasehold run`.

use std::process::ExitCode;

/// Runs one of them if this process was started as one. Comes before everything else in `main`: the guardian must
/// stay single-threaded, and the command's arguments are not ours to parse.
#[cfg(target_os = "linux")]
pub fn run_if_hidden() -> Option<ExitCode> {
    leasehold::supervise::run_if_hidden()
}

/// `leasehold run` is for Linux.
#[cfg(not(target_os = "linux"))]
pub fn run_if_hidden() -> Option<ExitCode> {
    None
}
