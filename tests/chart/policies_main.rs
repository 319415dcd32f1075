//! The chart's policies: what they refuse, and that they let through what our own programs do.
#![cfg(target_os = "linux")]

mod policies;
mod policies_attempts;
mod policies_flood;
mod policies_injection;
mod policies_modes;
mod policies_stage;
mod policies_work;
mod render;

#[allow(dead_code, reason = "shared with the suite, which uses all of it")]
#[path = "../suite/operator_place.rs"]
mod operator_place;
#[allow(dead_code, reason = "shared with the suite, which uses all of it")]
#[path = "../suite/operator_rig.rs"]
mod operator_rig;
#[allow(dead_code, reason = "shared with the suite, which uses all of it")]
#[path = "../suite/processes.rs"]
mod processes;
#[allow(dead_code, reason = "shared with the suite, which uses all of it")]
#[path = "../suite/proxy.rs"]
mod proxy;
#[allow(dead_code, reason = "shared with the suite, which uses all of it")]
#[path = "../suite/run_bench.rs"]
mod run_bench;
#[allow(dead_code, reason = "shared with the suite, which uses all of it")]
#[path = "../suite/run_process.rs"]
mod run_process;
#[allow(dead_code, reason = "shared with the suite, which uses all of it")]
#[path = "../suite/server.rs"]
mod server;

/// What [`operator_place`] asks of claims that it sees; the suite looks closer.
mod api_gitops {
    pub fn reads_right(_: &leasehold::api::LockClaim) {}
}
