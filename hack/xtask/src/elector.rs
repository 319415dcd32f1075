//! Builds `hack/elector`, a stock client-go leader elector.

use std::path::PathBuf;

use anyhow::Result;

use crate::gobuild::Build;

/// The program, from the cache; built now if it is not there.
pub fn ensure() -> Result<PathBuf> {
    let build = Build {
        name: "elector",
        module: "hack/elector",
        package: ".",
        link_flags: "",
        words: "Building the client-go elector (once; up to two minutes)",
    };
    build.ensure()
}
