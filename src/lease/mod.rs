//! Leases on the server: what they say ([`wire`]), guarded writes ([`store`]), and locks and claims as the rules see
//! them ([`view`]). The shell around [`crate::engine`], shared by client and operator.

pub mod store;
pub mod view;
pub mod wire;

pub use store::{Access, LeaseStore, NewLease, Put, StoreError};
pub use wire::{FoundLease, lease_resource};
