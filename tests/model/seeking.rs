//! The shell of a client that asks for the lock; and how any client hears and reads.

use leasehold::engine::{Claimant, Held, Moment, Move, OnHolderLost, Seen, Write};

use super::client::{Air, Client, Phase, Sent, identity};
use super::mutations::{self, Broken};
use super::world::{Setup, Violation, World};

/// Who decides so often without a write, or a rest, goes on for ever.
pub(super) const MOST_READS: usize = 30;

impl World {
    pub fn deliver_client(&mut self, setup: &Setup, number: usize) {
        if self.clients[number].inbox.is_empty() {
            return;
        }
        self.with_client(number, |world, client| {
            client.quiet = None;
            for (slot, event) in std::mem::take(&mut client.inbox) {
                // A watch that is not wanted any more is closed, and one of another slot begins with a read.
                let begun = slot == 0 || client.mind.lease(slot).is_some();
                if !client.watched().contains(&slot) || !begun {
                    continue;
                }
                if let Phase::Holding(held) = &mut client.phase {
                    // A deletion seen by watch may be that of an earlier one: a read tells.
                    let event = event.or_else(|| world.server.shared(slot));
                    let known = held.record().resource_version;
                    let old = event.as_ref().is_some_and(|e| e.resource_version <= known);
                    if !old && held.reread(event.as_deref(), None).is_err() {
                        world.lose(client);
                        return;
                    }
                } else {
                    let lease = mutations::lease(setup.broken, event.as_deref());
                    let now = world.moment();
                    client.mind.lease_seen(slot, lease, Seen::Watched, now);
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
        client.read_at = self.now;
        for slot in client.watched() {
            let lease = self.server.shared(slot);
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
                let lease = mutations::lease(setup.broken, lease.as_deref());
                client.mind.lease_seen(slot, lease, seen, self.moment());
            }
            client.prune(slot, lease.as_deref());
        }
    }

    pub(super) fn step_seeker(&mut self, setup: &Setup, client: &mut Client) {
        let (now, wall) = (self.moment(), self.wall());
        for _ in 0..MOST_READS {
            let step = client.mind.decide(now, wall);
            if self.read(setup, client, &step) {
                if setup.fine {
                    return;
                }
                continue;
            }
            let parts = matches!(
                step,
                Move::DeleteClaim(_) | Move::StartOver | Move::Refuse(_) | Move::Gone
            );
            if parts && setup.budget.restored_leases == 0 && self.shows(&client.mind) {
                self.violation = Some(Violation::Stranded);
            }
            match step {
                Move::MakeClaim => {
                    let claim = self.server.make_claim(client.number, client.priority);
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
                    self.judge(setup, client, &write);
                    self.send(client, write);
                    return;
                }
                Move::Wait { until, .. } => {
                    match mutations::instead_of_waiting(setup.broken, &client.mind) {
                        Some(write) => self.send(client, write),
                        None => client.quiet = Some(until),
                    }
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
                _ => unreachable!("a read: {step:?}"),
            }
            if setup.fine {
                return;
            }
        }
        self.violation = Some(Violation::Restless);
    }

    /// Whether a slot is held by the grant that this claimant asks for: once it parts from its identity, nobody renews it.
    fn shows(&self, mind: &Claimant) -> bool {
        self.server
            .all()
            .any(|lease| lease.spec.holder == mind.identity())
    }

    /// Answers a read as things are; `false` if `step` is none.
    pub(super) fn read(&self, setup: &Setup, client: &mut Client, step: &Move) -> bool {
        let now = self.moment();
        match step {
            Move::ReadLock => {
                // A broken shell answers with what it read first.
                let known = client.mind.lock(0).is_some();
                if known && setup.broken == Some(Broken::KeepsTheLock) {
                    let views = (0..).map_while(|slot| client.mind.lock(slot).cloned());
                    let views = views.collect();
                    client.mind.lock_read(Some(views), now);
                } else {
                    self.show_lock(setup, client);
                }
            }
            Move::ReadLease(slot) => {
                let lease = self.server.shared(*slot);
                let seen = mutations::lease(setup.broken, lease.as_deref());
                client.mind.lease_seen(*slot, seen, Seen::Read, now);
                client.read_at = self.now;
                client.prune(*slot, lease.as_deref());
            }
            Move::ReadClaim(claim) => {
                let counts = self.server.has_claim(claim);
                client.mind.claim_read(claim, counts);
            }
            Move::ListClaims => client.mind.claims_listed(self.server.listed()),
            _ => return false,
        }
        true
    }

    fn send(&self, client: &mut Client, write: Write) {
        client.mind.sending(&write);
        client.air = Some(Air {
            what: Sent::Seek(write),
            sent: self.moment(),
            answer: None,
        });
    }

    fn show_lock(&self, setup: &Setup, client: &mut Client) {
        let views = self.server.lock.views();
        let views = views.into_iter();
        let views = views.map(|view| mutations::lock(setup.broken, view));
        let views = Some(views.collect());
        client.mind.lock_read(views, self.moment());
    }

    /// A take, the first one and every one that is sent again: a silent holder is replaced only by who has just looked
    /// whether that is wanted; and a slot of which the lock says that it is one too many is not taken.
    fn judge(&mut self, setup: &Setup, client: &Client, write: &Write) {
        let Write::Take { slot, take } = write else {
            return;
        };
        let lock = self.server.lock.view(*slot);
        let known = client.mind.lease(*slot);
        let silent = known.is_some_and(|lease| !lease.is_free() && lock.min_token.is_none());
        if silent && lock.on_holder_lost == OnHolderLost::Hold {
            self.violation = Some(Violation::HoldBroken);
        }
        // The first one may be older than a rise of the floor; the token of one that is sent again was chosen before.
        let floor = lock.min_token.unwrap_or(0);
        if client.mind.is_unsettled() && take.grant.token.get() < floor && !setup.fine {
            self.violation = Some(Violation::BelowTheFloor);
        }
        // With reads in between others may have lowered the limit.
        if lock.is_surplus() && !setup.fine {
            self.violation = Some(Violation::Surplus);
        }
        if take.ahead_of_revision && lock.min_token.is_none() {
            self.violation = Some(Violation::Ahead);
        }
        // Slot 0's Lease guards its own take. Of another slot's, what is known of slot 0 must be right when it is sent;
        // who came alone may be overtaken by the first who names itself.
        let turn = self.server.turn();
        let anothers = turn.filter(|next| !take.record.spec.holder.ends_with(&next.uid));
        if anothers.is_some() && *slot > 0 && !setup.fine {
            self.violation = Some(Violation::Overtook);
        }
    }

    pub fn beat_client(&mut self, setup: &Setup, number: usize) {
        self.with_client(number, |world, client| {
            client.quiet = None;
            world.reread(setup, client);
            if client.phase == Phase::Seeking {
                world.show_lock(setup, client);
                if setup.broken != Some(Broken::WatchesTheFirstSlotOnly) {
                    client.mind.look_around(world.moment());
                }
            } else {
                world.look_at_lock(setup, client);
            }
        });
    }
}
