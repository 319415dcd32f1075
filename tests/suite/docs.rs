//! The documents say what is there: links, files, tests, flags and dependencies that they name exist, and none is
//! missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::run_bench::Bench;
use super::server;

#[path = "../../examples/hold.rs"]
#[expect(dead_code, reason = "its `main` is for `cargo run`")]
mod hold;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files below a folder, as paths from the root.
fn files_below(folder: &str) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let path = path.strip_prefix(root()).expect("below the root");
                files.insert(path.to_string_lossy().into_owned());
            }
        }
    }
    files
}

/// The documents: everything in Markdown at the root, in docs/ and among the examples.
pub fn documents() -> Vec<String> {
    let at_root = fs::read_dir(root()).expect("the root").map(|entry| {
        let name = entry.expect("an entry").file_name();
        name.to_string_lossy().into_owned()
    });
    at_root
        .chain(files_below("docs"))
        .chain(files_below("examples"))
        .filter(|path| is_kind(path, "md"))
        .collect()
}

/// The manifests among the examples.
pub fn examples() -> Vec<String> {
    let files = files_below("examples").into_iter();
    files.filter(|path| is_kind(path, "yaml")).collect()
}

pub fn is_kind(path: &str, extension: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|has| has == extension)
}

/// What stands between `open` and the next `close`, each time.
fn between<'a>(text: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    text.split(open)
        .skip(1)
        .filter_map(move |rest| rest.split_once(close).map(|(inside, _)| inside))
}

pub fn expect_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn relative_links_lead_to_files() {
    let mut dead = Vec::new();
    for document in documents() {
        let text = read(&document);
        let folder = Path::new(&document)
            .parent()
            .map(PathBuf::from)
            .unwrap_or_default();
        for link in between(&text, "](", ')') {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !root().join(&folder).join(target).exists() {
                dead.push(format!("{document} links to {target}, which is not there"));
            }
        }
    }
    expect_none(&dead);
}

/// A merge that was not finished once went out with a page.
#[test]
fn no_document_has_marks_of_a_merge() {
    let marks = ["<<<<<<< ", ">>>>>>> "];
    let is_marked = |line: &str| marks.iter().any(|mark| line.starts_with(mark));
    let marked: Vec<String> = documents()
        .into_iter()
        .chain(examples())
        .filter(|path| read(path).lines().any(is_marked))
        .map(|path| format!("{path} has marks of a merge: choose one of the two texts"))
        .collect();
    expect_none(&marked);
}

#[test]
fn the_list_of_examples_is_complete() {
    let list = read("examples/README.md");
    let listed = |path: &str| list.contains(&format!("]({path})"));
    let missing: Vec<String> = files_below("examples")
        .into_iter()
        .filter_map(|path| path.strip_prefix("examples/").map(str::to_owned))
        .filter(|path| {
            // A folder is listed as one.
            let folder = path.split_once('/').map(|(folder, _)| folder);
            path != "README.md" && !listed(folder.unwrap_or(path))
        })
        .map(|path| format!("examples/README.md does not tell of {path}"))
        .collect();
    expect_none(&missing);
}

/// The paths of the code map: a line with a path at its start; indented ones are below the folder above them.
fn code_map() -> BTreeSet<String> {
    let text = read("ARCHITECTURE.md");
    let map = text.split("## Code map").nth(1).expect("a code map");
    let map = between(map, "```text\n", '`')
        .next()
        .expect("a block of text");
    let mut folder = String::new();
    let mut paths = BTreeSet::new();
    for line in map.lines() {
        let Some(word) = line.split_whitespace().next() else {
            continue;
        };
        if line.starts_with(' ') {
            paths.insert(format!("{folder}{word}"));
        } else {
            word.clone_into(&mut folder);
            paths.insert(word.to_owned());
        }
    }
    paths
}

/// Unit tests in a file of their own belong to the file that they test.
#[test]
fn the_code_map_is_complete_and_nothing_in_it_is_gone() {
    let map = code_map();
    let gone = map
        .iter()
        .filter(|path| !root().join(path).exists())
        .map(|path| format!("ARCHITECTURE.md names {path}, which is not there"));
    let missing = files_below("src")
        .into_iter()
        .filter(|path| !map.contains(path) && !path.ends_with("/tests.rs"))
        .map(|path| format!("ARCHITECTURE.md lacks a line for {path}"));
    expect_none(&gone.chain(missing).collect::<Vec<_>>());
}

