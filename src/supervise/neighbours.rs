//! The processes of a Pod's other containers, where its containers share one process namespace.
//!
//! Ends work that this process did not start: by TERM, then KILL, as the guardian ends a command, but found by looking
//! around instead of by descent. Whose shared namespace it is, is told by our own place in it: the first process of a
//! container has no parent that it can see, and is not the first process of the namespace unless that is the
//! container's own. On the namespace of a whole machine the parent is there to be seen; so there nothing is ended.

use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Signal;
use super::tree::{Process, descendants, is_proc_ours, signal_all, snapshot};
use crate::clock::BootInstant;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// So many looks in a row must find nobody: one may miss who is being forked.
const LOOKS_WITHOUT: usize = 3;

/// One process, not one that gets its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mark {
    /// Its number.
    pub pid: i32,
    /// When it was started, in clock ticks since the boot.
    pub started: u64,
}

/// There are no neighbours to be ended from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotShared {
    /// The first process: of a container by itself.
    #[error(
        "this container has a process namespace of its own: set shareProcessNamespace: true in the Pod's spec"
    )]
    Alone,
    /// Somebody who started this process is in the same namespace.
    #[error(
        "this process namespace is not a Pod's: it may be a whole machine's (hostPID), where nothing is ended"
    )]
    NotOfAPod,
}

/// The other containers of this Pod, as their processes.
#[derive(Clone, Copy, Debug)]
pub struct Neighbours {
    own: i32,
}

impl Neighbours {
    /// Looks where this process is.
    pub fn find() -> Result<Self, NotShared> {
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        let parent = Process::read(own).map(|process| process.parent);
        match (own, parent) {
            (1, _) => Err(NotShared::Alone),
            _ if !is_proc_ours().unwrap_or(false) => Err(NotShared::NotOfAPod),
            (_, Some(0)) => Ok(Self { own }),
            _ => Err(NotShared::NotOfAPod),
        }
    }

    /// The containers that are there now, by their first processes: those to be spared later.
    #[must_use]
    pub fn containers(self) -> Vec<Mark> {
        let all = snapshot();
        let first = all.iter().filter(|process| process.parent == 0);
        first
            .filter(|process| process.pid != 1 && process.pid != self.own)
            .map(mark)
            .collect()
    }

    /// Ends all but `spared`: TERM at once, KILL from `kill_at` on. Returns once nobody is left, or at `give_up` with
    /// who is. Blocks.
    #[must_use]
    pub fn end(self, spared: &[Mark], kill_at: BootInstant, give_up: BootInstant) -> Vec<i32> {
        let mut told: Vec<Mark> = Vec::new();
        let mut without = 0;
        loop {
            let found = foreign(&snapshot(), self.own, spared);
            let now = BootInstant::now();
            if found.is_empty() {
                without += 1;
            } else {
                without = 0;
            }
            if without >= LOOKS_WITHOUT {
                return Vec::new();
            }
            if now >= give_up && without == 0 {
                return found.iter().map(|process| process.pid).collect();
            }
            if now >= kill_at {
                signal_all(&found, Signal::KILL);
            } else {
                let new: Vec<Process> = found
                    .into_iter()
                    .filter(|process| !told.contains(&mark(process)))
                    .collect();
                signal_all(&new, Signal::TERM);
                told.extend(new.iter().map(mark));
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

fn mark(process: &Process) -> Mark {
    Mark {
        pid: process.pid,
        started: process.started,
    }
}

/// Who lives in other containers: neither the namespace's first process (the Pod's pause), nor of our own container, nor
/// below one that is spared. Who has lost its parent is the first process's child by then, and counts.
fn foreign(processes: &[Process], own: i32, spared: &[Mark]) -> Vec<Process> {
    let roots = processes
        .iter()
        .filter(|process| process.pid == own || spared.contains(&mark(process)));
    let mut kept = vec![1];
    for root in roots {
        kept.push(root.pid);
        kept.extend(
            descendants(processes, root.pid)
                .iter()
                .map(|below| below.pid),
        );
    }
    processes
        .iter()
        .filter(|process| !process.zombie && !kept.contains(&process.pid))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::sample as process;
    use super::*;

    #[test]
    fn who_is_neither_pause_nor_ours_nor_spared_is_foreign() {
        let all = [
            process(1, 0),
            // Ours, with a child.
            process(7, 0),
            process(8, 7),
            // Another sidecar, from before.
            process(20, 0),
            process(21, 20),
            // The app; one of its processes has lost its parent, and one has ended.
            process(30, 0),
            process(31, 30),
            process(32, 1),
            Process {
                zombie: true,
                ..process(33, 30)
            },
        ];
        let spared = [mark(&process(20, 0))];
        let pids = |spared: &[Mark]| {
            let found = foreign(&all, 7, spared);
            found.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(&spared), [30, 31, 32]);
        // Its number went to another process meanwhile.
        let gone = [Mark {
            pid: 20,
            started: 1,
        }];
        assert_eq!(pids(&gone), [20, 21, 30, 31, 32]);
    }

    #[test]
    fn a_process_with_a_parent_in_sight_ends_nobody() {
        assert_eq!(Neighbours::find().unwrap_err(), NotShared::NotOfAPod);
    }
}
