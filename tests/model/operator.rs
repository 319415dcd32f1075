//! The shell of an operator replica that leads, or believes so.

use leasehold::engine::{
    ClaimRef, ClaimState, ClaimView, Holder, Keeper, LeaseRecord, Moment, OnHolderLost,
    OperatorMove, OperatorWrite, Queue, Seen, SlotView, SpecRecord, Turns, WallMicros, holds,
};

use super::client::Event;
use super::kept::{Kept, Told};
use super::mutations::{self, Broken};
use super::part::Part;
use super::server::{Lock, Server};
use super::world::{BEAT_TICKS, Setup, Violation, World, moment};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    Create(u32, SpecRecord),
    Put {
        slot: u32,
        what: OperatorWrite,
        record: Box<LeaseRecord>,
        then_delete: Option<ClaimRef>,
        /// For how many seconds a grant then lasts in all.
        prolongs: Option<u32>,
    },
    /// The first entries of these slots.
    Open(Vec<u32>, Lock, u64),
    Mirror(Lock, u64),
    /// The status of a Fixed or Pod claim.
    Tell(Kept),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what befell it, each by itself"
)]
pub struct Operator {
    pub(super) number: usize,
    pub(super) keepers: Vec<Keeper>,
    pub(super) turns: Turns,
    pub(super) lock: Part<Lock>,
    pub(super) lock_revision: u64,
    pub(super) claims: Vec<ClaimView>,
    pub(super) kept: Vec<Part<Kept>>,
    pub(super) pod_lives: bool,
    pub air: Option<Sent>,
    pub inbox: Vec<Event>,
    /// Whether claims or lock have changed since it last looked.
    pub news: bool,
    #[expect(
        clippy::option_option,
        reason = "busy, quiet until a moment, quiet until news"
    )]
    pub quiet: Option<Option<Moment>>,
    pub crashed: bool,
    /// A broken shell frees whatever `missing` it finds after opening the lock.
    pub(super) frees_any: bool,
    pub(super) read_at: u32,
}

/// What is to be done, and about which slot.
pub enum Todo {
    Move(u32, OperatorMove),
    Open(Vec<u32>),
    Wait(Option<Moment>),
}

impl Operator {
    /// A replica that lists everything, then leads.
    pub fn start(number: usize, server: &Server, now: Moment) -> Self {
        let keeper = |slot| {
            let mut keeper = Keeper::default();
            keeper.lock_read(server.lock.view(slot), now);
            keeper.lease_seen(server.lease(slot).cloned(), Seen::Read, now);
            keeper.begin_to_lead();
            keeper
        };
        let mut turns = Turns::default();
        turns.begin_to_lead();
        Self {
            number,
            keepers: server.slots().map(keeper).collect(),
            turns,
            lock: server.lock.clone(),
            lock_revision: server.lock_revision,
            claims: server.claims.clone(),
            kept: server.kept.clone(),
            pod_lives: server.pod_lives,
            air: None,
            inbox: Vec::new(),
            news: false,
            quiet: None,
            crashed: false,
            frees_any: false,
            read_at: u32::try_from(now.as_secs()).unwrap_or(u32::MAX),
        }
    }

    pub fn is_busy(&self) -> bool {
        !self.crashed && (self.quiet.is_none() || self.air.is_some() || self.has_news())
    }

    pub fn may_step(&self) -> bool {
        !self.crashed && self.air.is_none() && (self.quiet.is_none() || self.has_news())
    }

    pub fn has_news(&self) -> bool {
        !self.crashed && (self.news || !self.inbox.is_empty())
    }

    pub fn may_beat(&self, tick: u32) -> bool {
        !self.crashed
            && self.quiet.is_some()
            && !self.has_news()
            && tick >= self.read_at + BEAT_TICKS
    }

    pub fn wants_event(&self, slot: u32, lease: Option<&LeaseRecord>) -> bool {
        let known = self.keepers[slot as usize].lease();
        !self.crashed
            && match (known, lease) {
                _ if self.inbox.iter().any(|(of, _)| *of == slot) => true,
                (Some(known), Some(lease)) => lease.resource_version > known.resource_version,
                (known, lease) => known.is_some() || lease.is_some(),
            }
    }

