//! What our own programs do passes every policy: as service accounts with the rights that docs/policies.md names, with
//! tokens that are bound to Pods.

use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, PostParams};
use leasehold::api::{ClaimPhase, DistributedLockSpec, EndReason, LockClaimSpec, names};
use leasehold::supervise::Signal;
use serde_json::json;

use super::operator_place::{fixed, with_pod};
use super::operator_rig::{LONG, ends, is_free, lasting};
use super::policies_stage::{Actor, Stage, user_of};
use super::processes::signal;
use super::run_bench::{BUSY, until};
use super::run_process::{Run, RunBuilder};

/// What a policy says when it refuses.
const REFUSED: [&str; 2] = ["ValidatingAdmissionPolicy", "not allowed"];

/// A `leasehold run` in the Pod of an actor.
fn run(stage: &Stage, lock: &str, actor: &Actor) -> RunBuilder {
    stage
        .bench
        .run(lock)
        .env("KUBECONFIG", &actor.kubeconfig)
        .in_pod(&actor.token)
}

fn says_no_refusal(words: &str) {
    for refused in REFUSED {
        assert!(!words.contains(refused), "{words}");
    }
}

/// It ends with this code, and was refused nothing.
async fn exits(run: Run, code: i32) {
    let ended = run.ends(BUSY * 2).await;
    ended.assert(code, &[]);
    says_no_refusal(&ended.stderr);
}

async fn workers(stage: &Stage, locks: &[&str], count: usize) -> Vec<Actor> {
    stage.account("worker", &user_of(locks, &["use"]));
    let mut pods = vec![];
    for number in 1..=count {
        pods.push(stage.pod(&format!("pod-{number}"), "worker").await);
    }
    pods
}

/// A claim on another lock than the usual one.
fn on(lock: &str, spec: LockClaimSpec) -> LockClaimSpec {
    LockClaimSpec {
        lock_name: lock.to_owned(),
        ..spec
    }
}

/// In a Pod, by a kubeconfig of its own: to the server it is not that Pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_a_pod_with_other_credentials_is_served_like_one_from_outside() {
    let stage = Stage::new(&json!({})).await;
    let operator = stage.operator().await;
    stage.place().make_free("nightly", 15).await;
    let pods = workers(&stage, &["nightly"], 1).await;
    let person = stage.person("worker").await;
    let builder = stage.bench.run("nightly").in_pod(&pods[0].token);
    let builder = builder.env("KUBECONFIG", &person.kubeconfig);
    exits(builder.works_for("0").start(), 0).await;
    drop(operator);
    stage.bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_pods_wait_hold_crash_and_are_revoked_unhindered() {
    let stage = Stage::new(&json!({})).await;
    let operator = stage.operator().await;
    let place = stage.place();
    place.make_free("nightly", 4).await;
    let pods = workers(&stage, &["nightly"], 4).await;

    // Held, handed over in order, taken over after a crash.
    let first = run(&stage, "nightly", &pods[0]).works_on().start();
    stage.bench.until_noted("start", "pod-1", BUSY).await;
    let second = run(&stage, "nightly", &pods[1]).works_on().start();
    stage.bench.until_waiting(1).await;
    let third = run(&stage, "nightly", &pods[2]).works_on().start();
    stage.bench.until_waiting(2).await;
    first.signal(Signal::TERM);
    stage.bench.until_noted("start", "pod-2", BUSY).await;
    second.signal_tree(Signal::KILL);
    stage.bench.until_noted("start", "pod-3", BUSY * 2).await;
    exits(first, 143).await;

    // A waiter that leaves, named or not.
    let fourth = run(&stage, "nightly", &pods[3])
        .with(&["--wait", "1s"])
        .works_for("0")
        .start();
    exits(fourth, 75).await;

    // Revoked by somebody who may.
    stage.account("oncall", &json!([{"apiGroups": ["leasehold.dev"], "resources": ["distributedlocks"], "verbs": ["get", "patch", "revoke"]}]));
    let oncall = stage.place_of(&stage.person("oncall").await);
    let held = place.lock_is("nightly", "its holder is shown", |lock| {
        lock.slot_status(0)
            .is_some_and(|slot| slot.holder_identity.starts_with("pod-3/"))
    });
    let token = held.await.slot_token(0).expect("a token").get();
    oncall
        .edit_lock("nightly", &json!({"spec": {"minFencingToken": token + 1}}))
        .await;
    exits(third, 76).await;
    let last = run(&stage, "nightly", &pods[0]).works_for("0").start();
    exits(last, 0).await;
    stage.bench.assert_one_at_a_time();
    let lock = place.lock_is("nightly", "history tells how each hold ended", |lock| {
        ends(lock).len() == 4
    });
    assert_eq!(
        ends(&lock.await),
        [
            EndReason::Released,
            EndReason::Revoked,
            EndReason::Expired,
            EndReason::Released
        ]
    );
    says_no_refusal(&operator.log());
    drop(operator);
    stage.bench.finish().await;
}

