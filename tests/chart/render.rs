//! The chart, rendered.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde::Deserialize;
use serde_json::Value;

pub use xtask::helm::chart;

/// A `helm` command.
pub fn helm() -> Command {
    xtask::helm::command().expect("helm")
}

/// What Helm says to `helm template` with these values.
pub fn template(release: &str, namespace: &str, values: &Value) -> Output {
    let file = values_file(values);
    let output = helm()
        .args(["template", release])
        .arg(chart())
        .args(["--namespace", namespace, "--values"])
        .arg(&file)
        // What a server of the pinned version offers.
        .args([
            "--api-versions",
            "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy",
        ])
        .args([
            "--api-versions",
            "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
        ])
        .output()
        .expect("helm runs");
    std::fs::remove_file(&file).expect("the values are there");
    output
}

/// What a release of this name, in this namespace, with these values consists of.
pub fn render(release: &str, namespace: &str, values: &Value) -> Vec<Value> {
    let output = template(release, namespace, values);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{values}: {errors}");
    serde_norway::Deserializer::from_slice(&output.stdout)
        .map(|document| Value::deserialize(document).expect("YAML"))
        .filter(|document| !document.is_null())
        .collect()
}

/// A new file with these values.
pub fn values_file(values: &Value) -> PathBuf {
    let name = format!("leasehold-values-{:016x}.json", rand::random::<u64>());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, values.to_string()).expect("the values can be written");
    file
}

/// The objects of this kind.
pub fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .collect()
}
