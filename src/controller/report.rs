//! Telling: the mirror in status, events, counts. The other half of [`super::reconcile`].

use std::collections::VecDeque;
use std::time::Duration;

use super::apply::{WriteError, Written};
use super::events::Told;
use super::index::{Key, Source};
use super::news::News;
use super::reconcile::Reconciler;
use super::status::{self, Sight, Trouble, short};
use crate::api::{
    DistributedLock, DistributedLockStatus, EndReason, FencingToken, is_condition_true, names,
};
use crate::engine::{Moment, Unavailable};
use crate::lease::view::lock_view;

/// How often who waits is written at most.
const WAITERS_PAUSE: Duration = Duration::from_secs(1);

impl Reconciler {
    /// The status that shows what is known.
    pub(super) fn sight(
        &self,
        key: &Key,
        lease: &Key,
        lock: &DistributedLock,
        trouble: Option<Trouble>,
        open: bool,
    ) -> DistributedLockStatus {
        let index = self.shared.index();
        let nothing = VecDeque::new();
        // A Lease that is another's is none of this lock's business.
        let foreign = matches!(trouble, Some(Trouble::TakenBy(_) | Trouble::Election));
        let slot = index.slot(lease).filter(|_| !foreign);
        let record = slot.and_then(|slot| slot.keeper.lease());
        let not_ours = matches!(
            trouble,
            Some(Trouble::Unavailable(
                Unavailable::NotOurs | Unavailable::OtherLock
            ))
        );
        let queue = index.queue(key, record);
        status::mirror(&Sight {
            lock,
            view: &lock_view(lock, 0, false),
            lease: record.filter(|_| !not_ours),
            trouble,
            open,
            ends: slot.map_or(&nothing, |slot| &slot.ends),
            queue: &queue,
            wall: self.shared.wall(),
        })
    }

    /// Writes the mirror where it differs; says when to look again where that has to wait.
    pub(super) async fn mirror(
        &self,
        key: &Key,
        lease: &Key,
        trouble: Option<Trouble>,
    ) -> Result<Option<Moment>, WriteError> {
        let Some(lock) = self.shared.index().lock(key).cloned() else {
            return Ok(None);
        };
        self.tell_news(&lock, lease);
        let ends = self
            .shared
            .index()
            .slot(lease)
            .map_or(0, |slot| slot.ends.len());
        let status = self.sight(key, lease, &lock, trouble, false);
        let before = lock.status.clone().unwrap_or_default();
        if status == before {
            self.drop_ends(lease, ends);
            return Ok(None);
        }
        let now = self.shared.now();
        let last = self.remember(key, |memory| memory.status_written);
        if status::differ_in_waiters_only(&status, &before) && now < last + WAITERS_PAUSE {
            return Ok(Some(last + WAITERS_PAUSE));
        }
        let mut written = (*lock).clone();
        written.status = Some(status);
        match self.writer.put_lock_status(&written).await? {
            Written::Applied(applied) => {
                self.drop_ends(lease, ends);
                self.remember(key, |memory| memory.status_written = now);
                self.tell_changes(&lock, &applied);
                self.shared.index().lock_seen(*applied, Source::Read, now);
                Ok(None)
            }
            Written::Conflict => {
                self.read_lock(key).await?;
                Ok(Some(now))
            }
            Written::Gone => {
                let uid = lock.metadata.uid.as_deref();
                self.shared.index().lock_not_found(key, uid);
                Ok(None)
            }
        }
    }

    fn drop_ends(&self, lease: &Key, told: usize) {
        let mut index = self.shared.index();
        if index.slot(lease).is_some() {
            let ends = &mut index.slot_mut(lease).ends;
            ends.drain(..told.min(ends.len()));
        }
    }

    /// Events and counts of what was seen.
    fn tell_news(&self, lock: &DistributedLock, lease: &Key) {
        let news = {
            let mut index = self.shared.index();
            if index.slot(lease).is_none() {
                return;
            }
            std::mem::take(&mut index.slot_mut(lease).news)
        };
        for piece in news {
            let told = match piece {
                News::Granted { holder, token } => {
                    self.writer.metrics.grants.inc();
                    Told {
                        reason: "Granted",
                        warning: false,
                        action: "Grant",
                        note: format!("{} holds the lock{}", short(&holder), with_token(token)),
                    }
                }
                News::Ended(entry, why) => {
                    let reason = reason_word(entry.reason);
                    self.writer
                        .metrics
                        .ends
                        .get_or_create(&[("reason", reason)])
                        .inc();
                    if entry.reason == EndReason::Released {
                        continue;
                    }
                    Told {
                        reason,
                        warning: true,
                        action: "End",
                        note: format!(
                            "the grant of {}{} ended{}",
                            short(&entry.holder_identity),
                            with_token(entry.fencing_token),
                            why.map_or_else(String::new, |why| format!(": {why}"))
                        ),
                    }
                }
                News::AbsurdToken => Told {
                    reason: "AbsurdTokenIgnored",
                    warning: true,
                    action: "Ignore",
                    note: format!(
                        "an annotation of Lease {} holds a token above 2^52, which is not believed",
                        lease.name
                    ),
                },
            };
            self.events.tell(lock, &told);
        }
    }

    /// Events of conditions that became true.
    fn tell_changes(&self, before: &DistributedLock, after: &DistributedLock) {
        let conditions =
            |lock: &DistributedLock| lock.status.clone().unwrap_or_default().conditions;
        let (before, now) = (conditions(before), conditions(after));
        for (type_, action) in [
            (names::CONDITION_STALLED, "Stall"),
            (names::CONDITION_TOKEN_AHEAD, "Compare"),
        ] {
            if is_condition_true(&before, type_) || !is_condition_true(&now, type_) {
                continue;
            }
            let Some(condition) = crate::api::find_condition(&now, type_) else {
                continue;
            };
            let reason = [
                names::REASON_LEASE_CONFLICT,
                names::REASON_LEASE_MISSING,
                names::REASON_NOT_SHARED,
                names::REASON_UNKNOWN_GRANT,
                names::REASON_TOKEN_AHEAD,
            ];
            let reason = reason
                .into_iter()
                .find(|reason| *reason == condition.reason)
                .unwrap_or(type_);
            let note = condition.message.clone();
            self.events.tell(
                after,
                &Told {
                    reason,
                    warning: true,
                    action,
                    note,
                },
            );
        }
    }
}

fn with_token(token: Option<FencingToken>) -> String {
    token.map_or_else(String::new, |token| format!(", with token {token}"))
}

fn reason_word(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Released => "Released",
        EndReason::Expired => "Expired",
        EndReason::Revoked => "Revoked",
        EndReason::Deleted => "Deleted",
        EndReason::Ended => "Ended",
        EndReason::Other => "Other",
    }
}
