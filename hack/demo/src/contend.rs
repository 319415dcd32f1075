//! A naive contender: takes the lock as the rules allow, and then never looks back.
//!
//! It neither renews its lease nor watches it while its work runs. Its take is the library's own, guarded and with a
//! token; what is naive is to believe that a lock, once taken, stays taken.

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use leasehold::api::DistributedLock;
use leasehold::clock::MonoInstant;
use leasehold::engine::change::take;
use leasehold::engine::standing::standing;
use leasehold::engine::{Grant, Hold, Moment, NextChange, Observation, Requester, Seen, Standing};
use leasehold::lease::view::lock_view;
use leasehold::lease::{FoundLease, LeaseStore, Put};

use crate::said::{Said, now};

/// How long a call may take.
const CALL: Duration = Duration::from_secs(5);
/// How often it looks again, whatever the watch says.
const SLOW_BEAT: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The lock
    #[arg(long)]
    lock: String,
    /// Its namespace
    #[arg(long)]
    namespace: String,
    /// Who it is
    #[arg(long = "as")]
    claimant: String,
    /// The work
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (grant, sent) = crate::runtime()?.block_on(contend(args))?;
    Said::Took {
        at: sent,
        token: grant.token.get(),
        holder: grant.holder.clone(),
    }
    .say()?;
    let status = Command::new(&args.command[0])
        .args(&args.command[1..])
        .env("LEASEHOLD_LOCK", &args.lock)
        .env("LEASEHOLD_NAMESPACE", &args.namespace)
        .env("LEASEHOLD_SLOT", "0")
        .env("LEASEHOLD_HOLDER", &grant.holder)
        .env("LEASEHOLD_FENCING_TOKEN", grant.token.to_string())
        .status()
        .context("can't start the work")?;
    Ok(ExitCode::from(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
    ))
}

/// What a contender knows of the Lease.
struct Sight {
    lease: FoundLease,
    seen: Observation,
}

/// Waits until it has the lock; with the moment before the write that took it.
async fn contend(args: &Args) -> Result<(Grant, i64)> {
    let mut config = kube::Config::infer()
        .await
        .context("no API server is configured")?;
    // A retried PUT turns "applied" into a plain conflict.
    config.default_retry = false;
    let client = kube::Client::try_from(config)?;
    let locks = Api::<DistributedLock>::namespaced(client.clone(), &args.namespace);
    let store = LeaseStore::new(client, &args.namespace);
    let who = Requester {
        identity: format!(
            "{}/{:016x}",
            args.claimant,
            RandomState::new().hash_one(std::process::id())
        ),
        hold: Hold::Heartbeat,
        pod: None,
        note: None,
        remembered: 0,
    };

    let only = watcher::Config::default().fields(&format!("metadata.name={}", args.lock));
    let mut events = pin!(watcher::watcher(store.api().clone(), only).default_backoff());
    let mut sight: Option<Sight> = None;
    loop {
        // The lock is read again before a silent holder is replaced, and each time there is something new to judge.
        let lock = locks.get(&args.lock).await.context("can't read the lock")?;
        let lock = lock_view(&lock, 0, false);
        let mut wait = SLOW_BEAT;
        if let Some(Sight { lease, seen }) = &sight {
            match standing(&lock, &lease.record, seen, moment()) {
                stands if stands.is_takeable() => {
                    let sent = now();
                    let take = take(&lock, &lease.record, stands, &who, NextChange::Keep, sent)?;
                    match store.put(&args.lock, lease, &take.record, CALL).await {
                        Put::Applied(_) => return Ok((take.grant, sent)),
                        // Somebody was faster, or nobody knows: what is there now tells.
                        Put::Conflict | Put::Gone | Put::Unknown(_) => {}
                        Put::Forbidden(error) | Put::Refused(error) => return Err(error.into()),
                    }
                    let found = store.get(&args.lock, CALL).await?;
                    if let Some(grant) = found
                        .as_ref()
                        .and_then(|found| found.record.current_grant())
                        && *grant == take.grant
                    {
                        return Ok((take.grant, sent));
                    }
                    note(&mut sight, found, Seen::Read);
                    continue;
                }
                Standing::Held { until } => wait = wait.min(until.saturating_sub(moment())),
                _ => {}
            }
        }
        // After an error the watch begins again by itself, with a list.
        if let Ok(Some(Ok(event))) = tokio::time::timeout(wait, events.next()).await {
            see(&mut sight, event);
        }
    }
}

fn see(sight: &mut Option<Sight>, event: Event<DynamicObject>) {
    match event {
        Event::InitApply(object) => note(sight, FoundLease::read(object), Seen::Read),
        Event::Apply(object) => note(sight, FoundLease::read(object), Seen::Watched),
        Event::Delete(_) => *sight = None,
        Event::Init | Event::InitDone => {}
    }
}

fn note(sight: &mut Option<Sight>, lease: Option<FoundLease>, how: Seen) {
    let Some(lease) = lease else {
        *sight = None;
        return;
    };
    match sight {
        // An event that the read overtook.
        Some(known)
            if how == Seen::Watched
                && lease.record.resource_version <= known.lease.record.resource_version => {}
        Some(known) => {
            known.seen.note(&lease.record, how, moment());
            known.lease = lease;
        }
        None => {
            let seen = Observation::first(&lease.record, moment());
            *sight = Some(Sight { lease, seen });
        }
    }
}

fn moment() -> Moment {
    Duration::from_nanos(MonoInstant::now().as_nanos())
}
