//! Builds `hack/elector`, a stock client-go leader elector, once for every state of that folder.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::controlplane::key;
use crate::folder;
use crate::golang::Go;
use crate::progress::Progress;

/// The program, from the cache; built now if it is not there.
pub fn ensure() -> Result<PathBuf> {
    let source = crate::repository().join("hack/elector");
    let base = cache::root()?.join("elector");
    fs::create_dir_all(&base)?;
    let program = base.join(key(&source)?);
    if program.exists() {
        return Ok(program);
    }
    let _one_at_a_time = folder::lock(&base.join("lock"))?;
    if program.exists() {
        return Ok(program);
    }
    let progress = Progress::start("Building the client-go elector (once; up to two minutes)");
    let fresh = program.with_extension("new");
    let output = Go::find()?
        .command()
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
        .arg(&fresh)
        .arg(".")
        .current_dir(&source)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-buildvcs=false")
        .stdin(Stdio::null())
        .output()
        .context("can't run go")?;
    if !output.status.success() {
        progress.give_up();
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("`go build` in hack/elector failed:\n{words}");
    }
    fs::rename(&fresh, &program)?;
    progress.done("");
    Ok(program)
}
