//! Builds Helm, at the version that `hack/helm` pins: nobody needs to have it installed.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

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
