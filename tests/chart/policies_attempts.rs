//! Attempts to do what a policy forbids: as data, with the words that the refusal must contain.

use std::collections::BTreeMap;

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use leasehold::api::{LockClaim, LockClaimSpec, names};
use serde::Deserialize;
use serde_json::{Value, json};

use super::operator_rig::Place;
use super::policies_stage::{Actor, Stage, api, api_version};
use super::run_bench::{BUSY, until};

/// Who tries what, and what the refusal says.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    by: String,
    says: String,
    /// A merge patch of `KIND/NAME` or `KIND/NAME/status`.
    edit: Option<String>,
    #[serde(default)]
    patch: Value,
    /// A new object of this kind.
    make: Option<String>,
    #[serde(default)]
    object: Value,
    /// The deletion of `KIND/NAME`.
    delete: Option<String>,
    /// A take of this Lease, or a release, as our programs write it but for what `with` says.
    take: Option<String>,
    release: Option<String>,
    /// Whether it replaces a holder.
    #[serde(default)]
    over: bool,
    #[serde(default)]
    with: BTreeMap<String, Value>,
}

/// The attempts of a YAML text.
pub fn attempts(yaml: &str) -> Vec<Attempt> {
    serde_norway::from_str(yaml).expect("a list of attempts")
}

/// The words of an object that a patch may quote: `{uid}`, `{rv}`, `{count}`, `{holder}`, `{next}`, `{ended}` (a note that
/// ends the present grant, but for how, by and reason), `{me}`; `{rv+1}` and `{count+1}` count on.
struct Facts(BTreeMap<&'static str, String>);

impl Facts {
    fn of(object: &DynamicObject, actor: &Actor) -> Self {
        let spec = &object.data["spec"];
        let note = |name: &str| {
            let notes = object.metadata.annotations.as_ref();
            let note = notes.and_then(|notes| notes.get(&format!("leasehold.dev/{name}")));
            note.cloned().unwrap_or_default()
        };
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let rv = object.metadata.resource_version.clone().unwrap_or_default();
        let count = spec["leaseTransitions"].as_i64().unwrap_or(0);
        let grant = note("grant");
        let token = grant.split(';').nth(3).unwrap_or("0");
        let holder = spec["holderIdentity"].as_str().unwrap_or_default();
        Self(BTreeMap::from([
            ("{rv+1}", (rv.parse().unwrap_or(0) + 1).to_string()),
            ("{count+1}", (count + 1).to_string()),
            ("{ended}", format!("v1;{uid};{count};{token}")),
            ("{uid}", uid),
            ("{rv}", rv),
            ("{count}", count.to_string()),
            ("{holder}", holder.to_owned()),
            ("{next}", note("next")),
            ("{me}", actor.pod_text()),
        ]))
    }

    /// A string that is nothing but `#{…}` becomes a number.
    fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let mut text = text.clone();
                for (word, fact) in &self.0 {
                    text = text.replace(word, fact);
                }
                match text.strip_prefix('#').map(str::parse::<i64>) {
                    Some(Ok(number)) => json!(number),
                    _ => Value::String(text),
                }
            }
            Value::Object(fields) => {
                let filled = fields
                    .iter()
                    .map(|(key, value)| (key.clone(), self.fill(value)));
                Value::Object(filled.collect())
            }
            Value::Array(items) => items.iter().map(|item| self.fill(item)).collect(),
            other => other.clone(),
        }
    }
}

impl Attempt {
    /// What is wrong with how it was answered: it must be refused, with the words.
    pub async fn goes_wrong(
        &self,
        stage: &Stage,
        actors: &BTreeMap<&str, Actor>,
    ) -> Option<String> {
        let actor = &actors[self.by.as_str()];
        match self.refusal(stage, actor, false).await {
            Some(said) if said.contains(&self.says) => None,
            Some(said) => Some(format!("{self:?}\n  was answered: {said}")),
            None => Some(format!("{self:?}\n  went through")),
        }
    }

    /// Waits until it is refused with the words; nothing is written.
    pub async fn until_refused(&self, stage: &Stage, actor: &Actor) {
        until(&format!("{self:?} is refused"), BUSY, async || {
            let said = self.refusal(stage, actor, true).await;
            said.is_some_and(|said| said.contains(&self.says))
        })
        .await;
    }

