//! The operator's permissions: nothing is spare, nothing is missing.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{Api, DeleteParams, PostParams};
use leasehold::api::LockClaimSpec;
use serde_json::{Value, json};

use super::audit::{OPERATOR, Permission, Request, audited, refused, requests};
use super::operator_place::{fixed, with_pod};
use super::operator_rig::{LONG, Operator, Place, lasting};
use super::release::{LEASEHOLD, Own};
use super::render::{of_kind, render};
use super::server::within;

/// What rules allow, one by one.
fn permissions(rules: &[PolicyRule]) -> Vec<Permission> {
    let mut all = Vec::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                all.extend(rule.verbs.iter().map(|verb| Permission {
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                }));
            }
        }
    }
    all
}

/// The same rules without one permission.
fn without(rules: &[PolicyRule], dropped: &Permission) -> Vec<PolicyRule> {
    let has =
        |list: &Option<Vec<String>>, what: &String| list.iter().flatten().any(|one| one == what);
    let left = rules.iter().cloned().map(|mut rule| {
        if has(&rule.api_groups, &dropped.group) && has(&rule.resources, &dropped.resource) {
            rule.verbs.retain(|verb| *verb != dropped.verb);
        }
        rule
    });
    left.filter(|rule| !rule.verbs.is_empty()).collect()
}

/// New locks, a Fixed hold that ends and whose claim is deleted, a claim whose Pod is not there.
async fn ask_for_everything(place: &Place, round: u32) {
    let nobody = "00000000-0000-0000-0000-000000000000";
    // One that no earlier round has asked about.
    let gone = format!("gone-{round}");
    for (kind, spec) in [("fixed", fixed(1)), ("pod", with_pod(&gone, Some(nobody)))] {
        let name = format!("{kind}-{round}");
        place.make(&name, lasting(1)).await;
        let spec = LockClaimSpec {
            lock_name: name.clone(),
            ttl_seconds_after_finished: Some(0),
            ..spec
        };
        place.claim(&name, spec).await;
    }
}

/// The whole work of an operator, to its end.
async fn work_through(place: &Place, round: u32) {
    let silent = format!("silent-{round}");
    place.make_free(&silent, 2).await;
    // By a holder that never renews.
    place.take(&silent, "pod-3").await;
    ask_for_everything(place, round).await;
    place.claim_goes(&format!("fixed-{round}")).await;
    place
        .lease_is(&silent, "its silent holder is ended", |lease| {
            lease.record.is_free()
        })
        .await;
    place.event("Expired").await;
}

/// The rules that bindings give to the operator, each with the words by which the audit log names the binding.
fn roles(objects: &[Value]) -> Vec<(String, Vec<PolicyRule>)> {
    let mut all = Vec::new();
    for (kind, of) in [
        ("ClusterRoleBinding", "ClusterRole"),
        ("RoleBinding", "Role"),
    ] {
        for binding in of_kind(objects, kind) {
            let (name, namespace) = (
                &binding["metadata"]["name"],
                &binding["metadata"]["namespace"],
            );
            let is_meant = |role: &&&Value| {
                role["metadata"]["name"] == binding["roleRef"]["name"]
                    && role["metadata"]["namespace"] == *namespace
            };
            let candidates = of_kind(objects, of);
            let role = candidates.iter().find(is_meant).expect("the role");
            let name = name.as_str().expect("a name");
            let name = namespace.as_str().map_or_else(
                || name.to_owned(),
                |namespace| format!("{name}/{namespace}"),
            );
            let rules = serde_json::from_value(role["rules"].clone()).expect("rules");
            all.push((format!("allowed by {kind} {name:?} of {of} "), rules));
        }
    }
    all
}

/// What no request of the operator needed: each is a permission of a role, in words.
fn spare(own: &Own, roles: &[(String, Vec<PolicyRule>)]) -> Vec<String> {
    let asked: BTreeSet<(String, Permission)> = requests(own)
        .into_iter()
        .map(|r| (r.reason, r.permission))
        .collect();
    let mut spare = Vec::new();
    for (words, rules) in roles {
        let is_used = |permission: &Permission| {
            asked
                .iter()
                .any(|(reason, asked)| asked == permission && reason.contains(words.as_str()))
        };
        let unused = permissions(rules)
            .into_iter()
            .filter(|permission| !is_used(permission));
        spare.extend(unused.map(|permission| format!("{permission} by {words}")));
    }
    spare
}

