//! Programs from the system's packages: found, or installed where we may.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;

use crate::cache;
use crate::folder;
use crate::progress::Progress;

/// Where the system's programs are, also those that a user's `PATH` leaves out.
pub const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program by its name, in `PATH` or in [`SYSTEM_PATH`].
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(env::split_paths(SYSTEM_PATH))
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

/// Whether [`install`] has a chance here.
fn may_install() -> bool {
    geteuid().is_root() && Path::new("/usr/bin/apt-get").exists()
}

/// Installs packages for `what`, unless it is there by now, without starting any server of theirs.
pub fn install(what: &str, packages: &[&str], is_there: impl Fn() -> bool) -> Result<()> {
    if !may_install() {
        bail!("{what} is needed and not installed: {}", hint(packages));
    }
    // Tests start side by side, and apt does not wait for another apt.
    let _one_at_a_time = folder::lock(&cache::root()?.join("apt.lock"))?;
    if is_there() {
        return Ok(());
    }
    let mut progress = Progress::start(format!("Installing {what} (apt-get)"));
    let install = ["install", "--yes", "--no-install-recommends"]
        .iter()
        .chain(packages)
        .copied()
        .collect();
    for args in [vec!["update"], install] {
        progress.tell(args[0]);
        let output = Command::new("apt-get")
            .args(["--quiet", "--option=DPkg::Lock::Timeout=300"])
            .args(&args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            // A server of the system's own is not wanted: packages would start theirs.
            .env("RUNLEVEL", "1")
            .stdin(Stdio::null())
            .output()
            .context("can't run apt-get")?;
        if !output.status.success() {
            progress.give_up();
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("`apt-get {}` failed: {}", args.join(" "), words.trim());
        }
    }
    progress.done("");
    Ok(())
}

/// What people can do where we may not.
#[must_use]
pub fn hint(packages: &[&str]) -> String {
    let packages = packages.join(" ");
    if Path::new("/usr/bin/apt-get").exists() {
        format!("install it with `apt-get install {packages}` (as root)")
    } else {
        format!("install what Debian calls {packages}, so that its programs are in PATH")
    }
}
