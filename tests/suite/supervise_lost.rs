//! One half frozen or killed, at any moment: the other one ends the command and everything below it in time.

use std::process::Command;
use std::time::Duration;

use leasehold::clock::BootInstant;
use leasehold::supervise::{EndReason, Signal};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::processes::signal;
use crate::supervise_wrapper::{Folder, NOT_STARTED, SLACK, Setup, Tree, until};

/// Ignores what can be ignored; one child in another session, one twice forked, one that forks on and on.
const STUBBORN: &str = "trap '' TERM INT HUP QUIT USR1 USR2; setsid sh -c 'sleep 600; :' & (sleep 600 &); \
                        setsid sh -c 'while :; do sleep 0.02; done' & \
                        : > \"$READY\"; while :; do sleep 0.05; done";

fn start() -> Tree {
    let tree = Setup::script(STUBBORN)
        .deadlines(500, 900)
        .kill_grace(Duration::from_millis(200))
        .start()
        .ready();
    until("its children run", SLACK, || tree.commands().len() >= 4);
    tree
}

/// Everything of the command has ended by `hard`, give or take what a busy machine needs.
fn ends_in_time(tree: &Tree) {
    tree.commands_end_within(tree.setup().hard + SLACK);
}

#[test]
fn wrapper_frozen() {
    let tree = start();
    let wrapper = tree.wrapper();
    signal(wrapper, Signal::STOP);
    ends_in_time(&tree);
    // Thawed, it finds out and says so.
    signal(wrapper, Signal::CONT);
    let (exit, ended) = tree.finish(SLACK);
    assert_eq!(
        (exit.code(), ended.killed_for),
        (Some(137), Some(EndReason::Deadline))
    );
    assert!(ended.all_reaped);
}

#[test]
fn guardian_frozen() {
    let tree = start();
    signal(tree.guardian().unwrap(), Signal::STOP);
    let (exit, ended) = tree.finish(Duration::from_millis(900) + SLACK);
    assert_eq!(
        (exit.code(), ended.killed_for),
        (Some(137), Some(EndReason::Deadline))
    );
    assert!(ended.all_reaped, "{ended:?}");
}

#[test]
fn both_frozen_and_one_thawed() {
    for thaw_guardian in [true, false] {
        let tree = start();
        let (wrapper, guardian) = (tree.wrapper(), tree.guardian().unwrap());
        signal(wrapper, Signal::STOP);
        signal(guardian, Signal::STOP);
        let past_hard = BootInstant::now() + tree.setup().hard * 2;
        until("the deadline has passed", SLACK, || {
            BootInstant::now() > past_hard
        });
        signal(if thaw_guardian { guardian } else { wrapper }, Signal::CONT);
        ends_in_time(&tree);
        signal(wrapper, Signal::CONT);
        let (_, ended) = tree.finish(SLACK);
        assert_eq!(ended.killed_for, Some(EndReason::Deadline));
        assert!(ended.all_reaped);
    }
}

#[test]
fn wrapper_killed() {
    let mut tree = start();
    signal(tree.wrapper(), Signal::KILL);
    tree.wait(SLACK);
    ends_in_time(&tree);
    tree.all_end_within(SLACK);
}

#[test]
fn process_group_of_the_wrapper_killed() {
    let mut tree = start();
    tree.signal_group(Signal::KILL);
    tree.wait(SLACK);
    ends_in_time(&tree);
    tree.all_end_within(SLACK);
}

#[test]
fn guardian_killed() {
    let tree = start();
    signal(tree.guardian().unwrap(), Signal::KILL);
    let (exit, ended) = tree.finish(SLACK);
    assert_eq!(
        (exit.code(), ended.killed_for),
        (Some(137), Some(EndReason::GuardianLost))
    );
    assert!(ended.all_reaped, "{ended:?}");
}

