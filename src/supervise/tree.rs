//! The processes below one process: finding them, signalling them, for good.
//!
//! A process group misses who calls `setsid`, so descendants are found by their parents in `/proc`. That is complete
//! only below a subreaper, where an orphan is adopted instead of leaving the tree. A walk is a snapshot: who forks
//! meanwhile may be missed, so the killer walks again until nothing is left.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process,
    kill_process_group, pidfd_open, pidfd_send_signal, waitid, waitpid,
};

/// Walks in one go while killing; after these it is time to reap.
const KILL_ROUNDS: usize = 4;

/// One line of `/proc/PID/stat`, as far as we need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// Nothing of it runs any more; it waits for its parent to take note.
    pub zombie: bool,
    /// In clock ticks since the boot; together with `pid` it names one process.
    pub started: u64,
}

impl Process {
    /// Reads one process; `None` if there is none (any more).
    pub fn read(pid: i32) -> Option<Self> {
        Self::parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Whether anything of it runs; a stopped process counts.
    pub fn runs(pid: Pid) -> bool {
        Self::read(pid.as_raw_nonzero().get()).is_some_and(|process| !process.zombie)
    }

    fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        // The second field is the name in brackets; it may contain brackets, blanks and bytes of any kind itself.
        let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
        let rest = std::str::from_utf8(stat.get(after_name..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // The state is the main thread's; when that one has ended, others may go on, and nobody can reap the process.
        let threads: u32 = fields.get(17)?.parse().ok()?;
        Some(Self {
            pid,
            zombie: matches!(*fields.first()?, "Z" | "X" | "x") && threads <= 1,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Sends a signal to this very process, not to one that got its number later.
    fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return;
        };
        let _ = match pidfd_open(pid, PidfdFlags::empty()) {
            // From here on the descriptor names one process; is it the one we read?
            Ok(_) if Self::read(self.pid).is_none_or(|now| now.started != self.started) => return,
            Ok(pidfd) => pidfd_send_signal(&pidfd, signal),
            Err(Errno::SRCH) => return,
            // Too old a kernel, a sandbox that forbids it, or no descriptors left.
            Err(_) => kill_process(pid, signal),
        };
    }
}

/// Whether `/proc` shows the processes of our own PID namespace, by the numbers that we know them by.
pub(super) fn is_proc_ours() -> io::Result<bool> {
    let own = fs::read_link("/proc/self")?;
    Ok(own.to_str() == Some(&std::process::id().to_string()))
}

/// All processes that `/proc` shows.
pub(super) fn snapshot() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(Process::read)
        .collect()
}

/// The descendants of `root` in a snapshot, zombies included, parents before children, `root` not included.
pub(super) fn descendants(processes: &[Process], root: i32) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        // Removing makes the walk end even if a snapshot taken over reused numbers contains a ring.
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child.pid);
            found.push(child.clone());
        }
    }
    found
}

/// The living ones below `root`.
pub(super) fn living_below(root: i32) -> Vec<Process> {
    let mut found = descendants(&snapshot(), root);
    found.retain(|process| !process.zombie);
    found
}

/// Sends a signal to each. Who is another user's, through a set-user-ID program, refuses it, and is found again.
pub(super) fn signal_all(processes: &[Process], signal: Signal) {
    for process in processes {
        process.signal(signal);
    }
}

/// Sends KILL to all that `find` finds, until it finds nobody or for a few rounds; who is still dying is found again.
///
/// Whole groups at a time: the kernel lets no fork of a member slip through, where a walk sees only who lives long
/// enough to be read. `spare` is the group that must not be killed so: a descendant can join ours.
pub(super) fn kill_all(spare: i32, find: impl Fn() -> Vec<Process>) {
    for _ in 0..KILL_ROUNDS {
        let found = find();
        if found.iter().all(|process| process.zombie) {
            return;
        }
        let groups: BTreeSet<i32> = found.iter().map(|process| process.group).collect();
        for group in groups
            .into_iter()
            // To the kernel "group 1" means everybody.
            .filter(|&group| group > 1 && group != spare)
            .filter_map(Pid::from_raw)
        {
            // Gone, or another user's: what remains of it is found below, and again.
            let _ = kill_process_group(group, Signal::KILL);
        }
        signal_all(&found, Signal::KILL);
    }
}

/// Whether this process has any child, dead or alive. False says of a subreaper that nothing at all is below it.
pub(super) fn has_children() -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, look), Err(Errno::CHILD))
}

/// Collects one child that has ended, if it has.
pub(super) fn reap(pid: i32) -> Option<WaitStatus> {
    loop {
        return match waitpid(Some(Pid::from_raw(pid)?), WaitOptions::NOHANG) {
            Ok(ended) => ended.map(|(_, status)| status),
            Err(Errno::INTR) => continue,
            Err(_) => None,
        };
    }
}

/// A process for tests, alone in its group and session.
#[cfg(test)]
pub(super) fn sample(pid: i32, parent: i32) -> Process {
    Process {
        pid,
        parent,
        group: pid,
        session: pid,
        zombie: false,
        started: 100 + u64::from(pid.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::sample as process;
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_parsed() {
        let stat = b"42 (a) b) (c) S 7 42 43 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2";
        let parsed = Process::parse(42, stat).unwrap();
        assert_eq!(
            parsed,
            Process {
                pid: 42,
                parent: 7,
                group: 42,
                session: 43,
                zombie: false,
                started: 9876
            }
        );
    }

    #[test]
    fn a_process_is_a_zombie_once_its_last_thread_has_ended() {
        let zombie = |state: &str, threads: u32| {
            let stat = format!(
                "42 (a) {state} 7 42 43 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 9876 1 2"
            );
            Process::parse(42, stat.as_bytes()).unwrap().zombie
        };
        assert!(zombie("Z", 1) && zombie("X", 0));
        assert!(!zombie("Z", 2) && !zombie("S", 1) && !zombie("T", 2));
    }

    #[test]
    fn the_walk_finds_grandchildren_and_nobody_else() {
        let all = [
            process(2, 1),
            process(3, 2),
            process(4, 3),
            process(5, 1),
            process(6, 5),
        ];
        let mut found: Vec<i32> = descendants(&all, 2)
            .iter()
            .map(|process| process.pid)
            .collect();
        found.sort_unstable();
        assert_eq!(found, [3, 4]);
    }

    #[test]
    fn a_ring_of_parents_ends() {
        let all = [process(2, 3), process(3, 2), process(4, 1)];
        assert_eq!(descendants(&all, 2).len(), 2);
    }

    #[test]
    fn this_process_is_below_its_parent() {
        let own = Process::read(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(descendants(&snapshot(), own.parent).contains(&own));
    }
}
