//! The contenders of one telling: Pods in a namespace of its own, with the account and the rights that `leasehold run`
//! needs.

use std::path::PathBuf;
use std::pin::pin;

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ContainerState, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::wait::await_condition;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use super::GRACE;
use super::stage::{IMAGE, PROGRAM, Stage};
use crate::chronicle::Plot;
use crate::ledger::PASSWORD;
use crate::pod::{Exit, News};
use crate::record::pod_name;
use crate::said::now;
use crate::stage::{LOCK, make_namespace, ready};

/// The name of the account, the role, the secret, and of the one container of each Pod.
const NAME: &str = "billing";

/// Running contenders. What they say and what becomes of them goes to the chronicle while this lives.
pub(super) struct Cast {
    /// Where they are.
    pub(super) namespace: String,
    /// Their objects.
    pub(super) api: Api<Pod>,
    logs: Vec<PathBuf>,
    _listeners: JoinSet<()>,
}

impl Cast {
    /// Makes them, and waits until all run.
    pub(super) async fn start(
        stage: &Stage,
        plot: Plot,
        work: &[String],
        news: &UnboundedSender<(usize, News)>,
    ) -> Result<Self> {
        let namespace = format!("{NAME}-{}", plot.kind.name());
        let client = &stage.client;
        make_namespace(client, &namespace).await?;
        let [account, role, binding] = rights();
        make(
            &Api::<ServiceAccount>::namespaced(client.clone(), &namespace),
            account,
        )
        .await?;
        make(&Api::<Role>::namespaced(client.clone(), &namespace), role).await?;
        make(
            &Api::<RoleBinding>::namespaced(client.clone(), &namespace),
            binding,
        )
        .await?;
        let secret =
            json!({"metadata": {"name": NAME}, "stringData": {"password": stage.password()}});
        make(
            &Api::<Secret>::namespaced(client.clone(), &namespace),
            secret,
        )
        .await?;

        let api = Api::<Pod>::namespaced(client.clone(), &namespace);
        let mut listeners = JoinSet::new();
        listeners.spawn(watch(api.clone(), plot.contenders, news.clone()));
        let mut logs = Vec::new();
        for index in 0..plot.contenders {
            let made: Pod = make(&api, pod(&pod_name(index), work)).await?;
            let uid = made.uid().context("a Pod without a uid")?;
            let folder = format!("{namespace}_{}_{uid}", pod_name(index));
            let log = stage.logs().join(folder).join(NAME).join("0.log");
            listeners.spawn(super::log::follow(log.clone(), index, news.clone()));
            logs.push(log);
        }
        for index in 0..plot.contenders {
            let name = pod_name(index);
            let what = format!("{name} runs");
            let runs = await_condition(api.clone(), &name, |pod: Option<&Pod>| {
                pod.is_some_and(|pod| state(pod).is_some_and(|state| state.running.is_some()))
            });
            Box::pin(ready(&what, runs)).await?.with_context(|| what)?;
        }
        Ok(Self {
            namespace,
            api,
            logs,
            _listeners: listeners,
        })
    }

    /// Where a contender's words are.
    pub(super) fn log(&self, pod: usize) -> PathBuf {
        self.logs[pod].clone()
    }
}

async fn make<K>(api: &Api<K>, object: Value) -> Result<K>
where
    K: Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object = serde_json::from_value(object)?;
    Ok(api.create(&PostParams::default(), &object).await?)
}

/// The account, and what it may do: no more than a holder of this one lock needs.
fn rights() -> [Value; 3] {
    let account = json!({"metadata": {"name": NAME}});
    let role = json!({"metadata": {"name": NAME}, "rules": [
        {"apiGroups": ["leasehold.dev"], "resources": ["distributedlocks"], "resourceNames": [LOCK], "verbs": ["get", "list", "watch", "use"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LOCK], "verbs": ["get", "list", "watch", "update"]},
        {"apiGroups": ["leasehold.dev"], "resources": ["lockclaims"], "verbs": ["create", "get", "list", "watch", "delete"]},
    ]});
    let binding = json!({
        "metadata": {"name": NAME},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME}],
    });
    [account, role, binding]
}

/// A Pod that runs the work under the lock, once.
fn pod(name: &str, work: &[String]) -> Value {
    let lock = format!("--lock={LOCK}");
    let mut args = vec!["run", &lock, "--wait-for-lock", "--", PROGRAM];
    args.extend(work.iter().map(String::as_str));
    json!({
        "metadata": {"name": name, "labels": {"app": NAME}},
        "spec": {
            "serviceAccountName": NAME,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": NAME,
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "args": args,
                "env": [{"name": PASSWORD, "valueFrom": {"secretKeyRef": {"name": NAME, "key": "password"}}}],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "48Mi"}},
                "securityContext": {
                    "readOnlyRootFilesystem": true,
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                },
            }],
        },
    })
}

/// How its container is, as the kubelet tells.
fn state(pod: &Pod) -> Option<&ContainerState> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.first()?.state.as_ref()
}

/// Passes on what the kubelet reports of Pods' ends, and which are deleted.
async fn watch(api: Api<Pod>, contenders: usize, news: UnboundedSender<(usize, News)>) {
    let mut told = vec![false; contenders];
    let mut events = pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
    // After an error the watch begins again by itself, with a list.
    while let Some(event) = events.next().await {
        let (pod, is_gone) = match event {
            Ok(Event::InitApply(pod) | Event::Apply(pod)) => (pod, false),
            Ok(Event::Delete(pod)) => (pod, true),
            _ => continue,
        };
        let Some(index) = (0..contenders).find(|index| pod_name(*index) == pod.name_any()) else {
            continue;
        };
        let at = now();
        let ended = state(&pod).and_then(|state| state.terminated.as_ref());
        if let Some(ended) = ended.filter(|_| !told[index]) {
            told[index] = true;
            let how = match (ended.exit_code, ended.reason.as_deref()) {
                (code, Some(reason)) if reason != "Completed" && code > 128 => {
                    Exit::Container(reason.to_owned(), code)
                }
                (code, _) => Exit::Code(code),
            };
            let _ = news.send((index, News::Exited { at, how }));
        }
        if is_gone {
            let _ = news.send((index, News::Gone { at }));
        }
    }
}
