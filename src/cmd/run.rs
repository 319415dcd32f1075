//! `leasehold run`: take a lock, run a command under it, keep it, give it back.

use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use kube::api::{Api, ListParams, PostParams};
use kube::core::DeserializeGuard;
use leasehold::api::{DistributedLock, DistributedLockSpec};
use leasehold::client::{AcquireError, Acquiring, ConnectError, Guard, Locks, Progress};
use leasehold::lease::store::chain;
use leasehold::supervise::{
    EXIT_NOT_EXECUTABLE, ResolveError, Signal, Signals, Supervisor, exit_code_for_signal,
    resolve_command,
};
use serde_json::json;

use self::held::Held;
use super::{init_tracing, parse_duration, say};

mod held;

/// Unreachable, refused, or no such lock.
const EXIT_UNAVAILABLE: u8 = 69;
/// The command line is wrong, or its times do not fit the lock's.
const EXIT_USAGE: u8 = 2;
/// What the command gets between TERM and KILL, where a fifth of the lease is not less.
const DEFAULT_KILL_GRACE: Duration = Duration::from_secs(10);
/// What to do where the definitions are missing.
const NOT_INSTALLED: &str = "the server does not know DistributedLocks at all: install Leasehold first (kubectl apply -f crds/)";
/// Where Kubernetes looks for a container's last words.
const TERMINATION_LOG: &str = "/dev/termination-log";

const EXIT_CODES: &str = "\
Exit codes:
  the command's own; 128 + n if signal n ended it
    2  the command line is wrong, or --kill-grace does not fit the lock's lease duration
   69  the API server is unreachable or refuses, there is no such lock, or it is not ready (--try)
   75  busy (--try), not had in time (--wait), or too many wait already; see --busy-exit-code
   76  the lock was lost while the command ran; see --lost-exit-code
  126  the command can't be executed
  127  the command was not found
  128 + n  signal n came while waiting

The command finds LEASEHOLD_LOCK, LEASEHOLD_NAMESPACE, LEASEHOLD_SLOT, LEASEHOLD_HOLDER and
LEASEHOLD_FENCING_TOKEN in its environment. Send the token with every write; have the resource refuse a lower one.";

/// Run a command while holding a lock.
///
/// Takes the lock, runs the command in a process group of its own, renews the lock, and gives it back once the command
/// and everything that it started have ended. If the lock is lost, the command is ended (TERM, then KILL) before
/// anybody else can take the lock. No shell is involved.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Args {
    /// The `DistributedLock` to hold
    #[arg(long, value_name = "LOCK")]
    lock: String,
    /// The lock's namespace; by default the kubeconfig's, or the Pod's own
    #[arg(long, short, value_name = "NS")]
    namespace: Option<String>,
    /// Who holds it, as people will see it; by default the Pod's name, or the host's
    #[arg(long = "as", value_name = "CLAIMANT")]
    claimant: Option<String>,
    /// Wait at most this long, such as 90s or 5m; by default without limit
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "try_")]
    wait: Option<Duration>,
    /// Do not wait: exit with the busy code if the lock is not to be had at once
    #[arg(long = "try")]
    try_: bool,
    /// What the command gets between TERM and KILL; at most a fifth of the lease duration, which is also the default, up
    /// to 10s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    kill_grace: Option<Duration>,
    /// Exit code for "busy", "not in time" and "too many wait"
    #[arg(long, value_name = "CODE", default_value_t = 75)]
    busy_exit_code: u8,
    /// Exit code for "lost while running"
    #[arg(long, value_name = "CODE", default_value_t = 76)]
    lost_exit_code: u8,
    /// If there is no such lock, wait until somebody makes it
    #[arg(long)]
    wait_for_lock: bool,
    /// If there is no such lock, make it, with default settings
    #[arg(long, conflicts_with = "wait_for_lock")]
    create: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What the process ends with: a code, and last words for the container's status.
struct End {
    code: u8,
    reason: String,
    token: Option<i64>,
    holder: Option<String>,
}

impl End {
    fn new(code: u8, reason: &str) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            token: None,
            holder: None,
        }
    }
}

/// Runs on the main thread, before there is any other: the guardian must be started from it.
pub fn run(args: Args) -> ExitCode {
    let lock = args.lock.clone();
    let end = prepare(args);
    leave_last_words(&lock, &end);
    ExitCode::from(end.code)
}

