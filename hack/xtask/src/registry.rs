//! Named clusters that stay up until they are taken down: what `cargo xtask cluster` does.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::{self, Cluster, Options};
use crate::controlplane::Programs;
use crate::folder::{self, SUPERVISOR_LOCK};
use crate::node;
use crate::ports;
use crate::supervisor::State;

/// The name when none is given.
pub const DEFAULT_NAME: &str = "default";
const NAME_LENGTH: usize = 40;
/// How long the supervisor may take over ending its programs before it is killed: it says after half a minute what it
/// can't end.
const END_GRACE: Duration = Duration::from_secs(45);

/// One line of `list`.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name; of a test's cluster, its folder's.
    pub name: String,
    /// The API server's address, or `-`.
    pub endpoint: String,
    /// The supervisor's process, while it runs.
    pub pid: Option<u32>,
    /// `ready`, `starting`, `ended`, or `failed: why`.
    pub state: String,
}

/// Refuses what would be no good name of a folder; for clap.
pub fn parse_name(name: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty()
        || name.len() > NAME_LENGTH
        || !name.chars().all(fine)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        return Err(format!(
            "a cluster's name is 1 to {NAME_LENGTH} of a-z, 0-9 and '-', with a letter or digit at both ends"
        ));
    }
    if name.starts_with("owned-") {
        return Err("names beginning with \"owned-\" are for clusters of running tests".to_owned());
    }
    Ok(name.to_owned())
}

/// Starts the cluster, unless it is up, and returns whether it did.
pub fn up(name: &str, options: &Options) -> Result<(Cluster, bool)> {
    let programs = Programs::ensure()?;
    if options.node {
        node::ensure_installed()?;
    }
    let dir = path(name)?;
    let _one_at_a_time = folder::lock(&name_lock(&dir))?;
    if runs(&dir) {
        let cluster = Cluster::attach(&dir)?;
        if options.node && !cluster.has_node() {
            bail!("cluster {name:?} is up without a node: take it down first");
        }
        return Ok((cluster, false));
    }
    let (supervisor, _) = ports::until_bound(|| {
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        DirBuilder::new().mode(0o700).create(&dir)?;
        cluster::start_in(&dir, &programs, name, options, false)
    })?;
    let cluster = Cluster::attach(&dir)?;
    if options.node {
        cluster.load_pause()?;
    }
    supervisor.detach()?;
    Ok((cluster, true))
}

/// Ends the cluster and removes its folder.
pub fn down(name: &str) -> Result<()> {
    let dir = path(name)?;
    if !dir.exists() {
        bail!("no cluster is called {name:?}{}", known()?);
    }
    let _one_at_a_time = folder::lock(&name_lock(&dir))?;
    if runs(&dir)
        && let Ok(state) = State::read(&dir)
    {
        end(&dir, &state)?;
    }
    if runs(&dir) {
        bail!("the supervisor in {} can't be ended", dir.display());
    }
    fs::remove_dir_all(&dir)?;
    let _ = fs::remove_file(name_lock(&dir));
    Ok(())
}

/// The cluster, if it is up.
pub fn find(name: &str) -> Result<Cluster> {
    let dir = path(name)?;
    if !runs(&dir) {
        let option = if name == DEFAULT_NAME {
            String::new()
        } else {
            format!(" --name {name}")
        };
        bail!(
            "cluster {name:?} is not up; start it with `cargo xtask cluster up{option}`{}",
            known()?
        );
    }
    Cluster::attach(&dir)
}

/// All clusters that are up, or whose folders are still there.
pub fn list() -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(cluster::run_folder()?)? {
        let dir = entry?.path();
        let Some(name) = dir
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|_| dir.is_dir())
        else {
            continue;
        };
        let runs = runs(&dir);
        let state = State::read(&dir).ok();
        let text = state
            .as_ref()
            .map_or("starting", |state| state.text.as_str());
        entries.push(Entry {
            name: name.to_owned(),
            endpoint: fs::read_to_string(dir.join("endpoint"))
                .map_or("-".to_owned(), |text| text.trim().to_owned()),
            pid: state.as_ref().map(|state| state.pid).filter(|_| runs),
            state: if runs || text.starts_with("failed") {
                text.to_owned()
            } else {
                "ended".to_owned()
            },
        });
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}

/// Ends a supervisor and its programs, whose ids are true while the lock is held.
fn end(dir: &Path, state: &State) -> Result<()> {
    let signal = |signal| {
        if let Some(pid) = i32::try_from(state.pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    };
    signal(Signal::TERM);
    signal(Signal::CONT);
    if !wait_for(|| !runs(dir)) {
        signal(Signal::KILL);
        wait_for(|| !runs(dir));
    }
    if let Some(why) = State::read(dir)
        .ok()
        .and_then(|state| Some(state.text.strip_prefix("failed: ")?.to_owned()))
    {
        bail!("{why}; {} is left", dir.display());
    }
    // When it had to be killed, the kernel ends its programs a moment after.
    let left = |(_, pid): &(&String, &u32)| !has_ended(**pid);
    if !wait_for(|| !state.pids.iter().any(|program| left(&program)))
        && let Some((name, pid)) = state.pids.iter().find(left)
    {
        bail!(
            "{name} does not end: process {pid}; {} is left",
            dir.display()
        );
    }
    Ok(())
}

fn wait_for(done: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !done() {
        if started.elapsed() > END_GRACE {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Whether a process is gone, or only waits for its parent to take note.
///
/// The state is the main thread's. While others of a killed process are still ending, its locks and sockets are held.
#[must_use]
pub fn has_ended(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    is_over(&stat)
}

fn is_over(stat: &str) -> bool {
    let fields: Vec<_> = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split(' ')
        .collect();
    let threads = fields.get(17).and_then(|threads| threads.parse().ok());
    matches!(fields[0], "Z" | "X") && threads.unwrap_or(1) <= 1
}

fn runs(dir: &Path) -> bool {
    folder::is_locked(&dir.join(SUPERVISOR_LOCK))
}

fn path(name: &str) -> Result<PathBuf> {
    Ok(cluster::run_folder()?.join(name))
}

/// Held while a cluster of this name is taken up or down.
fn name_lock(dir: &Path) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    dir.with_file_name(format!(".{name}.lock"))
}

/// For the end of a message: which clusters there are.
fn known() -> Result<String> {
    let names: Vec<_> = list()?
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| !name.starts_with("owned-"))
        .collect();
    Ok(if names.is_empty() {
        "; none is up".to_owned()
    } else {
        format!("; there are: {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_such_as_make_good_folders() {
        for name in ["default", "a", "a-1", &"x".repeat(40)] {
            assert_eq!(parse_name(name).unwrap(), name);
        }
        for name in [
            "",
            "A",
            "a_b",
            "a/b",
            "..",
            "-a",
            "a-",
            "a b",
            "é",
            &"x".repeat(41),
            "owned-x",
        ] {
            assert!(parse_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_process_has_ended_with_its_last_thread() {
        let over = |state: &str, threads: u32| {
            is_over(&format!(
                "42 (a) b) {state} 7 42 43 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 9876"
            ))
        };
        assert!(over("Z", 1) && over("X", 0));
        assert!(!over("Z", 2) && !over("S", 1));
    }

    #[test]
    fn a_process_that_runs_has_not_ended() {
        assert!(!has_ended(std::process::id()));
        assert!(has_ended(u32::MAX));
    }
}
