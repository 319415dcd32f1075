use serde_json::{Value, json};

use super::*;

fn pod(spec: &Value, status: &Value) -> Pod {
    let pod = json!({"metadata": {"name": "web", "uid": "u"}, "spec": spec, "status": status});
    serde_json::from_value(pod).expect("a pod")
}

fn running(name: &str) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0, "containerID": "c://1",
           "state": {"running": {}}})
}

fn exited(name: &str, code: i32) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "containerID": "c://1",
           "state": {"terminated": {"exitCode": code, "reason": "Error"}}})
}

fn made_up(name: &str) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
           "state": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}})
}

fn waiting(name: &str) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
           "state": {"waiting": {"reason": "PodInitializing"}}})
}

#[expect(clippy::too_many_lines, reason = "one table")]
#[test]
fn a_pod_has_ended_once_the_kubelet_says_so_of_every_container_and_not_before() {
    let one = json!({"restartPolicy": "Never", "containers": [{"name": "a"}]});
    let two = json!({"restartPolicy": "Never", "containers": [{"name": "a"}, {"name": "b"}]});
    let always = json!({"restartPolicy": "Always", "containers": [{"name": "a"}]});
    let on_failure = json!({"restartPolicy": "OnFailure", "containers": [{"name": "a"}]});
    let init = json!({"restartPolicy": "Never", "initContainers": [{"name": "i"}], "containers": [{"name": "a"}]});
    let sidecar = json!({"restartPolicy": "Never", "initContainers": [{"name": "s", "restartPolicy": "Always"}],
                         "containers": [{"name": "a"}]});
    let own_rules = json!({"restartPolicy": "Never", "containers": [{"name": "a", "restartPolicy": "OnFailure"}]});
    // What the kubelet says of containers that it is about to start again, and with the last phase of a Pod.
    let due = json!({"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady"});
    let last = json!({"type": "ContainersReady", "status": "False", "reason": "PodFailed"});
    let collected =
        json!([due, {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]);
    let preempted = json!([last, {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]);
    let rows = [
        ("no status at all", &one, json!({}), false),
        ("not started", &one, json!({"phase": "Pending"}), false),
        (
            "running",
            &one,
            json!({"phase": "Running", "containerStatuses": [running("a")]}),
            false,
        ),
        (
            "done",
            &one,
            json!({"phase": "Succeeded", "containerStatuses": [exited("a", 0)]}),
            true,
        ),
        (
            "failed",
            &one,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 3)]}),
            true,
        ),
        (
            "ended, phase not yet",
            &one,
            json!({"phase": "Running", "containerStatuses": [exited("a", 0)]}),
            false,
        ),
        (
            "one of two",
            &two,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 0), running("b")]}),
            false,
        ),
        (
            "one of two told",
            &two,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 0)]}),
            false,
        ),
        (
            "both of two",
            &two,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 1), exited("b", 0)]}),
            true,
        ),
        (
            "phase alone",
            &one,
            json!({"phase": "Failed", "reason": "NodeLost"}),
            false,
        ),
        (
            "phase over a running one",
            &one,
            json!({"phase": "Failed", "containerStatuses": [running("a")]}),
            false,
        ),
        (
            "made up",
            &one,
            json!({"phase": "Failed", "containerStatuses": [made_up("a")]}),
            false,
        ),
        (
            "to be restarted",
            &always,
            json!({"phase": "Running", "containerStatuses": [exited("a", 1)]}),
            false,
        ),
        (
            "ended by its deletion",
            &always,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 143)], "conditions": [last]}),
            true,
        ),
        (
            "out of service while a restart was due",
            &always,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 1)], "conditions": [due]}),
            false,
        ),
        (
            "out of service while a restart by a rule of its own was due",
            &own_rules,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 1)], "conditions": [due]}),
            false,
        ),
        (
            "ended though it has rules of its own",
            &own_rules,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 1)], "conditions": [last]}),
            true,
        ),
        (
            "collected while a restart was due",
            &always,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 1)], "conditions": collected}),
            false,
        ),
        (
            "collected while a restart on failure was due",
            &on_failure,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 1)], "conditions": collected}),
            false,
        ),
        (
            "collected after success",
            &on_failure,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 0)], "conditions": collected}),
            true,
        ),
        (
            "collected and never restarted",
            &one,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 1)], "conditions": collected}),
            true,
        ),
        (
            "preempted by the kubelet",
            &always,
            json!({"phase": "Failed", "containerStatuses": [exited("a", 137)], "conditions": preempted}),
            true,
        ),
        (
            "init not told",
            &init,
            json!({"phase": "Succeeded", "containerStatuses": [exited("a", 0)]}),
            false,
        ),
        (
            "init and main",
            &init,
            json!({"phase": "Succeeded", "initContainerStatuses": [exited("i", 0)],
         "containerStatuses": [exited("a", 0)]}),
            true,
        ),
        (
            "init failed, main never ran",
            &init,
            json!({"phase": "Failed", "initContainerStatuses": [exited("i", 1)],
         "containerStatuses": [waiting("a")]}),
            true,
        ),
        (
            "init failed, main made up",
            &init,
            json!({"phase": "Failed", "initContainerStatuses": [exited("i", 1)],
         "containerStatuses": [made_up("a")]}),
            true,
        ),
        (
            "init went well, main waits",
            &init,
            json!({"phase": "Failed", "initContainerStatuses": [exited("i", 0)],
         "containerStatuses": [waiting("a")]}),
            false,
        ),
        (
            "sidecar runs",
            &sidecar,
            json!({"phase": "Succeeded", "initContainerStatuses": [running("s")],
         "containerStatuses": [exited("a", 0)]}),
            false,
        ),
        (
            "sidecar ended",
            &sidecar,
            json!({"phase": "Succeeded", "initContainerStatuses": [exited("s", 0)],
         "containerStatuses": [exited("a", 0)]}),
            true,
        ),
        (
            "debugged",
            &one,
            json!({"phase": "Succeeded", "containerStatuses": [exited("a", 0)],
         "ephemeralContainerStatuses": [running("d")]}),
            false,
        ),
    ];
    for (case, spec, status, expected) in rows {
        assert_eq!(has_ended(&pod(spec, &status)), expected, "{case}: {status}");
        let mut deleted = pod(spec, &status);
        deleted.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(
            has_ended(&deleted),
            expected,
            "{case}, being deleted: {status}"
        );
    }
}

