//! A client: a claimant, then a holder. What its shell does is in [`seeking`](super::seeking) and
//! [`keeping`](super::keeping).

use leasehold::engine::{
    Answer, ClaimRef, Claimant, Held, LeaseRecord, Moment, Patience, Requester, Served, Write,
};

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
    /// Moves `next` on after a take of another slot than 0.
    MoveOn(LeaseRecord),
}

impl Sent {
    pub(super) fn record(&self) -> &LeaseRecord {
        match self {
            Sent::Seek(write) => write.record(),
            Sent::Renew(record) | Sent::Release(record) | Sent::MoveOn(record) => record,
        }
    }

    /// The slot whose Lease it writes, for a client that holds `held`.
    pub(super) fn slot(&self, held: u32) -> u32 {
        match self {
            Sent::Seek(write) => write.slot(),
            Sent::Renew(_) | Sent::Release(_) => held,
            Sent::MoveOn(_) => 0,
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

/// A change of a slot's Lease, on its way by watch.
pub type Event = (u32, Option<Part<LeaseRecord>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what befell it, each by itself"
)]
pub struct Client {
    pub(super) number: usize,
    pub(super) priority: i32,
    pub(super) mind: Claimant,
    pub phase: Phase,
    /// The slot that it holds.
    pub slot: u32,
    pub air: Option<Air>,
    pub inbox: Vec<Event>,
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
    /// Moves `next` on; and how often that was tried.
    pub(super) moving: Option<(Served, u8)>,
    /// When the take of its grant was sent.
    pub(super) granted: Moment,
    pub(super) read_at: u32,
}

impl Client {
    pub fn new(number: usize, patience: Patience, priority: i32, server: &mut Server) -> Self {
        let who = Requester::heartbeat(identity(number, &server.new_uid()));
        Self {
            number,
            priority,
            mind: Claimant::new(who, patience, Moment::ZERO),
            phase: Phase::Away,
            slot: 0,
            air: None,
            inbox: Vec::new(),
            quiet: None,
            crashed: false,
            stopping: false,
            releasing: false,
            served: false,
            left: None,
            moving: None,
            granted: Moment::ZERO,
            read_at: 0,
        }
    }

    fn held(&self) -> Option<&Held> {
        match &self.phase {
            Phase::Holding(held) => Some(held),
            _ => None,
        }
    }

    /// Whether it believes that it holds this slot.
    pub fn believes(&self, slot: u32, now: Moment) -> bool {
        self.held().is_some_and(|held| {
            !self.crashed && !self.releasing && self.slot == slot && now < held.work_deadline()
        })
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

    /// The slots that it watches.
    pub(super) fn watched(&self) -> std::ops::Range<u32> {
        match &self.phase {
            Phase::Holding(_) => self.slot..self.slot + 1,
            _ => self.mind.watched(),
        }
    }

    /// A watch tells everything that the client does not know from the answer to its own write.
    pub fn wants_event(&self, slot: u32, lease: Option<&LeaseRecord>) -> bool {
        if !self.is_there() || !self.watched().contains(&slot) {
            return false;
        }
        let known = match &self.phase {
            Phase::Holding(held) => Some(held.record()),
            _ => self.mind.lease(slot),
        };
        match (known, lease) {
            _ if self.inbox.iter().any(|(of, _)| *of == slot) => true,
            (Some(known), Some(lease)) => lease.resource_version > known.resource_version,
            (None, Some(_)) => self.quiet.is_some() || self.air.is_some(),
            (known, None) => known.is_some(),
        }
    }

    /// Events that a read has overtaken are passed over when they come.
    pub(super) fn prune(&mut self, slot: u32, read: Option<&LeaseRecord>) {
        let own = self.inbox.iter().filter(|(of, _)| *of == slot);
        let stale = own.take_while(|(_, event)| {
            matches!((event, read), (Some(event), Some(read)) if event.resource_version <= read.resource_version)
        });
        let mut stale = stale.count();
        self.inbox.retain(|(of, _)| {
            let goes = *of == slot && stale > 0;
            stale -= usize::from(goes);
            !goes
        });
    }
}

pub(super) fn identity(number: usize, uid: &str) -> String {
    format!("c{number}/{uid}")
}

impl World {
    pub(super) fn with_client(&mut self, number: usize, act: impl FnOnce(&mut Self, &mut Client)) {
        let mut client = (*self.clients[number]).clone();
        let now = self.moment();
        let lost = client.held().filter(|held| now >= held.work_deadline());
        let lost = lost.map(Held::id);
        act(self, &mut client);
        if lost.is_some()
            && client.believes(client.slot, now)
            && client.held().map(Held::id) == lost
        {
            self.violation = Some(Violation::LossTakenBack);
        }
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
            Phase::Holding(_) => world.step_holder(setup, client),
            Phase::Seeking => world.step_seeker(setup, client),
            // What it heard ended its grant.
            _ => {}
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
