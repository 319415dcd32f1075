//! What `leasehold run` says and how it exits when it does not get as far as running the command.

use std::process::Command;
use std::time::Duration;

use leasehold::clock::MonoInstant;
use leasehold::supervise::Signal;
use serde_json::json;

use super::run_bench::{BUSY, Bench, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_lock_is_told_at_once_with_the_nearest_names_and_the_command_that_makes_it() {
    let bench = Bench::new().await;
    bench.opened("nightly-billing", 5).await;
    bench.opened("reports", 5).await;
    let ended = bench.run("nightly-biling").ends().await;
    ended.assert(
        69,
        &[
            "there is no lock \"nightly-biling\"",
            &bench.namespace,
            "did you mean nightly-billing?",
        ],
    );
    assert!(!ended.stderr.contains("reports"), "{ended:?}");
    // The command it tells makes the lock.
    let command = ended
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("to make it: "))
        .unwrap();
    let made = Command::new("sh")
        .args(["-c", command])
        .env("KUBECONFIG", bench.kubeconfig())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    bench.locks().get("nightly-biling").await.unwrap();
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_can_be_waited_for_and_made() {
    let bench = Bench::new().await;
    let waiting = bench.run("later").by("w").with(&["--wait-for-lock"]);
    let mut waiting = waiting.works_for("0").start();
    waiting.says("waiting for lock \"later\" to be made").await;
    bench.opened("later", 5).await;
    waiting.exits(BUSY).await.assert(0, &[]);

    let made = bench.run("new").with(&["--create"]).works_for("0").start();
    until("the lock is made", BUSY, async || {
        bench.locks().get("new").await.is_ok()
    })
    .await;
    let lock = bench.locks().get("new").await.unwrap();
    bench.make_lease(&lock, "").await;
    bench.open_status(&lock, 15).await;
    made.ends(BUSY).await.assert(0, &["made lock \"new\""]);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_refused_before_anything_is_written() {
    let bench = Bench::new().await;
    bench.opened("strict", 10).await;
    let before = bench.lease("strict").await;
    for (words, command, code, says) in [
        // 2 s are a fifth of the lease.
        (
            &["--kill-grace", "2100ms"][..],
            &["true"][..],
            2,
            "use at most 2s",
        ),
        (&["--wait", "soon"], &["true"], 2, "--wait"),
        (&["--try", "--wait", "1s"], &["true"], 2, "--try"),
        (&["--no-such-flag"], &["true"], 2, "--no-such-flag"),
        (&[], &[], 2, "CMD"),
        (
            &[],
            &["no-such-command-anywhere"],
            127,
            "no-such-command-anywhere",
        ),
        (&[], &["/etc/passwd"], 126, "/etc/passwd"),
        (&[], &["/"], 126, "\"/\""),
    ] {
        let ended = bench
            .run("strict")
            .with(words)
            .command(command)
            .ends()
            .await;
        ended.assert(code, &[says]);
    }
    let long = [64, 253, 254].map(|length| "x".repeat(length));
    for name in ["Router-A", "a/b", "a.b", "", "..", "ä"]
        .into_iter()
        .chain(long.iter().map(String::as_str))
    {
        let ended = bench.run(name).ends().await;
        ended.assert(2, &["cannot be a lock's name"]);
    }
    assert_eq!(bench.lease("strict").await, before);
    assert_eq!(bench.waiting().await, 0);
    bench.finish().await;
}

/// `leasehold` with these words, and no server.
fn says(words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    let output = command.args(words).env("KUBECONFIG", "/nowhere").output();
    let output = output.expect("it runs");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), words)
}

#[test]
fn a_namespace_that_cannot_be_one_is_told_before_anything_is_asked_for() {
    for namespace in ["", "Bad NS", "team/x", "../default", "a.b"] {
        for words in [
            &["run", "--lock", "a", "-n", namespace, "--", "true"][..],
            &["sidecar", "--lock", "a", "--namespace", namespace],
        ] {
            let (code, said) = says(words);
            assert_eq!(code, Some(2), "{words:?}: {said}");
            for word in ["--namespace", "must be a DNS label"] {
                assert!(said.contains(word), "{words:?}: {said}");
            }
        }
    }
}

