//! What `leasehold run` says and returns when there is no lock, no server, no time, or nobody who listens.

use std::io::pipe;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::clock::MonoInstant;
use serde_json::json;

use super::processes::as_pid_1;
use super::run_bench::{BUSY, Bench, until};

/// A reader of its words that is gone, such as a log collector, is no reason to end: nor to give the lock back while the
/// command still runs.
#[tokio::test(flavor = "multi_thread")]
async fn words_that_nobody_reads_end_nothing() {
    let bench = Bench::new().await;
    bench.opened("silent", 5).await;
    let holder = bench.run("silent").by("holder").works_for("3").start();
    bench.until_noted("start", "holder", BUSY).await;
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut waiter = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["run", "--lock", "silent", "--namespace", &bench.namespace])
        .args(["--", "sleep", "300"])
        .env("KUBECONFIG", bench.kubeconfig())
        .env("RUST_LOG", "debug")
        .stderr(Stdio::from(writer))
        .spawn()
        .unwrap();
    holder.ends(BUSY).await.assert(0, &[]);
    until("the waiter holds", BUSY, async || {
        bench
            .lease("silent")
            .await
            .current_token()
            .is_some_and(|_| waiter.try_wait().unwrap().is_none())
    })
    .await;
    // It has something to say about its loss, too.
    let floor = bench.lease("silent").await.current_token().unwrap().get() + 1;
    let floor = json!({"minFencingToken": floor});
    bench.edit_lock("silent", floor).await;
    let mut code = None;
    until("it has ended", BUSY, async || {
        code = waiter.try_wait().unwrap();
        code.is_some()
    })
    .await;
    assert_eq!(code.unwrap().code(), Some(76));
    bench.finish().await;
}

/// A reader that is there and reads no more holds up neither the end of the command nor that of the run.
#[tokio::test(flavor = "multi_thread")]
async fn words_that_nobody_reads_any_more_delay_nothing() {
    let bench = Bench::new().await;
    bench.opened("stuck", 300).await;
    let run = bench.run("stuck").by("a").works_on().unread().start();
    bench.until_noted("start", "a", BUSY).await;
    let emptied = json!({"spec": {"holderIdentity": ""}});
    bench.edit_lease("stuck", emptied).await;
    run.ends(BUSY).await.assert(76, &[]);
    bench.finish().await;
}

/// There descendants could not be told from strangers.
#[tokio::test(flavor = "multi_thread")]
async fn where_proc_shows_another_process_namespace_nothing_is_started() {
    let bench = Bench::new().await;
    bench.opened("strange", 5).await;
    let [unshare, flags, _] = as_pid_1();
    let run = bench.run("strange").below(&[unshare, flags]);
    run.ends()
        .await
        .assert(126, &["another PID namespace", "--mount-proc"]);
    assert_eq!(bench.lease("strange").await.current_token(), None);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_time_to_wait_is_a_try() {
    let bench = Bench::new().await;
    bench.opened("now", 5).await;
    let ended = bench.run("now").with(&["--wait", "0s"]).ends().await;
    ended.assert(0, &[]);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_nobody_makes_is_waited_for_with_few_words_and_tried_for_five_seconds() {
    let bench = Bench::new().await;
    let tried = bench.run("never").with(&["--try", "--wait-for-lock"]);
    tried.ends().await.assert(69, &["there is no lock"]);
    let waited = bench
        .run("never")
        .with(&["--wait", "4s", "--wait-for-lock"])
        .ends()
        .await;
    waited.assert(69, &["there is no lock"]);
    assert_eq!(
        waited.stderr.matches("to be made\n").count(),
        1,
        "{waited:?}"
    );
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_never_reached_is_named_when_the_time_is_over() {
    let bench = Bench::new().await;
    let nowhere = bench.file("nowhere.kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    });
    std::fs::write(&nowhere, text.to_string()).unwrap();
    for (words, most) in [(&["--wait", "2s"][..], 8), (&["--try"], 9)] {
        let began = MonoInstant::now();
        let ended = bench
            .run("any")
            .with(words)
            .env("KUBECONFIG", &nowhere)
            .ends()
            .await;
        ended.assert(69, &["cannot get distributedlocks", "Connection refused"]);
        // Once when it begins, once at the end, and not at each attempt.
        assert_eq!(ended.stderr.lines().count(), 2, "{ended:?}");
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!(took < Duration::from_secs(most), "{took:?}");
    }
    bench.finish().await;
}
