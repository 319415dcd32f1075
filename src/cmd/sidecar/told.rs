//! What the sidecar tells over HTTP: the grant, probes, metrics.
//!
//! It vouches for a grant by what it knew last, judged by the clock at the moment of the answer: a process that was
//! frozen does not say "held" when it thaws.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use leasehold::admin;
use leasehold::clock::BootInstant;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::cmd::run::facts::Facts;

/// What is known of the grant.
#[derive(Clone, Debug)]
enum Standing {
    /// It is not held, and why.
    NotHeld(String),
    /// Until then, unless renewed.
    Held(Facts, BootInstant),
}

/// What is counted. One lock a process, so no label names it.
#[derive(Debug)]
struct Metrics {
    registry: Registry,
    held: Gauge,
    remaining: Gauge<f64, AtomicU64>,
    grants: Family<[(&'static str, &'static str); 1], Counter>,
    renewals: Counter,
    losses: Family<[(&'static str, String); 1], Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("leasehold_sidecar");
        let (held, remaining) = (Gauge::default(), Gauge::default());
        let (grants, renewals, losses) = (Family::default(), Counter::default(), Family::default());
        registry.register("held", "whether the lock is held", held.clone());
        registry.register(
            "remaining_seconds",
            "for how long the grant may be used without another renewal",
            Gauge::clone(&remaining),
        );
        registry.register("grants", "grants, by how they were had", grants.clone());
        registry.register("renewals", "renewals that were answered", renewals.clone());
        registry.register("losses", "grants that were lost, by reason", losses.clone());
        Self {
            registry,
            held,
            remaining,
            grants,
            renewals,
            losses,
        }
    }
}

#[derive(Debug)]
struct Shared {
    standing: Mutex<Standing>,
    metrics: Metrics,
}

/// What the sidecar tells, kept up to date by whoever knows.
#[derive(Clone, Debug)]
pub(super) struct Told(Arc<Shared>);

impl Told {
    /// Nothing is held yet.
    pub(super) fn new(lock: &str) -> Self {
        Self(Arc::new(Shared {
            standing: Mutex::new(Standing::NotHeld(format!("waiting for lock {lock:?}"))),
            metrics: Metrics::default(),
        }))
    }

    /// Answers at both addresses until the process ends; or says why it can't. The grant is told at the first alone.
    pub(super) async fn serve(&self, app: SocketAddr, probes: SocketAddr) -> Result<(), String> {
        let router = || {
            Router::new()
                .route("/livez", get(async || "ok\n"))
                .route("/heldz", get(grant))
                .route("/metrics", get(metrics))
        };
        let with_grant = router().route("/v1/grant", get(grant));
        let listener = admin::bind(app, "--http-addr").await?;
        tokio::spawn(admin::serve(listener, with_grant.with_state(self.clone())));
        let listener = admin::bind(probes, "--probe-addr").await?;
        tokio::spawn(admin::serve(listener, router().with_state(self.clone())));
        Ok(())
    }

    /// The lock is held until then.
    pub(super) fn held(&self, facts: &Facts, until: BootInstant) {
        self.set(Standing::Held(facts.clone(), until));
    }

    /// It is not held, and why.
    pub(super) fn not_held(&self, why: &str) {
        self.set(Standing::NotHeld(why.to_owned()));
    }

    /// Counts a grant: `taken` or `resumed`.
    pub(super) fn count_grant(&self, how: &'static str) {
        self.0.metrics.grants.get_or_create(&[("how", how)]).inc();
    }

    /// Counts a renewal.
    pub(super) fn count_renewal(&self) {
        self.0.metrics.renewals.inc();
    }

    /// Counts a loss.
    pub(super) fn count_loss(&self, reason: &str) {
        let reason = [("reason", reason.to_owned())];
        self.0.metrics.losses.get_or_create(&reason).inc();
    }

    fn set(&self, standing: Standing) {
        *self
            .0
            .standing
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = standing;
    }

