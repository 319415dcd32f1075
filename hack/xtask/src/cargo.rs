//! Cargo, run by what cargo runs.

use std::env;
use std::process::Command;

/// A cargo command at the root of the repository: the cargo that runs us, if one does.
#[must_use]
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(args).current_dir(crate::repository());
    // The cargo that runs us describes our package there. The build script of ring begins anew when it sees these
    // change, and most of what we build stands on ring: chores and plain cargo would undo each other's work.
    for (name, _) in env::vars_os() {
        let ours = name.to_str().is_some_and(is_of_our_package);
        if ours {
            command.env_remove(name);
        }
    }
    command
}

fn is_of_our_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}
