//! Builds one program from a Go module of the repository, once for every state of its folder.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::controlplane::key;
use crate::folder;
use crate::golang::Go;
use crate::progress::Progress;

/// What is to be built.
pub struct Build<'a> {
    /// The program's name.
    pub name: &'a str,
    /// The folder of its module, from the repository's root.
    pub module: &'a str,
    /// The package with its `main`.
    pub package: &'a str,
    /// For the linker, besides leaving out what debuggers need.
    pub link_flags: &'a str,
    /// What is told while it is built.
    pub words: &'a str,
}

impl Build<'_> {
    /// The program, in a folder of its own in the cache; built now if it is not there.
    pub fn ensure(&self) -> Result<PathBuf> {
        let source = crate::repository().join(self.module);
        let base = cache::root()?.join(self.name);
        fs::create_dir_all(&base)?;
        let dir = base.join(format!("bin-{}", key(&source)?));
        let program = dir.join(self.name);
        if program.exists() {
            return Ok(program);
        }
        let _one_at_a_time = folder::lock(&base.join("lock"))?;
        if program.exists() {
            return Ok(program);
        }
        let progress = Progress::start(self.words);
        let fresh = dir.with_extension("new");
        let _ = fs::remove_dir_all(&fresh);
        let output = Go::find()?
            .command()
            .args(["build", "-trimpath", "-ldflags"])
            .arg(format!("-s -w {}", self.link_flags))
            .arg("-o")
            .arg(fresh.join(self.name))
            .arg(self.package)
            .current_dir(&source)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-buildvcs=false")
            .stdin(Stdio::null())
            .output()
            .context("can't run go")?;
        if !output.status.success() {
            progress.give_up();
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("`go build` in {} failed:\n{words}", self.module);
        }
        fs::rename(&fresh, &dir)?;
        progress.done("");
        Ok(program)
    }
}