    fn queue(&self) -> Queue {
        let leases = self.keepers.iter().filter_map(Keeper::lease);
        let kept = self.kept.iter().map(|kept| kept.view(self.pod_lives));
        Queue::new(
            self.claims.iter().cloned().chain(kept),
            leases.filter_map(LeaseRecord::holder_uid),
            self.lock.spec.order,
        )
    }

    /// What it does: each slot's holds and keeper first, then the turn, as in `controller::index::deciding`.
    fn decide(&mut self, now: Moment, wall: WallMicros) -> Todo {
        let name = format!("operator-{}", self.number);
        let (mut until, mut to_open) = (Vec::new(), Vec::new());
        for (slot, keeper) in (0..).zip(&mut self.keepers) {
            let kept = keeper.sight(now).and_then(|sight| {
                let uid = sight.lease.holder_uid();
                let mut all = self.kept.iter();
                let claim = all.find(|kept| uid == Some(&kept.claim.claim.uid));
                let claim = claim.map(|kept| kept.seen(self.pod_lives));
                let holder = match &claim {
                    Some(claim) => Holder::InView(claim),
                    None => keeper.holder_out_of_view(now),
                };
                holds::keep(&sight, holder, &name, now, wall)
            });
            let todo = match kept {
                Some(todo) => {
                    keeper.note_attempt(&todo);
                    todo
                }
                None => keeper.decide(&name, now, wall),
            };
            match todo {
                OperatorMove::Open => to_open.push(slot),
                OperatorMove::Wait {
                    stalled: Some(_), ..
                } => return Todo::Wait(None),
                OperatorMove::Wait { until: at, .. } => until.extend(at),
                todo => return Todo::Move(slot, todo),
            }
        }
        if !to_open.is_empty() {
            return Todo::Open(to_open);
        }
        match self.decide_turn(now, wall) {
            (_, OperatorMove::Wait { until: at, .. }) => {
                Todo::Wait(until.into_iter().chain(at).min())
            }
            (slot, todo) => Todo::Move(slot, todo),
        }
    }

    fn decide_turn(&mut self, now: Moment, wall: WallMicros) -> (u32, OperatorMove) {
        let queue = self.queue();
        let keepers: Vec<_> = self.keepers.iter().collect();
        let claim = |claim: &ClaimRef| {
            let kept = self.kept.iter().find(|kept| kept.claim.claim == *claim)?;
            Some(kept.seen(self.pod_lives))
        };
        self.turns.decide(&keepers, &queue, claim, now, wall)
    }

    /// What status is to say; `None` if it says so.
    fn mirror(&self, setup: &Setup) -> Option<Lock> {
        if !setup.mirrors {
            return None;
        }
        let mut lock = (*self.lock).clone();
        let duration = lock.spec.duration_seconds;
        lock.spec.longest_seconds = lock.spec.longest_seconds.max(Some(duration));
        for (entry, keeper) in lock.entries.iter_mut().zip(&self.keepers) {
            if let (Some(entry), Some(lease)) = (entry, keeper.lease()) {
                show(entry, lease);
            }
        }
        (lock != *self.lock).then_some(lock)
    }

    /// What is to be written about a Fixed or Pod claim, and whether what it holds must be read first.
    fn tell(&self) -> Option<(Kept, bool)> {
        let numbered = (0..).zip(&self.keepers);
        let leases = numbered.filter_map(|(slot, keeper): (u32, &Keeper)| {
            Some((slot, keeper.lease()?, keeper.prolonged_to()))
        });
        let leases: Vec<_> = leases.collect();
        self.kept.iter().find_map(|kept| {
            let mut now = (**kept).clone();
            let (state, since, read_first) = match kept.told(&self.lock, &leases)? {
                Told::Granted(state, since) => (state, since, false),
                Told::Over(why) => (ClaimState::Over(why), now.granted_at, true),
            };
            now.granted_at = since;
            now.claim.state = state;
            Some((now, read_first))
        })
    }
}

impl Operator {
    /// From now on it sees this claim so.
    pub(super) fn learn(&mut self, kept: Kept) {
        let uid = &kept.claim.claim.uid;
        self.kept.retain(|known| known.claim.claim.uid != *uid);
        self.kept.push(Part::new(kept));
        self.kept.sort_by_key(|kept| kept.ticket);
    }
}

