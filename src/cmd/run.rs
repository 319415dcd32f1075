//! `leasehold run`: take one or several locks, run a command under them, keep them, give them back.

use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::supervise::{
    EXIT_NOT_EXECUTABLE, ResolveError, Signals, Supervisor, exit_code_for_signal, resolve_command,
};
use serde_json::{Value, json};

use self::health::Health;
use self::held::Held;
use super::request::Request;
use super::{init_tracing, parse_address, parse_duration, parse_namespace, say};

pub(super) mod asking;
pub(super) mod facts;
mod health;
mod held;
mod verdict;

/// Unreachable, refused, or no such lock.
pub(super) const EXIT_UNAVAILABLE: u8 = 69;
/// The command line is wrong, or its times do not fit the lock's.
pub(super) const EXIT_USAGE: u8 = 2;
/// Where Kubernetes looks for a container's last words.
const TERMINATION_LOG: &str = "/dev/termination-log";

const EXIT_CODES: &str = "\
Exit codes:
  the command's own; 128 + n if signal n ended it
    2  the command line is wrong, --kill-grace does not fit the lock's lease duration, or
       --health-addr can't be listened on
   69  the API server is unreachable or refuses, there is no such lock, or it is not ready (--try)
   75  busy (--try), not had in time (--wait), or too many wait already; see --busy-exit-code
   76  the lock was lost while the command ran; see --lost-exit-code
  126  the command can't be executed
  127  the command was not found
  128 + n  signal n came while waiting

The command finds LEASEHOLD_LOCK, LEASEHOLD_NAMESPACE, LEASEHOLD_SLOT, LEASEHOLD_HOLDER and
LEASEHOLD_FENCING_TOKEN in its environment. Send the token with every write; have the resource refuse a lower one.
With several locks these hold lists, separated by commas, in the order of the locks' names; each lock's own are in
LEASEHOLD_SLOT_<LOCK>, LEASEHOLD_HOLDER_<LOCK> and LEASEHOLD_FENCING_TOKEN_<LOCK> (upper case, - as _).";

/// Run a command while holding a lock, or several.
///
/// Takes the lock, runs the command in a process group of its own, renews the lock, and gives it back once the command
/// and everything that it started have ended. If the lock is lost, the command is ended (TERM, then KILL) before
/// anybody else can take the lock. No shell is involved.
///
/// Several locks are taken in the order of their names, all or none; if one is lost, the command is ended.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Args {
    /// The `DistributedLock` to hold; given again, one more, all or none
    #[arg(long = "lock", value_name = "LOCK", required = true)]
    locks: Vec<String>,
    /// The locks' namespace; by default the kubeconfig's, or the Pod's own
    #[arg(long, short, value_name = "NS", value_parser = parse_namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    request: Request,
    /// Wait at most this long for all of them, such as 90s or 5m; by default without limit
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "try_")]
    wait: Option<Duration>,
    /// Do not wait: exit with the busy code if the lock is not to be had at once
    #[arg(long = "try")]
    try_: bool,
    /// Where to answer /livez (200 while this process runs) and /heldz (200 while all locks are held, else 503)
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    health_addr: Option<SocketAddr>,
    /// Exit code for "busy", "not in time" and "too many wait"
    #[arg(long, value_name = "CODE", default_value_t = 75)]
    busy_exit_code: u8,
    /// Exit code for "lost while running"
    #[arg(long, value_name = "CODE", default_value_t = 76)]
    lost_exit_code: u8,
    /// If there is no such lock, make it, with default settings
    #[arg(long, conflicts_with = "wait_for_lock")]
    create: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What the process ends with: a code, and last words for the container's status.
pub(super) struct End {
    pub(super) code: u8,
    pub(super) reason: String,
    /// The lock that it is about; without one, all that were asked for.
    pub(super) lock: Option<String>,
    pub(super) token: Value,
    pub(super) holder: Option<String>,
}

