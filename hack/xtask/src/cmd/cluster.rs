//! `cargo xtask cluster up|down|env|list`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Subcommand;
use xtask::cluster::Cluster;
use xtask::progress::elapsed;
use xtask::registry::{self, DEFAULT_NAME, parse_name};

#[derive(Subcommand)]
pub(crate) enum Args {
    /// Start a cluster that stays up; the first time its programs are built, which takes minutes
    Up(Name),
    /// End a cluster and delete its data
    Down(Name),
    /// Print what a shell needs to use a cluster: eval "$(cargo xtask cluster env)"
    Env(Name),
    /// List the clusters
    List,
}

#[derive(clap::Args)]
pub(crate) struct Name {
    /// Which cluster
    #[arg(long, default_value = DEFAULT_NAME, value_parser = parse_name)]
    name: String,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match args {
        Args::Up(Name { name }) => up(name)?,
        Args::Down(Name { name }) => {
            registry::down(name)?;
            eprintln!("Cluster {name:?} is down.");
        }
        Args::Env(Name { name }) => {
            let helm = xtask::helm::ensure()?;
            print!("{}", exports(&registry::find(name)?, &helm));
        }
        Args::List => list()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn up(name: &str) -> Result<()> {
    xtask::controlplane::Programs::ensure()?;
    xtask::helm::ensure()?;
    let started = Instant::now();
    let (cluster, fresh) = registry::up(name)?;
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
