//! What Leasehold's chores, tests and demo share: real servers on loopback, without a container engine.
//!
//! - [`controlplane`] builds etcd, kube-apiserver, kube-controller-manager and kubectl from Go modules, once.
//! - [`cluster`] starts them, each cluster with certificates and ports of its own.
//! - [`helm`], [`elector`], [`kstatus`] and [`promql`] build a program each from a Go module of their own.
//! - [`node`] adds a real node to a cluster, and [`node::image`] builds the product's image.
//! - [`postgres`] starts a private `PostgreSQL` from the system's packages.
//!
//! Whatever is started ends with the process that started it, in whatever way that ends: see [`supervisor`]. The one
//! exception is [`registry`], which keeps named clusters up until they are taken down.

pub mod apt;
pub mod cache;
pub mod cargo;
pub mod cluster;
pub mod controlplane;
pub mod elector;
pub mod folder;
pub mod gobuild;
pub mod golang;
pub mod helm;
pub mod kstatus;
pub mod node;
pub mod pki;
pub mod ports;
pub mod postgres;
pub mod progress;
pub mod promql;
pub mod registry;
pub mod sbom;
pub mod supervisor;

use std::path::{Path, PathBuf};

/// The root of this repository.
///
/// # Panics
///
/// Never: this crate lies two folders deep.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("hack/xtask lies two folders deep")
        .to_path_buf()
}
