//! Several locks that are held together.

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::error::ReleaseError;
use super::guard::{Deadlines, Guard, Released};
use crate::api::FencingToken;
use crate::engine::LossReason;

/// Locks that are held together, in their canonical order: by namespace, then by name. Dropped, all are released in
/// the background; [`Guards::release`] tells how that went.
#[must_use = "guards that are dropped give their locks back"]
#[derive(Debug, Default)]
pub struct Guards {
    guards: Vec<Guard>,
}

/// The lock that was lost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The lock.
    pub lock: String,
    /// Its namespace.
    pub namespace: String,
    /// Why.
    pub reason: LossReason,
}

/// How the release of one of several locks ended.
#[derive(Debug)]
pub struct OneReleased {
    /// The lock.
    pub lock: String,
    /// Its namespace.
    pub namespace: String,
    /// What came of it.
    pub outcome: Result<Released, ReleaseError>,
}

impl Guards {
    pub(super) fn push(&mut self, guard: Guard) {
        self.guards.push(guard);
    }

    /// The guards, in canonical order.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.guards.iter()
    }

    /// The guard of the lock of this name, the first one if several namespaces have one.
    #[must_use]
    pub fn get(&self, lock: &str) -> Option<&Guard> {
        self.iter().find(|guard| guard.lock() == lock)
    }

    /// The fencing token of the grant of one of the locks. Send with each write the token of the lock that protects
    /// what is written.
    #[must_use]
    pub fn token(&self, lock: &str) -> Option<FencingToken> {
        self.get(lock).map(Guard::token)
    }

    /// Until when all of the grants may be used without another renewal; `None` once one of them is lost.
    #[must_use]
    pub fn deadlines(&self) -> Option<Deadlines> {
        let mut nearest: Option<Deadlines> = None;
        for guard in &self.guards {
            let one = guard.deadlines()?;
            nearest = Some(nearest.map_or(one, |nearest| Deadlines {
                renew: nearest.renew.min(one.renew),
                work: nearest.work.min(one.work),
            }));
        }
        nearest
    }

    /// Whether all of the grants may be used right now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.iter().all(Guard::is_held)
    }

    /// Resolves once one of the grants may not be used any more: which one, and why. Safe to drop and to call again.
    pub async fn lost(&self) -> Lost {
        let mut losses: FuturesUnordered<_> = self
            .iter()
            .map(async |guard| Lost {
                reason: guard.lost().await,
                lock: guard.lock().to_owned(),
                namespace: guard.namespace().to_owned(),
            })
            .collect();
        match losses.next().await {
            Some(lost) => lost,
            None => std::future::pending().await,
        }
    }

    /// Waits for the next change of [`Guards::deadlines`]: a renewal was answered, or a grant was lost.
    pub async fn deadlines_changed(&mut self) {
        let mut changes: FuturesUnordered<_> = self
            .guards
            .iter_mut()
            .map(Guard::deadlines_changed)
            .collect();
        if changes.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Gives all locks back, the last one first, and tells of each how that went. One that can't be given back keeps
    /// none of the others.
    ///
    /// Dropped before it returns, the release of all goes on in the background.
    pub async fn release(mut self) -> Vec<OneReleased> {
        let mut released = Vec::with_capacity(self.guards.len());
        while let Some(guard) = self.guards.pop() {
            released.push(OneReleased {
                lock: guard.lock().to_owned(),
                namespace: guard.namespace().to_owned(),
                outcome: guard.release().await,
            });
        }
        released
    }

    /// The guards, each to be kept by itself from now on.
    #[must_use = "guards that are dropped give their locks back"]
    pub fn into_vec(self) -> Vec<Guard> {
        self.guards
    }
}
