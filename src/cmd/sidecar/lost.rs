//! After a loss: the grant is withdrawn, the app ended where that was asked for, and nothing is taken again (R5).

use std::mem::ManuallyDrop;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Preconditions};
use leasehold::client::Released;
use leasehold::client::identity::own_pod_and_namespace;
use leasehold::clock::BootInstant;
use leasehold::supervise::Mark;

use super::OnLoss;
use super::begin::Work;
use super::life::{EXIT_LOST, Holding, Life, words};
use crate::cmd::run::End;
use crate::cmd::run::asking::connect;
use crate::cmd::say;

/// How long somebody who can't be killed is waited for after the KILL.
const LEFT_WITHIN: Duration = Duration::from_secs(1);
/// How long a disk that hangs is waited for.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(5);
/// Between two attempts to delete the Pod, at first and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];
/// How long one attempt may take.
const DELETE_WITHIN: Duration = Duration::from_secs(10);
/// What a Pod that is deleted gets to end in, at most: Kubernetes' own default.
const GRACE_MOST: Duration = Duration::from_secs(30);

impl Life {
    /// The grant is over, just now or before this process began.
    pub(super) async fn lost(mut self, reason: &str, work: Work, holding: Option<Holding>) -> End {
        let why = words(&self.lock, reason);
        self.told.not_held(&why);
        self.told.count_loss(reason);
        say(&why);
        let (ends, spared) = (work.ends, work.spared.clone());
        let kill_at = work.kill_at(BootInstant::now());
        let over = self.over(reason, work);
        let withdrawn = tokio::time::timeout(WITHDRAWN_WITHIN, self.volume.over(over));
        let (withdrawn, app_ended) = futures::join!(withdrawn, self.end_app(&spared, kill_at));
        if let Ok(Err(error)) = withdrawn {
            say(&format!(
                "cannot withdraw the grant from the folder: {error}"
            ));
        }
        let facts = holding.as_ref().map(|holding| holding.facts.clone());
        // As a wrapper does: one that was held for long enough has only not been renewed.
        if let Some(holding) = holding.filter(|_| app_ended)
            && let Ok(Released::Confirmed) = ManuallyDrop::into_inner(holding.guard).release().await
        {
            say(&format!("lock {:?} was given back", self.lock));
        }
        match self.args.on_loss {
            OnLoss::Exit => return self.end(EXIT_LOST, reason, facts.as_ref()),
            OnLoss::Stay => {}
            OnLoss::DeletePod => tokio::select! {
                biased;
                () = self.stop.heard() => return self.end(0, reason, facts.as_ref()),
                () = delete_pod(self.args.namespace.as_deref(), ends) => {}
            },
        }
        self.stop.heard().await;
        self.end(0, reason, facts.as_ref())
    }

    /// Ends what other containers run: TERM now, KILL from `kill_at` on. Whether it is known that nothing is left.
    pub(super) async fn end_app(&self, spared: &[Mark], kill_at: BootInstant) -> bool {
        let Some(neighbours) = self.neighbours else {
            return false;
        };
        let spared = spared.to_vec();
        let give_up = kill_at.max(BootInstant::now()) + LEFT_WITHIN;
        let ending = tokio::task::spawn_blocking(move || neighbours.end(&spared, kill_at, give_up));
        match ending.await {
            Ok(left) if left.is_empty() => true,
            Ok(left) => {
                say(&format!(
                    "processes {left:?} could not be ended: does the app run as another user?"
                ));
                false
            }
            Err(error) => {
                say(&format!("cannot look for the app's processes: {error}"));
                false
            }
        }
    }
}

/// Deletes the Pod that this process is in, and no other of its name; tries until it is asked for or gone.
async fn delete_pod(namespace: Option<&str>, ends: BootInstant) {
    let Some((pod, home)) = own_pod_and_namespace() else {
        return;
    };
    let mut again = AGAIN[0];
    let mut said = String::new();
    loop {
        let left = ends.saturating_duration_since(BootInstant::now());
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        }
        .grace_period(u32::try_from(left.min(GRACE_MOST).as_secs().max(1)).unwrap_or(1));
        let attempt = async {
            let locks = connect(namespace)
                .await
                .map_err(|error| error.to_string())?;
            let pods: Api<Pod> = Api::namespaced(locks.client(), &home);
            match pods.delete(&pod.name, &params).await {
                Ok(_) => Ok(()),
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
                Err(kube::Error::Api(status)) => Err(status.message.clone()),
                Err(error) => Err(error.to_string()),
            }
        };
        let words = match tokio::time::timeout(DELETE_WITHIN, attempt).await {
            Ok(Ok(())) => return say(&format!("deleted Pod {:?}, which lost its lock", pod.name)),
            Ok(Err(words)) => words,
            Err(_) => "no answer".to_owned(),
        };
        if words != said {
            say(&format!(
                "cannot delete Pod {:?}: {words}; trying again",
                pod.name
            ));
            said = words;
        }
        tokio::time::sleep(again).await;
        again = (again * 2).min(AGAIN[1]);
    }
}
