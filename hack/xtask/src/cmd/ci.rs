//! `cargo xtask ci`: everything a change must pass.

use std::fs;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use xtask::apt;
use xtask::golang::Go;
use xtask::progress::elapsed;

use super::generate;
use super::test::{Outcome, run_tests};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run the long tests in full length
    #[arg(long)]
    long: bool,
}

/// Goes on after a failure, so that one run tells all there is to mend.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut total = Outcome::default();
    step(&mut total, "fmt", || {
        cargo(&["fmt", "--all", "--check"], "run `cargo fmt --all`")
    });
    step(&mut total, "clippy", || {
        let args = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "--deny",
            "warnings",
        ];
        cargo(&args, "mend what it says")
    });
    step(&mut total, "library", library);
    step(&mut total, "go", go);
    step(&mut total, "shell", shell);
    step(&mut total, "gen", || generate::check().map(|()| one()));
    step(&mut total, "test", || run_tests(args.long, &[], true));
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn step(total: &mut Outcome, name: &str, run: impl FnOnce() -> Result<Outcome>) {
    println!("==> {name}");
    let started = Instant::now();
    let outcome = run().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        Outcome {
            failed: 1,
            ..Outcome::default()
        }
    });
    let word = if outcome.failed == 0 {
        "passed"
    } else {
        "FAILED"
    };
    println!("==> {name} {word} after {}", elapsed(started.elapsed()));
    total.passed += outcome.passed;
    total.failed += outcome.failed;
}

/// A step that is one check.
fn one() -> Outcome {
    Outcome {
        passed: 1,
        ..Outcome::default()
    }
}

fn cargo(args: &[&str], mend: &str) -> Result<Outcome> {
    let status = super::cargo(args).status()?;
    ensure!(status.success(), "`cargo {}` failed: {mend}", args[0]);
    Ok(one())
}

/// The library as its users build it: no features, and whatever version of k8s-openapi they choose.
fn library() -> Result<Outcome> {
    let status = super::cargo(&["check", "--package", "leasehold", "--lib"])
        .env("K8S_OPENAPI_ENABLED_VERSION", "1.37")
        .status()?;
    ensure!(
        status.success(),
        "the library does not build without features: mend what it says"
    );
    Ok(one())
}

/// Only our own packages: checking those of Kubernetes is not ours.
fn go() -> Result<Outcome> {
    let go = Go::find()?;
    for (module, formatted, vetted) in [
        (
            "hack/controlplane",
            &[".", "./pause", "./supervise"][..],
            &["./pause", "./supervise"][..],
        ),
        ("examples/leader-go", &["."], &["."]),
    ] {
        check_go(&go, module, formatted, vetted)?;
    }
    Ok(one())
}

fn check_go(go: &Go, module: &str, formatted: &[&str], vetted: &[&str]) -> Result<()> {
    let dir = xtask::repository().join(module);
    let unformatted = output(
        go.command()
            .arg("fmt")
            .arg("-n")
            .args(formatted)
            .current_dir(&dir),
    )?;
    // `go fmt -n` prints the gofmt commands that it would run; the same with -l instead of -w lists files.
    for command in unformatted.lines() {
        let mut words = command.split_whitespace();
        let Some(gofmt) = words.next() else { continue };
        let files = words.filter(|word| !word.starts_with('-'));
        let listed = output(Command::new(gofmt).arg("-l").args(files).current_dir(&dir))?;
        ensure!(
            listed.is_empty(),
            "not formatted, run `go fmt ./...` in {module}: {}",
            listed.trim()
        );
    }
    output(
        go.command()
            .arg("vet")
            .args(vetted)
            .env("CGO_ENABLED", "0")
            .current_dir(&dir),
    )?;
    Ok(())
}

/// The scripts that can't be run on a machine without an engine.
fn shell() -> Result<Outcome> {
    const PROGRAM: &str = "shellcheck";
    if apt::find(PROGRAM).is_none() {
        apt::install(PROGRAM, &[PROGRAM], || apt::find(PROGRAM).is_some())?;
    }
    let shellcheck = apt::find(PROGRAM).context("the package shellcheck brought no program")?;
    let mut command = Command::new(shellcheck);
    command.arg("--external-sources");
    for entry in fs::read_dir(xtask::repository().join("hack/kind"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "sh") {
            command.arg(path);
        }
    }
    let output = command.output()?;
    let words = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "mend the scripts:\n{words}");
    Ok(one())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        bail!(
            "{command:?} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
