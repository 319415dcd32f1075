//! The operator: it makes the Leases, ends silent holders, repairs `next`, revokes, mirrors status, tends claims.
//!
//! It grants nothing: takers take (R7). Down, slow, paused or doubled it can delay, never make two holders.
//!
//! * [`observe`]: watches feed the [`index`], in every replica, leader or not.
//! * [`pods`]: which Pods are there, as far as claims name them.
//! * [`queue`]: which lock to look at, now or at a moment.
//! * [`news`]: what a change of a Lease tells.
//! * [`reconcile`]: one look at one lock, by the leader only: decide purely ([`crate::engine::Keeper`], [`status`],
//!   [`claims`]), then write at the edge ([`apply`]).
//! * [`preflight`], [`health`], [`metrics`], [`events`]: what must be there first, and what others see.
//!
//! Rates: a lock that is held is looked at when its holder changes and once a lease duration; renewals cause neither a
//! look nor a write. At most [`WORKERS`] looks run at once.

pub mod apply;
pub mod claims;
pub mod events;
pub mod health;
pub mod index;
pub mod metrics;
pub mod news;
pub mod observe;
pub mod pods;
pub mod preflight;
pub mod queue;
pub mod reconcile;
mod report;
pub mod status;
mod tend;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use self::apply::{WriteError, Writer};
use self::events::Events;
use self::health::Health;
use self::index::{Index, Key};
use self::metrics::Metrics;
use self::queue::WorkQueue;
use self::reconcile::Reconciler;
use crate::admin;
use crate::client::calls::{backoff, pause_after, strict_client};
use crate::clock::{Clock, SystemClock};
use crate::engine::{Moment, WallMicros};
use crate::leader::{Election, Lead, LeaderTimes};
use crate::lease::LeaseStore;

/// Looks that run at once. One takes a few calls of some milliseconds: this many keep a server busy, not more.
pub const WORKERS: usize = 16;

/// How long looks that are under way may take to end on a stop.
const GRACE: Duration = Duration::from_secs(3);

/// How the operator is set up. Whoever makes one has checked it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its own namespace, for the election.
    pub namespace: String,
    /// The namespaces that it looks after; none means all.
    pub watched: Vec<String>,
    /// The name of the election's Lease.
    pub election: String,
    /// The times of the election.
    pub times: LeaderTimes,
    /// Who this replica is.
    pub identity: String,
    /// Where health and metrics are served.
    pub http_addr: SocketAddr,
}

/// Why the operator can't go on.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The configuration names no server that can be spoken to.
    #[error("cannot make a client: {0}")]
    Client(#[source] kube::Error),
    /// The address is taken, or not ours.
    #[error("{0}")]
    Listen(String),
    /// A bug: it is better to start anew than to go on in an unknown state.
    #[error("a part of the operator broke down: {0}")]
    Broken(#[source] tokio::task::JoinError),
}

/// What the parts of one replica share.
#[derive(Debug)]
pub struct Shared {
    index: Mutex<Index>,
    /// Locks to look at.
    pub queue: WorkQueue,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// What keeps it from being ready.
    pub health: Health,
    /// Tells the watches to list everything again.
    pub resync: Notify,
    /// The highest revision that a watch has shown, of all kinds of objects.
    pub revision: AtomicU64,
}

impl Shared {
    fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            index: Mutex::default(),
            queue: WorkQueue::new(clock.clone()),
            clock,
            metrics: Arc::default(),
            health: Health::default(),
            resync: Notify::new(),
            revision: AtomicU64::new(0),
        })
    }

    /// What is known. Held for computations only, never across an await.
    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Revisions went back, as by a restore of etcd: every watch waits for one of the far future, and tells nothing. So
    /// all is listed again, and what is listed counts, however old it looks.
    pub fn revisions_went_back(&self) {
        self.index().forget_ends();
        self.resync.notify_waiters();
    }

    /// Now, for observations.
    #[must_use]
    pub fn now(&self) -> Moment {
        Duration::from_nanos(self.clock.mono().as_nanos())
    }

    /// Now, for people.
    #[must_use]
    pub fn wall(&self) -> WallMicros {
        self.clock.wall().as_microsecond()
    }
}

