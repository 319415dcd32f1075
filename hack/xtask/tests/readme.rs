//! The commands of the README, word by word, in a shell: from nothing to a held lock, without Pods and in Pods.
//!
//! What stands between them here only waits: a person looks at what one command says before typing the next.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use xtask::folder::OwnedFolder;
use xtask::helm;
use xtask::node::image;
use xtask::repository;

use support::Named;

/// For all that is waited for, on a machine that is busy elsewhere.
const TIMEOUT: &str = "--timeout=120s";
/// For a whole shell.
const SHELL_SECONDS: &str = "900";

fn readme() -> String {
    fs::read_to_string(repository().join("README.md")).unwrap()
}

/// The commands in the n-th block below a heading.
fn block(heading: &str, n: usize) -> Vec<String> {
    let readme = readme();
    let below = readme.split_once(&format!("\n{heading}\n"));
    let (_, below) = below.unwrap_or_else(|| panic!("no heading {heading:?}"));
    let block = below.split("```sh\n").nth(n + 1).expect("a block");
    let block = block.split("\n```").next().unwrap_or_default();
    block.lines().map(ToOwned::to_owned).collect()
}

/// What the README shows as an answer, below a heading.
fn shown(heading: &str) -> String {
    let readme = readme();
    let (_, below) = readme.split_once(&format!("\n{heading}\n")).unwrap();
    let (_, text) = below.split_once("```text\n").unwrap();
    text.split("```").next().unwrap_or_default().to_owned()
}

/// Waits, in a shell, until the lock shows this.
fn until(path: &str, value: &str) -> String {
    format!("kubectl wait dlock/nightly-billing --for=jsonpath='{{{path}}}'={value} {TIMEOUT}")
}

/// A shell in a folder that looks like the repository, once everything is built; and clusters for it, under names of
/// their own.
struct Shell {
    folder: OwnedFolder,
    _clusters: [Named; 2],
}

impl Shell {
    fn new(what: &str) -> Self {
        let base = std::env::temp_dir();
        let folder = OwnedFolder::new(&base, "leasehold-readme", 0o700).unwrap();
        let place = |name: &str| folder.path().join(name);
        for name in ["target/debug", "bin"] {
            fs::create_dir_all(place(name)).unwrap();
        }
        for name in ["charts", "crds"] {
            symlink(repository().join(name), place(name)).unwrap();
        }
        let program = image::program().unwrap();
        symlink(&program, place("target/debug/leasehold")).unwrap();
        // That of the program's own target folder: TRIPLE/release/leasehold below it.
        let target = program.ancestors().nth(3).unwrap();
        symlink(target.join("image"), place("target/image")).unwrap();

        let clusters = ["", "-pods"].map(|end| Named::new(&format!("{what}{end}")));
        let [default, pods] = clusters.each_ref().map(|named| &named.0);
        let xtask = env!("CARGO_BIN_EXE_xtask");
        // What would build all of it again, under names that the people of this machine use.
        let cargo = format!(
            r#"#!/bin/bash
case "$*" in
  'build --features cli' | 'xtask cluster image') test "$1" = build || exec {xtask} "${{@:2}}" ;;
  *'--name pods'*) arguments="${{*:2}}"; exec {xtask} ${{arguments/--name pods/--name {pods}}} ;;
  'xtask cluster '*) exec {xtask} "${{@:2}}" --name {default} ;;
  *) echo "cargo $* is not known to the test of the README" >&2; exit 1 ;;
esac
"#
        );
        fs::write(place("bin/cargo"), cargo).unwrap();
        fs::set_permissions(place("bin/cargo"), fs::Permissions::from_mode(0o700)).unwrap();
        Self {
            folder,
            _clusters: clusters,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    /// Runs commands, each of which must succeed; whatever they leave running is ended.
    fn run(&self, commands: &[String]) -> String {
        let before = "set -euo pipefail; trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT";
        let script = format!("{before}\n{}\n", commands.join("\n"));
        fs::write(self.file("script"), &script).unwrap();
        let path = std::env::var("PATH").unwrap();
        let output = Command::new("timeout")
            .args(["--kill-after=10", SHELL_SECONDS, "bash", "-x", "script"])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{path}", self.file("bin").display()))
            .env_remove("KUBECONFIG")
            .envs(helm::homes())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{}\n{said}\n{words}",
            output.status
        );
        println!("{said}\n{words}");
        format!("{said}{words}")
    }
}

/// Makes the lock, and looks at it: once it is free it shows as the README says.
fn make_the_lock() -> Vec<String> {
    let mut commands = block("### kubectl", 0);
    let look = commands.last().unwrap().clone();
    assert!(look.starts_with("kubectl get "), "{look}");
    commands.push(until(".status.phase", "Free"));
    commands.push(format!("{look} >table"));
    commands
}

