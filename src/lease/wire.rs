//! A Lease object as the rules see it, and back.
//!
//! The object stays as the server sent it but for what the rules change, so that fields, labels and owners of other
//! clients, and fields that this version does not know, survive our writes.

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::temporal::DateTimePrinter;
use k8s_openapi::jiff::tz::Offset;
use kube::Resource;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Map, Value, json};

use crate::api::{DistributedLock, names};
use crate::engine::{ClaimRef, Ended, GrantNote, LeaseRecord, SpecRecord, WallMicros};

/// The resource `leases.coordination.k8s.io/v1`, read without a fixed schema.
#[must_use]
pub fn lease_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease"))
}

/// A Lease as it was read: the whole object, and what the rules see of it.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundLease {
    /// The object, to be written back with changes.
    pub object: DynamicObject,
    /// What the rules see.
    pub record: LeaseRecord,
}

impl FoundLease {
    /// Reads a Lease. Nothing in it is an error: what can't be read counts as absent. `None` only for an object
    /// without uid or resourceVersion, which no server sends.
    #[must_use]
    pub fn read(object: DynamicObject) -> Option<Self> {
        let meta = &object.metadata;
        let annotation = |key: &str| {
            meta.annotations
                .as_ref()
                .and_then(|all| all.get(key))
                .map(String::as_str)
        };
        let label = |key: &str| meta.labels.as_ref().and_then(|all| all.get(key)).cloned();
        let owners = meta.owner_references.iter().flatten();
        let owners = owners
            .filter(|owner| {
                owner.kind == DistributedLock::kind(&()) && is_our_group(&owner.api_version)
            })
            .map(|owner| (owner.name.clone(), owner.uid.clone()))
            .collect();
        let record = LeaseRecord {
            uid: meta.uid.clone()?,
            resource_version: meta.resource_version.as_ref()?.parse().ok()?,
            deleting: meta.deletion_timestamp.is_some(),
            lock_label: label(names::LABEL_LOCK),
            shared_with: label(names::LABEL_SHARED_WITH),
            owners,
            spec: read_spec(object.data.get("spec")),
            grant: GrantNote::parse(annotation(names::ANNOTATION_GRANT)),
            next: annotation(names::ANNOTATION_NEXT).and_then(ClaimRef::parse),
            ended: annotation(names::ANNOTATION_ENDED).and_then(Ended::parse),
            holder_note: annotation(names::ANNOTATION_HOLDER).map(str::to_owned),
            slots: annotation(names::ANNOTATION_SLOTS).and_then(|count| count.parse().ok()),
        };
        Some(Self { object, record })
    }

    /// The object that a guarded write sends to put `record` in place of what was read: with its uid and
    /// resourceVersion, and with everything that the rules do not speak of as it was.
    #[must_use]
    pub fn with(&self, record: &LeaseRecord) -> DynamicObject {
        let mut object = self.object.clone();
        let meta = &mut object.metadata;
        meta.uid = Some(record.uid.clone());
        meta.resource_version = Some(record.resource_version.to_string());
        // The server keeps its own book of who manages which field.
        meta.managed_fields = None;
        let annotations = meta.annotations.get_or_insert_default();
        let mut set = |key: &str, old: bool, value: Option<String>| match value {
            // What was not read (damaged text) is left alone unless something takes its place.
            None if old => {
                annotations.remove(key);
            }
            None => {}
            Some(text) => {
                annotations.insert(key.to_owned(), text);
            }
        };
        let was = &self.record;
        set(
            names::ANNOTATION_GRANT,
            was.grant != GrantNote::Absent,
            record.grant.text(),
        );
        set(
            names::ANNOTATION_NEXT,
            true,
            record.next.as_ref().map(ToString::to_string),
        );
        set(
            names::ANNOTATION_ENDED,
            was.ended.is_some(),
            record.ended.as_ref().map(ToString::to_string),
        );
        set(names::ANNOTATION_HOLDER, true, record.holder_note.clone());
        set(
            names::ANNOTATION_SLOTS,
            was.slots.is_some(),
            record.slots.map(|count| count.to_string()),
        );
        let spec = object
            .data
            .as_object_mut()
            .map(|data| data.entry("spec").or_insert_with(|| json!({})));
        if let Some(Value::Object(spec)) = spec {
            write_spec(spec, &was.spec, &record.spec);
        }
        object
    }
}

/// `spec` as a new Lease has it.
#[must_use]
pub fn new_spec(record: &SpecRecord) -> Value {
    let mut spec = Map::new();
    write_spec(&mut spec, &SpecRecord::default(), record);
    Value::Object(spec)
}

fn is_our_group(api_version: &str) -> bool {
    api_version
        .split_once('/')
        .is_some_and(|(group, _)| group == names::GROUP)
}

fn read_spec(spec: Option<&Value>) -> SpecRecord {
    let mut rest = spec.and_then(Value::as_object).cloned().unwrap_or_default();
    // A field is taken out of `rest` only where it was understood: the rest still counts as a sign of life.
    let holder = take(&mut rest, "holderIdentity", |value| {
        value.as_str().map(str::to_owned)
    });
    let duration_seconds = take(&mut rest, "leaseDurationSeconds", Value::as_i64);
    let transitions = take(&mut rest, "leaseTransitions", |value| {
        value.as_i64().filter(|count| *count >= 0)
    });
    let acquire_time = take(&mut rest, "acquireTime", read_time);
    let renew_time = take(&mut rest, "renewTime", read_time);
    rest.retain(|_, value| !value.is_null());
    SpecRecord {
        holder: holder.unwrap_or_default(),
        duration_seconds,
        transitions: transitions.unwrap_or(0),
        acquire_time,
        renew_time,
        rest: if rest.is_empty() {
            String::new()
        } else {
            Value::Object(rest).to_string()
        },
    }
}

