//! `leasehold run --health-addr`, and what else a claim is asked with.

use std::net::TcpListener;
use std::process::Command;

use kube::api::ListParams;
use leasehold::api::LockClaim;
use leasehold::supervise::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::operator_rig::Operator;
use super::run_bench::{BUSY, Bench, until};

/// An address of loopback that nobody listens on.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Code and body; `None` while nobody listens.
pub async fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let ask = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, body.to_owned()))
}

pub async fn code(address: &str, path: &str) -> Option<u16> {
    get(address, path).await.map(|(code, _)| code)
}

#[tokio::test(flavor = "multi_thread")]
async fn heldz_says_held_while_the_lock_is_held_and_why_not_otherwise() {
    let bench = Bench::new().await;
    for lock in ["a", "b"] {
        bench.opened(lock, 15).await;
    }
    let holder = bench.works("a", "holder").await;
    let address = free_address();
    let run = bench.run("a").by("waiter");
    let run = run.option("--health-addr", &address).works_on().start();
    until("it lives", BUSY, async || {
        code(&address, "/livez").await == Some(200)
    })
    .await;
    bench.until_waiting(1).await;
    let (waiting, body) = get(&address, "/heldz").await.unwrap();
    assert_eq!(waiting, 503);
    assert!(body.contains("waiting for a"), "{body}");
    holder.signal(Signal::TERM);
    bench.until_noted("start", "waiter", BUSY).await;
    let (held, body) = get(&address, "/heldz").await.unwrap();
    assert_eq!(held, 200, "{body}");
    let told: Value = serde_json::from_str(&body).unwrap();
    let lease = bench.lease("a").await;
    assert_eq!(told["lock"], "a");
    assert_eq!(told["namespace"], bench.namespace.as_str());
    assert_eq!(told["slot"], 0);
    assert_eq!(told["holder"], lease.spec.holder.as_str());
    assert_eq!(told["token"], lease.current_token().unwrap().get());
    let left = told["remainingSeconds"].as_f64().unwrap();
    assert!(left > 0.0 && left < 15.0, "{left}");
    assert_eq!(code(&address, "/nothing").await, Some(404));
    let asked = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["probe", "--timeout", "10s", "--grant", "--addr", &address])
        .output();
    let asked = asked.expect("the program runs");
    let words = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(1), "{words}");
    assert!(
        words.contains("only a sidecar answers /v1/grant"),
        "{words}"
    );
    run.signal(Signal::TERM);
    run.ends(BUSY).await.assert(143, &[]);
    assert_eq!(code(&address, "/livez").await, None);
    // Several locks are told one by one.
    let address = free_address();
    let run = bench.run("b").option("--lock", "a").by("both");
    let run = run.option("--health-addr", &address);
    let run = run.command(&["sleep", "300"]).start();
    until("both are held", BUSY, async || {
        code(&address, "/heldz").await == Some(200)
    })
    .await;
    let (_, body) = get(&address, "/heldz").await.unwrap();
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&told[0]["lock"], &told[1]["lock"]),
        (&"a".into(), &"b".into())
    );
    drop(run);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_taken_or_none_ends_it_before_anything_is_taken() {
    let bench = Bench::new().await;
    bench.opened("a", 15).await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let taken = (taken.as_str(), "chooses another");
    for (address, advice) in [taken, ("localhost:9090", "write IP and port")] {
        let run = bench.run("a").option("--health-addr", address);
        run.ends().await.assert(2, &["--health-addr", advice]);
    }
    assert_eq!(bench.lease("a").await.last_token(), 0, "nothing was taken");
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_made_with_the_priority_that_was_asked_for() {
    let bench = Bench::new().await;
    bench.opened("a", 15).await;
    let holder = bench.hold("a", "holder").await;
    let run = bench.run("a").option("--priority", "-7").start();
    let library = bench.library().await;
    let asked = library.lock("a").priority(1000).begin();
    bench.until_waiting(2).await;
    let claims = bench.claims().list(&ListParams::default()).await.unwrap();
    let mut priorities: Vec<_> = claims.iter().map(|claim| claim.spec.priority).collect();
    priorities.sort_unstable();
    assert_eq!(priorities, [-7, 1000]);
    asked.withdraw().await;
    holder.release().await.unwrap();
    run.ends(BUSY).await.assert(0, &[]);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_refused_ends_it_with_the_words_of_the_operator_once() {
    let bench = Bench::new().await;
    let operator = Operator::leading(&bench.namespace).await;
    let spec = json!({"leaseDurationSeconds": 15, "queue": {"maxWaiters": 1}});
    bench.lock_of(spec, "a").await;
    let holder = bench.hold("a", "holder").await;
    let waiter = bench.run("a").by("waiter").start();
    bench.until_waiting(1).await;
    let ended = bench.run("a").by("too-late").ends().await;
    let words = "as many wait for lock a as its queue.maxWaiters allows: try again later";
    ended.assert(75, &[&format!("was refused: {words}")]);
    assert_eq!(ended.stderr.matches(words).count(), 1, "{ended:?}");
    let left = bench.claims().list(&ListParams::default()).await.unwrap();
    let left: Vec<_> = left.iter().map(LockClaim::claimant).collect();
    assert_eq!(left, ["waiter"], "the other one left the queue");
    holder.release().await.unwrap();
    waiter.ends(BUSY).await.assert(0, &[]);
    drop(operator);
    bench.finish().await;
}