fn watch() -> Watch {
    Watch {
        kind: Kind::Pods,
        namespace: None,
    }
}

fn key(name: &str) -> Key {
    Key::new("n", name)
}

fn of_claim(name: &str) -> Namer {
    Namer::Claim(key(name))
}

/// A claim that a Pod owns.
fn owned(name: &str, pod: &str, uid: &str) -> LockClaim {
    let claim = json!({
        "apiVersion": "leasehold.dev/v1alpha1", "kind": "LockClaim",
        "metadata": {"name": name, "namespace": "n",
                     "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}]},
        "spec": {"lockName": "l", "hold": {"type": "Heartbeat"}},
    });
    serde_json::from_value(claim).expect("a claim")
}

/// A claim that lasts with a Pod.
fn lasting(name: &str, pod: &str) -> LockClaim {
    let claim = json!({
        "apiVersion": "leasehold.dev/v1alpha1", "kind": "LockClaim",
        "metadata": {"name": name, "namespace": "n"},
        "spec": {"lockName": "l", "hold": {"type": "Pod", "pod": {"name": pod}}},
    });
    serde_json::from_value(claim).expect("a claim")
}

fn with_pods(pods: &[(&str, &str)]) -> Pods {
    let mut known = Pods::default();
    known.list_begins(&watch());
    for (name, uid) in pods {
        known.listed(&watch(), key(name), (*uid).to_owned());
    }
    known.list_ends(&watch());
    known
}

const NOW: Moment = Moment::from_secs(100);

#[test]
fn nobody_is_dead_before_the_watch_has_listed_everything() {
    let mut pods = Pods::default();
    let claim = owned("a", "web", "u1");
    pods.claim_seen(&claim);
    pods.list_begins(&watch());
    pods.listed(&watch(), key("other"), "u9".to_owned());
    assert_eq!(pods.fate(&key("web"), "u1"), Fate::There);
    assert!(!pods.is_dead(&claim));
    assert!(pods.wants(&key("l"), [&claim], NOW).is_empty());
    pods.list_ends(&watch());
    assert_eq!(pods.fate(&key("web"), "u1"), Fate::Unknown);
    assert!(!pods.is_dead(&claim), "the watch of claims may be ahead");
}

#[test]
fn a_pod_that_was_shown_and_is_not_any_more_is_gone() {
    for how in ["deleted", "made again", "not listed", "listed anew"] {
        let mut pods = with_pods(&[("web", "u1")]);
        let claim = owned("a", "web", "u1");
        pods.claim_seen(&claim);
        assert_eq!(pods.fate(&key("web"), "u1"), Fate::There);
        let concerned = match how {
            "deleted" => pods.gone(&watch(), &key("web"), "u1"),
            "made again" => pods.changed(&watch(), &key("web"), "u2"),
            other => {
                pods.list_begins(&watch());
                if other == "listed anew" {
                    pods.listed(&watch(), key("web"), "u2".to_owned());
                }
                pods.list_ends(&watch())
            }
        };
        assert_eq!(concerned, [of_claim("a")], "{how}");
        assert!(pods.is_dead(&claim), "{how}");
        // A late event of the old object does not bring it back.
        pods.changed(&watch(), &key("web"), "u1");
        assert!(pods.is_dead(&claim), "{how}");
    }
}

#[test]
fn a_pod_that_no_watch_shows_is_dead_once_a_read_says_so() {
    let mut pods = with_pods(&[]);
    let claims = [
        owned("a", "web", "u1"),
        owned("b", "web", "u2"),
        owned("c", "db", "u3"),
    ];
    for claim in &claims {
        pods.claim_seen(claim);
    }
    let wanted = pods.wants(&key("l"), &claims, NOW);
    assert_eq!(
        wanted.keys().cloned().collect::<Vec<_>>(),
        [key("db"), key("web")]
    );
    let mut there = pod(&json!({"containers": []}), &json!({}));
    there.metadata.uid = Some("u2".to_owned());
    for (key, uids) in wanted {
        let found = (key.name == "web").then_some(&there);
        pods.read(&key, uids, found, NOW);
    }
    assert_eq!(
        claims.each_ref().map(|claim| pods.is_dead(claim)),
        [true, false, true]
    );
    assert!(
        pods.wants(&key("l"), &claims, NOW).is_empty(),
        "it is not asked for all the time"
    );
    assert_eq!(pods.asks_again(&claims), Some(NOW + ASK_AGAIN));
    assert_eq!(pods.wants(&key("l"), &claims, NOW + ASK_AGAIN).len(), 1);
    assert_eq!(pods.changed(&watch(), &key("web"), "u2").len(), 2);
    assert_eq!(pods.asks_again(&claims), None);
}

#[test]
fn what_a_pod_hold_lasts_with_is_read_again_after_every_change() {
    let mut pods = with_pods(&[("web", "u")]);
    let claim = lasting("a", "web");
    pods.claim_seen(&claim);
    let ended = pod(
        &json!({"restartPolicy": "Never", "containers": [{"name": "a"}]}),
        &json!({"phase": "Succeeded", "containerStatuses": [exited("a", 0)]}),
    );
    let lives = pod(
        &json!({"containers": [{"name": "a"}]}),
        &json!({"phase": "Running"}),
    );
    let read = |pods: &mut Pods, found: Option<&Pod>| {
        for (key, uids) in pods.wants(&key("l"), [&claim], NOW) {
            pods.read(&key, uids, found, NOW);
        }
    };
    assert_eq!(pods.of_hold(&claim), None);
    read(&mut pods, Some(&lives));
    let shown = |uid: Option<&str>, ended| PodSight {
        uid: uid.map(str::to_owned),
        ended,
    };
    assert_eq!(pods.of_hold(&claim), Some(&shown(Some("u"), false)));
    assert!(pods.wants(&key("l"), [&claim], NOW).is_empty());
    assert_eq!(pods.wants(&key("l"), [&claim], NOW + READ_AGAIN).len(), 1);
    read(&mut pods, Some(&lives));

    // It changes while it is read: the answer is stale.
    assert_eq!(pods.changed(&watch(), &key("web"), "u"), [of_claim("a")]);
    let wanted = pods.wants(&key("l"), [&claim], NOW);
    pods.changed(&watch(), &key("web"), "u");
    for (key, uids) in wanted {
        pods.read(&key, uids, Some(&lives), NOW);
    }
    assert_eq!(pods.of_hold(&claim), None);
    read(&mut pods, Some(&ended));
    assert_eq!(pods.of_hold(&claim), Some(&shown(Some("u"), true)));
    assert_eq!(pods.gone(&watch(), &key("web"), "u"), [of_claim("a")]);
    read(&mut pods, None);
    assert_eq!(pods.of_hold(&claim), Some(&shown(None, false)));

    pods.claim_gone(&claim);
    assert!(
        pods.named.is_empty(),
        "nothing is kept of Pods that nobody names"
    );
}

#[test]
fn an_answer_that_another_look_has_overtaken_does_not_count() {
    let mut pods = with_pods(&[]);
    // Two locks, each with a claim that lasts with the same Pod.
    let claims = [lasting("a", "web"), lasting("b", "web")];
    for claim in &claims {
        pods.claim_seen(claim);
    }
    let later = NOW + Duration::from_secs(5);
    // The first look asks before the Pod is made, and gets its answer late.
    let slow = pods.wants(&key("l"), [&claims[0]], NOW);
    pods.changed(&watch(), &key("web"), "u");
    let quick = pods.wants(&key("m"), [&claims[1]], later);
    for (key, uids) in slow {
        pods.read(&key, uids, None, NOW);
    }
    assert_eq!(pods.of_hold(&claims[1]), None, "the Pod lives");
    let mut lives = pod(&json!({"containers": [{"name": "a"}]}), &json!({}));
    lives.metadata.uid = Some("u".to_owned());
    for (key, uids) in quick {
        pods.read(&key, uids, Some(&lives), later);
    }
    let shown = PodSight {
        uid: Some("u".to_owned()),
        ended: false,
    };
    assert_eq!(pods.of_hold(&claims[1]), Some(&shown));
}

#[test]
fn the_pod_of_a_holder_is_read_only_once_it_has_changed() {
    let mut pods = with_pods(&[("web", "u")]);
    let lock = key("l");
    pods.follow(&lock, [key("web")].into());
    assert!(
        pods.wants(&lock, [], NOW).is_empty(),
        "most grants end otherwise"
    );
    let concerned = pods.changed(&watch(), &key("web"), "u");
    assert_eq!(concerned, [Namer::Lock(lock.clone())]);
    for (key, uids) in pods.wants(&lock, [], NOW) {
        let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}]});
        let status = json!({"phase": "Failed", "containerStatuses": [exited("a", 137)]});
        pods.read(&key, uids, Some(&pod(&spec, &status)), NOW);
    }
    let ended = PodSight {
        uid: Some("u".to_owned()),
        ended: true,
    };
    assert_eq!(pods.sight(&key("web")), Some((&ended, NOW)));
    assert!(pods.wants(&lock, [], NOW).is_empty());
    pods.follow(&lock, BTreeSet::new());
    assert!(pods.named.is_empty() && pods.of_grants.is_empty());
}
