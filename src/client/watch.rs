//! One Lease, watched by name, so that RBAC can name it.

use std::pin::Pin;

use futures::{Stream, StreamExt};
use kube::api::{Api, DynamicObject};
use kube::runtime::{WatchStreamExt, watcher};

use super::calls::WATCH_SECONDS;
use crate::engine::Seen;
use crate::lease::FoundLease;

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
pub(crate) struct LeaseWatch {
    events: Pin<Box<dyn Stream<Item = watcher::Result<watcher::Event<DynamicObject>>> + Send>>,
    listed_any: bool,
    failing: bool,
}

impl LeaseWatch {
    /// Watches the Lease `name`. Nothing is sent before the first [`LeaseWatch::next`].
    pub(crate) fn new(leases: Api<DynamicObject>, name: &str) -> Self {
        let only = format!("metadata.name={name}");
        let config = watcher::Config::default()
            .fields(&only)
            .timeout(WATCH_SECONDS);
        let events = Box::pin(watcher(leases, config).default_backoff());
        Self {
            events,
            listed_any: false,
            failing: false,
        }
    }

    /// The next thing that the watch tells. Errors are waited out, with backoff; whoever waits looks again by itself
    /// on a slow beat, since nothing may be right only because a watch delivered. Safe to drop.
    pub(crate) async fn next(&mut self) -> Sight {
        loop {
            let event = match self.events.next().await {
                Some(Ok(event)) => event,
                Some(Err(error)) => {
                    if is_forbidden(&error) {
                        return Sight::Forbidden;
                    }
                    self.note_failure(&error);
                    continue;
                }
                None => return Sight::Forbidden,
            };
            self.failing = false;
            match event {
                watcher::Event::Init => self.listed_any = false,
                watcher::Event::InitApply(object) => {
                    self.listed_any = true;
                    if let Some(found) = FoundLease::read(object) {
                        return Sight::Lease(Box::new(found), Seen::Read);
                    }
                }
                watcher::Event::InitDone if !self.listed_any => return Sight::NoLease(Seen::Read),
                watcher::Event::InitDone => {}
                watcher::Event::Apply(object) => {
                    if let Some(found) = FoundLease::read(object) {
                        return Sight::Lease(Box::new(found), Seen::Watched);
                    }
                }
                watcher::Event::Delete(_) => return Sight::NoLease(Seen::Watched),
            }
        }
    }

    /// Once a change, not once a failure.
    fn note_failure(&mut self, error: &watcher::Error) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(error = %crate::lease::store::chain(error), "the watch of the lease fails; trying again");
        }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => matches!(status.code, 401 | 403),
        _ => false,
    }
}
