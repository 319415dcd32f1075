//! What becomes of locks when a release comes, changes and goes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::await_condition;
use kube::{Config, ResourceExt};
use leasehold::api::{ClaimPhase, LockClaimSpec, crds};
use leasehold::client::{Guard, Locks};
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinHandle;

use super::lease_watch::LeaseWatch;
use super::operator_place::{fixed, token, with_pod};
use super::operator_rig::{LONG, Operator, Place, ends, is_free, lasting};
use super::release::{LEASEHOLD, Own, Release, previous_definitions};
use super::render::chart;
use super::run_bench::{hold, until};
use super::server::within;

const TEAM: &str = "team-a";
/// Kubectl waits until what it deletes is gone.
const DELETED: &str = "--timeout=2m";
/// The garbage collector looks for new kinds every half a minute, and knows only then whose owner is gone.
const COLLECTED: Duration = Duration::from_mins(2);
/// Of the holder that renews: an operator that disturbed it, or ended it, would be seen soon.
const LEASE_SECONDS: i32 = 10;

/// Locks that are held in all the ways there are, and one who waits.
struct Holders {
    place: Place,
    guard: Guard,
    waiter: JoinHandle<Guard>,
    tokens: Vec<i64>,
}

impl Holders {
    async fn begin(own: &Own, locks: Locks) -> Self {
        let place = Place::new(&own.client, TEAM);
        place.make_free("held", LEASE_SECONDS).await;
        let guard = hold(&locks, "held", "pod-1").await;
        place
            .lock_is("held", "it is shown", |lock| !is_free(lock))
            .await;
        let waiter = tokio::spawn(async move {
            let asked = locks.lock("held").claimant("pod-2").acquire();
            asked.await.expect("its turn comes")
        });
        place.has_waiters("held", 1).await;
        place.make_pod("pod-7").await;
        for (name, spec) in [("seat", fixed(600)), ("bound", with_pod("pod-7", None))] {
            place.make_free(name, 15).await;
            let lock_name = name.to_owned();
            place.claim(name, LockClaimSpec { lock_name, ..spec }).await;
            place.claim_in(name, ClaimPhase::Granted).await;
        }
        let mut holders = Self {
            place,
            guard,
            waiter,
            tokens: vec![],
        };
        holders.tokens = holders.tokens().await;
        holders
    }

    async fn tokens(&self) -> Vec<i64> {
        let mut tokens = vec![self.guard.token().get()];
        for name in ["seat", "bound"] {
            tokens.push(token(&self.place.claim_in(name, ClaimPhase::Granted).await));
        }
        tokens
    }

    /// Nobody has lost anything, and nobody else has got it.
    async fn are_undisturbed(&self) {
        assert!(self.guard.is_held(), "the holder that renews");
        assert!(!self.waiter.is_finished(), "the waiter");
        assert_eq!(self.tokens().await, self.tokens, "tokens");
        for name in ["held", "seat", "bound"] {
            let lock = self.place.locks.get(name).await.expect("the lock");
            assert_eq!(ends(&lock), [], "{name} was never ended");
        }
    }

    /// A release, a hand-over to the one who waits, and a new lock: all goes on. Whoever waited holds it at the end.
    async fn go_on(self) -> Guard {
        self.are_undisturbed().await;
        let before = self.guard.token();
        self.guard.release().await.expect("it can be released");
        let next = within(LONG, "the next one has it", self.waiter)
            .await
            .expect("no panic");
        assert!(next.token() > before);
        next
    }
}

/// The library, as an administrator or as an account.
async fn locks(kubeconfig: &Path) -> Locks {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Locks::new(config.expect("it names a server"), TEAM).expect("a client")
}

/// An account of the team with the chart's role for users.
async fn worker(own: &Own) -> PathBuf {
    own.kubectl(&["-n", TEAM, "create", "serviceaccount", "worker"]);
    let account = format!("--serviceaccount={TEAM}:worker");
    own.kubectl(&[
        "-n",
        TEAM,
        "create",
        "rolebinding",
        "worker",
        "--clusterrole=leasehold-user",
        &account,
    ]);
    own.account(TEAM, "worker").await
}

