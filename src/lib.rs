//! Leasehold: distributed locks for Kubernetes that hold, and fence.

pub mod api;
pub mod client;
pub mod clock;
pub mod engine;
pub mod fence;
pub mod lease;
#[cfg(all(feature = "cli", target_os = "linux"))]
pub mod supervise;
