//! What the operator does in a transcript.

use leasehold::engine::{
    Keeper, Moment, OperatorMove, Queue, QueueOrder, SlotView, Turns, WallMicros,
};

use super::Stage;
use crate::engine_words::{seconds, summary};

impl Stage {
    pub(super) fn operator(&mut self, what: &str) -> Vec<String> {
        match what {
            "leads" => {
                self.keeper.begin_to_lead();
                self.turns.begin_to_lead();
                return vec![];
            }
            "opened" => {
                self.keeper.opened();
                self.lock.slot = Some(SlotView::default());
                self.keeper.lock_read(self.lock.clone(), self.now);
                return vec![];
            }
            "wrote" => {
                let record = self.operator_write.take().expect("it wrote");
                return self.put(record);
            }
            _ => {}
        }
        let mut said = Vec::new();
        loop {
            let queue = self.lease.as_ref().map_or_else(Queue::default, |lease| {
                Queue::new(
                    self.claims.iter().cloned(),
                    lease.holder_uid(),
                    QueueOrder::Fifo,
                )
            });
            let (now, wall) = (self.now, self.wall());
            let todo = decide_one(&mut self.keeper, &mut self.turns, &queue, now, wall);
            match todo {
                OperatorMove::ReadLock => {
                    said.push("reads the lock".to_owned());
                    self.keeper.lock_read(self.lock.clone(), self.now);
                }
                OperatorMove::ReadClaim(claim) => {
                    said.push(format!("reads the claim {}", claim.name));
                    let counts = self.claims.iter().any(|other| other.claim == claim);
                    self.turns.claim_read(&claim, counts);
                }
                OperatorMove::Create(spec) => {
                    said.push(format!(
                        "creates: {} for {} s",
                        spec.holder,
                        spec.duration_seconds.unwrap()
                    ));
                    return said;
                }
                OperatorMove::Open => {
                    said.push("opens".to_owned());
                    return said;
                }
                OperatorMove::Write {
                    what,
                    record,
                    then_delete,
                } => {
                    let then = then_delete.map_or(String::new(), |claim| {
                        format!(", then deletes {}", claim.name)
                    });
                    said.push(format!("{what:?}: {}{then}", summary(&record)));
                    self.operator_write = Some(*record);
                    return said;
                }
                OperatorMove::ReadHolder(_)
                | OperatorMove::Finish { .. }
                | OperatorMove::Prolong { .. } => unreachable!("all claims are Heartbeat"),
                OperatorMove::Wait { until, stalled } => {
                    let until =
                        until.map_or(String::new(), |until| format!(" until {}", seconds(until)));
                    let stalled = stalled.map_or(String::new(), |why| format!(": {why:?}"));
                    said.push(format!("waits{until}{stalled}"));
                    return said;
                }
            }
        }
    }
}

/// What an operator does for a lock of one slot: its keeper goes first, then the queue.
fn decide_one(
    keeper: &mut Keeper,
    turns: &mut Turns,
    queue: &Queue,
    now: Moment,
    wall: WallMicros,
) -> OperatorMove {
    match keeper.decide("operator", now, wall) {
        OperatorMove::Wait {
            until,
            stalled: None,
        } => match turns.decide(&[keeper], queue, |_| None, now, wall).1 {
            OperatorMove::Wait { until: other, .. } => OperatorMove::Wait {
                until: until.into_iter().chain(other).min(),
                stalled: None,
            },
            todo => todo,
        },
        todo => todo,
    }
}
