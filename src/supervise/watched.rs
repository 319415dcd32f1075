//! What the wrapper's thread knows of the command: which deadlines are in force for it, and when it must act itself.

use std::collections::VecDeque;
use std::time::Duration;

use rustix::process::Pid;
use tokio::sync::oneshot;

use super::tree::Process;
use super::wrapper::{ExtendError, StartError};
use super::{Deadlines, EndReason};
use crate::clock::BootInstant;

/// How long the guardian may be late before we do its work at `soft`, and before we give it up after `hard`.
pub(super) const GUARDIAN_LATE_AFTER: Duration = Duration::from_millis(250);

/// The command, from the request to start it on.
pub(super) struct Watched {
    pub starting: Option<oneshot::Sender<Result<i32, StartError>>>,
    pub pid: Option<Pid>,
    pub kill_grace: Duration,
    /// What the guardian has acknowledged, or was started with.
    acknowledged: Deadlines,
    pending: VecDeque<Pending>,
    next_id: u64,
    /// Why the end is under way, as far as we know.
    pub ending: Option<EndReason>,
    /// The guardian said that it has sent TERM.
    pub guardian_ends: bool,
    /// The end was asked for: when the guardian must have begun, and when KILL is due whatever is acknowledged later.
    asked: Option<Asked>,
    /// We sent TERM in the guardian's stead.
    pub termed: bool,
    /// Why we ended it in the guardian's stead, if it was still running then.
    pub killed_for: Option<EndReason>,
    /// After `hard`: the next walk.
    pub next_pass: Option<BootInstant>,
}

struct Pending {
    id: u64,
    deadlines: Deadlines,
    reply: oneshot::Sender<Result<(), ExtendError>>,
}

#[derive(Clone, Copy)]
struct Asked {
    late_at: BootInstant,
    kill_at: BootInstant,
}

impl Watched {
    pub fn new(deadlines: Deadlines, kill_grace: Duration) -> Self {
        Self {
            starting: None,
            pid: None,
            kill_grace,
            acknowledged: deadlines,
            pending: VecDeque::new(),
            next_id: 0,
            ending: None,
            guardian_ends: false,
            asked: None,
            termed: false,
            killed_for: None,
            next_pass: None,
        }
    }

    /// The soonest of what was acknowledged and what is on its way: an answer may be lost in either direction.
    pub fn in_force(&self) -> Deadlines {
        let mut deadlines = self
            .pending
            .iter()
            .fold(self.acknowledged, |soonest, pending| {
                soonest.min(pending.deadlines)
            });
        if let Some(asked) = self.asked {
            deadlines.hard = deadlines.hard.min(asked.kill_at);
        }
        deadlines
    }

    /// When to send TERM in the guardian's stead, if it is still to be sent.
    pub fn term_at(&self) -> Option<BootInstant> {
        if self.guardian_ends || self.termed {
            return None;
        }
        let Deadlines { soft, hard } = self.in_force();
        let late = GUARDIAN_LATE_AFTER.min(hard.saturating_duration_since(soft) / 4);
        let at = soft + late;
        Some(self.asked.map_or(at, |asked| at.min(asked.late_at)))
    }

    /// When there is something to look at.
    pub fn next_wake(&self) -> BootInstant {
        let Deadlines { soft, hard } = self.in_force();
        let term_at = self.term_at().unwrap_or(BootInstant::MAX);
        let answer_by = if self.pending.is_empty() {
            BootInstant::MAX
        } else {
            soft
        };
        self.next_pass.unwrap_or(hard).min(term_at).min(answer_by)
    }

    /// Notes that we are about to end it; one that has ended by itself, not yet reaped, keeps its own end.
    pub fn note_killed_for(&mut self, reason: EndReason) {
        if self.killed_for.is_none() && self.pid.is_some_and(Process::runs) {
            self.killed_for = Some(reason);
        }
    }

    /// Notes the deadlines that are on their way; their number, which the answer will name.
    pub fn asked_to_extend(
        &mut self,
        deadlines: Deadlines,
        reply: oneshot::Sender<Result<(), ExtendError>>,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.pending.push_back(Pending {
            id,
            deadlines,
            reply,
        });
        id
    }