async fn nothing_is_spare_or_missing(values: &Value, namespaces: &[&str]) {
    let own = Own::start_with(audited).await;
    for namespace in namespaces {
        own.make_namespace(namespace).await;
    }
    own.installed(&LEASEHOLD, values);
    let roles = roles(&render("leasehold", "leasehold", values));
    assert!(roles.len() >= 2, "{roles:?}");
    let operator = own.operator(&LEASEHOLD, "pod-1", &[]).await;
    operator.leads().await;
    // A second replica stands by.
    let second = own.operator(&LEASEHOLD, "pod-2", &[]).await;
    second
        .eventually("it stands by", async || second.log().contains("stands by"))
        .await;
    for namespace in namespaces {
        let place = Place::new(&own.client, namespace);
        work_through(&place, 1).await;
    }
    let began = tokio::time::timeout(LONG, async {
        while !spare(&own, &roles).is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(
        began.await.is_ok(),
        "nobody needs: {:#?}",
        spare(&own, &roles)
    );
    assert_eq!(
        refused(&own),
        Vec::<String>::new(),
        "the operator lacks a permission:\n{}",
        operator.log()
    );
    assert_eq!(
        operator.metric("leasehold_permissions_missing").await,
        Some(0.0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_roles_hold_what_the_operator_asks_for_and_no_more() {
    nothing_is_spare_or_missing(&json!({}), &["team-a"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roles_of_watched_namespaces_hold_what_the_operator_asks_for_and_no_more() {
    let values = json!({"watchNamespaces": ["team-a", "team-b"]});
    nothing_is_spare_or_missing(&values, &["team-a", "team-b"]).await;
}

/// Waits until the server's answer to this permission is `allowed`: it learns of changed roles by a watch.
async fn until_counts(own: &Own, permission: &Permission, on: &On<'_>, allowed: bool) {
    let (resource, sub) = permission
        .resource
        .split_once('/')
        .unwrap_or((&permission.resource, ""));
    let review = json!({"metadata": {}, "spec": {"user": OPERATOR, "resourceAttributes": {
        "verb": permission.verb, "group": permission.group, "resource": resource, "subresource": sub,
        "namespace": on.namespace, "name": on.name}}});
    let review: SubjectAccessReview = serde_json::from_value(review).expect("a review");
    let api = Api::<SubjectAccessReview>::all(own.client.clone());
    within(LONG, "a changed role counts", async {
        loop {
            let answer = api
                .create(&PostParams::default(), &review)
                .await
                .expect("an answer");
            if answer
                .status
                .is_some_and(|status| status.allowed == allowed)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A replica that starts without this permission is not ready, says so, and counts it, soon.
async fn is_named(own: &Own, permission: &Permission) {
    let unready = own.operator(&LEASEHOLD, "pod-4", &[]).await;
    let Permission { verb, resource, .. } = permission;
    let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let mut words = format!("not allowed to {verb} {resource}");
    if !permission.group.is_empty() {
        words = format!("{words}.{}", permission.group);
    }
    if !sub.is_empty() {
        words = format!("{words}/{sub}");
    }
    // A watch that is refused may name it before the permissions were asked for and counted.
    let named = async {
        loop {
            let named =
                matches!(unready.get("/readyz").await, Some((503, body)) if body.contains(&words));
            let counted = unready.metric("leasehold_permissions_missing").await;
            if named && counted >= Some(1.0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let soon = tokio::time::timeout(LONG, named).await;
    let says = unready.get("/readyz").await;
    assert!(soon.is_ok(), "{words}: {says:?}");
    assert_eq!(unready.metric("leasehold_leader").await, Some(0.0));
}

/// Which object a permission is about; all of the namespace where it has no name.
struct On<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// Whether the operator is refused this, from the request `known` on, before it takes long.
async fn is_refused(own: &Own, permission: &Permission, known: usize) -> bool {
    let refused = async {
        let is_it = |request: &Request| request.code == 403 && request.permission == *permission;
        while !requests(own)[known..].iter().any(is_it) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, refused).await.is_ok()
}

/// Starts one that leads, in an election of its own: those before it were killed.
async fn leader(own: &Own, round: u32) -> Operator {
    let id = format!("--leader-election-id=round-{round}");
    let operator = own.operator(&LEASEHOLD, "pod-1", &[&id]).await;
    operator.leads().await;
    operator
}

/// Each permission is taken away from an operator in the middle of its work (those of watches: before its start); then
/// something that it does is refused.
#[tokio::test(flavor = "multi_thread")]
async fn whichever_permission_is_taken_away_something_is_refused() {
    let own = Own::start_with(audited).await;
    own.make_namespace("team-a").await;
    // The roles alone count here.
    let values = json!({"admissionPolicies": "Off", "flowSchema": {"enabled": false}});
    own.installed(&LEASEHOLD, &values);
    let place = Place::new(&own.client, "team-a");
    let api = Api::<ClusterRole>::all(own.client.clone());
    let role = api.get("leasehold-operator").await.expect("the role");
    let whole = role.rules.expect("rules");
    let write = async |rules: Vec<PolicyRule>| {
        let mut role = api.get("leasehold-operator").await.expect("the role");
        role.rules = Some(rules);
        let create = PostParams::default();
        let written = api.replace("leasehold-operator", &create, &role).await;
        written.expect("it is written");
    };
    for (round, dropped) in (1_u32..).zip(permissions(&whole)) {
        let is_of_watches = matches!(dropped.verb.as_str(), "list" | "watch");
        let silent = format!("silent-{round}");
        let mut operator = None;
        if !is_of_watches {
            operator = Some(leader(&own, round).await);
            place.make_free(&silent, 2).await;
        }
        write(without(&whole, &dropped)).await;
        let on = On {
            namespace: "team-a",
            name: "",
        };
        until_counts(&own, &dropped, &on, false).await;
        let known = requests(&own).len();
        if is_of_watches {
            operator = Some(own.operator(&LEASEHOLD, "pod-1", &[]).await);
        } else {
            place.take(&silent, "pod-3").await;
            ask_for_everything(&place, round).await;
        }
        is_named(&own, &dropped).await;
        let seen = is_refused(&own, &dropped, known).await;
        let log = operator.as_ref().map_or_else(String::new, Operator::log);
        assert!(seen, "nobody needs to {dropped}\n{log}");
        drop(operator);
        write(whole.clone()).await;
        until_counts(&own, &dropped, &on, true).await;
    }
}

/// The one permission that is about the whole cluster wherever a release looks.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_not_read_the_definitions_is_not_ready_and_says_so() {
    let own = Own::start_with(audited).await;
    own.make_namespace("team-a").await;
    own.installed(&LEASEHOLD, &json!({"watchNamespaces": ["team-a"]}));
    let objects = render(
        "leasehold",
        "leasehold",
        &json!({"watchNamespaces": ["team-a"]}),
    );
    let roles = of_kind(&objects, "ClusterRole");
    let is_it = |role: &&&Value| {
        role["rules"]
            .to_string()
            .contains("customresourcedefinitions")
    };
    let role = roles.iter().find(is_it).expect("the role");
    let allowed: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone()).expect("rules");
    let permissions = permissions(&allowed);
    let [dropped] = &permissions[..] else {
        panic!("{permissions:?}");
    };
    let name = role["metadata"]["name"].as_str().expect("a name");
    let roles = Api::<ClusterRole>::all(own.client.clone());
    let deleted = roles.delete(name, &DeleteParams::default()).await;
    deleted.expect("it can be deleted");
    for definition in ["distributedlocks.leasehold.dev", "lockclaims.leasehold.dev"] {
        let on = On {
            namespace: "",
            name: definition,
        };
        until_counts(&own, dropped, &on, false).await;
    }
    is_named(&own, dropped).await;
}

/// Where a release looks after some namespaces, the role of its election is all that it may do in its own.
#[tokio::test(flavor = "multi_thread")]
async fn whichever_permission_of_the_election_is_taken_away_something_is_refused() {
    const LEASE: &str = "leasehold-operator";
    const ROLE: &str = "leasehold-operator-election";
    let own = Own::start_with(audited).await;
    own.make_namespace("team-a").await;
    let values = json!({"watchNamespaces": ["team-a"], "admissionPolicies": "Off", "flowSchema": {"enabled": false}});
    own.installed(&LEASEHOLD, &values);
    let namespace = LEASEHOLD.namespace;
    let leases = Api::<Lease>::namespaced(own.client.clone(), namespace);
    let api = Api::<Role>::namespaced(own.client.clone(), namespace);
    let whole = api.get(ROLE).await.expect("the role").rules;
    let whole = whole.expect("rules");
    let write = async |rules: Vec<PolicyRule>| {
        let mut role = api.get(ROLE).await.expect("the role");
        role.rules = Some(rules);
        let written = api.replace(ROLE, &PostParams::default(), &role).await;
        written.expect("it is written");
    };
    let replicas = [
        own.operator(&LEASEHOLD, "pod-1", &[]).await,
        own.operator(&LEASEHOLD, "pod-2", &[]).await,
    ];
    let permissions = permissions(&whole);
    assert_eq!(permissions.len(), 5, "{permissions:?}");
    for dropped in permissions {
        // Whoever is not ready yet does not stand for election.
        for replica in &replicas {
            replica.is_ready().await;
        }
        replicas[0]
            .eventually("one leads, the other stands by", async || {
                let mut leading = 0.0;
                for replica in &replicas {
                    let leads = replica.metric("leasehold_leader").await;
                    leading += leads.unwrap_or_default();
                }
                (leading - 1.0_f64).abs() < 0.1
            })
            .await;
        write(without(&whole, &dropped)).await;
        // RBAC can't tie a create to a name.
        let is_create = dropped.verb == "create";
        let name = if is_create { "" } else { LEASE };
        let on = On { namespace, name };
        until_counts(&own, &dropped, &on, false).await;
        let known = requests(&own).len();
        is_named(&own, &dropped).await;
        if is_create {
            let deleted = leases.delete(LEASE, &DeleteParams::default()).await;
            deleted.expect("it can be deleted");
        }
        // Only a new one begins to list and to watch, and it is not ready to.
        let begins = matches!(dropped.verb.as_str(), "list" | "watch");
        let refused = begins || is_refused(&own, &dropped, known).await;
        let logs = replicas.iter().map(Operator::log);
        let logs = logs.collect::<Vec<_>>().join("\n\n");
        assert!(refused, "nobody needs to {dropped}\n{logs}");
        write(whole.clone()).await;
        until_counts(&own, &dropped, &on, true).await;
    }
}
