//! What the objects around the operator's Pods select, name and allow: a server takes them even if they match nothing.

use serde_json::{Value, json};

use super::render::{of_kind, render};

const RELEASE: &str = "leasehold";

fn rendered() -> Vec<Value> {
    let values = json!({
        "replicas": 3,
        "terminationGracePeriodSeconds": 44,
        "serviceMonitor": {"enabled": true},
        "networkPolicy": {
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
            "egress": {"restrict": true, "apiServerPorts": [6443]},
        },
    });
    render(RELEASE, "locks", &values)
}

fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let [one] = of_kind(objects, kind)[..] else {
        panic!("not one {kind}");
    };
    one
}

/// Whether a selector picks what has these labels.
fn picks(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().expect("labels");
    assert!(!wanted.is_empty(), "it would pick everything");
    wanted.iter().all(|(name, value)| labels[name] == *value)
}

#[test]
fn what_selects_the_operators_pods_selects_them_and_no_others() {
    let objects = rendered();
    let deployment = one(&objects, "Deployment");
    let pod = &deployment["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    let anti = &pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        [0];
    let selectors = [
        ("Deployment", &deployment["spec"]["selector"]["matchLabels"]),
        (
            "anti-affinity",
            &anti["podAffinityTerm"]["labelSelector"]["matchLabels"],
        ),
        (
            "PodDisruptionBudget",
            &one(&objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        ),
        (
            "NetworkPolicy",
            &one(&objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        ),
        ("Service", &one(&objects, "Service")["spec"]["selector"]),
    ];
    let others = render("second", "locks", &json!({}));
    let others = &one(&others, "Deployment")["spec"]["template"]["metadata"]["labels"];
    for (of, selector) in selectors {
        assert!(picks(selector, labels), "{of}: {selector} of {labels}");
        assert!(
            !picks(selector, others),
            "{of} of another release: {selector}"
        );
    }
    // The monitor picks Services.
    let service = &one(&objects, "Service")["metadata"]["labels"];
    let monitor = &one(&objects, "ServiceMonitor")["spec"];
    assert!(picks(&monitor["selector"]["matchLabels"], service));
}

#[test]
fn replicas_keep_apart_and_evictions_take_one_at_a_time() {
    let objects = rendered();
    let deployment = &one(&objects, "Deployment")["spec"];
    assert_eq!(deployment["replicas"], 3);
    let pod = &deployment["template"]["spec"];
    assert_eq!(pod["terminationGracePeriodSeconds"], 44);
    let anti =
        &pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(anti["weight"], 100);
    assert_eq!(
        anti["podAffinityTerm"]["topologyKey"],
        "kubernetes.io/hostname"
    );
    let budget = &one(&objects, "PodDisruptionBudget")["spec"];
    assert_eq!(budget["maxUnavailable"], 1);
    assert_eq!(budget["minAvailable"], Value::Null);
    // No replica goes before another one is ready.
    assert_eq!(
        deployment["strategy"]["rollingUpdate"],
        json!({"maxSurge": 1, "maxUnavailable": 0})
    );
}

#[test]
fn the_ports_that_are_named_are_the_operators() {
    let objects = rendered();
    let container = &one(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let [port] = &container["ports"].as_array().expect("ports")[..] else {
        panic!("{}", container["ports"]);
    };
    let (name, number) = (&port["name"], &port["containerPort"]);
    let listens = format!("--http-addr=0.0.0.0:{number}");
    assert!(
        container["args"]
            .as_array()
            .expect("arguments")
            .contains(&json!(listens))
    );
    for probe in ["readinessProbe", "livenessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], *name, "{probe}");
    }
    let service = &one(&objects, "Service")["spec"]["ports"][0];
    assert_eq!(service["targetPort"], *name);
    let endpoint = &one(&objects, "ServiceMonitor")["spec"]["endpoints"][0];
    assert_eq!(
        (&endpoint["port"], &endpoint["path"]),
        (&service["name"], &json!("/metrics"))
    );
    let policy = &one(&objects, "NetworkPolicy")["spec"];
    assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(
        policy["ingress"],
        json!([{"ports": [{"port": name, "protocol": "TCP"}],
            "from": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]}])
    );
    assert_eq!(
        policy["egress"],
        json!([{"ports": [{"port": 6443, "protocol": "TCP"}]}])
    );
}
