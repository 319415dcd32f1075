//! After a loss: the grant is withdrawn, the app ended where that was asked for and kept from starting again, and nothing
//! is taken again (R5).

use std::convert::Infallible;
use std::mem::ManuallyDrop;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Preconditions};
use leasehold::client::identity::own_pod_and_namespace;
use leasehold::client::{LossReason, Released};
use leasehold::clock::BootInstant;
use leasehold::lease::store::TooBusy;
use leasehold::supervise::{Mark, Neighbours};

use super::OnLoss;
use super::begin::Work;
use super::life::{EXIT_LOST, Holding, Life, words};
use crate::cmd::run::End;
use crate::cmd::run::asking::connect;
use crate::cmd::say;

/// How long somebody who can't be killed is waited for after the KILL.
const LEFT_WITHIN: Duration = Duration::from_secs(1);
/// How often somebody is looked for who was started after the loss.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a disk that hangs is waited for.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(5);
/// Between two attempts to delete the Pod, at first and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];
/// How long a server that is too busy may put it off.
const AWAY_MOST: Duration = Duration::from_mins(1);
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
        let spared = work.spared.clone();
        let kill_at = work.kill_at(BootInstant::now());
        let over = self.over(reason, work);
        let withdrawn = tokio::time::timeout(WITHDRAWN_WITHIN, self.volume.over(over));
        // What was refused, if that is why.
        let refused = holding
            .as_ref()
            .filter(|_| reason == LossReason::Forbidden.as_str())
            .and_then(|holding| holding.guard.refusal());
        let words = refused.map_or_else(|| why.clone(), |refused| format!("{why}: {refused}"));
        // Words come last: they may have to wait for who reads them.
        let said = async { say(&words) };
        let (withdrawn, app_ended, ()) =
            futures::join!(withdrawn, self.end_app(&spared, kill_at), said);
        if let Ok(Err(error)) = withdrawn {
            say(&format!(
                "cannot withdraw the grant from the folder: {error}"
            ));
        }
        let facts = holding.as_ref().map(|holding| holding.facts.clone());
        // As a wrapper does: one that was held for long enough has only not been renewed.
        let mut ending = std::pin::pin!(end_who_starts(self.neighbours, spared));
        if let Some(holding) = holding.filter(|_| app_ended) {
            let releasing = ManuallyDrop::into_inner(holding.guard).release();
            let released = tokio::select! {
                biased;
                released = releasing => released,
                never = &mut ending => match never {},
            };
            if let Ok(Released::Confirmed) = released {
                say(&format!("lock {:?} was given back", self.lock));
            }
        }
        if self.args.on_loss == OnLoss::Exit {
            return self.end(EXIT_LOST, reason, facts.as_ref());
        }
        let deletes = self.args.on_loss == OnLoss::DeletePod;
        let namespace = self.args.namespace.as_deref();
        let deleting = async {
            if deletes {
                delete_pod(namespace, kill_at).await;
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            () = self.stop.heard() => {}
            never = deleting => match never {},
            never = ending => match never {},
        }
        self.end(0, reason, facts.as_ref())
    }

    /// Ends what other containers run: TERM now, KILL from `kill_at` on. Whether it is known that nothing is left.
    pub(super) async fn end_app(&self, spared: &[Mark], kill_at: BootInstant) -> bool {
        let Some(neighbours) = self.neighbours else {
            return false;
        };
        let ended = end(neighbours, spared, kill_at).await;
        ended.map_err(|words| say(&words)).is_ok()
    }
}

/// Ends all but `spared`; or says who is left.
async fn end(neighbours: Neighbours, spared: &[Mark], kill_at: BootInstant) -> Result<(), String> {
    let spared = spared.to_vec();
    let give_up = kill_at.max(BootInstant::now()) + LEFT_WITHIN;
    let ending = tokio::task::spawn_blocking(move || neighbours.end(&spared, kill_at, give_up));
    match ending.await {
        Ok(left) if left.is_empty() => Ok(()),
        Ok(left) => Err(format!(
            "processes {left:?} could not be ended: does the app run as another user?"
        )),
        Err(error) => Err(format!("cannot look for the app's processes: {error}")),
    }
}

/// Kills whatever is started after the loss: the kubelet starts an app again that was ended, and one whose image it was
/// pulling when the lock was lost.
async fn end_who_starts(neighbours: Option<Neighbours>, spared: Vec<Mark>) -> Infallible {
    let Some(neighbours) = neighbours else {
        return std::future::pending().await;
    };
    let mut said = String::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Err(words) = end(neighbours, &spared, BootInstant::now()).await
            && words != said
        {
            say(&words);
            said = words;
        }
    }
}

/// Deletes the Pod that this process is in, and no other of its name, so that it has ended by `kill_at`; tries until it
/// is asked for or gone.
async fn delete_pod(namespace: Option<&str>, kill_at: BootInstant) {
    let Some((pod, home)) = own_pod_and_namespace() else {
        return;
    };
    let mut again = AGAIN[0];
    let mut said = String::new();
    loop {
        let left = kill_at.saturating_duration_since(BootInstant::now());
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
                .map_err(|error| (error.to_string(), Duration::ZERO))?;
            let pods: Api<Pod> = Api::namespaced(locks.client(), &home);
            match pods.delete(&pod.name, &params).await {
                Ok(_) => Ok(()),
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
                Err(kube::Error::Api(status)) => Err((status.message.clone(), Duration::ZERO)),
                Err(error) => {
                    let busy = TooBusy::of(&error);
                    let asked = busy.map_or(Duration::ZERO, |busy| busy.after);
                    Err((error.to_string(), asked.min(AWAY_MOST)))
                }
            }
        };
        let (words, asked) = match tokio::time::timeout(DELETE_WITHIN, attempt).await {
            Ok(Ok(())) => return say(&format!("deleted Pod {:?}, which lost its lock", pod.name)),
            Ok(Err(failure)) => failure,
            Err(_) => ("no answer".to_owned(), Duration::ZERO),
        };
        if words != said {
            say(&format!(
                "cannot delete Pod {:?}: {words}; trying again",
                pod.name
            ));
            said = words;
        }
        // Until the app must have ended an attempt must be left, whatever the server asks for; then `again` alone paces.
        let left = kill_at.saturating_duration_since(BootInstant::now());
        tokio::time::sleep(again.max(asked.min(left / 2))).await;
        again = (again * 2).min(AGAIN[1]);
    }
}
