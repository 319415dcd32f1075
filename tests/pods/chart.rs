//! A release of the chart from its install to its end, on a node of its own, and locks that Pods hold meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use leasehold::api::{ClaimPhase, LockClaimSpec};
use leasehold::clock::MonoInstant;
use leasehold::engine::Grant;
use serde_json::json;
use xtask::node::BUSYBOX;

use super::lease_watch::LeaseWatch;
use super::node::wrapped;
use super::operator_place::{fixed, with_pod};
use super::operator_rig::ends;
use super::release::{LEASEHOLD, Own};
use super::render::chart;
use super::run_bench::until;
use super::server::within;
use super::stage::{LONG, Team, node, pod, since, status_of};

const WORK: &str = "echo token $LEASEHOLD_FENCING_TOKEN; exec sleep 1000000";
const LOCKS: [&str; 3] = ["held", "seat", "bound"];
/// Of the lock that a Pod renews: an operator that disturbed it, or ended it, would be seen soon.
const LEASE_SECONDS: i32 = 10;
const OF_THE_RELEASE: &str = "app.kubernetes.io/instance=leasehold";
/// Kubectl waits until what it deletes is gone.
const DELETED: &str = "--timeout=2m";

/// Locks that are held in all the ways there are, and one who waits; all of it in Pods.
struct Holders<'a> {
    team: &'a Team,
    grants: Vec<Grant>,
}

impl<'a> Holders<'a> {
    async fn begin(team: &'a Team) -> Self {
        let place = &team.place;
        team.lock("held", LEASE_SECONDS).await;
        team.apply(&[wrapped("runner", "held", WORK)]);
        team.said("runner", "main", token_in).await;
        team.apply(&[wrapped("waiter", "held", WORK)]);
        place.has_waiters("held", 1).await;
        for (name, spec) in [("seat", fixed(600)), ("bound", with_pod("runner", None))] {
            place.make_free(name, 15).await;
            let lock_name = name.to_owned();
            place.claim(name, LockClaimSpec { lock_name, ..spec }).await;
            place.claim_in(name, ClaimPhase::Granted).await;
        }
        let mut grants = vec![];
        for name in LOCKS {
            let lease = place.lease(name).await;
            grants.push(lease.record.current_grant().expect("it is held").clone());
        }
        Self { team, grants }
    }

    /// Nobody has lost anything, and nobody else has got it.
    async fn are_undisturbed(&self) {
        for (name, grant) in LOCKS.iter().zip(&self.grants) {
            let lease = self.team.place.lease(name).await;
            assert_eq!(lease.record.current_grant(), Some(grant), "{name}");
            let lock = self.team.place.locks.get(name).await.expect("the lock");
            assert_eq!(ends(&lock), [], "{name} was never ended");
        }
        for name in ["runner", "waiter"] {
            let pod = self.team.container_runs(name, "main").await;
            let status = status_of(&pod, "main").expect("it runs");
            assert_eq!(status.restart_count, 0, "{name}");
        }
        let said = self.team.logs("waiter", "main");
        assert_eq!(token_in(&said), None, "it waits: {said}");
        let claims = self.team.place.claims.list(&ListParams::default()).await;
        assert_eq!(claims.expect("claims").items.len(), 3, "one of them waits");
    }

    /// Whoever waits has it once the holder's Pod is deleted.
    async fn go_on(&self) {
        let delete = ["delete", "pod", "runner", "--wait=false"];
        self.team.kubectl(&delete);
        let token = self.team.said("waiter", "main", token_in).await;
        let before = self.grants[0].token.get();
        assert!(token > before, "{token} after {before}");
    }
}

fn token_in(said: &str) -> Option<i64> {
    let mut lines = said.lines();
    lines.find_map(|line| line.strip_prefix("token ")?.parse().ok())
}

async fn own_node() -> Own {
    let node = tokio::task::spawn_blocking(node).await.expect("a node");
    Own::at(Arc::new(node)).await
}

/// The replicas of the release that are to stay.
async fn replicas(own: &Own) -> Vec<Pod> {
    let pods = Api::<Pod>::namespaced(own.client.clone(), LEASEHOLD.namespace);
    let of_the_release = ListParams::default().labels(OF_THE_RELEASE);
    let pods = pods.list(&of_the_release).await.expect("pods").items;
    let stay = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
    pods.into_iter().filter(stay).collect()
}

