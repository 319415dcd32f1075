//! What the end of the command means for the locks and for this process.

use leasehold::client::LossReason;
use leasehold::supervise::{ChildEnded, ChildStatus, EndReason, Signal, exit_code_for_signal};

pub(super) struct Verdict {
    /// The locks are given back; else they are left to end by themselves.
    pub(super) release: bool,
    pub(super) code: u8,
    pub(super) reason: &'static str,
    pub(super) words: Option<String>,
}

impl Verdict {
    fn new(release: bool, code: u8, reason: &'static str) -> Self {
        Self {
            release,
            code,
            reason,
            words: None,
        }
    }

    fn saying(self, words: impl Into<String>) -> Self {
        Self {
            words: Some(words.into()),
            ..self
        }
    }

    /// The same where this signal came before it was known that the command runs.
    pub(super) fn after(self, signal: Option<Signal>) -> Self {
        match signal {
            Some(signal) if self.release => {
                Self::new(true, exit_code_for_signal(signal.as_raw()), "Signal")
            }
            _ => self,
        }
    }
}

/// The one place that decides whether the locks are given back: only if nothing of the command is known to be left. One
/// that was lost is given back too, if it is still there: after `maxHoldSeconds` only the renewals have stopped. And
/// those beside it are not to wait for their leases to end.
pub(super) fn judge(
    ended: Option<&ChildEnded>,
    lost: Option<LossReason>,
    too_late: bool,
    lost_code: u8,
) -> Verdict {
    let Some(ended) = ended else {
        return Verdict::new(false, lost_code, "SupervisorLost")
            .saying("no word came on what became of the command: what is held is left to expire");
    };
    if !ended.all_reaped {
        return Verdict::new(false, lost_code, "Unkillable").saying(format!(
            "processes {:?} could not be killed: what is held is not released, its lease ends by itself",
            ended.left
        ));
    }
    if let Some(reason) = lost {
        return Verdict::new(true, lost_code, reason.as_str());
    }
    match (ended.killed_for, ended.status) {
        (Some(EndReason::Deadline), _) => Verdict::new(true, lost_code, "Expired"),
        (Some(EndReason::GuardianLost), _) => Verdict::new(true, lost_code, "GuardianLost")
            .saying("the guardian process was frozen or killed, and the command ended with it"),
        (_, ChildStatus::NotStarted) if too_late => Verdict::new(true, lost_code, "Expired"),
        (_, ChildStatus::NotStarted) => Verdict::new(true, ended.exit_code(), "NotStarted"),
        _ => Verdict::new(true, ended.exit_code(), "Completed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: u8 = 76;

    fn ended(status: ChildStatus) -> ChildEnded {
        ChildEnded {
            status,
            all_reaped: true,
            left: vec![],
            killed_for: None,
        }
    }

    fn judged(ended: &ChildEnded, too_late: bool) -> (bool, u8, &'static str) {
        let verdict = judge(Some(ended), None, too_late, LOST);
        (verdict.release, verdict.code, verdict.reason)
    }

    /// However the command came to its end, and whether it was started: nothing else counts then.
    #[test]
    fn a_lock_is_not_given_back_while_something_lives_or_nobody_knows() {
        let exited = ended(ChildStatus::Exited(0));
        let not_started = ended(ChildStatus::NotStarted);
        let killed = ChildEnded {
            killed_for: Some(EndReason::GuardianLost),
            ..ended(ChildStatus::Unknown)
        };
        let revoked = Some(LossReason::Revoked);
        for (ended, lost, too_late) in [
            (&exited, None, false),
            (&exited, revoked, false),
            (&killed, None, false),
            (&not_started, None, false),
            (&not_started, None, true),
        ] {
            let alive = ChildEnded {
                all_reaped: false,
                left: vec![42],
                ..ended.clone()
            };
            let verdict = judge(Some(&alive), lost, too_late, LOST);
            let seen = (verdict.release, verdict.code, verdict.reason);
            assert_eq!(seen, (false, LOST, "Unkillable"), "{alive:?}");
            assert!(verdict.words.unwrap().contains("[42]"));
            assert!(!judge(None, lost, too_late, LOST).release);
        }
    }

    #[test]
    fn what_is_known_to_be_over_gives_the_lock_back() {
        let not_started = ended(ChildStatus::NotStarted);
        assert_eq!(judged(&not_started, false), (true, 126, "NotStarted"));
        assert_eq!(judged(&not_started, true), (true, LOST, "Expired"));
        let exited = ended(ChildStatus::Exited(3));
        assert_eq!(judged(&exited, false), (true, 3, "Completed"));
        let lost = judge(Some(&exited), Some(LossReason::MaxHold), false, LOST);
        assert_eq!(
            (lost.release, lost.code, lost.reason),
            (true, LOST, "MaxHold")
        );
        for (killed_for, reason) in [
            (EndReason::Deadline, "Expired"),
            (EndReason::GuardianLost, "GuardianLost"),
        ] {
            let killed = ChildEnded {
                killed_for: Some(killed_for),
                ..ended(ChildStatus::Unknown)
            };
            assert_eq!(judged(&killed, false), (true, LOST, reason));
        }
    }

    #[test]
    fn a_signal_before_the_start_is_what_ended_it_unless_something_lives() {
        let signal = Some(Signal::TERM);
        let killed = ChildEnded {
            killed_for: Some(EndReason::Requested),
            ..ended(ChildStatus::Unknown)
        };
        let verdict = judge(Some(&killed), None, false, LOST).after(signal);
        assert_eq!((verdict.release, verdict.code), (true, 143));
        let alive = ChildEnded {
            all_reaped: false,
            ..killed
        };
        let verdict = judge(Some(&alive), None, false, LOST).after(signal);
        assert_eq!((verdict.release, verdict.code), (false, LOST));
    }
}
