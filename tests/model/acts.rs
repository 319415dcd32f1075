//! What may happen in a state, and what comes of it.

use leasehold::engine::{GrantNote, LockView, OnHolderLost};

use super::client::Phase;
use super::world::{Action, Do, Fate, Setup, World};

impl World {
    /// Everything that may happen now.
    pub fn offer(&self, setup: &Setup, actions: &mut Vec<Action>) {
        if self.now < setup.horizon && (!self.is_busy() || self.budget.pauses > 0) {
            actions.push(Action::Tick);
        }
        self.offer_clients(setup, actions);
        self.offer_operators(setup, actions);
        self.offer_foreign(actions);
        let orphans = 0..self.orphans.len();
        actions.extend(orphans.map(Action::LandOrphan));
        self.offer_faults(actions);
    }

    fn offer_clients(&self, setup: &Setup, actions: &mut Vec<Action>) {
        let budget = &self.budget;
        for (number, client) in self.clients.iter().enumerate() {
            let mut act = |what| actions.push(Action::Client(number, what));
            if client.may_step() {
                act(Do::Step);
            }
            if client.is_there() && !client.inbox.is_empty() {
                // What comes while an answer is awaited may be heard before or after it.
                if setup.fine || client.air.is_some() {
                    act(Do::Deliver);
                }
                if budget.relists > 0 {
                    act(Do::Relist);
                }
            }
            if client.may_beat(self.now) {
                act(Do::Beat);
            }
            if client.is_there()
                && let Some(air) = &client.air
            {
                if air.answer.is_some() {
                    act(Do::Answer);
                } else {
                    act(Do::Land(Fate::Answered));
                    if budget.lost_answers > 0 {
                        act(Do::Land(Fate::AnswerLost));
                    }
                    if budget.slow_answers > 0 {
                        act(Do::Land(Fate::AnswerSlow));
                    }
                    if budget.late_writes > 0 {
                        act(Do::Land(Fate::GivenUp));
                    }
                }
            }
            if client.phase == Phase::Away {
                actions.push(Action::Start(number));
            }
            if client.may_release() {
                actions.push(Action::Release(number));
            }
            if client.is_there() && budget.crashes > 0 {
                actions.push(Action::Crash(number));
            }
            if client.is_there() && !client.stopping && budget.stops > 0 {
                actions.push(Action::Stop(number));
            }
            if budget.claim_deletions > 0 && self.claim_of(number).is_some() {
                actions.push(Action::DeleteClaim(number));
            }
        }
    }

    fn offer_operators(&self, setup: &Setup, actions: &mut Vec<Action>) {
        let budget = &self.budget;
        for (number, operator) in self.operators.iter().enumerate() {
            let mut act = |what| actions.push(Action::Operator(number, what));
            if operator.may_step() {
                act(Do::Step);
            }
            if operator.has_news() {
                if setup.fine {
                    act(Do::Deliver);
                }
                if budget.relists > 0 {
                    act(Do::Relist);
                }
            }
            if operator.may_beat(self.now) {
                act(Do::Beat);
            }
            if operator.air.is_some() && !operator.crashed {
                act(Do::Land(Fate::Answered));
                if budget.lost_answers > 0 {
                    act(Do::Land(Fate::AnswerLost));
                }
                if budget.late_writes > 0 {
                    act(Do::Land(Fate::GivenUp));
                }
            }
            if !operator.crashed && budget.operator_crashes > 0 {
                actions.push(Action::OperatorCrash(number));
            }
            if operator.crashed && budget.operator_starts > 0 {
                actions.push(Action::OperatorStart(number));
            }
        }
    }

    fn offer_foreign(&self, actions: &mut Vec<Action>) {
        let Some(foreign) = &self.foreign else {
            return;
        };
        if foreign.may_step(self.now, self.budget.foreign_terms > 0) {
            actions.push(Action::ForeignStep);
        }
        if foreign.air.is_some() && !foreign.crashed {
            actions.push(Action::ForeignLand);
        }
        if foreign.believes(self.moment()) && foreign.air.is_none() {
            actions.push(Action::ForeignRelease);
            if self.budget.foreign_crashes > 0 {
                actions.push(Action::ForeignCrash);
            }
        }
    }

    fn offer_faults(&self, actions: &mut Vec<Action>) {
        let budget = &self.budget;
        let lease = self.server.lease.is_some();
        let mut fault = |left: u8, action| {
            if left > 0 {
                actions.push(action);
            }
        };
        if lease {
            fault(budget.lease_deletions, Action::DeleteLease);
            fault(budget.dropped_annotations, Action::DropAnnotations);
            fault(budget.reset_transitions, Action::ResetTransitions);
            if self.previous.is_some() {
                fault(budget.restored_specs, Action::RestoreSpec);
            }
        }
        if self.saved.is_some() {
            fault(budget.restored_leases, Action::RestoreLease);
        }
        fault(budget.new_duration, Action::NewDuration);
        fault(budget.new_holds, Action::NewHold);
        if self.highest_token > 0 {
            fault(budget.revocations, Action::Revoke);
        }
    }

