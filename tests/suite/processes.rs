//! A program that a test starts, and everything below it: found in `/proc` by a variable in the environment, and gone
//! with the test.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Once};
use std::time::Duration;

use leasehold::clock::MonoInstant;
use leasehold::supervise::Signal;
use rustix::process::{Pid, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};
use signal_hook::flag;

/// Its value is in the environment of a wrapper, its guardian, its command and all below.
const TAG: &str = "LEASEHOLD_TEST_TAG";
const GUARDIAN: &str = "__guardian";

/// A program that was started, and its descendants.
pub struct Family {
    child: Child,
    tag: String,
}

impl Family {
    /// Starts it, in a process group of its own. No other family may have this tag.
    pub fn start(command: &mut Command, tag: &str) -> Self {
        catch_ignored_signals();
        let child = command
            .env(TAG, tag)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Self {
            child,
            tag: format!("{TAG}={tag}"),
        }
    }

    /// The program itself.
    pub fn first(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Everybody. A zombie has no environment any more, so it counts as dead.
    pub fn all(&self) -> BTreeSet<i32> {
        processes()
            .filter(|&pid| has_word(pid, "environ", &self.tag))
            .collect()
    }

    pub fn guardian(&self) -> Option<i32> {
        self.all()
            .into_iter()
            .find(|&pid| has_argument(pid, GUARDIAN))
    }

    /// The command and its descendants, those alive: who is neither a wrapper nor a guardian.
    pub fn commands(&self, is_wrapper: impl Fn(i32) -> bool) -> BTreeSet<i32> {
        let mut pids = self.all();
        // One without words is on its way out: a guardian, perhaps.
        pids.retain(|&pid| {
            let words = read(pid, "cmdline");
            !words.is_empty() && !contains(&words, GUARDIAN) && !is_wrapper(pid)
        });
        pids
    }

    /// Sends everybody a signal; KILL until nobody is left, since who is being forked meanwhile is in no list.
    pub fn signal_all(&self, what: Signal) {
        let give_up = MonoInstant::now() + Duration::from_secs(10);
        loop {
            let all = self.all();
            for &pid in &all {
                signal(pid, what);
            }
            if what != Signal::KILL || all.is_empty() || MonoInstant::now() > give_up {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Sends the group of the first one a signal. Nobody may be left in it.
    pub fn signal_group(&self, what: Signal) {
        let _ = kill_process_group(Pid::from_raw(self.first()).unwrap(), what);
    }

    /// How the first one has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Everybody, a line each.
    pub fn describe(&self) -> String {
        let line = |pid| {
            let stat = String::from_utf8_lossy(&read(pid, "stat")).into_owned();
            let words = String::from_utf8_lossy(&read(pid, "cmdline")).replace('\0', " ");
            let stat: Vec<&str> = stat.split_ascii_whitespace().take(6).collect();
            format!("{} {words}\n", stat.join(" "))
        };
        self.all().into_iter().map(line).collect()
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // Only after a failed test, or a test of killing, is anyone left here; also a frozen one dies of KILL.
        self.signal_all(Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A signal that is ignored where the tests were started (by `nohup`, or by `&` in a script) is so in all that they start,
/// and no shell may trap it there. One that is caught is the default again in a new program.
fn catch_ignored_signals() {
    static CAUGHT: Once = Once::new();
    CAUGHT.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let mut lines = status.lines();
        let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        for signal in [SIGHUP, SIGINT, SIGQUIT] {
            if ignored & (1 << (signal - 1)) != 0 {
                flag::register(signal, Arc::default()).unwrap();
            }
        }
    });
}

/// Sends a signal to one process, which may have ended.
pub fn signal(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// Whether this is one of the words that the process was started with.
pub fn has_argument(pid: i32, argument: &str) -> bool {
    has_word(pid, "cmdline", argument)
}

pub fn children_of(parent: i32) -> Vec<i32> {
    let parent = parent.to_string();
    processes()
        .filter(|&pid| stat_field(pid, 1).is_some_and(|of| of == parent))
        .collect()
}

/// How many zombies are below a process.
pub fn zombies_below(root: i32) -> usize {
    let mut parents = vec![root];
    let mut zombies = 0;
    while let Some(parent) = parents.pop() {
        let children = children_of(parent);
        zombies += children.iter().filter(|&&pid| is_zombie(pid)).count();
        parents.extend(children);
    }
    zombies
}

/// Whether all threads of a process were stopped.
pub fn is_frozen(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut stats =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    stats.all(|stat| {
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.starts_with(" T"))
    })
}

/// The words before a program's own that make it PID 1 of a namespace.
pub fn as_pid_1() -> [&'static str; 3] {
    let root = rustix::process::geteuid().is_root();
    [
        "unshare",
        if root { "-pf" } else { "-Urpf" },
        "--mount-proc",
    ]
}

fn is_zombie(pid: i32) -> bool {
    stat_field(pid, 0).is_some_and(|state| state == "Z")
}

fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// A field of `/proc/PID/stat`, counted from behind the name.
fn stat_field(pid: i32, index: usize) -> Option<String> {
    let stat = String::from_utf8(read(pid, "stat")).ok()?;
    let fields = stat.rsplit(')').next()?;
    fields
        .split_ascii_whitespace()
        .nth(index)
        .map(str::to_owned)
}

fn has_word(pid: i32, file: &str, word: &str) -> bool {
    contains(&read(pid, file), word)
}

fn contains(words: &[u8], wanted: &str) -> bool {
    words
        .split(|&byte| byte == 0)
        .any(|word| word == wanted.as_bytes())
}

/// A file of `/proc/PID`; empty if the process has ended. A process whose main thread has ended shows it by another one.
fn read(pid: i32, file: &str) -> Vec<u8> {
    let of_leader = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    if !of_leader.is_empty() {
        return of_leader;
    }
    fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .filter_map(|thread| fs::read(thread.ok()?.path().join(file)).ok())
        .find(|content| !content.is_empty())
        .unwrap_or_default()
}