    /// Notes that the end was asked for; a later demand can only bring it forward.
    pub fn asked_to_end(&mut self, now: BootInstant, grace: Duration, reason: EndReason) {
        self.ending.get_or_insert(reason);
        let before = self.asked.unwrap_or(Asked {
            late_at: now + GUARDIAN_LATE_AFTER,
            kill_at: BootInstant::MAX,
        });
        let kill_at = before.kill_at.min(now + grace);
        self.asked = Some(Asked { kill_at, ..before });
    }

    /// The guardian's answer.
    pub fn extended(&mut self, id: u64, accepted: bool) {
        let Some(index) = self.pending.iter().position(|pending| pending.id == id) else {
            return;
        };
        let Some(pending) = self.pending.remove(index) else {
            return;
        };
        if accepted {
            self.acknowledged = pending.deadlines;
        }
        // The caller may have stopped waiting.
        let _ = pending.reply.send(if accepted {
            Ok(())
        } else {
            Err(ExtendError::TooLate)
        });
    }

    /// `soft` has passed without an answer. What was sooner stays in force, what was later never comes into force.
    pub fn give_up_pending(&mut self) {
        self.acknowledged = self.in_force();
        for pending in self.pending.drain(..) {
            let _ = pending.reply.send(Err(ExtendError::NotAcknowledged));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Answer = oneshot::Receiver<Result<(), ExtendError>>;

    fn at(millis: u64) -> BootInstant {
        BootInstant::from_nanos(millis * 1_000_000)
    }

    fn deadlines(soft: u64, hard: u64) -> Deadlines {
        Deadlines {
            soft: at(soft),
            hard: at(hard),
        }
    }

    fn watched(soft: u64, hard: u64) -> Watched {
        Watched::new(deadlines(soft, hard), Duration::from_secs(1))
    }

    fn extend(watched: &mut Watched, soft: u64, hard: u64) -> (u64, Answer) {
        let (reply, answer) = oneshot::channel();
        (
            watched.asked_to_extend(deadlines(soft, hard), reply),
            answer,
        )
    }

    #[test]
    fn later_deadlines_count_once_acknowledged_and_sooner_ones_at_once() {
        let mut watched = watched(10_000, 12_000);
        let (first, mut answer) = extend(&mut watched, 15_000, 17_000);
        assert_eq!(watched.in_force(), deadlines(10_000, 12_000));
        let (second, _) = extend(&mut watched, 8_000, 9_000);
        assert_eq!(watched.in_force(), deadlines(8_000, 9_000));
        watched.extended(first, true);
        assert_eq!(answer.try_recv().unwrap(), Ok(()));
        assert_eq!(watched.in_force(), deadlines(8_000, 9_000));
        watched.extended(second, true);
        let (third, _) = extend(&mut watched, 20_000, 22_000);
        watched.extended(third, true);
        assert_eq!(watched.in_force(), deadlines(20_000, 22_000));
    }

    #[test]
    fn without_an_answer_the_soonest_deadlines_stay_in_force() {
        let mut watched = watched(10_000, 12_000);
        let (down, mut answer_down) = extend(&mut watched, 5_000, 6_000);
        let (up, mut answer_up) = extend(&mut watched, 50_000, 60_000);
        assert_eq!(watched.next_wake(), at(5_000));
        watched.give_up_pending();
        for answer in [&mut answer_down, &mut answer_up] {
            assert_eq!(
                answer.try_recv().unwrap(),
                Err(ExtendError::NotAcknowledged)
            );
        }
        watched.extended(down, true);
        watched.extended(up, true);
        assert_eq!(watched.in_force(), deadlines(5_000, 6_000));
    }

    #[test]
    fn the_guardian_gets_a_moment_before_we_send_term_for_it() {
        let mut watched = watched(10_000, 12_000);
        assert_eq!(watched.term_at(), Some(at(10_250)));
        assert_eq!(self::watched(10_000, 10_400).term_at(), Some(at(10_100)));
        watched.asked_to_end(at(3_000), Duration::from_secs(2), EndReason::Requested);
        assert_eq!(watched.term_at(), Some(at(3_250)));
        assert_eq!(watched.in_force(), deadlines(10_000, 5_000));
        watched.guardian_ends = true;
        assert_eq!(watched.term_at(), None);
        assert_eq!(watched.next_wake(), at(5_000));
    }
}
