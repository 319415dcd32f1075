//! Tokens rise strictly, whatever is killed, deleted, made again, put back or reset between two grants.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use leasehold::client::Guard;
use leasehold::supervise::Signal;
use rand::seq::IndexedRandom;
use serde_json::json;

use super::run_bench::{BUSY, Bench, long, until};
use super::server::within;

const LOCK: &str = "abused";

/// What happens to the lock in a round.
#[derive(Clone, Copy, Debug)]
enum Abuse {
    Nothing,
    KillHolder,
    DeleteLease,
    RemakeLock,
    RemakeNamespace,
    ResetTransitions,
    DropAnnotations,
    RestoreLease,
    KillOperator,
}

/// The operator, looking after one namespace and living in another.
struct Operator(Child);

impl Operator {
    fn start(home: &Bench, watched: &str) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args([
                "operator",
                "--http-addr",
                "127.0.0.1:0",
                "--identity",
                "rounds",
            ])
            .args(["--namespace", &home.namespace, "--watch-namespace", watched])
            .args([
                "--leader-lease-duration",
                "3s",
                "--leader-renew-deadline",
                "2s",
            ])
            .args(["--leader-retry-period", "500ms"])
            .env("KUBECONFIG", home.kubeconfig())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Rounds {
    bench: Bench,
    home: Bench,
    operator: Option<Operator>,
    saved: Vec<Lease>,
    last: i64,
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_over_mixed_rounds_of_abuse() {
    let (bench, home) = (Bench::new().await, Bench::new().await);
    let operator = Some(Operator::start(&home, &bench.namespace));
    let mut rounds = Rounds {
        bench,
        home,
        operator,
        saved: vec![],
        last: 0,
    };
    rounds.bench.lock(LOCK, 1).await;
    let mut history = vec![];
    for round in 0..if long() { 200 } else { 40 } {
        let mut rng = rand::rng();
        let abuse = match round {
            // Slow on this server: namespaces take seconds to go.
            15 | 30 | 90 | 150 => Abuse::RemakeNamespace,
            _ => *[
                Abuse::Nothing,
                Abuse::KillHolder,
                Abuse::DeleteLease,
                Abuse::DeleteLease,
                Abuse::RemakeLock,
                Abuse::ResetTransitions,
                Abuse::DropAnnotations,
                Abuse::RestoreLease,
                Abuse::KillOperator,
            ]
            .choose(&mut rng)
            .unwrap(),
        };
        let held: bool = rand::random();
        history.push((abuse, held));
        rounds.round(abuse, held, &history).await;
    }
    let Rounds {
        bench,
        home,
        operator,
        ..
    } = rounds;
    drop(operator);
    bench.finish().await;
    home.finish().await;
}

impl Rounds {
    /// One grant, and what is done to it, while it is held or after.
    async fn round(&mut self, abuse: Abuse, held: bool, history: &[(Abuse, bool)]) {
        let locks = self.bench.library().await;
        let asked = locks
            .lock(LOCK)
            .wait_for_lock()
            .claimant("rounds")
            .acquire();
        let guard = tokio::time::timeout(BUSY * 2, asked).await;
        let guard = guard.unwrap_or_else(|_| panic!("not had: {history:?}"));
        let guard = guard.unwrap_or_else(|error| panic!("{error}: {history:?}"));
        let token = guard.token().get();
        assert!(
            token > self.last,
            "{token} after {}: {history:?}",
            self.last
        );
        self.last = token;
        if let Some(lease) = self.bench.leases().get_opt(LOCK).await.unwrap() {
            self.saved.push(lease);
        }
        let guard = if held {
            Some(guard)
        } else {
            let _ = guard.release().await;
            None
        };
        self.abuse(abuse).await;
        let _ = match guard.map(Guard::release) {
            Some(release) => within(BUSY, "the release ends", release).await.is_ok(),
            None => true,
        };
    }

    async fn abuse(&mut self, abuse: Abuse) {
        match abuse {
            Abuse::Nothing => {}
            Abuse::KillHolder => {
                let run = self.bench.run(LOCK).by("killed").works_on().start();
                let started = self.bench.noted("start").len();
                // It starts now, or it waits for the one who holds: both are good.
                let _ = tokio::time::timeout(Duration::from_millis(700), async {
                    until("it starts", BUSY, async || {
                        self.bench.noted("start").len() > started
                    })
                    .await;
                })
                .await;
                run.signal_tree(Signal::KILL);
                self.last = self.last.max(self.bench.highest_token());
            }
            Abuse::DeleteLease => {
                let _ = self
                    .bench
                    .leases()
                    .delete(LOCK, &DeleteParams::default())
                    .await;
            }
            Abuse::RemakeLock => {
                let locks = self.bench.locks();
                locks.delete(LOCK, &DeleteParams::default()).await.unwrap();
                self.bench.lock(LOCK, 1).await;
            }
            Abuse::RemakeNamespace => self.remake_namespace().await,
            Abuse::ResetTransitions => {
                self.edit(json!({"spec": {"leaseTransitions": 0}})).await;
            }
            Abuse::DropAnnotations => self.edit(json!({"metadata": {"annotations": null}})).await,
            Abuse::RestoreLease => self.restore().await,
            Abuse::KillOperator => {
                self.operator = None;
                self.operator = Some(Operator::start(&self.home, &self.bench.namespace));
            }
        }
    }

    async fn edit(&self, patch: serde_json::Value) {
        if self.bench.leases().get_opt(LOCK).await.unwrap().is_some() {
            self.bench.edit_lease(LOCK, patch).await;
        }
    }

    /// What `kubectl apply` of a saved copy does when the Lease is gone.
    async fn restore(&self) {
        let Some(mut copy) = self.saved.choose(&mut rand::rng()).cloned() else {
            return;
        };
        let _ = self
            .bench
            .leases()
            .delete(LOCK, &DeleteParams::default())
            .await;
        copy.metadata.resource_version = None;
        copy.metadata.uid = None;
        copy.metadata.managed_fields = None;
        // The operator may have been faster; then there is nothing to restore.
        let _ = self
            .bench
            .leases()
            .create(&PostParams::default(), &copy)
            .await;
    }

    async fn remake_namespace(&self) {
        let api = Api::<Namespace>::all(self.bench.client.clone());
        let name = &self.bench.namespace;
        api.delete(name, &DeleteParams::background()).await.unwrap();
        until("the namespace is gone", BUSY * 6, async || {
            api.get_opt(name).await.unwrap().is_none()
        })
        .await;
        let mut made = Namespace::default();
        made.metadata.name = Some(name.clone());
        let made = api.create(&PostParams::default(), &made).await.unwrap();
        assert_eq!(made.name_any(), *name);
        self.bench.lock(LOCK, 1).await;
    }
}
