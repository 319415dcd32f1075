//! The sidecar, injected: into which Pods, as what, and on which servers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use leasehold::api::names;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::policies_stage::{Stage, merge};
use super::render::{chart, helm, values_file};
use super::run_bench::{BUSY, until};

/// A server that injects, and what it makes of Pods.
struct Injecting {
    stage: Stage,
    pods: Api<Pod>,
}

impl Injecting {
    async fn new() -> Self {
        let stage = Stage::new(&json!({"injection": {"enabled": true}})).await;
        let pods = stage.place().pods();
        let injecting = Self { stage, pods };
        until("the policy counts", BUSY, async || {
            let made = injecting.made(&asks(), &plain()).await;
            made.is_ok_and(|spec| spec["initContainers"][0]["name"] == "leasehold-begin")
        })
        .await;
        injecting
    }

    /// The spec of a Pod with these annotations; the server's words where it refuses.
    async fn made(&self, notes: &Value, spec: &Value) -> Result<Value, String> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "app", "annotations": notes}, "spec": spec,
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let made = self.pods.create(&params, &pod).await;
        let made = made.map_err(|error| error.to_string())?;
        Ok(serde_json::to_value(made.spec).expect("a spec"))
    }
}

/// The annotations of a Pod that asks for a lock.
fn asks() -> Value {
    json!({names::ANNOTATION_LOCK: "nightly"})
}

/// The same with another way to end.
fn on_loss(how: &str) -> Value {
    json!({names::ANNOTATION_LOCK: "nightly", names::ANNOTATION_ON_LOSS: how})
}

/// A Pod's spec with nothing but a container.
fn plain() -> Value {
    json!({"containers": [{"name": "main", "image": "none"}]})
}

/// How the grant's volume is mounted.
fn mounted(container: &Value) -> Option<&Value> {
    let mut mounts = container["volumeMounts"].as_array()?.iter();
    mounts.find(|mount| mount["name"] == "leasehold-grant")
}

