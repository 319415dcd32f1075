//! The API server that tests run against.

use std::env;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{conditions, wait::await_condition};
use kube::{Client, Config, ResourceExt};
use leasehold::api::crds;

/// A client of the server that `cargo xtask test` started, as an administrator.
///
/// # Panics
///
/// Without one: a missing server is a failure, never a skip.
pub async fn client() -> Client {
    client_of(config().await)
}

/// A client that reaches a server in this way.
pub fn client_of(config: Config) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::try_from(config).expect("the server's certificates are good")
}

/// How to reach the server that `cargo xtask test` started.
pub async fn config() -> Config {
    let path = env::var_os("KUBECONFIG")
        .expect("KUBECONFIG is not set: this test needs an API server, run `cargo xtask test`");
    config_of(path.as_ref()).await
}

/// How to reach the server that this file names.
pub async fn config_of(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig can be read");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    config.expect("it names a server")
}

/// Installs the custom resource definitions of this tree, and waits until they are served.
pub async fn install_crds(client: &Client) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in crds() {
        let name = crd.name_any();
        let apply = PatchParams::apply("leasehold-test").force();
        api.patch(&name, &apply, &Patch::Apply(&crd))
            .await
            .expect("the server accepts the definition");
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        within(
            Duration::from_secs(30),
            "the definition is served",
            established,
        )
        .await
        .expect("it is watched");
    }
}

/// Runs `test` in a new namespace, which is deleted afterwards; a failed test leaves it to be looked at.
pub async fn with_namespace<T, F: Future<Output = T>>(
    client: &Client,
    test: impl FnOnce(String) -> F,
) -> T {
    let api = Api::<Namespace>::all(client.clone());
    let metadata = ObjectMeta {
        generate_name: Some("test-".to_owned()),
        ..ObjectMeta::default()
    };
    let namespace = Namespace {
        metadata,
        ..Namespace::default()
    };
    let made = api
        .create(&PostParams::default(), &namespace)
        .await
        .expect("a namespace can be made");
    let result = test(made.name_any()).await;
    api.delete(&made.name_any(), &DeleteParams::background())
        .await
        .expect("the namespace can be deleted");
    result
}

/// Waits for `future` at most so long; `what` says in the failure what did not happen.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(limit, future).await;
    done.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
}
