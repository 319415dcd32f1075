//! The product as people run it: installed with Helm, in Pods that a real kubelet runs.
//!
//! Tests share one node with one release of the chart in it, each in a namespace of its own; those that do something to
//! the node or to the release start a node of their own.
#![cfg(target_os = "linux")]

mod chart;
mod death;
mod examples;
mod examples_claims;
mod examples_images;
mod examples_leaders;
mod examples_works;
mod injection;
mod injection_loss;
mod node;
mod node_cases;
mod sidecar;
mod stage;

#[path = "../chart/lease_watch.rs"]
mod lease_watch;
#[allow(dead_code, reason = "shared with the tests of the chart")]
#[path = "../chart/release.rs"]
mod release;
#[allow(dead_code, reason = "shared with the tests of the chart")]
#[path = "../chart/render.rs"]
mod render;
#[path = "../suite/shared.rs"]
mod shared;

#[allow(unused_imports, reason = "each program uses some of it")]
use shared::{operator_place, operator_rig, processes, run_bench, server};