/// R7: nobody needs the operator to go on, under policies too.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_operator_waiters_replace_a_silent_holder_and_pass_over_a_dead_one() {
    let stage = Stage::new(&json!({})).await;
    let mut operator = stage.operator().await;
    let place = stage.place();
    place.make_free("nightly", 2).await;
    let pods = workers(&stage, &["nightly"], 4).await;
    let first = run(&stage, "nightly", &pods[0]).works_on().start();
    stage.bench.until_noted("start", "pod-1", BUSY).await;
    let second = run(&stage, "nightly", &pods[1]).works_on().start();
    stage.bench.until_waiting(1).await;
    let third = run(&stage, "nightly", &pods[2]).works_on().start();
    stage.bench.until_waiting(2).await;
    place
        .lease_is("nightly", "the second is named", |lease| {
            lease.record.next.is_some()
        })
        .await;
    operator.signal(Signal::TERM);
    operator.ended().await;
    // The one that is named dies, then the holder: the third passes over the one and replaces the other.
    second.signal_tree(Signal::KILL);
    first.signal_tree(Signal::KILL);
    stage.bench.until_noted("start", "pod-3", BUSY * 2).await;
    let lease = place.lease("nightly").await.record;
    assert!(lease.spec.holder.starts_with("pod-3/"), "{lease:?}");
    let ended = lease.ended.expect("a note");
    assert_eq!(
        (ended.kind.as_str(), &ended.by),
        ("Expired", &lease.spec.holder)
    );
    third.signal(Signal::TERM);
    exits(third, 143).await;
    let last = run(&stage, "nightly", &pods[3]).works_for("0").start();
    exits(last, 0).await;
    stage.bench.assert_one_at_a_time();
    says_no_refusal(&operator.log());
    stage.bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_several_locks_and_priority_work_unhindered() {
    let stage = Stage::new(&json!({})).await;
    let operator = stage.operator().await;
    let place = stage.place();
    let two = DistributedLockSpec {
        max_holders: 2,
        ..lasting(15)
    };
    place.make("two", two).await;
    place
        .lock_is("two", "both slots are open", |lock| {
            lock.slot_status(1).is_some()
        })
        .await;
    for lock in ["left", "right", "urgent"] {
        place.make_free(lock, 15).await;
    }
    let pods = workers(&stage, &["two", "left", "right", "urgent"], 4).await;

    let holders = [0, 1].map(|n: usize| run(&stage, "two", &pods[n]).works_on().start());
    for pod in ["pod-1", "pod-2"] {
        stage.bench.until_noted("start", pod, BUSY).await;
    }
    let waiters = [2, 3].map(|n: usize| run(&stage, "two", &pods[n]).works_for("0").start());
    stage.bench.until_waiting(2).await;
    // Whichever slot it is, the queue stands on the first one's Lease.
    for holder in holders {
        holder.signal(Signal::TERM);
        exits(holder, 143).await;
    }
    for waiter in waiters {
        exits(waiter, 0).await;
    }

    let both = run(&stage, "left", &pods[0])
        .option("--lock", "right")
        .command(&["true"])
        .start();
    exits(both, 0).await;

    stage.bench.forget_journal();
    let holder = run(&stage, "urgent", &pods[0]).works_on().start();
    stage.bench.until_noted("start", "pod-1", BUSY).await;
    let pushy = run(&stage, "urgent", &pods[1])
        .option("--priority", "5")
        .works_for("0")
        .ends()
        .await;
    pushy.assert(
        69,
        &["you need the verb \"prioritize\" on distributedlocks/urgent"],
    );
    stage.account("urgent", &user_of(&["urgent"], &["use", "prioritize"]));
    let vip = stage.pod("vip", "urgent").await;
    let vip = run(&stage, "urgent", &vip)
        .option("--priority", "5")
        .works_for("0")
        .start();
    stage.bench.until_waiting(1).await;
    holder.signal(Signal::TERM);
    exits(vip, 0).await;
    exits(holder, 143).await;

    // Without the verb nothing is taken, and the words say what to do.
    stage.account("stranger", &user_of(&["left"], &[]));
    let stranger = stage.pod("stranger", "stranger").await;
    let stranger = run(&stage, "left", &stranger).works_for("0").ends().await;
    stranger.assert(69, &["you need the verb \"use\" on distributedlocks/left"]);
    says_no_refusal(&operator.log());
    drop(operator);
    stage.bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fixed_and_pod_claims_are_taken_kept_prolonged_and_ended_unhindered() {
    let stage = Stage::new(&json!({})).await;
    let operator = stage.operator().await;
    let place = stage.place();
    for lock in ["seat", "while"] {
        place.make_free(lock, 15).await;
    }
    // Who applies YAML edits its claims, too.
    let mut rules = user_of(&["seat", "while"], &["use"]);
    rules[2]["verbs"]
        .as_array_mut()
        .expect("verbs")
        .extend([json!("update"), json!("patch")]);
    stage.account("applier", &rules);
    let (one, other) = (
        stage.pod("one", "applier").await,
        stage.pod("other", "applier").await,
    );
    let mine = stage.place_of(&one);

    let made = mine.claim("seat", on("seat", fixed(2))).await;
    let by = made.metadata.annotations.expect("notes");
    assert_eq!(
        by.get(names::ANNOTATION_CREATED_BY),
        Some(&format!(
            "system:serviceaccount:{}:applier",
            stage.namespace()
        ))
    );
    place.claim_in("seat", ClaimPhase::Granted).await;
    // Another Pod of the account that made it: a pipeline's next step.
    let longer = json!({"spec": {"hold": {"fixed": {"seconds": 600}}}});
    stage.place_of(&other).edit_claim("seat", &longer).await;
    place
        .lease_is("seat", "it is prolonged", |lease| {
            lease.record.spec.duration_seconds > Some(100)
        })
        .await;
    mine.delete_claim("seat").await;
    place.lock_is("seat", "it is free again", is_free).await;
    mine.claim("short", on("seat", fixed(1))).await;
    place.claim_in("short", ClaimPhase::Expired).await;

    mine.claim("while", on("while", with_pod("one", None)))
        .await;
    place.claim_in("while", ClaimPhase::Granted).await;
    let lease = place.lease("while").await.record;
    let bound = lease.current_grant().and_then(|grant| grant.pod.clone());
    assert_eq!(bound, one.pod);
    place.delete_pod("one").await;
    place.claim_in("while", ClaimPhase::Released).await;
    place.lock_is("while", "it is free again", is_free).await;
    says_no_refusal(&operator.log());
    drop(operator);
    stage.bench.finish().await;
}

/// The garbage collector and the end of a namespace wait for nobody.
#[tokio::test(flavor = "multi_thread")]
async fn clean_ups_are_never_blocked() {
    let stage = Stage::new(&json!({})).await;
    let operator = stage.operator().await;
    let place = stage.place();
    for lock in ["nightly", "going"] {
        place.make_free(lock, 600).await;
    }
    let pods = workers(&stage, &["nightly", "going"], 3).await;
    let holder = run(&stage, "nightly", &pods[0]).works_on().start();
    let other = run(&stage, "going", &pods[1]).works_on().start();
    for pod in ["pod-1", "pod-2"] {
        stage.bench.until_noted("start", pod, BUSY).await;
    }
    let mut waiter = run(&stage, "nightly", &pods[2]).works_for("0").start();
    stage.bench.until_waiting(1).await;

    // A claim goes with its Pod, by the garbage collector.
    waiter.signal_tree(Signal::KILL);
    waiter.exits(BUSY).await;
    place.delete_pod("pod-3").await;
    stage.bench.until_waiting(0).await;

    // A Lease goes with its lock; a held one only on purpose.
    place
        .lock_is("going", "its holder is shown", |lock| {
            lock.slot_status(0).is_some_and(|slot| !slot.is_free())
        })
        .await;
    let refused = place.locks.delete("going", &DeleteParams::default()).await;
    assert!(
        refused
            .expect_err("it is held")
            .to_string()
            .contains("leasehold.dev/allow-deletion")
    );
    place
        .edit_lock(
            "going",
            &json!({"metadata": {"annotations": {"leasehold.dev/allow-deletion": "yes"}}}),
        )
        .await;
    place
        .locks
        .delete("going", &DeleteParams::default())
        .await
        .expect("now it may");
    exits(other, 76).await;
    until("the Lease is gone", BUSY, async || {
        place
            .leases
            .get_opt("going")
            .await
            .expect("leases")
            .is_none()
    })
    .await;

    // A namespace goes with all that is in it, held or not.
    let namespaces: Api<Namespace> = Api::all(stage.bench.client.clone());
    namespaces
        .delete(stage.namespace(), &DeleteParams::default())
        .await
        .expect("it is deleted");
    until(
        "the namespace is gone",
        Duration::from_secs(90),
        async || {
            namespaces
                .get_opt(stage.namespace())
                .await
                .expect("namespaces")
                .is_none()
        },
    )
    .await;
    holder.signal_tree(Signal::KILL);
    drop((holder, operator));
}

/// A stock client-go elector needs the right to update its Lease, as ever, and none of ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_elector_and_runs_share_a_lease_unhindered() {
    let stage = Stage::new(&json!({})).await;
    let operator = stage.operator().await;
    let place = stage.place();
    let consent = json!({"leasehold.dev/shared-with": "ours"});
    place
        .make_lease(
            "theirs",
            &consent,
            &json!({"holderIdentity": "", "leaseDurationSeconds": 1}),
        )
        .await;
    place
        .make(
            "ours",
            DistributedLockSpec {
                lease_name: Some("theirs".to_owned()),
                ..lasting(4)
            },
        )
        .await;
    stage.account("elector", &json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}]));
    let elector = stage.person("elector").await;
    let mut rules = user_of(&["ours"], &["use"]);
    rules[1]["resourceNames"] = json!(["theirs"]);
    stage.account("worker", &rules);
    let pods = [
        stage.pod("pod-1", "worker").await,
        stage.pod("pod-2", "worker").await,
    ];

    let program = xtask::elector::ensure().expect("the elector");
    let mut leads = Command::new(program)
        .args([
            "-namespace",
            stage.namespace(),
            "-lease",
            "theirs",
            "-id",
            "elector-1",
        ])
        .arg("-journal")
        .arg(stage.bench.journal_file())
        .env("KUBECONFIG", &elector.kubeconfig)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the elector");
    stage.bench.until_noted("beat", "elector-1", BUSY).await;
    place
        .lock_is("ours", "it has a token", |lock| {
            lock.slot_status(0)
                .is_some_and(|slot| slot.holder_identity.starts_with("elector-1"))
        })
        .await;
    let first = run(&stage, "ours", &pods[0]).works_on().start();
    stage.bench.until_waiting(1).await;
    signal(leads.id().cast_signed(), Signal::TERM);
    stage.bench.until_noted("start", "pod-1", LONG).await;
    let second = run(&stage, "ours", &pods[1]).works_for("0").start();
    stage.bench.until_waiting(1).await;
    first.signal(Signal::TERM);
    exits(first, 143).await;
    exits(second, 0).await;
    let _ = leads.kill();
    let _ = leads.wait();

    // One that replaces the whole Lease, annotations and all.
    let found = place.lease("theirs").await;
    let theirs = stage.place_of(&elector);
    let mut whole = found.object.clone();
    whole.metadata.annotations = None;
    whole.data["spec"]["holderIdentity"] = json!("python-client");
    theirs
        .leases
        .replace("theirs", &PostParams::default(), &whole)
        .await
        .expect("its owner may");
    stage.bench.assert_one_at_a_time();
    says_no_refusal(&operator.log());
    drop(operator);
    stage.bench.finish().await;
}
