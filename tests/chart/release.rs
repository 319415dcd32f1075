//! A cluster of a test's own, and releases of the chart in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use xtask::cluster::{Cluster, Options};
use xtask::folder::OwnedFolder;
pub use xtask::helm::{LEASEHOLD, Release};

use super::operator_rig::Operator;
use super::render::{chart, helm};
use super::server::{client_of, config_of};

/// A control plane, without anything of ours in it.
pub struct Own {
    // Before the folder: the API server writes into it.
    pub cluster: Arc<Cluster>,
    pub client: Client,
    folder: OwnedFolder,
}

impl Own {
    pub async fn start() -> Self {
        Self::start_with(|_| Options::default()).await
    }

    /// The options may name files in a folder of the test's own.
    pub async fn start_with(options: impl FnOnce(&Path) -> Options) -> Self {
        let folder = own_folder();
        let cluster = Cluster::start(&options(folder.path())).expect("a control plane");
        Self::of(Arc::new(cluster), folder).await
    }

    /// A running cluster that others use, too.
    #[allow(dead_code, reason = "only tests in Pods share one")]
    pub async fn at(cluster: Arc<Cluster>) -> Self {
        Self::of(cluster, own_folder()).await
    }

    async fn of(cluster: Arc<Cluster>, folder: OwnedFolder) -> Self {
        let client = client_of(config_of(&cluster.kubeconfig()).await);
        Self {
            cluster,
            client,
            folder,
        }
    }

    /// A file in the test's own folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub async fn make_namespace(&self, name: &str) {
        let namespace = serde_json::from_value::<Namespace>(json!({"metadata": {"name": name}}));
        let api = Api::<Namespace>::all(self.client.clone());
        let made = api
            .create(&PostParams::default(), &namespace.expect("a namespace"))
            .await;
        made.expect("it is made");
    }

    /// Kubectl, which must do it.
    pub fn kubectl(&self, args: &[&str]) {
        self.try_kubectl(args).expect("kubectl does it");
    }

    /// Whether kubectl does it, else what it says.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<(), String> {
        let output = self
            .cluster
            .kubectl(args.iter().copied())
            .output()
            .expect("kubectl runs");
        let says = String::from_utf8_lossy(&output.stderr);
        let done = output.status.success();
        done.then_some(())
            .ok_or_else(|| format!("{args:?}: {says}"))
    }

    /// Whether Helm does it, and what it says.
    pub fn helm(&self, args: &[&str]) -> Result<String, String> {
        let mut command = helm();
        let output = command
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .args(args)
            .output();
        let output = output.expect("helm runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            Ok(said)
        } else {
            Err(said + &String::from_utf8_lossy(&output.stderr))
        }
    }

    /// Installs a release, or upgrades it; the notes.
    pub fn install(
        &self,
        chart: &Path,
        release: &Release,
        values: &Value,
        more: &[&str],
    ) -> Result<String, String> {
        xtask::helm::install(&self.cluster, chart, release, values, more)
            .map_err(|error| error.to_string())
    }

    /// The same with this tree's chart, which must work.
    pub fn installed(&self, release: &Release, values: &Value) -> String {
        self.install(&chart(), release, values, &[])
            .expect("it can be installed")
    }

    /// A chart of the version before: its definitions, and nothing that came later.
    ///
    /// The last commit before the chart (2640411) has definitions and no manifests, and its operator takes the arguments
    /// of today's. So its chart is this tree's without the policies. The program in it is this tree's, which is why the
    /// definitions have one field more: to build the old one takes minutes of each test, and the repository's history.
    /// It was built by hand once (November 2026), as an image for the operator and for the holders' Pods, with the
    /// definitions as they were: `upgrades_keep_every_lock_held_and_hand_the_lead_over_within_a_second` passed with it,
    /// nobody led for 17 ms.
    pub fn previous_chart(&self) -> PathBuf {
        let previous = self.file("previous");
        xtask::folder::copy(&chart(), &previous).expect("a copy");
        let about = previous.join("Chart.yaml");
        let text = fs::read_to_string(&about).expect("Chart.yaml");
        let text = text.replace("ersion: 0.1.0", "ersion: 0.0.9");
        assert!(text.contains("\nversion: 0.0.9\n"), "{text}");
        fs::write(about, text).expect("it can be written");
        let templates = previous.join("templates");
        let _ = fs::remove_dir_all(templates.join("policies"));
        for name in ["distributedlocks.yaml", "lockclaims.yaml"] {
            let text = fs::read_to_string(previous_definitions().join(name));
            let kept = "metadata:\n  annotations: {helm.sh/resource-policy: keep}\n";
            let text = text
                .expect("the definition")
                .replacen("metadata:\n", kept, 1);
            fs::write(templates.join("crds").join(name), text).expect("it can be written");
        }
        previous
    }

    pub fn uninstall(&self, release: &Release) {
        let args = [
            "uninstall",
            release.name,
            "--namespace",
            release.namespace,
            "--wait",
        ];
        self.helm(&args).expect("it can be uninstalled");
    }

    /// A kubeconfig of a service account.
    pub async fn account(&self, namespace: &str, name: &str) -> PathBuf {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let request = TokenRequest::default();
        let token = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await;
        let token = token.expect("a token").status.expect("a token").token;
        let text = fs::read_to_string(self.cluster.kubeconfig()).expect("a kubeconfig");
        let mut kubeconfig: Value = serde_norway::from_str(&text).expect("YAML");
        kubeconfig["users"][0]["user"] = json!({"token": token});
        let path = self.file(&format!(
            "{namespace}-{name}-{:016x}.kubeconfig",
            rand::random::<u64>()
        ));
        fs::write(&path, kubeconfig.to_string()).expect("it can be written");
        path
    }

    /// A replica of a release's operator: the container of its Deployment, word by word, as its service account.
    pub async fn operator(&self, release: &Release, pod: &str, more: &[&str]) -> Operator {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), release.namespace);
        let deployment = api.get(release.full_name).await.expect("a Deployment");
        let pod_spec = deployment.spec.template.spec.expect("a Pod");
        let account = pod_spec.service_account_name.expect("an account");
        let container = pod_spec.containers.into_iter().next().expect("a container");
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        // The port is another one, since replicas share this machine; the log is for people; and what a test sets.
        let ours = ["--http-addr=127.0.0.1:0", "--log-format=text"];
        let ours = [&ours[..], more].concat();
        let is_ours = |arg: &str| {
            ours.iter()
                .any(|own| own.split('=').next() == arg.split('=').next())
        };
        let args = container
            .args
            .into_iter()
            .flatten()
            .filter(|arg| !is_ours(arg));
        command.args(args).args(&ours);
        for variable in container.env.into_iter().flatten() {
            let from = variable.value_from.and_then(|from| from.field_ref);
            let value = match from.as_ref().map(|from| from.field_path.as_str()) {
                Some("metadata.name") => pod.to_owned(),
                Some("metadata.namespace") => release.namespace.to_owned(),
                Some(other) => panic!("a field that this test does not know: {other}"),
                None => variable.value.unwrap_or_default(),
            };
            command.env(variable.name, value);
        }
        command.env(
            "KUBECONFIG",
            self.account(release.namespace, &account).await,
        );
        Operator::spawn(command).await
    }
}

/// The definitions of the version before the chart, as `kubectl apply -f crds/` had them.
pub fn previous_definitions() -> PathBuf {
    xtask::repository().join("tests/chart/previous")
}

fn own_folder() -> OwnedFolder {
    let folder = OwnedFolder::new(&std::env::temp_dir(), "leasehold-chart", 0o700);
    folder.expect("a folder")
}
