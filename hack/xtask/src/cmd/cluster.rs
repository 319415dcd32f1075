//! `cargo xtask cluster up|down|env|list|image|load`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Subcommand;
use xtask::cluster::{Cluster, Options};
use xtask::node::image::{self, Stage};
use xtask::progress::elapsed;
use xtask::registry::{self, DEFAULT_NAME, parse_name};
use xtask::sbom;

#[derive(Subcommand)]
pub(crate) enum Args {
    /// Start a cluster that stays up; the first time its programs are built, which takes minutes
    Up {
        #[command(flatten)]
        which: Which,
        /// With a node, on which Pods run (needs root; packages it lacks are installed)
        #[arg(long)]
        node: bool,
    },
    /// End a cluster and delete its data
    Down(Which),
    /// Print what a shell needs to use a cluster: eval "$(cargo xtask cluster env)"
    Env(Which),
    /// List the clusters that are up on this machine without an engine
    List,
    /// Build the product's image from the Dockerfile, with Docker or buildah, and print its archive and its bill of
    /// materials
    Image {
        /// Run the Dockerfile's first stage too, which fetches a toolchain, instead of building with the cargo at hand
        #[arg(long)]
        whole: bool,
    },
    /// Give the node of a cluster an image, since it can pull none
    Load {
        #[command(flatten)]
        which: Which,
        /// The image's archive, of OCI's or of Docker's form
        archive: PathBuf,
    },
}

#[derive(clap::Args)]
pub(crate) struct Which {
    /// Which cluster
    #[arg(long, default_value = DEFAULT_NAME, value_parser = parse_name)]
    name: String,
    /// What runs it
    #[arg(long, value_enum, default_value_t = Provider::Local)]
    provider: Provider,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Provider {
    /// Programs of this machine, built from source
    Local,
    /// kind, in containers of Docker or Podman: always with a node
    Kind,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match args {
        Args::Up { which, .. } if which.is_kind() => return which.kind("up", &[]),
        Args::Down(which) if which.is_kind() => return which.kind("down", &[]),
        Args::Env(which) if which.is_kind() => return which.kind("env", &[]),
        Args::Load { which, archive } if which.is_kind() => {
            return which.kind("load", &[archive.as_os_str()]);
        }
        Args::Up { which, node } => up(&which.name, *node)?,
        Args::Down(Which { name, .. }) => {
            registry::down(name)?;
            eprintln!("Cluster {name:?} is down.");
        }
        Args::Env(which) => {
            let helm = xtask::helm::ensure()?;
            print!("{}", exports(&registry::find(&which.name)?, &helm));
        }
        Args::List => list()?,
        Args::Image { whole } => {
            let stage = if *whole { Stage::Own } else { Stage::Replaced };
            let archive = image::product(stage)?;
            let bill = archive.with_extension("cdx.json");
            fs::write(&bill, format!("{:#}\n", sbom::document(image::FEATURES)?))?;
            println!("{}\n{}", archive.display(), bill.display());
        }
        Args::Load { which, archive } => {
            for name in registry::find(&which.name)?.load(archive)? {
                println!("{name}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Which {
    fn is_kind(&self) -> bool {
        self.provider == Provider::Kind
    }

    /// Runs a script of `hack/kind`.
    fn kind(&self, verb: &str, more: &[&OsStr]) -> Result<ExitCode> {
        let script = xtask::repository().join(format!("hack/kind/{verb}.sh"));
        let status = Command::new(&script)
            .arg(&self.name)
            .args(more)
            .status()
            .with_context(|| format!("can't run {}", script.display()))?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(ExitCode::from(code.unwrap_or(1)))
    }
}

fn up(name: &str, node: bool) -> Result<()> {
    xtask::controlplane::Programs::ensure()?;
    xtask::helm::ensure()?;
    let started = Instant::now();
    let options = Options {
        node,
        ..Options::default()
    };
    let (cluster, fresh) = registry::up(name, &options)?;
    let option = if name == DEFAULT_NAME {
        String::new()
    } else {
        format!(" --name {name}")
    };
    if fresh {
        eprintln!(
            "Cluster {name:?} is up at {} after {}. Use it:",
            cluster.endpoint(),
            elapsed(started.elapsed())
        );
    } else {
        eprintln!(
            "Cluster {name:?} is already up at {}. Use it:",
            cluster.endpoint()
        );
    }
    eprintln!("  eval \"$(cargo xtask cluster env{option})\"");
    Ok(())
}

fn list() -> Result<()> {
    let entries = registry::list()?;
    if entries.is_empty() {
        eprintln!("No cluster is up.");
        return Ok(());
    }
    let width = entries
        .iter()
        .map(|entry| entry.name.len())
        .max()
        .unwrap_or(0)
        .max(4);
    println!("{:width$}  {:24}  {:8}  STATE", "NAME", "ENDPOINT", "PID");
    for entry in entries {
        let pid = entry.pid.map_or("-".to_owned(), |pid| pid.to_string());
        println!(
            "{:width$}  {:24}  {pid:8}  {}",
            entry.name, entry.endpoint, entry.state
        );
    }
    Ok(())
}

/// For `eval`: the shell keeps its own PATH, with kubectl and helm before it.
fn exports(cluster: &Cluster, helm: &Path) -> String {
    let kubeconfig = quote(&cluster.kubeconfig().to_string_lossy());
    let [programs, helm] = [cluster.programs(), helm.parent().unwrap_or(helm)]
        .map(|path| quote(&path.to_string_lossy()));
    format!("export KUBECONFIG={kubeconfig}\nexport PATH={programs}:{helm}:\"$PATH\"\n")
}

/// Quotes for POSIX shells.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_survive_a_shell() {
        assert_eq!(quote("/a b"), "'/a b'");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }
}
