//! The whole: who is there, what may happen next, what must never be.

use std::collections::HashMap;
use std::sync::Mutex;

use leasehold::engine::{LeaseRecord, LockView, Moment, OnHolderLost, Patience, SlotView, change};
use stateright::{Model, Property};

use super::client::{Client, Phase};
use super::fair;
use super::foreign::Foreign;
use super::mutations::Broken;
use super::operator::Operator;
use super::part::Part;
use super::server::Server;

/// What one run of the model looks at.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what there is, each by itself"
)]
pub struct Setup {
    /// The lock's lease duration; a tick is a second.
    pub seconds: u32,
    pub clients: Vec<Patience>,
    pub operators: usize,
    /// Whether a foreign elector shares the Lease.
    pub foreign: bool,
    /// Whether the operator has made and opened the Lease before the start.
    pub opened: bool,
    /// Whether the operator mirrors token, holder and durations to status.
    pub mirrors: bool,
    pub on_holder_lost: OnHolderLost,
    /// Whether others may act between two reads of a client, not only between a read and a write.
    pub fine: bool,
    /// The last tick.
    pub horizon: u32,
    pub budget: Budget,
    /// What has happened before the start.
    pub prefix: Vec<Action>,
    /// The rule that is broken on purpose.
    pub broken: Option<Broken>,
    /// The most ticks that it may take, without faults, until everybody is served.
    pub bound: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seconds: 2,
            clients: vec![Patience::Wait; 2],
            operators: 1,
            foreign: false,
            opened: true,
            mirrors: false,
            on_holder_lost: OnHolderLost::Release,
            fine: false,
            horizon: 3,
            budget: Budget::default(),
            prefix: Vec::new(),
            broken: None,
            bound: 40,
        }
    }
}

/// How often each thing may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Ticks that pass while somebody had something to do: pauses and slow networks.
    pub pauses: u8,
    pub renewals: u8,
    /// Applied, and never answered.
    pub lost_answers: u8,
    /// Given up by the sender, applied at any later time or never.
    pub late_writes: u8,
    /// Applied at once, answered at any later time.
    pub slow_answers: u8,
    /// A list in place of the watch events that were waiting.
    pub relists: u8,
    pub crashes: u8,
    pub stops: u8,
    /// Rounds of clients that ask again after a release.
    pub again: u8,
    pub operator_crashes: u8,
    pub operator_starts: u8,
    pub lease_deletions: u8,
    pub claim_deletions: u8,
    pub dropped_annotations: u8,
    pub reset_transitions: u8,
    /// The spec that a holder's previous renewal had, put back by hand.
    pub restored_specs: u8,
    /// A saved copy of an old Lease in place of a deleted one.
    pub restored_leases: u8,
    /// The lock's duration set to this.
    pub new_duration: u8,
    pub revocations: u8,
    /// `onHolderLost` set to Hold.
    pub new_holds: u8,
    /// Terms of the foreign elector.
    pub foreign_terms: u8,
    pub foreign_crashes: u8,
}

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A grant whose token is not above every earlier one.
    TokenFell,
    /// A renewal or a release changed the token.
    TokenChanged,
    /// A take while `next` counted for another.
    Overtook,
    /// A client that is gone became the holder.
    Stranded,
    /// A Lease came back to life by a guarded write.
    Revived,
    /// A silent holder was replaced under `onHolderLost: Hold`.
    HoldBroken,
    /// A write that should have changed something did not.
    NoChange,
}

/// A write whose sender has given up on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Orphan {
    pub client: usize,
    pub record: LeaseRecord,
    pub is_take: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub now: u32,
    pub server: Server,
    pub clients: Vec<Part<Client>>,
    pub operators: Vec<Part<Operator>>,
    pub foreign: Option<Foreign>,
    pub orphans: Vec<Orphan>,
    pub budget: Budget,
    pub highest_token: i64,
    /// Whether the exclusion was given up by an explicit act: a revoke, or an old Lease put in place of a deleted one.
    pub waived: bool,
    pub violation: Option<Violation>,
    /// The spec before the last renewal.
    pub previous: Option<leasehold::engine::SpecRecord>,
    /// The Lease before the first grant.
    pub saved: Option<Part<LeaseRecord>>,
}

/// What a write in the air meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    Answered,
    AnswerLost,
    AnswerSlow,
    /// Not applied yet, and the sender gives up.
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Do {
    /// Reads and decides, and maybe sends a write.
    Step,
    /// Gets the watch events that are waiting.
    Deliver,
    /// Gets a list in place of them.
    Relist,
    /// Reads again though nothing happened: the slow beat.
    Beat,
    Land(Fate),
    /// The answer that was slow.
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Tick,
    Start(usize),
    Client(usize, Do),
    Release(usize),
    Operator(usize, Do),
    ForeignStep,
    ForeignLand,
    ForeignRelease,
    ForeignCrash,
    LandOrphan(usize),
    Crash(usize),
    Stop(usize),
    OperatorCrash(usize),
    OperatorStart(usize),
    DeleteLease,
    DeleteClaim(usize),
    DropAnnotations,
    ResetTransitions,
    RestoreSpec,
    RestoreLease,
    NewDuration,
    NewHold,
    Revoke,
}

/// The slow beat: how long a watch is trusted.
pub const BEAT_TICKS: u32 = 5;

pub fn moment(tick: u32) -> Moment {
    Moment::from_secs(u64::from(tick))
}