    fn standing(&self) -> Standing {
        let standing = self.0.standing.lock();
        standing.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answer(&self, now: BootInstant) -> (StatusCode, Value) {
        let why = match self.standing() {
            Standing::Held(facts, until) if now < until => {
                return (StatusCode::OK, told(&facts, until, now));
            }
            Standing::Held(facts, _) => format!("lock {:?} was not renewed in time", facts.lock),
            Standing::NotHeld(why) => why,
        };
        (StatusCode::SERVICE_UNAVAILABLE, json!({"reason": why}))
    }

    fn metrics(&self, now: BootInstant) -> String {
        let metrics = &self.0.metrics;
        let left = match self.standing() {
            Standing::Held(_, until) => until.saturating_duration_since(now).as_secs_f64(),
            Standing::NotHeld(_) => 0.0,
        };
        metrics.held.set(i64::from(left > 0.0));
        metrics.remaining.set(left);
        let mut text = String::new();
        // Writing into a string can't fail.
        let _ = encode(&mut text, &metrics.registry);
        text
    }
}

/// The grant, with its deadline twice: from now, and on the clock of `/proc/uptime`.
fn told(facts: &Facts, until: BootInstant, now: BootInstant) -> Value {
    let mut told = facts.told(until.saturating_duration_since(now));
    told["deadlineUptimeSeconds"] = uptime(until);
    told
}

/// What the file of the grant says: nothing that grows old while it lies there.
pub(super) fn file(facts: &Facts, until: BootInstant) -> String {
    let mut told = told(facts, until, until);
    if let Some(told) = told.as_object_mut() {
        told.remove("remainingSeconds");
    }
    format!("{told}\n")
}

/// An instant as `/proc/uptime` shows it: in hundredths of a second, rounded down as there, so that whoever compares
/// is never late.
fn uptime(at: BootInstant) -> Value {
    let hundredths = at.as_nanos() / 10_000_000;
    json!(Duration::from_millis(hundredths * 10).as_secs_f64())
}

async fn grant(State(told): State<Told>) -> impl IntoResponse {
    let (code, body) = told.answer(BootInstant::now());
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (code, kind, format!("{body}\n"))
}

async fn metrics(State(told): State<Told>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (
        [(header::CONTENT_TYPE, kind)],
        told.metrics(BootInstant::now()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            lock: "a".to_owned(),
            namespace: "team-a".to_owned(),
            slot: 0,
            holder: "pod-3/1".to_owned(),
            token: 7,
        }
    }

    #[test]
    fn it_vouches_until_the_deadline_and_no_longer() {
        let told = Told::new("a");
        let now = BootInstant::from_nanos(1_000_000_000);
        let (code, body) = told.answer(now);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body, json!({"reason": "waiting for lock \"a\""}));
        let until = now + Duration::from_micros(1_505_999);
        told.held(&facts(), until);
        let (code, body) = told.answer(now);
        assert_eq!(code, StatusCode::OK);
        assert_eq!(
            body,
            json!({
                "lock": "a", "namespace": "team-a", "slot": 0, "holder": "pod-3/1", "token": 7,
                "remainingSeconds": 1.505, "deadlineUptimeSeconds": 2.5
            })
        );
        assert!(told.metrics(now).contains("leasehold_sidecar_held 1\n"));
        let (code, body) = told.answer(until);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body["reason"], json!("lock \"a\" was not renewed in time"));
        assert!(told.metrics(until).contains("leasehold_sidecar_held 0\n"));
    }

    #[test]
    fn the_file_has_nothing_that_grows_old() {
        let until = BootInstant::from_nanos(12_345_678_901);
        let file: Value = serde_json::from_str(&file(&facts(), until)).unwrap();
        assert_eq!(
            file,
            json!({
                "lock": "a", "namespace": "team-a", "slot": 0, "holder": "pod-3/1", "token": 7,
                "deadlineUptimeSeconds": 12.34
            })
        );
    }
}
