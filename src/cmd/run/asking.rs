//! The way to the locks: connecting, making what is missing, asking, leaving, and the words and codes of each.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams, PostParams};
use kube::core::DeserializeGuard;
use leasehold::api::{DistributedLock, DistributedLockSpec, names};
use leasehold::client::{
    self, AcquireAllError, AcquireError, AcquiringAll, ConnectError, Guards, Locks, Progress,
};
use leasehold::lease::store::{StoreError, chain};
use leasehold::supervise::{Signal, Signals, exit_code_for_signal};
use serde_json::json;

use super::{Args, EXIT_UNAVAILABLE, EXIT_USAGE, End};
use crate::cmd::say;

/// Connects, and makes the locks if that was asked for; or says why not.
pub(super) async fn get_ready(args: &Args) -> Result<Locks, String> {
    let locks = connect(args.namespace.as_deref())
        .await
        .map_err(|error| error.to_string())?;
    if args.create {
        for lock in &args.locks {
            create(&locks, lock)
                .await
                .map_err(|error| format!("cannot make lock {lock:?}: {error}"))?;
        }
    }
    Ok(locks)
}

/// The next signal that ends a wait.
pub(super) async fn ending_signal(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.recv().await;
        if Signals::ends_waiting(signal) {
            return signal;
        }
    }
}

/// Connects to the server that the environment names.
pub(in crate::cmd) async fn connect(namespace: Option<&str>) -> Result<Locks, ConnectError> {
    let config = kube::Config::infer()
        .await
        .map_err(|error| ConnectError::Config(chain(&error)))?;
    let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
    Locks::new(config, &namespace)
}

/// Waits for the locks; `Err` is how the process ends without them.
pub(super) async fn acquire(
    args: &Args,
    locks: &Locks,
    signals: &mut Signals,
) -> Result<Guards, End> {
    let mut acquiring = begin(args, locks);
    loop {
        tokio::select! {
            biased;
            signal = signals.recv() => {
                if Signals::ends_waiting(signal) {
                    withdraw(args, acquiring, signals).await;
                    return Err(End::new(exit_code_for_signal(signal.as_raw()), "Signal"));
                }
            }
            outcome = acquiring.outcome() => {
                return match outcome {
                    Ok(guards) => Ok(guards),
                    Err(error) => Err(not_acquired(args, locks, &error).await),
                };
            }
        }
    }
}

fn begin(args: &Args, locks: &Locks) -> AcquiringAll {
    let each = args
        .locks
        .iter()
        .map(|lock| args.request.of(locks.lock(lock)));
    let mut request = client::all(each).on_progress(report);
    if let Some(wait) = args.wait {
        request = request.wait(wait);
    }
    if args.create {
        // A lock made a moment ago is not there for the operator yet.
        request = request.wait_for_lock();
    }
    if args.try_ {
        request.begin_try()
    } else {
        request.begin()
    }
}

