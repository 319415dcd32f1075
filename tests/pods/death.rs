//! Proven death: what the kubelet's word that a holder's containers have ended is worth, and what is no such word.

use k8s_openapi::api::core::v1::Pod;
use leasehold::api::EndReason;
use leasehold::clock::MonoInstant;
use leasehold::engine::{Grant, LeaseRecord};
use serde_json::json;
use xtask::cluster::Component;

use super::node::{Container, LOCK, MINUTE, WORKS, assert_at_once, rough, wrapped};
use super::operator_rig::{ends, is_free};
use super::stage::{Team, status_of};

/// The exit code of a container that has ended.
pub fn exit_code(pod: &Pod, container: &str) -> Option<i32> {
    let state = status_of(pod, container)?.state.as_ref()?;
    Some(state.terminated.as_ref()?.exit_code)
}

/// Nothing was released, and nobody waits for the lease of a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_container_was_killed_is_ended_at_once() {
    let team = Team::new().await;
    team.lock(LOCK, MINUTE).await;
    team.apply(&[wrapped("first", LOCK, WORKS)]);
    let first = team.held_by(LOCK, "first").await;
    let pod = team.container_runs("first", "main").await;
    team.apply(&[wrapped("second", LOCK, WORKS)]);
    team.is_waited_for(LOCK).await;

    let began = MonoInstant::now();
    team.container(&pod, "main").kill();
    let how = killed_and_followed(&team, &first, began, "from kill -9 to the next holder").await;
    assert_eq!(how, [EndReason::Ended]);
    team.finish().await;
}

/// The Pod "second" holds the lock at once, with a higher token, and the container of "first" was killed; how its hold
/// ended.
async fn killed_and_followed(
    team: &Team,
    first: &Grant,
    began: MonoInstant,
    what: &str,
) -> Vec<EndReason> {
    let second = team.held_by(LOCK, "second").await;
    assert_at_once(began, what);
    assert!(second.token > first.token);
    team.pod_is("first", "it was killed", |pod| {
        exit_code(pod, "main") == Some(137)
    })
    .await;
    let lock = team
        .lock_is(LOCK, "its end is told", |lock| !ends(lock).is_empty())
        .await;
    ends(&lock)
}

/// The kernel chooses whom it kills: where it is the command the wrapper lives to give the lock back, where it is the
/// wrapper nobody does.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_ran_out_of_memory_costs_nobody_its_lease() {
    let team = Team::new().await;
    team.lock(LOCK, MINUTE).await;
    // Files in memory: their pages are nobody's, so that killing the one who writes them frees none.
    let eats = "until test -e /memory/go; do sleep 1; done; \
                i=0; while :; do cat /dev/zero >/memory/$i; i=$((i+1)); done";
    let mut eater = wrapped("first", LOCK, eats);
    eater["spec"]["volumes"] = json!([{"name": "memory", "emptyDir": {"medium": "Memory"}}]);
    let container = &mut eater["spec"]["containers"][0];
    container["volumeMounts"] = json!([{"name": "memory", "mountPath": "/memory"}]);
    container["resources"] = json!({"limits": {"memory": "48Mi"}, "requests": {"cpu": "5m"}});
    team.apply(&[eater]);
    let first = team.held_by(LOCK, "first").await;
    team.container_runs("first", "main").await;
    team.apply(&[wrapped("second", LOCK, WORKS)]);
    team.is_waited_for(LOCK).await;

    let began = MonoInstant::now();
    team.kubectl(&["exec", "first", "--", "touch", "/memory/go"]);
    let what = "from running out of memory to the next holder";
    let how = killed_and_followed(&team, &first, began, what).await;
    assert!(
        matches!(how[..], [EndReason::Ended | EndReason::Released]),
        "{how:?}"
    );
    team.finish().await;
}

