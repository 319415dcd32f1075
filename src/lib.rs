//! Leasehold.

pub mod api;
pub mod clock;