fn names(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_keep_every_lock_held_and_hand_the_lead_over_within_a_second() {
    let own = own_node().await;
    let values = |round: &str| {
        let annotations = json!({"example.com/round": round});
        json!({"image": {"tag": "dev"}, "podAnnotations": annotations})
    };
    own.install(&own.previous_chart(), &LEASEHOLD, &values("0"), &["--wait"])
        .expect("the previous chart");
    let team = Team::on(own).await;
    let own = &team.own;
    let holders = Holders::begin(&team).await;

    // From the previous version, which had no policies; then a mere change of the Pods.
    for round in ["1", "2"] {
        let old = names(&replicas(own).await);
        let mut led = LeaseWatch::of_the_lead(own, &LEASEHOLD).await;
        own.install(&chart(), &LEASEHOLD, &values(round), &["--wait"])
            .expect("the upgrade");
        let new = names(&replicas(own).await);
        assert_eq!((old.len(), new.len()), (2, 2), "{old:?} {new:?}");
        assert!(new.is_disjoint(&old), "{old:?} {new:?}");
        // The last old one may be about to go.
        let leader = led.until(|name| new.contains(name));
        within(LONG, "a new one leads", leader).await;
        println!(
            "upgrade {round}: nobody led for {:?}",
            led.handed_over_at_once()
        );
        holders.are_undisturbed().await;
    }
    team.place.make_free("after", 15).await;
    holders.go_on().await;
}

/// The arguments of the README's `helm install`, with this tree's chart.
fn as_the_readme_says() -> Vec<String> {
    let readme = fs::read_to_string(xtask::repository().join("README.md")).expect("README.md");
    let mut lines = readme.lines();
    let line = lines.find_map(|line| line.strip_prefix("helm install "));
    let words = line.expect("a line that installs").split_whitespace();
    let words = words.map(|word| match word {
        "charts/leasehold" => chart().to_string_lossy().into_owned(),
        word => word.to_owned(),
    });
    ["install".to_owned()].into_iter().chain(words).collect()
}

/// Installs it into a namespace where nothing but restricted Pods is let in.
async fn install_restricted(own: &Own) {
    own.make_namespace(LEASEHOLD.namespace).await;
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    own.kubectl(&["label", "namespace", LEASEHOLD.namespace, restricted]);
    let in_release = ["--namespace", LEASEHOLD.namespace];
    let root = [
        "run",
        "root",
        "--privileged",
        "--image",
        BUSYBOX,
        "--dry-run=server",
    ];
    // The server learns of the label, and makes the namespace's account, a moment later.
    until("nothing else is let in", LONG, async || {
        let tried = own.try_kubectl(&[&in_release[..], &root].concat());
        tried.is_err_and(|says| says.contains("violates PodSecurity"))
    })
    .await;

    let began = MonoInstant::now();
    let args = as_the_readme_says();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let notes = own.helm(&args).expect("it can be installed");
    println!("installed after {:?}", since(began));
    let next = "kubectl -n leasehold rollout status deployment/leasehold";
    assert!(notes.contains(next), "{notes}");
    let kinds = "networkpolicy/leasehold,poddisruptionbudget/leasehold";
    for object in kinds.split(',') {
        own.kubectl(&[&in_release[..], &["get", object]].concat());
    }
}

/// The kubelet's probes pass, and another Pod reads what the replicas tell.
async fn replicas_answer(team: &Team) {
    let replicas = replicas(&team.own).await;
    assert_eq!(replicas.len(), 2);
    for pod in &replicas {
        let status = status_of(pod, "operator").expect("its status");
        assert!(status.ready && status.restart_count == 0, "{status:?}");
    }
    let raw = ["get", "--raw", "/api/v1/nodes/node/proxy/metrics/probes"];
    until("the kubelet's probes succeed", LONG, async || {
        let probes = team.kubectl(&raw);
        let passed = |name: &str, kind: &str| {
            let words = [
                format!("pod=\"{name}\""),
                format!("probe_type=\"{kind}\""),
                "result=\"successful\"".to_owned(),
            ];
            let mut lines = probes.lines();
            lines.any(|line| words.iter().all(|word| line.contains(word)))
        };
        let mut names = replicas.iter().map(ResourceExt::name_any);
        names.all(|name| passed(&name, "Liveness") && passed(&name, "Readiness"))
    })
    .await;

    let mut addresses: Vec<_> = replicas
        .iter()
        .filter_map(|pod| pod.status.as_ref()?.pod_ip.clone())
        .collect();
    addresses.sort();
    let listed = [
        "--namespace=leasehold",
        "get",
        "endpointslices",
        "--selector=kubernetes.io/service-name=leasehold",
        "--output=jsonpath={.items[*].endpoints[*].addresses[*]}",
    ];
    until("the Service lists them", LONG, async || {
        let listed = team.kubectl(&listed);
        let mut listed: Vec<_> = listed.split(' ').collect();
        listed.sort_unstable();
        listed == addresses
    })
    .await;

    team.apply(&[pod("reader", BUSYBOX, &["sleep", "1000000"])]);
    team.container_runs("reader", "main").await;
    let get = |address: &str, path: &str| {
        let url = format!("http://{address}:8080{path}");
        team.try_kubectl(&["exec", "reader", "--", "busybox", "wget", "-qO-", &url])
    };
    for address in &addresses {
        for path in ["/livez", "/readyz"] {
            get(address, path).expect("it answers");
        }
    }
    until("one of them says that it leads", LONG, async || {
        let told = addresses.iter().map(|address| get(address, "/metrics"));
        let leads = |told: &Result<String, String>| {
            let told = told.as_ref().map_or("", String::as_str);
            told.lines().any(|line| line == "leasehold_leader 1")
        };
        told.filter(leads).count() == 1
    })
    .await;
}

async fn another_leads_after_a_forced_delete_of_the_leaders_pod(team: &Team) {
    let mut led = LeaseWatch::of_the_lead(&team.own, &LEASEHOLD).await;
    let (leader, _) = led.until(|_| true).await;
    let pod = ["--namespace=leasehold", "delete", "pod", &leader];
    let began = MonoInstant::now();
    team.kubectl(&[&pod[..], &["--force", "--grace-period=0"]].concat());
    let next = led.until(|name| name != leader);
    within(LONG, "another one leads", next).await;
    println!("another leads {:?} after the delete", since(began));
    team.place.make_free("opened", 15).await;
    let whole = ["rollout", "status", "deployment/leasehold", DELETED];
    team.kubectl(&[&["--namespace=leasehold"][..], &whole].concat());
}

/// Whatever a release consists of but its definitions is gone.
fn nothing_of_it_is_left(team: &Team) {
    let gone = ["wait", "--for=delete", "pod", "--selector", OF_THE_RELEASE];
    team.kubectl(&[&["--namespace=leasehold"][..], &gone, &[DELETED]].concat());
    let kinds = "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,deployments,services,\
                 networkpolicies,poddisruptionbudgets,validatingadmissionpolicies,\
                 validatingadmissionpolicybindings,flowschemas,prioritylevelconfigurations";
    let all = ["--all-namespaces", "--output=name", "--selector"];
    let left = team.kubectl(&[&["get", kinds][..], &all, &[OF_THE_RELEASE]].concat());
    assert_eq!(left, "");
    definitions_stay(team);
}

fn definitions_stay(team: &Team) {
    let names = ["distributedlocks.leasehold.dev", "lockclaims.leasehold.dev"];
    let left = "--output=jsonpath={.items[*].metadata.deletionTimestamp}";
    let leaving = team.kubectl(&[&["get", "crd"][..], &names, &[left]].concat());
    assert_eq!(leaving, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_comes_as_the_readme_says_works_restricted_and_leaves_nothing_stuck() {
    let own = own_node().await;
    install_restricted(&own).await;
    let team = Team::on(own).await;
    replicas_answer(&team).await;
    another_leads_after_a_forced_delete_of_the_leaders_pod(&team).await;

    let holders = Holders::begin(&team).await;
    team.own.uninstall(&LEASEHOLD);
    nothing_of_it_is_left(&team);
    // Without an operator the one that renews goes on for more than a lease duration.
    let held = team.place.lease("held").await.record.spec;
    let beyond = held.renew_time.expect("a time") + i64::from(LEASE_SECONDS) * 1_000_000;
    team.place
        .lease_is("held", "it is renewed on", |lease| {
            lease.record.spec.renew_time > Some(beyond)
        })
        .await;
    holders.are_undisturbed().await;
    holders.go_on().await;
    // The server forgets the policies within moments: they refuse to delete a held lock.
    until("a held lock can be deleted", LONG, async || {
        team.try_kubectl(&["delete", "dlock", "seat", DELETED])
            .is_ok()
    })
    .await;
    let lease = team.place.lease("bound").await;
    assert_eq!(lease.record.current_grant(), Some(&holders.grants[2]));
    for namespace in [&*team.namespace, LEASEHOLD.namespace] {
        team.kubectl(&["delete", "namespace", namespace, DELETED]);
    }
    definitions_stay(&team);
}
