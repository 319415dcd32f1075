//! One Lease, watched by name, so that RBAC can name it.
//!
//! A list, then a watch from its version on. A watch that breaks is not begun again at once: with a server that restarts,
//! all who wait would come back in the same moment. kube-runtime's watcher does that; so this is not one.

use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use kube::api::{Api, DynamicObject, ListParams, WatchEvent, WatchParams};

use super::calls::{CALL_LIMIT, WATCH_SECONDS, asked_of};
use crate::clock::MonoInstant;
use crate::engine::Seen;
use crate::lease::FoundLease;
use crate::lease::store::{TooBusy, chain};

/// The longest pause after a first failure; each further one doubles it, up to [`PAUSE_MOST`].
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MOST: Duration = Duration::from_secs(30);
/// A watch that lasted this long was no failure.
const LASTED: Duration = Duration::from_secs(10);

/// What a watch tells.
pub(crate) enum Sight {
    /// The Lease, and whether states in between may have been missed.
    Lease(Box<FoundLease>, Seen),
    /// There is no Lease.
    NoLease(Seen),
    /// RBAC does not allow the watch: look by yourself.
    Forbidden,
}

/// A watch of one Lease. Dropped, it ends.
pub(crate) struct LeaseWatch(Pin<Box<dyn Stream<Item = Sight> + Send>>);

impl LeaseWatch {
    /// Watches the Lease `name`. Nothing is sent before the first [`LeaseWatch::next`].
    pub(crate) fn new(leases: Api<DynamicObject>, name: &str) -> Self {
        let watcher = Watcher {
            leases,
            only: format!("metadata.name={name}"),
            version: None,
            watch: None,
            failures: 0,
        };
        // What is under way stays with the stream when a caller of `next` goes away.
        Self(Box::pin(stream::unfold(watcher, async |mut watcher| {
            Some((watcher.next().await, watcher))
        })))
    }

    /// The next thing that the watch tells. Errors are waited out, with backoff; whoever waits looks again by itself
    /// on a slow beat, since nothing may be right only because a watch delivered. Safe to drop.
    pub(crate) async fn next(&mut self) -> Sight {
        self.0.next().await.unwrap_or(Sight::Forbidden)
    }
}

struct Watcher {
    leases: Api<DynamicObject>,
    only: String,
    /// What the next watch begins from; without it a list is needed.
    version: Option<String>,
    watch: Option<Watch>,
    failures: u32,
}

/// A watch that is open.
struct Watch {
    events: Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Send>>,
    began: MonoInstant,
    /// It ends by itself after that.
    lasts: Duration,
}

impl Watch {
    fn lasted(&self) -> Duration {
        MonoInstant::now().saturating_duration_since(self.began)
    }
}

impl Watcher {
    async fn next(&mut self) -> Sight {
        loop {
            let step = match (&mut self.watch, self.version.clone()) {
                (Some(watch), _) => match watch.events.next().await {
                    Some(Ok(event)) => self.heard(event),
                    Some(Err(error)) => Err(error),
                    None => {
                        self.ended().await;
                        continue;
                    }
                },
                (None, Some(version)) => self.begin(&version).await.map(|()| None),
                (None, None) => self.list().await.map(Some),
            };
            match step {
                Ok(Some(sight)) => return sight,
                Ok(None) => {}
                Err(error) if is_forbidden(&error) => {
                    self.watch = None;
                    self.version = None;
                    return Sight::Forbidden;
                }
                Err(error) => {
                    let asked = TooBusy::of(&error).map_or(Duration::ZERO, |busy| busy.after);
                    self.failed(&chain(&error), asked_of(asked)).await;
                }
            }
        }
    }

    async fn list(&mut self) -> kube::Result<Sight> {
        let params = ListParams::default().fields(&self.only);
        let list = within(self.leases.list(&params)).await?;
        self.version = list.metadata.resource_version;
        let found = list.items.into_iter().find_map(FoundLease::read);
        Ok(match found {
            Some(found) => Sight::Lease(Box::new(found), Seen::Read),
            None => Sight::NoLease(Seen::Read),
        })
    }

    async fn begin(&mut self, version: &str) -> kube::Result<()> {
        // Those who began together do not end together.
        let seconds = rand::random_range(WATCH_SECONDS * 4 / 5..=WATCH_SECONDS);
        let params = WatchParams::default().fields(&self.only).timeout(seconds);
        let events = within(self.leases.watch(&params, version)).await?;
        self.watch = Some(Watch {
            events: Box::pin(events),
            began: MonoInstant::now(),
            lasts: Duration::from_secs(u64::from(seconds)),
        });
        Ok(())
    }

    fn heard(&mut self, event: WatchEvent<DynamicObject>) -> kube::Result<Option<Sight>> {
        let sight = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.version.clone_from(&object.metadata.resource_version);
                let found = FoundLease::read(object);
                found.map(|found| Sight::Lease(Box::new(found), Seen::Watched))
            }
            WatchEvent::Deleted(object) => {
                self.version = object.metadata.resource_version;
                Some(Sight::NoLease(Seen::Watched))
            }
            WatchEvent::Bookmark(bookmark) => {
                self.version = Some(bookmark.metadata.resource_version);
                None
            }
            // Most often the version is too old: what happened since is not to be had any more.
            WatchEvent::Error(status) => {
                self.version = None;
                return Err(kube::Error::Api(status));
            }
        };
        self.failures = 0;
        Ok(sight)
    }

    /// The watch has ended: as it was meant to, or before its time.
    async fn ended(&mut self) {
        let Some(watch) = self.watch.take() else {
            return;
        };
        let lasted = watch.lasted();
        if lasted >= LASTED {
            self.failures = 0;
        }
        // The server counts from a little earlier.
        if lasted + Duration::from_secs(1) < watch.lasts {
            self.failed("it was ended before its time", Duration::ZERO)
                .await;
        }
    }

    /// Said once a change, not once a failure. It is not begun again before `asked` is over.
    async fn failed(&mut self, error: &str, asked: Duration) {
        if self.failures == 0 {
            tracing::warn!(error, "the watch of the lease fails; trying again");
        }
        self.watch = None;
        let most = PAUSE_FIRST.saturating_mul(2_u32.saturating_pow(self.failures.min(5)));
        self.failures += 1;
        let pause = most.min(PAUSE_MOST).mul_f64(rand::random());
        tokio::time::sleep(pause.max(asked)).await;
    }
}

/// An answer begins soon, or not at all.
async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let answered = tokio::time::timeout(CALL_LIMIT, call).await;
    answered.unwrap_or_else(|late| Err(kube::Error::Service(late.into())))
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403))
}