/// Runs one replica until `stop` is set; then it ends its work and gives the lead back.
pub async fn run(
    settings: Settings,
    config: kube::Config,
    stop: watch::Receiver<bool>,
) -> Result<(), OperatorError> {
    let new_client = || strict_client(config.clone()).map_err(OperatorError::Client);
    let clock = SystemClock::shared();
    let shared = Shared::new(clock.clone());
    for first in ["definitions", "permissions"] {
        shared.health.await_first(first);
    }
    let watches = observe::watches(&settings.watched);
    for watch in &watches {
        shared.health.await_first(&observe::health_name(watch));
    }
    let listener = admin::bind(settings.http_addr, "--http-addr")
        .await
        .map_err(OperatorError::Listen)?;
    let address = listener
        .local_addr()
        .map_err(|error| OperatorError::Listen(error.to_string()))?;
    tracing::info!(%address, identity = settings.identity, "serves health and metrics");

    // Whatever is spawned here ends with this function.
    let mut parts = JoinSet::new();
    parts.spawn(health::serve(listener, shared.clone()));
    // The watches have a client of their own, so that they and the writes do not wait for each other.
    let watching = new_client()?;
    if let Some(first) = watches.first() {
        let looking = observe::look_at_revisions(shared.clone(), watching.clone(), first.clone());
        parts.spawn(looking);
    }
    for watch in watches {
        parts.spawn(observe::observe(shared.clone(), watching.clone(), watch));
    }
    let client = new_client()?;
    parts.spawn(check(shared.clone(), client.clone(), settings.clone()));

    let mut outside = stop.clone();
    tokio::select! {
        () = until_ready(&shared) => {}
        _ = outside.wait_for(|stop| *stop) => return Ok(()),
        Some(broken) = parts.join_next() => return broken.map_err(OperatorError::Broken),
    }

    let lead = Lead::new(clock.clone());
    let writer = Writer {
        client: client.clone(),
        lead: lead.clone(),
        metrics: shared.metrics.clone(),
    };
    let events = Events::start(writer.clone(), settings.identity.clone(), clock.clone());
    let election_key = Key::new(&settings.namespace, &settings.election);
    let reconciler = Reconciler::new(
        shared.clone(),
        writer,
        events,
        settings.identity.clone(),
        election_key,
    );
    let election = Election {
        store: LeaseStore::new(new_client()?, &settings.namespace),
        config: config.clone(),
        namespace: settings.namespace,
        name: settings.election,
        identity: settings.identity,
        times: settings.times,
        clock,
        lead: lead.clone(),
    };
    // The lead is given back only after the work has ended.
    let (give_back, stop_leading) = watch::channel(false);
    let mut elected = tokio::spawn(election.run(stop_leading));
    let mut working = tokio::spawn(work(Arc::new(reconciler), lead, stop));
    let worked = tokio::select! {
        worked = &mut working => worked.map_err(OperatorError::Broken).and_then(|worked| worked),
        Some(broken) = parts.join_next() => broken.map_err(OperatorError::Broken),
        // A replica that contends no more is of no use.
        ended = &mut elected => {
            working.abort();
            return ended.map_err(OperatorError::Broken);
        }
    };
    working.abort();
    give_back.send_replace(true);
    elected.await.map_err(OperatorError::Broken)?;
    worked
}