async fn stop(mut operator: Operator) {
    operator.signal(Signal::TERM);
    let ended = operator.ended().await;
    assert_eq!(ended.code(), Some(0), "{}", operator.log());
}

async fn stands_by(operator: &Operator) {
    operator.is_ready().await;
    operator
        .eventually("it stands by", async || {
            operator.log().contains("stands by")
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_hands_the_lead_over_at_once_and_keeps_held_locks_held() {
    let own = Own::start().await;
    own.make_namespace(TEAM).await;
    own.install(&own.previous_chart(), &LEASEHOLD, &json!({}), &[])
        .expect("the previous chart");
    let (first, second) = (
        own.operator(&LEASEHOLD, "old-1", &[]).await,
        own.operator(&LEASEHOLD, "old-2", &[]).await,
    );
    let worker = worker(&own).await;
    let holders = Holders::begin(&own, locks(&worker).await).await;
    let mut led = LeaseWatch::of_the_lead(&own, &LEASEHOLD).await;

    let notes = own.installed(&LEASEHOLD, &json!({}));
    assert!(
        notes.contains("kubectl -n leasehold rollout status deployment/leasehold"),
        "{notes}"
    );
    // As the Deployment does: a new one is ready before an old one is asked to stop.
    let mut new = vec![];
    for (name, old) in [("new-1", first), ("new-2", second)] {
        let operator = own.operator(&LEASEHOLD, name, &[]).await;
        stands_by(&operator).await;
        stop(old).await;
        new.push(operator);
        holders.are_undisturbed().await;
    }
    let leads = async || {
        for operator in &new {
            if operator.metric("leasehold_leader").await == Some(1.0) {
                return true;
            }
        }
        false
    };
    new[0].eventually("a new one leads", leads).await;
    led.handed_over_at_once();

    let place = Place::new(&own.client, TEAM);
    place.make_free("after", 15).await;
    let last = holders.go_on().await;
    last.release().await.expect("it can be released");
}

/// Before there was a chart, people applied the definitions and ran the operator by hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_takes_over_what_kubectl_applied_with_held_locks() {
    let own = Own::start().await;
    own.make_namespace(TEAM).await;
    let definitions = previous_definitions();
    own.kubectl(&["apply", "-f", &definitions.to_string_lossy()]);
    own.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=60s",
    ]);
    let kubeconfig = own.cluster.kubeconfig();
    let by_hand = Operator::start_with(TEAM, "by-hand", &[], Some(&kubeconfig)).await;
    let holders = Holders::begin(&own, locks(&kubeconfig).await).await;

    let refused = own
        .install(&chart(), &LEASEHOLD, &json!({}), &[])
        .expect_err("it is somebody else's");
    assert!(
        refused.contains("distributedlocks.leasehold.dev") && refused.contains("ownership"),
        "{refused}"
    );
    own.install(
        &chart(),
        &LEASEHOLD,
        &json!({}),
        &["--take-ownership", "--force-conflicts"],
    )
    .expect("it is ours now");
    stop(by_hand).await;
    let operator = own.operator(&LEASEHOLD, "pod-1", &[]).await;
    operator.leads().await;
    Place::new(&own.client, TEAM).make_free("after", 15).await;
    holders
        .go_on()
        .await
        .release()
        .await
        .expect("it can be released");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uninstall_leaves_the_locks_to_their_holders_and_nothing_stuck() {
    let own = Own::start().await;
    own.make_namespace(TEAM).await;
    own.installed(&LEASEHOLD, &json!({}));
    let operator = own.operator(&LEASEHOLD, "pod-1", &[]).await;
    // The role for users goes with the release: an administrator holds here.
    let holders = Holders::begin(&own, locks(&own.cluster.kubeconfig()).await).await;
    // First, so that it can give the lead back: else the next one waits for a lease duration.
    stop(operator).await;
    own.uninstall(&LEASEHOLD);
    let roles = Api::<ClusterRole>::all(own.client.clone());
    let ours = ListParams::default().labels("app.kubernetes.io/instance=leasehold");
    let left = roles.list(&ours).await.expect("roles").items;
    assert!(left.is_empty(), "{left:?}");

    // Without an operator the one that renews goes on for more than a lease duration.
    let held = holders.place.lease("held").await;
    let transitions = held.record.spec.transitions;
    let beyond =
        held.record.spec.renew_time.expect("a time") + i64::from(LEASE_SECONDS) * 1_000_000;
    let renewed =
        |lease: &leasehold::lease::FoundLease| lease.record.spec.renew_time > Some(beyond);
    let held = holders
        .place
        .lease_is("held", "it is renewed on", renewed)
        .await;
    assert_eq!(held.record.spec.transitions, transitions);

    // A new release finds everything as it was.
    own.installed(&LEASEHOLD, &json!({}));
    let operator = own.operator(&LEASEHOLD, "pod-2", &[]).await;
    operator.leads().await;
    holders.are_undisturbed().await;
    stop(operator).await;
    own.uninstall(&LEASEHOLD);
    let place = Place::new(&own.client, TEAM);
    let last = holders.go_on().await;

    // Locks go though they are held, and their Leases with them; nothing waits for an operator that is gone.
    // The server forgets the policies within moments: they refuse to delete a held lock.
    let deleted = async || {
        own.try_kubectl(&["delete", "dlock", "--all", "--all-namespaces", DELETED])
            .is_ok()
    };
    until("held locks can be deleted", LONG, deleted).await;
    within(LONG, "the holder knows", last.lost()).await;
    let gone = |lease: Option<&_>| lease.is_none();
    let gone = await_condition(place.leases.clone(), "held", gone);
    let gone = within(COLLECTED, "the Lease goes with its lock", gone).await;
    gone.expect("a watch");
    for crd in crds() {
        own.kubectl(&["delete", "crd", &crd.name_any(), DELETED]);
    }
    for namespace in [TEAM, LEASEHOLD.namespace] {
        own.kubectl(&["delete", "namespace", namespace, DELETED]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_releases_side_by_side_look_after_their_own_namespaces() {
    const OTHER: Release = Release {
        name: "leasehold",
        namespace: "other",
        full_name: "leasehold",
    };
    let own = Own::start().await;
    for namespace in [TEAM, "team-b"] {
        own.make_namespace(namespace).await;
    }
    own.installed(&LEASEHOLD, &json!({"watchNamespaces": [TEAM]}));
    // The definitions belong to one release.
    let refused = own.install(
        &chart(),
        &OTHER,
        &json!({"watchNamespaces": ["team-b"]}),
        &[],
    );
    assert!(refused.is_err_and(|says| says.contains("ownership")));
    for watched in [json!([]), json!([TEAM, "team-b"])] {
        let values = json!({"watchNamespaces": watched, "crds": {"install": false}});
        let says = own
            .install(&chart(), &OTHER, &values, &[])
            .expect_err("they would fight");
        assert!(
            says.contains("leasehold-operator") && says.contains("watchNamespaces"),
            "{says}"
        );
    }
    own.installed(
        &OTHER,
        &json!({"watchNamespaces": ["team-b"], "crds": {"install": false}}),
    );

    let (ours, theirs) = (
        Place::new(&own.client, TEAM),
        Place::new(&own.client, "team-b"),
    );
    let first = own.operator(&LEASEHOLD, "pod-1", &[]).await;
    let second = own.operator(&OTHER, "pod-2", &[]).await;
    // Each has an election of its own.
    first.leads().await;
    second.leads().await;
    ours.make_free("nightly", 15).await;
    theirs.make_free("nightly", 2).await;
    stop(first).await;
    // Nobody opens this one, while the other release works on.
    ours.make("waiting", lasting(15)).await;
    theirs.take("nightly", "pod-3").await;
    let ended = theirs
        .lease_is("nightly", "its silent holder is ended", |lease| {
            lease.record.is_free()
        })
        .await;
    assert_eq!(
        ended.record.ended.map(|ended| ended.by).as_deref(),
        Some("pod-2")
    );
    let waiting = ours.locks.get("waiting").await.expect("the lock");
    assert!(!is_free(&waiting), "{waiting:?}");

    own.uninstall(&OTHER);
    stop(second).await;
    let first = own.operator(&LEASEHOLD, "pod-4", &[]).await;
    first.leads().await;
    ours.lock_is("waiting", "it is opened", is_free).await;
}