/// The items of the lists in the guarantees, each in one line.
fn promises() -> Vec<String> {
    let text = read("docs/guarantees.md");
    let mut promises: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("- ") {
            promises.push(line.to_owned());
            inside = true;
        } else if line.starts_with("  ") && inside {
            let promise = promises.last_mut().expect("a list");
            promise.push(' ');
            promise.push_str(line.trim());
        } else {
            inside = false;
        }
    }
    promises
}

/// `file.rs::name` in backticks.
pub fn tests_named_in(text: &str) -> Vec<(String, String)> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|word| {
            let (file, name) = word.split_once("::")?;
            is_kind(file, "rs").then(|| (file.to_owned(), name.to_owned()))
        })
        .collect()
}

#[test]
fn every_promise_names_its_test() {
    let bare: Vec<String> = promises()
        .into_iter()
        .filter(|promise| tests_named_in(promise).is_empty())
        .collect();
    expect_none(&bare);
}

#[test]
fn every_test_named_in_a_promise_exists() {
    let gone: Vec<String> = tests_named_in(&read("docs/guarantees.md"))
        .into_iter()
        .filter(|(file, name)| !is_test(file, name))
        .map(|(file, name)| format!("{file} has no test {name}"))
        .collect();
    expect_none(&gone);
}

/// Whether a file has a function of this name with a test's attribute above it.
pub fn is_test(file: &str, name: &str) -> bool {
    let Ok(source) = fs::read_to_string(root().join(file)) else {
        return false;
    };
    let Some((before, _)) = source.split_once(&format!("fn {name}(")) else {
        return false;
    };
    // What is left of the function's own line ("async ") does not count.
    let above = before.rsplit_once('\n').map_or("", |(above, _)| above);
    above
        .lines()
        .rev()
        .take_while(|line| {
            let line = line.trim();
            line.starts_with("#[") || line.starts_with("//")
        })
        .any(|line| line.contains("test]") || line.contains("test("))
}

#[test]
fn every_dependency_has_its_reason() {
    let reasons = read("docs/dependencies.md");
    let sections: Vec<&str> = reasons.split("\n## ").collect();
    let section = |name: &str| {
        let found = sections
            .iter()
            .find(|section| section.lines().next().unwrap_or_default().contains(name));
        found
            .copied()
            .unwrap_or_else(|| panic!("docs/dependencies.md has no section on {name}"))
    };
    let mut missing = Vec::new();
    let mut expect = |manifest: &str, names: Vec<String>, section: &str| {
        for name in names {
            if !section.contains(&format!("`{name}`")) {
                missing.push(format!(
                    "docs/dependencies.md does not say why {manifest} names {name}"
                ));
            }
        }
    };
    expect(
        "Cargo.toml",
        crates_in("Cargo.toml"),
        section("`leasehold`"),
    );
    for member in ["hack/xtask", "hack/demo"] {
        let manifest = format!("{member}/Cargo.toml");
        if root().join(&manifest).exists() {
            expect(&manifest, crates_in(&manifest), section(member));
        }
    }
    for module in [
        "hack/controlplane",
        "hack/elector",
        "hack/helm",
        "hack/kstatus",
        "hack/promql",
    ] {
        let manifest = format!("{module}/go.mod");
        expect(&manifest, modules_in(&manifest), section(module));
    }
    expect_none(&missing);
}

/// The modules that a go.mod requires for its own code, or builds a tool of.
fn modules_in(manifest: &str) -> Vec<String> {
    let text = read(manifest);
    let tools = text.lines().filter_map(|line| line.strip_prefix("tool "));
    let tools: Vec<_> = tools.map(|tool| format!("{tool}/")).collect();
    let is_tool = |module: &str| {
        tools
            .iter()
            .any(|tool| tool.starts_with(&format!("{module}/")))
    };
    between(&text, "require (\n", ')')
        .flat_map(str::lines)
        .filter_map(|line| Some((line.split_whitespace().next()?, line)))
        .filter(|(module, line)| !line.contains("// indirect") || is_tool(module))
        .map(|(module, _)| module.to_owned())
        .collect()
}

/// The keys of all tables of dependencies.
fn crates_in(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut crates = Vec::new();
    for line in read(manifest).lines() {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]");
        } else if let (true, Some((name, _))) = (inside, line.split_once('=')) {
            crates.push(name.trim().to_owned());
        }
    }
    assert!(!crates.is_empty(), "no dependencies in {manifest}");
    crates
}

