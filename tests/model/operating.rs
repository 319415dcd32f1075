//! What comes of an operator's writes.

use leasehold::api::FencingToken;
use leasehold::engine::{ClaimEnd, ClaimState, LeaseRecord, OperatorWrite, Seen, change};

use super::kept::Kept;
use super::mutations::{self, Broken};
use super::operator::{Operator, Sent};
use super::world::{Fate, Orphan, Setup, Violation, World};

impl World {
    /// A write of the operator's meets its fate.
    pub fn land_operator(&mut self, setup: &Setup, number: usize, fate: Fate) {
        self.with_operator(number, |world, operator| {
            let Some(sent) = operator.air.take() else {
                return;
            };
            operator.quiet = None;
            let told = fate == Fate::Answered;
            match sent {
                Sent::Create(slot, spec) => match world.server.create(slot, &spec) {
                    Ok(made) if told => {
                        let now = world.moment();
                        operator.keepers[slot as usize].written(made, now);
                    }
                    _ => world.read_lease(setup, operator, slot),
                },
                Sent::Put { .. } => world.land_put(setup, operator, sent, fate),
                Sent::Open(slots, lock, read) => {
                    let won = world.server.put_lock(lock, read).is_ok() && told;
                    world.read_lock(setup, operator);
                    if won {
                        if setup.broken == Some(Broken::FreesWhatItFinds) {
                            operator.frees_any = true;
                        } else {
                            for slot in slots {
                                operator.keepers[slot as usize].opened();
                            }
                        }
                    }
                }
                Sent::Mirror(lock, read) => {
                    let _ = world.server.put_lock(lock, read);
                    world.read_lock(setup, operator);
                }
                Sent::Tell(kept) => {
                    world.judge_end(&kept);
                    let _ = world.server.put_kept(kept);
                    // Applied or not: it shows what is there now.
                    world.read_claims(setup, operator);
                }
            }
        });
    }

    fn land_put(&mut self, setup: &Setup, operator: &mut Operator, sent: Sent, fate: Fate) {
        let Sent::Put {
            slot,
            what,
            record,
            then_delete,
            prolongs,
        } = sent
        else {
            return;
        };
        if fate == Fate::GivenUp {
            self.orphans.push(Orphan {
                client: usize::MAX,
                slot,
                record: *record,
                is_take: false,
                what: Some(what),
            });
            self.read_lease(setup, operator, slot);
            return;
        }
        match self.operator_put(setup, slot, what, &record) {
            Ok(written) if fate == Fate::Answered => {
                let now = self.moment();
                let keeper = &mut operator.keepers[slot as usize];
                let written = mutations::kept_lease(setup.broken, Some(&written));
                keeper.lease_seen(written, Seen::Watched, now);
                if let Some(total) = prolongs {
                    keeper.prolonged(total);
                }
                if let Some(claim) = then_delete {
                    self.server.delete_claim(&claim);
                }
            }
            _ => self.read_lease(setup, operator, slot),
        }
    }

    /// The broken opening: whatever `missing` is there now.
    pub(super) fn free_what_is_there(&mut self, operator: &mut Operator) {
        let Some(lease) = self.server.lease(0).filter(|lease| lease.is_missing()) else {
            return;
        };
        operator.air = Some(Sent::Put {
            slot: 0,
            what: OperatorWrite::Free,
            record: Box::new(change::open(lease, self.wall())),
            then_delete: None,
            prolongs: None,
        });
    }

    pub(super) fn operator_put(
        &mut self,
        setup: &Setup,
        slot: u32,
        what: OperatorWrite,
        record: &LeaseRecord,
    ) -> Result<LeaseRecord, ()> {
        let before = self.server.shared(slot);
        let turn = self.server.turn().cloned();
        let believed = self.believers(slot) > 0;
        let now = self.put(setup, slot, record, None)?;
        if now.resource_version == record.resource_version {
            self.violation = Some(Violation::NoChange);
        }
        let token = now.current_token().map(FencingToken::get);
        if let (OperatorWrite::Stamp | OperatorWrite::Take, Some(token)) = (what, token) {
            self.note_grant(slot, token);
        }
        if what == OperatorWrite::Take {
            self.judge_take(&now, slot, turn.map(|next| next.uid));
        }
        if what == OperatorWrite::Revoke && believed && !self.waived[slot as usize] {
            self.violation = Some(Violation::CutShort);
        }
        let ended = before.filter(|before| before.spec.holder != now.spec.holder);
        let shown = ended.as_deref().and_then(|before| {
            let kept = self.server.kept(before.holder_uid()?)?;
            let (of, token) = kept.shown()?;
            let this = before
                .current_token()
                .is_none_or(|held| held.get() == token);
            // Of two operators one may free, when the time is over, what the other has just shown: who reads that sees
            // that it is over.
            let lives = self.server.pod_lives;
            let counts = self.operators.len() == 1 || kept.believes(slot, self.now, lives);
            (of == slot && this && counts).then_some(())
        });
        if shown.is_some() {
            self.violation = Some(Violation::FreedFirst);
        }
        Ok(now)
    }

    /// Time, or the end of a Pod, is given as the reason why a hold is over.
    fn judge_end(&mut self, kept: &Kept) {
        let now = self.server.kept(&kept.claim.claim.uid);
        let by_itself = matches!(
            kept.claim.state,
            ClaimState::Over(ClaimEnd::Expired | ClaimEnd::PodEnded)
        );
        let lives = self.server.pod_lives;
        let believed = now.is_some_and(|now| {
            let slot = now.shown().map_or(0, |(slot, _)| slot);
            now.revision == kept.revision && now.believes(slot, self.now, lives)
        });
        if by_itself && believed {
            self.violation = Some(Violation::EndedEarly);
        }
    }

    /// A take for a Fixed or Pod claim.
    fn judge_take(&mut self, now: &LeaseRecord, slot: u32, turn: Option<String>) {
        let uid = now.holder_uid().unwrap_or_default();
        let kept = self.server.kept(uid);
        if slot == 0 && turn.is_some_and(|turn| turn != uid) {
            self.violation = Some(Violation::Overtook);
        }
        let was_shown = kept.is_some_and(|kept| {
            matches!(
                kept.claim.state,
                ClaimState::Granted { .. } | ClaimState::Over(_)
            )
        });
        // Of two operators one may take for a claim that the other has just shown: nobody is told of that take.
        if was_shown && self.operators.len() == 1 {
            self.violation = Some(Violation::TakenAgain);
        }
    }
}
