//! Leasehold: distributed locks for Kubernetes that hold, and fence.

pub mod api;
pub mod client;
pub mod clock;
#[cfg(feature = "operator")]
pub mod controller;
pub mod engine;
pub mod fence;
#[cfg(feature = "operator")]
pub mod leader;
pub mod lease;
#[cfg(all(feature = "cli", target_os = "linux"))]
pub mod supervise;