/// A slot's entry by what its Lease shows.
fn show(entry: &mut SlotView, lease: &LeaseRecord) {
    if let Some(grant) = lease.current_grant() {
        if grant.token.get() > entry.token {
            entry.token = grant.token.get();
            entry.holder.clone_from(&grant.holder);
            entry.hold = Some(grant.hold);
            entry.pod.clone_from(&grant.pod);
        }
        if entry.holder == grant.holder {
            let seconds = lease.spec.duration_seconds;
            entry.duration_seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
        }
    } else if lease.is_free() {
        entry.holder.clear();
        entry.hold = None;
        entry.pod = None;
        entry.duration_seconds = None;
    }
}

impl World {
    pub(super) fn with_operator(
        &mut self,
        number: usize,
        act: impl FnOnce(&mut Self, &mut Operator),
    ) {
        let mut operator = (*self.operators[number]).clone();
        act(self, &mut operator);
        self.operators[number] = Part::new(operator);
    }

    pub fn start_operator(&mut self, number: usize) {
        let now = self.moment();
        self.operators[number] = Part::new(Operator::start(number, &self.server, now));
    }

    /// It hears what is new, then decides. With [`Setup::fine`] it may also decide before it hears.
    pub fn step_operator(&mut self, setup: &Setup, number: usize) {
        if !setup.fine || self.operators[number].quiet.is_some() {
            self.deliver_operator(setup, number);
        }
        self.with_operator(number, |world, operator| {
            let (now, wall) = (world.moment(), world.wall());
            if std::mem::take(&mut operator.frees_any) {
                world.free_what_is_there(operator);
                return;
            }
            // Which comes first matters to claims alone; so there is less to walk.
            if setup.asks.is_empty()
                && let Some(lock) = operator.mirror(setup)
            {
                operator.air = Some(Sent::Mirror(lock, operator.lock_revision));
                return;
            }
            for _ in 0..30 {
                match operator.decide(now, wall) {
                    Todo::Open(slots) => {
                        let mut lock = (*operator.lock).clone();
                        for slot in &slots {
                            lock.entries[*slot as usize].get_or_insert_with(SlotView::default);
                        }
                        let duration = lock.spec.duration_seconds;
                        lock.spec.longest_seconds = lock.spec.longest_seconds.max(Some(duration));
                        operator.air = Some(Sent::Open(slots, lock, operator.lock_revision));
                    }
                    Todo::Move(slot, todo) => world.make_move(setup, operator, slot, todo),
                    Todo::Wait(until) => world.settle_down(setup, operator, until),
                }
                if operator.air.is_some() || operator.quiet.is_some() {
                    return;
                }
            }
            panic!("an operator reads for ever: {operator:?}");
        });
    }

    fn make_move(&mut self, setup: &Setup, operator: &mut Operator, slot: u32, todo: OperatorMove) {
        let now = self.moment();
        match todo {
            OperatorMove::ReadLock => self.read_lock(setup, operator),
            OperatorMove::ReadClaim(claim) => {
                let counts = self.server.has_claim(&claim);
                operator.turns.claim_read(&claim, counts);
            }
            OperatorMove::ReadHolder(uid) => {
                let heartbeat = self
                    .server
                    .claims
                    .iter()
                    .any(|claim| claim.claim.uid == uid);
                let gone = !heartbeat && self.server.kept(&uid).is_none();
                operator.keepers[slot as usize].holder_read(&uid, gone, now);
            }
            OperatorMove::Create(mut spec) => {
                if setup.broken == Some(Broken::CreatesFree) {
                    spec.holder.clear();
                }
                if setup.broken == Some(Broken::MissingByTodaysDuration) {
                    let today = self.server.lock.spec.duration_seconds;
                    spec.duration_seconds = Some(i64::from(today));
                }
                operator.air = Some(Sent::Create(slot, spec));
            }
            OperatorMove::Write {
                what,
                record,
                then_delete,
            } => {
                let hold = self.server.lock.spec.on_holder_lost == OnHolderLost::Hold;
                if what == OperatorWrite::Expire && hold {
                    self.violation = Some(Violation::HoldBroken);
                }
                operator.air = Some(Sent::Put {
                    slot,
                    what,
                    record,
                    then_delete,
                    prolongs: None,
                });
            }
            OperatorMove::Prolong { record, total } => {
                operator.air = Some(Sent::Put {
                    slot,
                    what: OperatorWrite::Prolong,
                    record,
                    then_delete: None,
                    prolongs: Some(total),
                });
            }
            OperatorMove::Finish { claim, why } => {
                let known = operator.kept.iter().find(|kept| kept.claim.claim == claim);
                if let Some(known) = known {
                    let mut kept = (**known).clone();
                    kept.claim.state = ClaimState::Over(why);
                    if setup.broken == Some(Broken::FreesFirst) {
                        operator.learn(kept);
                    } else {
                        operator.air = Some(Sent::Tell(kept));
                    }
                }
            }
            OperatorMove::Open | OperatorMove::Wait { .. } => {}
        }
    }

