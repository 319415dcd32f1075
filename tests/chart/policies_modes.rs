//! The policies' modes: strict, Audit, Off; and what is rendered for each.

use std::sync::OnceLock;

use leasehold::api::names;
use leasehold::client::identity::{identity, random_uid};
use serde_json::{Value, json};
use xtask::cluster::{Cluster, Options};

use super::policies_attempts::{attempts, until_makers_are_noted};
use super::policies_stage::{Actor, Stage, user_of};
use super::render::{of_kind, render};
use super::run_bench::{BUSY, until};

/// A user of these locks who also patches, as this test does and the programs do not.
fn patcher_of(locks: &[&str]) -> Value {
    let mut rules = user_of(locks, &["use"]);
    rules[1]["verbs"]
        .as_array_mut()
        .expect("verbs")
        .push(json!("patch"));
    rules
}

/// Opt-in: a holder that fell silent is ended by the operator, and by nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn in_strict_mode_the_operator_alone_replaces_a_holder() {
    let stage = Stage::new(&json!({"strictMode": true})).await;
    let operator = stage.operator().await;
    let place = stage.place();
    place.make_free("kept", 600).await;
    place.make_free("short", 2).await;
    stage.account("worker", &patcher_of(&["kept", "short"]));
    let pods = [
        stage.pod("pod-1", "worker").await,
        stage.pod("pod-2", "worker").await,
    ];
    let first = stage.place_of(&pods[0]);
    let hold = async |lock: &str| {
        let identity = identity("pod-1", &random_uid());
        first.take_in(lock, 0, identity, pods[0].pod.clone()).await
    };
    hold("kept").await;
    // A take that keeps to every other rule.
    let says = format!("{}pod-1/", names::STRICT_MODE_REFUSAL);
    let take = format!("[{{by: pod-2, take: kept, over: true, says: '{says}'}}]");
    attempts(&take)[0].until_refused(&stage, &pods[1]).await;

    // The waiter gets it all the same.
    let grant = hold("short").await;
    let waiter = stage
        .bench
        .run("short")
        .env("KUBECONFIG", &pods[1].kubeconfig)
        .in_pod(&pods[1].token);
    waiter
        .works_for("0")
        .start()
        .ends(BUSY)
        .await
        .assert(0, &[]);
    let lease = place.lease("short").await.record;
    assert!(lease.last_token() > grant.token.get(), "{lease:?}");

    // Without an operator it waits for one, and says so.
    drop(operator);
    hold("short").await;
    let waiter = stage
        .bench
        .run("short")
        .env("KUBECONFIG", &pods[1].kubeconfig)
        .in_pod(&pods[1].token);
    let waiter = waiter.works_for("0").start();
    waiter.says("strict mode leaves it to the operator").await;
    let operator = stage.another_operator("heir").await;
    waiter.ends(BUSY * 2).await.assert(0, &[]);
    drop(operator);
    stage.bench.finish().await;
}

/// A claim on a lock, as YAML has it.
fn claim(name: &str, lock: &str, hold: &Value) -> Value {
    json!({
        "apiVersion": names::API_VERSION, "kind": "LockClaim", "metadata": {"name": name},
        "spec": {"lockName": lock, "hold": hold},
    })
}

static AUDITED: OnceLock<(Cluster, std::path::PathBuf)> = OnceLock::new();

/// A control plane that keeps an audit log of what is said about Leases.
fn audited() -> &'static (Cluster, std::path::PathBuf) {
    AUDITED.get_or_init(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = std::env::temp_dir().join(format!("leasehold-audit-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&folder).expect("a folder");
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "Metadata", "verbs": ["patch"], "resources": [{"group": "coordination.k8s.io"}]},
                {"level": "None"},
            ],
        });
        std::fs::write(folder.join("policy.json"), policy.to_string()).expect("a file");
        let options = Options {
            apiserver_args: vec![
                format!("--audit-policy-file={}", folder.join("policy.json").display()),
                format!("--audit-log-path={}", folder.join("log").display()),
            ],
            ..Options::default()
        };
        (Cluster::start(&options).expect("a control plane"), folder)
    })
}

