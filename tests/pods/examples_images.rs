//! Images for the examples, made of what is on this machine: the node can pull none.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use xtask::cluster::Cluster;
use xtask::gobuild::Build;
use xtask::node::oci::{Entry, Image};

/// An image that examples name, and what it is here.
pub struct Named {
    /// As the manifests have it.
    pub example: &'static str,
    pub name: &'static str,
    load: fn(&Cluster, &str),
}

/// Those that not every node has.
pub static IMAGES: [Named; 3] = [
    Named {
        example: "leader-rust:latest",
        name: "localhost/leader-rust:1",
        load: |cluster, name| {
            let leader = rust_leader();
            let mut files = libraries(&[leader.to_str().expect("a path").to_owned()]);
            files.push(("bin/leader".to_owned(), leader));
            load(cluster, name, &files, &[]);
        },
    },
    Named {
        example: "leader-go:latest",
        name: "localhost/leader-go:1",
        load: |cluster, name| {
            let build = Build {
                name: "leader-go",
                module: "examples/leader-go",
                package: ".",
                link_flags: "",
                words: "Building the example in Go (once)",
            };
            let leader = build.ensure().expect("it builds");
            load(cluster, name, &[("bin/leader".to_owned(), leader)], &[]);
        },
    },
    Named {
        example: "python:3-slim",
        name: "localhost/python:3",
        load: |cluster, name| {
            let (interpreter, files) = python();
            load(cluster, name, &files, &[("bin/python3", &interpreter)]);
        },
    },
];

impl Named {
    /// Gives it to the node that tests share, unless it has it.
    pub fn ensure(&'static self, cluster: &Cluster) {
        static LOADED: Mutex<Vec<&str>> = Mutex::new(vec![]);
        let mut loaded = LOADED.lock().expect("no loading has failed");
        if !loaded.contains(&self.name) {
            (self.load)(cluster, self.name);
            loaded.push(self.name);
        }
    }
}

/// Files by their paths in the image, without the first slash, and on this machine.
type Files = Vec<(String, PathBuf)>;

fn load(cluster: &Cluster, name: &str, files: &[(String, PathBuf)], links: &[(&str, &str)]) {
    let files: Vec<_> = files
        .iter()
        .map(|(path, file)| (path, fs::read(file).expect("a file")))
        .collect();
    let programs = files
        .iter()
        .map(|(path, bytes)| Entry::Program(path, bytes));
    let links = links.iter().map(|(path, target)| Entry::Link(path, target));
    let image = Image {
        name,
        entries: &programs.chain(links).collect::<Vec<_>>(),
        entrypoint: &[],
        user: "65532:65532",
    };
    cluster.load_made(&image).expect("the node takes it");
}

/// A file under the same path.
fn as_it_is(path: &str) -> (String, PathBuf) {
    (path.trim_start_matches('/').to_owned(), path.into())
}

/// The shared libraries that programs and libraries need, and the loader's list of where they are.
fn libraries(programs: &[String]) -> Files {
    let output = Command::new("ldd").args(programs).output();
    let output = output.expect("ldd runs: it comes with the C library");
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut found: Vec<_> = words
        .lines()
        // What is asked for has a line of its own, which ends with a colon.
        .filter(|line| line.ends_with(')'))
        .flat_map(str::split_whitespace)
        .filter(|word| word.starts_with('/'))
        .chain(
            Path::new("/etc/ld.so.cache")
                .exists()
                .then_some("/etc/ld.so.cache"),
        )
        .map(as_it_is)
        .collect();
    found.sort();
    found.dedup();
    found
}

/// `examples/leader.rs` in the profile of this test, so that what it needs is built already. People link it statically.
fn rust_leader() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let profile = built.parent().expect("a folder");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo
        // Of the whole workspace, as the tests are: other features would be another build of all.
        .args(["build", "--quiet", "--workspace", "--all-features"])
        .args(["--example", "leader"])
        .current_dir(xtask::repository())
        .stdin(Stdio::null());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo runs").success());
    profile.join("examples/leader")
}

/// This machine's Python: its interpreter's path, and what of it the example uses.
fn python() -> (String, Files) {
    const ASK: &str = "
import glob, os, runpy, site, sys
runpy.run_path(sys.argv[1])
'x'.encode('idna')
files = [getattr(module, '__file__', None) for module in list(sys.modules.values())]
files += glob.glob(os.path.dirname(sys.modules['encodings'].__file__) + '/*.py') + [os.__file__]
print(os.path.realpath(getattr(sys, '_base_executable', sys.executable)))
print('\\n'.join(sorted({file for file in files if file and file.startswith(sys.base_prefix + '/lib')})))
";
    let example = xtask::repository().join("examples/leader-python/leader.py");
    let output = Command::new("python3")
        .args(["-I", "-S", "-B", "-c", ASK])
        .arg(example)
        .output()
        .expect("python3 runs");
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{says}");
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths: Vec<_> = words.lines().map(str::to_owned).collect();
    // The first one is the interpreter.
    let linked: Vec<_> = paths
        .iter()
        .enumerate()
        .filter(|(at, path)| *at == 0 || path.contains(".so"))
        .map(|(_, path)| path.clone())
        .collect();
    let mut files: Files = paths.iter().map(|path| as_it_is(path)).collect();
    files.extend(libraries(&linked));
    (paths[0].clone(), files)
}
