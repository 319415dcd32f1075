//! Telling: the mirror in status, events, counts. The other half of [`super::reconcile`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::apply::{LOCKS_STATUS, WriteError, Written};
use super::events::Told;
use super::index::{Key, Source};
use super::news::News;
use super::reconcile::{Reconciler, Troubles};
use super::status::{self, Sight, SlotSight, Trouble, short};
use crate::api::{
    DistributedLock, DistributedLockStatus, EndReason, FencingToken, HistoryEntry,
    is_condition_true, names,
};
use crate::engine::{Loss, Moment, Unavailable};
use crate::lease::view::lock_view;

/// How often who waits is written at most.
const WAITERS_PAUSE: Duration = Duration::from_secs(1);

impl Reconciler {
    /// The status that shows what is known, with first entries for the slots in `open`.
    pub(super) fn sight(
        &self,
        key: &Key,
        lock: &DistributedLock,
        troubles: &Troubles,
        open: &[i32],
    ) -> DistributedLockStatus {
        let now = self.shared.now();
        let index = self.shared.index();
        let slots = index.slots_of(key).into_iter().map(|(number, lease)| {
            let trouble = troubles.get(&number).cloned();
            // A Lease that is another's is none of this lock's business.
            let foreign = matches!(trouble, Some(Trouble::TakenBy(_) | Trouble::Election));
            let slot = index.slot(&lease).filter(|_| !foreign);
            let not_ours = matches!(
                trouble,
                Some(Trouble::Unavailable(
                    Unavailable::NotOurs | Unavailable::OtherLock
                ))
            );
            let keeper = slot.filter(|_| !not_ours).map(|slot| &slot.keeper);
            let ends = slot.into_iter().flat_map(|slot| &slot.ends);
            let ends = ends.map(|end| HistoryEntry {
                slot: number,
                ..end.clone()
            });
            SlotSight {
                view: lock_view(lock, number, index.is_claim_over(lock, number)),
                lease: keeper.and_then(|keeper| keeper.lease()),
                trouble,
                open: open.contains(&number),
                loss: keeper.map_or(Loss::None, |keeper| keeper.loss(now)),
                ends: ends.collect(),
            }
        });
        let slots = slots.collect();
        let queue = index.queue(key);
        status::mirror(&Sight {
            lock,
            slots,
            queue: &queue,
            wall: self.shared.wall(),
        })
    }

    /// Writes the mirror where it differs; says when to look again where that has to wait.
    pub(super) async fn mirror(
        &self,
        key: &Key,
        troubles: &Troubles,
    ) -> Result<Option<Moment>, WriteError> {
        let Some(lock) = self.shared.index().lock(key).cloned() else {
            return Ok(None);
        };
        let told = self.tell_news(key, &lock);
        let status = self.sight(key, &lock, troubles, &[]);
        let before = lock.status.clone().unwrap_or_default();
        if status == before {
            self.drop_ends(&told);
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
                self.drop_ends(&told);
                self.remember(key, |memory| memory.status_written = now);
                self.tell_changes(&lock, &applied);
                self.shared.index().lock_seen(*applied, Source::Read, now);
                Ok(None)
            }
            Written::Conflict | Written::Gone => {
                self.read_lock_after(key, &lock).await?;
                Ok(Some(now))
            }
        }
    }

    /// A write of the lock's status, made from `before`, met another state of it: a read tells which. An error where it
    /// shows none.
    pub(super) async fn read_lock_after(
        &self,
        key: &Key,
        before: &DistributedLock,
    ) -> Result<(), WriteError> {
        self.read_lock(key).await?;
        let index = self.shared.index();
        let same = |now: &Arc<DistributedLock>| {
            now.uid() == before.uid() && now.resource_version() == before.resource_version()
        };
        if index.lock(key).is_some_and(same) {
            return Err(WriteError::turned_down("update", LOCKS_STATUS, key));
        }
        Ok(())
    }

    fn drop_ends(&self, told: &[(Key, usize)]) {
        let mut index = self.shared.index();
        for (lease, told) in told {
            if index.slot(lease).is_some() {
                let ends = &mut index.slot_mut(lease).ends;
                ends.drain(..(*told).min(ends.len()));
            }
        }
    }

    /// Events and counts of what was seen; says how many ends of each slot there were to tell.
    fn tell_news(&self, key: &Key, lock: &DistributedLock) -> Vec<(Key, usize)> {
        let mut told = vec![];
        let slots = self.shared.index().slots_of(key);
        for (number, lease) in slots {
            let news = {
                let mut index = self.shared.index();
                // Of a Lease that another lock keeps, that one tells.
                if index.slot(&lease).is_none() || index.keeper_of(&lease) != Some(key) {
                    continue;
                }
                let slot = index.slot_mut(&lease);
                told.push((lease.clone(), slot.ends.len()));
                std::mem::take(&mut slot.news)
            };
            self.tell_news_of(lock, number, &lease, news);
        }
        told
    }

    fn tell_news_of(&self, lock: &DistributedLock, number: i32, lease: &Key, news: VecDeque<News>) {
        let what = if number == 0 && lock.spec.effective_max_holders() == 1 {
            "the lock".to_owned()
        } else {
            format!("slot {number} of the lock")
        };
        for piece in news {
            let told = match piece {
                News::Granted { holder, token } => {
                    self.writer.metrics.grants.inc();
                    Told {
                        reason: "Granted",
                        warning: false,
                        action: "Grant",
                        note: format!("{} holds {what}{}", short(&holder), with_token(token)),
                    }
                }
                News::Ended(entry, why, in_order) => {
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
                        warning: !in_order,
                        action: "End",
                        note: format!(
                            "the grant of {what} to {}{}, ended{}",
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

    /// Events of conditions that became true, and of holders that were lost.
    fn tell_changes(&self, before: &DistributedLock, after: &DistributedLock) {
        let conditions =
            |lock: &DistributedLock| lock.status.clone().unwrap_or_default().conditions;
        let (before, now) = (conditions(before), conditions(after));
        let lost = |conditions: &[Condition]| {
            crate::api::find_condition(conditions, names::CONDITION_HELD)
                .filter(|held| held.reason == names::REASON_ABANDONED)
                .map(|held| held.message.clone())
        };
        // The message names the lost, so another one changes it.
        if let Some(note) = lost(&now).filter(|note| lost(&before).as_ref() != Some(note)) {
            let told = Told {
                reason: names::REASON_ABANDONED,
                warning: true,
                action: "Abandon",
                note,
            };
            self.events.tell(after, &told);
        }
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
