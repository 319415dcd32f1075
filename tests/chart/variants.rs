//! What the chart says in its variants: that it is right, whole, and taken by a real server.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use leasehold::api::crds;
use serde_json::{Value, json};
use xtask::cluster::{Cluster, Options};

use super::render::{chart, helm, of_kind, render, template, values_file};

const RELEASE: &str = "leasehold";

/// Everything that can be chosen is chosen in one of them.
fn variants() -> Vec<Value> {
    vec![
        json!({}),
        json!({"watchNamespaces": ["team-a", "team-b"]}),
        json!({"watchNamespaces": [RELEASE], "replicas": 1, "rbac": {"aggregate": false}}),
        json!({"rbac": {"create": false}, "serviceAccount": {"create": false, "name": "mine"}, "crds": {"install": false}}),
        json!({"serviceMonitor": {"enabled": true, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": true, "labels": {"release": "prometheus"}}, "dashboard": {"enabled": true}}),
        json!({"networkPolicy": {"enabled": false}, "podDisruptionBudget": {"enabled": false}, "admissionPolicies": "Off",
            "flowSchema": {"enabled": false}, "log": {"format": "text", "level": "debug"}}),
        json!({"networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
            "egress": {"restrict": true, "apiServerPorts": [6443]}}, "admissionPolicies": "Audit"}),
        json!({"image": {"repository": "registry.example.com/leasehold", "digest": format!("sha256:{}", "0".repeat(64))},
            "imagePullSecrets": [{"name": "pull"}], "commonLabels": {"team": "locks"}, "fullnameOverride": "locks",
            "serviceAccount": {"annotations": {"example.com/role": "x"}}}),
        json!({"watchNamespaces": null, "networkPolicy": {"egress": null, "metricsFrom": null},
            "log": {"level": "warn,leasehold::controller=debug, kube=off"},
            "leaderElection": {"leaseDuration": "1m", "renewDeadline": "36000ms", "retryPeriod": "18s"}}),
        json!({"priorityClassName": "system-cluster-critical", "tolerations": [{"key": "infra", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "infra", "operator": "Exists"}]}]}}},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "leasehold"}}}],
            "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"}, "strictMode": true}),
    ]
}

#[test]
fn lint_finds_nothing_in_any_variant() {
    for values in variants() {
        let file = values_file(&values);
        let lint = helm()
            .args(["lint", "--strict", "--quiet"])
            .arg(chart())
            .arg("--values")
            .arg(&file)
            .output();
        fs::remove_file(file).expect("it is there");
        let lint = lint.expect("helm runs");
        assert!(
            lint.status.success(),
            "{values}: {}{}",
            String::from_utf8_lossy(&lint.stdout),
            String::from_utf8_lossy(&lint.stderr)
        );
    }
}

/// A misspelt value must not be passed over in silence.
#[test]
fn values_that_make_no_sense_are_refused_by_name() {
    for (values, says) in [
        (json!({"replica": 3}), "replica"),
        (json!({"replicas": -1}), "/replicas"),
        (json!({"replicas": "two"}), "/replicas"),
        (json!({"admissionPolicies": "off"}), "/admissionPolicies"),
        (json!({"watchNamespaces": "team-a"}), "/watchNamespaces"),
        (
            json!({"watchNamespaces": ["team-a", "team-a"]}),
            "/watchNamespaces",
        ),
        (json!({"watchNamespaces": ["Team"]}), "/watchNamespaces/0"),
        (json!({"image": {"digest": "latest"}}), "/image/digest"),
        (
            json!({"leaderElection": {"leaseDuration": 15}}),
            "/leaderElection/leaseDuration",
        ),
        (json!({"log": {"format": "yaml"}}), "/log/format"),
        (json!({"log": {"level": "loud"}}), "/log/level"),
        (json!({"log": {"level": "leasehold=xx,,="}}), "/log/level"),
        (
            json!({"leaderElection": {"leaseDuration": "1500ms"}}),
            "leaseDuration is 1500ms: it must be whole seconds",
        ),
        (
            json!({"leaderElection": {"renewDeadline": null}}),
            "renewDeadline is <nil>: it must be",
        ),
        (
            json!({"leaderElection": {"renewDeadline": "20s"}}),
            "renewDeadline is 20s: it must be three to four fifths of leaseDuration, which is 15s",
        ),
        (
            json!({"leaderElection": {"retryPeriod": "5100ms"}}),
            "retryPeriod is 5100ms: it must be above 0 and at most half of renewDeadline, which is 10s",
        ),
        (
            json!({"networkPolicy": {"egress": {"restrict": true, "apiServerPorts": []}}}),
            "/networkPolicy/egress/apiServerPorts",
        ),
        (
            json!({"strictMode": true, "admissionPolicies": "Off"}),
            "strictMode needs admissionPolicies",
        ),
        (
            json!({"serviceAccount": {"create": false}}),
            "serviceAccount.name",
        ),
    ] {
        let output = template(RELEASE, RELEASE, &values);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{values} is accepted");
        assert!(errors.contains(says), "{values}: {errors}");
    }
}

