//! The command line. One file a subcommand, each with its `Args` and a `run(Args) -> ExitCode`.
//!
//! A new subcommand is a module, a variant of [`Command`] and a line in [`Cli::run`]. Data goes to stdout, words to
//! stderr.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use k8s_openapi::jiff::SignedDuration;
use leasehold::api::names::{CLAIMANT_RULE, LABEL_RULE, is_claimant, is_label};
use leasehold::clock::MonoInstant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing_subscriber::EnvFilter;

mod crd;
pub mod guard;
mod log;
mod operator;
mod probe;
mod request;
mod run;
mod sidecar;

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
    Operator(operator::Args),
    Run(run::Args),
    Sidecar(sidecar::Args),
    Probe(probe::Args),
}

impl Cli {
    /// The words of the command line, or how the process ends without them: `--help`, or what is wrong.
    pub fn read() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| {
            let _ = error.print();
            if let Some(word) = command_without_dashes(&error) {
                say(&format!(
                    "put -- before the command: leasehold run … -- {word}"
                ));
            }
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        })
    }

    /// Runs the subcommand on this, the main thread.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Crd(args) => crd::run(&args),
            Command::Operator(args) => operator::run(args),
            Command::Run(args) => run::run(args),
            Command::Sidecar(args) => sidecar::run(args),
            Command::Probe(args) => probe::run(&args),
        }
    }
}

/// The word with which a command begins that stands where options are expected.
fn command_without_dashes(error: &clap::Error) -> Option<&str> {
    let runs = std::env::args_os().nth(1).is_some_and(|word| word == "run");
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word))
            if runs && error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-') =>
        {
            Some(word)
        }
        _ => None,
    }
}

/// How long somebody who reads our words slowly is waited for.
const READ_WITHIN: Duration = Duration::from_millis(200);

/// Whether the last words were waited for in vain: then the next ones wait for nobody.
static UNREAD: AtomicBool = AtomicBool::new(false);

/// Words for people, on stderr. Whoever read them may be gone by now (a log collector, a pipe): that ends nothing.
fn say(words: &str) {
    let _ = Words.write_all(format!("leasehold: {words}\n").as_bytes());
}

/// Standard error, for words that hold nothing up: a pipe that is full, since nobody reads it, takes no more of them.
struct Words;

impl Write for Words {
    fn write(&mut self, words: &[u8]) -> std::io::Result<usize> {
        if !is_read(&std::io::stderr()) {
            return Ok(words.len());
        }
        // So much a pipe takes that takes anything.
        let some = words.len().min(4096);
        std::io::stderr().write(&words[..some])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether a write would go through, within a moment. What is no pipe, or closed, does not hold a writer up.
fn is_read(stderr: &impl AsFd) -> bool {
    let since = MonoInstant::now();
    let within = if UNREAD.load(Ordering::Relaxed) {
        Duration::ZERO
    } else {
        READ_WITHIN
    };
    loop {
        let left = within.saturating_sub(MonoInstant::now().saturating_duration_since(since));
        let left = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(stderr, PollFlags::OUT)], left.as_ref()) {
            Ok(ready) => {
                UNREAD.store(ready == 0, Ordering::Relaxed);
                return ready > 0;
            }
            Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// A duration such as `90s`, `5m`, `1h30m` or `500ms`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no duration: write it like 90s, 5m or 1h30m");
    let duration: SignedDuration = text.parse().map_err(|_| bad())?;
    Duration::try_from(duration).map_err(|_| bad())
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is no address: write IP and port, like 127.0.0.1:9090, or 0.0.0.0:9090 for all")
    })
}

fn parse_claimant(text: &str) -> Result<String, String> {
    if is_claimant(text) {
        Ok(text.to_owned())
    } else {
        Err(format!("a claimant {CLAIMANT_RULE}"))
    }
}

fn parse_namespace(text: &str) -> Result<String, String> {
    if is_label(text) {
        Ok(text.to_owned())
    } else {
        Err(format!("a namespace's name {LABEL_RULE}"))
    }
}

/// Logs to stderr, filtered by `RUST_LOG`, else by `default`. What is wrong there is passed over: it may be meant for the
/// command that runs.
fn init_tracing(default: &str) {
    let asked = log::asked().ok().flatten();
    let filter = EnvFilter::try_new(asked.as_deref().unwrap_or(default))
        .unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Words)
        // They would go to the same stderr, and panic where that is closed.
        .log_internal_errors(false)
        .init();
}
