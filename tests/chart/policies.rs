//! A hostile tenant: what it tries, and what the server answers.

use std::collections::BTreeMap;

use leasehold::api::{ClaimPhase, DistributedLockSpec, LockClaimSpec, names};
use leasehold::client::identity::{identity, random_uid};
use leasehold::engine::Grant;
use serde_json::json;

use super::operator_place::fixed;
use super::operator_rig::{Place, is_free, lasting};
use super::policies_attempts::attempts;
use super::policies_stage::{Actor, RELEASE, Stage, user_of};

/// What the user uses; the last three are the names of shared Leases.
const LOCKS: &[&str] = &[
    "held",
    "open",
    "fixed",
    "shared",
    "theirs-lock",
    "lost",
    "ours",
    "theirs",
    "unstamped",
];

/// The tenants: `mallory` may write every object of the namespace but has none of the verbs of locks; `a`, `b` and `c`
/// are Pods of one account that uses the locks, `nobody` is that account outside of any Pod; `oncall` revokes; `maker`
/// makes locks and may touch no Lease.
async fn tenants(stage: &Stage) -> BTreeMap<&'static str, Actor> {
    let everything = json!([
        {"apiGroups": ["leasehold.dev"], "resources": ["distributedlocks", "lockclaims"], "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]},
        {"apiGroups": ["leasehold.dev"], "resources": ["distributedlocks/status", "lockclaims/status"], "verbs": ["update", "patch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]},
    ]);
    let mut revoking = everything.clone();
    revoking[0]["verbs"]
        .as_array_mut()
        .expect("verbs")
        .push(json!("revoke"));
    let mut user = user_of(LOCKS, &["use"]);
    // Patches are how this test writes; the programs do not.
    user[1]["verbs"]
        .as_array_mut()
        .expect("verbs")
        .push(json!("patch"));
    user[2]["verbs"]
        .as_array_mut()
        .expect("verbs")
        .extend([json!("patch"), json!("update")]);
    stage.account("mallory", &everything);
    stage.account("oncall", &revoking);
    stage.account("user", &user);
    stage.account("maker", &json!([{"apiGroups": ["leasehold.dev"], "resources": ["distributedlocks"], "verbs": ["create"]}]));
    stage.loosen_operator();
    BTreeMap::from([
        ("mallory", stage.pod("mallory", "mallory").await),
        ("a", stage.pod("a", "user").await),
        ("b", stage.pod("b", "user").await),
        ("c", stage.pod("c", "user").await),
        ("nobody", stage.person("user").await),
        ("oncall", stage.person("oncall").await),
        ("maker", stage.person("maker").await),
        ("operator", stage.person(RELEASE).await),
        ("admin", stage.admin()),
    ])
}

/// Held by Pod a with b in the queue, open, held for a number of seconds, shared with a foreign holder, shared and held.
async fn scene(stage: &Stage, actors: &BTreeMap<&str, Actor>) {
    let place = stage.place();
    let user = |name: &str| stage.place_of(&actors[name]);
    place
        .make_lease("other", &json!({}), &json!({"holderIdentity": "other"}))
        .await;
    // Leases that no operator looks at: their locks are not there.
    for (name, label, holder) in [
        ("lost", names::LABEL_LOCK, names::HOLDER_MISSING),
        ("unstamped", names::LABEL_SHARED_WITH, "elector-1_ab"),
    ] {
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 3600});
        place.make_lease(name, &json!({label: "lost"}), &spec).await;
    }
    place.make_free("held", 600).await;
    place.make_free("open", 15).await;
    place.make_free("fixed", 15).await;
    let held = hold(&user("a"), "held", &actors["a"]).await;
    user("b").queue_up("waits", "held").await;
    let seat = LockClaimSpec {
        lock_name: "fixed".to_owned(),
        ..fixed(600)
    };
    user("b").claim("seat", seat).await;
    place.is_named("held", "waits").await;
    place.claim_in("seat", ClaimPhase::Granted).await;

    for (lease, lock, holder) in [
        ("theirs", "theirs-lock", "elector-1_ab"),
        ("ours", "shared", ""),
    ] {
        let consent = json!({names::LABEL_SHARED_WITH: lock});
        let spec =
            json!({"holderIdentity": holder, "leaseDurationSeconds": 3600, "leaseTransitions": 3});
        place.make_lease(lease, &consent, &spec).await;
        let sharing = DistributedLockSpec {
            lease_name: Some(lease.to_owned()),
            ..lasting(600)
        };
        place.make(lock, sharing).await;
    }
    place
        .lock_is("theirs-lock", "the foreign holder is shown", |lock| {
            lock.slot_token(0).is_some_and(|token| token.get() > 0)
        })
        .await;
    place.lock_is("shared", "it is free", is_free).await;
    let shared = hold(&user("a"), "shared", &actors["a"]).await;
    place.is_shown("held", &held).await;
    place.is_shown("shared", &shared).await;
}

/// Takes a lock from within the Pod, as a holder that will not renew.
async fn hold(place: &Place, lock: &str, actor: &Actor) -> Grant {
    let identity = identity("a", &random_uid());
    place.take_in(lock, 0, identity, actor.pod.clone()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_tenant_is_refused_with_words_that_say_what_to_do() {
    let stage = Stage::new(&json!({})).await;
    let actors = tenants(&stage).await;
    let operator = stage.operator().await;
    scene(&stage, &actors).await;
    let attempts = attempts(include_str!("policies_attempts.yaml"));
    let mut wrong = vec![];
    for attempt in &attempts {
        wrong.extend(attempt.goes_wrong(&stage, &actors).await);
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        attempts.len(),
        wrong.join("\n")
    );
    drop(operator);
    stage.bench.finish().await;
}
