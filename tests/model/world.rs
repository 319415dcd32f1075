//! The whole: who is there, what may happen next, what must never be.

use std::collections::HashMap;
use std::sync::Mutex;

use leasehold::engine::{
    LeaseRecord, Moment, NextChange, OperatorWrite, Requester, SlotView, Standing, change,
};
use stateright::{Model, Property};

use super::client::{Client, Phase};
use super::fair;
use super::foreign::Foreign;
use super::kept::Kept;
use super::mutations::Broken;
use super::operator::Operator;
use super::part::Part;
use super::rest;
use super::server::Server;
pub use super::setup::{Budget, Setup};

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
    /// A slot above `maxHolders` was taken.
    Surplus,
    /// A token ahead of the revision, without a floor that asks for it.
    Ahead,
    /// A Fixed or Pod claim that was shown as granted was taken for again.
    TakenAgain,
    /// The operator freed the Lease of a claim that was still shown as granted.
    FreedFirst,
    /// A Fixed hold ended before its time, or a Pod hold while its Pod lived, without a revoke.
    EndedEarly,
    /// A client whose deadline had passed believed in its grant again.
    LossTakenBack,
    /// A holder that keeps to `maxHoldSeconds` was ended by the operator while it believed.
    CutShort,
    /// A take was sent again though its token had come to be below the floor.
    BelowTheFloor,
    /// A claimant that goes on reading and deciding, without a write and without a rest.
    Restless,
}