/// As an app mounts it.
fn read_only() -> Value {
    json!({"name": "leasehold-grant", "mountPath": "/var/run/leasehold", "readOnly": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_the_annotation_gets_the_sidecar_and_no_other_does() {
    let injecting = Injecting::new().await;
    let spec = injecting.made(&asks(), &plain()).await.expect("it passes");
    let [begin, sidecar] = [0, 1].map(|n: usize| &spec["initContainers"][n]);
    assert_eq!(begin["args"], json!(["sidecar", "--new-work"]));
    let args = json!(["sidecar", "--lock=nightly", "--on-loss=exit"]);
    assert_eq!(sidecar["args"], args);
    let node = &sidecar["env"][0];
    assert_eq!(node["name"], "NODE_NAME");
    let field = &node["valueFrom"]["fieldRef"];
    assert_eq!(field["fieldPath"], "spec.nodeName");
    let rule = &sidecar["restartPolicyRules"][0];
    assert_eq!(rule["action"], "RestartAllContainers");
    assert_eq!(rule["exitCodes"]["values"], json!([76]));
    assert_eq!(sidecar["restartPolicy"], "Always");
    assert_eq!(sidecar["startupProbe"]["httpGet"]["path"], "/heldz");
    assert_eq!(sidecar["securityContext"]["runAsNonRoot"], true);
    let own = json!({"name": "leasehold-grant", "mountPath": "/var/run/leasehold"});
    assert_eq!([begin, sidecar].map(mounted), [Some(&own); 2]);
    let app = &spec["containers"][0];
    assert_eq!(mounted(app), Some(&read_only()));
    let probe = &app["livenessProbe"]["httpGet"];
    assert_eq!(probe["port"], 7118, "the kubelet ends it on loss");

    let spec = injecting
        .made(&json!({}), &plain())
        .await
        .expect("it passes");
    assert_eq!(spec.get("initContainers"), None);
    injecting.stage.bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pod_has_stays_and_what_can_not_be_injected_is_refused() {
    let injecting = Injecting::new().await;
    let rich = json!({
        "shareProcessNamespace": true, "securityContext": {"runAsUser": 4711},
        "volumes": [{"name": "x", "emptyDir": {}}],
        "initContainers": [{"name": "first", "image": "none"}],
        "containers": [
            {"name": "main", "image": "none"},
            {
                "name": "two", "image": "none", "volumeMounts": [{"name": "x", "mountPath": "/x"}],
                "livenessProbe": {"exec": {"command": ["true"]}},
            },
        ],
    });
    let mut notes = on_loss("delete-pod");
    notes[names::ANNOTATION_MAY_OUTLIVE] = json!("two");
    let spec = injecting.made(&notes, &rich).await.expect("it passes");
    let [sidecar, first] = [0, 1].map(|n: usize| &spec["initContainers"][n]);
    let args = json!([
        "sidecar",
        "--lock=nightly",
        "--end-app",
        "--on-loss=delete-pod"
    ]);
    assert_eq!(sidecar["args"], args);
    let user = &sidecar["securityContext"]["runAsUser"];
    assert_eq!(*user, 4711, "who ends the app is its user");
    assert_eq!(first["name"], "first");
    let [main, two] = [0, 1].map(|n: usize| &spec["containers"][n]);
    assert_eq!([first, main, two].map(mounted), [Some(&read_only()); 3]);
    let asked = &main["livenessProbe"]["httpGet"]["path"];
    assert_eq!(*asked, "/heldz", "for a sidecar that is frozen");
    assert_eq!(two["livenessProbe"]["exec"]["command"], json!(["true"]));
    assert_eq!(spec["volumes"][0]["name"], "x");

    let mut mine = plain();
    mine["initContainers"] = json!([{"name": "leasehold", "image": "mine"}]);
    let spec = injecting.made(&asks(), &mine).await.expect("it passes");
    let inits = spec["initContainers"].as_array().map(Vec::len);
    assert_eq!(inits, Some(1), "one's own sidecar is left alone");

    let mut blind = plain();
    blind["automountServiceAccountToken"] = json!(false);
    let mut on_the_host = plain();
    on_the_host["hostNetwork"] = json!(true);
    let mut shared = plain();
    shared["shareProcessNamespace"] = json!(true);
    let mut other_user = shared.clone();
    other_user["securityContext"] = json!({"runAsUser": 4711});
    other_user["containers"][0]["securityContext"] = json!({"runAsUser": 4712});
    let mut same_user = other_user.clone();
    same_user["containers"][0]["securityContext"] = json!({"runAsUser": 4711});
    let stay = on_loss("stay");
    for (notes, spec) in [
        (&stay, &same_user),
        (&asks(), &shared),
        (&asks(), &other_user),
    ] {
        injecting.made(notes, spec).await.expect("it passes");
    }
    let wrong = json!({names::ANNOTATION_LOCK: "Nightly Billing"});
    let pray = on_loss("pray");
    let no_lock = json!({names::ANNOTATION_ON_LOSS: "stay"});
    for (notes, spec, words) in [
        (&wrong, &plain(), "must be the name of a DistributedLock"),
        (
            &no_lock,
            &plain(),
            "name the lock in the annotation leasehold.dev/lock",
        ),
        (&pray, &plain(), "must be exit, stay or delete-pod"),
        (&asks(), &blind, "leave automountServiceAccountToken out"),
        (&asks(), &on_the_host, "not on the host's network"),
        (&stay, &shared, "set securityContext.runAsUser"),
        (&stay, &other_user, "set securityContext.runAsUser"),
    ] {
        let said = injecting.made(notes, spec).await.expect_err(words);
        assert!(said.contains(words), "{said}");
    }
    injecting.stage.bench.finish().await;
}

/// A row of the table beside this file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asking {
    #[serde(default)]
    notes: BTreeMap<String, String>,
    #[serde(default)]
    spec: Map<String, Value>,
    #[serde(default)]
    container: Map<String, Value>,
    probe: Option<Map<String, Value>>,
    says: Option<String>,
}

impl Asking {
    fn notes(&self) -> Value {
        let mut notes = asks();
        for (name, value) in &self.notes {
            notes[format!("leasehold.dev/{name}")] = json!(value);
        }
        notes
    }

    fn spec(&self) -> Value {
        let mut spec = plain();
        merge(&mut spec, &json!(self.spec));
        merge(&mut spec["containers"][0], &json!(self.container));
        if let Some(probe) = &self.probe {
            let main = &mut spec["containers"][0]["livenessProbe"];
            *main = asks_the_sidecar();
            merge(main, &json!(probe));
        }
        spec
    }
}

/// The liveness probe that is injected.
fn asks_the_sidecar() -> Value {
    json!({
        "httpGet": {"path": "/heldz", "port": 7118},
        "periodSeconds": 2, "timeoutSeconds": 1, "failureThreshold": 2, "terminationGracePeriodSeconds": 4,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_app_would_run_without_the_lock_is_refused() {
    let injecting = Injecting::new().await;
    let table = include_str!("policies_injection.yaml");
    let table: Vec<Asking> = serde_norway::from_str(table).expect("the table");
    let mut wrong = vec![];
    for asking in &table {
        let made = injecting.made(&asking.notes(), &asking.spec()).await;
        match (made, &asking.says) {
            (Ok(_), None) => {}
            (Err(said), Some(words)) if said.contains(words) => {}
            (Ok(_), Some(_)) => wrong.push(format!("passes: {asking:?}")),
            (Err(said), _) => wrong.push(format!("{said}: {asking:?}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");

    // As many containers as are injected into, with much to look at in each.
    let names: Vec<_> = (0..16).map(|n| format!("main-{n}")).collect();
    let main = |name| json!({"name": name, "image": "none", "livenessProbe": asks_the_sidecar()});
    let first = |n| json!({"name": format!("first-{n}"), "image": "none"});
    let many = json!({
        "containers": names.iter().map(main).collect::<Vec<_>>(),
        "initContainers": (0..16).map(first).collect::<Vec<_>>(),
    });
    let mut notes = asks();
    notes[names::ANNOTATION_MAY_OUTLIVE] = json!(names[1..].join(","));
    injecting.made(&notes, &many).await.expect("it passes");
    injecting.stage.bench.finish().await;
}

/// What a release consists of on a server of this version that serves these kinds; Helm's words where it refuses.
fn render_for(values: &Value, version: &str, kinds: &[&str]) -> Result<Vec<Value>, String> {
    let file = values_file(values);
    let mut command = helm();
    command
        .args(["template", "leasehold"])
        .arg(chart())
        .args(["--kube-version", version, "--values"])
        .arg(&file);
    for kind in kinds {
        command.args([
            "--api-versions",
            &format!("admissionregistration.k8s.io/{kind}"),
        ]);
    }
    let done = command.output().expect("helm runs");
    std::fs::remove_file(file).expect("it is there");
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    let documents = serde_norway::Deserializer::from_slice(&done.stdout);
    Ok(documents
        .map(|document| Value::deserialize(document).expect("YAML"))
        .filter(|object| !object.is_null())
        .collect())
}

#[test]
fn injection_is_refused_on_a_server_without_mutating_policies_and_the_rest_works() {
    let on = json!({"injection": {"enabled": true}});
    let validating = "v1/ValidatingAdmissionPolicy";
    let said = render_for(&on, "1.35.0", &[validating]).expect_err("it is refused");
    assert!(
        said.contains("injection.enabled needs MutatingAdmissionPolicy"),
        "{said}"
    );
    let without = render_for(&json!({}), "1.35.0", &[validating]).expect("it works");
    assert!(
        without
            .iter()
            .all(|object| object["kind"] != "MutatingAdmissionPolicy")
    );
    let beta = render_for(
        &on,
        "1.35.0",
        &[validating, "v1beta1/MutatingAdmissionPolicy"],
    )
    .expect("it works");
    let mutating = beta
        .iter()
        .filter(|object| object["kind"] == "MutatingAdmissionPolicy");
    let versions: Vec<_> = mutating
        .map(|object| object["apiVersion"].clone())
        .collect();
    assert_eq!(
        versions,
        [
            json!("admissionregistration.k8s.io/v1beta1"),
            json!("admissionregistration.k8s.io/v1beta1")
        ]
    );
    // Without a server to ask, the version decides.
    for (version, works) in [("1.36.0", true), ("1.35.0", false)] {
        assert_eq!(render_for(&on, version, &[]).is_ok(), works, "{version}");
    }
}