/// What kubectl says to an actor, and whether it worked.
fn kubectl(stage: &Stage, actor: &Actor, args: &[&str]) -> (bool, String) {
    let namespace = ["-n", stage.namespace()];
    let done = stage
        .cluster
        .kubectl(namespace.into_iter().chain(args.iter().copied()))
        .env("KUBECONFIG", &actor.kubeconfig)
        .output();
    let done = done.expect("kubectl");
    (
        done.status.success(),
        String::from_utf8_lossy(&done.stderr).into_owned(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_lets_pass_what_deny_refuses_and_says_so_to_the_client_and_in_the_audit_log() {
    let (cluster, folder) = audited();
    let stage = Stage::bare(cluster).await;
    let spec = json!({"holderIdentity": "leasehold.dev/missing"});
    stage
        .place()
        .make_lease("open", &json!({"leasehold.dev/lock": "open"}), &spec)
        .await;
    stage.apply_release(&json!({"admissionPolicies": "Audit"}));
    stage.account("mallory", &json!([
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "patch"]},
        {"apiGroups": ["leasehold.dev"], "resources": ["lockclaims"], "verbs": ["create", "get"]},
    ]));
    let mallory = stage.person("mallory").await;
    let patch = |dry: &str| {
        kubectl(
            &stage,
            &mallory,
            &[
                "patch",
                "lease",
                "open",
                "--type=merge",
                dry,
                "-p",
                r#"{"spec":{"holderIdentity":"mallory"}}"#,
            ],
        )
    };
    let policy = format!("{}-lease'", stage.policies_name());
    until("the policy counts", BUSY, async || {
        patch("--dry-run=server").1.contains("Warning: ")
    })
    .await;
    let (went_through, said) = patch("--dry-run=none");
    assert!(went_through, "{said}");
    for words in [
        &policy,
        "you need the verb \"use\" on distributedlocks/open",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(
        stage.place().lease("open").await.record.spec.holder,
        "mallory"
    );
    until("the audit log tells", BUSY, async || {
        let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
        log.lines().any(|line| {
            line.contains("validation.policy.admission.k8s.io/validation_failure")
                && line.contains("distributedlocks/open")
        })
    })
    .await;
    // Who made a claim is noted, so that Deny can be switched on later.
    until_makers_are_noted(&stage.place_of(&mallory)).await;
    stage.bench.finish().await;
    std::fs::remove_dir_all(folder).expect("the log can go");
}

/// Flux and Argo CD apply the same again and again, from another Pod each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_applied_again_keeps_its_maker() {
    let stage = Stage::new(&json!({})).await;
    let mut rules = user_of(&["nightly"], &["use"]);
    rules[2]["verbs"]
        .as_array_mut()
        .expect("verbs")
        .extend([json!("update"), json!("patch")]);
    stage.account("gitops", &rules);
    let file = stage.bench.file("claim.json");
    let seat = claim(
        "seat",
        "nightly",
        &json!({"type": "Fixed", "fixed": {"seconds": 60}}),
    );
    std::fs::write(&file, seat.to_string()).expect("a file");
    let file = file.to_str().expect("a path");
    let maker = format!("system:serviceaccount:{}:gitops", stage.namespace());
    for (pod, how) in [
        ("pod-1", &["--server-side"][..]),
        ("pod-2", &["--server-side"]),
        ("pod-3", &[]),
        ("pod-4", &["--force-conflicts", "--server-side"]),
    ] {
        let actor = stage.pod(pod, "gitops").await;
        let (applied, said) = kubectl(&stage, &actor, &[&["apply", "-f", file][..], how].concat());
        assert!(applied, "{pod}: {said}");
        let claim = stage.place().claims.get("seat").await.expect("the claim");
        let notes = claim.metadata.annotations.expect("notes");
        assert_eq!(notes.get("leasehold.dev/created-by"), Some(&maker), "{pod}");
    }
    // What replaces the whole object leaves the note out; it is put back.
    let actor = stage.pod("pod-5", "gitops").await;
    let (replaced, said) = kubectl(&stage, &actor, &["replace", "-f", file]);
    assert!(replaced, "{said}");
    let claim = stage.place().claims.get("seat").await.expect("the claim");
    assert_eq!(
        claim
            .metadata
            .annotations
            .expect("notes")
            .get("leasehold.dev/created-by"),
        Some(&maker)
    );
    stage.bench.finish().await;
}

const POLICY: &str = "ValidatingAdmissionPolicy";
const BINDING: &str = "ValidatingAdmissionPolicyBinding";

fn rendered(values: &Value) -> Vec<Value> {
    render("leasehold", "leasehold", values)
}

#[test]
fn each_mode_renders_what_it_says() {
    for (mode, actions) in [
        ("Deny", json!(["Deny", "Audit"])),
        ("Audit", json!(["Warn", "Audit"])),
    ] {
        let objects = rendered(&json!({"admissionPolicies": mode}));
        let policies = of_kind(&objects, POLICY);
        let bindings = of_kind(&objects, BINDING);
        assert_eq!((policies.len(), bindings.len()), (8, 8), "{mode}");
        for binding in bindings {
            assert_eq!(binding["spec"]["validationActions"], actions, "{binding}");
            let name = &binding["spec"]["policyName"];
            let policy = policies.iter().find(|it| it["metadata"]["name"] == *name);
            assert_eq!(policy.expect("its policy")["spec"]["failurePolicy"], "Fail");
        }
    }
    let strict = rendered(&json!({"strictMode": true}));
    let is_strict = |policy: &&Value| policy["metadata"]["name"] == "leasehold-lease-strict";
    assert!(of_kind(&strict, POLICY).iter().any(is_strict));
    let off = rendered(&json!({"admissionPolicies": "Off"}));
    for kind in [POLICY, BINDING, "MutatingAdmissionPolicy"] {
        assert_eq!(of_kind(&off, kind), Vec::<&Value>::new());
    }
}

#[test]
fn the_leases_of_kubernetes_itself_are_out_of_reach_of_every_policy_that_could_block_them() {
    let out = json!({
        "key": "kubernetes.io/metadata.name", "operator": "NotIn",
        "values": ["kube-system", "kube-public", "kube-node-lease"],
    });
    for values in [
        json!({"strictMode": true}),
        json!({"watchNamespaces": ["team-a", "kube-system"]}),
    ] {
        for binding in of_kind(&rendered(&values), BINDING) {
            let name = binding["metadata"]["name"].as_str().expect("a name");
            if name.ends_with("-operator") || name.ends_with("-namespaces") {
                // Of the operator's account alone, and of our own kinds alone.
                continue;
            }
            let rules = &binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"];
            let rules = rules.as_array().expect("rules");
            assert!(rules.contains(&out), "{name}");
        }
    }
}
