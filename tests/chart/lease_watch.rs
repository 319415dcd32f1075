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

/// What was told of the Lease.
struct Sight {
    at: MonoInstant,
    /// Empty while nobody holds it.
    holder: String,
    /// When this holder took it, else when the last one gave it back, in microseconds: the clock of this machine, since
    /// all of them are on it.
    since_micros: Option<i64>,
}

impl Sight {
    fn of(lease: Lease) -> Self {
        let spec = lease.spec.unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let time = if holder.is_empty() {
            spec.renew_time
        } else {
            spec.acquire_time
        };
        Self {
            at: MonoInstant::now(),
            holder,
            since_micros: time.map(|time| time.0.as_microsecond()),
        }
    }

    /// How long it was free before this one: two changes may be told at once, and times are taken before the writes.
    fn after(&self, free: &Self) -> Duration {
        let told = self.at.saturating_duration_since(free.at);
        let written = self.since_micros.zip(free.since_micros);
        let written = written.map_or(0, |(taken, freed)| taken - freed);
        told.max(Duration::from_micros(written.try_into().unwrap_or(0)))
    }
}

/// Every change of the holder from some moment on.
pub struct LeaseWatch {
    told: UnboundedReceiver<Sight>,
    last: Sight,
    /// Somebody was seen to hold it.
    has_begun: bool,
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
                let _ = tell.send(Sight::of(lease));
            }
        });
        let mut watch = Self {
            told,
            last: Sight::of(Lease::default()),
            has_begun: false,
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
            let name = self.last.holder.split('/').next().unwrap_or_default();
            if !name.is_empty() && is_it(name) {
                return (name.to_owned(), self.last.at);
            }
            let sight = self.told.recv().await.expect("the watch goes on");
            self.note(sight);
        }
    }

    fn note(&mut self, sight: Sight) {
        if sight.holder == self.last.holder {
            return;
        }
        let before = std::mem::replace(&mut self.last, sight);
        if self.last.holder.is_empty() {
            return;
        }
        if !before.holder.is_empty() {
            self.lost.push(before.holder);
        } else if self.has_begun {
            self.gaps.push(self.last.after(&before));
        }
        self.has_begun = true;
    }

    /// How long nobody held it at each hand-over so far: less than a second, since each holder gave it back.
    pub fn handed_over_at_once(&mut self) -> &[Duration] {
        while let Ok(sight) = self.told.try_recv() {
            self.note(sight);
        }
        let (gaps, lost) = (&self.gaps, &self.lost);
        assert!(lost.is_empty(), "{lost:?} did not give it back");
        assert!(!gaps.is_empty(), "it was handed over");
        let at_once = gaps.iter().all(|gap| *gap < Duration::from_secs(1));
        assert!(at_once, "nobody held it for {gaps:?}");
        gaps
    }
}
