//! The shell of a client: a claimant, then a holder.

use leasehold::engine::{
    Answer, ClaimRef, Claimant, Held, Hold, LeaseRecord, LockView, Moment, Move, OnHolderLost,
    Patience, Requester, Seen, SlotView, Write,
};

use super::mutations::{self, Broken};
use super::part::Part;
use super::server::Server;
use super::world::{BEAT_TICKS, Setup, Violation, World, moment};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Away,
    Seeking,
    Holding(Box<Held>),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    Seek(Write),
    Renew(LeaseRecord),
    Release(LeaseRecord),
}

impl Sent {
    pub(super) fn record(&self) -> &LeaseRecord {
        match self {
            Sent::Seek(write) => write.record(),
            Sent::Renew(record) | Sent::Release(record) => record,
        }
    }
}

/// A write whose answer is awaited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Air {
    pub what: Sent,
    pub sent: Moment,
    /// The answer, if the server has given one that is on its way.
    pub answer: Option<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what befell it, each by itself"
)]
pub struct Client {
    pub(super) number: usize,
    pub(super) mind: Claimant,
    pub phase: Phase,
    pub air: Option<Air>,
    pub inbox: Vec<Option<Part<LeaseRecord>>>,
    /// Nothing to do before that moment, or before an event.
    #[expect(
        clippy::option_option,
        reason = "busy, quiet until a moment, quiet until news"
    )]
    pub quiet: Option<Option<Moment>>,
    pub crashed: bool,
    pub stopping: bool,
    pub releasing: bool,
    /// Whether it got the lock, or was told that it can't have it.
    pub served: bool,
    pub(super) left: Option<ClaimRef>,
    pub(super) read_at: u32,
}

impl Client {
    pub fn new(number: usize, patience: Patience, server: &mut Server) -> Self {
        let who = Requester {
            identity: identity(number, &server.new_uid()),
            hold: Hold::Heartbeat,
            pod: None,
            note: None,
            remembered: 0,
        };
        Self {
            number,
            mind: Claimant::new(who, patience, Moment::ZERO),
            phase: Phase::Away,
            air: None,
            inbox: Vec::new(),
            quiet: None,
            crashed: false,
            stopping: false,
            releasing: false,
            served: false,
            left: None,
            read_at: 0,
        }
    }

    pub fn believes(&self, now: Moment) -> bool {
        match &self.phase {
            Phase::Holding(held) => !self.crashed && !self.releasing && now < held.work_deadline(),
            _ => false,
        }
    }

    pub fn is_there(&self) -> bool {
        !self.crashed && matches!(self.phase, Phase::Seeking | Phase::Holding(_))
    }

    pub fn is_busy(&self) -> bool {
        self.is_there() && (self.quiet.is_none() || self.air.is_some() || !self.inbox.is_empty())
    }

    pub fn may_step(&self) -> bool {
        self.is_there() && self.air.is_none() && (self.quiet.is_none() || !self.inbox.is_empty())
    }

    pub fn may_beat(&self, tick: u32) -> bool {
        self.is_there()
            && self.quiet.is_some()
            && self.inbox.is_empty()
            && tick >= self.read_at + BEAT_TICKS
    }

    pub fn may_release(&self) -> bool {
        self.is_there()
            && matches!(self.phase, Phase::Holding(_))
            && !self.releasing
            && self.air.is_none()
    }

    /// A watch tells everything that the client does not know from the answer to its own write.
    pub fn wants_event(&self, lease: Option<&LeaseRecord>) -> bool {
        if !self.is_there() {
            return false;
        }
        let known = match &self.phase {
            Phase::Holding(held) => Some(held.record()),
            _ => self.mind.lease(0),
        };
        match (known, lease) {
            _ if !self.inbox.is_empty() => true,
            (Some(known), Some(lease)) => lease.resource_version > known.resource_version,
            (None, Some(_)) => {
                self.mind.lease(0).is_some() || self.quiet.is_some() || self.air.is_some()
            }
            (known, None) => known.is_some(),
        }
    }

    /// Events that a read has overtaken are passed over when they come.
    fn prune(&mut self, read: Option<&LeaseRecord>) {
        let stale = self.inbox.iter().take_while(|event| {
            matches!((event, read), (Some(event), Some(read)) if event.resource_version <= read.resource_version)
        });
        let stale = stale.count();
        self.inbox.drain(..stale);
    }
}

fn identity(number: usize, uid: &str) -> String {
    format!("c{number}/{uid}")
}

/// The lock as a client's shell reads it.
fn lock_for(setup: &Setup, lock: &LockView) -> LockView {
    let mut lock = lock.clone();
    if setup.broken == Some(Broken::MissingByTodaysDuration) {
        lock.longest_seconds = lock.longest_seconds.map(|_| lock.duration_seconds);
        lock.slot = lock.slot.map(|slot| SlotView {
            duration_seconds: None,
            ..slot
        });
    }
    lock
}

