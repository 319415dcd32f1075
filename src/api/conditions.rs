//! Conditions: how they are set, and their schema.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use schemars::{Schema, SchemaGenerator, json_schema};

use super::names::{MAX_MESSAGE_CHARS, MAX_TOKEN, clip};

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// Not known yet, or no longer.
    Unknown,
}

impl ConditionStatus {
    /// As it is written in a condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// Sets the condition `type_`, adding it if it is new; `lastTransitionTime` moves only when the status does.
///
/// Says whether anything changed, so that a status need not be written for nothing.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: impl Into<ConditionStatus>,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) -> bool {
    let mut new = Condition {
        type_: type_.to_owned(),
        status: status.into().as_str().to_owned(),
        reason: reason.to_owned(),
        message: clip(message, MAX_MESSAGE_CHARS).to_owned(),
        observed_generation: generation,
        last_transition_time: now.clone(),
    };
    let Some(old) = conditions.iter_mut().find(|c| c.type_ == type_) else {
        conditions.push(new);
        return true;
    };
    // The definition's default, which nobody wrote, bears the time zero.
    let was_written = old.last_transition_time.0 != Timestamp::UNIX_EPOCH;
    if old.status == new.status && was_written {
        new.last_transition_time = old.last_transition_time.clone();
    }
    let changed = *old != new;
    *old = new;
    changed
}

/// The condition of this type, if it is there.
#[must_use]
pub fn find_condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of this type is there and True.
#[must_use]
pub fn is_condition_true(conditions: &[Condition], type_: &str) -> bool {
    find_condition(conditions, type_).is_some_and(|c| c.status == "True")
}

/// The schema of a list of conditions, with the bounds that the API server itself uses for built-in kinds.
pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 8,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "description": "What it is about.",
                    "type": "string",
                    "maxLength": 316,
                },
                "status": {
                    "description": "True, False or Unknown.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "description": "The metadata.generation that this was said about.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "maximum": MAX_TOKEN,
                },
                "lastTransitionTime": {
                    "description": "When the status last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "reason": {
                    "description": "Why, in one word for programs.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "description": "Why, for people.",
                    "type": "string",
                    "maxLength": MAX_MESSAGE_CHARS,
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut conditions = vec![];
        let mut held = |status: bool, reason, message, generation, second| {
            let (generation, now) = (Some(generation), at(second));
            let changed = set_condition(
                &mut conditions,
                "Held",
                status,
                reason,
                message,
                generation,
                &now,
            );
            (changed, conditions[0].clone())
        };
        assert!(held(true, "Held", "by a", 1, 1).0);
        assert!(!held(true, "Held", "by a", 1, 2).0, "nothing new");
        let (changed, now) = held(true, "Held", "by b", 2, 3);
        assert!(changed, "a new message");
        assert_eq!(now.last_transition_time, at(1));
        assert_eq!(now.message, "by b");
        assert_eq!(now.observed_generation, Some(2));
        let (changed, now) = held(false, "Free", "", 2, 4);
        assert!(changed);
        assert_eq!(now.last_transition_time, at(4));
        let (unknown, now) = (ConditionStatus::Unknown, at(5));
        assert!(set_condition(
            &mut conditions,
            "Ready",
            unknown,
            "Pending",
            "",
            None,
            &now
        ));
        assert_eq!(conditions.len(), 2);
        assert!(!is_condition_true(&conditions, "Held"));
    }

    #[test]
    fn the_definitions_default_has_no_transition_time_to_keep() {
        let mut conditions = vec![];
        let mut unknown = |second| {
            let (status, now) = (ConditionStatus::Unknown, at(second));
            set_condition(&mut conditions, "Ready", status, "Pending", "", None, &now);
            conditions[0].last_transition_time.clone()
        };
        assert_eq!(unknown(0), at(0), "as the server fills it in");
        assert_eq!(unknown(7), at(7));
        assert_eq!(unknown(8), at(7));
    }
}
