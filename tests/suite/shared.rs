//! What other test programs use of the suite: the real programs as processes, places with locks, and waiting.
#![allow(dead_code, reason = "the suite uses all of it, the others parts")]

#[path = "operator_place.rs"]
pub mod operator_place;
#[path = "operator_rig.rs"]
pub mod operator_rig;
#[path = "processes.rs"]
pub mod processes;
#[path = "proxy.rs"]
pub mod proxy;
#[path = "run_bench.rs"]
pub mod run_bench;
#[path = "run_process.rs"]
pub mod run_process;
#[path = "server.rs"]
pub mod server;

/// What [`operator_place`] asks of claims that it sees; the suite looks closer.
mod api_gitops {
    pub fn reads_right(_: &leasehold::api::LockClaim) {}
}
