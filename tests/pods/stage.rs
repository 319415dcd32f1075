//! The node that tests share, with the chart installed in it, and a team's namespace for each test.

use std::fmt::Debug;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Namespace, Pod};
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, Resource, ResourceExt};
use leasehold::api::names;
use leasehold::clock::MonoInstant;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use xtask::cluster::{Cluster, Options};
use xtask::node::BUSYBOX;
use xtask::node::image::{PRODUCT, Stage, product, program};
use xtask::node::oci::Entry;

use super::operator_rig::Place;
use super::release::{LEASEHOLD, Own};
use super::run_bench::until;
use super::server::within;

/// A Pod starts in a second or two; this is for a machine that is busy elsewhere.
pub const LONG: Duration = Duration::from_mins(2);

/// Busybox with our program beside it, as people put it into the image of a command that they wrap.
pub const WRAPPED: &str = "localhost/wrapped:1";

/// The values of the release that tests share.
pub fn values() -> Value {
    json!({"image": {"tag": "dev"}, "injection": {"enabled": true}})
}

/// A node of one's own with the product's image, busybox and [`WRAPPED`] on it, and nothing of ours installed.
pub fn node() -> Cluster {
    // Once a process: it is the same for all nodes.
    static IMAGE: LazyLock<PathBuf> =
        LazyLock::new(|| product(Stage::Replaced).expect("the product's image"));
    static PROGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let program = program().expect("the program of the image");
        fs::read(program).expect("it can be read")
    });
    let image = &*IMAGE;
    let cluster = Cluster::start(&Options {
        node: true,
        ..Options::default()
    })
    .expect("a node");
    cluster.load(image).expect("the node takes the image");
    cluster.load_busybox().expect("the node takes busybox");
    let program = Entry::Program("bin/leasehold", &PROGRAM);
    cluster
        .load_busybox_with(WRAPPED, vec![program])
        .expect("the node takes a wrapped command's image");
    cluster
}

/// The node that tests share. It ends with this process.
fn shared() -> Arc<Cluster> {
    static NODE: OnceLock<Arc<Cluster>> = OnceLock::new();
    NODE.get_or_init(|| Arc::new(node())).clone()
}

/// A namespace on the shared node, in which a release of the chart looks after locks under policies that deny.
pub struct Team {
    pub own: Own,
    pub client: Client,
    pub namespace: String,
    pub place: Place,
}

impl Team {
    /// On the node that tests share.
    pub async fn new() -> Self {
        static INSTALLED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
        // Minutes, if the image is to be built; other tests of this thread have nothing to do meanwhile.
        let cluster = tokio::task::spawn_blocking(shared).await.expect("a node");
        let own = Own::at(cluster).await;
        INSTALLED
            .get_or_init(async || {
                own.install(&super::render::chart(), &LEASEHOLD, &values(), &["--wait"])
                    .expect("it can be installed");
                until_it_injects(&own.client).await;
            })
            .await;
        Self::on(own).await
    }

