//! What the built-in roles for people may do, once the chart has added its own to them.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Api, PostParams};
use serde_json::json;

use super::operator_rig::LONG;
use super::release::{LEASEHOLD, Own};
use super::server::within;

/// Group and resource, verbs, and the least of the roles that has them; `None`: none has.
const TABLE: &[(&str, &str, &[&str], Option<&str>)] = &[
    (
        "leasehold.dev",
        "distributedlocks",
        &["get", "list", "watch"],
        Some("view"),
    ),
    (
        "leasehold.dev",
        "lockclaims",
        &["get", "list", "watch"],
        Some("view"),
    ),
    ("leasehold.dev", "distributedlocks", &["use"], Some("edit")),
    (
        "leasehold.dev",
        "lockclaims",
        &["create", "update", "patch", "delete"],
        Some("edit"),
    ),
    (
        "coordination.k8s.io",
        "leases",
        &["get", "list", "watch", "update"],
        Some("edit"),
    ),
    (
        "leasehold.dev",
        "distributedlocks",
        &["create", "update", "patch", "delete"],
        Some("admin"),
    ),
    (
        "leasehold.dev",
        "distributedlocks",
        &["deletecollection", "prioritize", "revoke"],
        Some("admin"),
    ),
    (
        "leasehold.dev",
        "lockclaims",
        &["deletecollection"],
        Some("admin"),
    ),
    (
        "leasehold.dev",
        "distributedlocks/status",
        &["update", "patch"],
        None,
    ),
    (
        "leasehold.dev",
        "lockclaims/status",
        &["update", "patch"],
        None,
    ),
];

/// Each has all that those before it have.
const ROLES: &[&str] = &["view", "edit", "admin"];

async fn bind(own: &Own, role: &str) {
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role}],
    }))
    .expect("a binding");
    let api = Api::<RoleBinding>::namespaced(own.client.clone(), "team-a");
    let made = api.create(&PostParams::default(), &binding).await;
    made.expect("it is made");
}

async fn may(
    own: &Own,
    user: &str,
    verb: &str,
    (group, resource): (&str, &str),
    namespace: &str,
) -> bool {
    let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let review: SubjectAccessReview = serde_json::from_value(json!({"metadata": {}, "spec": {
        "user": user, "resourceAttributes": {"verb": verb, "group": group, "resource": resource,
            "subresource": sub, "namespace": namespace}}}))
    .expect("a review");
    let api = Api::<SubjectAccessReview>::all(own.client.clone());
    let answer = api.create(&PostParams::default(), &review).await;
    answer
        .expect("an answer")
        .status
        .expect("an answer")
        .allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn view_edit_and_admin_each_allow_what_the_page_says_and_no_more() {
    let own = Own::start().await;
    own.make_namespace("team-a").await;
    own.installed(&LEASEHOLD, &json!({}));
    for role in ROLES {
        bind(&own, role).await;
    }
    // The last of each role that the aggregation adds.
    for role in ROLES {
        within(LONG, "the aggregated roles count", async {
            for (group, resource, verbs, least) in TABLE {
                for verb in verbs.iter().filter(|_| *least == Some(role)) {
                    while !may(&own, role, verb, (group, resource), "team-a").await {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        })
        .await;
    }
    let place = |role: &str| ROLES.iter().position(|one| *one == role);
    for role in ROLES {
        for (group, resource, verbs, least) in TABLE {
            for verb in *verbs {
                let meant = least.is_some_and(|least| place(least) <= place(role));
                let of = (*group, *resource);
                assert_eq!(
                    may(&own, role, verb, of, "team-a").await,
                    meant,
                    "{role}: {verb} {of:?}"
                );
                assert!(
                    !may(&own, role, verb, of, "default").await,
                    "{role} elsewhere: {verb} {of:?}"
                );
            }
        }
    }
}