impl World {
    pub fn moment(&self) -> Moment {
        moment(self.now)
    }

    pub fn wall(&self) -> i64 {
        i64::from(self.now) * 1_000_000
    }

    /// Who believes at this moment that it holds the lock.
    pub fn believers(&self) -> usize {
        let now = self.moment();
        let clients = self.clients.iter().filter(|client| client.believes(now));
        clients.count() + usize::from(self.foreign.as_ref().is_some_and(|f| f.believes(now)))
    }

    /// Whether somebody has something to do before the next tick.
    pub fn is_busy(&self) -> bool {
        self.clients.iter().any(|client| client.is_busy())
            || self.operators.iter().any(|operator| operator.is_busy())
    }

    /// A guarded write of somebody's take was applied.
    pub fn note_grant(&mut self, token: i64) {
        if token <= self.highest_token {
            self.violation = Some(Violation::TokenFell);
        }
        self.highest_token = self.highest_token.max(token);
    }

    fn new(setup: &Setup) -> Self {
        let mut server = Server::new(setup.seconds, setup.foreign);
        let mut lock = LockView {
            on_holder_lost: setup.on_holder_lost,
            ..(*server.lock).clone()
        };
        if setup.opened {
            lock.slot = Some(SlotView::default());
            lock.longest_seconds = Some(setup.seconds);
            server.edit_lock(lock);
            let made = server.create(&change::missing(&server.lock.clone(), 0));
            let made = made.expect("the Lease is new");
            server.store(change::open(&made, 0));
        } else {
            server.edit_lock(lock);
        }
        let mut world = Self {
            now: 0,
            server,
            clients: Vec::new(),
            operators: Vec::new(),
            foreign: setup.foreign.then(Foreign::default),
            orphans: Vec::new(),
            budget: setup.budget,
            highest_token: 0,
            waived: false,
            violation: None,
            previous: None,
            saved: None,
        };
        for (number, patience) in setup.clients.iter().enumerate() {
            let client = Client::new(number, *patience, &mut world.server);
            world.clients.push(Part::new(client));
        }
        world.start_client(0);
        for number in 0..setup.operators {
            let operator = Operator::start(number, &world.server, world.moment());
            world.operators.push(Part::new(operator));
        }
        world
    }

    /// A change of the Lease reaches everybody's watch.
    fn publish(&mut self) {
        let lease = &self.server.lease;
        for client in &mut self.clients {
            if client.wants_event(lease.as_deref()) {
                client.edit(|client| client.inbox.push(lease.clone()));
            }
        }
        for operator in &mut self.operators {
            if operator.wants_event(lease.as_deref()) {
                operator.edit(|operator| operator.inbox.push(lease.clone()));
            }
        }
    }

    /// A change of claims or lock reaches the operators' watches.
    fn spread_news(&mut self) {
        for operator in &mut self.operators {
            if !operator.crashed && !operator.news {
                operator.edit(|operator| operator.news = true);
            }
        }
    }
}

/// The model of one setup.
pub struct Play {
    pub setup: Setup,
    /// Ticks to the end of the fair continuation, by the state's fingerprint.
    pub ends: Mutex<HashMap<u64, u32>>,
}

impl Play {
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            ends: Mutex::default(),
        }
    }

    /// The state after `action`; `None` if it changes nothing.
    pub fn after(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.act(&self.setup, action);
        let (old, new) = (&world.server, &next.server);
        let lease_changed = old.lease != new.lease;
        let news = old.claims != new.claims || old.lock != new.lock;
        if lease_changed {
            next.publish();
        }
        if news {
            next.spread_news();
        }
        (next != *world).then_some(next)
    }
}

impl Model for Play {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(&self.setup);
        for action in &self.setup.prefix {
            world = self.after(&world, *action).expect("the prefix is possible");
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.violation.is_some() {
            return;
        }
        world.offer(&self.setup, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        self.after(world, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("one believer at a time", |_, world: &World| {
                world.waived || world.believers() <= 1
            }),
            Property::always("tokens rise with each grant", |_, world: &World| {
                world.violation != Some(Violation::TokenFell)
            }),
            Property::always(
                "renewals and releases keep the token",
                |_, world: &World| world.violation != Some(Violation::TokenChanged),
            ),
            Property::always("nobody takes out of turn", |_, world: &World| {
                world.violation != Some(Violation::Overtook)
            }),
            Property::always("who is gone holds nothing", |_, world: &World| {
                world.violation != Some(Violation::Stranded)
            }),
            Property::always("a deleted lease stays deleted", |_, world: &World| {
                world.violation != Some(Violation::Revived)
            }),
            Property::always("under Hold a silent holder stays", |_, world: &World| {
                world.violation != Some(Violation::HoldBroken)
            }),
            Property::always("every write changes something", |_, world: &World| {
                world.violation != Some(Violation::NoChange)
            }),
            Property::sometimes("somebody is served", |_, world: &World| {
                world
                    .clients
                    .iter()
                    .any(|client| matches!(client.phase, Phase::Holding(_)))
            }),
        ];
        // What a broken rule leaves undone costs many steps to find.
        if matches!(self.setup.broken, None | Some(Broken::NeverPassesOver)) {
            let stranded = fair::nobody_is_stranded;
            properties.push(Property::always("nobody is stranded", stranded));
        }
        properties
    }
}