fn prepare(args: Args) -> End {
    // What fails again and again is said once, by us.
    init_tracing("error,kube_client=off");
    let Some(name) = args.command.first().cloned() else {
        return End::new(EXIT_USAGE, "NoCommand");
    };
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
    let ready = tokio::select! {
        biased;
        signal = ending_signal(&mut signals) => {
            return End::new(exit_code_for_signal(signal.as_raw()), "Signal");
        }
        ready = get_ready(&args) => ready,
    };
    let locks = match ready {
        Ok(locks) => locks,
        Err(words) => {
            say(&words);
            return End::new(EXIT_UNAVAILABLE, "Unreachable");
        }
    };
    let guard = match acquire(&args, &locks, &mut signals).await {
        Ok(guard) => guard,
        Err(end) => return end,
    };
    Held {
        args: &args,
        guard: ManuallyDrop::new(guard),
        signals,
    }
    .run(program, supervisor)
    .await
}

/// Connects, and makes the lock if that was asked for; or says why not.
async fn get_ready(args: &Args) -> Result<Locks, String> {
    let locks = connect(args.namespace.as_deref())
        .await
        .map_err(|error| error.to_string())?;
    if args.create {
        create(&locks, &args.lock)
            .await
            .map_err(|error| format!("cannot make lock {:?}: {error}", args.lock))?;
    }
    Ok(locks)
}

/// The next signal that ends a wait.
async fn ending_signal(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.recv().await;
        if Signals::ends_waiting(signal) {
            return signal;
        }
    }
}

async fn connect(namespace: Option<&str>) -> Result<Locks, ConnectError> {
    let config = kube::Config::infer()
        .await
        .map_err(|error| ConnectError::Config(chain(&error)))?;
    let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
    Locks::new(config, &namespace)
}

/// Waits for the lock; `Err` is how the process ends without it.
async fn acquire(args: &Args, locks: &Locks, signals: &mut Signals) -> Result<Guard, End> {
    let mut acquiring = begin(args, locks);
    loop {
        tokio::select! {
            biased;
            signal = signals.recv() => {
                if Signals::ends_waiting(signal) {
                    withdraw(acquiring, signals).await;
                    return Err(End::new(exit_code_for_signal(signal.as_raw()), "Signal"));
                }
            }
            outcome = acquiring.outcome() => {
                return match outcome {
                    Ok(guard) => Ok(guard),
                    Err(error) => Err(not_acquired(args, locks, &error).await),
                };
            }
        }
    }
}

fn begin(args: &Args, locks: &Locks) -> Acquiring {
    let mut request = locks.lock(&args.lock).on_progress(report);
    if let Some(claimant) = &args.claimant {
        request = request.claimant(claimant);
    }
    if let Some(wait) = args.wait {
        request = request.wait(wait);
    }
    // A lock made a moment ago is not there for the operator yet.
    if args.wait_for_lock || args.create {
        request = request.wait_for_lock();
    }
    request = match args.kill_grace {
        Some(grace) => request.kill_grace(grace),
        None => request.kill_grace_up_to(DEFAULT_KILL_GRACE),
    };
    if args.try_ {
        request.begin_try()
    } else {
        request.begin()
    }
}

fn report(progress: &Progress) {
    match progress {
        Progress::Waiting(report) => say(&format!("waiting for lock {:?}: {report}", report.lock)),
        Progress::NoSuchLock { lock } => say(&format!("waiting for lock {lock:?} to be made")),
        Progress::ClaimLeft(why) => say(&format!("the claim is left in the queue: {why}")),
        Progress::StartingOver {
            lock,
            reason,
            waited_for,
        } => say(&format!(
            "lost lock {lock:?} ({}) while waiting for lock {waited_for:?}: starting over",
            reason.as_str()
        )),
        Progress::Trouble(trouble) => say(&format!("{trouble}; trying again")),
    }
}

/// Leaves the queue. A second signal does not wait for that.
async fn withdraw(acquiring: Acquiring, signals: &mut Signals) {
    tokio::select! {
        () = acquiring.withdraw() => {}
        _ = ending_signal(signals) => say("left without confirmation that the queue was left"),
    }
}

