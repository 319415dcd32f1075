//! A service of several replicas, one of which leads: `leader LOCK`. In Pods: `leader-rust.yaml`. A test runs both.
//!
//! Every replica answers `GET /` on port 8080 with what it is. The one that holds the lock does the work, too: each second
//! it writes into the `ConfigMap` of the lock's name. When the lock is lost it steps down, which ends the work, and queues
//! again: the next grant is new work, with a new token.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use leasehold::api::FencingToken;
use leasehold::client::Locks;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// After a refusal: the resource has seen a token that the lock has yet to reach (`minFencingToken` gets it there), so
/// the next grant may fare no better.
const REFUSED: Duration = Duration::from_secs(5);

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome {
    let lock = std::env::args().nth(1).ok_or("usage: leader LOCK")?;
    let locks = Locks::infer().await?;
    let client = kube::Client::try_default().await?;
    let board = Api::namespaced(client, locks.namespace());

    let (role, answered) = watch::channel("follows".to_owned());
    let answer = get(async move || answered.borrow().clone());
    let listener = TcpListener::bind("0.0.0.0:8080").await?;
    tokio::spawn(axum::serve(listener, Router::new().route("/", answer)).into_future());

    let mut stop = signal(SignalKind::terminate())?;
    loop {
        let mut asked = locks.lock(&lock).wait_for_lock().begin();
        let guard = tokio::select! {
            guard = asked.outcome() => guard?,
            _ = stop.recv() => {
                asked.withdraw().await;
                return Ok(());
            }
        };
        let token = guard.token();
        tell(&role, format!("leads with token {token}"));
        // What is not chosen is dropped: the work does not outlive the grant.
        let mut pause = Duration::ZERO;
        let stopped = tokio::select! {
            highest = work(&board, &lock, token) => {
                tell(&role, format!("steps down: refused, token {highest} was here"));
                pause = REFUSED;
                false
            }
            reason = guard.lost() => {
                tell(&role, format!("steps down: {}", reason.as_str()));
                false
            }
            _ = stop.recv() => true,
        };
        // Of a grant that was lost nothing is left to give back, and nothing is sent.
        guard.release().await?;
        if stopped {
            tell(&role, "has given the lead back".to_owned());
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.recv() => return Ok(()),
        }
    }
}

fn tell(role: &watch::Sender<String>, what: String) {
    println!("{what}");
    role.send_replace(what);
}

/// Writes each second, until it is refused: returns the higher token.
async fn work(board: &Api<ConfigMap>, name: &str, token: FencingToken) -> i64 {
    let mut beats = tokio::time::interval(Duration::from_secs(1));
    for beat in 1.. {
        beats.tick().await;
        match write(board, name, token, beat).await {
            Ok(highest) if highest > token.get() => return highest,
            Ok(_) => {}
            Err(error) => eprintln!("not written, next second again: {error}"),
        }
    }
    unreachable!("seconds do not run out")
}

/// Writes if no higher token was here before, and returns the highest. The object remembers it, and nobody can write
/// between the look and the write: `replace` sends the resourceVersion of what was read.
async fn write(
    board: &Api<ConfigMap>,
    name: &str,
    token: FencingToken,
    beat: u64,
) -> kube::Result<i64> {
    loop {
        let mut object = board.get(name).await?;
        let data = object.data.get_or_insert_default();
        let highest = data.get("token").and_then(|seen| seen.parse().ok());
        if let Some(highest) = highest.filter(|highest| *highest > token.get()) {
            return Ok(highest);
        }
        let pod = std::env::var("HOSTNAME").unwrap_or_default();
        data.insert("token".to_owned(), token.to_string());
        data.insert("leader".to_owned(), pod);
        data.insert("beat".to_owned(), beat.to_string());
        match board.replace(name, &PostParams::default(), &object).await {
            Err(kube::Error::Api(refused)) if refused.code == 409 => {}
            answer => return answer.map(|_| token.get()),
        }
    }
}
