//! The `leasehold` program: parse, run one subcommand, exit by a documented code.

use std::process::ExitCode;

mod cmd;

fn main() -> ExitCode {
    if let Some(exit_code) = cmd::guard::run_if_hidden() {
        return exit_code;
    }
    // Before anything that may speak TLS, and in every process that this program becomes. An error only says that
    // a provider is there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // No async runtime here: `run` must start its guardian while this process has a single thread. Subcommands build
    // the runtime they need.
    match cmd::Cli::read() {
        Ok(cli) => cli.run(),
        Err(exit_code) => exit_code,
    }
}
