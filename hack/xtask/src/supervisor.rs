//! Our side of `hack/controlplane/supervise`, under which all servers run.
//!
//! The supervisor is a process of its own because neither of the two that could start the servers will do: a test's
//! thread ends before its servers should, and `cluster up` ends at once. It ends everything when the pipe from its owner
//! closes, and the kernel ends everything when the supervisor is killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::controlplane::Programs;
use crate::pki::write_private;

/// A program to be kept up.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// What it is called by [`Supervisor`] and in `state.json`; its output goes to `NAME.log`.
    pub name: &'static str,
    /// Where it is.
    pub path: std::path::PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Added to its environment, as `NAME=value`.
    pub env: Vec<String>,
    /// It is started when all of these have succeeded.
    pub after: Vec<Probe>,
    /// Whether it runs in the namespaces of [`Spec::node`].
    pub inside: bool,
    /// The user and group it runs as, where not ours.
    pub user: Option<(u32, u32)>,
    /// The signal that ends it; 0 for SIGKILL.
    pub end_signal: i32,
}

/// What tells that all is ready.
#[derive(Clone, Debug)]
pub enum Probe {
    /// A GET of it answers 200.
    Url(String),
    /// A GET of it answers 200, with the text in it.
    Answer(String, &'static str),
    /// The file has the text in it.
    File(std::path::PathBuf, &'static str),
}

/// Namespaces in which programs run that must leave nothing on the machine, and have it not see them: mounts, network
/// and processes.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// The address in there, as CIDR.
    pub address: String,
    /// The name of the cgroup directories.
    pub cgroup: String,
    /// Doors into the network, each from a port on loopback to the same port on loopback inside.
    pub ports: Vec<u16>,
}

/// What a supervisor is asked for.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// Where programs run that say `inside`.
    pub node: Option<NodeSpec>,
    /// The programs, in the order of their starting.
    pub programs: Vec<Program>,
    /// All of these must have succeeded once.
    pub ready: Vec<Probe>,
    /// Files for probes of URLs: the authority, the client's certificate and its key.
    pub tls: Option<[String; 3]>,
    /// Whether the folder goes with the owner.
    pub remove_folder: bool,
}

impl Spec {
    fn json(&self) -> Value {
        let programs: Vec<_> = self.programs.iter().map(Program::json).collect();
        let [ca, cert, key] = self.tls.clone().unwrap_or_default();
        json!({
            "node": self.node.as_ref().map(NodeSpec::json),
            "programs": programs,
            "ready": self.ready.iter().map(Probe::json).collect::<Vec<_>>(),
            "tls": { "ca": ca, "cert": cert, "key": key },
            "timeoutSeconds": 60,
            "removeFolder": self.remove_folder,
        })
    }
}

impl NodeSpec {
    fn json(&self) -> Value {
        let door = |port| json!({ "listen": format!("127.0.0.1:{port}"), "to": format!("127.0.0.1:{port}") });
        json!({
            "address": self.address,
            "cgroup": self.cgroup,
            "forwards": self.ports.iter().map(door).collect::<Vec<_>>(),
        })
    }
}

impl Program {
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "path": self.path.to_string_lossy(),
            "args": self.args,
            "env": self.env,
            "after": self.after.iter().map(Probe::json).collect::<Vec<_>>(),
            "inside": self.inside,
            "uid": self.user.map(|user| user.0),
            "gid": self.user.map(|user| user.1),
            "endSignal": self.end_signal,
        })
    }
}

impl Probe {
    fn json(&self) -> Value {
        match self {
            Self::Url(url) => json!({ "url": url }),
            Self::Answer(url, text) => json!({ "url": url, "contains": text }),
            Self::File(file, text) => json!({ "file": file.to_string_lossy(), "contains": text }),
        }
    }
}

/// A running supervisor that we own: everything ends when this is dropped.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Supervisor {
    /// Starts one in `dir`, and waits until all is ready.
    pub fn start(programs: &Programs, dir: &Path, spec: &Spec) -> Result<Self> {
        write_private(&dir.join("spec.json"), &format!("{:#}\n", spec.json()))?;
        let mut child = Command::new(programs.path("supervise"))
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("can't run {}", programs.path("supervise").display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the supervisor has no pipes");
        };
        let mut supervisor = Self {
            child,
            input: Some(input),
            output: BufReader::new(output),
        };
        match supervisor.read_line()?.as_str() {
            "ready" => Ok(supervisor),
            line => {
                let why = line.trim_start_matches("failed: ").to_owned();
                Err(anyhow!("{why}{}", last_words(dir, &why)))
            }
        }
    }

    /// Sends a command and waits for the answer: a process id.
    pub fn command(&mut self, command: &str) -> Result<u32> {
        let input = self
            .input
            .as_mut()
            .context("the supervisor is not ours any more")?;
        writeln!(input, "{command}").context("the supervisor is gone")?;
        let line = self.read_line()?;
        match line.split_once(' ') {
            Some(("ok", pid)) => Ok(pid.trim().parse()?),
            _ => bail!("{}", line.trim_start_matches("error: ")),
        }
    }

    /// Lets it live on without us.
    pub fn detach(mut self) -> Result<()> {
        self.command("detach")?;
        self.input = None;
        Ok(())
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the supervisor ended unexpectedly");
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // None after `detach`: then it lives on.
        if self.input.take().is_some() {
            // It ends its programs by SIGKILL, or within seconds; even a frozen one must end.
            let pid = Pid::from_child(&self.child);
            let _ = kill_process(pid, Signal::CONT);
            let _ = self.child.wait();
        }
    }
}

/// What `state.json` says.
#[derive(Clone, Debug)]
pub struct State {
    /// `starting`, `ready`, `ended`, or `failed: why`.
    pub text: String,
    /// The supervisor's process.
    pub pid: u32,
    /// The programs' processes, by name; those that run.
    pub pids: BTreeMap<String, u32>,
}

impl State {
    /// Reads it.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join("state.json");
        let text =
            fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
        Some(Self {
            text: value.get("state")?.as_str()?.to_owned(),
            pid: number(value.get("pid")?)?,
            pids: value
                .get("pids")?
                .as_object()?
                .iter()
                .filter_map(|(name, pid)| Some((name.clone(), number(pid)?)))
                .collect(),
        })
    }
}

/// The end of the log of the program that a failure names.
fn last_words(dir: &Path, why: &str) -> String {
    let name = why.split(' ').next().unwrap_or_default();
    let Ok(log) = fs::read_to_string(dir.join(format!("{name}.log"))) else {
        return String::new();
    };
    let lines: Vec<_> = log.lines().collect();
    format!("\n{}", lines[lines.len().saturating_sub(15)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_the_supervisor_writes_it() {
        let state = State::parse(
            r#"{"state": "ready", "pid": 7, "pids": {"etcd": 8, "kube-apiserver": 9}}"#,
        )
        .unwrap();
        assert_eq!(
            (state.text.as_str(), state.pid, state.pids["kube-apiserver"]),
            ("ready", 7, 9)
        );
        assert!(State::parse("{}").is_none());
        assert!(State::parse("").is_none());
    }
}
