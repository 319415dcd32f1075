//! What is told of the locks that are held: to the command in its environment, and in the last words.

use std::time::Duration;

use leasehold::client::{Guard, Guards};
use serde_json::{Value, json};

use super::End;

/// What a grant is known by.
#[derive(Clone, Debug)]
pub(in crate::cmd) struct Facts {
    pub(in crate::cmd) lock: String,
    pub(in crate::cmd) namespace: String,
    pub(in crate::cmd) slot: i32,
    pub(in crate::cmd) holder: String,
    pub(in crate::cmd) token: i64,
}

impl Facts {
    /// Of all the locks, in their order.
    pub(in crate::cmd) fn of(guards: &Guards) -> Vec<Self> {
        guards.iter().map(Self::of_one).collect()
    }

    /// Of one lock.
    pub(in crate::cmd) fn of_one(guard: &Guard) -> Self {
        Self {
            lock: guard.lock().to_owned(),
            namespace: guard.namespace().to_owned(),
            slot: guard.slot(),
            holder: guard.identity().to_owned(),
            token: guard.token().get(),
        }
    }

    /// As probes and other containers are told: for how long without another renewal, rounded down.
    pub(in crate::cmd) fn told(&self, left: Duration) -> Value {
        json!({
            "lock": self.lock,
            "namespace": self.namespace,
            "slot": self.slot,
            "holder": self.holder,
            "token": self.token,
            "remainingSeconds": (left.as_secs_f64() * 1000.0).floor() / 1000.0,
        })
    }
}

/// What the command finds in its environment. With several locks a list in the place of each value: who takes that for
/// a number is told loudly.
pub(in crate::cmd) fn environment(facts: &[Facts]) -> Vec<(String, String)> {
    let namespace = facts.first().map(|facts| facts.namespace.clone());
    let mut env = vec![
        (
            "LEASEHOLD_LOCK".to_owned(),
            list(facts, |one| one.lock.clone()),
        ),
        (
            "LEASEHOLD_NAMESPACE".to_owned(),
            namespace.unwrap_or_default(),
        ),
        (
            "LEASEHOLD_SLOT".to_owned(),
            list(facts, |one| one.slot.to_string()),
        ),
        (
            "LEASEHOLD_HOLDER".to_owned(),
            list(facts, |one| one.holder.clone()),
        ),
        (
            "LEASEHOLD_FENCING_TOKEN".to_owned(),
            list(facts, |one| one.token.to_string()),
        ),
    ];
    if facts.len() > 1 {
        for one in facts {
            // A lock's name has no `_`, so two names never become one.
            let lock = one.lock.to_ascii_uppercase().replace('-', "_");
            env.push((format!("LEASEHOLD_SLOT_{lock}"), one.slot.to_string()));
            env.push((format!("LEASEHOLD_HOLDER_{lock}"), one.holder.clone()));
            env.push((
                format!("LEASEHOLD_FENCING_TOKEN_{lock}"),
                one.token.to_string(),
            ));
        }
    }
    env
}

/// How the process ends: about one lock, or about all of them.
pub(in crate::cmd) fn last_words(
    facts: &[Facts],
    about: Option<&str>,
    code: u8,
    reason: &str,
) -> End {
    let facts = match about.and_then(|lock| facts.iter().position(|one| one.lock == lock)) {
        Some(index) => &facts[index..=index],
        None => facts,
    };
    let token = match facts {
        [one] => json!(one.token),
        [] => Value::Null,
        several => json!(list(several, |one| one.token.to_string())),
    };
    End {
        code,
        reason: reason.to_owned(),
        lock: Some(list(facts, |one| one.lock.clone())),
        token,
        holder: Some(list(facts, |one| one.holder.clone())),
    }
}

fn list(facts: &[Facts], text: impl Fn(&Facts) -> String) -> String {
    facts.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(lock: &str, token: i64) -> Facts {
        Facts {
            lock: lock.to_owned(),
            namespace: "team-a".to_owned(),
            slot: 0,
            holder: format!("pod-3/{lock}"),
            token,
        }
    }

    #[test]
    fn one_lock_is_told_as_it_is_and_several_as_lists_and_one_by_one() {
        let env = environment(&[facts("a", 7)]);
        let told: Vec<_> = env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            told,
            [
                "LEASEHOLD_LOCK=a",
                "LEASEHOLD_NAMESPACE=team-a",
                "LEASEHOLD_SLOT=0",
                "LEASEHOLD_HOLDER=pod-3/a",
                "LEASEHOLD_FENCING_TOKEN=7",
            ]
        );
        let env = environment(&[facts("a", 7), facts("b-2", 12)]);
        let value = |name: &str| {
            let mut found = env.iter().filter(|(known, _)| known == name);
            found.next().map(|(_, value)| value.as_str())
        };
        assert_eq!(value("LEASEHOLD_LOCK"), Some("a,b-2"));
        assert_eq!(value("LEASEHOLD_NAMESPACE"), Some("team-a"));
        assert_eq!(value("LEASEHOLD_FENCING_TOKEN"), Some("7,12"));
        assert_eq!(value("LEASEHOLD_FENCING_TOKEN_A"), Some("7"));
        assert_eq!(value("LEASEHOLD_FENCING_TOKEN_B_2"), Some("12"));
        assert_eq!(value("LEASEHOLD_SLOT_B_2"), Some("0"));
        assert_eq!(value("LEASEHOLD_HOLDER_B_2"), Some("pod-3/b-2"));
    }

    #[test]
    fn last_words_are_of_the_lock_that_was_lost_first_or_of_all() {
        let held = [facts("a", 7), facts("b", 12)];
        let end = last_words(&held, Some("b"), 76, "MaxHold");
        assert_eq!((end.lock.as_deref(), end.token), (Some("b"), json!(12)));
        let end = last_words(&held, None, 0, "Completed");
        assert_eq!(
            (end.lock.as_deref(), end.token),
            (Some("a,b"), json!("7,12"))
        );
        let end = last_words(&held[..1], None, 0, "Completed");
        assert_eq!((end.lock.as_deref(), end.token), (Some("a"), json!(7)));
    }
}