    /// On a node of the test's own, in which a release is already, or is to come.
    pub async fn on(own: Own) -> Self {
        let api = Api::<Namespace>::all(own.client.clone());
        let made = Namespace {
            metadata: ObjectMeta {
                generate_name: Some("team-".to_owned()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let made = api.create(&PostParams::default(), &made).await;
        let namespace = made.expect("a namespace can be made").name_any();
        let place = Place::new(&own.client, &namespace);
        Box::pin(place.has_account()).await;
        Self {
            client: own.client.clone(),
            own,
            namespace,
            place,
        }
    }

    /// Deletes the namespace with all that is in it, in the background; a failed test leaves it to be looked at.
    pub async fn finish(self) {
        let api = Api::<Namespace>::all(self.client.clone());
        let background = DeleteParams::background();
        let deleted = api.delete(&self.namespace, &background).await;
        deleted.expect("the namespace can be deleted");
    }

    pub fn cluster(&self) -> &Cluster {
        &self.own.cluster
    }

    /// Runs kubectl in the namespace, which must do it; what it prints.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).expect("kubectl does it")
    }

    /// What kubectl prints, else what it says.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.cluster().kubectl(["--namespace", &self.namespace]);
        let output = command.args(args).output().expect("kubectl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (done, says) = (output.status.success(), text(&output.stderr));
        done.then(|| text(&output.stdout))
            .ok_or_else(|| format!("kubectl {args:?}: {says}"))
    }

    /// Applies manifests as people do.
    pub fn apply_text(&self, manifests: &str) {
        self.tell_kubectl(&["apply", "--filename=-"], manifests)
            .expect("kubectl applies it");
    }

    /// Applies objects.
    pub fn apply(&self, objects: &[Value]) {
        self.apply_text(&list_of(objects));
    }

    /// Makes objects as a service account of the namespace; what the server says where it refuses.
    pub fn create_as(&self, account: &str, objects: &[Value]) -> Result<(), String> {
        let user = format!("--as=system:serviceaccount:{}:{account}", self.namespace);
        self.tell_kubectl(&["create", &user, "--filename=-"], &list_of(objects))
    }

    /// Runs kubectl in the namespace with this as its input; what it says where it fails.
    fn tell_kubectl(&self, args: &[&str], input: &str) -> Result<(), String> {
        let mut child = self
            .cluster()
            .kubectl(["--namespace", &self.namespace])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl runs");
        let mut pipe = child.stdin.take().expect("a pipe");
        pipe.write_all(input.as_bytes()).expect("it reads");
        drop(pipe);
        let done = child.wait_with_output().expect("it ends");
        let says = String::from_utf8_lossy(&done.stderr).into_owned();
        let succeeded = done.status.success();
        succeeded.then_some(()).ok_or(says)
    }

    /// A service account that may do what these rules of RBAC say.
    pub fn account(&self, name: &str, rules: &Value) {
        let rbac = "rbac.authorization.k8s.io";
        let meta = json!({"name": name});
        self.apply(&[
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}),
            json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": meta, "rules": rules}),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": meta,
                "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.namespace}],
            }),
        ]);
    }

    pub fn pods(&self) -> Api<Pod> {
        self.place.pods()
    }

    /// Waits until a Pod shows this.
    pub async fn pod_is(&self, name: &str, what: &str, is_so: impl Fn(&Pod) -> bool) -> Pod {
        shows(self.pods(), name, what, is_so).await
    }

    /// Waits until a Pod is gone.
    pub async fn pod_goes(&self, name: &str) {
        let gone = await_condition(self.pods(), name, |pod: Option<&Pod>| pod.is_none());
        let gone = Box::pin(within(LONG, "the pod goes", gone)).await;
        gone.expect("a watch");
    }

    /// Waits until a container of a Pod runs.
    pub async fn container_runs(&self, pod: &str, container: &str) -> Pod {
        let what = format!("{container} runs");
        self.pod_is(pod, &what, |pod| {
            status_of(pod, container).is_some_and(|status| {
                let state = status.state.as_ref();
                state.is_some_and(|state| state.running.is_some())
            })
        })
        .await
    }

    /// What a container printed, once that says something.
    pub async fn said<T>(&self, pod: &str, container: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let give_up = MonoInstant::now() + LONG;
        loop {
            let logs = self.logs(pod, container);
            if let Some(found) = find(&logs) {
                return found;
            }
            let late = MonoInstant::now() > give_up;
            assert!(!late, "not within {LONG:?}: {pod}/{container}: {logs}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What a container printed so far.
    pub fn logs(&self, pod: &str, container: &str) -> String {
        self.try_kubectl(&["logs", pod, "--container", container])
            .unwrap_or_default()
    }
}

/// Waits until an object shows this.
pub async fn shows<K>(api: Api<K>, name: &str, what: &str, is_so: impl Fn(&K) -> bool) -> K
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let so = await_condition(api.clone(), name, |object: Option<&K>| {
        object.is_some_and(&is_so)
    });
    let Ok(object) = tokio::time::timeout(LONG, so).await else {
        let object = api.get(name).await;
        panic!("not within {LONG:?}: {name}: {what}: {object:#?}");
    };
    object.expect("a watch").expect("an object")
}

/// A server learns of policies a moment after they are made.
async fn until_it_injects(client: &Client) {
    let mut asks = pod("asks", PRODUCT, &[]);
    asks["metadata"]["annotations"] = json!({names::ANNOTATION_LOCK: "nightly"});
    asks["spec"]["terminationGracePeriodSeconds"] = json!(4);
    let asks = serde_json::from_value(asks).expect("a pod");
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until("the server injects", LONG, async || {
        let made: Pod = pods.create(&dry_run, &asks).await.expect("a pod");
        made.spec.is_some_and(|spec| spec.init_containers.is_some())
    })
    .await;
}

/// How long something took that began then.
pub fn since(began: MonoInstant) -> Duration {
    MonoInstant::now().saturating_duration_since(began)
}

/// What a Pod's account needs to hold this lock, and no more: as docs/policies.md tells.
pub fn least_rights(lock: &str) -> Value {
    json!([
        {
            "apiGroups": ["leasehold.dev"], "resources": ["distributedlocks"], "resourceNames": [lock],
            "verbs": ["get", "list", "watch", "use"],
        },
        {
            "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [lock],
            "verbs": ["get", "list", "watch", "update"],
        },
        {
            "apiGroups": ["leasehold.dev"], "resources": ["lockclaims"],
            "verbs": ["create", "get", "list", "watch", "delete"],
        },
    ])
}

/// A Pod of one container `main` that the restricted Pod security standard lets in.
pub fn pod(name: &str, image: &str, command: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "main", "image": image, "command": command,
                "securityContext": {
                    "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                },
            }],
        },
    })
}

/// What the kubelet says of a container, native sidecars included.
pub fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let apps = status.container_statuses.iter().flatten();
    let inits = status.init_container_statuses.iter().flatten();
    apps.chain(inits).find(|status| status.name == container)
}

fn list_of(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

/// An example's text, with images that the node has.
pub fn example(name: &str) -> String {
    let path = xtask::repository().join("examples").join(name);
    let text = fs::read_to_string(&path).expect("the example is there");
    text.replace("image: leasehold:latest", &format!("image: {PRODUCT}"))
        .replace("image: busybox", &format!("image: {BUSYBOX}"))
        .replace("image: your-app:latest", &format!("image: {WRAPPED}"))
}