impl End {
    pub(super) fn new(code: u8, reason: &str) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            lock: None,
            token: Value::Null,
            holder: None,
        }
    }

    fn about(self, lock: &str) -> Self {
        Self {
            lock: Some(lock.to_owned()),
            ..self
        }
    }
}

/// Runs on the main thread, before there is any other: the guardian must be started from it.
pub fn run(args: Args) -> ExitCode {
    let locks = args.locks.join(",");
    let end = prepare(args);
    leave_last_words(&locks, &end);
    ExitCode::from(end.code)
}

fn prepare(args: Args) -> End {
    // What fails again and again is said once, by us.
    init_tracing("error,kube_client=off");
    let Some(name) = args.command.first().cloned() else {
        return End::new(EXIT_USAGE, "NoCommand");
    };
    if let Some(lock) = named_twice(&args.locks) {
        say(&format!(
            "--lock {lock} is given twice: name each lock once"
        ));
        return End::new(EXIT_USAGE, "Duplicate").about(lock);
    }
    let program = match resolve_command(&name, std::env::var_os("PATH").as_deref()) {
        Ok(program) => program,
        Err(error) => {
            say(&error.to_string());
            return End::new(resolve_code(&error), "CommandNotFound");
        }
    };
    let supervisor = match Supervisor::spawn(&leasehold::supervise::Options::default()) {
        Ok(supervisor) => supervisor,
        Err(error) => {
            say(&error.to_string());
            return End::new(EXIT_NOT_EXECUTABLE, "NoGuardian");
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("cannot start: {error}"));
            return End::new(EXIT_NOT_EXECUTABLE, "NoRuntime");
        }
    };
    let end = runtime.block_on(hold_and_run(args, program, supervisor));
    runtime.shutdown_timeout(Duration::from_millis(100));
    end
}

fn named_twice(locks: &[String]) -> Option<&String> {
    let mut earlier = std::collections::BTreeSet::new();
    locks.iter().find(|lock| !earlier.insert(*lock))
}

fn resolve_code(error: &ResolveError) -> u8 {
    error.exit_code()
}

async fn hold_and_run(args: Args, program: PathBuf, supervisor: Supervisor) -> End {
    let mut signals = match Signals::install() {
        Ok(signals) => signals,
        Err(error) => {
            say(&format!("cannot install signal handlers: {error}"));
            return End::new(EXIT_NOT_EXECUTABLE, "NoSignals");
        }
    };
    let health = Health::new(&args.locks);
    if let Some(address) = args.health_addr
        && let Err(words) = health.serve(address).await
    {
        say(&words);
        return End::new(EXIT_USAGE, "HealthAddress");
    }
    let ready = tokio::select! {
        biased;
        signal = asking::ending_signal(&mut signals) => {
            return End::new(exit_code_for_signal(signal.as_raw()), "Signal");
        }
        ready = asking::get_ready(&args) => ready,
    };
    let locks = match ready {
        Ok(locks) => locks,
        Err(words) => {
            say(&words);
            return End::new(EXIT_UNAVAILABLE, "Unreachable");
        }
    };
    let guards = match asking::acquire(&args, &locks, &mut signals).await {
        Ok(guards) => guards,
        Err(end) => return end,
    };
    Held {
        args: &args,
        guards: ManuallyDrop::new(guards),
        signals,
        health,
    }
    .run(program, supervisor)
    .await
}

/// `{reason, lock, token, holder}` where Kubernetes shows it, if it does.
pub(super) fn leave_last_words(locks: &str, end: &End) {
    let lock = end.lock.as_deref().unwrap_or(locks);
    let words =
        json!({"reason": end.reason, "lock": lock, "token": end.token, "holder": end.holder});
    if std::fs::metadata(TERMINATION_LOG).is_ok_and(|file| file.is_file()) {
        // Nobody is left to tell if this fails.
        let _ = std::fs::write(TERMINATION_LOG, format!("{words}\n"));
    }
}
