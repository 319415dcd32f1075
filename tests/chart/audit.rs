//! What the operator asks for, and by which role it may: the API server's own audit log tells.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use xtask::cluster::Options;

use super::release::Own;

/// The operator's account, in a release with the names of all tests.
pub const OPERATOR: &str = "system:serviceaccount:leasehold:leasehold";

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    pub verb: String,
    pub group: String,
    /// With the subresource: `distributedlocks/status`.
    pub resource: String,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}.{}", self.verb, self.resource, self.group)
    }
}

/// A request of the operator, as the server's audit log has it.
pub struct Request {
    pub permission: Permission,
    pub name: String,
    pub code: i64,
    /// `RBAC: allowed by RoleBinding "…" of Role "…" to …`
    pub reason: String,
}

/// Options of a server that notes what service accounts of the release's namespace ask for.
pub fn audited(folder: &Path) -> Options {
    let policy = folder.join("audit.yaml");
    let rules = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [OPERATOR]}, {"level": "None"}],
    });
    std::fs::write(&policy, rules.to_string()).expect("the policy can be written");
    Options {
        apiserver_args: vec![
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log_in(folder).display()),
        ],
        ..Options::default()
    }
}

fn log_in(folder: &Path) -> PathBuf {
    folder.join("audit.log")
}

/// What the operator asked for so far.
pub fn requests(own: &Own) -> Vec<Request> {
    let text = std::fs::read_to_string(log_in(&own.file(""))).unwrap_or_default();
    // The last line may not be whole yet.
    let events = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let requests = events.filter_map(|event| {
        let object = event["objectRef"].as_object()?;
        let text = |name: &str| {
            object
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let resource = match text("subresource") {
            none if none.is_empty() => text("resource"),
            sub => format!("{}/{sub}", text("resource")),
        };
        Some(Request {
            permission: Permission {
                verb: event["verb"].as_str()?.to_owned(),
                group: text("apiGroup"),
                resource,
            },
            name: text("name"),
            code: event["responseStatus"]["code"].as_i64()?,
            reason: event["annotations"]["authorization.k8s.io/reason"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        })
    });
    requests.collect()
}

pub fn refused(own: &Own) -> Vec<String> {
    let all = requests(own)
        .into_iter()
        .filter(|request| request.code == 403);
    all.map(|request| format!("{} {:?}", request.permission, request.name))
        .collect()
}
