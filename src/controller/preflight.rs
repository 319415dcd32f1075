//! What must be there before this replica may lead: definitions that keep every status field, and permissions.
//!
//! An old definition would drop new status fields in silence, and with them the tokens that must never fall; a missing
//! permission would show as an endless row of failures. Both are looked up and said in one clear message.

use std::fmt::Write as _;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};

use crate::api::{crds, names};
use crate::lease::store::chain;

/// How long one question may take.
const WITHIN: Duration = Duration::from_secs(5);

/// One thing that the operator must be allowed to do.
#[derive(Clone, Copy, Debug)]
struct Need {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
}

const fn need(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
) -> Need {
    Need {
        verb,
        group,
        resource,
        subresource,
    }
}

const LEASES: &str = "coordination.k8s.io";

/// In every namespace that is watched.
const NEEDS: &[Need] = &[
    // Watches, and the read before a silent holder is ended.
    need("get", names::GROUP, "distributedlocks", ""),
    need("list", names::GROUP, "distributedlocks", ""),
    need("watch", names::GROUP, "distributedlocks", ""),
    // The mirror.
    need("update", names::GROUP, "distributedlocks", "status"),
    // The queue, tickets, and claims that are over.
    need("get", names::GROUP, "lockclaims", ""),
    need("list", names::GROUP, "lockclaims", ""),
    need("watch", names::GROUP, "lockclaims", ""),
    need("delete", names::GROUP, "lockclaims", ""),
    need("update", names::GROUP, "lockclaims", "status"),
    // The locks themselves.
    need("get", LEASES, "leases", ""),
    need("list", LEASES, "leases", ""),
    need("watch", LEASES, "leases", ""),
    need("create", LEASES, "leases", ""),
    need("update", LEASES, "leases", ""),
    // Waiters whose Pods are gone, and holds that last with a Pod.
    need("get", "", "pods", ""),
    need("list", "", "pods", ""),
    need("watch", "", "pods", ""),
    // What happened to a lock, for people.
    need("create", "events.k8s.io", "events", ""),
];

/// In the operator's own namespace, for the Lease of the election, by its name where there is one to ask for.
const ELECTION_NEEDS: &[Need] = &[
    need("get", LEASES, "leases", ""),
    need("list", LEASES, "leases", ""),
    need("watch", LEASES, "leases", ""),
    need("create", LEASES, "leases", ""),
    need("update", LEASES, "leases", ""),
];

/// Of the whole cluster, for each of our definitions.
const READ_DEFINITION: Need = need(
    "get",
    "apiextensions.k8s.io",
    "customresourcedefinitions",
    "",
);

/// What is wrong with the definitions that the server has; `None` if nothing is.
pub async fn definitions(client: &Client) -> Option<String> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for wanted in crds() {
        let name = wanted.name_any();
        let served = match tokio::time::timeout(WITHIN, api.get_opt(&name)).await {
            Err(_) => {
                return Some(format!(
                    "no answer within {WITHIN:?} when reading the definition {name}"
                ));
            }
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
                return Some(format!(
                    "not allowed to get customresourcedefinitions.apiextensions.k8s.io {name:?}: it is read at the \
                     start and once a minute, to see that no status field would be dropped ({})",
                    status.message
                ));
            }
            Ok(Err(error)) => {
                return Some(format!(
                    "cannot read the definition {name}: {}",
                    chain(&error)
                ));
            }
            Ok(Ok(None)) => {
                return Some(format!(
                    "the definition {name} is not installed: {}",
                    names::HOW_TO_INSTALL
                ));
            }
            Ok(Ok(Some(served))) => served,
        };
        let dropped = dropped_fields(&wanted, &served);
        if !dropped.is_empty() {
            return Some(format!(
                "the installed definition {name} is older than this operator and would drop {}: {}",
                dropped.join(", "),
                names::HOW_TO_INSTALL
            ));
        }
    }
    None
}

