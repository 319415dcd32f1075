//! Leasehold: distributed locks for Kubernetes that hold, and fence.
//!
//! A lock is a lease, kept in a `coordination.k8s.io/v1` Lease: a grant is one guarded write of it, by the process that
//! will keep it. Begin with [`client`], which takes, keeps and gives back locks; [`fence`] is for the resource that a
//! lock protects. An operator makes the Leases; the cluster needs the definitions in `crds/`.
//!
//! **Guarantee.** At most one process believes that it holds a lock, unless a grant was revoked or its Lease or lock
//! deleted; each grant has a fencing token higher than all before it. `docs/guarantees.md` names the test of each
//! sentence.
//!
//! **Limits.** A process that is frozen past its deadline does not know it: only a resource that checks tokens can
//! refuse it. With the API server unreachable nothing is granted, and holders stop.
//!
//! # Features
//!
//! None is on by default: the library alone has neither the operator's nor the command line's dependencies.
//!
//! - `fence-postgres`: the gate that keeps its tokens in `PostgreSQL`.
//! - `operator`: the operator (modules `controller` and `leader`).
//! - `cli`: the program `leasehold`: the operator, and what runs a command under a lock (module `supervise`).
//!
//! The library chooses neither the version of the API (`k8s-openapi/v1_37`) nor the TLS provider (`kube/ring`): the
//! program that uses it does.

#[cfg(feature = "operator")]
pub mod admin;
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
