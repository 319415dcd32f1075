//! One file a chore: its arguments, and `run`.

use std::env;
use std::ffi::OsString;
use std::process::Command;

pub(crate) mod ci;
pub(crate) mod cluster;
pub(crate) mod demo;
pub(crate) mod generate;
pub(crate) mod test;

/// A cargo command at the root of the repository: the cargo that runs us, if one does.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(args).current_dir(xtask::repository());
    command
}

/// What follows the chore's name on the command line, word for word: clap would keep a `--` that is meant for others.
pub(crate) fn words_after(chore: &str) -> Vec<OsString> {
    env::args_os()
        .skip_while(|word| word != chore)
        .skip(1)
        .collect()
}