    /// Carries out `action`.
    pub fn act(&mut self, setup: &Setup, action: Action) {
        match action {
            Action::Tick => {
                if self.is_busy() {
                    self.budget.pauses = self.budget.pauses.saturating_sub(1);
                }
                self.now += 1;
                self.wake_clients();
                self.wake_operators();
            }
            Action::Start(number) => self.start_client(number),
            Action::Client(number, what) => self.client_does(setup, number, what),
            Action::Operator(number, what) => self.operator_does(setup, number, what),
            Action::Release(number) => {
                self.clients[number].edit(|client| {
                    client.releasing = true;
                    client.quiet = None;
                });
            }
            Action::Crash(number) => {
                self.budget.crashes -= 1;
                self.clients[number].edit(|client| {
                    client.crashed = true;
                    client.inbox.clear();
                    client.air = None;
                });
            }
            Action::Stop(number) => {
                self.budget.stops -= 1;
                self.stop_client(number);
            }
            Action::OperatorCrash(number) => {
                self.budget.operator_crashes -= 1;
                self.operators[number].edit(|operator| {
                    operator.crashed = true;
                    operator.inbox.clear();
                    operator.air = None;
                });
            }
            Action::OperatorStart(number) => {
                self.budget.operator_starts -= 1;
                self.start_operator(number);
            }
            Action::LandOrphan(at) => {
                let orphan = self.orphans.remove(at);
                let client = self.clients.get(orphan.client).cloned();
                let taker = client.as_deref().filter(|_| orphan.is_take);
                let _ = self.put(setup, &orphan.record, taker);
            }
            Action::ForeignStep
            | Action::ForeignLand
            | Action::ForeignRelease
            | Action::ForeignCrash => self.foreign_does(action),
            fault => self.suffer(fault),
        }
    }

    fn client_does(&mut self, setup: &Setup, number: usize, what: Do) {
        match what {
            Do::Step => self.step_client(setup, number),
            Do::Deliver => self.deliver_client(setup, number),
            Do::Relist => {
                self.budget.relists -= 1;
                self.relist_client(setup, number);
            }
            Do::Beat => self.beat_client(setup, number),
            Do::Land(fate) => {
                self.pay(fate);
                self.land_client(setup, number, fate);
            }
            Do::Answer => self.answer_client(setup, number),
        }
    }

    fn operator_does(&mut self, setup: &Setup, number: usize, what: Do) {
        match what {
            Do::Step => self.step_operator(setup, number),
            Do::Deliver => self.deliver_operator(setup, number),
            Do::Relist => {
                self.budget.relists -= 1;
                self.relist_operator(setup, number);
            }
            Do::Beat => self.relist_operator(setup, number),
            Do::Land(fate) => {
                self.pay(fate);
                self.land_operator(setup, number, fate);
            }
            Do::Answer => {}
        }
    }

    fn pay(&mut self, fate: Fate) {
        match fate {
            Fate::Answered => {}
            Fate::AnswerLost => self.budget.lost_answers -= 1,
            Fate::AnswerSlow => self.budget.slow_answers -= 1,
            Fate::GivenUp => self.budget.late_writes -= 1,
        }
    }

    fn foreign_does(&mut self, action: Action) {
        let (tick, now, wall) = (self.now, self.moment(), self.wall());
        let Some(foreign) = &mut self.foreign else {
            return;
        };
        match action {
            Action::ForeignStep => {
                let held = foreign.holds();
                let sent = foreign.step(&self.server, tick, now, wall);
                if sent && !held {
                    self.budget.foreign_terms = self.budget.foreign_terms.saturating_sub(1);
                }
            }
            Action::ForeignLand => foreign.land(&mut self.server),
            Action::ForeignRelease => foreign.release(),
            _ => {
                self.budget.foreign_crashes -= 1;
                foreign.crashed = true;
                foreign.air = None;
            }
        }
    }

    fn suffer(&mut self, fault: Action) {
        match fault {
            Action::DeleteLease => {
                self.budget.lease_deletions -= 1;
                self.server.delete_lease();
            }
            Action::DeleteClaim(number) => {
                self.budget.claim_deletions -= 1;
                if let Some(claim) = self.claim_of(number) {
                    self.server.delete_claim(&claim);
                }
            }
            Action::DropAnnotations => {
                self.budget.dropped_annotations -= 1;
                self.edit_lease(|lease| {
                    lease.grant = GrantNote::Absent;
                    lease.next = None;
                    lease.ended = None;
                });
            }
            Action::ResetTransitions => {
                self.budget.reset_transitions -= 1;
                self.edit_lease(|lease| lease.spec.transitions = 0);
            }
            Action::RestoreSpec => {
                self.budget.restored_specs -= 1;
                if let Some(spec) = self.previous.take() {
                    self.edit_lease(|lease| lease.spec = spec);
                }
            }
            Action::RestoreLease => {
                self.budget.restored_leases -= 1;
                if let Some(saved) = self.saved.take() {
                    let uid = self.server.new_uid();
                    self.server.store(leasehold::engine::LeaseRecord {
                        uid,
                        ..(*saved).clone()
                    });
                    self.waived = true;
                }
            }
            Action::NewDuration => {
                let seconds = std::mem::take(&mut self.budget.new_duration);
                self.server.edit_lock(LockView {
                    duration_seconds: u32::from(seconds),
                    ..(*self.server.lock).clone()
                });
            }
            Action::NewHold => {
                self.budget.new_holds -= 1;
                self.server.edit_lock(LockView {
                    on_holder_lost: OnHolderLost::Hold,
                    ..(*self.server.lock).clone()
                });
            }
            Action::Revoke => {
                self.budget.revocations -= 1;
                self.waived = true;
                self.server.edit_lock(LockView {
                    min_token: Some(self.highest_token + 1),
                    ..(*self.server.lock).clone()
                });
            }
            _ => {}
        }
    }
}
