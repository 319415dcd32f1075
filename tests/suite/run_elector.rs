//! A stock client-go leader elector and `leasehold run` on the same Lease.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::api::{Patch, PatchParams, PostParams};
use leasehold::clock::MonoInstant;
use leasehold::supervise::Signal;
use serde_json::json;

use super::operator_rig::Operator;
use super::processes::signal;
use super::run_bench::{BUSY, Bench, until};

/// A client-go elector that was started; killed when dropped.
struct Elector(Child);

impl Elector {
    fn start(bench: &Bench, lease: &str, id: &str) -> Self {
        Self::start_with(bench, lease, id, &[])
    }

    /// The same, with flags of one's own.
    fn start_with(bench: &Bench, lease: &str, id: &str, flags: &[&str]) -> Self {
        let program = xtask::elector::ensure().unwrap();
        let child = Command::new(program)
            .args(["-namespace", &bench.namespace, "-lease", lease, "-id", id])
            .args(flags)
            .arg("-journal")
            .arg(bench.journal_file())
            .env("KUBECONFIG", bench.kubeconfig())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, what: Signal) {
        signal(self.0.id().cast_signed(), what);
    }

    async fn ends(&mut self) {
        until("the elector ends", BUSY, async || {
            self.0.try_wait().unwrap().is_some()
        })
        .await;
    }
}

impl Drop for Elector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_go_elector_and_a_run_never_hold_at_once_and_tokens_rise_across_its_terms() {
    let bench = Bench::new().await;
    // The label is the consent of the Lease's owner.
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "theirs", "labels": {"leasehold.dev/shared-with": "ours"}},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
    });
    let lease = serde_json::from_value(lease).unwrap();
    bench
        .leases()
        .create(&PostParams::default(), &lease)
        .await
        .unwrap();
    bench
        .lock_of(
            json!({"leaseDurationSeconds": 4, "leaseName": "theirs"}),
            "ours",
        )
        .await;
    let _operator = Operator::leading(&bench.namespace).await;

    for turn in 0..3 {
        // The elector leads, a run waits; the one gives back, or is killed.
        let id = format!("elector-{turn}");
        let mut elector = Elector::start(&bench, "theirs", &id);
        bench.until_noted("beat", &id, BUSY).await;
        let before = bench.highest_token();
        until(
            "the operator has stamped a token for it",
            BUSY,
            async || {
                let status = bench
                    .locks()
                    .get("ours")
                    .await
                    .unwrap()
                    .status
                    .unwrap_or_default();
                status
                    .fencing_token
                    .is_some_and(|token| token.get() > before)
                    && status.holder.as_deref() == Some(&id)
            },
        )
        .await;
        let status = bench.locks().get("ours").await.unwrap().status.unwrap();
        let stamped = status.fencing_token.unwrap().get();
        let run = format!("run-{turn}");
        let ours = bench.run("ours").by(&run).works_on().start();
        ours.says(&format!("held by {id}")).await;
        elector.signal(if turn == 1 {
            Signal::KILL
        } else {
            Signal::TERM
        });
        elector.ends().await;
        let start = bench.until_noted("start", &run, BUSY).await;
        assert!(start.token > stamped, "{start:?} is not above {stamped}");

        // The run holds, an elector contends; the run ends, or is killed.
        let id = format!("after-{turn}");
        let mut elector = Elector::start(&bench, "theirs", &id);
        let beats = bench.noted("beat").len();
        until("the run works on beside it", BUSY, async || {
            bench.noted("beat").len() > beats + 40
        })
        .await;
        assert!(
            !bench.noted("start").contains(&id),
            "{:#?}",
            bench.journal()
        );
        if turn == 2 {
            ours.signal_tree(Signal::KILL);
        } else {
            ours.signal(Signal::TERM);
        }
        bench.until_noted("start", &id, BUSY).await;
        elector.signal(Signal::TERM);
        elector.ends().await;
    }
    bench.assert_one_at_a_time();
    // It is theirs: neither our label nor our lock as its owner.
    let lease = bench.leases().get("theirs").await.unwrap();
    assert_eq!(lease.metadata.owner_references, None);
    assert_eq!(lease.metadata.labels.unwrap().len(), 1);
    bench.finish().await;
}

/// client-go#754: a release with a duration that the server refuses. Ours is one that others can take, and the reverse.
#[tokio::test(flavor = "multi_thread")]
async fn each_takes_at_once_what_the_other_has_released() {
    let bench = Bench::new().await;
    bench.opened("released", 60).await;
    bench.serves("released", "run").await;
    let lease = ["-lease-duration", "60s", "-renew-deadline", "40s"];
    let mut elector = Elector::start_with(&bench, "released", "elector", &lease);
    // Long before a lease of ours could end.
    bench
        .until_noted("start", "elector", Duration::from_secs(15))
        .await;
    elector.signal(Signal::TERM);
    elector.ends().await;
    let none = Patch::Merge(json!({"metadata": {"annotations": {"note": "by hand"}}}));
    let params = PatchParams::default();
    bench
        .leases()
        .patch("released", &params, &none)
        .await
        .unwrap();
    let began = MonoInstant::now();
    bench.serves("released", "again").await;
    let took = MonoInstant::now().saturating_duration_since(began);
    // What client-go gives back stores a second, of the minute that it had.
    assert!(took < Duration::from_secs(10), "{took:?}");
    bench.assert_one_at_a_time();
    bench.finish().await;
}