#[test]
fn every_subcommand_and_flag_is_on_the_page_of_the_command_line() {
    let page = read("docs/cli.md");
    let mut missing = Vec::new();
    for subcommand in subcommands() {
        if !page.contains(&format!("## leasehold {subcommand}")) {
            missing.push(format!("docs/cli.md has no section on {subcommand}"));
        }
        for flag in flags(&help(&[&subcommand, "--help"])) {
            if !page.contains(&format!("`{flag}`")) && !page.contains(&format!("`{flag} ")) {
                missing.push(format!("docs/cli.md does not tell of {subcommand} {flag}"));
            }
        }
    }
    expect_none(&missing);
}

fn subcommands() -> Vec<String> {
    let help = help(&["--help"]);
    let listed = help.split("Commands:\n").nth(1).expect("subcommands");
    let names = listed.lines().take_while(|line| !line.is_empty());
    names
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|name| name != "help")
        .collect()
}

fn help(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(args)
        .output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{args:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// hashicorp/consul#947: what an exit code means is told where people look first.
#[test]
fn the_help_has_the_same_table_of_exit_codes_as_the_page() {
    let page = read("docs/cli.md");
    for (subcommand, header) in [
        ("run", "| Code | When |"),
        ("sidecar", "| Exit code | When |"),
    ] {
        let section = format!("## leasehold {subcommand}");
        let section = page.split(&section).nth(1).expect("a section");
        let table = section.split(header).nth(1).expect("a table");
        let rows = table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        let told: BTreeSet<_> = rows
            .filter_map(|row| row.split('|').nth(1).map(str::trim))
            .filter(|code| !code.starts_with("the command"))
            .collect();
        assert!(told.contains("69") && told.contains("75") && told.contains("76"));
        let help = help(&[subcommand, "--help"]);
        let codes = help.split("Exit codes:\n").nth(1).expect("a table");
        // A long line goes on in the next one.
        let codes = codes.lines().take_while(|line| !line.is_empty());
        let shown: BTreeSet<_> = codes
            .filter_map(|line| line.trim().split_once("  "))
            .map(|(code, _)| code)
            .collect();
        assert_eq!(shown, told, "{subcommand}");
    }
}

/// The long flags of a help text but those of every program.
fn flags(help: &str) -> BTreeSet<String> {
    let lines = help.lines().map(str::trim_start);
    let flags = lines.filter(|line| line.starts_with('-')).flat_map(|line| {
        line.split([' ', ',', '='])
            .filter(|word| word.starts_with("--") && word.len() > 2)
    });
    flags
        .map(str::to_owned)
        .filter(|flag| flag != "--help" && flag != "--version")
        .collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_readme_shows_the_example_as_it_is() {
    let (readme, example) = (read("README.md"), one_line(&read("examples/hold.rs")));
    let shown = between(&readme, "```rust\n", '`')
        .next()
        .expect("a block of Rust");
    assert!(
        example.contains(&one_line(shown)),
        "examples/hold.rs does not contain what the README shows of it"
    );
}

#[cfg(feature = "fence-postgres")]
#[test]
fn the_readme_shows_the_gates_own_sql() {
    let readme = one_line(&read("README.md"));
    assert!(readme.contains(&one_line(leasehold::fence::postgres::CHECK)));
}

#[test]
fn every_metric_has_its_meaning() {
    let page = read("docs/metrics.md");
    let text = leasehold::controller::metrics::Metrics::default().text();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let missing: Vec<String> = types
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| {
            if kind == "counter" {
                format!("{name}_total")
            } else {
                name.to_owned()
            }
        })
        .filter(|name| !page.contains(&format!("`{name}`")))
        .map(|name| format!("docs/metrics.md does not tell of {name}"))
        .collect();
    expect_none(&missing);
}

#[tokio::test]
async fn the_example_takes_the_lock_and_gives_it_back() {
    let bench = Bench::new().await;
    bench.opened("nightly-billing", 5).await;
    let locks = bench.library().await;
    server::within(
        Duration::from_secs(30),
        "the example",
        hold::hold(&locks, "nightly-billing"),
    )
    .await
    .expect("held, worked, released");
    let lease = bench.lease("nightly-billing").await;
    assert!(lease.is_free());
    assert_eq!(lease.spec.transitions, 1);
    bench.finish().await;
}