/// All but the age.
fn assert_is_shown(table: &str) {
    let columns = |text: &str| -> Vec<Vec<String>> {
        let words = |line: &str| line.split_whitespace().map(ToOwned::to_owned).collect();
        let mut lines: Vec<Vec<String>> = text.lines().map(words).collect();
        for line in &mut lines {
            line.pop();
        }
        lines
    };
    assert_eq!(columns(table), columns(&shown("### kubectl")));
}

#[test]
fn five_minutes_to_a_lock_without_pods() {
    let shell = Shell::new("local");
    let first = "### A cluster, the definitions, the operator";
    let mut commands = block(first, 0);
    let operator = commands.pop().unwrap();
    assert!(operator.starts_with("leasehold operator "), "{operator}");
    // The port may be another program's here.
    commands.push(format!("{} &", operator.replace(":8080", ":0")));
    // The second terminal.
    commands.extend(block(first, 1));
    commands.extend(make_the_lock());
    commands.push("kill $!; wait $!".to_owned());
    commands.push(quoted("cargo xtask cluster down"));
    let said = shell.run(&commands);
    assert_is_shown(&shell.read("table"));
    assert!(said.contains("is down."), "{said}");
}

/// A command within the README's sentences.
fn quoted(command: &str) -> String {
    assert!(readme().contains(&format!("`{command}`")), "{command}");
    command.to_owned()
}

#[test]
fn five_minutes_to_a_lock_in_pods() {
    let shell = Shell::new("node");
    let mut commands = block("### Or with Helm, in Pods", 0);
    // "build it and put it on the PATH, as above"
    let above = block("### A cluster, the definitions, the operator", 0);
    commands.extend(
        above
            .into_iter()
            .filter(|line| line.starts_with("cargo build") || line.starts_with("export PATH=")),
    );
    commands.extend(make_the_lock());
    commands.extend(two_take_turns());
    commands.extend(in_a_pod());
    commands.extend(taken_away());
    commands.push(quoted("cargo xtask cluster down --name pods"));
    let said = shell.run(&commands);

    assert_is_shown(&shell.read("table"));
    assert!(shell.read("watched").contains("nightly-billing"));
    let waits = |line: &str| line.contains("waiting for lock") && line.contains("pod-3");
    assert!(shell.read("pod-7").lines().any(waits), "{said}");
    let token = |file: &str| -> u64 {
        let text = shell.read(file);
        let mut lines = text.lines();
        let token = lines.find_map(|line| line.strip_prefix("my token is "));
        token
            .unwrap_or_else(|| panic!("{file}: {text}"))
            .parse()
            .unwrap()
    };
    assert!(token("pod-3") < token("pod-7"));
    assert!(shell.read("logs").contains("leasehold "), "its version");
    assert!(shell.read("history").contains("pod-3"));
}

/// One holds, the other one waits until it has ended.
fn two_take_turns() -> Vec<String> {
    let [first, second, watch] = <[String; 3]>::try_from(block("### leasehold run", 0)).unwrap();
    let into = |command: &str, file: &str| {
        let command = command.strip_suffix(" &").unwrap_or(command);
        format!("{command} >{file} 2>&1 &")
    };
    vec![
        // It ends when all is seen, however long that takes.
        into(&first.replace("sleep 60", "sleep 100000"), "pod-3"),
        "first=$!".to_owned(),
        until(".status.holder", "pod-3"),
        into(&second, "pod-7"),
        "second=$!".to_owned(),
        into(&watch, "watched"),
        "watch=$!".to_owned(),
        until(".status.waiters", "1"),
        "until grep -q nightly-billing watched; do sleep 0.1; done".to_owned(),
        "kill $watch $first".to_owned(),
        "wait $first || test $? = 143".to_owned(),
        "wait $second".to_owned(),
    ]
}

fn in_a_pod() -> Vec<String> {
    let mut commands = block("### leasehold run", 1);
    let wait = commands
        .iter_mut()
        .find(|line| line.starts_with("kubectl wait "));
    let wait = wait.expect("a line that waits");
    *wait = format!("{wait} {TIMEOUT}");
    let describe = commands.last_mut().unwrap();
    assert!(describe.starts_with("kubectl describe "), "{describe}");
    *describe = describe.split(" #").next().unwrap().to_owned() + " >history";
    commands.push("kubectl logs try >logs".to_owned());
    commands
}

/// A holder loses the lock by the raised floor, and says so.
fn taken_away() -> Vec<String> {
    let mut commands = vec![
        "leasehold run --lock nightly-billing --as pod-9 -- sleep 100000 &".to_owned(),
        "third=$!".to_owned(),
        until(".status.holder", "pod-9"),
    ];
    commands.extend(block("## Reading `kubectl get dlock`", 0));
    commands.push("wait $third || test $? = 76".to_owned());
    commands
}
