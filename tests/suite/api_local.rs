//! An API server's judgement of a custom resource without a server: nulls and defaults, the structural schema, then the
//! CEL rules by `kube-cel`, with the server's words. Only what our schemas use; [`super::api_objects`] holds it against
//! the server, case by case.
//!
//! What `kube-cel` 0.8 lacks is made up for here: it checks rules only, not types, bounds and enums, and its defaults
//! do not reach into a value that was itself a default.

use std::collections::BTreeSet;

use kube_cel::cel::{Context, Program};
use kube_cel::{Validator, apply_defaults};
use serde_json::{Map, Value, json};

/// What the server would store, or every error that it would tell.
pub fn judge(schema: &Value, old: Option<&Value>, new: &Value) -> Result<Value, Vec<String>> {
    let new = complete(schema, new);
    let mut errors = vec![];
    check(schema, &new, "", &mut errors);
    // The server, too, leaves the rules out where a value may not be what they think it is. A bound is no such doubt.
    if errors.iter().all(|error| error.contains(" should "))
        && let Err(broken) = Validator::new().validate(schema, &new, old)
    {
        errors.extend(broken.iter().map(ToString::to_string));
    }
    if errors.is_empty() {
        Ok(new)
    } else {
        Err(errors)
    }
}

/// `value` without nulls, with defaults.
pub fn complete(schema: &Value, value: &Value) -> Value {
    let mut value = without_nulls(value);
    // Once for each level that a default can open.
    for _ in 0..3 {
        value = apply_defaults(schema, &value);
    }
    value
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, v)| !v.is_null());
            Value::Object(kept.map(|(k, v)| (k.clone(), without_nulls(v))).collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        scalar => scalar.clone(),
    }
}

fn check(schema: &Value, value: &Value, path: &str, errors: &mut Vec<String>) {
    let mut error = |text: String| errors.push(format!("{path}: {text}"));
    match (schema["type"].as_str(), value) {
        (Some("object"), Value::Object(fields)) => check_object(schema, fields, path, errors),
        (Some("array"), Value::Array(items)) => check_array(schema, items, path, errors),
        (Some("string"), Value::String(text)) => check_string(schema, text, &mut error),
        (Some("integer"), Value::Number(number)) if number.is_i64() => {
            let number = number.as_f64().expect("an i64 has a float near it");
            if let Some(least) = schema["minimum"].as_f64().filter(|least| number < *least) {
                error(format!(
                    "Invalid value: {path} in body should be greater than or equal to {least}"
                ));
            }
            if let Some(most) = schema["maximum"].as_f64().filter(|most| number > *most) {
                error(format!(
                    "Invalid value: {path} in body should be less than or equal to {most}"
                ));
            }
        }
        (Some("integer"), Value::Number(_)) => {
            let format = schema["format"]
                .as_str()
                .expect("every integer has a format");
            error(format!(
                "Invalid value: {path} in body must be of type {format}"
            ));
        }
        (None, _) => {} // metadata
        (Some(type_), _) => error(format!(
            "Invalid value: {path} in body must be of type {type_}"
        )),
    }
}

fn check_object(schema: &Value, fields: &Map<String, Value>, path: &str, errors: &mut Vec<String>) {
    let at = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    for name in strings(&schema["required"]) {
        if !fields.contains_key(name) {
            errors.push(format!("{}: Required value", at(name)));
        }
    }
    for (name, value) in fields {
        check(&schema["properties"][name], value, &at(name), errors);
    }
}

fn check_array(schema: &Value, items: &[Value], path: &str, errors: &mut Vec<String>) {
    if let Some(most) = schema["maxItems"]
        .as_u64()
        .filter(|most| items.len() as u64 > *most)
    {
        errors.push(format!(
            "{path}: Too many: {}: must have at most {most} items",
            items.len()
        ));
    }
    let keys: Vec<_> = strings(&schema["x-kubernetes-list-map-keys"]).collect();
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let key: Vec<_> = keys.iter().map(|key| item[key].to_string()).collect();
        if !keys.is_empty() && !seen.insert(key) {
            errors.push(format!("{path}[{index}]: Duplicate value"));
        }
        check(&schema["items"], item, &format!("{path}[{index}]"), errors);
    }
}

fn check_string(schema: &Value, text: &str, error: &mut impl FnMut(String)) {
    let length = text.chars().count() as u64;
    if let Some(least) = schema["minLength"].as_u64().filter(|least| length < *least) {
        error(format!(
            "Invalid value: should be at least {least} chars long"
        ));
    } else if let Some(most) = schema["maxLength"].as_u64().filter(|most| length > *most) {
        error(format!("Too long: may not be more than {most} bytes"));
    } else if let Some(pattern) = schema["pattern"]
        .as_str()
        .filter(|pattern| !matches(text, pattern))
    {
        error(format!("Invalid value: should match '{pattern}'"));
    }
    if schema["enum"]
        .as_array()
        .is_some_and(|known| !known.contains(&json!(text)))
    {
        let known: Vec<_> = strings(&schema["enum"])
            .map(|known| format!("{known:?}"))
            .collect();
        error(format!(
            "Unsupported value: {text:?}: supported values: {}",
            known.join(", ")
        ));
    }
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

fn matches(text: &str, pattern: &str) -> bool {
    let mut context = Context::default();
    context.add_variable_from_value("text", text);
    context.add_variable_from_value("pattern", pattern);
    let program = Program::compile("text.matches(pattern)").expect("a good expression");
    program.execute(&context) == Ok(true.into())
}
