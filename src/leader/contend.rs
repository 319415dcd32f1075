//! The way to the lead: the rules of every claimant, on a beat of its own.
//!
//! A server that refuses what it then shows unchanged (a policy, a webhook that is down, a gateway that answers for it)
//! is asked again on the beat, whatever it answers; and why is said, once a reason.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Election, Kept};
use crate::client::calls::asked_of;
use crate::client::identity;
use crate::client::renew::{Lifeline, Renewer, boot_moment};
use crate::client::watch::{LeaseWatch, Sight};
use crate::clock::BootInstant;
use crate::engine::{
    Answer, Claimant, Held, LeaseRecord, Moment, Move, Patience, Refusal, Requester, Seen,
    SpecRecord, WallMicros, Write,
};
use crate::lease::{FoundLease, NewLease, Put, StoreError};

/// Who contends for the lead, from the first look at the Lease to the grant.
pub(super) struct Contender<'a> {
    election: &'a Election,
    claimant: Claimant,
    /// The Lease whose record the claimant knows.
    found: Option<FoundLease>,
    /// A lead that is given back is taken at once, not at the next beat. `None` where RBAC does not allow the watch.
    changes: Option<LeaseWatch>,
    /// Why the Lease could not be read, while it can't.
    blind: Option<String>,
    /// Why the last write was in vain.
    in_vain: Option<String>,
    /// The Lease that a write was last turned down for: uid and resourceVersion.
    turned_down: Option<(String, u64)>,
    stands_by: bool,
    /// When it leaves though a write of its own may still be under way.
    leave_by: Option<BootInstant>,
}

impl<'a> Contender<'a> {
    /// One that has looked at nothing yet.
    pub(super) fn new(election: &'a Election) -> Self {
        let leases = election.store.api().clone();
        Self {
            election,
            claimant: claimant(election),
            found: None,
            changes: Some(LeaseWatch::new(leases, &election.name)),
            blind: None,
            in_vain: None,
            turned_down: None,
            stands_by: false,
            leave_by: None,
        }
    }

    /// Until the lead is had; `None` once `stop` is set and nothing of ours is under way any more.
    pub(super) async fn contend(mut self, stop: &mut watch::Receiver<bool>) -> Option<Kept> {
        loop {
            if *stop.borrow() && self.has_left() {
                return None;
            }
            match self.claimant.decide(self.mono(), self.wall()) {
                Move::ReadLock => {
                    let now = self.mono();
                    self.claimant
                        .lock_read(Some(vec![self.election.view()]), now);
                }
                Move::ReadLease(_) => {
                    if let Err(asked) = self.look().await {
                        self.pause(stop, asked).await;
                    }
                }
                Move::Write(write) => match self.write(&write).await {
                    Ok(kept) => return Some(kept),
                    // The beat, or a change of the Lease: such as by that very write, applied after all.
                    Err(asked) => self.pause(stop, asked).await,
                },
                Move::StartOver => self.claimant.start_over(new_identity(self.election)),
                Move::Gone => return None,
                // Nobody queues for the lead: whatever `next` says counts for nobody, and the take removes it.
                Move::ReadClaim(claim) => self.claimant.claim_read(&claim, false),
                Move::ListClaims => self.claimant.claims_listed(vec![]),
                Move::Refuse(refusal) => {
                    self.tell(refusal);
                    self.look_on_the_beat(stop).await;
                }
                other => {
                    tracing::debug!(lease = self.election.name, ?other, "waits for the lead");
                    self.look_on_the_beat(stop).await;
                }
            }
        }
    }

    /// Whether it may go: an open write is settled first, but not for ever; a lead that nobody uses runs out by itself.
    fn has_left(&mut self) -> bool {
        self.claimant.stop();
        let now = self.election.clock.boot();
        let within = self.election.times.retry_period;
        let until = *self.leave_by.get_or_insert(now + within);
        !self.claimant.is_unsettled() || now >= until
    }

    fn tell(&mut self, refusal: Refusal) {
        let lease = &self.election.name;
        if refusal != Refusal::Busy {
            tracing::warn!(lease, ?refusal, "cannot contend for the lead");
        } else if !std::mem::replace(&mut self.stands_by, true) {
            let leader = self.found.as_ref();
            let leader = leader.map(|lease| lease.record.spec.holder.as_str());
            tracing::info!(lease, leader, "stands by");
        }
    }

    async fn look_on_the_beat(&mut self, stop: &mut watch::Receiver<bool>) {
        self.pause(stop, Duration::ZERO).await;
        if let Err(asked) = self.look().await
            && !asked.is_zero()
        {
            self.pause(stop, asked).await;
        }
    }

    /// Reads the Lease, makes it where there is none, and tells the claimant. An error is for how long the server asked
    /// not to be asked again.
    async fn look(&mut self) -> Result<(), Duration> {
        match read_or_make(self.election).await {
            Ok(lease) => {
                self.blind = None;
                let record = lease.as_ref().map(|lease| self.as_ours(&lease.record));
                self.found = lease;
                let now = self.mono();
                self.claimant.lease_seen(0, record, Seen::Read, now);
                Ok(())
            }
            Err(error) => {
                let words = error.to_string();
                if self.blind.as_ref() != Some(&words) {
                    tracing::warn!(
                        lease = self.election.name,
                        error = words,
                        "cannot contend for the lead"
                    );
                    self.blind = Some(words);
                }
                Err(error.retry_after())
            }
        }
    }

