//! When the guardian sends TERM and KILL. No clock, no processes: time is an argument.

use super::{Deadlines, EndReason};
use crate::clock::BootInstant;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Term,
    Kill,
}

/// The guardian's plan for one command.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    deadlines: Deadlines,
    ending: Option<Ending>,
    killing: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    /// Why; `None` after the command has ended by itself and only its descendants are left.
    reason: Option<EndReason>,
    kill_at: BootInstant,
    /// The lock is lost: no renewal may prolong this.
    lost: bool,
}

impl Plan {
    pub fn new(deadlines: Deadlines) -> Self {
        Self {
            deadlines: deadlines.ordered(),
            ending: None,
            killing: false,
        }
    }

    /// What has become due by `now`. Each is returned once; after `Kill` nothing more.
    pub fn due(&mut self, now: BootInstant) -> Due {
        if self.killing {
            return Due::Nothing;
        }
        if now >= self.kill_at() {
            if self.ending.is_none() {
                self.ending = Some(self.deadline_passed());
            }
            self.killing = true;
            return Due::Kill;
        }
        match &mut self.ending {
            None if now >= self.deadlines.soft => {
                self.ending = Some(self.deadline_passed());
                Due::Term
            }
            Some(ending) if now >= self.deadlines.soft && !ending.lost => {
                ending.lost = true;
                Due::Nothing
            }
            _ => Due::Nothing,
        }
    }

    /// Moves the deadlines; false once one of them has passed, noticed by `due` or not.
    pub fn extend(&mut self, now: BootInstant, deadlines: Deadlines) -> bool {
        let lost = self.killing || self.ending.is_some_and(|ending| ending.lost);
        if lost || now >= self.deadlines.soft {
            return false;
        }
        self.deadlines = deadlines.ordered();
        true
    }

    /// Begins the end, or brings it forward. True if TERM is to be sent now.
    pub fn end(&mut self, reason: Option<EndReason>, kill_at: BootInstant) -> bool {
        let lost = reason == Some(EndReason::WrapperLost);
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.min(kill_at);
            ending.lost |= lost;
            return false;
        }
        self.ending = Some(Ending {
            reason,
            kill_at,
            lost,
        });
        true
    }

    /// When `due` may have something new to say.
    pub fn next_wake(&self) -> BootInstant {
        match self.ending {
            None => self.deadlines.soft.min(self.kill_at()),
            Some(_) => self.kill_at(),
        }
    }

    pub fn reason(&self) -> Option<EndReason> {
        self.ending.and_then(|ending| ending.reason)
    }

    pub fn is_killing(&self) -> bool {
        self.killing
    }

    fn kill_at(&self) -> BootInstant {
        self.ending.map_or(self.deadlines.hard, |ending| {
            ending.kill_at.min(self.deadlines.hard)
        })
    }

    fn deadline_passed(&self) -> Ending {
        Ending {
            reason: Some(EndReason::Deadline),
            kill_at: self.deadlines.hard,
            lost: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_nanos(seconds * 1_000_000_000)
    }

    fn deadlines(soft: u64, hard: u64) -> Deadlines {
        Deadlines {
            soft: at(soft),
            hard: at(hard),
        }
    }

    #[test]
    fn term_at_soft_then_kill_at_hard() {
        let mut plan = Plan::new(deadlines(10, 12));
        assert_eq!(plan.next_wake(), at(10));
        assert_eq!(plan.due(at(9)), Due::Nothing);
        assert_eq!(plan.due(at(10)), Due::Term);
        assert_eq!(plan.due(at(11)), Due::Nothing);
        assert_eq!(plan.next_wake(), at(12));
        assert_eq!(plan.due(at(12)), Due::Kill);
        assert_eq!(plan.due(at(13)), Due::Nothing);
        assert_eq!(plan.reason(), Some(EndReason::Deadline));
    }

    #[test]
    fn who_wakes_up_after_hard_kills_at_once() {
        let mut plan = Plan::new(deadlines(10, 12));
        assert_eq!(plan.due(at(60)), Due::Kill);
        assert!(!plan.extend(at(60), deadlines(100, 120)));
        assert_eq!(plan.reason(), Some(EndReason::Deadline));
    }

    #[test]
    fn a_renewal_moves_both_and_a_late_one_is_refused() {
        let mut plan = Plan::new(deadlines(10, 12));
        assert!(plan.extend(at(9), deadlines(15, 17)));
        assert_eq!(plan.due(at(12)), Due::Nothing);
        // Frozen between looking at the clock and at the message.
        assert!(!plan.clone().extend(at(15), deadlines(20, 22)));
        assert_eq!(plan.due(at(15)), Due::Term);
        assert!(!plan.extend(at(15), deadlines(20, 22)));
        assert_eq!(plan.due(at(17)), Due::Kill);
    }

    #[test]
    fn a_shorter_duration_moves_the_deadlines_down_at_once() {
        let mut plan = Plan::new(deadlines(100, 120));
        assert!(plan.extend(at(9), deadlines(10, 12)));
        assert_eq!(plan.next_wake(), at(10));
        assert_eq!(plan.due(at(12)), Due::Kill);
    }

    #[test]
    fn descendants_get_their_grace_while_the_lock_is_still_renewed() {
        let mut plan = Plan::new(deadlines(10, 12));
        assert!(plan.end(None, at(14)));
        assert!(plan.extend(at(9), deadlines(20, 22)));
        assert_eq!(plan.due(at(13)), Due::Nothing);
        assert_eq!(plan.due(at(14)), Due::Kill);
        assert_eq!(plan.reason(), None);
    }

    #[test]
    fn no_grace_reaches_beyond_hard() {
        let mut plan = Plan::new(deadlines(10, 12));
        assert!(plan.end(Some(EndReason::Requested), at(30)));
        assert!(!plan.end(Some(EndReason::Requested), at(40)));
        assert_eq!(plan.due(at(11)), Due::Nothing);
        assert!(!plan.extend(at(11), deadlines(20, 22)));
        assert_eq!(plan.due(at(12)), Due::Kill);
        assert_eq!(plan.reason(), Some(EndReason::Requested));
    }

    #[test]
    fn a_lost_wrapper_brings_the_end_forward_and_takes_no_renewal() {
        let mut plan = Plan::new(deadlines(10, 12));
        plan.end(Some(EndReason::WrapperLost), at(5));
        assert!(!plan.extend(at(4), deadlines(20, 22)));
        assert_eq!(plan.due(at(5)), Due::Kill);
    }

    #[test]
    fn a_soft_deadline_beyond_the_hard_one_is_cut() {
        let mut plan = Plan::new(deadlines(20, 12));
        assert_eq!(plan.next_wake(), at(12));
        assert_eq!(plan.due(at(12)), Due::Kill);
    }
}
