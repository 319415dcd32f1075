//! Builds the servers from `hack/controlplane`, once for every state of that folder.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::folder;
use crate::golang::Go;
use crate::progress::Progress;

/// The programs that `controlplane` is, by the name it is called by.
const NAMES: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
];
/// What is built: that program, the supervisor of all, and what the node's pause image holds.
const PACKAGES: [&str; 3] = [".", "./supervise", "./pause"];
/// Raise this when the build changes in a way that the files of `hack/controlplane` don't show.
const RECIPE: &str = "1";

/// A folder with the built programs.
#[derive(Clone, Debug)]
pub struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// The folder, for a `PATH`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A program in it: a server of Kubernetes, `etcd`, `kubectl`, `supervise` or `pause`.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The programs from the cache; built now if they are not there, which takes minutes, with progress on standard error.
    pub fn ensure() -> Result<Self> {
        let source = crate::repository().join("hack/controlplane");
        let base = cache::root()?.join("controlplane");
        fs::create_dir_all(&base)?;
        let dir = base.join(key(&source)?);
        let programs = Self { dir };
        if programs.dir.exists() {
            return Ok(programs);
        }
        if folder::is_locked(&base.join("lock")) {
            eprintln!("another process is building the control plane; waiting for it");
        }
        let _one_at_a_time = folder::lock(&base.join("lock"))?;
        if !programs.dir.exists() {
            build(&source, &programs.dir)?;
        }
        Ok(programs)
    }
}

fn build(source: &Path, dir: &Path) -> Result<()> {
    let go = Go::find()?;
    let fresh = dir.with_extension("new");
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(&fresh)?;

    let version = kubernetes_version(&fs::read_to_string(source.join("go.mod"))?)?;
    let mut progress = Progress::start(format!(
        "Building the Kubernetes {version} control plane (once; about 5 to 10 minutes on 2 cores)"
    ));
    let command = |args: &[&str]| {
        let mut command = go.command();
        command
            .args(args)
            .current_dir(source)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-buildvcs=false")
            .stdin(Stdio::null());
        command
    };

    progress.tell("listing packages");
    let packages = run(
        command(&[&["list", "-deps"], PACKAGES.as_slice()].concat()),
        &mut progress,
        |_, line| Some(line.to_owned()),
    )?;
    let mut built = 0;
    let mut go_build = command(&[
        "build",
        "-v",
        "-trimpath",
        "-ldflags",
        &link_flags(&version),
    ]);
    go_build.arg("-o").arg(&fresh).args(PACKAGES);
    run(go_build, &mut progress, |is_error, line| {
        if is_error && line.starts_with("go: downloading") {
            return Some(line.trim_start_matches("go: ").to_owned());
        }
        built += 1;
        Some(format!(
            "{built} of at most {} packages, {line}",
            packages.len()
        ))
    })?;

    for name in NAMES {
        symlink("controlplane", fresh.join(name))?;
    }
    fs::rename(&fresh, dir)?;
    progress.done("");
    Ok(())
}

/// Runs a command, telling about each of its lines; the lines of its standard output are the result.
fn run(
    mut command: Command,
    progress: &mut Progress,
    mut tell: impl FnMut(bool, &str) -> Option<String>,
) -> Result<Vec<String>> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("can't run go")?;
    let output = child.stdout.take().map(|out| {
        std::thread::spawn(move || {
            BufReader::new(out)
                .lines()
                .map_while(Result::ok)
                .collect::<Vec<_>>()
        })
    });
    let mut errors = Vec::new();
    for line in child
        .stderr
        .take()
        .into_iter()
        .flat_map(|errors| BufReader::new(errors).lines())
        .map_while(Result::ok)
    {
        if let Some(detail) = tell(true, &line) {
            progress.tell(&detail);
        }
        errors.push(line);
    }
    let lines = output
        .and_then(|thread| thread.join().ok())
        .unwrap_or_default();
    let status = child.wait()?;
    if !status.success() {
        let last = errors.split_off(errors.len().saturating_sub(20)).join("\n");
        bail!("{} failed ({status}):\n{last}", describe(&command));
    }
    Ok(lines)
}

fn describe(command: &Command) -> String {
    let verb = command.get_args().next().unwrap_or_default();
    format!("`go {}` in hack/controlplane", verb.to_string_lossy())
}

/// Without these the servers call themselves v0.0.0 and version checks go wrong.
fn link_flags(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor} -X {package}.gitTreeState=clean"
    )
}

fn kubernetes_version(go_mod: &str) -> Result<String> {
    required(go_mod, "k8s.io/kubernetes")
        .context("hack/controlplane/go.mod does not require k8s.io/kubernetes")
}

/// The version of a module that a go.mod requires.
pub(crate) fn required(go_mod: &str, module: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let mut words = line
            .trim()
            .trim_start_matches("require ")
            .split_whitespace();
        let version = (words.next() == Some(module)).then(|| words.next())??;
        Some(version.to_owned())
    })
}

/// A name for the state of the folder's files.
pub(crate) fn key(source: &Path) -> Result<String> {
    let mut files = Vec::new();
    collect(source, &mut files)?;
    files.sort();
    let mut hash = Fnv::default();
    hash.add(RECIPE.as_bytes());
    hash.add(std::env::consts::ARCH.as_bytes());
    for file in files {
        hash.add(file.strip_prefix(source)?.as_os_str().as_encoded_bytes());
        hash.add(&fs::read(&file)?);
    }
    Ok(format!("{:016x}", hash.0))
}

/// The files that make a difference to what is built.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("can't read {}", dir.display()))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            collect(&path, files)?;
        } else if name == "go.mod" || name == "go.sum" || is_source(&path, &name) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_source(path: &Path, name: &str) -> bool {
    path.extension().is_some_and(|extension| extension == "go") && !name.ends_with("_test.go")
}

/// FNV-1a, 64 bits: it names a folder, and stays the same from one Rust release to the next.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes.len().to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_comes_from_go_mod() {
        assert_eq!(
            kubernetes_version("require k8s.io/kubernetes v1.37.2\n").unwrap(),
            "v1.37.2"
        );
        assert_eq!(
            kubernetes_version("require (\n\tk8s.io/api v0.37.2\n\tk8s.io/kubernetes v1.37.3\n)")
                .unwrap(),
            "v1.37.3"
        );
        assert!(kubernetes_version("module x").is_err());
        assert!(link_flags("v1.37.2").contains("gitMinor=37 "));
    }

    #[test]
    fn the_key_changes_with_names_and_contents_of_what_is_built() {
        let dir = std::env::temp_dir().join(format!("xtask-key-{}", std::process::id()));
        fs::create_dir_all(dir.join("sub")).unwrap();
        let mut keys = Vec::new();
        for (name, text) in [
            ("go.mod", "a"),
            ("go.mod", "b"),
            ("sub/x.go", "c"),
            ("sub/y.go", "c"),
        ] {
            fs::write(dir.join(name), text).unwrap();
            keys.push(key(&dir).unwrap());
        }
        fs::write(dir.join("README.md"), "no difference").unwrap();
        assert_eq!(keys.last().unwrap(), &key(&dir).unwrap());
        keys.dedup();
        assert_eq!(keys.len(), 4);
        fs::remove_dir_all(dir).unwrap();
    }
}
