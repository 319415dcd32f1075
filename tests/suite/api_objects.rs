//! The table of good and bad objects, held against the schema and rules in this process and against the API server.

use std::collections::BTreeSet;

use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, Error};
use leasehold::api::names::{API_VERSION, GROUP, VERSION};
use leasehold::api::{DistributedLock, LockClaim, crds};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{api_local, server};

/// One row of the table; the file says what each field means.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    kind: Kind,
    r#as: Option<String>,
    old: Option<Written>,
    #[serde(default)]
    write: Write,
    new: Written,
    #[serde(default)]
    error: Vec<String>,
    stored: Option<Value>,
}

#[derive(Deserialize, Clone, Copy, Default, PartialEq, Debug)]
enum Kind {
    #[default]
    DistributedLock,
    LockClaim,
}

#[derive(Deserialize, Clone, Copy, Default, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Write {
    #[default]
    Create,
    Update,
    Status,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct Written {
    spec: Option<Value>,
    status: Option<Value>,
}

#[test]
fn every_object_is_judged_locally_as_the_table_says() {
    let complaints = cases()
        .iter()
        .filter_map(|case| case.complaint(locally(case, &case.schema())))
        .collect::<Vec<_>>();
    report(&complaints);
}

#[tokio::test]
async fn every_object_is_judged_by_the_server_as_the_table_says() {
    let client = server::client().await;
    server::install_crds(&client).await;
    let complaints = server::with_namespace(&client, async |namespace| {
        let mut complaints = vec![];
        for (index, case) in cases().iter().enumerate() {
            let judgement = on_server(&client, &namespace, case, &format!("case-{index}")).await;
            complaints.extend(case.complaint(judgement));
        }
        complaints
    });
    report(&complaints.await);
}

#[test]
fn without_any_one_rule_an_object_of_the_table_is_judged_otherwise() {
    let cases = cases();
    for crd in crds() {
        let kind = &crd.spec.names.kind;
        let whole = schema_of(&crd);
        for (index, rule) in rules(&whole).iter().enumerate() {
            let message = rule["message"].as_str().expect("every rule has a message");
            let mut schema = whole.clone();
            schema["x-kubernetes-validations"][index]["rule"] = "true".into();
            let mut concerned = cases.iter().filter(|case| {
                format!("{:?}", case.kind) == *kind
                    && case.error.iter().any(|part| message.contains(part))
            });
            let missed = concerned.any(|case| case.complaint(locally(case, &schema)).is_some());
            assert!(
                missed,
                "{kind}: nothing in the table needs the rule: {message}"
            );
        }
    }
}

#[test]
fn no_two_objects_of_the_table_show_the_same() {
    let mut names = BTreeSet::new();
    for case in cases() {
        assert!(
            names.insert((format!("{:?}", case.kind), case.name.clone())),
            "twice: {}",
            case.name
        );
    }
}

fn cases() -> Vec<Case> {
    serde_norway::from_str(include_str!("api_objects.yaml")).expect("the table can be read")
}

fn report(complaints: &[String]) {
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

impl Case {
    /// What is wrong with a judgement: neither too many nor too few errors, nor anything else stored.
    fn complaint(&self, judgement: Result<Value, Vec<String>>) -> Option<String> {
        let complaint = match judgement {
            Ok(_) if !self.error.is_empty() => format!("accepted, although {:?}", self.error),
            Ok(stored) => self.stored_otherwise(&stored)?,
            Err(errors) => {
                let expected = |error: &String| self.error.iter().any(|part| error.contains(part));
                let told = |part: &String| errors.iter().any(|error| error.contains(part));
                if !self.error.is_empty()
                    && errors.iter().all(expected)
                    && self.error.iter().all(told)
                {
                    return None;
                }
                format!("{errors:#?}\n  where the table has {:?}", self.error)
            }
        };
        Some(format!("{:?}: {}: {complaint}", self.kind, self.name))
    }

    fn schema(&self) -> Value {
        let crd = crds()
            .into_iter()
            .find(|crd| crd.spec.names.kind == format!("{:?}", self.kind));
        schema_of(&crd.expect("both kinds are there"))
    }

    fn stored_otherwise(&self, stored: &Value) -> Option<String> {
        if let Some(part) = self.stored.as_ref().filter(|part| !contains(stored, part)) {
            return Some(format!(
                "stored is {stored:#}\n  where the table has {part}"
            ));
        }
        match self.kind {
            Kind::DistributedLock => read_otherwise::<DistributedLock>(stored),
            Kind::LockClaim => read_otherwise::<LockClaim>(stored),
        }
    }

    fn object(&self, name: &str, written: &Written) -> Value {
        let mut object = json!({
            "apiVersion": API_VERSION,
            "kind": format!("{:?}", self.kind),
            "metadata": {"name": name},
        });
        for (field, value) in [("spec", &written.spec), ("status", &written.status)] {
            if let Some(value) = value {
                object[field] = value.clone();
            }
        }
        object
    }
}

/// What our types make of a stored object, if that is not the object.
fn read_otherwise<T: DeserializeOwned + serde::Serialize>(stored: &Value) -> Option<String> {
    let read: T = match serde_json::from_value(stored.clone()) {
        Ok(read) => read,
        Err(error) => return Some(format!("our types can't read {stored:#}: {error}")),
    };
    let mut again = serde_json::to_value(read).expect("our types can be written");
    again["metadata"] = stored["metadata"].clone();
    (without_empty_lists(&again) != without_empty_lists(stored))
        .then(|| format!("our types make {again:#}\n  of {stored:#}"))
}

/// An empty list and no list are the same to us.
fn without_empty_lists(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, v)| **v != json!([]));
            Value::Object(
                kept.map(|(k, v)| (k.clone(), without_empty_lists(v)))
                    .collect(),
            )
        }
        other => other.clone(),
    }
}

