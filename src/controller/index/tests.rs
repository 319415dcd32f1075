//! What the index trusts, and what it passes over.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

const NOW: Moment = Moment::from_secs(100);

fn lease(revision: u64, spec: &Value) -> FoundLease {
    let object = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": "nightly", "namespace": "a", "uid": "u1", "resourceVersion": revision.to_string(),
            "labels": {"leasehold.dev/lock": "nightly"},
        },
        "spec": spec,
    });
    FoundLease::read(serde_json::from_value(object).expect("a lease")).expect("a lease")
}

fn lock(name: &str, lease: Option<&str>, opened: bool, second: i64) -> DistributedLock {
    let made = Timestamp::from_second(second).expect("a time").to_string();
    let status = if opened {
        json!({"slots": [{"slot": 0, "fencingToken": 0, "holderIdentity": ""}]})
    } else {
        json!({})
    };
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "a", "uid": name, "resourceVersion": second.to_string(),
            "creationTimestamp": made,
        },
        "spec": {"leaseName": lease}, "status": status,
    }))
    .expect("a lock")
}

fn key() -> Key {
    Key::new("a", "nightly")
}

#[test]
fn a_lease_that_enters_the_selection_anew_counts_as_read() {
    let watch = Watch {
        kind: Kind::Leases,
        namespace: None,
    };
    let mut index = Index::default();
    assert_eq!(index.enters(&watch, &key(), false), Seen::Read);
    assert_eq!(index.enters(&watch, &key(), false), Seen::Watched);
    index.leaves(&watch, &key());
    assert_eq!(
        index.enters(&watch, &key(), false),
        Seen::Read,
        "a label was put back"
    );
    index.list_begins(&watch);
    assert_eq!(index.enters(&watch, &key(), true), Seen::Read);
    index.list_ends(&watch, NOW, 0);
    assert_eq!(index.enters(&watch, &key(), false), Seen::Watched);
}

#[test]
fn what_a_new_list_does_not_show_is_gone() {
    let watch = Watch {
        kind: Kind::Leases,
        namespace: None,
    };
    let mut index = Index::default();
    index.lock_seen(lock("nightly", None, true, 1), Source::Event, NOW);
    let trust = index.enters(&watch, &key(), false);
    index.lease_seen(
        &key(),
        Some(lease(7, &json!({"holderIdentity": "x"}))),
        trust,
        NOW,
        0,
    );
    index.list_begins(&watch);
    assert_eq!(index.list_ends(&watch, NOW, 0), [key()]);
    assert!(
        index
            .slot(&key())
            .is_some_and(|slot| slot.keeper.lease().is_none() && slot.found.is_none())
    );
}

#[test]
fn a_renewal_concerns_nobody_and_an_older_state_changes_nothing() {
    let mut index = Index::default();
    index.lock_seen(lock("nightly", None, true, 1), Source::Event, NOW);
    let spec = |time: &str| json!({"holderIdentity": "x", "renewTime": time});
    let mut see = |revision, time| {
        index.lease_seen(
            &key(),
            Some(lease(revision, &spec(time))),
            Seen::Watched,
            NOW,
            0,
        )
    };
    assert_eq!(see(7, "2026-01-01T00:00:00.000000Z"), [key()]);
    assert_eq!(see(8, "2026-01-01T00:00:05.000000Z"), []);
    assert_eq!(see(7, "2026-01-01T00:00:00.000000Z"), []);
    let slot = index.slot(&key()).expect("a slot");
    assert_eq!(
        slot.found
            .as_ref()
            .map(|found| found.record.resource_version),
        Some(8)
    );
    assert_eq!(slot.news.len(), 1, "one grant");
}

#[test]
fn a_read_that_a_deletion_overtook_brings_nothing_back() {
    let mut index = Index::default();
    index.lock_seen(lock("nightly", None, true, 1), Source::Event, NOW);
    let held = |revision| Some(lease(revision, &json!({"holderIdentity": "x"})));
    index.lease_seen(&key(), held(7), Seen::Read, NOW, 0);
    index.lease_gone(&key(), "u1", 9, NOW, 0);
    assert_eq!(index.lease_seen(&key(), held(8), Seen::Read, NOW, 0), []);
    assert!(index.slot(&key()).is_some_and(|slot| slot.found.is_none()));
    // It only left the selection, as its label was taken away.
    assert_eq!(
        index.lease_seen(&key(), held(9), Seen::Read, NOW, 0),
        [key()]
    );

    index.lock_gone(&key());
    assert_eq!(
        index.lock_seen(lock("nightly", None, true, 2), Source::Read, NOW),
        []
    );
    assert!(index.lock(&key()).is_none());
}

