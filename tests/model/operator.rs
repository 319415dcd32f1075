//! The shell of an operator replica that leads, or believes so.

use leasehold::engine::{
    ClaimRef, ClaimView, Keeper, LeaseRecord, LockView, Moment, OnHolderLost, OperatorMove,
    OperatorWrite, Queue, QueueOrder, Seen, SlotView, SpecRecord, Turns, WallMicros, change,
};

use super::mutations::Broken;
use super::part::Part;
use super::server::Server;
use super::world::{BEAT_TICKS, Fate, Orphan, Setup, Violation, World, moment};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    Create(SpecRecord),
    Put {
        what: OperatorWrite,
        record: Box<LeaseRecord>,
        then_delete: Option<ClaimRef>,
    },
    Open(LockView, u64),
    Mirror(LockView, u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operator {
    number: usize,
    keeper: Keeper,
    turns: Turns,
    lock: Part<LockView>,
    lock_revision: u64,
    claims: Vec<ClaimView>,
    pub air: Option<Sent>,
    pub inbox: Vec<Option<Part<LeaseRecord>>>,
    /// Whether claims or lock have changed since it last looked.
    pub news: bool,
    #[expect(
        clippy::option_option,
        reason = "busy, quiet until a moment, quiet until news"
    )]
    pub quiet: Option<Option<Moment>>,
    pub crashed: bool,
    /// A broken shell frees whatever `missing` it finds after opening the lock.
    frees_any: bool,
    read_at: u32,
}

impl Operator {
    /// A replica that lists everything, then leads.
    pub fn start(number: usize, server: &Server, now: Moment) -> Self {
        let mut keeper = Keeper::default();
        keeper.lock_read((*server.lock).clone(), now);
        keeper.lease_seen(server.lease.as_deref().cloned(), Seen::Read, now);
        keeper.begin_to_lead();
        let mut turns = Turns::default();
        turns.begin_to_lead();
        Self {
            number,
            keeper,
            turns,
            lock: server.lock.clone(),
            lock_revision: server.lock_revision,
            claims: server.claims.clone(),
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

    pub fn wants_event(&self, lease: Option<&LeaseRecord>) -> bool {
        let known = self.keeper.lease();
        !self.crashed
            && match (known, lease) {
                _ if !self.inbox.is_empty() => true,
                (Some(known), Some(lease)) => lease.resource_version > known.resource_version,
                (known, lease) => known.is_some() || lease.is_some(),
            }
    }

    /// What it does for a lock of one slot: its keeper goes first, then the queue.
    fn decide(&mut self, queue: &Queue, now: Moment, wall: WallMicros) -> OperatorMove {
        let name = format!("operator-{}", self.number);
        let todo = self.keeper.decide(&name, now, wall);
        let OperatorMove::Wait {
            until,
            stalled: None,
        } = todo
        else {
            return todo;
        };
        match self.turns.decide(&[&self.keeper], queue, now) {
            OperatorMove::Wait { until: other, .. } => OperatorMove::Wait {
                until: until.into_iter().chain(other).min(),
                stalled: None,
            },
            todo => todo,
        }
    }

    /// What status is to say; `None` if it says so.
    fn mirror(&self, setup: &Setup) -> Option<LockView> {
        let slot = self.lock.slot.as_ref().filter(|_| setup.mirrors)?;
        let lease = self.keeper.lease()?;
        let mut lock = (*self.lock).clone();
        lock.longest_seconds = lock.longest_seconds.max(Some(lock.duration_seconds));
        let mut slot = slot.clone();
        if let Some(grant) = lease.current_grant() {
            if grant.token.get() > slot.token {
                slot.token = grant.token.get();
                slot.holder.clone_from(&grant.holder);
                slot.hold = Some(grant.hold);
            }
            if slot.holder == grant.holder {
                slot.duration_seconds = lease
                    .spec
                    .duration_seconds
                    .and_then(|seconds| u32::try_from(seconds).ok());
            }
        } else if lease.is_free() {
            slot.holder.clear();
            slot.hold = None;
            slot.duration_seconds = None;
        }
        lock.slot = Some(slot);
        (lock != *self.lock).then_some(lock)
    }
}

/// The lock as an operator's shell reads it.
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

/// The Lease as an operator's shell reads it.
fn lease_for(lease: Option<&LeaseRecord>) -> Option<LeaseRecord> {
    lease.cloned()
}

impl World {
    fn with_operator(&mut self, number: usize, act: impl FnOnce(&mut Self, &mut Operator)) {
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
            if let Some(lock) = operator.mirror(setup) {
                operator.air = Some(Sent::Mirror(lock, operator.lock_revision));
                return;
            }
            for _ in 0..20 {
                let queue = match operator.keeper.lease() {
                    Some(lease) => Queue::new(
                        operator.claims.iter().cloned(),
                        lease.holder_uid(),
                        QueueOrder::Fifo,
                    ),
                    None => Queue::default(),
                };
                match operator.decide(&queue, now, wall) {
                    OperatorMove::ReadLock => world.read_lock(setup, operator),
                    OperatorMove::ReadClaim(claim) => {
                        operator
                            .turns
                            .claim_read(&claim, world.server.has_claim(&claim));
                    }
                    OperatorMove::Create(mut spec) => {
                        if setup.broken == Some(Broken::CreatesFree) {
                            spec.holder.clear();
                        }
                        if setup.broken == Some(Broken::MissingByTodaysDuration) {
                            spec.duration_seconds =
                                Some(i64::from(world.server.lock.duration_seconds));
                        }
                        operator.air = Some(Sent::Create(spec));
                        return;
                    }
                    OperatorMove::Open => {
                        let mut lock = (*operator.lock).clone();
                        lock.slot.get_or_insert_with(SlotView::default);
                        lock.longest_seconds =
                            lock.longest_seconds.max(Some(lock.duration_seconds));
                        operator.air = Some(Sent::Open(lock, operator.lock_revision));
                        return;
                    }
                    OperatorMove::Write {
                        what,
                        record,
                        then_delete,
                    } => {
                        let hold = world.server.lock.on_holder_lost == OnHolderLost::Hold;
                        if what == OperatorWrite::Expire && hold {
                            world.violation = Some(Violation::HoldBroken);
                        }
                        operator.air = Some(Sent::Put {
                            what,
                            record,
                            then_delete,
                        });
                        return;
                    }
                    OperatorMove::Wait { until, .. } => {
                        operator.quiet = Some(until);
                        return;
                    }
                    OperatorMove::ReadHolder(_)
                    | OperatorMove::Finish { .. }
                    | OperatorMove::Prolong { .. } => unreachable!("all claims are Heartbeat"),
                }
            }
            panic!("an operator reads for ever: {operator:?}");
        });
    }