    /// The words of the refusal; `None` if it went through.
    async fn refusal(&self, stage: &Stage, actor: &Actor, dry_run: bool) -> Option<String> {
        let done = if let Some(kind) = &self.make {
            self.make(stage, actor, kind, dry_run).await
        } else if let Some(path) = &self.delete {
            let (kind, name) = path.split_once('/').expect("KIND/NAME");
            let params = DeleteParams {
                dry_run,
                ..DeleteParams::background()
            };
            let api = stage.api(&actor.client, kind);
            api.delete(name, &params).await.map(drop)
        } else {
            self.edit(stage, actor, dry_run).await
        };
        match done {
            Ok(()) => None,
            Err(kube::Error::Api(status)) => Some(status.message.clone()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn make(
        &self,
        stage: &Stage,
        actor: &Actor,
        kind: &str,
        dry_run: bool,
    ) -> kube::Result<()> {
        let namespace = self.object["metadata"]["namespace"].as_str();
        let api = api(&actor.client, kind, namespace.unwrap_or(stage.namespace()));
        let mut object = self.object.clone();
        object["apiVersion"] = json!(api_version(kind));
        object["kind"] = json!(kind);
        let object = serde_json::from_value(object).expect("an object");
        let params = PostParams {
            dry_run,
            ..PostParams::default()
        };
        api.create(&params, &object).await.map(drop)
    }

    async fn edit(&self, stage: &Stage, actor: &Actor, dry_run: bool) -> kube::Result<()> {
        let (what, patch) = self.patch();
        let mut words = what.split('/');
        let (kind, name) = (words.next().expect("a kind"), words.next().expect("a name"));
        let admin: Api<DynamicObject> = stage.api(&stage.bench.client, kind);
        let now = admin.get(name).await.expect("it is there");
        let filled = Patch::Merge(Facts::of(&now, actor).fill(&patch));
        let params = PatchParams {
            dry_run,
            ..PatchParams::default()
        };
        let api = stage.api(&actor.client, kind);
        match words.next() {
            Some("status") => api.patch_status(name, &params, &filled).await.map(drop),
            _ => api.patch(name, &params, &filled).await.map(drop),
        }
    }

    /// What is edited, and how.
    fn patch(&self) -> (String, Value) {
        let (what, mut patch) = match (&self.edit, &self.take, &self.release) {
            (Some(what), ..) => (what.clone(), self.patch.clone()),
            (_, Some(lease), _) => (format!("Lease/{lease}"), taking(&self.by, self.over)),
            (_, _, Some(lease)) => (format!("Lease/{lease}"), releasing()),
            _ => panic!("nothing is tried: {self:?}"),
        };
        for (pointer, value) in &self.with {
            *patch.pointer_mut(pointer).expect("a field") = value.clone();
        }
        (what, patch)
    }
}

/// A take as the engine writes it.
fn taking(by: &str, over: bool) -> Value {
    let holder = format!("{by}/{by}-1");
    let ended =
        over.then(|| format!("{{ended}};Expired;{holder};its lease ended without a renewal"));
    json!({
        "metadata": {"annotations": {
            "leasehold.dev/grant": format!("v1;{{uid}};{{count+1}};{{rv+1}};Heartbeat;{{me}};{holder}"),
            "leasehold.dev/ended": ended,
            "leasehold.dev/next": null,
        }},
        "spec": {
            "holderIdentity": holder, "leaseTransitions": "#{count+1}", "leaseDurationSeconds": 15,
        },
    })
}

/// A release as the engine writes it.
fn releasing() -> Value {
    json!({
        "metadata": {"annotations": {
            "leasehold.dev/ended": "{ended};Released;{holder};done", "leasehold.dev/holder": null,
        }},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
    })
}

/// One attempt for each policy, told by its name.
const PROBES: &str = r#"
- {by: canary, edit: Lease/canary, patch: {metadata: {annotations: {x: y}}}, says: "-lease' with"}
- {by: canary, delete: Lease/canary, says: "-lease-made' with"}
- {by: canary, edit: Lease/canary-shared, patch: {metadata: {annotations: {leasehold.dev/next: a/b}}}, says: "-lease-shared' with"}
- {by: canary, make: LockClaim, object: {metadata: {name: c}, spec: {lockName: c, hold: {type: Heartbeat}}}, says: "-claim' with"}
- {by: admin, make: DistributedLock, object: {metadata: {name: c, namespace: kube-public}, spec: {}}, says: "-namespaces' with"}
- {by: canary, make: DistributedLock, object: {metadata: {name: c}, spec: {minFencingToken: 7}}, says: "-lock' with"}
- {by: operator, make: Lease, object: {metadata: {name: c}, spec: {}}, says: "-operator' with"}
- {by: admin, make: LockClaim, object: {metadata: {name: c, annotations: {leasehold.dev/created-by: x}}, spec: {lockName: c, hold: {type: Heartbeat}}}, says: "-claim' with"}
"#;

/// Leases on which to see whether policies count; made before there are any.
pub async fn make_canaries(stage: &Stage) {
    for (name, label) in [
        ("canary", "leasehold.dev/lock"),
        ("canary-shared", "leasehold.dev/shared-with"),
    ] {
        let spec = json!({"holderIdentity": "leasehold.dev/missing", "leaseDurationSeconds": 1});
        let labels = json!({label: "canary"});
        stage.place().make_lease(name, &labels, &spec).await;
    }
}

/// Waits until the server notes who makes a claim: it looks for new kinds every five seconds, and answers 503 until then.
pub async fn until_makers_are_noted(place: &Place) {
    let made = LockClaim::new("canary", LockClaimSpec::heartbeat("canary"));
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until("the maker is noted", BUSY, async || {
        let made = place.claims.create(&params, &made).await;
        let notes = made.ok().and_then(|made| made.metadata.annotations);
        notes.is_some_and(|notes| notes.contains_key(names::ANNOTATION_CREATED_BY))
    })
    .await;
}

/// Waits until every policy counts: the server learns of them one by one, within a second or two.
pub async fn until_policies_count(stage: &Stage) {
    stage.account(
        "canary",
        &json!([
            {"apiGroups": ["leasehold.dev"], "resources": ["distributedlocks", "lockclaims"], "verbs": ["create"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update", "patch", "delete"]},
        ]),
    );
    let actors = BTreeMap::from([
        ("canary", stage.person("canary").await),
        ("admin", stage.admin()),
        (
            "operator",
            stage.person(super::policies_stage::RELEASE).await,
        ),
    ]);
    for probe in attempts(PROBES) {
        probe.until_refused(stage, &actors[probe.by.as_str()]).await;
    }
    until_makers_are_noted(&stage.place()).await;
    for name in ["canary", "canary-shared"] {
        let leases = stage.api(&stage.bench.client, "Lease");
        let deleted = leases.delete(name, &DeleteParams::default()).await;
        deleted.expect("it is deleted");
    }
}