/// The Lease as a client's shell reads it.
fn lease_for(setup: &Setup, lease: Option<&LeaseRecord>) -> Option<LeaseRecord> {
    let mut lease = lease?.clone();
    match setup.broken {
        Some(Broken::ExpiresByOwnDuration) if !lease.is_free() => {
            lease.spec.duration_seconds = Some(mutations::OWN_SECONDS);
        }
        Some(Broken::TakesOutOfTurn) => lease.next = None,
        _ => {}
    }
    Some(lease)
}

impl World {
    pub(super) fn with_client(&mut self, number: usize, act: impl FnOnce(&mut Self, &mut Client)) {
        let mut client = (*self.clients[number]).clone();
        act(self, &mut client);
        self.clients[number] = Part::new(client);
    }

    pub fn start_client(&mut self, number: usize) {
        let tick = self.now;
        self.with_client(number, |_, client| {
            client.phase = Phase::Seeking;
            client.read_at = tick;
        });
    }

    /// It hears what is new, then decides. With [`Setup::fine`] it may also decide before it hears.
    pub fn step_client(&mut self, setup: &Setup, number: usize) {
        if !setup.fine || self.clients[number].quiet.is_some() {
            self.deliver_client(setup, number);
        }
        self.with_client(number, |world, client| match &client.phase {
            Phase::Holding(_) => world.step_holder(client),
            Phase::Seeking => world.step_seeker(setup, client),
            // What it heard ended its grant.
            _ => {}
        });
    }

    pub fn deliver_client(&mut self, setup: &Setup, number: usize) {
        if self.clients[number].inbox.is_empty() {
            return;
        }
        let now = self.moment();
        self.with_client(number, |world, client| {
            client.quiet = None;
            for event in std::mem::take(&mut client.inbox) {
                match &mut client.phase {
                    Phase::Holding(held) => {
                        // A deletion seen by watch may be that of an earlier one: a read tells.
                        let event = event.or_else(|| world.server.lease.clone());
                        let known = held.record().resource_version;
                        let old = event.as_ref().is_some_and(|e| e.resource_version <= known);
                        if !old && held.reread(event.as_deref(), None).is_err() {
                            world.lose(client);
                            return;
                        }
                    }
                    _ => client.mind.lease_seen(
                        0,
                        lease_for(setup, event.as_deref()),
                        Seen::Watched,
                        now,
                    ),
                }
            }
        });
    }

    /// A list in place of the events: `broken` shells take it for an event.
    pub fn relist_client(&mut self, setup: &Setup, number: usize) {
        self.with_client(number, |world, client| {
            client.inbox.clear();
            client.quiet = None;
            world.reread(setup, client);
        });
    }

    pub(super) fn reread(&mut self, setup: &Setup, client: &mut Client) {
        let lease = self.server.lease.clone();
        client.read_at = self.now;
        if let Phase::Holding(held) = &mut client.phase {
            if held.reread(lease.as_deref(), None).is_err() {
                self.lose(client);
            } else if setup.broken == Some(Broken::ReadProves) {
                let (grant, record) = (held.grant().clone(), held.record().clone());
                **held = Held::new(grant, record, self.moment(), Moment::ZERO);
            }
        } else {
            let seen = if setup.broken == Some(Broken::RelistKeepsClock) {
                Seen::Watched
            } else {
                Seen::Read
            };
            let lease = lease_for(setup, lease.as_deref());
            client.mind.lease_seen(0, lease, seen, self.moment());
        }
        client.prune(lease.as_deref());
    }

    /// The grant is lost: the work has ended, its claim goes.
    pub(super) fn lose(&mut self, client: &mut Client) {
        if let Some(claim) = client.left.take() {
            self.server.delete_claim(&claim);
        }
        client.phase = Phase::Done;
        client.air = None;
        client.inbox.clear();
    }

