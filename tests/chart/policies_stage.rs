//! A namespace with a release of the chart's policies in it, and the accounts that act there.
//!
//! All tests of policies share one control plane: each release looks after its own namespace only (`watchNamespaces`).

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, DynamicObject, PostParams};
use kube::{Client, ResourceExt};
use leasehold::engine::PodRef;
use serde_json::{Value, json};
use xtask::cluster::{Cluster, Options};

use super::operator_rig::{Operator, Place};
use super::render::render;
use super::run_bench::{BUSY, Bench, until};
use super::server;

/// The release; its service account and the beginning of its names.
pub const RELEASE: &str = "leasehold";

static CLUSTER: OnceLock<Cluster> = OnceLock::new();

/// The control plane of these tests.
pub fn cluster() -> &'static Cluster {
    CLUSTER.get_or_init(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Cluster::start(&Options::default()).expect("a control plane")
    })
}

/// A namespace, and a release in it.
pub struct Stage {
    pub bench: Bench,
    pub cluster: &'static Cluster,
}

/// Somebody with a token.
#[derive(Clone)]
pub struct Actor {
    pub client: Client,
    pub token: String,
    pub kubeconfig: PathBuf,
    /// The Pod that the token is bound to.
    pub pod: Option<PodRef>,
}

impl Actor {
    /// The Pod as a grant names it.
    pub fn pod_text(&self) -> String {
        self.pod
            .as_ref()
            .map_or_else(|| "/".to_owned(), |pod| format!("{}/{}", pod.name, pod.uid))
    }
}

impl Stage {
    /// With the policies of these values, once they count.
    pub async fn new(values: &Value) -> Self {
        let stage = Self::bare(cluster()).await;
        stage.install(values).await;
        stage
    }

    /// A namespace of its own, without a release.
    pub async fn bare(cluster: &'static Cluster) -> Self {
        let bench = Bench::on(cluster).await;
        server::install_crds(&bench.client).await;
        let accounts: Api<ServiceAccount> = Api::namespaced(bench.client.clone(), &bench.namespace);
        until("the namespace has its service account", BUSY, async || {
            accounts
                .get_opt("default")
                .await
                .expect("accounts")
                .is_some()
        })
        .await;
        Self { bench, cluster }
    }

    pub fn namespace(&self) -> &str {
        &self.bench.namespace
    }

    /// The values of a release for this namespace alone.
    fn values(&self, values: &Value) -> Value {
        let mut all = json!({
            "watchNamespaces": [self.namespace()], "crds": {"install": false},
            "flowSchema": {"enabled": false},
        });
        merge(&mut all, values);
        all
    }

    /// Applies what a release consists of, and waits until its policies count.
    pub async fn install(&self, values: &Value) {
        super::policies_attempts::make_canaries(self).await;
        self.apply_release(values);
        super::policies_attempts::until_policies_count(self).await;
    }

    /// Applies what a release consists of but for its workload.
    pub fn apply_release(&self, values: &Value) {
        let objects = render(RELEASE, self.namespace(), &self.values(values));
        let kinds = [
            "ServiceAccount",
            "Role",
            "RoleBinding",
            "ClusterRole",
            "ClusterRoleBinding",
            "FlowSchema",
            "PriorityLevelConfiguration",
        ];
        let wanted = |object: &Value| {
            let kind = object["kind"].as_str().unwrap_or_default();
            kinds.contains(&kind) || kind.contains("AdmissionPolicy")
        };
        let objects: Vec<_> = objects.into_iter().filter(wanted).collect();
        self.apply(&objects);
    }

    /// What the names of its policies begin with.
    pub fn policies_name(&self) -> String {
        format!("{RELEASE}.{}", self.namespace())
    }

    /// Applies objects as an administrator.
    pub fn apply(&self, objects: &[Value]) {
        self.apply_in(self.namespace(), objects);
    }