/// A container that would be started again, were its Pod not deleted: the kubelet's last word on the Pod counts. The
/// finalizer keeps the object, as those of Jobs' Pods do, so that the word is there to be read.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pod_that_had_to_be_killed_is_ended_at_once() {
    let team = Team::new().await;
    team.lock(LOCK, MINUTE).await;
    let stubborn = "echo works; trap '' TERM; while :; do sleep 1; done";
    let mut made = wrapped("stubborn", LOCK, stubborn);
    made["metadata"]["finalizers"] = json!(["leasehold.test/read"]);
    made["spec"]["restartPolicy"] = json!("Always");
    made["spec"]["terminationGracePeriodSeconds"] = json!(2);
    team.apply(&[made]);
    team.held_by(LOCK, "stubborn").await;
    team.said("stubborn", "main", |logs| {
        logs.contains("works").then_some(())
    })
    .await;
    let began = MonoInstant::now();
    team.kubectl(&["delete", "pod", "stubborn", "--wait=false"]);
    let lock = team.lock_is(LOCK, "it is freed", |lock| !ends(lock).is_empty());
    let how = ends(&lock.await);
    assert_at_once(
        began,
        "from the deletion of a stubborn Pod to the end of its hold",
    );
    assert_eq!(how, [EndReason::Ended]);
    let none = r#"{"metadata": {"finalizers": null}}"#;
    team.kubectl(&["patch", "pod", "stubborn", "--type=merge", "--patch", none]);
    team.finish().await;
}

/// While the kubelet is dead nobody knows what became of containers: leases run out. Neither a forced deletion nor the
/// garbage collector of Pods knows more. When the kubelet is back, what it then reports counts at once.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_kubelet_nothing_is_proven_and_with_it_all_that_it_sees() {
    let (team, _turn) = rough().await;
    let locks = [
        ("silent", 6),
        ("orphan", 10),
        ("collected", 600),
        ("late", 600),
    ];
    for (name, seconds) in locks {
        team.lock(name, seconds).await;
        team.apply(&[wrapped(name, name, WORKS)]);
    }
    let (mut grants, mut containers) = (vec![], vec![]);
    for (name, _) in locks {
        let pod = team.container_runs(name, "main").await;
        grants.push(team.held_by(name, name).await);
        containers.push(team.container(&pod, "main"));
    }
    let runs = |container: &Container| !container.processes().is_empty();
    let [silent, orphan, collected, late] = &containers[..] else {
        panic!("four containers");
    };

    team.cluster()
        .kill(Component::Kubelet)
        .expect("it is killed");
    silent.kill();
    late.kill();
    team.kubectl(&["delete", "pod", "orphan", "--grace-period=0", "--force"]);
    assert!(runs(orphan), "nobody has told it");
    team.kubectl(&["delete", "pod", "collected", "--wait=false"]);
    // As people say of a node that will not come back; of another effect than usual, which would drive all Pods away.
    let gone = "node.kubernetes.io/out-of-service";
    team.kubectl(&[
        "taint",
        "node",
        "node",
        &format!("{gone}=nodeshutdown:NoSchedule"),
    ]);

    let lock = team.lock_is("silent", "its lease is over", is_free).await;
    assert_eq!(ends(&lock), [EndReason::Expired]);
    // Its token is no longer accepted, so it stops in time, as whoever can't renew.
    team.lease_is("orphan", "its lease is over", LeaseRecord::is_free)
        .await;
    assert!(!runs(orphan), "it has ended before the lock was free");
    let lock = team
        .lock_is("orphan", "its end is told", |lock| !ends(lock).is_empty())
        .await;
    assert_eq!(ends(&lock), [EndReason::Expired]);
    Box::pin(team.pod_goes("collected")).await;
    team.assert_still_held("collected", &grants[2]).await;
    assert!(runs(collected), "it works on");
    team.assert_still_held("late", &grants[3]).await;

    team.kubectl(&["taint", "node", "node", &format!("{gone}-")]);
    let began = MonoInstant::now();
    let kubelet = team.cluster().start_again(Component::Kubelet);
    kubelet.expect("it starts again");
    let lock = team.lock_is("late", "it is freed", is_free).await;
    assert_at_once(began, "from the kubelet's start to the end of the lease");
    assert_eq!(ends(&lock), [EndReason::Ended]);
    // For the next test on this node.
    let ready = "--for=condition=Ready";
    team.kubectl(&["wait", ready, "node/node", "--timeout=120s"]);
    team.finish().await;
}