#[test]
fn a_command_that_forks_and_exits_without_end_is_caught() {
    // Each generation lives shorter than a walk through /proc takes, outside the command's own group.
    let folder = Folder::new();
    let comet = folder.path().join("comet");
    std::fs::write(&comet, "trap '' TERM; : > \"$0.beat\"; sh \"$0\" &\n").unwrap();
    let script = format!("setsid sh {} & : > \"$READY\"; sleep 600", comet.display());
    for lose_guardian in [false, true] {
        let setup = Setup {
            renew_every: None,
            ..Setup::script(&script)
        };
        let tree = setup.deadlines(1500, 1700).start().ready();
        let beat = folder.path().join("comet.beat");
        until("it flies", SLACK, || beat.exists());
        if lose_guardian {
            signal(tree.guardian().unwrap(), Signal::KILL);
        }
        let (_, ended) = tree.finish(SLACK * 2);
        assert!(ended.all_reaped, "{ended:?}");
        std::fs::remove_file(&beat).unwrap();
        let look_until = BootInstant::now() + Duration::from_millis(200);
        until("it had time to be seen", SLACK, || {
            BootInstant::now() > look_until
        });
        assert!(!beat.exists(), "it still flies");
    }
}

#[test]
fn guardian_killed_while_the_wrapper_is_frozen() {
    let tree = start();
    let wrapper = tree.wrapper();
    signal(wrapper, Signal::STOP);
    signal(tree.guardian().unwrap(), Signal::KILL);
    // Nobody is there to end more than the command itself; thawed, the wrapper does.
    until("the guardian has ended", SLACK, || {
        tree.guardian().is_none()
    });
    signal(wrapper, Signal::CONT);
    let (_, ended) = tree.finish(SLACK);
    assert!(ended.all_reaped, "{ended:?}");
}

#[test]
fn signals_that_are_not_for_the_guardian_do_not_end_it() {
    let tree = Setup::script(": > \"$READY\"; sleep 600").start().ready();
    for sent in [
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::TSTP,
    ] {
        signal(tree.guardian().unwrap(), sent);
    }
    signal(tree.wrapper(), Signal::TERM);
    let (exit, ended) = tree.finish(SLACK);
    assert_eq!((exit.code(), ended.killed_for), (Some(143), None));
}

#[test]
fn a_guardian_frozen_before_its_command_starts_starts_nothing_late() {
    // The command would leave a mark; the race of freeze and start may be won by the start, so many are tried.
    for _ in 0..5 {
        let setup = Setup {
            renew_every: None,
            ..Setup::script("exec sleep 600")
        };
        let tree = setup.deadlines(300, 500).start();
        let mut guardian = None;
        until("the guardian is there", SLACK, || {
            guardian = tree.guardian();
            guardian.is_some()
        });
        let guardian = guardian.unwrap();
        signal(guardian, Signal::STOP);
        let past_hard = BootInstant::now() + Duration::from_millis(600);
        until("the deadline has passed", SLACK, || {
            BootInstant::now() > past_hard
        });
        signal(guardian, Signal::CONT);
        ends_in_time(&tree);
        tree.all_end_within(SLACK * 2);
    }
}

/// Whoever keeps a lock gives it back only once it is told that nothing is left.
#[test]
fn a_start_that_failed_is_followed_by_the_last_word_too() {
    let too_long = "x".repeat(200_000);
    for (what, setup) in [
        ("too late", Setup::new(&["true"]).deadlines(0, 0)),
        ("refused", Setup::new(&["true", &too_long])),
    ] {
        let (exit, ended) = setup.start().finish(SLACK * 3);
        assert_eq!(exit.code(), Some(NOT_STARTED), "{what}");
        assert_eq!((ended.exit_code(), ended.killed_for), (126, None), "{what}");
        assert!(ended.all_reaped, "{what}");
    }
    for sent in [Signal::KILL, Signal::STOP] {
        let setup = Setup {
            held_back: true,
            ..Setup::script("exec sleep 600")
        };
        let tree = setup.deadlines(300, 500).start().ready();
        signal(tree.guardian().unwrap(), sent);
        tree.go();
        let (exit, ended) = tree.finish(SLACK * 3);
        assert_eq!(exit.code(), Some(NOT_STARTED), "{sent:?}");
        assert!(ended.all_reaped, "{sent:?}: {ended:?}");
    }
}

#[test]
fn a_hundred_rounds_of_signals_at_random_times() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut seeds = StdRng::seed_from_u64(seed);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let mut random = StdRng::seed_from_u64(seeds.random());
            std::thread::spawn(move || (0..25).for_each(|_| round(&mut random)))
        })
        .collect();
    // All of them, or those still at work would leave their processes behind.
    let failed = workers
        .into_iter()
        .filter_map(|worker| worker.join().err())
        .count();
    assert_eq!(failed, 0, "see the messages above");
}

#[derive(Clone, Copy, Debug)]
enum Victim {
    Wrapper,
    Guardian,
    Group,
    Command,
}