/// Whether `part` is in `whole`: objects field by field, lists item by item.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(name, part)| whole.get(name).is_some_and(|whole| contains(whole, part))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len()
                && whole
                    .iter()
                    .zip(part)
                    .all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

fn schema_of(crd: &impl serde::Serialize) -> Value {
    let crd = serde_json::to_value(crd).expect("a definition can be written");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn rules(schema: &Value) -> &[Value] {
    schema["x-kubernetes-validations"]
        .as_array()
        .expect("a list of rules")
}

/// The judgement of schema and rules in this process. Create drops status, update keeps it, status keeps the rest.
fn locally(case: &Case, schema: &Value) -> Result<Value, Vec<String>> {
    let name = case.r#as.as_deref().unwrap_or("case");
    let old = case
        .old
        .as_ref()
        .map(|old| api_local::complete(schema, &case.object(name, old)));
    let mut new = case.object(name, &case.new);
    let fields = new.as_object_mut().expect("an object");
    let (kept, from) = match case.write {
        Write::Create => ("status", None),
        Write::Update => (
            "status",
            Some(old.as_ref().expect("an update needs what was before")),
        ),
        Write::Status => (
            "spec",
            Some(old.as_ref().expect("a status write needs what was before")),
        ),
    };
    match from.and_then(|old| old.get(kept)) {
        Some(value) => fields.insert(kept.to_owned(), value.clone()),
        None => fields.remove(kept),
    };
    api_local::judge(schema, old.as_ref(), &new)
}

/// The server's judgement.
async fn on_server(
    client: &Client,
    namespace: &str,
    case: &Case,
    name: &str,
) -> Result<Value, Vec<String>> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, &format!("{:?}", case.kind));
    let api = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        namespace,
        &ApiResource::from_gvk(&kind),
    );
    let name = case.r#as.as_deref().unwrap_or(name);
    let post = PostParams::default();
    let typed = |object: Value| serde_json::from_value::<DynamicObject>(object).expect("an object");

    let mut version = None;
    if let Some(old) = &case.old {
        let mut stored = api
            .create(&post, &typed(case.object(name, old)))
            .await
            .expect("the old object is good");
        if let Some(status) = &old.status {
            stored.data["status"] = status.clone();
            stored = api
                .replace_status(name, &post, &stored)
                .await
                .expect("the old status is good");
        }
        version = stored.metadata.resource_version;
    }
    let mut new = typed(case.object(name, &case.new));
    new.metadata.resource_version = version;
    let written = match case.write {
        Write::Create => api.create(&post, &new).await,
        Write::Update => api.replace(name, &post, &new).await,
        Write::Status => api.replace_status(name, &post, &new).await,
    };
    match written {
        // As every reader will see it: with the defaults of the stored object.
        Ok(_) => Ok(
            serde_json::to_value(api.get(name).await.expect("it is there"))
                .expect("it can be written"),
        ),
        Err(Error::Api(status)) => Err(causes(&status)),
        Err(error) => panic!("{}: {error}", case.name),
    }
}

/// The single errors of a refusal, less the server's notes that rules were left out.
fn causes(status: &kube::core::Status) -> Vec<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let causes: Vec<_> = causes
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .filter(|cause| !cause.starts_with("<nil>: "))
        .collect();
    if causes.is_empty() {
        vec![status.message.clone()]
    } else {
        causes
    }
}
