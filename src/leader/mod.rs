//! Which replica of the operator leads: a Lease, kept by the same rules as every lock.
//!
//! A replica leads from a guarded write that was answered by a 2xx until the renew deadline, counted from before its
//! last answered write was sent, on a clock that runs through a suspend. [`Lead::remaining`] is asked right before
//! each write that only the leader makes: a replica that was paused and thaws finds its lead over and writes nothing.
//! Two leaders at once would be harmless all the same (R7), as each write is guarded; the election only saves work.
//!
//! Losing the lead ends no process: a slow API server would make a single replica restart in a loop. The replica goes
//! back to standby, observes on, and contends again under a new identity. The Lease is made free by whoever finds it
//! missing, and is given back on a clean stop.
//!
//! * `times`: the times, and how they must fit together.
//! * `contend`: the way to the lead.

mod contend;
mod times;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use self::contend::Contender;
pub use self::times::{LeaderTimes, LeaderTimesError};
use crate::client::Released;
use crate::client::calls::pause_after;
use crate::client::renew::{Renewer, Round};
use crate::clock::{BootInstant, Clock};
use crate::engine::{Held, LockView, SlotView};
use crate::lease::LeaseStore;

/// Until when this replica leads. Shared by everybody who writes.
#[derive(Debug)]
pub struct Lead {
    /// Nanoseconds of the boot clock; 0 while it does not lead.
    deadline: AtomicU64,
    /// How often it has begun to lead; `None` while it does not.
    term: watch::Sender<Option<u64>>,
    clock: Arc<dyn Clock>,
}

impl Lead {
    /// No lead yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            deadline: AtomicU64::new(0),
            term: watch::Sender::new(None),
            clock,
        })
    }

    /// How long this replica still leads; `None` if it does not. Ask right before each write, and bound the call by
    /// the answer.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = BootInstant::from_nanos(self.deadline.load(Ordering::Acquire));
        let left = deadline.saturating_duration_since(self.clock.boot());
        (!left.is_zero()).then_some(left)
    }

    /// Tells when the lead begins and ends.
    #[must_use]
    pub fn terms(&self) -> watch::Receiver<Option<u64>> {
        self.term.subscribe()
    }

    fn extend(&self, held: &Held) {
        let deadline = u64::try_from(held.renew_deadline().as_nanos()).unwrap_or(u64::MAX);
        self.deadline.store(deadline, Ordering::Release);
    }

    fn begin(&self, held: &Held, term: u64) {
        self.extend(held);
        self.term.send_replace(Some(term));
    }

    fn end(&self) {
        self.deadline.store(0, Ordering::Release);
        self.term.send_replace(None);
    }
}

/// Who contends, for what, and how.
pub struct Election {
    /// How to reach the server: the election has clients of its own, so that it waits for nothing else.
    pub config: kube::Config,
    /// Its Leases.
    pub store: LeaseStore,
    /// The operator's own namespace.
    pub namespace: String,
    /// The Lease.
    pub name: String,
    /// The replica, such as its Pod's name; a random part is added for each grant.
    pub identity: String,
    /// The times.
    pub times: LeaderTimes,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// Told of the outcome.
    pub lead: Arc<Lead>,
}

/// A grant of the lead, and what renews it.
struct Kept {
    held: Held,
    renewer: Renewer,
}

impl Election {
    /// Contends, leads, loses, contends again, until `stop` is set; then gives the lead back.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut term = 0;
        while let Some(mut kept) = Box::pin(Contender::new(&self).contend(&mut stop)).await {
            term += 1;
            tracing::info!(
                lease = self.name,
                identity = kept.held.grant().holder,
                token = kept.held.grant().token.get(),
                "leads"
            );
            self.lead.begin(&kept.held, term);
            let lost = self.keep(&mut kept, &mut stop).await;
            self.lead.end();
            match lost {
                Some(why) => {
                    tracing::warn!(lease = self.name, why, "lost the lead, back to standby");
                }
                None => return self.release(kept).await,
            }
        }
    }

    /// Renews until `stop` is set (`None`) or the lead is lost (why).
    async fn keep(&self, kept: &mut Kept, stop: &mut watch::Receiver<bool>) -> Option<String> {
        let view = self.view();
        loop {
            let due = kept.held.renew_at(rand::random());
            tokio::select! {
                () = tokio::time::sleep(due.saturating_sub(kept.renewer.now())) => {}
                _ = stop.wait_for(|stop| *stop) => return None,
            }
            let mut refused = false;
            loop {
                let mut pause = self.times.retry_period;
                let left = |kept: &Kept| {
                    let deadline = kept.held.renew_deadline();
                    deadline.saturating_sub(kept.renewer.now())
                };
                let trouble = match kept.renewer.renew(&mut kept.held, &view, |_| {}).await {
                    Round::Renewed => break,
                    // Once at once; a server that goes on refusing what it then shows unchanged is not to be hurried.
                    Round::Again if !std::mem::replace(&mut refused, true) => continue,
                    Round::Again => {
                        "the server refuses it, and shows the lease unchanged".to_owned()
                    }
                    Round::Lost(reason) => return Some(reason.as_str().to_owned()),
                    Round::Failed(_, error) => {
                        pause = pause_after(&error, pause, left(kept));
                        error.to_string()
                    }
                };
                tracing::warn!(
                    lease = self.name,
                    error = trouble,
                    "the lead was not renewed, tries again"
                );
                let left = left(kept);
                if left.is_zero() {
                    return Some(format!(
                        "no renewal was answered before the renew deadline: {trouble}"
                    ));
                }
                tokio::select! {
                    () = tokio::time::sleep(pause.min(left)) => {}
                    _ = stop.wait_for(|stop| *stop) => return None,
                }
            }
            self.lead.extend(&kept.held);
        }
    }

    /// Gives the lead back, so that the next one need not wait for its end.
    async fn release(&self, mut kept: Kept) {
        let view = self.view();
        let release = kept
            .renewer
            .release(&mut kept.held, &view, "the operator stops");
        match tokio::time::timeout(self.times.renew_deadline / 2, release).await {
            Ok(Ok(Released::Confirmed)) => tracing::info!(lease = self.name, "gave the lead back"),
            Ok(Ok(Released::AlreadyLost(_))) => {}
            Ok(Err(error)) => tracing::warn!(
                lease = self.name,
                error,
                "could not give the lead back: it runs out by itself"
            ),
            Err(_) => tracing::warn!(
                lease = self.name,
                "could not give the lead back in time: it runs out by itself"
            ),
        }
    }

    /// The lock that the rules are asked about: always open, nobody queues.
    fn view(&self) -> LockView {
        LockView {
            name: self.name.clone(),
            duration_seconds: self.times.seconds(),
            longest_seconds: Some(self.times.seconds()),
            slot: Some(SlotView::default()),
            ..LockView::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lead_ends_with_its_deadline_whatever_nobody_said() {
        let clock = crate::clock::FakeClock::default();
        let lead = Lead::new(Arc::new(clock.clone()));
        assert_eq!(lead.remaining(), None);
        lead.deadline
            .store((clock.boot() + s(10)).as_nanos(), Ordering::Release);
        assert_eq!(lead.remaining(), Some(s(10)));
        clock.suspend(s(10));
        assert_eq!(lead.remaining(), None, "a suspend counts");
    }
}
