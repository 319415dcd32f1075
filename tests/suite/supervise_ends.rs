//! How a command ends when nobody is frozen or killed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use leasehold::supervise::{ChildStatus, EndReason, Signal};

use crate::processes::{as_pid_1, children_of, has_argument, signal, zombies_below};
use crate::supervise_wrapper::{Folder, SLACK, Setup, until};

/// A command that ignores TERM, with a child in another session that does too, and a double fork.
const STUBBORN: &str = "trap '' TERM INT HUP QUIT; setsid sh -c 'sleep 600; :' & (sleep 600 &); \
                        : > \"$READY\"; while :; do sleep 0.05; done";

#[test]
fn the_exit_code_is_the_commands_own() {
    for (script, code, status) in [
        ("exit 0", 0, ChildStatus::Exited(0)),
        ("exit 3", 3, ChildStatus::Exited(3)),
        ("exit 137", 137, ChildStatus::Exited(137)),
        ("kill -SEGV $$", 139, ChildStatus::Signaled(11)),
        ("kill -KILL $$", 137, ChildStatus::Signaled(9)),
        (
            "exec leasehold-no-such-command",
            127,
            ChildStatus::Exited(127),
        ),
    ] {
        let (exit, ended) = Setup::script(script).start().finish(SLACK * 3);
        assert_eq!(
            (exit.code(), ended.status),
            (Some(code), status),
            "{script}"
        );
        assert!(ended.all_reaped, "{script}");
        assert_eq!(ended.killed_for, None, "{script}");
    }
}

#[test]
fn what_cannot_be_run_is_told_as_a_shell_tells_it() {
    let mut missing = Setup::new(&["leasehold-no-such-command"]).start();
    assert_eq!(missing.wait(SLACK * 3).code(), Some(127));
    let mut refused = Setup::new(&["/etc/passwd"]).start();
    assert_eq!(refused.wait(SLACK * 3).code(), Some(126));

    // What only the kernel finds out, when the file is executed.
    let folder = Folder::new();
    for (content, code) in [("#!/no/such/interpreter\n", 127), ("#!/etc/passwd\n", 126)] {
        let file = folder.path().join("script");
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let (exit, _) = Setup::new(&[file.to_str().unwrap()])
            .start()
            .finish(SLACK * 3);
        assert_eq!(exit.code(), Some(code), "{content}");
    }
}

#[test]
fn the_command_gets_its_arguments_environment_and_standard_input() {
    let script = "test \"$1\" = 'a b' && test \"$2\" = '' && test \"$GIVEN_BY_WRAPPER\" = yes && \
                  test \"$(readlink /proc/self/fd/0)\" = /dev/null && ! ls -l /proc/self/fd | grep -q socket";
    let (exit, _) = Setup::new(&["sh", "-c", script, "sh", "a b", ""])
        .start()
        .finish(SLACK * 3);
    assert_eq!(exit.code(), Some(0));
}

#[test]
fn a_long_command_line_reaches_the_command_byte_by_byte() {
    // Longer than the socket's buffer, so it travels in pieces.
    let long = "x".repeat(100_000);
    let mut command = vec![
        "sh",
        "-c",
        "test $# = 12 && test ${#12} = 100000 && exit 9",
        "sh",
    ];
    command.extend([long.as_str(); 12]);
    let (exit, _) = Setup::new(&command).start().finish(SLACK * 3);
    assert_eq!(exit.code(), Some(9));
}

#[test]
fn descendants_that_outlive_the_command_are_ended_with_it() {
    let script = "trap '' TERM; setsid sleep 600 & (sleep 600 &) ; exit 4";
    let setup = Setup::script(script).kill_grace(Duration::from_millis(300));
    let (exit, ended) = setup.start().finish(SLACK * 3);
    assert_eq!(exit.code(), Some(4));
    assert!(ended.all_reaped);
    assert_eq!(ended.killed_for, None);
}

#[test]
fn a_command_that_is_not_renewed_gets_term_then_kill() {
    let polite = Setup {
        renew_every: None,
        ..Setup::script("trap 'exit 5' TERM; : > \"$READY\"; while :; do sleep 0.05; done")
    };
    let (exit, ended) = polite.deadlines(1500, 20_000).start().finish(SLACK * 3);
    assert_eq!(
        (exit.code(), ended.killed_for),
        (Some(5), Some(EndReason::Deadline))
    );

    let stubborn = Setup {
        renew_every: None,
        ..Setup::script(STUBBORN)
    };
    let (exit, ended) = stubborn.deadlines(700, 1200).start().finish(SLACK * 3);
    assert_eq!(
        (exit.code(), ended.killed_for),
        (Some(137), Some(EndReason::Deadline))
    );
    assert!(ended.all_reaped);
}