/// Says how a wait goes on.
pub(in crate::cmd) fn report(progress: &Progress) {
    match progress {
        Progress::Waiting(report) => say(&format!("waiting for lock {:?}: {report}", report.lock)),
        Progress::NoSuchLock { lock } => say(&format!("waiting for lock {lock:?} to be made")),
        Progress::ClaimGone { lock } => say(&format!(
            "the claim on lock {lock:?} is gone (deleted, or passed over as its turn was not taken): queueing again, \
             behind the others"
        )),
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

/// Leaves the queue. A second signal does not wait for that, unless there may be locks to give back: they are given back
/// within a lease.
async fn withdraw(args: &Args, acquiring: AcquiringAll, signals: &mut Signals) {
    if args.locks.len() > 1 {
        return acquiring.withdraw().await;
    }
    tokio::select! {
        () = acquiring.withdraw() => {}
        _ = ending_signal(signals) => say("left without confirmation that the queue was left"),
    }
}

async fn not_acquired(args: &Args, locks: &Locks, error: &AcquireAllError) -> End {
    let (lock, error) = match error {
        AcquireAllError::Lock { lock, error, .. } => (lock, error),
        AcquireAllError::Lost { lost, .. } => {
            say(&error.to_string());
            return End::new(args.busy_exit_code, "LostWhileWaiting").about(&lost.lock);
        }
        AcquireAllError::Duplicate { lock, .. } => {
            say(&error.to_string());
            return End::new(EXIT_USAGE, "Duplicate").about(lock);
        }
        AcquireAllError::Empty => return End::new(EXIT_USAGE, "Empty"),
        AcquireAllError::ShutDown => return End::new(EXIT_UNAVAILABLE, "ShutDown"),
    };
    not_had(
        args.busy_exit_code,
        args.request.wait_for_lock,
        locks,
        lock,
        error,
    )
    .await
}

/// Says why a lock was not had. `waits` tells whether it was to wait for the lock to be made.
pub(in crate::cmd) async fn not_had(
    busy_code: u8,
    waits: bool,
    locks: &Locks,
    lock: &str,
    error: &AcquireError,
) -> End {
    let mut words = error.to_string();
    let (code, reason) = match error {
        AcquireError::Busy(_) => (busy_code, "Busy"),
        AcquireError::TimedOut(_) => (busy_code, "TimedOut"),
        AcquireError::Rejected { .. } => (busy_code, "Rejected"),
        AcquireError::NoSuchLock { lock, namespace } => {
            words.push_str(&advice(locks, lock, namespace, waits).await);
            (EXIT_UNAVAILABLE, "NoSuchLock")
        }
        AcquireError::NotReady(_) => (EXIT_UNAVAILABLE, "NotReady"),
        AcquireError::Forbidden(error) => {
            words.push_str(rights(error));
            (EXIT_UNAVAILABLE, "Forbidden")
        }
        AcquireError::Unreachable(_) => (EXIT_UNAVAILABLE, "Unreachable"),
        AcquireError::NewerVersion { .. } => (EXIT_UNAVAILABLE, "NewerVersion"),
        AcquireError::NoTokenLeft { .. } => (EXIT_UNAVAILABLE, "NoTokenLeft"),
        AcquireError::Unsettled { .. } => (EXIT_UNAVAILABLE, "Unsettled"),
        AcquireError::ShutDown => (EXIT_UNAVAILABLE, "ShutDown"),
        AcquireError::BadSettings { .. } => (EXIT_USAGE, "BadSettings"),
        AcquireError::BadName { .. } => (EXIT_USAGE, "BadName"),
        AcquireError::BadClaimant { .. } => (EXIT_USAGE, "BadClaimant"),
        AcquireError::BadPriority { .. } => (EXIT_USAGE, "BadPriority"),
    };
    say(&words);
    let mut end = End::new(code, reason).about(lock);
    if let AcquireError::Busy(report) | AcquireError::TimedOut(report) = error {
        end.holder.clone_from(&report.holder);
        end.token = json!(report.token);
    }
    end
}

/// Where to get the rights from, if RBAC refused; a policy says by itself what to do.
fn rights(error: &StoreError) -> &'static str {
    match error {
        StoreError::Forbidden { message, .. } if message.contains(" cannot ") => {
            "; bind the ClusterRole leasehold-user in the lock's namespace, or a Role as docs/helm.md shows it"
        }
        _ => "",
    }
}

/// What is missing: definitions, namespace or, with the nearest names and the command that makes it, the lock.
async fn advice(locks: &Locks, lock: &str, namespace: &str, waits: bool) -> String {
    let api: Api<DeserializeGuard<DistributedLock>> = Api::namespaced(locks.client(), namespace);
    let listed = tokio::time::timeout(
        Duration::from_secs(3),
        api.list_metadata(&ListParams::default()),
    )
    .await;
    let mut near = match listed {
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
            return format!("; {}", not_installed());
        }
        Ok(Ok(list)) => list
            .items
            .into_iter()
            .filter_map(|item| item.metadata.name)
            .collect(),
        _ => vec![],
    };
    if is_missing(locks, namespace).await {
        return "; there is no such namespace: make it, or name another by --namespace".to_owned();
    }
    if waits {
        return ": nobody made it in time".to_owned();
    }
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

/// Whether there is no such namespace; not, where that may not be read.
async fn is_missing(locks: &Locks, namespace: &str) -> bool {
    let api: Api<Namespace> = Api::all(locks.client());
    let found = tokio::time::timeout(Duration::from_secs(3), api.get_opt(namespace)).await;
    matches!(found, Ok(Ok(None)))
}

fn not_installed() -> String {
    format!(
        "the server does not know DistributedLocks at all: install Leasehold first ({})",
        names::HOW_TO_INSTALL
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
            Err(not_installed())
        }
        // The server's own words; the error's have the whole status in them.
        Ok(Err(kube::Error::Api(status))) if status.code < 500 => Err(status.message.clone()),
        Ok(Err(error)) => Err(chain(&error)),
    }
}