#[test]
fn of_two_locks_that_name_one_lease_the_open_or_older_one_has_it() {
    let mut index = Index::default();
    let shared = Key::new("a", "shared");
    index.lock_seen(lock("young", Some("shared"), false, 9), Source::Event, NOW);
    index.lock_seen(lock("old", Some("shared"), false, 5), Source::Event, NOW);
    assert_eq!(index.keeper_of(&shared), Some(&Key::new("a", "old")));
    index.lock_seen(lock("open", Some("shared"), true, 7), Source::Event, NOW);
    assert_eq!(index.keeper_of(&shared), Some(&Key::new("a", "open")));
    let concerned = index.lock_gone(&Key::new("a", "open"));
    assert!(concerned.contains(&Key::new("a", "old")), "{concerned:?}");
}

#[test]
fn only_a_read_shows_the_lock_as_it_was_at_a_known_moment() {
    // An expired holder is ended only after the lock was read: Hold may be new.
    let mut index = Index::default();
    index.lock_seen(lock("nightly", None, true, 1), Source::Event, NOW);
    let mut newer = lock("nightly", None, true, 1);
    newer.metadata.resource_version = Some("2".into());
    assert_eq!(index.lock_seen(newer, Source::Event, NOW), [key()]);
    assert_eq!(
        index.lock_seen(lock("nightly", None, true, 1), Source::Event, NOW),
        [],
        "an older state"
    );
}

#[test]
fn claims_of_pods_that_are_gone_are_skipped_all_at_once() {
    let watch = Watch {
        kind: Kind::Pods,
        namespace: None,
    };
    let mut index = Index::default();
    index.list_begins(&watch);
    for number in 0..3 {
        let pod = Key::new("a", &format!("pod-{number}"));
        index.pods.listed(&watch, pod, format!("u{number}"));
        let claim = json!({
            "metadata": {
                "name": format!("claim-{number}"), "namespace": "a", "uid": format!("c{number}"),
                "resourceVersion": (number + 1).to_string(),
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": format!("pod-{number}"), "uid": format!("u{number}")}],
            },
            "spec": {"lockName": "nightly", "hold": {"type": "Heartbeat"}},
        });
        index.claim_seen(
            serde_json::from_value(claim).expect("a claim"),
            Source::List,
        );
    }
    index.list_ends(&watch, NOW, 0);
    let first = |index: &Index| {
        let queue = index.queue(&key());
        queue.first().map(|claim| claim.name.clone())
    };
    assert_eq!(first(&index).as_deref(), Some("claim-0"));
    index.list_begins(&watch);
    index
        .pods
        .listed(&watch, Key::new("a", "pod-2"), "u2".to_owned());
    assert_eq!(
        index.list_ends(&watch, NOW, 0),
        [key()],
        "its lock is concerned"
    );
    assert_eq!(first(&index).as_deref(), Some("claim-2"));
    let queue = index.queue(&key());
    assert_eq!(
        queue
            .after(&queue.claims()[0].claim)
            .map(|claim| claim.name.as_str()),
        Some("claim-2")
    );
}

#[test]
fn a_lock_names_the_leases_of_all_its_slots_and_keeps_those_above_the_limit_that_status_knows() {
    let mut index = Index::default();
    let semaphore = |second: i64, max: i32, known: i32| {
        let mut lock = lock("nightly", None, true, second);
        lock.spec.max_holders = max;
        let entries = (0..known).map(|slot| crate::api::SlotStatus {
            slot,
            ..Default::default()
        });
        lock.status.as_mut().expect("a status").slots = entries.collect();
        lock
    };
    let slot = |name: &str| Key::new("a", name);
    index.lock_seen(semaphore(1, 3, 2), Source::Event, NOW);
    for name in ["nightly", "nightly.1", "nightly.2"] {
        assert_eq!(index.keeper_of(&slot(name)), Some(&key()), "{name}");
    }
    assert_eq!(index.keeper_of(&slot("nightly.3")), None);
    let views = |index: &Index| -> Vec<_> {
        let slots = index.slots_of(&key()).into_iter();
        let view = |(_, lease)| {
            index
                .slot(&lease)
                .and_then(|slot| slot.keeper.lock().cloned())
        };
        slots
            .filter_map(view)
            .map(|view| (view.number, view.is_surplus()))
            .collect()
    };
    assert_eq!(views(&index), [(0, false), (1, false), (2, false)]);
    let held = json!({"holderIdentity": "x/uid-x"});
    let concerned = index.lease_seen(
        &slot("nightly.1"),
        Some(lease(7, &held)),
        Seen::Watched,
        NOW,
        0,
    );
    assert_eq!(concerned, [key()]);
    // Lowered: slot 1 stays in view since status knows it, slot 2 goes.
    index.lock_seen(semaphore(2, 1, 2), Source::Event, NOW);
    assert_eq!(views(&index), [(0, false), (1, true)]);
    assert_eq!(index.keeper_of(&slot("nightly.2")), None);
    assert_eq!(index.leases_of(&key()).count(), 1);
    index.lock_gone(&key());
    assert_eq!(index.keeper_of(&slot("nightly.1")), None);
}