#[test]
fn a_stopped_command_is_ended_too() {
    let setup = Setup {
        renew_every: None,
        ..Setup::script("trap 'exit 6' TERM; kill -STOP $$; sleep 600")
    };
    let (exit, ended) = setup.deadlines(700, 20_000).start().finish(SLACK * 3);
    assert_eq!(
        (exit.code(), ended.killed_for),
        (Some(6), Some(EndReason::Deadline))
    );
}

#[test]
fn who_asks_for_the_end_gets_it_after_the_grace() {
    let setup = Setup {
        end_after: Some(Duration::from_millis(500)),
        ..Setup::script(STUBBORN)
    };
    let (exit, ended) = setup
        .kill_grace(Duration::from_millis(200))
        .start()
        .finish(SLACK * 3);
    assert_eq!(
        (exit.code(), ended.killed_for),
        (Some(137), Some(EndReason::Requested))
    );
    assert!(ended.all_reaped);
}

#[test]
fn signals_reach_the_commands_group_and_the_end_waits_for_it() {
    // The shell waits for its child, which gets the signal as well, being in the same group. The child says that it is
    // ready: a signal that came before it was forked would be put off by the shell (INT) until the child has ended.
    for (sent, code) in [
        (Signal::TERM, 143),
        (Signal::INT, 130),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ] {
        let script = "sh -c ': > \"$READY\"; exec sleep 600'; :";
        let tree = Setup::script(script).start().ready();
        signal(tree.wrapper(), sent);
        let (exit, ended) = tree.finish(SLACK * 3);
        assert_eq!(exit.code(), Some(code), "{sent:?}");
        assert_eq!(ended.killed_for, None);
    }
    for (sent, name) in [
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ] {
        let script = format!("trap 'exit 7' {name}; : > \"$READY\"; while :; do sleep 0.05; done");
        let tree = Setup::script(&script).start().ready();
        signal(tree.wrapper(), sent);
        assert_eq!(tree.finish(SLACK * 3).0.code(), Some(7), "{name}");
    }
}

#[test]
fn a_slow_end_is_renewed_until_it_is_done() {
    // Longer than the deadline that was in force when TERM came.
    let script = "trap 'sleep 1.5; exit 8' TERM; : > \"$READY\"; while :; do sleep 0.05; done";
    let tree = Setup::script(script).deadlines(1000, 1400).start().ready();
    signal(tree.wrapper(), Signal::TERM);
    signal(tree.wrapper(), Signal::TERM);
    let (exit, ended) = tree.finish(SLACK * 3);
    assert_eq!((exit.code(), ended.killed_for), (Some(8), None));
}

#[test]
fn as_pid_1_it_reaps_orphans_and_passes_term_on() {
    let script = "i=0; while [ $i -lt 50 ]; do (sh -c 'exit 0' &); i=$((i+1)); done; : > \"$READY\"; sleep 600";
    let root = rustix::process::geteuid().is_root();
    let mut tree = Setup::script(script).start_below(&as_pid_1()).ready();
    let wrapper = tree.wrapper();
    until("no zombie is left below PID 1", SLACK, || {
        zombies_below(wrapper) == 0
    });

    // One that never was below the guardian: PID 1 is its parent all the same.
    let entered = std::process::Command::new("nsenter")
        .args(["-t", &wrapper.to_string(), if root { "-p" } else { "-Up" }])
        .args(["sh", "-c", "(setsid sleep 1.4321 &)"])
        .status()
        .unwrap();
    assert!(entered.success());
    let mut stranger = None;
    until("PID 1 has adopted the stranger", SLACK, || {
        stranger = children_of(wrapper)
            .into_iter()
            .find(|&pid| has_argument(pid, "1.4321"));
        stranger.is_some()
    });
    let entry = format!("/proc/{}", stranger.unwrap());
    until("the stranger is reaped", SLACK, || {
        !Path::new(&entry).exists()
    });

    signal(wrapper, Signal::TERM);
    let status = tree.wait(SLACK);
    assert_eq!((status.code(), status.signal()), (Some(143), None));
    assert!(tree.folder().join("report").exists());
}
