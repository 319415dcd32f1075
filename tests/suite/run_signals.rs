//! Signals and exit codes of `leasehold run`.

use std::time::Duration;

use leasehold::clock::MonoInstant;
use leasehold::supervise::Signal;
use serde_json::json;

use super::processes::{as_pid_1, children_of, signal, zombies_below};
use super::run_bench::{BUSY, Bench, last_of, long, until};

/// What a loaded machine adds to a bound that the product promises.
const SLACK: Duration = Duration::from_secs(2);

/// Those that end a program which does nothing about them.
const ENDING: [(Signal, i32, &str); 6] = [
    (Signal::TERM, 143, "TERM"),
    (Signal::INT, 130, "INT"),
    (Signal::HUP, 129, "HUP"),
    (Signal::QUIT, 131, "QUIT"),
    (Signal::USR1, 138, "USR1"),
    (Signal::USR2, 140, "USR2"),
];

/// hashicorp/consul#4439: Ctrl-C while waiting did nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_waiting_leaves_the_queue_at_once_and_starts_nothing() {
    let bench = Bench::new().await;
    bench.opened("queued", 5).await;
    let holder = bench.works("queued", "holder").await;
    for (signal, code, name) in ENDING {
        let run = bench.run("queued").by("waiter").works_for("0").start();
        bench.until_waiting(1).await;
        run.says("waiting for lock").await;
        // These do not end the wait.
        run.signal(Signal::WINCH);
        run.signal(Signal::CONT);
        let began = MonoInstant::now();
        run.signal(signal);
        let ended = run.ends(BUSY).await;
        ended.assert(code, &[]);
        let took = MonoInstant::now().saturating_duration_since(began);
        assert!(took < Duration::from_secs(3), "{name}: {took:?}");
        assert_eq!(
            bench.waiting().await,
            0,
            "{name}: left the queue before it ended: {ended:?}"
        );
    }
    assert_eq!(bench.noted("start"), ["holder"]);
    holder.signal(Signal::TERM);
    holder.ends(BUSY).await.assert(143, &[]);
    let lease = bench.lease("queued").await;
    assert!(lease.is_free() && lease.next.is_none(), "{lease:?}");
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_running_is_handed_on_to_the_command() {
    let bench = Bench::new().await;
    bench.opened("handed", 5).await;
    for (signal, code, name) in ENDING {
        // Without a trap it dies of it; with one it decides by itself.
        let plain = bench
            .run("handed")
            .by(name)
            .script("note start; while :; do sleep 0.1; done")
            .start();
        bench.until_noted("start", name, BUSY).await;
        plain.signal(signal);
        plain.ends(BUSY).await.assert(code, &[]);
        let trap =
            format!("trap 'note got; exit 5' {name}; note start; while :; do sleep 0.1; done");
        let by = format!("{name}-trapped");
        let trapped = bench.run("handed").by(&by).script(&trap).start();
        bench.until_noted("start", &by, BUSY).await;
        trapped.signal(signal);
        trapped.ends(BUSY).await.assert(5, &[]);
        bench.until_noted("got", &by, BUSY).await;
    }
    bench.finish().await;
}

/// kubernetes/kubernetes#139991: on shutdown the lock was given back while the guarded code still ran.
#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_kept_until_a_command_that_takes_long_to_end_has_ended() {
    let bench = Bench::new().await;
    bench.opened("slow", 2).await;
    // It needs longer than the lease: renewals go on meanwhile.
    let script = "trap 'sleep 3; note end; exit 0' TERM; note start; while :; do sleep 0.1; done";
    let slow = bench.run("slow").by("slow").script(script).start();
    bench.until_noted("start", "slow", BUSY).await;
    let next = bench.run("slow").by("next").works_for("0").start();
    bench.until_waiting(1).await;
    slow.signal(Signal::TERM);
    slow.ends(BUSY).await.assert(0, &[]);
    next.ends(BUSY).await.assert(0, &[]);
    let words: Vec<_> = bench
        .journal()
        .into_iter()
        .map(|note| (note.word, note.claimant))
        .collect();
    let expected = [
        ("start", "slow"),
        ("end", "slow"),
        ("start", "next"),
        ("end", "next"),
    ];
    assert_eq!(
        words,
        expected.map(|(word, who)| (word.to_owned(), who.to_owned()))
    );
    bench.finish().await;
}