/// A write whose sender has given up on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Orphan {
    pub client: usize,
    pub slot: u32,
    pub record: LeaseRecord,
    pub is_take: bool,
    /// What it was for, if it was an operator's.
    pub what: Option<OperatorWrite>,
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
    /// By slot.
    pub highest_tokens: Vec<i64>,
    /// By slot: whether the exclusion was given up by an explicit act: a revoke, or an old Lease put in place of a
    /// deleted one.
    pub waived: Vec<bool>,
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
    /// Applied, and answered as a conflict.
    Repeated,
    /// Not applied yet, and the sender gives up.
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Do {
    /// Reads and decides, and maybe sends a write.
    Step,
    /// Gets the watch events that are waiting.
    Deliver,
    /// Gets the changes of lock and claims alone.
    Hear,
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
    DeleteLease(u32),
    DeleteClaim(usize),
    DropAnnotations(u32),
    ResetTransitions,
    RestoreSpec,
    RestoreLease,
    NewDuration,
    NewHold,
    Revoke,
    FloorOfSlot,
    LowerLimit,
    RaiseLimit,
    NewMaxHold,
    OuterRenewal,
    /// A Fixed claim's seconds are raised by one.
    Extend(usize),
    DeleteKept(usize),
    PodEnds,
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

    /// Who believes at this moment that it holds the slot.
    pub fn believers(&self, slot: u32) -> usize {
        let now = self.moment();
        let clients = self.clients.iter();
        let clients = clients.filter(|client| client.believes(slot, now)).count();
        let foreign = self.foreign.as_ref().filter(|_| slot == 0);
        let kept = self.server.kept.iter();
        let kept = kept.filter(|kept| kept.believes(slot, self.now, self.server.pod_lives));
        clients + usize::from(foreign.is_some_and(|foreign| foreign.believes(now))) + kept.count()
    }

    /// Whether somebody has something to do before the next tick.
    pub fn is_busy(&self) -> bool {
        self.clients.iter().any(|client| client.is_busy())
            || self.operators.iter().any(|operator| operator.is_busy())
    }

    /// A guarded write of somebody's take was applied.
    pub fn note_grant(&mut self, slot: u32, token: i64) {
        let highest = &mut self.highest_tokens[slot as usize];
        if token <= *highest {
            self.violation = Some(Violation::TokenFell);
        }
        *highest = token.max(*highest);
    }

    /// The highest token of any slot.
    pub fn highest_token(&self) -> i64 {
        self.highest_tokens.iter().copied().max().unwrap_or(0)
    }

    fn new(setup: &Setup) -> Self {
        let mut server = Server::new(setup.seconds, setup.slots, setup.foreign);
        let mut lock = (*server.lock).clone();
        lock.spec.on_holder_lost = setup.on_holder_lost;
        lock.spec.order = setup.order;
        lock.spec.max_hold_seconds = setup.max_hold_seconds;
        lock.spec.lock_delay_seconds = setup.lock_delay_seconds;
        if setup.opened {
            lock.entries.fill(Some(SlotView::default()));
            lock.spec.longest_seconds = Some(setup.seconds);
        }
        server.edit_lock(lock);
        for slot in server.slots().filter(|_| setup.opened) {
            let spec = change::missing(&server.lock.view(slot), 0);
            let made = server.create(slot, &spec).expect("the Lease is new");
            server.store(slot, change::open(&made, 0));
        }
        for (number, asks) in setup.asks.iter().enumerate() {
            let kept = Kept::new(number, *asks, &mut server);
            server.kept.push(Part::new(kept));
        }
        let mut highest_tokens = vec![0; setup.slots as usize];
        if setup.occupied {
            highest_tokens[0] = occupy(&mut server);
        }
        let mut world = Self {
            now: 0,
            server,
            clients: Vec::new(),
            operators: Vec::new(),
            foreign: setup.foreign.then(Foreign::default),
            orphans: Vec::new(),
            budget: setup.budget,
            highest_tokens,
            waived: vec![false; setup.slots as usize],
            violation: None,
            previous: None,
            saved: None,
        };
        for (number, patience) in setup.clients.iter().enumerate() {
            let priority = setup.priorities.get(number).copied().unwrap_or(0);
            let client = Client::new(number, *patience, priority, &mut world.server);
            world.clients.push(Part::new(client));
        }
        if !setup.clients.is_empty() {
            world.start_client(0);
        }
        for number in 0..setup.operators {
            let operator = Operator::start(number, &world.server, world.moment());
            world.operators.push(Part::new(operator));
        }
        world
    }

    /// A change of a slot's Lease reaches everybody's watch.
    fn publish(&mut self, slot: u32) {
        let lease = self.server.shared(slot);
        for client in &mut self.clients {
            if client.wants_event(slot, lease.as_deref()) {
                client.edit(|client| client.inbox.push((slot, lease.clone())));
            }
        }
        for operator in &mut self.operators {
            if operator.wants_event(slot, lease.as_deref()) {
                operator.edit(|operator| operator.inbox.push((slot, lease.clone())));
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

/// Somebody holds slot 0 for much longer than the model looks.
fn occupy(server: &mut Server) -> i64 {
    let uid = server.new_uid();
    let lease = server.lease(0).expect("it is opened").clone();
    let who = Requester::heartbeat(format!("long/{uid}"));
    let lock = server.lock.view(0);
    let taken = change::take(&lock, &lease, Standing::Free, &who, NextChange::Keep, 0);
    let taken = taken.expect("it is free");
    let mut record = taken.record;
    record.spec.duration_seconds = Some(1000);
    server.store(0, record);
    taken.grant.token.get()
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
        let news = old.claims != new.claims
            || old.lock != new.lock
            || old.kept != new.kept
            || old.pod_lives != new.pod_lives;
        let slots = old.slots();
        let changed = slots.filter(|slot| old.leases[*slot as usize] != new.leases[*slot as usize]);
        for slot in changed.collect::<Vec<_>>() {
            next.publish(slot);
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
                let mut slots = world.server.slots();
                slots.all(|slot| world.waived[slot as usize] || world.believers(slot) <= 1)
            }),
            Property::always("tokens rise with each grant", |_, world: &World| {
                world.violation != Some(Violation::TokenFell)
            }),
            Property::always(
                "renewals and releases keep the token",
                |_, world: &World| world.violation != Some(Violation::TokenChanged),
            ),
            Property::always("a loss is final", |_, world: &World| {
                world.violation != Some(Violation::LossTakenBack)
            }),
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
            Property::always("slots above the limit are not taken", |_, world: &World| {
                world.violation != Some(Violation::Surplus)
            }),
            Property::always(
                "tokens run ahead of revisions only by a floor",
                |_, world: &World| world.violation != Some(Violation::Ahead),
            ),
            Property::always("a claim is granted once", |_, world: &World| {
                world.violation != Some(Violation::TakenAgain)
            }),
            Property::always(
                "a claim is over before its lease is freed",
                |_, world: &World| world.violation != Some(Violation::FreedFirst),
            ),
            Property::always(
                "a hold lasts for as long as it was granted",
                |_, world: &World| world.violation != Some(Violation::EndedEarly),
            ),
            Property::always(
                "who keeps to maxHoldSeconds is not cut short",
                |_, world: &World| world.violation != Some(Violation::CutShort),
            ),
            Property::always(
                "no take below the floor is sent again",
                |_, world: &World| world.violation != Some(Violation::BelowTheFloor),
            ),
            Property::always("every claimant comes to rest", rest::everyone_rests),
            Property::sometimes("somebody is served", |_, world: &World| {
                let mut clients = world.clients.iter();
                let mut kept = world.server.kept.iter();
                clients.any(|client| matches!(client.phase, Phase::Holding(_)))
                    || kept.any(|kept| kept.shown().is_some())
            }),
        ];
        // What a broken rule leaves undone costs many steps to find.
        if self.setup.broken.is_none_or(Broken::strands) {
            let stranded = fair::nobody_is_stranded;
            properties.push(Property::always("nobody is stranded", stranded));
        }
        properties
    }
}