    fn step_seeker(&mut self, setup: &Setup, client: &mut Client) {
        let (now, wall) = (self.moment(), self.wall());
        for _ in 0..20 {
            match client.mind.decide(now, wall) {
                Move::ReadLock => {
                    // A broken shell answers with what it read first.
                    let known = client.mind.lock(0).cloned();
                    let stale = known.filter(|_| setup.broken == Some(Broken::KeepsTheLock));
                    let lock = stale.unwrap_or_else(|| lock_for(setup, &self.server.lock));
                    client.mind.lock_read(Some(vec![lock]), now);
                }
                Move::ReadLease(_) => self.reread_as_read(setup, client),
                Move::ReadClaim(claim) => {
                    let counts = self.server.has_claim(&claim);
                    client.mind.claim_read(&claim, counts);
                }
                Move::ListClaims => client.mind.claims_listed(self.server.claims.clone()),
                Move::MakeClaim => {
                    let claim = self.server.make_claim(client.number);
                    let identity = identity(client.number, &claim.uid);
                    client.mind.joined(claim, identity);
                }
                Move::DeleteClaim(claim) => {
                    self.server.delete_claim(&claim);
                    client.mind.left();
                }
                Move::StartOver => {
                    let uid = self.server.new_uid();
                    client.mind.start_over(identity(client.number, &uid));
                }
                Move::Write(write) => {
                    if mutations::is_dropped(setup.broken, &write) {
                        client.quiet = Some(None);
                        return;
                    }
                    let write = mutations::write(setup.broken, write);
                    self.judge(client, &write);
                    client.mind.sending(&write);
                    client.air = Some(Air {
                        what: Sent::Seek(write),
                        sent: now,
                        answer: None,
                    });
                    return;
                }
                Move::Wait { until, .. } => {
                    client.quiet = Some(until);
                    return;
                }
                Move::Refuse(_) => {
                    client.served = true;
                    client.mind.stop();
                }
                Move::Gone => {
                    client.phase = Phase::Done;
                    client.inbox.clear();
                    return;
                }
            }
            if setup.fine {
                return;
            }
        }
        panic!("a claimant reads for ever: {client:?}");
    }

    /// A silent holder is replaced only by who has just looked whether that is wanted.
    fn judge(&mut self, client: &Client, write: &Write) {
        let silent = client
            .mind
            .lease(0)
            .is_some_and(|lease| !lease.is_free() && self.server.lock.min_token.is_none());
        let new = !client.mind.is_unsettled();
        let hold = self.server.lock.on_holder_lost == OnHolderLost::Hold;
        if matches!(write, Write::Take { .. }) && silent && new && hold {
            self.violation = Some(Violation::HoldBroken);
        }
    }

    fn reread_as_read(&mut self, setup: &Setup, client: &mut Client) {
        let lease = lease_for(setup, self.server.lease.as_deref());
        client.mind.lease_seen(0, lease, Seen::Read, self.moment());
        client.read_at = self.now;
        let lease = self.server.lease.clone();
        client.prune(lease.as_deref());
    }

    fn step_holder(&mut self, client: &mut Client) {
        let (now, wall) = (self.moment(), self.wall());
        let Phase::Holding(held) = &mut client.phase else {
            return;
        };
        if let Some(claim) = client.left.take() {
            self.server.delete_claim(&claim);
            return;
        }
        if client.releasing {
            if now >= held.lease_end() {
                client.phase = Phase::Done;
                return;
            }
            client.air = Some(Air {
                what: Sent::Release(held.release("done", wall)),
                sent: now,
                answer: None,
            });
            return;
        }
        if now >= held.work_deadline() {
            self.lose(client);
            return;
        }
        let due = held.renew_at(0.0);
        if self.budget.renewals == 0 {
            client.quiet = Some(Some(held.work_deadline()));
        } else if now < due {
            client.quiet = Some(Some(due));
        } else {
            self.budget.renewals -= 1;
            let renewal = held.renewal(&self.server.lock, wall);
            held.sending(&renewal);
            client.air = Some(Air {
                what: Sent::Renew(renewal),
                sent: now,
                answer: None,
            });
        }
    }

    pub fn beat_client(&mut self, setup: &Setup, number: usize) {
        self.with_client(number, |world, client| {
            client.quiet = None;
            world.reread(setup, client);
            if client.phase == Phase::Seeking {
                let lock = lock_for(setup, &world.server.lock);
                client.mind.lock_read(Some(vec![lock]), world.moment());
            }
        });
    }

    pub fn stop_client(&mut self, number: usize) {
        self.with_client(number, |_, client| {
            client.stopping = true;
            client.quiet = None;
            client.mind.stop();
            client.releasing = matches!(client.phase, Phase::Holding(_));
        });
    }

    pub fn wake_clients(&mut self) {
        let now = moment(self.now);
        for client in &mut self.clients {
            if client
                .quiet
                .is_some_and(|until| until.is_some_and(|until| until <= now))
            {
                client.edit(|client| client.quiet = None);
            }
        }
    }

    /// The Lease as `change` leaves it, edited by hand.
    pub fn edit_lease(&mut self, edit: impl FnOnce(&mut LeaseRecord)) {
        if let Some(lease) = &self.server.lease {
            let mut lease = (**lease).clone();
            edit(&mut lease);
            self.server.store(lease);
        }
    }

    /// The claim of a client, for faults.
    pub fn claim_of(&self, number: usize) -> Option<ClaimRef> {
        let name = format!("c{number}");
        let claims = &self.server.claims;
        claims
            .iter()
            .find(|claim| claim.claim.name == name)
            .map(|claim| claim.claim.clone())
    }
}
