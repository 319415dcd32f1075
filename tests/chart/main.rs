//! The Helm chart: what it renders, what its roles allow, and what becomes of locks when a release comes, changes and goes.
//!
//! Each topic has a control plane of its own: releases are about the whole cluster. A local process with the release's
//! service account stands in for the operator's Pod.
#![cfg(target_os = "linux")]

mod audit;
mod lease_watch;
mod lifecycle;
mod objects;
mod people;
mod rbac;
mod release;
mod render;
mod variants;

#[path = "../suite/shared.rs"]
mod shared;

#[allow(unused_imports, reason = "each program uses some of it")]
use shared::{operator_place, operator_rig, processes, proxy, run_bench, run_process, server};
