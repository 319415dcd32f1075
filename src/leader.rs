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

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::client::renew::{Lifeline, Renewer, Round, boot_moment};
use crate::client::watch::{LeaseWatch, Sight};
use crate::client::{Released, identity};
use crate::clock::{BootInstant, Clock};
use crate::engine::{
    Answer, Claimant, Held, LeaseRecord, LockView, Moment, Move, Patience, Refusal, Requester,
    Seen, SlotView, SpecRecord, WallMicros,
};
use crate::lease::{FoundLease, LeaseStore, NewLease, Put};

/// The times of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderTimes {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

/// Why the times of an election do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaderTimesError {
    /// Leases keep whole seconds.
    #[error("the leader lease duration must be whole seconds, from 1 s to 1 h: it is {0:?}")]
    Duration(Duration),
    /// The lead must be given up before others may take it.
    #[error(
        "the leader renew deadline ({deadline:?}) must be three to four fifths of the lease duration ({duration:?})"
    )]
    Deadline {
        /// The renew deadline.
        deadline: Duration,
        /// The lease duration.
        duration: Duration,
    },
    /// There must be time for a second attempt.
    #[error(
        "the leader retry period ({retry:?}) must be above 0 and at most half of the renew deadline ({deadline:?})"
    )]
    Retry {
        /// The retry period.
        retry: Duration,
        /// The renew deadline.
        deadline: Duration,
    },
}

impl LeaderTimes {
    /// Checked times: retry period, well below the renew deadline, well below the lease duration.
    pub fn new(
        lease_duration: Duration,
        renew_deadline: Duration,
        retry_period: Duration,
    ) -> Result<Self, LeaderTimesError> {
        let whole = lease_duration.subsec_nanos() == 0;
        if !whole || !(1..=3600).contains(&lease_duration.as_secs()) {
            return Err(LeaderTimesError::Duration(lease_duration));
        }
        let fitting = lease_duration * 3 / 5..=lease_duration * 4 / 5;
        if !fitting.contains(&renew_deadline) {
            return Err(LeaderTimesError::Deadline {
                deadline: renew_deadline,
                duration: lease_duration,
            });
        }
        if retry_period.is_zero() || retry_period > renew_deadline / 2 {
            return Err(LeaderTimesError::Retry {
                retry: retry_period,
                deadline: renew_deadline,
            });
        }
        Ok(Self {
            lease_duration,
            renew_deadline,
            retry_period,
        })
    }

    fn seconds(self) -> u32 {
        u32::try_from(self.lease_duration.as_secs()).unwrap_or(u32::MAX)
    }