fn take<T>(
    from: &mut Map<String, Value>,
    key: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Option<T> {
    let value = read(from.get(key)?)?;
    from.remove(key);
    Some(value)
}

/// Any form of RFC 3339 that other clients were seen to write; anything else is an unknown time.
fn read_time(value: &Value) -> Option<WallMicros> {
    value
        .as_str()?
        .parse::<Timestamp>()
        .ok()
        .map(Timestamp::as_microsecond)
}

/// Six digits, always: the server refuses three, and a time must be equal to itself after a round trip.
fn time_text(micros: WallMicros) -> String {
    let time = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH);
    DateTimePrinter::new()
        .precision(Some(6))
        .timestamp_with_offset_to_string(&time, Offset::UTC)
        .replace("+00:00", "Z")
}

fn write_spec(spec: &mut Map<String, Value>, was: &SpecRecord, record: &SpecRecord) {
    let mut set = |key: &str, changed: bool, value: Value| {
        if changed || !spec.contains_key(key) {
            spec.insert(key.to_owned(), value);
        }
    };
    set(
        "holderIdentity",
        was.holder != record.holder,
        json!(record.holder),
    );
    set(
        "leaseTransitions",
        was.transitions != record.transitions,
        json!(record.transitions),
    );
    if let Some(seconds) = record.duration_seconds {
        set(
            "leaseDurationSeconds",
            was.duration_seconds != record.duration_seconds,
            json!(seconds),
        );
    }
    if let Some(time) = record.acquire_time {
        set(
            "acquireTime",
            was.acquire_time != record.acquire_time,
            json!(time_text(time)),
        );
    }
    if let Some(time) = record.renew_time {
        set(
            "renewTime",
            was.renew_time != record.renew_time,
            json!(time_text(time)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Grant, Hold};

    fn lease(spec: &Value) -> FoundLease {
        let object = serde_json::from_value(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": "nightly", "namespace": "team-a", "uid": "u1", "resourceVersion": "7",
                "labels": {"leasehold.dev/lock": "nightly", "team": "a"},
                "annotations": {"note": "keep me", "leasehold.dev/next": "c1/u-c1"},
            },
            "spec": spec,
        }));
        FoundLease::read(object.expect("a lease")).expect("uid and resourceVersion")
    }

    #[test]
    fn every_form_of_time_that_others_write_is_read_and_garbage_is_unknown() {
        for (text, micros) in [
            ("2026-11-29T10:00:19.103Z", Some(1_795_946_419_103_000)),
            ("2026-11-29T10:00:19Z", Some(1_795_946_419_000_000)),
            (
                "2026-11-29T12:00:19.000001+02:00",
                Some(1_795_946_419_000_001),
            ),
            ("20261129T100019.103Z", Some(1_795_946_419_103_000)),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(read_time(&json!(text)), micros, "{text}");
        }
        assert_eq!(read_time(&Value::Null), None);
    }

    #[test]
    fn times_are_written_with_six_digits_and_read_back_equal() {
        for micros in [
            1_795_946_419_000_000,
            1_795_946_419_100_000,
            1_795_946_419_999_999,
        ] {
            let text = time_text(micros);
            assert_eq!(text.len(), "2026-11-29T10:00:19.000000Z".len(), "{text}");
            assert_eq!(read_time(&json!(text)), Some(micros));
        }
    }

    #[test]
    fn what_the_rules_do_not_speak_of_survives_a_write() {
        let found = lease(
            &json!({"holderIdentity": "x", "strategy": "OldestEmulationVersion", "renewTime": "garbage"}),
        );
        let mut record = found.record.clone();
        record.spec.holder = "me/1".into();
        record.spec.transitions = 1;
        let written = found.with(&record);
        assert_eq!(written.data["spec"]["strategy"], "OldestEmulationVersion");
        assert_eq!(written.data["spec"]["renewTime"], "garbage");
        assert_eq!(written.data["spec"]["holderIdentity"], "me/1");
        assert_eq!(
            written.metadata.labels.as_ref().map(|l| l["team"].as_str()),
            Some("a")
        );
        assert_eq!(
            written
                .metadata
                .annotations
                .as_ref()
                .map(|a| a["note"].as_str()),
            Some("keep me")
        );
        assert_eq!(written.metadata.uid.as_deref(), Some("u1"));
        assert_eq!(written.metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn an_unreadable_time_still_counts_as_a_sign_of_life() {
        let one = lease(&json!({"holderIdentity": "x", "renewTime": "garbage"}));
        let two = lease(&json!({"holderIdentity": "x", "renewTime": "other garbage"}));
        assert_ne!(one.record.spec, two.record.spec);
    }

    #[test]
    fn a_record_written_and_read_again_is_the_same() {
        let found = lease(&json!({}));
        let mut record = found.record.clone();
        record.spec.holder = "pod-3/9b2e".into();
        record.spec.duration_seconds = Some(15);
        record.spec.transitions = 4;
        record.spec.acquire_time = Some(1_795_946_419_000_000);
        record.spec.renew_time = Some(1_795_946_419_000_001);
        record.next = None;
        record.ended = Ended::parse("v1;u1;3;17;Released;pod-2/aa;done; all of it");
        record.grant = GrantNote::V1(Grant {
            uid: "u1".into(),
            transitions: 4,
            token: crate::api::FencingToken::new(42).expect("a token"),
            hold: Hold::Heartbeat,
            pod: None,
            holder: "pod-3/9b2e".into(),
        });
        let again = FoundLease::read(found.with(&record)).expect("a lease");
        assert_eq!(again.record, record);
        assert_eq!(
            again.record.ended.as_ref().map(|e| e.reason.as_str()),
            Some("done; all of it")
        );
    }
}
