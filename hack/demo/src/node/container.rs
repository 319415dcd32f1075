//! A container as this machine sees it: a cgroup of processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use leasehold::clock::MonoInstant;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tokio::sync::mpsc::UnboundedSender;
use xtask::cluster::Cluster;

use crate::pod::News;
use crate::said::now;

/// Below it are the cgroups by which processes are frozen.
const FREEZER: &str = "/sys/fs/cgroup/freezer";
/// The kubelet's folders for Pods, by what they ask for.
const CLASSES: [&str; 3] = ["burstable", "besteffort", "."];
/// How long the kernel may take to freeze or thaw.
const OBEYS: Duration = Duration::from_secs(10);

/// The holder's container.
pub(super) struct Container {
    cgroup: PathBuf,
    work: Pid,
}

impl Container {
    /// That of a running Pod.
    pub(super) fn of(cluster: &Cluster, pod: &Pod) -> Result<Self> {
        let name = pod.name_any();
        let container = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref()?.first())
            .and_then(|container| container.container_id.as_deref()?.split("//").nth(1))
            .with_context(|| format!("{name} has no container"))?;
        let pods = Path::new(FREEZER).join(cluster.cgroup()?).join("kubepods");
        let uid = pod.uid().unwrap_or_default();
        let cgroup = CLASSES
            .into_iter()
            .map(|class| pods.join(class).join(format!("pod{uid}")).join(container))
            .find(|dir| dir.is_dir())
            .with_context(|| format!("the container of {name} has no cgroup"))?;
        let processes = processes(&cgroup)?;
        let work = processes.into_iter().find(|pid| is_work(*pid));
        let work = work.with_context(|| format!("{name} does not work"))?;
        Ok(Self { cgroup, work })
    }

    /// Freezes it; returns how many processes it has.
    pub(super) async fn freeze(&self) -> Result<usize> {
        self.set("FROZEN").await?;
        Ok(processes(&self.cgroup)?.len())
    }

    /// Lets it go on.
    pub(super) async fn thaw(&self) -> Result<()> {
        self.set("THAWED").await
    }

    async fn set(&self, state: &str) -> Result<()> {
        let file = self.cgroup.join("freezer.state");
        fs::write(&file, state).context("the freezer does not take it")?;
        let begin = MonoInstant::now();
        // It is written at once, and done a moment later.
        while fs::read_to_string(&file)?.trim() != state {
            if MonoInstant::now().saturating_duration_since(begin) > OBEYS {
                bail!("not within {OBEYS:?}: the freezer says {state}");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Sends SIGSTOP to all processes but the one that works: of a frozen container they stay where they are when it
    /// thaws.
    pub(super) fn stop_all_but_work(&self) -> Result<Stopped> {
        let mut others = processes(&self.cgroup)?;
        others.retain(|pid| *pid != self.work);
        for pid in &others {
            kill_process(*pid, Signal::STOP).context("can't stop a process of the container")?;
        }
        Ok(Stopped(others))
    }

    /// Signals the process that works.
    pub(super) fn signal_work(&self, signal: Signal) -> Result<()> {
        kill_process(self.work, signal).context("can't signal the work")
    }

    /// Out of memory, the kernel shall end the whole container, as it does under cgroup v2, where the kubelet asks for
    /// that. Under v1 it ends one process, the one that weighs most: let that be the first one, with which all end.
    pub(super) fn let_first_process_be_killed(&self) -> Result<()> {
        for pid in processes(&self.cgroup)? {
            let weight = if is_first(pid) { "1000" } else { "0" };
            let file = format!("/proc/{}/oom_score_adj", pid.as_raw_pid());
            fs::write(file, weight).context("can't say whom the kernel shall kill")?;
        }
        Ok(())
    }

    /// Tells when the process that works has ended.
    pub(super) fn tell_end(
        &self,
        index: usize,
        news: UnboundedSender<(usize, News)>,
    ) -> Result<()> {
        let pidfd = pidfd_open(self.work, PidfdFlags::empty()).context("the work has ended")?;
        // A thread of its own tells the moment, whatever the others do.
        std::thread::spawn(move || {
            let mut ends = [PollFd::new(&pidfd, PollFlags::IN)];
            while rustix::event::poll(&mut ends, None) == Err(Errno::INTR) {}
            let _ = news.send((index, News::WorkEnded { at: now() }));
        });
        Ok(())
    }
}

/// Processes that were sent SIGSTOP.
pub(super) struct Stopped(Vec<Pid>);

impl Stopped {
    /// Lets them go on.
    pub(super) fn go_on(self) {
        for pid in self.0 {
            // One that has ended needs no signal.
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

fn processes(cgroup: &Path) -> Result<Vec<Pid>> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).context("the container is gone")?;
    let pids = text.lines().filter_map(|line| line.parse().ok());
    Ok(pids.filter_map(Pid::from_raw).collect())
}

/// `nightly-billing bill …`; those who wrap it have these words further behind.
fn is_work(pid: Pid) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"bill")
}

/// Whether it is the first one of its process namespace.
fn is_first(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid()));
    let status = status.unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    pids.and_then(|pids| pids.split_whitespace().last()) == Some("1")
}
