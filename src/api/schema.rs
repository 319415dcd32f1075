//! The custom resource definitions: what the derives generate, and what they can't express.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, ValidationRule,
};
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::names::{CONDITION_READY, REASON_PENDING};
use super::rules::{self, Rule};
use super::{DistributedLock, LockClaim};

/// All custom resource definitions of Leasehold, in a stable order: what `leasehold crd` prints and `crds/` holds.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut lock = DistributedLock::crd();
    let schema = root_schema(&mut lock);
    finish(schema, rules::LOCK);
    // A lock without a spec is a lock with every default.
    schema.required = None;
    field(schema, "spec").default = Some(JSON(json!({})));
    field(schema, "status").default = Some(JSON(
        json!({"conditions": [pending("the operator has not seen the lock yet")]}),
    ));

    let mut claim = LockClaim::crd();
    let schema = root_schema(&mut claim);
    finish(schema, rules::CLAIM);
    // Tools that judge by conditions (kstatus) call an object without any "current": a claim would pass for granted.
    field(schema, "status").default = Some(JSON(
        json!({"phase": "Pending", "conditions": [pending("the claim waits for its turn")]}),
    ));

    vec![lock, claim]
}

fn root_schema(crd: &mut CustomResourceDefinition) -> &mut JSONSchemaProps {
    let version = crd
        .spec
        .versions
        .first_mut()
        .expect("the derive makes one version");
    let validation = version.schema.as_mut().expect("the derive makes a schema");
    validation
        .open_api_v3_schema
        .as_mut()
        .expect("the derive makes a schema")
}

fn finish(schema: &mut JSONSchemaProps, rules: &[Rule]) {
    tidy(schema);
    schema.x_kubernetes_validations = Some(rules.iter().map(validation).collect());
}

/// Takes out `nullable`: without it the API server drops an explicit null, so that "unset" has one form for rules and
/// readers. Optional fields also come with `default: null`, which would bring it back.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.title = None;
    schema.default.take_if(|default| default.0.is_null());
    schema
        .properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
        .for_each(tidy);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy(items);
    }
}

fn validation(rule: &Rule) -> ValidationRule {
    ValidationRule {
        rule: rule.expression.to_owned(),
        message: Some(rule.message.to_owned()),
        field_path: rule.field_path.map(str::to_owned),
        ..ValidationRule::default()
    }
}

fn field<'a>(schema: &'a mut JSONSchemaProps, name: &str) -> &'a mut JSONSchemaProps {
    schema
        .properties
        .as_mut()
        .and_then(|p| p.get_mut(name))
        .expect("the derive makes spec and status")
}

fn pending(message: &str) -> Value {
    json!({
        "type": CONDITION_READY,
        "status": "Unknown",
        "reason": REASON_PENDING,
        "message": message,
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    })
}