    fn read_lock(&mut self, setup: &Setup, operator: &mut Operator) {
        operator.lock = self.server.lock.clone();
        operator.lock_revision = self.server.lock_revision;
        operator
            .keeper
            .lock_read(lock_for(setup, &operator.lock), self.moment());
    }

    pub fn deliver_operator(&mut self, setup: &Setup, number: usize) {
        if !self.operators[number].has_news() {
            return;
        }
        self.with_operator(number, |world, operator| {
            operator.quiet = None;
            for event in std::mem::take(&mut operator.inbox) {
                let now = world.moment();
                operator
                    .keeper
                    .lease_seen(lease_for(event.as_deref()), Seen::Watched, now);
            }
            if std::mem::take(&mut operator.news) {
                operator.claims.clone_from(&world.server.claims);
                world.read_lock(setup, operator);
            }
        });
    }

    pub fn relist_operator(&mut self, setup: &Setup, number: usize) {
        self.with_operator(number, |world, operator| {
            operator.quiet = None;
            operator.news = false;
            operator.claims.clone_from(&world.server.claims);
            world.read_lock(setup, operator);
            world.read_lease(setup, operator);
            operator.inbox.clear();
        });
    }

    fn read_lease(&mut self, setup: &Setup, operator: &mut Operator) {
        let lease = lease_for(self.server.lease.as_deref());
        let seen = if setup.broken == Some(Broken::RelistKeepsClock) {
            Seen::Watched
        } else {
            Seen::Read
        };
        operator.keeper.lease_seen(lease, seen, self.moment());
        operator.read_at = self.now;
        if self.server.lease.is_some() && operator.inbox.iter().all(Option::is_some) {
            operator.inbox.clear();
        }
    }

    /// A write of the operator's meets its fate.
    pub fn land_operator(&mut self, setup: &Setup, number: usize, fate: Fate) {
        self.with_operator(number, |world, operator| {
            let Some(sent) = operator.air.take() else {
                return;
            };
            operator.quiet = None;
            let told = fate == Fate::Answered;
            match sent {
                Sent::Create(spec) => match world.server.create(&spec) {
                    Ok(made) if told => operator.keeper.written(made, world.moment()),
                    _ => world.read_lease(setup, operator),
                },
                Sent::Put {
                    what,
                    record,
                    then_delete,
                } => {
                    if fate == Fate::GivenUp {
                        world.orphans.push(Orphan {
                            client: usize::MAX,
                            record: *record,
                            is_take: false,
                        });
                        world.read_lease(setup, operator);
                        return;
                    }
                    match world.operator_put(setup, what, &record) {
                        Ok(now) if told => {
                            operator.keeper.written(now, world.moment());
                            if let Some(claim) = then_delete {
                                world.server.delete_claim(&claim);
                            }
                        }
                        _ => world.read_lease(setup, operator),
                    }
                }
                Sent::Open(lock, read) => {
                    let won = world.server.put_lock(lock, read).is_ok() && told;
                    world.read_lock(setup, operator);
                    if won {
                        if setup.broken == Some(Broken::FreesWhatItFinds) {
                            operator.frees_any = true;
                        } else {
                            operator.keeper.opened();
                        }
                    }
                }
                Sent::Mirror(lock, read) => {
                    let _ = world.server.put_lock(lock, read);
                    world.read_lock(setup, operator);
                }
            }
        });
    }

    /// The broken opening: whatever `missing` is there now.
    fn free_what_is_there(&mut self, operator: &mut Operator) {
        let Some(lease) = self.server.lease.clone().filter(|lease| lease.is_missing()) else {
            return;
        };
        operator.air = Some(Sent::Put {
            what: OperatorWrite::Free,
            record: Box::new(change::open(&lease, self.wall())),
            then_delete: None,
        });
    }

    fn operator_put(
        &mut self,
        setup: &Setup,
        what: OperatorWrite,
        record: &LeaseRecord,
    ) -> Result<LeaseRecord, ()> {
        let stamps = what == OperatorWrite::Stamp;
        let now = self.put(setup, record, None)?;
        if now.resource_version == record.resource_version {
            self.violation = Some(Violation::NoChange);
        }
        if stamps && let Some(token) = now.current_token() {
            self.note_grant(token.get());
        }
        Ok(now)
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