    /// Sends the write: the grant, or for how long the server asked not to be asked again.
    async fn write(&mut self, write: &Write) -> Result<Kept, Duration> {
        let Some(base) = self.found.clone() else {
            return Err(Duration::ZERO);
        };
        let Election {
            store, name, times, ..
        } = self.election;
        self.claimant.sending(write);
        let sent = self.election.clock.boot();
        let within = times.renew_deadline / 2;
        let put = store.put(name, &base, write.record(), within).await;
        let answer = match put.answer() {
            Answer::Applied(record) => Answer::Applied(self.as_ours(&record)),
            other => other,
        };
        let now = self.mono();
        let held = self
            .claimant
            .answered(write, answer, boot_moment(sent), now);
        let asked = self.tell_of(&put, &base);
        let (Some(held), Put::Applied(now)) = (held, put) else {
            return Err(asked);
        };
        // Whatever becomes of this grant, its identity is spent.
        self.claimant = claimant(self.election);
        let kept = self.kept(held, *now).ok_or(Duration::ZERO)?;
        if kept.held.is_held(kept.renewer.now()) {
            return Ok(kept);
        }
        self.election.release(kept).await;
        Err(Duration::ZERO)
    }

    /// Says why a write was in vain, once a reason. That somebody else was faster is no reason.
    fn tell_of(&mut self, put: &Put, base: &FoundLease) -> Duration {
        let (words, asked) = match put {
            Put::Forbidden(error) | Put::Refused(error) | Put::Unknown(error) => {
                (error.to_string(), error.retry_after())
            }
            put if put.is_turned_down(base) => {
                let base = (base.record.uid.clone(), base.record.resource_version);
                if self.turned_down.replace(base.clone()) != Some(base) {
                    return Duration::ZERO;
                }
                let words = "the server turns the write down, and shows the lease unchanged";
                (words.to_owned(), Duration::ZERO)
            }
            _ => return Duration::ZERO,
        };
        if self.in_vain.as_ref() != Some(&words) {
            tracing::warn!(
                lease = self.election.name,
                error = words,
                "was not given the lead, tries again"
            );
            self.in_vain = Some(words);
        }
        asked
    }

    /// The Lease of the election needs no label: its name says whose it is.
    fn as_ours(&self, record: &LeaseRecord) -> LeaseRecord {
        LeaseRecord {
            lock_label: Some(self.election.name.clone()),
            ..record.clone()
        }
    }

    fn kept(&self, held: Held, found: FoundLease) -> Option<Kept> {
        let Election {
            config,
            namespace,
            name,
            clock,
            ..
        } = self.election;
        let lifeline = Arc::new(Lifeline::new(config.clone()));
        match Renewer::new(lifeline, namespace, name, found, clock.clone()) {
            Ok(renewer) => Some(Kept { held, renewer }),
            Err(error) => {
                tracing::error!(%error, "cannot open a connection to renew the lead, leaves it to run out");
                None
            }
        }
    }

    /// Until the next look is due: on the beat, or when the Lease has changed; but not before `asked` is over. Where RBAC
    /// does not allow the watch, the beat alone counts.
    async fn pause(&mut self, stop: &mut watch::Receiver<bool>, asked: Duration) {
        let period = self.election.times.retry_period;
        let pause = period.mul_f64(0.8 + 0.4 * rand::random::<f64>());
        if *stop.borrow() {
            // Already leaving: `wait_for` would return at once, and the loop would spin.
            return tokio::time::sleep(pause / 4).await;
        }
        let asked = asked_of(asked);
        if !asked.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(asked.max(pause)) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
            return;
        }
        let beat = tokio::time::sleep(pause);
        tokio::pin!(beat);
        let next_sight = async {
            match &mut self.changes {
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
            self.changes = None;
            beat.await;
        }
    }

    fn mono(&self) -> Moment {
        Duration::from_nanos(self.election.clock.mono().as_nanos())
    }

    fn wall(&self) -> WallMicros {
        self.election.clock.wall().as_microsecond()
    }
}

async fn read_or_make(election: &Election) -> Result<Option<FoundLease>, StoreError> {
    let within = election.times.renew_deadline / 2;
    let found = election.store.get(&election.name, within).await?;
    if found.is_some() {
        return Ok(found);
    }
    let new = NewLease {
        name: &election.name,
        lock: None,
        owner: None,
        shared_with: None,
        spec: &SpecRecord {
            duration_seconds: Some(1),
            renew_time: Some(election.clock.wall().as_microsecond()),
            ..SpecRecord::default()
        },
    };
    election.store.create(&new, within).await
}

/// Somebody new: each grant has an identity of its own.
fn claimant(election: &Election) -> Claimant {
    let who = Requester {
        pod: identity::own_pod_of(&election.config).map(|(pod, _)| pod),
        note: Some(identity::holder_note()),
        ..Requester::heartbeat(new_identity(election))
    };
    // It never queues: it looks again on its own beat.
    Claimant::new(who, Patience::Try, election.times.margin())
}

fn new_identity(election: &Election) -> String {
    identity::identity(&election.identity, &identity::random_uid())
}
