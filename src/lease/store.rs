//! Guarded writes of Leases: each PUT carries the uid and the resourceVersion that were read (R1).
//!
//! A conflict, a missing object and a refusal are values, not errors. A write that was not answered is
//! [`Put::Unknown`]: it may have been applied, and may still be. The client given to a [`LeaseStore`] must not retry by
//! itself (`Config::default_retry` off): a retried PUT turns "applied" into a plain conflict.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ObjectMeta, TypeMeta};
use serde_json::json;

use super::wire::{FoundLease, lease_resource, new_spec};
use crate::api::names;
use crate::engine::{Answer, LeaseRecord, SpecRecord};

/// Locks, as RBAC names them.
pub const LOCKS: &str = "distributedlocks.leasehold.dev";
/// Claims, as RBAC names them.
pub const CLAIMS: &str = "lockclaims.leasehold.dev";
/// Leases, as RBAC names them.
pub const LEASES: &str = "leases.coordination.k8s.io";

/// What a call was about, for messages: a verb on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// get, list, watch, create, update, delete.
    pub verb: &'static str,
    /// The resource with its group, such as `leases.coordination.k8s.io`.
    pub resource: &'static str,
    /// The object, or the selection.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {} {:?} in namespace {:?}",
            self.verb, self.resource, self.name, self.namespace
        )
    }
}

/// Why a call got no useful answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// 401 or 403: RBAC or a policy forbids it.
    #[error("not allowed to {access}: {message}")]
    Forbidden {
        /// What was asked for.
        access: Access,
        /// The server's words.
        message: String,
    },
    /// Refused for another reason: 4xx.
    #[error("the server refused to {access}: {message}")]
    Refused {
        /// What was asked for.
        access: Access,
        /// The server's words.
        message: String,
    },
    /// No answer within the time given, or none that tells.
    #[error("cannot {access}: {message}")]
    Unreachable {
        /// What was asked for.
        access: Access,
        /// What went wrong.
        message: String,
        /// For how long the server asked not to be asked again; zero where it did not.
        retry_after_seconds: u32,
    },
}

/// The answer of a server that is too busy (429, 503), and says when to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server is too busy (code {code}), and asks to come back after {after:?}")]
pub struct TooBusy {
    /// Its code.
    pub code: u16,
    /// How long to stay away.
    pub after: Duration,
}

impl TooBusy {
    /// Whether the error is such an answer.
    #[must_use]
    pub fn of(error: &kube::Error) -> Option<&Self> {
        match error {
            kube::Error::Service(error) => error.downcast_ref(),
            _ => None,
        }
    }
}

impl StoreError {
    /// Sorts a client error by what it says about the call. A 404 and a 409 of reads are refusals.
    #[must_use]
    pub fn of(access: Access, error: &kube::Error) -> Self {
        if let Some(busy) = TooBusy::of(error) {
            return Self::Unreachable {
                access,
                message: busy.to_string(),
                retry_after_seconds: u32::try_from(busy.after.as_secs()).unwrap_or(u32::MAX),
            };
        }
        match error {
            kube::Error::Api(status) if status.code == 401 => Self::Forbidden {
                access,
                message: format!(
                    "the server does not accept the credentials, which are wrong or have expired ({})",
                    status.message
                ),
            },
            kube::Error::Api(status) if status.code == 403 => Self::Forbidden {
                access,
                message: status.message.clone(),
            },
            kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429 => {
                Self::Refused {
                    access,
                    message: status.message.clone(),
                }
            }
            _ => Self::unanswered(access, chain(error)),
        }
    }

    /// No answer within the time given.
    #[must_use]
    pub fn timed_out(access: Access, within: Duration) -> Self {
        Self::unanswered(access, format!("no answer within {within:?}"))
    }

    /// No answer that tells.
    #[must_use]
    pub fn unanswered(access: Access, message: impl Into<String>) -> Self {
        Self::Unreachable {
            access,
            message: message.into(),
            retry_after_seconds: 0,
        }
    }

    /// What the call was about.
    #[must_use]
    pub fn access(&self) -> &Access {
        match self {
            Self::Forbidden { access, .. }
            | Self::Refused { access, .. }
            | Self::Unreachable { access, .. } => access,
        }
    }

    /// For how long the server asked not to be asked again; zero where it did not.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        let seconds = match self {
            Self::Unreachable {
                retry_after_seconds,
                ..
            } => *retry_after_seconds,
            Self::Forbidden { .. } | Self::Refused { .. } => 0,
        };
        Duration::from_secs(u64::from(seconds))
    }
}

/// An error with its causes, since the outermost often says only "service error".
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}

/// How a guarded write ended.
#[derive(Debug)]
pub enum Put {
    /// 2xx, with what is there now.
    Applied(Box<FoundLease>),
    /// 409: somebody else wrote first, or the Lease is another one by now, or it is our own earlier write.
    Conflict,
    /// 404: the Lease is gone.
    Gone,
    /// 401 or 403.
    Forbidden(StoreError),
    /// Another 4xx.
    Refused(StoreError),
    /// Not known: it may have been applied, or be applied later.
    Unknown(StoreError),
}

