//! What the index speaks of: keys of objects, watches, and how a state was learnt.

use std::fmt;

use kube::ResourceExt;

use crate::lease::store::{CLAIMS, LEASES, LOCKS};

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// The key of `name` in `namespace`.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The key of an object.
    #[must_use]
    pub fn of(object: &impl ResourceExt) -> Self {
        Self::new(&object.namespace().unwrap_or_default(), &object.name_any())
    }

    /// The key of another object of the same namespace.
    pub(super) fn sibling(&self, name: &str) -> Self {
        Self::new(&self.namespace, name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One watch: what it selects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    /// The kind of objects.
    pub kind: Kind,
    /// The namespace; `None` for all.
    pub namespace: Option<String>,
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Locks.
    Locks,
    /// Claims.
    Claims,
    /// Leases with the label `leasehold.dev/lock`.
    Leases,
    /// Leases with the label `leasehold.dev/shared-with`.
    SharedLeases,
    /// Pods, of which only the metadata is watched.
    Pods,
}

impl Kind {
    /// The word used in messages and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Locks => "distributedlocks",
            Kind::Claims => "lockclaims",
            Kind::Leases => "leases",
            Kind::SharedLeases => "shared leases",
            Kind::Pods => "pods",
        }
    }

    /// The resource as RBAC names it, with its group.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Kind::Locks => LOCKS,
            Kind::Claims => CLAIMS,
            Kind::Leases | Kind::SharedLeases => LEASES,
            Kind::Pods => "pods",
        }
    }
}

/// How a state of an object was learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An event of a watch.
    Event,
    /// A list that a watch began with.
    List,
    /// A read from the server, or the answer to a write of our own.
    Read,
}
