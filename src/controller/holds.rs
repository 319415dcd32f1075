//! What a look does about Pods, and about holds that have no process: Fixed and Pod. One more part of
//! [`super::reconcile`].

use std::sync::Arc;

use futures::{StreamExt, stream};

use super::apply::WriteError;
use super::index::Key;
use super::pods::Wanted;
use super::reconcile::Reconciler;
use crate::api::LockClaim;
use crate::engine::Moment;

/// The most Pods that one look reads; the next look goes on. Each takes some milliseconds.
const PODS_A_LOOK: usize = 512;
/// Reads at once: as many as keep the server busy, not more.
const READS_AT_ONCE: usize = 16;

impl Reconciler {
    /// Reads the Pods that must be known before the claims of this lock can be judged; says when to look again for
    /// those that no watch shows yet.
    pub(super) async fn read_pods(&self, lock: &Key) -> Result<Option<Moment>, WriteError> {
        let now = self.shared.now();
        let (claims, wanted) = {
            let mut index = self.shared.index();
            let claims = index.claims(lock).filter(|claim| !claim.phase().is_final());
            let claims: Vec<Arc<LockClaim>> = claims.cloned().collect();
            let wanted = index.pods.wants(claims.iter().map(Arc::as_ref), now);
            (claims, wanted)
        };
        let more = wanted.len() > PODS_A_LOOK;
        let wanted: Wanted = wanted.into_iter().take(PODS_A_LOOK).collect();
        let mut reads = stream::iter(wanted)
            .map(|(pod, uids)| async move { (self.writer.get_pod(&pod).await, pod, uids) })
            .buffer_unordered(READS_AT_ONCE);
        while let Some((found, pod, uids)) = reads.next().await {
            let found = found?;
            let mut index = self.shared.index();
            index.pods.read(&pod, uids, found.as_ref(), now);
        }
        let index = self.shared.index();
        let again = index.pods.asks_again(claims.iter().map(Arc::as_ref));
        Ok(if more { Some(now) } else { again })
    }
}
