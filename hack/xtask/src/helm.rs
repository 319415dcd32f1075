//! Builds Helm, at the version that `hack/helm` pins, and installs releases with it: nobody needs to have it installed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::controlplane::required;
use crate::gobuild::Build;

const MODULE: &str = "helm.sh/helm/v4";

/// The program, from the cache; built now if it is not there.
pub fn ensure() -> Result<PathBuf> {
    let go_mod = fs::read_to_string(crate::repository().join("hack/helm/go.mod"))?;
    let version = required(&go_mod, MODULE).context("hack/helm/go.mod does not require Helm")?;
    let build = Build {
        name: "helm",
        module: "hack/helm",
        package: &format!("{MODULE}/cmd/helm"),
        // Without it, Helm tells the version of its branch only.
        link_flags: &format!("-X {MODULE}/internal/version.version={version}"),
        words: &format!("Building Helm {version} (once; about three minutes on 2 cores)"),
    };
    build.ensure()
}

/// A `helm` command that knows nothing of this machine's user.
pub fn command() -> Result<Command> {
    let mut command = Command::new(ensure()?);
    command.envs(homes());
    Ok(command)
}

/// The variables by which Helm finds nothing of this machine's user.
#[must_use]
pub fn homes() -> [(&'static str, PathBuf); 3] {
    let nowhere = std::env::temp_dir().join("leasehold-no-helm");
    ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"].map(|name| (name, nowhere.clone()))
}

/// The repository's chart.
#[must_use]
pub fn chart() -> PathBuf {
    crate::repository().join("charts/leasehold")
}

/// Where a release is, and what its objects are called.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// What Helm calls it.
    pub name: &'static str,
    /// Its namespace.
    pub namespace: &'static str,
    /// What the names of its objects begin with.
    pub full_name: &'static str,
}

/// The release of the README.
pub const LEASEHOLD: Release = Release {
    name: "leasehold",
    namespace: "leasehold",
    full_name: "leasehold",
};

/// Installs a release of a chart, or upgrades it, and returns its notes. The error is what Helm says.
pub fn install(
    cluster: &Cluster,
    chart: &Path,
    release: &Release,
    values: &Value,
    more: &[&str],
) -> Result<String> {
    let mut child = command()?
        .env("KUBECONFIG", cluster.kubeconfig())
        .args(["upgrade", "--install", "--create-namespace", release.name])
        .arg(chart)
        .args(["--namespace", release.namespace, "--values", "-"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("can't run helm")?;
    // One that fails at once reads nothing: its words say why.
    let _ = child
        .stdin
        .take()
        .map(|mut pipe| pipe.write_all(values.to_string().as_bytes()));
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{said}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(said)
}
