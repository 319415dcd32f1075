//! The plain YAML of `examples/`, applied and waited for by the real kubectl.

use std::process::{Command, Output};

use super::docs::root;
use super::operator_rig::{Operator, Place, in_place};

async fn kubectl(place: &Place, args: &[&str]) -> Output {
    let mut command = Command::new("kubectl");
    command
        .current_dir(root())
        .args(["--namespace", &place.namespace])
        .args(args);
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.expect("it ends");
    output.expect("kubectl is on the PATH that `cargo xtask cluster env` prints")
}

/// What it prints, where it succeeds.
async fn said(place: &Place, args: &[&str]) -> String {
    let output = kubectl(place, args).await;
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {args:?}: {words}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seat_is_held_by_plain_yaml_and_kubectl_wait() {
    in_place(async |place| {
        let _operator = Operator::leading(&place.namespace).await;
        let granted = [
            "wait",
            "lclaim/alice-1",
            "--for=condition=Granted",
            "--timeout=20s",
        ];
        said(&place, &["apply", "-f", "examples/fixed-hold.yaml"]).await;
        said(&place, &granted).await;
        let table = said(&place, &["get", "lclaim,dlock"]).await;
        for word in ["alice-1", "Granted", "staging", "Held", "1/1"] {
            assert!(table.contains(word), "{word} in\n{table}");
        }
        let ready = [
            "wait",
            "lclaim/alice-1",
            "--for=condition=Ready",
            "--timeout=1s",
        ];
        said(&place, &ready).await;
        // A second one waits, and is waited for in vain.
        let yaml = std::fs::read_to_string(root().join("examples/fixed-hold.yaml"));
        let second = yaml.expect("the example").replace("alice", "bob");
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("second-seat.yaml");
        std::fs::write(&path, second).expect("it can be written");
        let path = path.to_str().expect("a path");
        said(&place, &["apply", "-f", path]).await;
        let waits = [
            "wait",
            "lclaim/bob-1",
            "--for=condition=Granted",
            "--timeout=1s",
        ];
        assert!(!kubectl(&place, &waits).await.status.success());
        said(&place, &["delete", "lclaim/alice-1"]).await;
        let then = [
            "wait",
            "lclaim/bob-1",
            "--for=condition=Granted",
            "--timeout=20s",
        ];
        said(&place, &then).await;
        // Applied once more it is the same claim, and changes nothing.
        let again = said(&place, &["apply", "-f", path]).await;
        assert!(
            !again.contains("configured") && !again.contains("created"),
            "{again}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_holds_by_plain_yaml() {
    in_place(async |place| {
        place.has_account().await;
        let _operator = Operator::leading(&place.namespace).await;
        said(&place, &["apply", "-f", "examples/pod-hold.yaml"]).await;
        let granted = [
            "wait",
            "lclaim/indexer-0",
            "--for=condition=Granted",
            "--timeout=20s",
        ];
        said(&place, &granted).await;
        said(&place, &["delete", "pod/indexer-0", "--wait=false"]).await;
        let over = [
            "wait",
            "lclaim/indexer-0",
            "--for=jsonpath={.status.phase}=Released",
            "--timeout=20s",
        ];
        said(&place, &over).await;
        let free = [
            "wait",
            "dlock/indexer",
            "--for=condition=Held=False",
            "--timeout=20s",
        ];
        said(&place, &free).await;
    })
    .await;
}