/// The status fields of `wanted` that `served` would drop.
fn dropped_fields(
    wanted: &CustomResourceDefinition,
    served: &CustomResourceDefinition,
) -> Vec<String> {
    let status = |crd: &CustomResourceDefinition| {
        let version = crd
            .spec
            .versions
            .iter()
            .find(|version| version.name == names::VERSION && version.served)?;
        let schema = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
        schema.properties.as_ref()?.get("status").cloned()
    };
    let Some(wanted) = status(wanted) else {
        return vec![];
    };
    let mut dropped = vec![];
    match status(served) {
        None => dropped.push("status".to_owned()),
        Some(served) => compare(&wanted, &served, "status", &mut dropped),
    }
    dropped
}

fn compare(
    wanted: &JSONSchemaProps,
    served: &JSONSchemaProps,
    path: &str,
    dropped: &mut Vec<String>,
) {
    if served.x_kubernetes_preserve_unknown_fields == Some(true) {
        return;
    }
    for (name, wanted) in wanted.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        match served
            .properties
            .iter()
            .flatten()
            .find(|(other, _)| *other == name)
        {
            None => dropped.push(path),
            Some((_, served)) => compare(wanted, served, &path, dropped),
        }
    }
    if let (
        Some(JSONSchemaPropsOrArray::Schema(wanted)),
        Some(JSONSchemaPropsOrArray::Schema(served)),
    ) = (&wanted.items, &served.items)
    {
        compare(wanted, served, &format!("{path}[]"), dropped);
    }
}

/// Which permissions are missing, in words; empty if none is. Where the question itself is refused nothing is known,
/// and the calls will tell.
pub async fn missing_permissions(
    client: &Client,
    own: &str,
    election: &str,
    watched: &[String],
) -> Vec<String> {
    let everywhere = [String::new()];
    let places = if watched.is_empty() {
        &everywhere[..]
    } else {
        watched
    };
    let mut questions = vec![];
    let definitions: Vec<String> = crds().iter().map(ResourceExt::name_any).collect();
    questions.extend(
        definitions
            .iter()
            .map(|name| (READ_DEFINITION, None, name.as_str())),
    );
    for place in places {
        questions.extend(NEEDS.iter().map(|need| (*need, Some(place.as_str()), "")));
    }
    questions.extend(ELECTION_NEEDS.iter().map(|need| {
        // A create names nothing, as far as RBAC is concerned.
        let name = if need.verb == "create" { "" } else { election };
        (*need, Some(own), name)
    }));
    let mut missing = vec![];
    for (need, namespace, name) in questions {
        if is_allowed(client, need, namespace.unwrap_or_default(), name).await == Some(false) {
            let mut words = format!("not allowed to {} {}", need.verb, need.resource);
            if !need.group.is_empty() {
                let _ = write!(words, ".{}", need.group);
            }
            if !need.subresource.is_empty() {
                let _ = write!(words, "/{}", need.subresource);
            }
            if !name.is_empty() {
                let _ = write!(words, " {name:?}");
            }
            match namespace {
                None => {}
                Some("") => words.push_str(" in all namespaces"),
                Some(namespace) => {
                    let _ = write!(words, " in namespace {namespace:?}");
                }
            }
            missing.push(words);
        }
    }
    missing
}

async fn is_allowed(client: &Client, need: Need, namespace: &str, name: &str) -> Option<bool> {
    let Need {
        verb,
        group,
        resource,
        subresource,
    } = need;
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: some(verb),
                group: some(group),
                resource: some(resource),
                subresource: some(subresource),
                namespace: some(namespace),
                name: some(name),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let answer = tokio::time::timeout(WITHIN, api.create(&PostParams::default(), &review)).await;
    Some(answer.ok()?.ok()?.status?.allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_definition_that_would_drop_a_status_field_is_noticed() {
        for wanted in crds() {
            assert_eq!(dropped_fields(&wanted, &wanted), Vec::<String>::new());
            let mut older = wanted.clone();
            let version = older.spec.versions.first_mut().expect("a version");
            let schema = version
                .schema
                .as_mut()
                .and_then(|s| s.open_api_v3_schema.as_mut())
                .expect("a schema");
            let status = schema
                .properties
                .as_mut()
                .and_then(|p| p.get_mut("status"))
                .expect("a status");
            status
                .properties
                .as_mut()
                .expect("fields")
                .remove("fencingToken");
            assert_eq!(dropped_fields(&wanted, &older), ["status.fencingToken"]);
        }
    }
}
