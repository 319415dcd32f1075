//! Builds `hack/kstatus`, the library by which Flux judges objects.

use std::path::PathBuf;

use anyhow::Result;

use crate::gobuild::Build;

/// The program, from the cache; built now if it is not there.
pub fn ensure() -> Result<PathBuf> {
    let build = Build {
        name: "kstatus",
        module: "hack/kstatus",
        package: ".",
        link_flags: "",
        words: "Building kstatus (once; half a minute)",
    };
    build.ensure()
}