#[test]
fn a_command_without_dashes_is_told_to_put_them() {
    let (code, said) = says(&["run", "--lock", "a", "true"]);
    assert_eq!(code, Some(2));
    let tip = "put -- before the command: leasehold run … -- true";
    assert!(said.contains(tip), "{said}");
    let (code, said) = says(&["run", "--lock", "a", "--no-such-flag", "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(!said.contains("put --"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_not_there_is_told_in_the_place_of_a_command_that_must_fail() {
    let bench = Bench::new().await;
    for more in [&[][..], &["--wait-for-lock", "--try"]] {
        let run = bench.run_in("no-such-namespace", "a").with(more);
        let ended = run.ends().await;
        ended.assert(69, &["there is no such namespace"]);
        assert!(!ended.stderr.contains("kubectl apply"), "{ended:?}");
    }
    bench.finish().await;
}

/// coreos/airlock#81, jenkins lockable-resources#222: "who holds it, who is next?"
#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_get_the_lock_hears_who_holds_it_since_when_with_which_token_and_ones_place() {
    let bench = Bench::new().await;
    bench.opened("busy", 10).await;
    let holder = bench.run("busy").by("pod-3").works_on().start();
    let held = bench.until_noted("start", "pod-3", BUSY).await;
    let token = format!("with token {}", held.token);
    let told = ["held by pod-3/", " since 2", &token];

    let ended = bench.run("busy").with(&["--try"]).ends().await;
    ended.assert(75, &told);
    let ended = bench
        .run("busy")
        .with(&["--try", "--busy-exit-code", "11"])
        .ends()
        .await;
    ended.assert(11, &told);

    let first = bench.run("busy").by("first").works_for("0").start();
    first
        .says("waiting for lock \"busy\": held by pod-3/")
        .await;
    bench.until_waiting(1).await;
    let began = MonoInstant::now();
    let ended = bench
        .run("busy")
        .by("second")
        .with(&["--wait", "1s"])
        .ends()
        .await;
    assert!(MonoInstant::now().saturating_duration_since(began) >= Duration::from_secs(1));
    ended.assert(75, &told);
    ended.assert(75, &["place 2 in the queue"]);
    until("who gave up has left the queue", BUSY, async || {
        bench.waiting().await == 1
    })
    .await;

    holder.signal(Signal::TERM);
    first.ends(BUSY).await.assert(0, &told);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_lost_ends_the_command_with_the_reason_and_a_code_of_ones_own() {
    let bench = Bench::new().await;
    for (lock, reason, words) in [
        ("taken", "TakenOver", &[][..]),
        ("deleted", "Deleted", &["--lost-exit-code", "99"]),
        ("lock-deleted", "Deleted", &[]),
    ] {
        let made = bench.opened(lock, 4).await;
        let run = bench.run(lock).by(lock).with(words).works_on().start();
        bench.until_noted("start", lock, BUSY).await;
        match lock {
            "taken" => {
                let other = json!({"spec": {"holderIdentity": "somebody-else"}});
                bench.edit_lease(lock, other).await;
            }
            "deleted" => drop(bench.leases().delete(lock, &<_>::default()).await.unwrap()),
            _ => drop(bench.locks().delete(lock, &<_>::default()).await.unwrap()),
        }
        let code = if words.is_empty() { 76 } else { 99 };
        let says = format!("lost lock {lock:?} ({reason}): ending the command");
        run.ends(BUSY).await.assert(code, &[&says]);
        drop(made);
    }
    // Nobody brings a deleted Lease back.
    assert!(bench.leases().get_opt("deleted").await.unwrap().is_none());
    bench.finish().await;
}