    fn apply_in(&self, namespace: &str, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let mut apply = self
            .cluster
            .kubectl(["apply", "--server-side", "-n", namespace, "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl");
        let mut stdin = apply.stdin.take().expect("its input");
        stdin
            .write_all(list.to_string().as_bytes())
            .expect("it reads");
        drop(stdin);
        let done = apply.wait_with_output().expect("it ends");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }

    /// The server's administrator.
    pub fn place(&self) -> Place {
        Place::new(&self.bench.client, self.namespace())
    }

    /// The same as somebody else sees it.
    pub fn place_of(&self, actor: &Actor) -> Place {
        Place::new(&actor.client, self.namespace())
    }

    /// A service account that may do what these RBAC rules say.
    pub fn account(&self, name: &str, rules: &Value) {
        let meta = json!({"name": name, "namespace": self.namespace()});
        let rbac = "rbac.authorization.k8s.io";
        self.apply(&[
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}),
            json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": meta, "rules": rules}),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": meta,
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.namespace()}],
                "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            }),
        ]);
    }

    /// Gives the operator's account more rights than the chart does, as if RBAC had been edited: the policies must do.
    pub fn loosen_operator(&self) {
        let rbac = "rbac.authorization.k8s.io";
        let rules = json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "update", "patch", "delete"]}]);
        for namespace in [self.namespace(), "kube-public"] {
            let meta =
                json!({"name": format!("loose-{}", self.namespace()), "namespace": namespace});
            self.apply_in(namespace, &[
                json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": meta, "rules": rules}),
                json!({
                    "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": meta,
                    "subjects": [{"kind": "ServiceAccount", "name": RELEASE, "namespace": self.namespace()}],
                    "roleRef": {"apiGroup": rbac, "kind": "Role", "name": meta["name"]},
                }),
            ]);
        }
    }

    /// A Pod of an account, with a token that is bound to it. Nothing runs it.
    pub async fn pod(&self, name: &str, account: &str) -> Actor {
        let pods: Api<Pod> = Api::namespaced(self.bench.client.clone(), self.namespace());
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"serviceAccountName": account, "containers": [{"name": "main", "image": "none"}], "schedulerName": "nobody"},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        let pod = pods
            .create(&PostParams::default(), &pod)
            .await
            .expect("the pod is made");
        let uid = pod.uid().expect("a uid");
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        let mut actor = self.token(name, account, &bound).await;
        actor.pod = Some(PodRef {
            name: name.to_owned(),
            uid,
        });
        actor
    }

    /// An account by itself, from outside of any Pod.
    pub async fn person(&self, account: &str) -> Actor {
        self.token(&format!("{account}-outside"), account, &Value::Null)
            .await
    }

    async fn token(&self, name: &str, account: &str, bound: &Value) -> Actor {
        let mut request = json!({"spec": {"audiences": []}});
        if !bound.is_null() {
            request["spec"]["boundObjectRef"] = bound.clone();
        }
        let request: TokenRequest = serde_json::from_value(request).expect("a request");
        let accounts: Api<ServiceAccount> =
            Api::namespaced(self.bench.client.clone(), self.namespace());
        let made = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await;
        let token = made
            .expect("a token")
            .status
            .expect("a token")
            .token
            .expect("a token");
        let text = std::fs::read_to_string(self.bench.kubeconfig()).expect("a kubeconfig");
        let mut text: Value = serde_norway::from_str(&text).expect("a kubeconfig");
        text["users"][0]["user"] = json!({"token": token});
        let kubeconfig = self.bench.file(&format!("{name}.kubeconfig"));
        std::fs::write(&kubeconfig, text.to_string()).expect("a file");
        let mut config = server::config_of(&kubeconfig).await;
        // As the programs do: a refusal is a refusal.
        config.default_retry = false;
        Actor {
            client: server::client_of(config),
            token,
            kubeconfig,
            pod: None,
        }
    }

    /// The operator, as the chart's service account and with the rights that the chart gives it. Leads on return.
    pub async fn operator(&self) -> Operator {
        self.another_operator("operator").await
    }

    /// The same, as another Pod.
    pub async fn another_operator(&self, name: &str) -> Operator {
        let actor = self.pod(name, RELEASE).await;
        let election = format!("{RELEASE}-operator");
        let more = ["--leader-election-id", &election];
        let operator =
            Operator::start_with(self.namespace(), name, &more, Some(&actor.kubeconfig)).await;
        operator.leads().await;
        operator
    }

    /// The server's administrator, in a group that may do everything.
    pub fn admin(&self) -> Actor {
        Actor {
            client: self.bench.client.clone(),
            token: String::new(),
            kubeconfig: self.bench.kubeconfig().to_owned(),
            pod: None,
        }
    }

    /// Objects of a kind, through an actor's client.
    pub fn api(&self, client: &Client, kind: &str) -> Api<DynamicObject> {
        api(client, kind, self.namespace())
    }
}

/// Objects of a kind in a namespace.
pub fn api(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let plural = match kind {
        "Lease" => "leases",
        "DistributedLock" => "distributedlocks",
        "LockClaim" => "lockclaims",
        other => panic!("{other}"),
    };
    let group = api_version(kind);
    let (group, version) = group.split_once('/').expect("a version");
    let kind = kube::api::GroupVersionKind::gvk(group, version, kind);
    let resource = kube::api::ApiResource::from_gvk_with_plural(&kind, plural);
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// The version in which the tests write a kind.
pub fn api_version(kind: &str) -> &'static str {
    match kind {
        "Lease" => "coordination.k8s.io/v1",
        _ => "leasehold.dev/v1alpha1",
    }
}

/// What a Pod that uses these locks needs, as docs/policies.md says.
pub fn user_of(locks: &[&str], verbs: &[&str]) -> Value {
    let mut leases: Vec<String> = locks.iter().map(|lock| (*lock).to_owned()).collect();
    leases.extend(
        locks
            .iter()
            .flat_map(|lock| (1..4).map(move |slot| format!("{lock}.{slot}"))),
    );
    let on_locks = [&["get", "list", "watch"][..], verbs].concat();
    json!([
        {"apiGroups": ["leasehold.dev"], "resources": ["distributedlocks"], "resourceNames": locks, "verbs": on_locks},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": leases, "verbs": ["get", "list", "watch", "update"]},
        {"apiGroups": ["leasehold.dev"], "resources": ["lockclaims"], "verbs": ["create", "get", "list", "watch", "delete"]},
    ])
}

/// Puts `more` over `into`.
pub fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}
