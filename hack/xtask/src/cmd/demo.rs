//! `cargo xtask demo`: the nightly-billing story, from nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::controlplane::Programs;
use xtask::{helm, node, postgres};

/// The package in `hack/demo`, and its program.
const STORY: &str = "nightly-billing";
/// The package and program that the story is about.
const LEASEHOLD: &str = "leasehold";

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Arguments for the story: see `cargo xtask demo --help`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    _rest: Vec<OsString>,
}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let rest = super::words_after("demo");
    let asks = |words: &[&str]| rest.iter().any(|word| words.iter().any(|ask| word == ask));
    // Asking what there is needs no servers.
    if !asks(&["--help", "-h"]) {
        postgres::ensure_installed()?;
        Programs::ensure()?;
        if asks(&["--node"]) {
            node::ensure_installed()?;
            helm::ensure()?;
        }
    }
    eprintln!("Building {LEASEHOLD} and {STORY} …");
    let built = build()?;
    let program = |name: &str| {
        built
            .iter()
            .find(|(built, _)| built == name)
            .map(|(_, path)| path.clone())
    };
    let story = program(STORY).with_context(|| format!("hack/demo has no program {STORY}"))?;
    let mut command = Command::new(story);
    command.args(rest);
    if let Some(leasehold) = program(LEASEHOLD) {
        command.env("LEASEHOLD_BIN", leasehold);
    }
    let status = command
        .status()
        .with_context(|| format!("can't run {STORY}"))?;
    Ok(ExitCode::from(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
    ))
}

/// Builds the programs with cargo's own progress; returns their names and places. Not with `--release`: the story
/// waits far more than it computes, and this shares what the tests build.
fn build() -> Result<Vec<(String, PathBuf)>> {
    let args = ["build", "--workspace", "--all-features", "--bins"];
    let mut command = super::cargo(&args);
    command
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    let output = command.output().context("can't run cargo")?;
    ensure!(
        output.status.success(),
        "building {LEASEHOLD} and {STORY} failed"
    );
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(executable)
        .collect())
}

/// A program's name and place, if a line of cargo's messages tells of one.
fn executable(line: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(line).ok()?;
    let path = message.get("executable")?.as_str()?;
    let name = message.get("target")?.get("name")?.as_str()?;
    Some((name.to_owned(), path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_the_messages_of_cargo() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"leasehold"},"executable":"/t/debug/leasehold"}"#;
        assert_eq!(
            executable(line),
            Some(("leasehold".to_owned(), "/t/debug/leasehold".into()))
        );
        assert_eq!(
            executable(r#"{"reason":"compiler-artifact","target":{"name":"x"},"executable":null}"#),
            None
        );
        assert_eq!(executable("words"), None);
    }
}