    /// What the rules call the kill grace: how long before four fifths of the lease the lead is given up.
    fn margin(self) -> Duration {
        (self.lease_duration * 4 / 5).saturating_sub(self.renew_deadline)
    }
}

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
        while let Some(mut kept) = Box::pin(self.contend(&mut stop)).await {
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

    /// Until the lead is had; `None` once `stop` is set and nothing of ours is under way any more.
    async fn contend(&self, stop: &mut watch::Receiver<bool>) -> Option<Kept> {
        let mut claimant = self.claimant();
        let mut found = None;
        // A lead that is given back is taken at once, not at the next beat.
        let mut changes = Some(LeaseWatch::new(self.store.api().clone(), &self.name));
        let mut trouble = String::new();
        let mut leave_by = None;
        let mut stands_by = false;
        loop {
            if *stop.borrow() {
                claimant.stop();
                // An open write is settled first, but not for ever: a lead that nobody uses runs out by itself.
                let until = *leave_by.get_or_insert(self.clock.boot() + self.times.retry_period);
                if !claimant.is_unsettled() || self.clock.boot() >= until {
                    return None;
                }
            }
            match claimant.decide(self.mono(), self.wall()) {
                Move::ReadLock => claimant.lock_read(Some(vec![self.view()]), self.mono()),
                Move::ReadLease(_) => match self.read_or_make().await {
                    Ok(lease) => {
                        trouble.clear();
                        let record = lease.as_ref().map(|lease| self.as_ours(&lease.record));
                        found = lease;
                        claimant.lease_seen(0, record, Seen::Read, self.mono());
                    }
                    Err(error) => {
                        if error != trouble {
                            tracing::warn!(lease = self.name, error, "cannot contend for the lead");
                            trouble = error;
                        }
                        self.pause(stop, &mut changes).await;
                    }
                },
                Move::Write(write) => {
                    let Some(base) = &found else {
                        continue;
                    };
                    claimant.sending(&write);
                    let sent = self.clock.boot();
                    let put = self
                        .store
                        .put(
                            &self.name,
                            base,
                            write.record(),
                            self.times.renew_deadline / 2,
                        )
                        .await;
                    let answer = self.answer(&put);
                    let held = claimant.answered(&write, answer, boot_moment(sent), self.mono());
                    if let (Some(held), Put::Applied(now)) = (held, put) {
                        let kept = self.kept(held, *now)?;
                        if kept.held.is_held(kept.renewer.now()) {
                            return Some(kept);
                        }
                        self.release(kept).await;
                        claimant = self.claimant();
                    }
                }
                Move::StartOver => claimant.start_over(self.new_identity()),
                Move::Gone => return None,
                Move::Refuse(refusal) => {
                    if refusal != Refusal::Busy {
                        tracing::warn!(lease = self.name, ?refusal, "cannot contend for the lead");
                    } else if !std::mem::replace(&mut stands_by, true) {
                        let leader = found
                            .as_ref()
                            .map(|lease| lease.record.spec.holder.as_str());
                        tracing::info!(lease = self.name, leader, "stands by");
                    }
                    self.pause(stop, &mut changes).await;
                    self.look_again(&mut claimant, &mut found, &mut trouble)
                        .await;
                }
                other => {
                    tracing::debug!(lease = self.name, ?other, "waits for the lead");
                    self.pause(stop, &mut changes).await;
                    self.look_again(&mut claimant, &mut found, &mut trouble)
                        .await;
                }
            }
        }
    }

    /// Reads the Lease and tells the claimant.
    async fn look_again(
        &self,
        claimant: &mut Claimant,
        found: &mut Option<FoundLease>,
        trouble: &mut String,
    ) {
        match self.read_or_make().await {
            Ok(lease) => {
                trouble.clear();
                let record = lease.as_ref().map(|lease| self.as_ours(&lease.record));
                *found = lease;
                claimant.lease_seen(0, record, Seen::Read, self.mono());
            }
            Err(error) => {
                if error != *trouble {
                    tracing::warn!(lease = self.name, error, "cannot read the lead's lease");
                    *trouble = error;
                }
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
                let trouble = match kept.renewer.renew(&mut kept.held, &view, |_| {}).await {
                    Round::Renewed => break,
                    // Once at once; a server that goes on refusing what it then shows unchanged is not to be hurried.
                    Round::Again if !std::mem::replace(&mut refused, true) => continue,
                    Round::Again => {
                        "the server refuses it, and shows the lease unchanged".to_owned()
                    }
                    Round::Lost(reason) => return Some(reason.as_str().to_owned()),
                    Round::Failed(_, error) => error.to_string(),
                };
                tracing::warn!(
                    lease = self.name,
                    error = trouble,
                    "the lead was not renewed, tries again"
                );
                let left = kept
                    .held
                    .renew_deadline()
                    .saturating_sub(kept.renewer.now());
                if left.is_zero() {
                    return Some(format!(
                        "no renewal was answered before the renew deadline: {trouble}"
                    ));
                }
                tokio::select! {
                    () = tokio::time::sleep(self.times.retry_period.min(left)) => {}
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

    async fn read_or_make(&self) -> Result<Option<FoundLease>, String> {
        let within = self.times.renew_deadline / 2;
        let found = self
            .store
            .get(&self.name, within)
            .await
            .map_err(|error| error.to_string())?;
        if found.is_some() {
            return Ok(found);
        }
        let now = self.wall();
        let new = NewLease {
            name: &self.name,
            lock: None,
            owner: None,
            shared_with: None,
            spec: &SpecRecord {
                duration_seconds: Some(1),
                renew_time: Some(now),
                ..SpecRecord::default()
            },
        };
        self.store
            .create(&new, within)
            .await
            .map_err(|error| error.to_string())
    }

    fn answer(&self, put: &Put) -> Answer {
        match put.answer() {
            Answer::Applied(record) => Answer::Applied(self.as_ours(&record)),
            other => other,
        }
    }

    /// The Lease of the election needs no label: its name says whose it is.
    fn as_ours(&self, record: &LeaseRecord) -> LeaseRecord {
        LeaseRecord {
            lock_label: Some(self.name.clone()),
            ..record.clone()
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

    /// Somebody new: each grant has an identity of its own.
    fn claimant(&self) -> Claimant {
        let who = Requester {
            pod: identity::own_pod_of(&self.config).map(|(pod, _)| pod),
            note: Some(identity::holder_note()),
            ..Requester::heartbeat(self.new_identity())
        };
        // It never queues: it looks again on its own beat.
        Claimant::new(who, Patience::Try, self.times.margin())
    }

    fn new_identity(&self) -> String {
        identity::identity(&self.identity, &identity::random_uid())
    }

    fn kept(&self, held: Held, found: FoundLease) -> Option<Kept> {
        let namespace = &self.namespace;
        match Renewer::new(
            Arc::new(Lifeline::new(self.config.clone())),
            namespace,
            &self.name,
            found,
            self.clock.clone(),
        ) {
            Ok(renewer) => Some(Kept { held, renewer }),
            Err(error) => {
                tracing::error!(%error, "cannot open a connection to renew the lead");
                None
            }
        }
    }

    /// Until the next look is due: on the beat, or when the Lease has changed. Where RBAC does not allow the watch, the
    /// beat alone counts.
    async fn pause(&self, stop: &mut watch::Receiver<bool>, changes: &mut Option<LeaseWatch>) {
        let pause = self
            .times
            .retry_period
            .mul_f64(0.8 + 0.4 * rand::random::<f64>());
        if *stop.borrow() {
            // Already leaving: `wait_for` would return at once, and the loop would spin.
            return tokio::time::sleep(pause / 4).await;
        }
        let beat = tokio::time::sleep(pause);
        tokio::pin!(beat);
        let next_sight = async {
            match changes {
                Some(watch) => watch.next().await,
                None => std::future::pending().await,
            }
        };
        let sight = tokio::select! {
            () = &mut beat => return,
            _ = stop.wait_for(|stop| *stop) => return,
            sight = next_sight => sight,
        };
        if matches!(sight, Sight::Forbidden) {
            *changes = None;
            beat.await;
        }
    }

    fn mono(&self) -> Moment {
        Duration::from_nanos(self.clock.mono().as_nanos())
    }

    fn wall(&self) -> WallMicros {
        self.clock.wall().as_microsecond()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn times_that_do_not_fit_together_are_refused() {
        assert!(LeaderTimes::new(s(15), s(10), s(2)).is_ok());
        assert!(LeaderTimes::new(s(15), s(12), s(2)).is_ok());
        for (duration, deadline, retry) in [
            (s(0), s(10), s(2)),
            (
                Duration::from_millis(1500),
                s(1),
                Duration::from_millis(100),
            ),
            (s(15), s(13), s(2)),
            (s(15), s(15), s(2)),
            (s(15), s(8), s(2)),
            (s(15), s(10), s(6)),
            (s(15), s(10), s(0)),
            (s(4000), s(10), s(2)),
        ] {
            assert!(
                LeaderTimes::new(duration, deadline, retry).is_err(),
                "{duration:?} {deadline:?} {retry:?}"
            );
        }
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
