//! The node that tests share, with the chart installed in it, and a team's namespace for each test.

use std::fs;
use std::io::Write;

use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use xtask::cluster::{Cluster, Options};
use xtask::node::BUSYBOX;
use xtask::node::image::{PRODUCT, Stage, product};

use super::operator_rig::Place;
use super::release::{LEASEHOLD, Own};
use super::server::within;

/// A Pod starts in a second or two; this is for a machine that is busy elsewhere.
pub const LONG: Duration = Duration::from_secs(120);

/// The values of the release that tests share.
pub fn values() -> Value {
    json!({"image": {"tag": "dev"}, "injection": {"enabled": true}})
}

/// A node of one's own with the product's image and busybox on it, and nothing of ours installed.
pub fn node() -> Cluster {
    let cluster = Cluster::start(&Options {
        node: true,
        ..Options::default()
    })
    .expect("a node");
    let archive = product(Stage::Replaced).expect("the product's image");
    cluster.load(&archive).expect("the node takes it");
    cluster.load_busybox().expect("the node takes busybox");
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
        let mut child = self
            .cluster()
            .kubectl(["--namespace", &self.namespace, "apply", "--filename=-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("kubectl runs");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(manifests.as_bytes()).expect("it reads");
        drop(input);
        assert!(child.wait().expect("it ends").success(), "{manifests}");
    }

    /// Applies objects.
    pub fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.apply_text(&list.to_string());
    }

    /// Applies an example of the repository, with images that the node has in the place of those to be filled in.
    pub fn apply_example(&self, name: &str) {
        self.apply_text(&example(name));
    }

    pub fn pods(&self) -> Api<Pod> {
        self.place.pods()
    }

    /// Waits until a Pod shows this.
    pub async fn pod_is(&self, name: &str, what: &str, is_so: impl Fn(&Pod) -> bool) -> Pod {
        let so = await_condition(self.pods(), name, |pod: Option<&Pod>| {
            pod.is_some_and(&is_so)
        });
        let Ok(pod) = tokio::time::timeout(LONG, so).await else {
            let pod = self.pods().get(name).await;
            panic!("not within {LONG:?}: {name}: {what}: {pod:#?}");
        };
        pod.expect("a watch").expect("a pod")
    }

    /// Waits until a Pod is gone.
    pub async fn pod_goes(&self, name: &str) {
        let gone = await_condition(self.pods(), name, |pod: Option<&Pod>| pod.is_none());
        let gone = within(LONG, "the pod goes", gone).await;
        gone.expect("a watch");
    }

    /// What a container printed so far.
    pub fn logs(&self, pod: &str, container: &str) -> String {
        self.try_kubectl(&["logs", pod, "--container", container])
            .unwrap_or_default()
    }
}

/// An example's text, with images that the node has.
pub fn example(name: &str) -> String {
    let path = xtask::repository().join("examples").join(name);
    let text = fs::read_to_string(&path).expect("the example is there");
    text.replace("image: leasehold:latest", &format!("image: {PRODUCT}"))
        .replace("image: busybox", &format!("image: {BUSYBOX}"))
}