/// The paths of all values, `a.b.c`; what users fill with things of their own is one value.
fn paths(values: &Value, before: &str, into: &mut BTreeSet<String>) {
    match values.as_object() {
        Some(fields) if !fields.is_empty() && !is_free(before) => {
            for (name, value) in fields {
                let path = if before.is_empty() {
                    name.clone()
                } else {
                    format!("{before}.{name}")
                };
                paths(value, &path, into);
            }
        }
        _ => {
            into.insert(before.to_owned());
        }
    }
}

fn is_free(path: &str) -> bool {
    ["resources", "nodeSelector", "dashboard.labels"].contains(&path)
}

fn defaults() -> Value {
    let text = fs::read_to_string(chart().join("values.yaml")).expect("the values");
    serde_norway::from_str(&text).expect("YAML")
}

#[test]
fn every_value_is_in_the_schema_and_on_the_page() {
    let schema = fs::read_to_string(chart().join("values.schema.json")).expect("the schema");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let page = fs::read_to_string(xtask::repository().join("docs/helm.md")).expect("docs/helm.md");
    let mut values = BTreeSet::new();
    paths(&defaults(), "", &mut values);
    let mut missing = Vec::new();
    for path in &values {
        let mut at = &schema;
        for name in path.split('.') {
            at = &at["properties"][name];
        }
        if at.is_null() {
            missing.push(format!("values.schema.json does not know {path}"));
        }
        if !page.contains(&format!("| `{path}` |")) {
            missing.push(format!("docs/helm.md has no row for {path}"));
        }
    }
    let table = page.split("## Values").nth(1).expect("a table of values");
    for row in table.lines().filter_map(|line| line.strip_prefix("| `")) {
        let path = row.split('`').next().unwrap_or_default();
        if !values.contains(path) {
            missing.push(format!(
                "docs/helm.md tells of {path}, which values.yaml has not"
            ));
        }
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

/// The names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("leasehold_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_metric_of_rules_and_dashboard_exists_and_every_metric_is_on_the_dashboard() {
    // A family of metrics is served only once it counts something, so the page and the code are asked.
    let page = fs::read_to_string(xtask::repository().join("docs/metrics.md")).expect("the page");
    let page = page
        .split("\n## ")
        .find(|section| section.starts_with("Metrics"))
        .expect("the operator's");
    let code = xtask::repository().join("src/controller/metrics.rs");
    let code = fs::read_to_string(code).expect("the code");
    let mut exist = BTreeSet::new();
    for row in page
        .lines()
        .filter_map(|line| line.strip_prefix("| `leasehold_"))
    {
        let name = row.split('`').next().unwrap_or_default();
        let registered = format!("\"{}\"", name.trim_end_matches("_total"));
        assert!(code.contains(&registered), "no metric {name}");
        let bucket = if row.contains("histogram") {
            "_bucket"
        } else {
            ""
        };
        exist.insert(format!("leasehold_{name}{bucket}"));
    }
    assert!(exist.len() > 15, "{exist:?}");
    let values = json!({"prometheusRule": {"enabled": true}, "dashboard": {"enabled": true}});
    let objects = render(RELEASE, RELEASE, &values);
    let dashboard = of_kind(&objects, "ConfigMap")[0]["data"]["leasehold.json"]
        .as_str()
        .expect("a dashboard")
        .to_owned();
    serde_json::from_str::<Value>(&dashboard).expect("JSON");
    let rules = of_kind(&objects, "PrometheusRule")[0].to_string();
    let named: BTreeSet<_> = metrics_in(&dashboard)
        .union(&metrics_in(&rules))
        .cloned()
        .collect();
    let unknown: Vec<_> = named.difference(&exist).collect();
    assert!(unknown.is_empty(), "no such metrics: {unknown:?}");
    let forgotten: Vec<_> = exist.difference(&metrics_in(&dashboard)).cloned().collect();
    assert!(forgotten.is_empty(), "not on the dashboard: {forgotten:?}");
    // Labels of the metrics' own, and those that Prometheus adds.
    assert!(
        rules.contains(r#"namespace=\"leasehold\",service=\"leasehold\""#),
        "{rules}"
    );
}

/// The values of all fields `expr`, wherever they are.
fn expressions<'a>(value: &'a Value, into: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            into.extend(fields.get("expr").and_then(Value::as_str));
            fields.values().for_each(|value| expressions(value, into));
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, into)),
        _ => {}
    }
}

