//! The processes of a Pod, found by a mark in their environment: whatever they start inherits it.

use std::cmp::Reverse;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The variable that marks them: `RUN/TELLING/POD`.
pub(crate) const MARK: &str = "NIGHTLY_BILLING_POD";
/// How often a tree is walked until nothing new is found in it.
const ROUNDS: usize = 200;

/// Which processes.
#[derive(Clone, Debug)]
pub(crate) enum Which {
    /// Those of one Pod.
    Pod(String),
    /// All of a run.
    Run(String),
}

impl Which {
    fn marks(&self, environment: &[u8]) -> bool {
        let (text, whole) = match self {
            Self::Pod(mark) => (format!("{MARK}={mark}"), true),
            Self::Run(run) => (format!("{MARK}={run}/"), false),
        };
        environment.split(|byte| *byte == 0).any(|variable| {
            if whole {
                variable == text.as_bytes()
            } else {
                variable.starts_with(text.as_bytes())
            }
        })
    }

    /// All of them that run or are frozen.
    pub(crate) fn find(&self) -> Vec<Pid> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
                // A process that ended meanwhile, and one of another user, can't be read.
                let environment = fs::read(entry.path().join("environ")).ok()?;
                (self.marks(&environment) && pid != rustix::process::getpid()).then_some(pid)
            })
            .collect()
    }

    /// Freezes them all, those that they start meanwhile too. Returns how many.
    pub(crate) fn freeze(&self) -> usize {
        let mut frozen = Vec::new();
        for _ in 0..ROUNDS {
            let new: Vec<_> = self
                .find()
                .into_iter()
                .filter(|pid| !frozen.contains(pid))
                .collect();
            if new.is_empty() && frozen.iter().all(|pid| is_stopped_or_gone(*pid)) {
                break;
            }
            for pid in new {
                let _ = kill_process(pid, Signal::STOP);
                frozen.push(pid);
            }
        }
        frozen.len()
    }

    /// Lets them go on; the youngest first, which is the worst order: the work before those who would end it.
    pub(crate) fn thaw(&self) {
        let mut frozen = self.find();
        frozen.sort_by_key(|pid| Reverse(pid.as_raw_pid()));
        for pid in frozen {
            let _ = kill_process(pid, Signal::CONT);
        }
    }

    /// Ends them all by SIGKILL, those that they start meanwhile too. Returns how many.
    pub(crate) fn kill(&self) -> usize {
        let mut killed = Vec::new();
        for _ in 0..ROUNDS {
            let alive = self.find();
            if alive.is_empty() {
                break;
            }
            for pid in alive {
                let _ = kill_process(pid, Signal::KILL);
                if !killed.contains(&pid) {
                    killed.push(pid);
                }
            }
            // The kernel needs a moment to take them away.
            std::thread::sleep(Duration::from_millis(1));
        }
        killed.len()
    }
}

/// The state is the first word after the name, which is in brackets and may hold anything.
fn is_stopped_or_gone(pid: Pid) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())) else {
        return true;
    };
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, None | Some('T' | 't' | 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_not_taken_for_another_whose_name_begins_alike() {
        let environment = b"PATH=/bin\0NIGHTLY_BILLING_POD=r7/naive/pod-10\0HOME=/\0";
        assert!(Which::Pod("r7/naive/pod-10".into()).marks(environment));
        assert!(!Which::Pod("r7/naive/pod-1".into()).marks(environment));
        assert!(Which::Run("r7".into()).marks(environment));
        assert!(!Which::Run("r".into()).marks(environment));
        assert!(!Which::Run("r7".into()).marks(b""));
    }
}
