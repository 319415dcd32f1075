//! The operator behind a proxy that records, delays and refuses: what is on the wire, and what a bad server does.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, PostParams};
use kube::{Client, Config};
use leasehold::api::{DistributedLockSpec, names};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::operator_rig::{Operator, Place, QUICK, in_place, is_free, lasting};
use super::server;

/// A request as it came by.
#[derive(Clone, Debug)]
pub struct Sent {
    method: String,
    pub path: String,
    body: Value,
}

impl Sent {
    /// Whether it changes anything.
    pub fn writes(&self) -> bool {
        self.method != "GET" && !self.path.contains("selfsubject")
    }

    /// Whether it is about the lead.
    pub fn is_of_the_election(&self) -> bool {
        let made = self.body["metadata"]["name"] == "leasehold-operator";
        self.path.ends_with("/leases/leasehold-operator") || self.path.ends_with("/leases") && made
    }
}

/// What is left of the writes to be answered once nothing is answered any more.
const SILENT: u64 = u64::MAX - 1;

/// Something between the operator and the server, without TLS.
#[derive(Clone)]
pub struct Proxy {
    server: Client,
    sent: Arc<Mutex<Vec<Sent>>>,
    /// Milliseconds by which each answer is late.
    pub delay: Arc<AtomicU64>,
    /// So many writes are still answered; the next one is applied, and from then on nothing is answered.
    answered_writes: Arc<AtomicU64>,
    /// Paths that are answered by 404.
    hidden: Arc<Mutex<Option<&'static str>>>,
    pub kubeconfig: PathBuf,
}

impl Proxy {
    pub async fn start() -> Self {
        Self::before(server::config().await).await
    }

