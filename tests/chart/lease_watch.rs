//! Who holds a Lease, change by change: also that of an election.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use leasehold::clock::MonoInstant;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::release::{Own, Release};
use super::server::within;

/// Every change of the holder from some moment on.
pub struct LeaseWatch {
    told: UnboundedReceiver<(MonoInstant, String)>,
    /// Empty while nobody holds it.
    holder: String,
    since: MonoInstant,
    free_since: Option<MonoInstant>,
    gaps: Vec<Duration>,
    /// Who was replaced without giving it back.
    lost: Vec<String>,
}

impl LeaseWatch {
    /// Of the lead of a release's replicas.
    pub async fn of_the_lead(own: &Own, release: &Release) -> Self {
        let name = format!("{}-operator", release.full_name);
        Self::of(&own.client, release.namespace, &name).await
    }

    /// Watches from now on, while somebody holds it.
    pub async fn of(client: &Client, namespace: &str, name: &str) -> Self {
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let (tell, told) = unbounded_channel();
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        tokio::spawn(async move {
            let mut seen = watcher(leases, only).applied_objects().boxed();
            while let Ok(Some(lease)) = seen.try_next().await {
                let holder = lease
                    .spec
                    .and_then(|spec| spec.holder_identity)
                    .unwrap_or_default();
                let _ = tell.send((MonoInstant::now(), holder));
            }
        });
        let mut watch = Self {
            told,
            holder: String::new(),
            since: MonoInstant::now(),
            free_since: None,
            gaps: vec![],
            lost: vec![],
        };
        let soon = Duration::from_secs(20);
        within(soon, "somebody holds it", watch.until(|_| true)).await;
        watch
    }

    /// Waits until somebody of such a name holds it; who, and since when.
    pub async fn until(&mut self, is_it: impl Fn(&str) -> bool) -> (String, MonoInstant) {
        loop {
            let name = self.holder.split('/').next().unwrap_or_default();
            if !name.is_empty() && is_it(name) {
                return (name.to_owned(), self.since);
            }
            let (at, holder) = self.told.recv().await.expect("the watch goes on");
            self.note(at, holder);
        }
    }

    fn note(&mut self, at: MonoInstant, holder: String) {
        if holder == self.holder {
            return;
        }
        if holder.is_empty() {
            self.free_since = Some(at);
        } else if let Some(since) = self.free_since.take() {
            self.gaps.push(at.saturating_duration_since(since));
        } else if !self.holder.is_empty() {
            self.lost.push(self.holder.clone());
        }
        self.holder = holder;
        self.since = at;
    }

    /// How long nobody held it at each hand-over so far: less than a second, since each holder gave it back.
    pub fn handed_over_at_once(&mut self) -> &[Duration] {
        while let Ok((at, holder)) = self.told.try_recv() {
            self.note(at, holder);
        }
        let (gaps, lost) = (&self.gaps, &self.lost);
        assert!(lost.is_empty(), "{lost:?} did not give it back");
        assert!(!gaps.is_empty(), "it was handed over");
        let at_once = gaps.iter().all(|gap| *gap < Duration::from_secs(1));
        assert!(at_once, "nobody held it for {gaps:?}");
        gaps
    }
}
