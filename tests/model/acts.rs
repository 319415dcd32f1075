//! What may happen in a state, and what comes of it.

use leasehold::engine::{GrantNote, LeaseRecord, OnHolderLost, Wish};

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
                    if budget.repeats > 0 {
                        act(Do::Land(Fate::Repeated));
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
                if setup.lags && operator.news {
                    act(Do::Hear);
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
        let mut fault = |left: u8, action| {
            if left > 0 {
                actions.push(action);
            }
        };
        for slot in self.server.slots() {
            if self.server.lease(slot).is_some() {
                fault(budget.lease_deletions, Action::DeleteLease(slot));
                fault(budget.dropped_annotations, Action::DropAnnotations(slot));
            }
        }
        if self.server.lease(0).is_some() {
            fault(budget.reset_transitions, Action::ResetTransitions);
            fault(budget.outer_renewals, Action::OuterRenewal);
            if self.previous.is_some() {
                fault(budget.restored_specs, Action::RestoreSpec);
            }
        }
        for (number, kept) in self.server.kept.iter().enumerate() {
            fault(budget.kept_deletions, Action::DeleteKept(number));
            if let Wish::Fixed { .. } = kept.claim.wish {
                fault(budget.extensions, Action::Extend(number));
            }
        }
        if self.server.pod_lives {
            fault(budget.pod_ends, Action::PodEnds);
        }
        if self.saved.is_some() {
            fault(budget.restored_leases, Action::RestoreLease);
        }
        fault(budget.new_duration, Action::NewDuration);
        fault(budget.new_holds, Action::NewHold);
        fault(budget.lower_limits, Action::LowerLimit);
        if self.server.lock.spec.max_holders < self.server.slots().end {
            fault(budget.raised_limits, Action::RaiseLimit);
        }
        fault(budget.new_max_hold, Action::NewMaxHold);
        if self.highest_token() > 0 {
            fault(budget.revocations, Action::Revoke);
        }
        if self.highest_tokens[0] > 0 {
            fault(budget.slot_floors, Action::FloorOfSlot);
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
                let _ = match orphan.what {
                    Some(what) => self.operator_put(setup, orphan.slot, what, &orphan.record),
                    None => self.put(setup, orphan.slot, &orphan.record, taker),
                };
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
            Do::Hear => {}
        }
    }

    fn operator_does(&mut self, setup: &Setup, number: usize, what: Do) {
        match what {
            Do::Step => self.step_operator(setup, number),
            Do::Deliver => self.deliver_operator(setup, number),
            Do::Hear => self.deliver_news(setup, number),
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
            Fate::Repeated => self.budget.repeats -= 1,
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
            Action::DeleteLease(slot) => {
                self.budget.lease_deletions -= 1;
                self.server.delete_lease(slot);
            }
            Action::DeleteClaim(number) => {
                self.budget.claim_deletions -= 1;
                if let Some(claim) = self.claim_of(number) {
                    self.server.delete_claim(&claim);
                }
            }
            Action::DropAnnotations(slot) => {
                self.budget.dropped_annotations -= 1;
                self.edit_lease(slot, |lease| {
                    lease.grant = GrantNote::Absent;
                    lease.next = None;
                    lease.ended = None;
                });
            }
            Action::ResetTransitions => {
                self.budget.reset_transitions -= 1;
                self.edit_lease(0, |lease| lease.spec.transitions = 0);
            }
            Action::RestoreSpec => {
                self.budget.restored_specs -= 1;
                if let Some(spec) = self.previous.take() {
                    self.edit_lease(0, |lease| lease.spec = spec);
                }
            }
            Action::RestoreLease => {
                self.budget.restored_leases -= 1;
                if let Some(saved) = self.saved.take() {
                    let uid = self.server.new_uid();
                    let saved = (*saved).clone();
                    self.server.store(0, LeaseRecord { uid, ..saved });
                    self.waived[0] = true;
                }
            }
            Action::OuterRenewal => {
                self.budget.outer_renewals -= 1;
                let wall = self.wall() + 1;
                self.edit_lease(0, |lease| {
                    lease.spec.renew_time = lease.spec.renew_time.map(|old| wall.max(old + 1));
                });
            }
            Action::PodEnds => {
                self.budget.pod_ends = self.budget.pod_ends.saturating_sub(1);
                self.server.pod_lives = false;
            }
            Action::DeleteKept(number) => {
                self.budget.kept_deletions -= 1;
                self.server.revision += 1;
                self.server.kept.remove(number);
            }
            Action::Extend(number) => {
                self.budget.extensions -= 1;
                self.server.revision += 1;
                let revision = self.server.revision;
                self.server.kept[number].edit(|kept| {
                    kept.revision = revision;
                    if let Wish::Fixed { seconds } = &mut kept.claim.wish {
                        *seconds += 1;
                    }
                });
            }
            change => self.change_lock(change),
        }
    }

    fn change_lock(&mut self, change: Action) {
        match change {
            Action::NewDuration => {
                let seconds = std::mem::take(&mut self.budget.new_duration);
                self.server
                    .edit_spec(|lock| lock.duration_seconds = u32::from(seconds));
            }
            Action::NewHold => {
                self.budget.new_holds -= 1;
                self.server
                    .edit_spec(|lock| lock.on_holder_lost = OnHolderLost::Hold);
            }
            Action::LowerLimit => {
                self.budget.lower_limits -= 1;
                self.server.edit_spec(|lock| lock.max_holders -= 1);
            }
            Action::RaiseLimit => {
                self.budget.raised_limits -= 1;
                self.server.edit_spec(|lock| lock.max_holders += 1);
            }
            Action::NewMaxHold => {
                let seconds = std::mem::take(&mut self.budget.new_max_hold);
                self.server
                    .edit_spec(|lock| lock.max_hold_seconds = Some(seconds.into()));
            }
            Action::Revoke => {
                self.budget.revocations -= 1;
                self.waived.fill(true);
                let floor = self.highest_token() + 1;
                self.server.edit_spec(|lock| lock.min_token = Some(floor));
            }
            Action::FloorOfSlot => {
                self.budget.slot_floors -= 1;
                self.waived[0] = true;
                let mut lock = (*self.server.lock).clone();
                lock.floors[0] = Some(self.highest_tokens[0] + 1);
                self.server.edit_lock(lock);
            }
            _ => {}
        }
    }

    /// A slot's Lease, edited by hand.
    fn edit_lease(&mut self, slot: u32, edit: impl FnOnce(&mut LeaseRecord)) {
        if let Some(lease) = self.server.lease(slot) {
            let mut lease = lease.clone();
            edit(&mut lease);
            self.server.store(slot, lease);
        }
    }
}
