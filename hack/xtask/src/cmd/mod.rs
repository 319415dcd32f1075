//! One file a chore: its arguments, and `run`.

pub(crate) mod cluster;
