//! The sidecar, injected: into which Pods, as what, and on which servers.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use leasehold::api::names;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::policies_stage::Stage;
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
    for (notes, spec, words) in [
        (&wrong, &plain(), "must be the name of a DistributedLock"),
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

/// With this in place of what `/path` shows; what is not there yet is made.
fn with(mut spec: Value, changes: &[(&str, Value)]) -> Value {
    for (path, value) in changes {
        let (parent, key) = path.rsplit_once('/').expect("a path");
        spec.pointer_mut(parent).expect("a parent")[key] = value.clone();
    }
    spec
}

/// The one container's liveness probe, with the numbers of the one that is injected but for these.
fn probed(numbers: &Value) -> Value {
    let mut probe = json!({
        "httpGet": {"path": "/heldz", "port": 7118},
        "periodSeconds": 2, "timeoutSeconds": 1, "failureThreshold": 2, "terminationGracePeriodSeconds": 4,
    });
    for (key, value) in numbers.as_object().expect("numbers") {
        probe[key] = value.clone();
    }
    with(plain(), &[("/containers/0/livenessProbe", probe)])
}

/// What runs once.
fn once(spec: Value) -> Value {
    let never = ("/restartPolicy", json!("Never"));
    with(spec, &[never, ("/terminationGracePeriodSeconds", json!(4))])
}

/// In which the sidecar ends the app.
fn shared(spec: Value) -> Value {
    let user = ("/securityContext", json!({"runAsUser": 4711}));
    with(spec, &[("/shareProcessNamespace", json!(true)), user])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_app_would_run_without_the_lock_is_refused() {
    let injecting = Injecting::new().await;
    let exit = asks();
    let [stay, delete] = ["stay", "delete-pod"].map(on_loss);
    let failing = ("/restartPolicy", json!("OnFailure"));
    let restarts = ("/containers/0/restartPolicy", json!("Always"));
    let rules = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [143]}}]);
    let ruled = with(
        once(plain()),
        &[
            ("/containers/0/restartPolicy", json!("Never")),
            ("/containers/0/restartPolicyRules", rules),
        ],
    );
    let init = json!([{"name": "first", "image": "none"}]);
    let prepares = with(once(plain()), &[("/initContainers", init.clone())]);
    let meshed = json!([{"name": "main", "image": "none"}, {
        "name": "proxy", "image": "none", "livenessProbe": {"httpGet": {"path": "/live", "port": 4191}},
    }]);
    let meshed = with(plain(), &[("/containers", meshed)]);
    let mut outlived = exit.clone();
    outlived[names::ANNOTATION_MAY_OUTLIVE] = json!(" proxy, ");
    let mut wrong = vec![];
    let mut misnamed = exit.clone();
    misnamed[names::ANNOTATION_MAY_OUTLIVE] = json!("envoy");
    // As many containers as are injected into, with much to look at in each.
    let many = probed(&json!({}))["containers"][0].clone();
    let many: Vec<_> = (0..16)
        .map(|n| with(many.clone(), &[("/name", json!(format!("main-{n}")))]))
        .collect();
    let firsts: Vec<_> = (0..16)
        .map(|n| json!({"name": format!("first-{n}"), "image": "none"}))
        .collect();
    let many = json!({"containers": many, "initContainers": firsts});
    let mut outlived_by_many = exit.clone();
    let others: Vec<_> = (1..16).map(|n| format!("main-{n}")).collect();
    outlived_by_many[names::ANNOTATION_MAY_OUTLIVE] = json!(others.join(","));
    let real = json!({"httpGet": null, "exec": {"command": ["/leasehold", "probe"]}});

    for (notes, spec) in [
        (&exit, &plain()),
        (&exit, &with(plain(), std::slice::from_ref(&failing))),
        (&exit, &once(plain())),
        (&exit, &prepares),
        (&exit, &probed(&json!({}))),
        (&exit, &probed(&real)),
        (
            &exit,
            &probed(&json!({"periodSeconds": 1, "failureThreshold": 4})),
        ),
        (&outlived, &meshed),
        (&outlived_by_many, &many),
        (&stay, &once(plain())),
        (
            &stay,
            &once(probed(&json!({"terminationGracePeriodSeconds": null}))),
        ),
        (
            &stay,
            &with(
                plain(),
                &[
                    ("/terminationGracePeriodSeconds", json!(4)),
                    ("/containers/0/restartPolicy", json!("Never")),
                ],
            ),
        ),
        (&delete, &once(plain())),
        (&stay, &shared(plain())),
        (&delete, &shared(plain())),
        (
            &delete,
            &shared(with(plain(), &[("/initContainers", init)])),
        ),
    ] {
        let made = injecting.made(notes, spec).await;
        wrong.extend(made.err().map(|said| format!("{said}: {notes} {spec}")));
    }

    let starts = "would start container main again without the lock";
    let blind = "nothing would end container main while the sidecar is frozen";
    let late = "would end container main too late";
    let grace = "set that to 4 or less";
    let exec = |command: &[&str]| probed(&json!({"httpGet": null, "exec": {"command": command}}));
    let asks_at = |at: Value| probed(&json!({"httpGet": at}));
    for (notes, spec, words) in [
        (&stay, plain(), starts),
        (&delete, plain(), starts),
        (&stay, with(plain(), &[failing]), starts),
        (&stay, with(once(plain()), &[restarts]), starts),
        (&stay, ruled, starts),
        (
            &stay,
            prepares.clone(),
            "nothing would end init container first",
        ),
        (&delete, prepares, "nothing would end init container first"),
        (
            &delete,
            shared(with(
                plain(),
                &[(
                    "/initContainers",
                    json!([{"name": "first", "image": "none", "securityContext": {"runAsUser": 1}}]),
                )],
            )),
            "set securityContext.runAsUser",
        ),
        (&exit, exec(&["true"]), blind),
        (&exit, exec(&["sh", "-c", "true", "probe"]), blind),
        (
            &exit,
            asks_at(json!({"path": "/heldz", "port": 8080})),
            blind,
        ),
        (
            &exit,
            asks_at(json!({"path": "/live", "port": 7118})),
            blind,
        ),
        (
            &exit,
            asks_at(json!({"path": "/heldz", "port": 7118, "host": "10.0.0.10"})),
            blind,
        ),
        (
            &exit,
            asks_at(json!({"path": "/heldz", "port": 7118, "scheme": "HTTPS"})),
            blind,
        ),
        (&stay, once(exec(&["true"])), blind),
        (&stay, shared(exec(&["true"])), blind),
        (&exit, meshed, "nothing would end container proxy"),
        (&misnamed, plain(), "must name containers of the Pod"),
        (
            &exit,
            with(
                plain(),
                &[(
                    "/containers/0/livenessProbe",
                    json!({"httpGet": {"path": "/heldz", "port": 7118}}),
                )],
            ),
            late,
        ),
        (&exit, probed(&json!({"periodSeconds": 3})), late),
        (&exit, probed(&json!({"failureThreshold": 3})), late),
        (&exit, probed(&json!({"initialDelaySeconds": 1})), late),
        (
            &exit,
            probed(&json!({"terminationGracePeriodSeconds": 5})),
            late,
        ),
        (
            &exit,
            probed(&json!({"terminationGracePeriodSeconds": null})),
            late,
        ),
        (
            &exit,
            probed(&json!({"periodSeconds": 1, "timeoutSeconds": 2})),
            late,
        ),
        (
            &exit,
            with(
                plain(),
                &[(
                    "/containers/0/startupProbe",
                    json!({"exec": {"command": ["true"]}}),
                )],
            ),
            "holds back the liveness probe",
        ),
        (
            &exit,
            with(plain(), &[("/restartPolicy", json!("Never"))]),
            grace,
        ),
        (
            &stay,
            with(plain(), &[("/restartPolicy", json!("Never"))]),
            grace,
        ),
    ] {
        match injecting.made(notes, &spec).await {
            Ok(_) => wrong.push(format!("passes, not {words:?}: {notes} {spec}")),
            Err(said) if said.contains(words) => {}
            Err(said) => wrong.push(format!("{said}, not {words:?}: {notes} {spec}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
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
