//! Builds `hack/promql`, Prometheus' own parser.

use std::path::PathBuf;

use anyhow::Result;

use crate::gobuild::Build;

/// The program, from the cache; built now if it is not there.
pub fn ensure() -> Result<PathBuf> {
    let build = Build {
        name: "promql",
        module: "hack/promql",
        package: ".",
        link_flags: "",
        words: "Building the PromQL parser (once; half a minute)",
    };
    build.ensure()
}
