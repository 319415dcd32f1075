//! The custom resource definitions: the files, the bounds, and how leniently objects are read.

use std::path::Path;
use std::process::Command;

use kube_cel::compile_schema;
use leasehold::api::{
    ClaimPhase, DistributedLock, DistributedLockSpec, EndReason, FencingToken, LockClaim,
    LockPhase, crds,
};
use serde_json::json;

#[test]
fn the_files_in_crds_are_what_the_program_prints() {
    let printed = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .arg("crd")
        .output()
        .expect("the program runs");
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).expect("text");
    let documents: Vec<_> = printed
        .split("---\n")
        .filter(|document| !document.is_empty())
        .collect();
    assert_eq!(documents.len(), crds().len());
    for (crd, document) in crds().iter().zip(documents) {
        let file = format!("crds/{}.yaml", crd.spec.names.plural);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        // Above the document a comment says where it comes from.
        let (_comment, kept) = committed.split_once('\n').unwrap_or_default();
        assert!(
            kept == document,
            "{file} is out of date: run `cargo xtask gen`"
        );
    }
}

#[test]
fn every_rule_compiles() {
    for crd in crds() {
        let crd = serde_json::to_value(crd).unwrap();
        let compiled = compile_schema(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
        assert!(
            !compiled.has_errors(),
            "{:?}",
            compiled.compilation_errors()
        );
    }
}

#[test]
fn no_schema_has_an_unsigned_format_an_unbounded_value_or_a_nullable_field() {
    fn walk(schema: &serde_json::Value, path: &str) {
        assert!(
            !matches!(
                schema["format"].as_str(),
                Some("uint" | "uint8" | "uint16" | "uint32" | "uint64")
            ),
            "{path}"
        );
        if schema["format"] == "int64" {
            let most = schema["maximum"].as_f64().expect("every int64 has a bound");
            assert!(
                most <= 9_007_199_254_740_991.0,
                "{path} goes beyond 2^53 - 1"
            );
        }
        assert!(schema["nullable"].is_null(), "{path}");
        if schema["type"] == "string" {
            let bounded = ["maxLength", "enum", "format"]
                .iter()
                .any(|bound| !schema[bound].is_null());
            assert!(bounded, "{path} has no bound");
        }
        if schema["type"] == "array" {
            assert!(
                schema["maxItems"].is_u64() && schema["x-kubernetes-list-type"].is_string(),
                "{path}"
            );
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            walk(property, &format!("{path}.{name}"));
        }
        if schema["items"].is_object() {
            walk(&schema["items"], &format!("{path}[]"));
        }
    }
    for crd in crds() {
        let crd = serde_json::to_value(crd).unwrap();
        walk(
            &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
            crd["spec"]["names"]["kind"].as_str().unwrap(),
        );
    }
}

#[test]
fn the_defaults_of_schema_and_types_are_the_same() {
    let crd = serde_json::to_value(&crds()[0]).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let completed = super::api_local::complete(schema, &json!({"metadata": {"name": "a"}}));
    assert_eq!(
        serde_json::to_value(DistributedLockSpec::default()).unwrap(),
        completed["spec"]
    );
}

#[test]
fn objects_of_a_newer_version_can_be_read() {
    let lock: DistributedLock = serde_json::from_value(json!({
        "apiVersion": "leasehold.dev/v1alpha1",
        "kind": "DistributedLock",
        "metadata": {"name": "a", "newField": 1},
        "spec": {"keys": ["new"], "queue": {"weights": {}}},
        "status": {
            "phase": "Draining",
            "shard": 3,
            "slots": [{"slot": 0, "fencingToken": 0, "holderIdentity": "", "weather": "fine"}],
            "history": [{"slot": 0, "holderIdentity": "a/1", "reason": "Preempted"}],
        },
    }))
    .unwrap();
    assert_eq!(lock.spec, DistributedLockSpec::default());
    let status = lock.status.as_ref().unwrap();
    assert_eq!(status.phase, Some(LockPhase::Other));
    assert_eq!(status.history[0].reason, EndReason::Other);
    assert_eq!(lock.slot_token(0), None);

    let claim: LockClaim = serde_json::from_value(json!({
        "apiVersion": "leasehold.dev/v1alpha1",
        "kind": "LockClaim",
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "12"},
        "spec": {"lockName": "a", "hold": {"type": "Heartbeat"}},
        "status": {"phase": "Paused"},
    }))
    .unwrap();
    assert_eq!(claim.phase(), ClaimPhase::Other);
    assert!(
        !claim.phase().is_final(),
        "an unknown phase is not taken for the end"
    );
    assert_eq!(claim.ticket(), Some(12));
    assert_eq!(claim.holder_identity().as_deref(), Some("a/u"));
    assert_eq!(claim.next_reference().as_deref(), Some("a/u"));
}

#[test]
fn a_lock_without_status_can_be_read() {
    let lock: DistributedLock = serde_json::from_value(json!({
        "apiVersion": "leasehold.dev/v1alpha1",
        "kind": "DistributedLock",
        "metadata": {"name": "a"},
        "spec": {"minFencingToken": 7, "slotMinFencingTokens": [{"slot": 1, "token": 9}, {"slot": 2, "token": 3}]},
    }))
    .unwrap();
    assert_eq!(lock.slot_status(0), None);
    assert_eq!(lock.longest_lease_duration(), None);
    assert_eq!(
        (lock.slot_lease_name(0), lock.slot_lease_name(3)),
        ("a".to_owned(), "a.3".to_owned())
    );
    let floors = [0, 1, 2].map(|slot| {
        lock.spec
            .effective_min_fencing_token(slot)
            .map(FencingToken::get)
    });
    assert_eq!(
        floors,
        [Some(7), Some(9), Some(7)],
        "the higher of the lock's and the slot's"
    );
}