    /// In front of the server that `config` names, as whom it names.
    async fn before(mut config: Config) -> Self {
        config.default_retry = false;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let kubeconfig = folder.join(format!("operator-wire-{}.json", address.port()));
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
            "users": [{"name": "nobody", "user": {}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).expect("it can be written");
        let proxy = Self {
            server: Client::try_from(config).expect("a client"),
            sent: Arc::default(),
            delay: Arc::default(),
            answered_writes: Arc::new(AtomicU64::new(u64::MAX)),
            hidden: Arc::default(),
            kubeconfig,
        };
        let router = Router::new().fallback(pass).with_state(proxy.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        proxy
    }

    /// What came by.
    pub fn sent(&self) -> Vec<Sent> {
        self.sent.lock().expect("the record").clone()
    }

    /// From now on so many writes are answered, and one more is applied.
    pub fn cut_after(&self, writes: u64) {
        self.answered_writes.store(writes, Ordering::SeqCst);
    }

    /// Whether that last one came.
    pub fn is_silent(&self) -> bool {
        self.answered_writes.load(Ordering::SeqCst) == SILENT
    }
}

async fn pass(State(proxy): State<Proxy>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a body");
    let path = head.uri.path().to_owned();
    let sent = Sent {
        method: head.method.to_string(),
        path: path.clone(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let writes = sent.writes();
    proxy.sent.lock().expect("the record").push(sent);
    if proxy.is_silent() {
        return std::future::pending().await;
    }
    // Counts down to the write that is applied and not answered.
    let count = |left: u64| match left {
        u64::MAX | SILENT => None,
        0 => Some(SILENT),
        more => Some(more - 1),
    };
    let last = writes
        && proxy
            .answered_writes
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, count)
            == Ok(0);
    if proxy
        .hidden
        .lock()
        .expect("a path")
        .is_some_and(|hidden| path.contains(hidden))
    {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
        return (StatusCode::NOT_FOUND, status.to_string()).into_response();
    }
    tokio::time::sleep(Duration::from_millis(proxy.delay.load(Ordering::Relaxed))).await;
    let mut onward = axum::http::Request::builder()
        .method(head.method)
        .uri(head.uri.path_and_query().expect("a path").as_str());
    for (name, value) in &head.headers {
        if name != "host" && name != "content-length" && name != "connection" {
            onward = onward.header(name, value);
        }
    }
    let onward = onward
        .body(kube::client::Body::from(body))
        .expect("a request");
    match proxy.server.send(onward).await {
        Ok(_) if last => std::future::pending().await,
        Ok(answer) => answer.map(Body::new),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

/// The whole life of a lock, with everything that the operator does to a Lease.
async fn live(place: &Place) {
    place.make_free("nightly", 2).await;
    let silent = place.take("nightly", "pod-3").await;
    place.is_shown("nightly", &silent).await;
    place.lock_is("nightly", "it is ended", is_free).await;
    let revoked = place.take("nightly", "pod-4").await;
    place
        .edit_lock(
            "nightly",
            &json!({"spec": {"minFencingToken": revoked.token.get() + 1}}),
        )
        .await;
    place.lock_is("nightly", "it is revoked", is_free).await;
    place.queue_up("a", "nightly").await;
    place.is_named("nightly", "a").await;
    place.claim_goes("a").await;
}

#[tokio::test]
async fn every_write_names_what_it_replaces() {
    in_place(async |place| {
        let proxy = Proxy::start().await;
        let mut operator =
            Operator::start_with(&place.namespace, "one", &[], Some(&proxy.kubeconfig)).await;
        operator.leads().await;
        live(&place).await;
        operator.signal(Signal::TERM);
        operator.ended().await;
        let sent = proxy.sent();
        let puts: Vec<_> = sent.iter().filter(|sent| sent.method == "PUT").collect();
        for kind in [
            "/leases/nightly",
            "/leases/leasehold-operator",
            "/distributedlocks/nightly/status",
            "/lockclaims/a/status",
        ] {
            assert!(
                puts.iter().any(|put| put.path.ends_with(kind)),
                "no write of {kind}"
            );
        }
        for put in puts {
            for field in ["resourceVersion", "uid"] {
                let value = put.body["metadata"][field].as_str().unwrap_or_default();
                assert!(!value.is_empty(), "no {field} in {put:?}");
            }
        }
        for other in sent.iter().filter(|sent| sent.path.contains("/leases")) {
            assert!(
                matches!(other.method.as_str(), "GET" | "PUT" | "POST"),
                "{other:?}"
            );
            if other.method == "POST"
                && !other.path.contains("leasehold-operator")
                && other.body["metadata"]["name"] == "nightly"
            {
                assert_eq!(
                    other.body["spec"]["holderIdentity"], "leasehold.dev/missing",
                    "no Lease is born free"
                );
            }
        }
        for delete in sent.iter().filter(|sent| sent.method == "DELETE") {
            assert!(
                delete.body["preconditions"]["uid"].is_string(),
                "{delete:?}"
            );
        }
        // A stopped leader's last word is the release of its lead.
        let last = sent
            .iter()
            .rfind(|sent| sent.method != "GET")
            .expect("a write");
        assert!(
            last.path.ends_with("/leases/leasehold-operator"),
            "{last:?}"
        );
    })
    .await;
}

/// kubernetes-sigs/controller-runtime#2719: stopping a standby runs leader-only work.
#[tokio::test]
async fn a_standby_writes_nothing_in_its_whole_life() {
    in_place(async |place| {
        let proxy = Proxy::start().await;
        let _leader = Operator::leading(&place.namespace).await;
        let mut standby =
            Operator::start_with(&place.namespace, "two", &[], Some(&proxy.kubeconfig)).await;
        standby.is_ready().await;
        live(&place).await;
        standby.signal(Signal::TERM);
        assert_eq!(standby.ended().await.code(), Some(0));
        let sent = proxy.sent();
        assert!(
            sent.iter()
                .any(|sent| sent.path.ends_with("/leases/leasehold-operator")),
            "it looked at the lead"
        );
        let wrote: Vec<_> = sent.iter().filter(|sent| sent.writes()).collect();
        assert!(wrote.is_empty(), "{wrote:?}");
    })
    .await;
}

/// ovn-kubernetes#3959, cloudnative-pg#8034: restarts on a slow API server.
#[tokio::test]
async fn a_slow_server_costs_no_lead_and_a_silent_one_no_restart() {
    in_place(async |place| {
        let proxy = Proxy::start().await;
        let times = [
            "--leader-lease-duration=5s",
            "--leader-renew-deadline=4s",
            "--leader-retry-period=500ms",
        ];
        let mut operator =
            Operator::start_with(&place.namespace, "one", &times, Some(&proxy.kubeconfig)).await;
        operator.leads().await;
        place.make_free("nightly", 60).await;
        let grant = place.take("nightly", "pod-3").await;
        place.is_shown("nightly", &grant).await;
        let term = || async {
            place
                .lease("leasehold-operator")
                .await
                .record
                .spec
                .transitions
        };
        let before = term().await;

        // Slow, for two lease durations: as many renewals are answered late as fit in.
        proxy.delay.store(1200, Ordering::Relaxed);
        let start = place
            .lease("leasehold-operator")
            .await
            .record
            .spec
            .renew_time;
        place
            .lease_is("leasehold-operator", "it renews all the same", |lease| {
                lease.record.spec.renew_time > start.map(|time| time + 10_000_000)
            })
            .await;
        assert_eq!(term().await, before, "the lead was never lost");

        // Silent: the lead is lost, the process stays, the user's hold is none of its business.
        proxy.delay.store(3_600_000, Ordering::Relaxed);
        operator
            .eventually("it stands by", async || {
                operator.metric("leasehold_leader").await == Some(0.0)
            })
            .await;
        // cilium#42920: a leader that lost the lead goes on writing. There is work, and it sees it.
        let before_work = proxy.sent().len();
        place.make("late", lasting(15)).await;
        operator
            .eventually("it sees the work", async || {
                operator.metric("leasehold_locks{phase=\"free\"}").await == Some(1.0)
            })
            .await;
        let after = proxy.sent().split_off(before_work);
        let wrote: Vec<_> = after
            .iter()
            .filter(|sent| sent.writes() && !sent.is_of_the_election())
            .collect();
        assert!(wrote.is_empty(), "{wrote:?}");
        proxy.delay.store(0, Ordering::Relaxed);
        operator.leads().await;
        assert!(operator.runs());
        assert_eq!(
            place.lease("nightly").await.record.current_token(),
            Some(grant.token)
        );
        place.lock_is("late", "it catches up", is_free).await;
    })
    .await;
}

/// argoproj/argo-workflows#8684, #4703, #4832: a controller that dies between two writes.
#[tokio::test]
async fn an_operator_that_dies_after_any_of_its_writes_leaves_nothing_stuck() {
    in_place(async |place| {
        // The Lease, the status that opens the lock, the freeing, and what follows; a renewal of the lead may come
        // between them. With two slots: two Leases, the status, two freeings.
        let one_slot = [(0, "a", 1), (1, "b", 1), (2, "c", 1), (3, "d", 1)];
        let two_slots = [(1, "e", 2), (2, "f", 2), (3, "g", 2)];
        for (writes, name, slots) in one_slot.into_iter().chain(two_slots) {
            let proxy = Proxy::start().await;
            let dying =
                Operator::start_with(&place.namespace, "dying", QUICK, Some(&proxy.kubeconfig))
                    .await;
            dying.leads().await;
            proxy.cut_after(writes);
            let spec = DistributedLockSpec {
                max_holders: slots,
                ..lasting(1)
            };
            place.make(name, spec).await;
            dying
                .eventually("its write is applied and not answered", async || {
                    proxy.is_silent()
                })
                .await;
            drop(dying);
            let heir = Operator::start(&place.namespace, "heir", QUICK).await;
            let lock = place.lock_is(name, "the heir gets it free", is_free).await;
            let grant = place.take(name, "pod-3").await;
            assert!(Some(grant.token) > lock.slot_token(0));
            let told = |lock: &leasehold::api::DistributedLock| {
                let history = lock
                    .status
                    .as_ref()
                    .map_or(&[][..], |status| &status.history);
                let tokens: Vec<_> = history.iter().map(|end| end.fencing_token).collect();
                is_free(lock) && tokens == [Some(grant.token)]
            };
            place.lock_is(name, "it is ended and told once", told).await;
            heir.signal(Signal::TERM);
        }
    })
    .await;
}

#[tokio::test]
async fn without_the_definitions_it_is_not_ready_and_says_how_to_install_them() {
    in_place(async |place| {
        let proxy = Proxy::start().await;
        *proxy.hidden.lock().expect("a path") = Some("customresourcedefinitions");
        let operator =
            Operator::start_with(&place.namespace, "one", &[], Some(&proxy.kubeconfig)).await;
        operator
            .eventually("it says so", async || {
                operator.get("/readyz").await.is_some_and(|(status, body)| {
                    status == 503 && body.contains(names::HOW_TO_INSTALL)
                })
            })
            .await;
        assert_eq!(
            operator.get("/livez").await.map(|(status, _)| status),
            Some(200)
        );
        let written = proxy
            .sent()
            .into_iter()
            .filter(|sent| {
                matches!(sent.method.as_str(), "PUT" | "DELETE")
                    || (sent.method == "POST" && !sent.path.contains("selfsubject"))
            })
            .count();
        assert_eq!(written, 0, "nothing is written before it is ready");
        *proxy.hidden.lock().expect("a path") = None;
        operator.leads().await;
    })
    .await;
}

/// rocketmq-operator#113: a missing verb shows as endless log lines of a process that looks healthy.
#[tokio::test]
async fn a_missing_permission_is_named_and_keeps_it_from_being_ready() {
    in_place(async |place| {
        let client = &place.client;
        let namespace = &place.namespace;
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
        let account = serde_json::from_value(json!({"metadata": {"name": "operator"}})).expect("an account");
        accounts.create(&PostParams::default(), &account).await.expect("an account");
        let rules = json!([
            {"apiGroups": ["leasehold.dev"], "resources": ["distributedlocks", "lockclaims"], "verbs": ["get", "list", "watch", "delete"]},
            {"apiGroups": ["leasehold.dev"], "resources": ["distributedlocks/status", "lockclaims/status"], "verbs": ["update"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "watch", "create"]},
        ]);
        let role: Role = serde_json::from_value(json!({"metadata": {"name": "operator"}, "rules": rules})).expect("a role");
        Api::<Role>::namespaced(client.clone(), namespace).create(&PostParams::default(), &role).await.expect("a role");
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": "operator"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
            "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}],
        }))
        .expect("a binding");
        let bindings = Api::<RoleBinding>::namespaced(client.clone(), namespace);
        bindings.create(&PostParams::default(), &binding).await.expect("a binding");
        let request = TokenRequest {
            spec: Some(TokenRequestSpec::default()),
            ..TokenRequest::default()
        };
        let token = accounts.create_token_request("operator", &PostParams::default(), &request).await.expect("a token");
        let token = token.status.and_then(|status| status.token).expect("a token");

        let mut config = server::config().await;
        config.auth_info = kube::config::AuthInfo {
            token: Some(token.into()),
            ..kube::config::AuthInfo::default()
        };
        let proxy = Proxy::before(config).await;
        let operator = Operator::start_with(namespace, "one", &[], Some(&proxy.kubeconfig)).await;
        let started = leasehold::clock::MonoInstant::now();
        operator
            .eventually("it names what is missing", async || {
                operator.get("/readyz").await.is_some_and(|(status, body)| {
                    status == 503
                        && body.contains("not allowed to update leases.coordination.k8s.io in namespace")
                        && body.contains("not allowed to watch pods in namespace")
                        && body.contains("customresourcedefinitions")
                })
            })
            .await;
        let took = leasehold::clock::MonoInstant::now().saturating_duration_since(started);
        assert!(took < Duration::from_secs(10), "after {took:?}");
        assert!(operator.metric("leasehold_permissions_missing").await >= Some(1.0));
        assert_eq!(operator.metric("leasehold_leader").await, Some(0.0));
        let lines = operator.log().lines().filter(|line| line.contains("not allowed to update")).count();
        assert_eq!(lines, 1, "it is said once");
    })
    .await;
}
