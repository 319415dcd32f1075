//! One file a chore: its arguments, and `run`.

use std::env;
use std::ffi::OsString;

pub(crate) mod ci;
pub(crate) mod cluster;
pub(crate) mod demo;
pub(crate) mod generate;
pub(crate) mod test;

pub(crate) use xtask::cargo::cargo;

/// What follows the chore's name on the command line, word for word: clap would keep a `--` that is meant for others.
pub(crate) fn words_after(chore: &str) -> Vec<OsString> {
    env::args_os()
        .skip_while(|word| word != chore)
        .skip(1)
        .collect()
}
