//! Takes a lock, works under it, gives it back: `cargo run --example hold -- nightly-billing`.
//!
//! The cluster is the one of `KUBECONFIG`, or the Pod's own. A test runs this (`tests/suite/docs.rs`).

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::api::FencingToken;
use leasehold::client::Locks;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hold: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome {
    let name = std::env::args().nth(1).ok_or("usage: hold LOCK")?;
    hold(&Locks::infer().await?, &name).await
}

/// Waits for the lock for a minute at most, then works for as long as it is held.
pub async fn hold(locks: &Locks, name: &str) -> Outcome {
    let guard = locks
        .lock(name)
        .wait(Duration::from_mins(1))
        .acquire()
        .await?;
    println!("held with token {}", guard.token());
    tokio::select! {
        () = work(guard.token()) => {}
        reason = guard.lost() => return Err(format!("lost the lock: {}", reason.as_str()).into()),
    }
    guard.release().await?;
    println!("released");
    Ok(())
}

/// Here every write would carry the token, and the resource would refuse a lower one than it has seen.
async fn work(token: FencingToken) {
    tokio::time::sleep(Duration::from_secs(1)).await;
    println!("worked with token {token}");
}