fn round(random: &mut StdRng) {
    let setup = Setup {
        end_on_signal: true,
        ..Setup::script(STUBBORN)
    };
    let tree = setup
        .deadlines(400, 600)
        .kill_grace(Duration::from_millis(100))
        .start();
    let at = BootInstant::now() + Duration::from_millis(random.random_range(0..400));
    until("it is time", SLACK, || BootInstant::now() >= at);
    let choices = [
        (Victim::Wrapper, Signal::TERM),
        (Victim::Wrapper, Signal::INT),
        (Victim::Wrapper, Signal::HUP),
        (Victim::Wrapper, Signal::QUIT),
        (Victim::Wrapper, Signal::USR1),
        (Victim::Wrapper, Signal::KILL),
        (Victim::Wrapper, Signal::STOP),
        (Victim::Group, Signal::KILL),
        (Victim::Group, Signal::STOP),
        (Victim::Guardian, Signal::KILL),
        (Victim::Guardian, Signal::STOP),
        (Victim::Command, Signal::KILL),
        (Victim::Command, Signal::TERM),
    ];
    let (victim, sent) = choices[random.random_range(0..choices.len())];
    // Early on there may be no such process yet.
    let hit = match victim {
        Victim::Wrapper => Some(tree.wrapper()),
        Victim::Guardian => tree.guardian(),
        Victim::Command => tree.commands().first().copied(),
        Victim::Group => {
            tree.signal_group(sent);
            Some(0)
        }
    };
    if let Some(pid) = hit.filter(|&pid| pid != 0) {
        signal(pid, sent);
    }
    println!("{victim:?} {sent:?} {hit:?}");
    let past_hard = BootInstant::now() + tree.setup().hard;
    until("the deadline has passed", SLACK, || {
        BootInstant::now() >= past_hard
    });
    if sent == Signal::STOP && hit.is_some() {
        ends_in_time(&tree);
    }
    // Whom that did not end: the wrapper gets a TERM, which counts once it is thawed. A guardian that was stopped before
    // it had a command, alone or still in the wrapper's group, has nobody else to thaw it.
    signal(tree.wrapper(), Signal::TERM);
    tree.signal_group(Signal::CONT);
    if let Some(guardian) = tree.guardian() {
        signal(guardian, Signal::CONT);
    }
    ends_in_time(&tree);
    tree.all_end_within(SLACK * 2);
}

/// Builds the command whose main thread ends while another goes on.
fn leaderless(folder: &Folder) -> String {
    let program = folder.path().join("leaderless");
    let status = Command::new("cc")
        .args(["-pthread", "-x", "c", "-o"])
        .arg(&program)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/suite/leaderless.c"
        ))
        .status()
        .expect("a C compiler, which Rust links with too (Debian: apt-get install gcc)");
    assert!(status.success());
    program.to_str().unwrap().to_owned()
}

#[test]
fn a_command_whose_main_thread_has_ended_is_ended_all_the_same() {
    let folder = Folder::new();
    let program = leaderless(&folder);
    let itself = format!("exec {program} \"$READY\"");
    let out_of_the_group = format!("trap '' TERM; setsid {program} \"$READY\" & sleep 600; :");
    for (script, frozen) in [
        (&out_of_the_group, None),
        (
            &out_of_the_group,
            Some(Tree::guardian as fn(&Tree) -> Option<i32>),
        ),
        (&out_of_the_group, Some(|tree: &Tree| Some(tree.wrapper()))),
        (&itself, None),
        (&itself, Some(Tree::guardian)),
    ] {
        // Renewed until it is ready, however busy the machine is; then whoever is frozen lets it end.
        let mut setup = Setup::script(script)
            .deadlines(1_500, 2_000)
            .kill_grace(Duration::from_millis(200));
        if frozen.is_none() {
            setup.end_after = Some(Duration::from_secs(3));
        }
        let tree = setup.start().ready();
        let pid = frozen.map(|whom| whom(&tree).unwrap());
        if let Some(pid) = pid {
            signal(pid, Signal::STOP);
        }
        ends_in_time(&tree);
        if let Some(pid) = pid {
            signal(pid, Signal::CONT);
        }
        let (exit, ended) = tree.finish(SLACK);
        assert_eq!(exit.code(), Some(137), "{script}: {ended:?}");
        assert!(ended.killed_for.is_some(), "{script}: {ended:?}");
        assert!(ended.all_reaped, "{script}: {ended:?}");
    }
}