async fn not_acquired(args: &Args, locks: &Locks, error: &AcquireError) -> End {
    let mut words = error.to_string();
    let (code, reason) = match error {
        AcquireError::Busy(_) => (args.busy_exit_code, "Busy"),
        AcquireError::TimedOut(_) => (args.busy_exit_code, "TimedOut"),
        AcquireError::Rejected { .. } => (args.busy_exit_code, "Rejected"),
        AcquireError::NoSuchLock { lock, namespace } => {
            words = format!("{words}{}", advice(locks, lock, namespace).await);
            (EXIT_UNAVAILABLE, "NoSuchLock")
        }
        AcquireError::NotReady(_) => (EXIT_UNAVAILABLE, "NotReady"),
        AcquireError::Forbidden(_) => (EXIT_UNAVAILABLE, "Forbidden"),
        AcquireError::Unreachable(_) => (EXIT_UNAVAILABLE, "Unreachable"),
        AcquireError::NewerVersion { .. } => (EXIT_UNAVAILABLE, "NewerVersion"),
        AcquireError::NoTokenLeft { .. } => (EXIT_UNAVAILABLE, "NoTokenLeft"),
        AcquireError::Unsettled { .. } => (EXIT_UNAVAILABLE, "Unsettled"),
        AcquireError::ShutDown => (EXIT_UNAVAILABLE, "ShutDown"),
        AcquireError::BadSettings { .. } => (EXIT_USAGE, "BadSettings"),
        AcquireError::BadName { .. } => (EXIT_USAGE, "BadName"),
        AcquireError::BadPriority { .. } => (EXIT_USAGE, "BadPriority"),
    };
    say(&words);
    let mut end = End::new(code, reason);
    if let AcquireError::Busy(report) | AcquireError::TimedOut(report) = error {
        end.holder.clone_from(&report.holder);
        end.token = report.token;
    }
    end
}

/// The nearest names, where they may be listed, and the command that makes the lock.
async fn advice(locks: &Locks, lock: &str, namespace: &str) -> String {
    let api: Api<DeserializeGuard<DistributedLock>> = Api::namespaced(locks.client(), namespace);
    let listed = tokio::time::timeout(
        Duration::from_secs(3),
        api.list_metadata(&ListParams::default()),
    )
    .await;
    let mut near = match listed {
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
            return format!("; {NOT_INSTALLED}");
        }
        Ok(Ok(list)) => list
            .items
            .into_iter()
            .filter_map(|item| item.metadata.name)
            .collect(),
        _ => vec![],
    };
    near.sort_by_cached_key(|name| strsim::damerau_levenshtein(name, lock));
    near.retain(|name| {
        strsim::damerau_levenshtein(name, lock) <= 3
            || name.contains(lock)
            || lock.contains(name.as_str())
    });
    near.truncate(3);
    let object = json!({
        "apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
        "metadata": {"name": lock, "namespace": namespace},
    });
    let near = if near.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", near.join(", "))
    };
    format!(
        "{near}\nto make it: echo '{object}' | kubectl apply -f -\nor add --create, or --wait-for-lock to wait for it"
    )
}

async fn create(locks: &Locks, lock: &str) -> Result<(), String> {
    let api: Api<DistributedLock> = Api::namespaced(locks.client(), locks.namespace());
    let object = DistributedLock::new(lock, DistributedLockSpec::default());
    match tokio::time::timeout(
        Duration::from_secs(10),
        api.create(&PostParams::default(), &object),
    )
    .await
    {
        Err(_) => Err("no answer within 10 s".to_owned()),
        Ok(Ok(_)) => {
            say(&format!("made lock {lock:?}"));
            Ok(())
        }
        Ok(Err(kube::Error::Api(status))) if status.reason == "AlreadyExists" => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 && status.details.is_none() => {
            Err(NOT_INSTALLED.to_owned())
        }
        // The server's own words; the error's have the whole status in them.
        Ok(Err(kube::Error::Api(status))) if status.code < 500 => Err(status.message.clone()),
        Ok(Err(error)) => Err(chain(&error)),
    }
}

/// `{reason, lock, token, holder}` where Kubernetes shows it, if it does.
fn leave_last_words(lock: &str, end: &End) {
    let words =
        json!({"reason": end.reason, "lock": lock, "token": end.token, "holder": end.holder});
    if std::fs::metadata(TERMINATION_LOG).is_ok_and(|file| file.is_file()) {
        // Nobody is left to tell if this fails.
        let _ = std::fs::write(TERMINATION_LOG, format!("{words}\n"));
    }
}