/// The first time that nothing is wrong.
async fn until_ready(shared: &Shared) {
    while !shared.health.troubles().is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Looks at definitions and permissions, often while something is wrong, then now and again.
async fn check(shared: Arc<Shared>, client: Client, settings: Settings) {
    loop {
        let definitions = preflight::definitions(&client).await;
        let missing = preflight::missing_permissions(
            &client,
            &settings.namespace,
            &settings.election,
            &settings.watched,
        )
        .await;
        shared
            .metrics
            .permissions_missing
            .set(i64::try_from(missing.len()).unwrap_or(i64::MAX));
        let well = definitions.is_none() && missing.is_empty();
        shared.health.report("definitions", definitions);
        let missing = (!missing.is_empty()).then(|| missing.join("; "));
        shared.health.report("permissions", missing);
        tokio::time::sleep(Duration::from_secs(if well { 60 } else { 5 })).await;
    }
}

/// Works while this replica leads, until `stop` is set.
async fn work(
    reconciler: Arc<Reconciler>,
    lead: Arc<Lead>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), OperatorError> {
    let mut terms = lead.terms();
    loop {
        let term = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            term = terms.wait_for(Option::is_some) => match term {
                Ok(term) => *term,
                Err(_) => return Ok(()),
            },
        };
        reconciler.shared.metrics.leader.set(1);
        let ended = work_for_a_term(&reconciler, &mut terms, term, &mut stop).await;
        reconciler.shared.metrics.leader.set(0);
        if ended? {
            return Ok(());
        }
    }
}

/// Works until the term ends, at once (`false`), or `stop` is set, after what is under way (`true`).
async fn work_for_a_term(
    reconciler: &Arc<Reconciler>,
    terms: &mut watch::Receiver<Option<u64>>,
    term: Option<u64>,
    stop: &mut watch::Receiver<bool>,
) -> Result<bool, OperatorError> {
    let shared = &reconciler.shared;
    shared.queue.clear();
    let keys = {
        let mut index = shared.index();
        index.begin_to_lead();
        index.keys()
    };
    for key in keys {
        shared.queue.add(key);
    }
    let mut looks = JoinSet::new();
    let mut failures: HashMap<Key, u32> = HashMap::new();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            changed = terms.wait_for(|now| *now != term) => {
                drop(changed);
                // Dropping the set ends what is under way: a leader that is none any more writes nothing.
                return Ok(false);
            }
            Some(look) = looks.join_next(), if !looks.is_empty() => {
                let (key, outcome) = look.map_err(OperatorError::Broken)?;
                settle(shared, &mut failures, &key, outcome);
            }
            key = shared.queue.next(), if looks.len() < WORKERS => {
                let reconciler = reconciler.clone();
                looks.spawn(async move {
                    let began = reconciler.shared.now();
                    let outcome = reconciler.reconcile(&key).await;
                    let took = reconciler.shared.now().saturating_sub(began);
                    let result = if outcome.is_ok() { "ok" } else { "error" };
                    reconciler.shared.metrics.reconciled(result, took);
                    (key, outcome)
                });
            }
        }
    }
    let rest = async { while looks.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, rest).await.is_err() {
        tracing::warn!("gave up what was under way");
    }
    Ok(true)
}

fn settle(
    shared: &Shared,
    failures: &mut HashMap<Key, u32>,
    key: &Key,
    outcome: Result<Option<Moment>, WriteError>,
) {
    shared.queue.done(key);
    match outcome {
        Ok(again) => {
            failures.remove(key);
            if let Some(again) = again {
                shared.queue.add_at(key, again);
            }
        }
        Err(WriteError::NotLeading) => {}
        Err(WriteError::Store(error)) => {
            if matches!(error, crate::lease::StoreError::Forbidden { .. }) {
                shared.metrics.forbidden.inc();
            }
            let count = failures.entry(key.clone()).or_default();
            *count += 1;
            // Every failure counts in a metric; the log has the first, and then fewer and fewer.
            if count.is_power_of_two() {
                tracing::warn!(lock = %key, %error, attempt = *count, "a look at the lock failed, tries again");
            }
            let pause = pause_after(&error, backoff(*count), Duration::MAX);
            shared.queue.add_at(key, shared.now() + pause);
        }
    }
}
