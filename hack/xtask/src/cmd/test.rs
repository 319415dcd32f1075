//! `cargo xtask test`: all tests, against one control plane that they share.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result};
use xtask::cluster::{Cluster, Options};
use xtask::node::{self, image};
use xtask::postgres;
use xtask::progress::Progress;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run the long tests in full length: leases of real length, more rounds
    #[arg(long)]
    long: bool,
    /// Arguments for `cargo test`, such as `--test suite NAME` or `-- --nocapture`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    _rest: Vec<OsString>,
}

/// What a run of `cargo test` came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) code: u8,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let rest = without_ours(super::words_after("test"));
    Ok(ExitCode::from(run_tests(args.long, &rest, false)?.code))
}

/// Runs them; counting goes through all test programs, and takes their output through a pipe.
pub(crate) fn run_tests(long: bool, rest: &[OsString], count: bool) -> Result<Outcome> {
    postgres::ensure_installed()?;
    xtask::controlplane::Programs::ensure()?;
    xtask::helm::ensure()?;
    xtask::kstatus::ensure()?;
    if rest.is_empty() {
        // Here people see why it takes minutes; within the tests of the node nobody would.
        image::program()?;
        if let Err(error) = node::ensure_installed() {
            eprintln!("The tests of the node will fail: {error:#}");
        }
    }
    let mut command = super::cargo(&["test", "--workspace", "--all-features"]);
    if count {
        command.arg("--no-fail-fast").stdout(Stdio::piped());
    }
    command.args(rest);
    if long {
        command.env("LEASEHOLD_LONG", "1");
    }
    let progress = Progress::start("Starting the control plane for the tests");
    let cluster = Cluster::start(&Options::default())?;
    progress.done(cluster.endpoint());

    let mut child = command
        .envs(cluster.env())
        .spawn()
        .context("can't run cargo")?;
    let mut outcome = Outcome::default();
    for line in child
        .stdout
        .take()
        .into_iter()
        .flat_map(|out| BufReader::new(out).lines())
        .map_while(Result::ok)
    {
        println!("{line}");
        if let Some((passed, failed)) = parse_result(&line) {
            outcome.passed += passed;
            outcome.failed += failed;
        }
    }
    let status = child.wait()?;
    outcome.code = match status.code() {
        Some(code) => u8::try_from(code).unwrap_or(1),
        None => 1,
    };
    if outcome.code != 0 && outcome.failed == 0 {
        // It did not build, or a test program died without a last word.
        outcome.failed = 1;
    }
    Ok(outcome)
}

/// Our own flag counts only before the `--` that ends cargo's arguments.
fn without_ours(words: Vec<OsString>) -> Vec<OsString> {
    let mut ours = true;
    words
        .into_iter()
        .filter(|word| {
            ours &= word == "--long";
            !ours
        })
        .collect()
}

/// `test result: ok. 16 passed; 0 failed; …`
fn parse_result(line: &str) -> Option<(u32, u32)> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut numbers = numbers.split("; ");
    let mut next = |word: &str| {
        numbers
            .next()?
            .trim()
            .strip_suffix(word)?
            .trim()
            .parse()
            .ok()
    };
    Some((next("passed")?, next("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_as_cargo_prints_them() {
        let line = "test result: ok. 16 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(parse_result(line), Some((16, 2)));
        assert_eq!(
            parse_result("test result: FAILED. 1 passed; 1 failed; 0 ignored"),
            Some((1, 1))
        );
        assert_eq!(parse_result("test engine::takes ... ok"), None);
    }

    #[test]
    fn words_for_cargo_are_passed_on_as_they_are() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            without_ours(words(&["--long", "--test", "suite"])),
            words(&["--test", "suite"])
        );
        assert_eq!(
            without_ours(words(&["--", "--nocapture"])),
            words(&["--", "--nocapture"])
        );
        assert_eq!(
            without_ours(words(&["lock", "--", "--long"])),
            words(&["lock", "--", "--long"])
        );
    }
}
