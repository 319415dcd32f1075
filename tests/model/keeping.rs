//! The shell of a client that holds a slot.

use leasehold::engine::{LossReason, hold_end};

use super::client::{Air, Client, Phase, Sent};
use super::mutations::Broken;
use super::world::{Setup, World};

/// How often a client tries to move `next` on.
const MOVES: u8 = 2;

impl World {
    /// The grant is lost: the work has ended, its claim goes.
    pub(super) fn lose(&mut self, client: &mut Client) {
        if let Some(claim) = client.left.take() {
            self.server.delete_claim(&claim);
        }
        client.phase = Phase::Done;
        client.moving = None;
        client.air = None;
        client.inbox.clear();
    }

    /// What today's lock says of how long it may hold.
    pub(super) fn look_at_lock(&self, setup: &Setup, client: &mut Client) {
        if setup.broken == Some(Broken::OutstaysItsLimit) {
            return;
        }
        let (slot, granted) = (client.slot, client.granted);
        if let Phase::Holding(held) = &mut client.phase {
            held.end_hold_at(hold_end(&self.server.lock.view(slot), granted));
        }
    }

    pub(super) fn step_holder(&mut self, setup: &Setup, client: &mut Client) {
        let (now, wall) = (self.moment(), self.wall());
        let slot = client.slot;
        if let Some(claim) = client.left.take() {
            self.server.delete_claim(&claim);
            return;
        }
        if self.moves_on(setup, client) {
            return;
        }
        let Phase::Holding(held) = &mut client.phase else {
            return;
        };
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
        if now >= held.work_deadline() && held.reason_at_deadline(None) == LossReason::MaxHold {
            // Its work has ended, and only the renewals have stopped: it is given back.
            client.releasing = true;
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
            client.quiet = Some(Some(due.min(held.work_deadline())));
        } else {
            self.budget.renewals -= 1;
            let renewal = held.renewal(&self.server.lock.view(slot), wall);
            held.sending(&renewal);
            client.air = Some(Air {
                what: Sent::Renew(renewal),
                sent: now,
                answer: None,
            });
        }
    }
}

impl World {
    /// Moves `next` on from the claim that was served by another slot than 0. Whether a write was sent.
    fn moves_on(&mut self, setup: &Setup, client: &mut Client) -> bool {
        let Some((served, _)) = &client.moving else {
            return false;
        };
        let claims = self.server.listed();
        let lease = self.server.lease(0);
        let record = lease.and_then(|lease| served.moves_on(lease, claims));
        let Some(record) = record.filter(|_| setup.broken != Some(Broken::NeverMovesOn)) else {
            client.moving = None;
            return false;
        };
        client.air = Some(Air {
            what: Sent::MoveOn(record),
            sent: self.moment(),
            answer: None,
        });
        true
    }

    /// The move of `next` was answered, or was not.
    pub(super) fn moved_on(client: &mut Client, applied: bool) {
        client.moving = client.moving.take().and_then(|(served, tried)| {
            let again = !applied && tried + 1 < MOVES;
            again.then_some((served, tried + 1))
        });
    }
}
