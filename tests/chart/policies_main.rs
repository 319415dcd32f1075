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

#[path = "../suite/shared.rs"]
mod shared;

#[allow(unused_imports, reason = "each program uses some of it")]
use shared::{operator_place, operator_rig, processes, proxy, run_bench, run_process, server};