impl Put {
    /// Whether the server was there, and the write changed nothing of `found`, as far as the answer tells: one that is
    /// repeated is refused again, unless the Lease has changed.
    #[must_use]
    pub fn is_turned_down(&self, found: &FoundLease) -> bool {
        match self {
            Put::Conflict | Put::Gone => true,
            Put::Applied(now) => now.record.resource_version == found.record.resource_version,
            Put::Forbidden(_) | Put::Refused(_) | Put::Unknown(_) => false,
        }
    }

    /// What the rules need to know of it.
    #[must_use]
    pub fn answer(&self) -> Answer {
        match self {
            Put::Applied(found) => Answer::Applied(found.record.clone()),
            Put::Conflict | Put::Gone | Put::Forbidden(_) | Put::Refused(_) => Answer::Refused,
            Put::Unknown(_) => Answer::Unknown,
        }
    }
}

/// A Lease to be made.
#[derive(Clone, Debug)]
pub struct NewLease<'a> {
    /// Its name.
    pub name: &'a str,
    /// The lock, for the label; `None` for the operator's own election.
    pub lock: Option<&'a str>,
    /// The lock, as the owner; `None` for an adopted Lease.
    pub owner: Option<OwnerReference>,
    /// For a Lease shared with another client: its label.
    pub shared_with: Option<&'a str>,
    /// Its spec.
    pub spec: &'a SpecRecord,
}

/// The Leases of one namespace.
#[derive(Clone)]
pub struct LeaseStore {
    leases: Api<DynamicObject>,
    namespace: String,
}

impl LeaseStore {
    /// The Leases of `namespace`, through `client`, which must not retry by itself.
    #[must_use]
    pub fn new(client: kube::Client, namespace: &str) -> Self {
        let leases = Api::namespaced_with(client, namespace, &lease_resource());
        Self {
            leases,
            namespace: namespace.to_owned(),
        }
    }

    /// The typed door, for watches.
    #[must_use]
    pub fn api(&self) -> &Api<DynamicObject> {
        &self.leases
    }

    /// Reads a Lease from the quorum; `None` if there is none.
    pub async fn get(
        &self,
        name: &str,
        within: Duration,
    ) -> Result<Option<FoundLease>, StoreError> {
        let access = self.access("get", name);
        match tokio::time::timeout(within, self.leases.get_opt(name)).await {
            Err(_) => Err(StoreError::timed_out(access, within)),
            Ok(Err(error)) => Err(StoreError::of(access, &error)),
            Ok(Ok(object)) => Ok(object.and_then(FoundLease::read)),
        }
    }

    /// Puts `record` in place of `found` if nothing else did so before.
    pub async fn put(
        &self,
        name: &str,
        found: &FoundLease,
        record: &LeaseRecord,
        within: Duration,
    ) -> Put {
        let access = self.access("update", name);
        let object = found.with(record);
        let params = PostParams::default();
        match tokio::time::timeout(within, self.leases.replace(name, &params, &object)).await {
            Err(_) => Put::Unknown(StoreError::timed_out(access, within)),
            Ok(Ok(object)) => FoundLease::read(object).map_or_else(
                || {
                    Put::Unknown(StoreError::unanswered(
                        self.access("update", name),
                        "the answer has no uid or resourceVersion",
                    ))
                },
                |found| Put::Applied(Box::new(found)),
            ),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Put::Conflict,
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Put::Gone,
            Ok(Err(error)) => match StoreError::of(access, &error) {
                error @ StoreError::Forbidden { .. } => Put::Forbidden(error),
                error @ StoreError::Refused { .. } => Put::Refused(error),
                error @ StoreError::Unreachable { .. } => Put::Unknown(error),
            },
        }
    }

    /// Makes a Lease. `Ok(None)` if there is one of this name already. A create can't be guarded, so what is made
    /// must not look free unless nobody relies on it.
    pub async fn create(
        &self,
        new: &NewLease<'_>,
        within: Duration,
    ) -> Result<Option<FoundLease>, StoreError> {
        let NewLease {
            name,
            lock,
            owner,
            shared_with,
            spec,
        } = new;
        let access = self.access("create", name);
        let labels = [
            (names::LABEL_LOCK, lock),
            (names::LABEL_SHARED_WITH, shared_with),
        ];
        let labels: std::collections::BTreeMap<_, _> = labels
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), (*value)?.to_owned())))
            .collect();
        let object = DynamicObject {
            types: Some(TypeMeta {
                api_version: "coordination.k8s.io/v1".to_owned(),
                kind: "Lease".to_owned(),
            }),
            metadata: ObjectMeta {
                name: Some((*name).to_owned()),
                namespace: Some(self.namespace.clone()),
                labels: Some(labels).filter(|labels| !labels.is_empty()),
                owner_references: owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: json!({ "spec": new_spec(spec) }),
        };
        match tokio::time::timeout(within, self.leases.create(&PostParams::default(), &object))
            .await
        {
            Err(_) => Err(StoreError::timed_out(access, within)),
            Ok(Ok(object)) => Ok(FoundLease::read(object)),
            Ok(Err(kube::Error::Api(status)))
                if status.code == 409 && status.reason == "AlreadyExists" =>
            {
                Ok(None)
            }
            Ok(Err(error)) => Err(StoreError::of(access, &error)),
        }
    }

    fn access(&self, verb: &'static str, name: &str) -> Access {
        Access {
            verb,
            resource: LEASES,
            name: name.to_owned(),
            namespace: self.namespace.clone(),
        }
    }
}