/// hashicorp/consul#947, #3526: exit codes.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_end_is_handed_on() {
    let bench = Bench::new().await;
    bench.opened("codes", 5).await;
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 137", 137),
        ("exit 76", 76),
        ("kill -SEGV $$", 139),
        ("kill -KILL $$", 137),
    ] {
        let ended = bench.run("codes").script(script).ends().await;
        assert_eq!(ended.code, code, "{script}: {ended:?}");
        assert!(bench.lease("codes").await.is_free(), "{script}");
    }
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_finds_its_grant_in_its_environment_and_gets_its_words_unchanged() {
    let bench = Bench::new().await;
    bench.opened("env", 5).await;
    let script = r#"echo "$LEASEHOLD_LOCK|$LEASEHOLD_NAMESPACE|$LEASEHOLD_SLOT|$LEASEHOLD_HOLDER|$LEASEHOLD_FENCING_TOKEN|$OWN"; printf '<%s>' "$@""#;
    let ended = bench
        .run("env")
        .by("pod-3")
        .env("LEASEHOLD_FENCING_TOKEN", "1")
        .env("OWN", "kept")
        .command(&["sh", "-c", script, "sh", "a b", "", "*", "--"])
        .ends()
        .await;
    let lease = bench.lease("env").await;
    let ended_grant = lease.ended.clone().unwrap();
    let (first, words) = ended.stdout.split_once('\n').unwrap();
    let expected = format!(
        "env|{}|0|{}|{}|kept",
        bench.namespace, ended_grant.by, ended_grant.token
    );
    assert_eq!(first, expected);
    assert!(ended_grant.by.starts_with("pod-3/"));
    assert_eq!(words, "<a b><><*><-->");
    bench.finish().await;
}

/// hashicorp/consul#2022, #1210: the lock was lost, `sh` was killed, the real program ran on.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_nothing_below_the_command_lives_on() {
    let bench = Bench::new().await;
    bench.opened("lost", 3).await;
    let script = "trap '' TERM; sleep 600 & setsid sh -c 'trap \"\" TERM; sleep 600 & wait' & \
                  (setsid sleep 600 &) ; note start; wait; sleep 600";
    let run = bench.run("lost").by("a").script(script).start();
    bench.until_noted("start", "a", BUSY).await;
    until("all are there", BUSY, async || run.commands().len() >= 5).await;
    bench
        .edit_lease("lost", json!({"spec": {"holderIdentity": "b"}}))
        .await;
    run.ends(BUSY).await.assert(76, &["TakenOver"]);
    bench.finish().await;
}

/// Signals at any moment, also while it takes and while it releases: nothing is left, and the lock is free.
#[tokio::test(flavor = "multi_thread")]
async fn no_command_outlives_its_run_whenever_a_signal_comes() {
    let bench = Bench::new().await;
    bench.opened("random", 1).await;
    for round in 0..if long() { 300 } else { 30 } {
        let name = format!("r{round}");
        let run = bench.run("random").by(&name).works_for("0.2").start();
        let (signal, code, _) = ENDING[round % ENDING.len()];
        // From right away to after its end.
        let at = Duration::from_millis(rand::random_range(0..500));
        tokio::time::sleep(at).await;
        if round % 10 == 7 {
            run.signal_tree(Signal::KILL);
        } else {
            run.signal(signal);
        }
        let ended = run.ends(BUSY).await;
        // A killed waiter's claim is the operator's to delete; without one, many of them would add up.
        bench.forget_claims().await;
        let codes = [0, code, if round % 10 == 7 { 137 } else { 0 }];
        assert!(
            codes.contains(&ended.code),
            "{name} after {at:?}: {ended:?}"
        );
    }
    // Whatever was killed while it held has expired by now, or does so within one lease.
    bench.serves("random", "last").await;
    bench.assert_one_at_a_time();
    assert_eq!(last_of(&bench.journal(), "last").word, "end");
    bench.finish().await;
}

/// relizaio/rearm#269, kubernetes/kubernetes#66892: as PID 1 of a container signals were discarded and orphans stayed.
#[tokio::test(flavor = "multi_thread")]
async fn as_pid_1_it_reaps_orphans_ends_at_once_and_gives_the_lock_back() {
    let bench = Bench::new().await;
    bench.opened("init", 30).await;
    let script = "i=0; while [ $i -lt 50 ]; do (sh -c 'exit 0' &); i=$((i+1)); done; note start; \
                  trap 'exit 9' TERM; while :; do sleep 0.1; done";
    let run = bench.run("init").by("pod-3").below(&as_pid_1());
    let run = run.script(script).start();
    bench.until_noted("start", "pod-3", BUSY).await;
    let [init] = children_of(run.wrapper())[..] else {
        panic!("one PID 1");
    };
    until("no zombie is left below PID 1", BUSY, async || {
        zombies_below(init) == 0
    })
    .await;
    let began = MonoInstant::now();
    signal(init, Signal::TERM);
    // The command's own code, not one of the fifty that were reaped beside it.
    run.ends(BUSY).await.assert(9, &[]);
    let took = MonoInstant::now().saturating_duration_since(began);
    assert!(took < Duration::from_secs(2) + SLACK, "{took:?}");
    assert!(bench.lease("init").await.is_free());
    bench.finish().await;
}
