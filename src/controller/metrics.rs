//! What the operator counts. No object's name is ever a label: their number is not bounded.
//!
//! `docs/metrics.md` says what each one is good for.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

type Label = (&'static str, &'static str);

/// All metrics of one operator.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Locks by phase.
    pub locks: Family<[Label; 1], Gauge>,
    /// Locks that need a person.
    pub stalled: Gauge,
    /// Locks that stay locked after a lost holder.
    pub abandoned: Gauge,
    /// Claims that wait.
    pub waiters: Gauge,
    /// Whether this replica leads.
    pub leader: Gauge,
    /// Whether this replica is ready.
    pub ready: Gauge,
    /// Permissions that are missing.
    pub permissions_missing: Gauge,
    /// Grants seen.
    pub grants: Counter,
    /// Grants seen to end, by reason.
    pub ends: Family<[Label; 1], Counter>,
    /// Guarded writes of Leases, by purpose and result.
    pub lease_writes: Family<[Label; 2], Counter>,
    /// Writes of status, by kind and result.
    pub status_writes: Family<[Label; 2], Counter>,
    /// Claims deleted because they were over.
    pub claims_collected: Counter,
    /// Looks at a lock, by result.
    pub reconciles: Family<[Label; 1], Counter>,
    /// How long such a look took.
    pub reconcile_seconds: Histogram,
    /// Errors of watches, by resource.
    pub watch_errors: Family<[Label; 1], Counter>,
    /// Objects that could not be decoded, by resource.
    pub undecodable: Family<[Label; 1], Counter>,
    /// Calls that were forbidden.
    pub forbidden: Counter,
    /// What was dropped at a limit.
    pub dropped: Family<[Label; 1], Counter>,
    /// Writes not sent since the lead was over.
    pub withheld: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("leasehold"),
            locks: Family::default(),
            stalled: Gauge::default(),
            abandoned: Gauge::default(),
            waiters: Gauge::default(),
            leader: Gauge::default(),
            ready: Gauge::default(),
            permissions_missing: Gauge::default(),
            grants: Counter::<u64, AtomicU64>::default(),
            ends: Family::default(),
            lease_writes: Family::default(),
            status_writes: Family::default(),
            claims_collected: Counter::default(),
            reconciles: Family::default(),
            reconcile_seconds: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
            watch_errors: Family::default(),
            undecodable: Family::default(),
            forbidden: Counter::default(),
            dropped: Family::default(),
            withheld: Counter::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    // Without `..`, so that a new metric can't be forgotten here.
    fn register(&mut self) {
        let Self {
            registry,
            locks,
            stalled,
            abandoned,
            waiters,
            leader,
            ready,
            permissions_missing,
            grants,
            ends,
            lease_writes,
            status_writes,
            claims_collected,
            reconciles,
            reconcile_seconds,
            watch_errors,
            undecodable,
            forbidden,
            dropped,
            withheld,
        } = self;
        registry.register("locks", "DistributedLocks by phase", locks.clone());
        registry.register(
            "locks_stalled",
            "DistributedLocks that need a person",
            stalled.clone(),
        );
        registry.register(
            "locks_abandoned",
            "DistributedLocks that stay locked after a lost holder (onHolderLost: Hold)",
            abandoned.clone(),
        );
        registry.register("waiters", "LockClaims that wait", waiters.clone());
        registry.register("leader", "1 while this replica leads", leader.clone());
        registry.register("ready", "1 while this replica is ready", ready.clone());
        registry.register(
            "permissions_missing",
            "permissions that the operator needs and lacks",
            permissions_missing.clone(),
        );
        registry.register("grants", "grants seen by the leader", grants.clone());
        registry.register(
            "grants_ended",
            "grants seen to end by the leader, by reason",
            ends.clone(),
        );
        registry.register(
            "lease_writes",
            "guarded writes of Leases, by purpose and result",
            lease_writes.clone(),
        );
        registry.register(
            "status_writes",
            "writes of status, by kind and result",
            status_writes.clone(),
        );
        registry.register(
            "claims_collected",
            "claims deleted because they were over",
            claims_collected.clone(),
        );
        registry.register(
            "reconciles",
            "looks at a lock, by result",
            reconciles.clone(),
        );
        registry.register(
            "reconcile_duration_seconds",
            "how long a look at a lock took",
            reconcile_seconds.clone(),
        );
        registry.register(
            "watch_errors",
            "errors of watches, by resource",
            watch_errors.clone(),
        );
        registry.register(
            "undecodable_objects",
            "objects that could not be decoded, by resource",
            undecodable.clone(),
        );
        registry.register("forbidden", "calls that were forbidden", forbidden.clone());
        registry.register(
            "dropped",
            "what was dropped at a limit, by kind",
            dropped.clone(),
        );
        registry.register(
            "writes_withheld",
            "writes not sent since the lead was over",
            withheld.clone(),
        );
    }

    /// Counts one guarded write of a Lease.
    pub fn lease_write(&self, purpose: &'static str, result: &'static str) {
        self.lease_writes
            .get_or_create(&[("purpose", purpose), ("result", result)])
            .inc();
    }

    /// Counts one write of status.
    pub fn status_write(&self, kind: &'static str, result: &'static str) {
        self.status_writes
            .get_or_create(&[("kind", kind), ("result", result)])
            .inc();
    }

    /// Counts one look at a lock.
    pub fn reconciled(&self, result: &'static str, took: Duration) {
        self.reconciles.get_or_create(&[("result", result)]).inc();
        self.reconcile_seconds.observe(took.as_secs_f64());
    }

    /// The metrics as text, in the `OpenMetrics` format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