#[test]
fn every_expression_of_rules_and_dashboard_is_promql() {
    let values = json!({"prometheusRule": {"enabled": true}, "dashboard": {"enabled": true}});
    let objects = render(RELEASE, RELEASE, &values);
    let dashboard = of_kind(&objects, "ConfigMap")[0]["data"]["leasehold.json"]
        .as_str()
        .expect("a dashboard")
        // Grafana puts a duration there.
        .replace("$__rate_interval", "1m");
    let dashboard = serde_json::from_str(&dashboard).expect("JSON");
    let mut all = vec![];
    expressions(&dashboard, &mut all);
    expressions(of_kind(&objects, "PrometheusRule")[0], &mut all);
    assert!(all.len() > 25, "{all:?}");
    // One that is none, so that something is seen to be read.
    for (lines, right) in [(all.join("\n"), true), ("sum(".to_owned(), false)] {
        let parser = xtask::promql::ensure().expect("the parser");
        let mut parser = Command::new(parser)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the parser runs");
        let mut input = parser.stdin.take().expect("its input");
        input.write_all(lines.as_bytes()).expect("it reads");
        drop(input);
        let done = parser.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.success(), right, "{said}");
    }
}

#[test]
fn the_definitions_are_those_of_the_code_and_stay_when_the_release_goes() {
    let objects = render(RELEASE, RELEASE, &json!({}));
    let mut rendered = of_kind(&objects, "CustomResourceDefinition").into_iter();
    for wanted in crds() {
        let mut found = rendered.next().expect("a definition").clone();
        assert_eq!(
            found["metadata"]["annotations"],
            json!({"helm.sh/resource-policy": "keep"})
        );
        let metadata = found["metadata"].as_object_mut().expect("metadata");
        metadata.retain(|name, _| name == "name");
        let found: CustomResourceDefinition = serde_json::from_value(found).expect("a definition");
        assert_eq!(found, wanted);
    }
    let without = render(RELEASE, RELEASE, &json!({"crds": {"install": false}}));
    assert!(of_kind(&without, "CustomResourceDefinition").is_empty());
}

/// Two releases of one name, in two namespaces, have no object of the same name; nor have two in one namespace.
#[test]
fn two_releases_have_no_object_in_common_but_the_definitions() {
    let values = json!({"dashboard": {"enabled": true}, "serviceMonitor": {"enabled": true}, "prometheusRule": {"enabled": true}});
    let names = |release, namespace, more: Value| -> BTreeSet<String> {
        let mut values = values.clone();
        values
            .as_object_mut()
            .expect("values")
            .extend(more.as_object().cloned().unwrap_or_default());
        let objects = render(release, namespace, &values);
        let own = objects
            .iter()
            .filter(|object| object["kind"] != "CustomResourceDefinition");
        own.map(|object| {
            format!(
                "{} {} {}",
                object["kind"], object["metadata"]["namespace"], object["metadata"]["name"]
            )
        })
        .collect()
    };
    let watching = json!({"watchNamespaces": ["team-a", "team-b"]});
    let all = [
        names("leasehold", "leasehold", json!({})),
        names("leasehold", "other", json!({})),
        names("second", "leasehold", json!({})),
        names("leasehold-third", "other", watching.clone()),
        names("leasehold-third", "leasehold", watching),
    ];
    for (at, some) in all.iter().enumerate() {
        for others in &all[at + 1..] {
            let common: Vec<_> = some.intersection(others).collect();
            assert!(common.is_empty(), "{common:?}");
        }
    }
}

#[test]
fn every_variant_is_taken_by_a_real_server_and_its_pods_are_as_restricted_as_can_be() {
    let cluster = Cluster::start(&Options::default()).expect("a control plane");
    let kubectl = |args: &[&str], input: &str| {
        let mut kubectl = cluster
            .kubectl(args.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl");
        kubectl
            .stdin
            .take()
            .expect("its input")
            .write_all(input.as_bytes())
            .expect("it reads");
        let done = kubectl.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&done.stdout).into_owned()
            + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{args:?}: {said}\n{input}");
        said
    };
    let namespaces = [RELEASE, "team-a", "team-b"].map(|name| {
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}).to_string()
    });
    kubectl(&["apply", "-f", "-"], &namespaces.join("\n---\n"));
    // Those of the Prometheus operator are not there, and not ours.
    let definitions = ["ServiceMonitor", "PrometheusRule"].map(|kind| {
        let plural = format!("{}s", kind.to_lowercase());
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}})
        .to_string()
    });
    kubectl(&["apply", "-f", "-"], &definitions.join("\n---\n"));
    kubectl(
        &[
            "wait",
            "--for=condition=Established",
            "crd",
            "--all",
            "--timeout=60s",
        ],
        "",
    );
    for values in variants() {
        let mut objects = render(RELEASE, RELEASE, &values);
        let template = &of_kind(&objects, "Deployment")[0]["spec"]["template"];
        let mut pod = template.clone();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!("try");
        pod["metadata"]["namespace"] = json!(RELEASE);
        // The account need not be there for a Pod to be judged by its security.
        pod["spec"]["serviceAccountName"] = json!("default");
        objects.push(pod);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let said = kubectl(
            &[
                "apply",
                "--server-side",
                "--dry-run=server",
                "--validate=strict",
                "-f",
                "-",
            ],
            &list,
        );
        assert!(!said.to_lowercase().contains("warning"), "{values}: {said}");
    }
}
