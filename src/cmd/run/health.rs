//! `/livez` and `/heldz` of `leasehold run`, for the probes of a container.
//!
//! Held says: every lock is, and until when without another renewal. It is what this process knew last, judged by the
//! clock at the time of asking, so it does not go on saying "held" when nothing renews any more.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use leasehold::admin;
use leasehold::client::{Guard, Guards};
use leasehold::clock::BootInstant;
use serde_json::{Value, json};

use super::facts::Facts;

/// What is told of the locks.
#[derive(Clone, Debug)]
enum Standing {
    /// Not held, and why.
    NotHeld(String),
    /// Each with its renew deadline.
    Held(Vec<(Facts, BootInstant)>),
}

/// What `/heldz` answers, kept up to date by whoever knows.
#[derive(Clone, Debug)]
pub(super) struct Health(Arc<Mutex<Standing>>);

impl Health {
    /// Nothing is held yet.
    pub(super) fn new(locks: &[String]) -> Self {
        let waiting = format!("waiting for {}", locks.join(","));
        Self(Arc::new(Mutex::new(Standing::NotHeld(waiting))))
    }

    /// Listens, and answers until the process ends; or says why it can't.
    pub(super) async fn serve(&self, address: SocketAddr) -> Result<(), String> {
        let listener = admin::bind(address, "--health-addr").await?;
        let router = Router::new()
            .route("/livez", get(async || "ok\n"))
            .route("/heldz", get(heldz))
            .with_state(self.clone());
        tokio::spawn(admin::serve(listener, router));
        Ok(())
    }

    /// The locks are held, until their deadlines as they are now. One that was lost in this moment is not passed over:
    /// whoever is about to hear of it says so.
    pub(super) fn held(&self, guards: &Guards) {
        let deadlines = guards.iter().map(Guard::deadlines);
        let facts = Facts::of(guards).into_iter().zip(deadlines);
        let held: Option<_> = facts.map(|(facts, at)| Some((facts, at?.renew))).collect();
        self.set(held.map_or_else(
            || Standing::NotHeld("a lock was lost".to_owned()),
            Standing::Held,
        ));
    }

    /// They are not held, or not all, and why.
    pub(super) fn not_held(&self, why: &str) {
        self.set(Standing::NotHeld(why.to_owned()));
    }

    fn set(&self, standing: Standing) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    fn answer(&self, now: BootInstant) -> (StatusCode, Value) {
        let standing = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let held = match standing {
            Standing::Held(held) => held,
            Standing::NotHeld(why) => {
                return (StatusCode::SERVICE_UNAVAILABLE, json!({"reason": why}));
            }
        };
        if let Some((late, _)) = held.iter().find(|(_, until)| *until <= now) {
            let why = format!("lock {:?} was not renewed in time", late.lock);
            return (StatusCode::SERVICE_UNAVAILABLE, json!({"reason": why}));
        }
        let mut told = held
            .iter()
            .map(|(facts, until)| facts.told(until.saturating_duration_since(now)));
        let told = match told.len() {
            1 => told.next().unwrap_or_default(),
            _ => told.collect(),
        };
        (StatusCode::OK, told)
    }
}

async fn heldz(State(health): State<Health>) -> impl IntoResponse {
    let (code, told) = health.answer(BootInstant::now());
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (code, kind, format!("{told}\n"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn held_is_said_until_the_nearest_deadline_and_no_longer() {
        let health = Health::new(&["a".to_owned(), "b".to_owned()]);
        let now = BootInstant::from_nanos(1_000_000_000);
        let (code, told) = health.answer(now);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(told, json!({"reason": "waiting for a,b"}));
        let facts = |lock: &str| Facts {
            lock: lock.to_owned(),
            namespace: "team-a".to_owned(),
            slot: 0,
            holder: "pod-3/1".to_owned(),
            token: 7,
        };
        let near = now + Duration::from_millis(1500);
        health.set(Standing::Held(vec![(facts("a"), near)]));
        let (code, told) = health.answer(now);
        assert_eq!(code, StatusCode::OK);
        assert_eq!(
            told,
            json!({
                "lock": "a", "namespace": "team-a", "slot": 0, "holder": "pod-3/1",
                "token": 7, "remainingSeconds": 1.5
            })
        );
        let far = near + Duration::from_secs(5);
        health.set(Standing::Held(vec![(facts("a"), far), (facts("b"), near)]));
        assert_eq!(health.answer(now).1[1]["remainingSeconds"], json!(1.5));
        let (code, told) = health.answer(near);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(told["reason"], json!("lock \"b\" was not renewed in time"));
    }
}
