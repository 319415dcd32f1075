//! What comes of a client's writes: at the server, and back at the client.

use leasehold::engine::{Answer, LeaseRecord, Patience, Write};

use super::client::{Air, Client, Phase, Sent};
use super::mutations::{self, Broken};
use super::world::{Fate, Orphan, Setup, Violation, World};

impl World {
    /// The write in the air meets its fate.
    pub fn land_client(&mut self, setup: &Setup, number: usize, fate: Fate) {
        self.with_client(number, |world, client| {
            let Some(air) = client.air.take() else {
                return;
            };
            if fate == Fate::GivenUp {
                world.orphans.push(Orphan {
                    client: number,
                    slot: air.what.slot(client.slot),
                    record: air.what.record().clone(),
                    is_take: matches!(air.what, Sent::Seek(Write::Take { .. })),
                    what: None,
                });
                world.answer(setup, client, air, Answer::Unknown);
                return;
            }
            let answer = world.apply(setup, client, &air.what);
            match fate {
                Fate::AnswerSlow => {
                    client.air = Some(Air {
                        answer: Some(answer),
                        ..air
                    });
                }
                Fate::AnswerLost => world.answer(setup, client, air, Answer::Unknown),
                // A proxy sent it twice, and passes on the answer to the second.
                Fate::Repeated => world.answer(setup, client, air, Answer::Refused),
                _ => world.answer(setup, client, air, answer),
            }
        });
    }

    pub fn answer_client(&mut self, setup: &Setup, number: usize) {
        self.with_client(number, |world, client| {
            if let Some(mut air) = client.air.take()
                && let Some(answer) = air.answer.take()
            {
                world.answer(setup, client, air, answer);
            }
        });
    }

    /// The server applies a client's write, or refuses it.
    fn apply(&mut self, setup: &Setup, client: &Client, what: &Sent) -> Answer {
        let record = what.record();
        let take = matches!(what, Sent::Seek(Write::Take { .. }));
        let slot = what.slot(client.slot);
        match self.put(setup, slot, record, take.then_some(client)) {
            Ok(now) => {
                if now.resource_version == record.resource_version {
                    self.violation = Some(Violation::NoChange);
                }
                if let (Phase::Holding(held), Sent::Renew(_)) = (&client.phase, what)
                    && now.current_token() != Some(held.grant().token)
                {
                    self.violation = Some(Violation::TokenChanged);
                }
                Answer::Applied(now)
            }
            Err(()) => Answer::Refused,
        }
    }

    /// A guarded write of a client; `taker` says whose take it is.
    pub fn put(
        &mut self,
        setup: &Setup,
        slot: u32,
        record: &LeaseRecord,
        taker: Option<&Client>,
    ) -> Result<LeaseRecord, ()> {
        let before = self.server.shared(slot);
        let turn = self.server.turn().cloned();
        let guarded = setup.broken != Some(Broken::NoUid);
        let now = self.server.put(slot, record, guarded)?;
        let Some(before) = before else {
            self.violation = Some(Violation::Revived);
            return Ok(now);
        };
        let renewed = now.spec.holder == before.spec.holder && now.spec != before.spec;
        if setup.budget.restored_specs > 0 && renewed && slot == 0 {
            self.previous = Some(before.spec.clone());
        }
        if let Some(taker) = taker {
            if self.saved.is_none() && setup.budget.restored_leases > 0 && slot == 0 {
                self.saved = Some(before.clone());
            }
            if let Some(token) = now.current_token() {
                self.note_grant(slot, token.get());
            }
            // What it saw of slot 0 when it decided to take another is judged then.
            let anothers = turn.is_some_and(|next| !now.spec.holder.ends_with(&next.uid));
            if slot == 0 && anothers {
                self.violation = Some(Violation::Overtook);
            }
            if taker.phase == Phase::Done && !taker.crashed {
                self.violation = Some(Violation::Stranded);
            }
        }
        Ok(now)
    }

    fn answer(&mut self, setup: &Setup, client: &mut Client, air: Air, answer: Answer) {
        let now = self.moment();
        let sent = if setup.broken == Some(Broken::CountsFromAnswer) {
            now
        } else {
            air.sent
        };
        client.quiet = None;
        match air.what {
            Sent::Seek(write) => {
                let answer = mutations::answer(setup.broken, answer);
                let Some(held) = client.mind.answered(&write, answer, sent, now) else {
                    return;
                };
                client.served = true;
                client.slot = write.slot();
                client.left = client.mind.claim().cloned();
                client.moving = client.mind.served().map(|served| (served, 0));
                client.granted = sent;
                // Too late to be used, or not wanted any more: given back.
                client.releasing = client.stopping || !held.is_held(now);
                client.phase = Phase::Holding(Box::new(held));
                self.look_at_lock(setup, client);
            }
            Sent::Renew(_) => {
                let Phase::Holding(held) = &mut client.phase else {
                    return;
                };
                if now >= held.work_deadline() && setup.broken != Some(Broken::TakesLossBack) {
                    // Its next step loses it.
                    return;
                }
                let renewed =
                    matches!(&answer, Answer::Applied(record) if held.renewed(record, sent));
                if !renewed {
                    self.reread(setup, client);
                }
            }
            Sent::MoveOn(_) => Self::moved_on(client, matches!(answer, Answer::Applied(_))),
            Sent::Release(_) => {
                if matches!(answer, Answer::Applied(_)) {
                    self.finish(client);
                } else {
                    self.reread(setup, client);
                }
            }
        }
    }

    /// Given back; maybe it asks again at once.
    fn finish(&mut self, client: &mut Client) {
        client.phase = Phase::Done;
        client.inbox.clear();
        if self.budget.again > 0 && !client.stopping {
            self.budget.again -= 1;
            *client = Client {
                phase: Phase::Seeking,
                read_at: self.now,
                ..Client::new(
                    client.number,
                    Patience::Wait,
                    client.priority,
                    &mut self.server,
                )
            };
        }
    }
}
