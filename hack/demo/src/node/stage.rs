//! What must be up before the story can be told in Pods: images, a node, the ledger, and the chart's release.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use kube::Client;
use serde_json::json;
use xtask::cluster::{Cluster, Options};
use xtask::helm::{self, LEASEHOLD};
use xtask::node::oci::{Entry, Image};
use xtask::node::{self, image};
use xtask::postgres::Postgres;
use xtask::progress::Progress;

use crate::ledger::Address;
use crate::stage::connect;

/// The image of the contenders: `leasehold` with this program beside it.
pub(super) const IMAGE: &str = "localhost/nightly-billing:1";
/// Where this program is in it.
pub(super) const PROGRAM: &str = "/nightly-billing";

/// Everything that is up. It ends when this is dropped; a driver that is killed takes it along.
pub(crate) struct Stage {
    pub(super) client: Client,
    postgres: Postgres,
    pub(super) cluster: Cluster,
}

impl Stage {
    /// Builds what is missing, starts everything, and waits until it is ready.
    pub(crate) async fn set() -> Result<Self> {
        let product = image::product(image::Stage::Replaced)?;
        let progress = Progress::start("Starting a cluster with a node");
        let cluster = Cluster::start(&Options {
            node: true,
            ..Options::default()
        })?;
        progress.done(cluster.endpoint());
        let progress = Progress::start("Loading the images");
        cluster.load(&product)?;
        load_contender(&cluster)?;
        progress.done("");
        let progress = Progress::start("Starting PostgreSQL");
        let postgres = Postgres::start()?;
        cluster.let_pods_reach(postgres.port())?;
        progress.done("");
        let progress = Progress::start("Installing the chart");
        // Nobody hands over to a new replica here.
        let values = json!({"image": {"tag": "dev"}, "minReadySeconds": 0});
        helm::install(&cluster, &helm::chart(), &LEASEHOLD, &values, &["--wait"])?;
        let client = connect(&cluster.kubeconfig()).await?;
        progress.done("");
        Ok(Self {
            client,
            postgres,
            cluster,
        })
    }

    /// The way into the ledger of one telling.
    pub(super) fn ledger(&self, schema: &str) -> Address {
        Address {
            ledger_host: self.postgres.socket_dir().display().to_string(),
            ledger_port: self.postgres.port(),
            ledger_password: None,
            schema: schema.to_owned(),
        }
    }

    /// The same from inside a Pod, which is given the password otherwise.
    pub(super) fn ledger_for_pods(&self, schema: &str) -> Address {
        Address {
            ledger_host: node::ADDRESS.to_owned(),
            ..self.ledger(schema)
        }
    }

    /// What the ledger asks Pods for.
    pub(super) fn password(&self) -> &str {
        self.postgres.password()
    }

    /// The folder with the logs of all Pods.
    pub(super) fn logs(&self) -> PathBuf {
        self.cluster.dir().join("node/var/log/pods")
    }
}

/// Makes the contenders' image: the product's program, this one, and the libraries that this one was linked with.
fn load_contender(cluster: &Cluster) -> Result<()> {
    let this = std::env::current_exe().context("can't find this program")?;
    let leasehold = fs::read(image::program()?)?;
    let program = fs::read(&this).context("can't read this program")?;
    // In a program that is linked statically it finds none, and fails.
    let output = Command::new("ldd")
        .arg(&this)
        .output()
        .context("can't run ldd")?;
    let mut libraries = Vec::new();
    for path in libraries_of(&String::from_utf8_lossy(&output.stdout)) {
        let bytes = fs::read(&path).with_context(|| format!("can't read {path}"))?;
        libraries.push((path, bytes));
    }
    let mut entries = vec![
        Entry::Program("leasehold", &leasehold),
        Entry::Program(PROGRAM.trim_start_matches('/'), &program),
    ];
    entries.extend(
        libraries
            .iter()
            .map(|(path, bytes)| Entry::Program(path.trim_start_matches('/'), bytes)),
    );
    let image = Image {
        name: IMAGE,
        entries: &entries,
        entrypoint: &["/leasehold"],
        user: "65532:65532",
    };
    cluster.load_made(&image)
}

/// The files that `ldd` names.
fn libraries_of(words: &str) -> Vec<String> {
    words
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(ToOwned::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let words = "\tlinux-vdso.so.1 (0x7ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f00)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f01)\n";
        assert_eq!(
            libraries_of(words),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        assert!(libraries_of("\tstatically linked\n").is_empty());
    }
}