    /// Nothing is to be done about slots and turn: status, then the claims.
    fn settle_down(&mut self, setup: &Setup, operator: &mut Operator, until: Option<Moment>) {
        if let Some(lock) = operator.mirror(setup) {
            operator.air = Some(Sent::Mirror(lock, operator.lock_revision));
            return;
        }
        let mut told = operator.tell();
        if told.as_ref().is_some_and(|(_, read_first)| *read_first) {
            self.read_lock(setup, operator);
            self.read_leases(setup, operator);
            told = operator.tell();
        }
        match told {
            Some((kept, _)) => operator.air = Some(Sent::Tell(kept)),
            None => operator.quiet = Some(until),
        }
    }

    pub(super) fn read_lock(&mut self, setup: &Setup, operator: &mut Operator) {
        operator.lock = self.server.lock.clone();
        operator.lock_revision = self.server.lock_revision;
        for (slot, keeper) in (0..).zip(&mut operator.keepers) {
            let lock = mutations::lock(setup.broken, operator.lock.view(slot));
            keeper.lock_read(lock, moment(self.now));
        }
    }

    pub(super) fn read_claims(&self, setup: &Setup, operator: &mut Operator) {
        operator.claims.clone_from(&self.server.claims);
        operator.kept.clone_from(&self.server.kept);
        mutations::kept(setup.broken, &mut operator.kept);
        operator.pod_lives = self.server.pod_lives;
    }

    /// The lock and the claims, as their watches tell.
    pub fn deliver_news(&mut self, setup: &Setup, number: usize) {
        self.with_operator(number, |world, operator| {
            if std::mem::take(&mut operator.news) {
                operator.quiet = None;
                world.read_claims(setup, operator);
                world.read_lock(setup, operator);
            }
        });
    }

    pub fn deliver_operator(&mut self, setup: &Setup, number: usize) {
        if !self.operators[number].has_news() {
            return;
        }
        self.with_operator(number, |world, operator| {
            operator.quiet = None;
            for (slot, event) in std::mem::take(&mut operator.inbox) {
                let now = world.moment();
                let keeper = &mut operator.keepers[slot as usize];
                let lease = mutations::kept_lease(setup.broken, event.as_deref());
                keeper.lease_seen(lease, Seen::Watched, now);
            }
        });
        // Watches of different kinds run by themselves.
        if !setup.lags {
            self.deliver_news(setup, number);
        }
    }

    pub fn relist_operator(&mut self, setup: &Setup, number: usize) {
        self.with_operator(number, |world, operator| {
            operator.quiet = None;
            operator.news = false;
            world.read_claims(setup, operator);
            world.read_lock(setup, operator);
            world.read_leases(setup, operator);
            operator.inbox.clear();
        });
    }

    pub(super) fn read_leases(&mut self, setup: &Setup, operator: &mut Operator) {
        for slot in self.server.slots() {
            self.read_lease(setup, operator, slot);
        }
    }

    pub(super) fn read_lease(&mut self, setup: &Setup, operator: &mut Operator, slot: u32) {
        let lease = mutations::kept_lease(setup.broken, self.server.lease(slot));
        let seen = if setup.broken == Some(Broken::RelistKeepsClock) {
            Seen::Watched
        } else {
            Seen::Read
        };
        let mut own = operator.inbox.iter().filter(|(of, _)| *of == slot);
        if lease.is_some() && own.all(|(_, event)| event.is_some()) {
            operator.inbox.retain(|(of, _)| *of != slot);
        }
        operator.keepers[slot as usize].lease_seen(lease, seen, moment(self.now));
        operator.read_at = self.now;
    }

    pub fn wake_operators(&mut self) {
        let now = moment(self.now);
        for operator in &mut self.operators {
            if operator
                .quiet
                .is_some_and(|until| until.is_some_and(|until| until <= now))
            {
                operator.edit(|operator| operator.quiet = None);
            }
        }
    }
}
