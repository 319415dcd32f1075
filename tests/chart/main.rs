//! The Helm chart: what it renders, what its roles allow, and what becomes of locks when a release comes, changes and goes.
//!
//! Each topic has a control plane of its own: releases are about the whole cluster. A local process with the release's
//! service account stands in for the operator's Pod.
#![cfg(target_os = "linux")]

mod lifecycle;
mod rbac;
mod release;
mod render;
mod variants;

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
