//! Leasehold.

pub mod clock;
