//! `/livez`, `/readyz` and `/metrics`.
//!
//! Ready says: the definitions are served whole, no permission is missing, every watch has listed. A standby is as
//! ready as a leader. What is wrong is told once when it changes, in the log and on `/readyz`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use super::Shared;
use crate::admin;
use crate::api::LockPhase;

/// What is said of something that has not happened yet.
const NOT_YET: &str = "not done yet";

/// What keeps this replica from being ready.
#[derive(Debug, Default)]
pub struct Health {
    troubles: Mutex<BTreeMap<String, String>>,
}

impl Health {
    /// Notes that `what` is in trouble, or no longer. Says it once, when it changes.
    pub fn report(&self, what: &str, trouble: Option<String>) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        match trouble {
            Some(trouble) => {
                if troubles.get(what) != Some(&trouble) {
                    tracing::error!("not ready: {what}: {trouble}");
                    troubles.insert(what.to_owned(), trouble);
                }
            }
            None => match troubles.remove(what) {
                Some(trouble) if trouble != NOT_YET => tracing::info!("well again: {what}"),
                _ => {}
            },
        }
    }

    /// Notes that `what` has not happened yet, without a word in the log.
    pub fn await_first(&self, what: &str) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.insert(what.to_owned(), NOT_YET.to_owned());
    }

    /// Everything that is wrong; empty when ready.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        let troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles
            .iter()
            .map(|(what, trouble)| format!("{what}: {trouble}"))
            .collect()
    }
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let router = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(shared);
    admin::serve(listener, router).await;
}

async fn readyz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let troubles = shared.health.troubles();
    if troubles.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, troubles.join("\n") + "\n")
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    measure(&shared);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], shared.metrics.text())
}

/// Sets the gauges that follow from what is known.
fn measure(shared: &Shared) {
    let (mut held, mut free, mut abandoned, mut stalled, mut waiters) = (0, 0, 0, 0, 0);
    {
        let index = shared.index();
        for (_, lock) in index.locks() {
            let Some(status) = &lock.status else { continue };
            match status.phase {
                Some(LockPhase::Held) => held += 1,
                Some(LockPhase::Abandoned) => abandoned += 1,
                _ => free += 1,
            }
            let conditions = &status.conditions;
            stalled += i64::from(crate::api::is_condition_true(
                conditions,
                crate::api::names::CONDITION_STALLED,
            ));
            waiters += i64::from(status.waiters.unwrap_or(0));
        }
    }
    let metrics = &shared.metrics;
    metrics.locks.get_or_create(&[("phase", "held")]).set(held);
    metrics.locks.get_or_create(&[("phase", "free")]).set(free);
    metrics
        .locks
        .get_or_create(&[("phase", "abandoned")])
        .set(abandoned);
    metrics.abandoned.set(abandoned);
    metrics.stalled.set(stalled);
    metrics.waiters.set(waiters);
    metrics
        .ready
        .set(i64::from(shared.health.troubles().is_empty()));
}
