//! Which accesses fail, how often in a row, and whether they are refused for good.

use std::collections::HashMap;
use std::time::Duration;

use crate::engine::Moment;

/// How long an access is refused before that is believed.
const FOR: Duration = Duration::from_secs(5);
/// How often it is refused in a row before that is believed: two refusals that happen to be far apart prove little.
const TIMES: u32 = 6;
/// A refusal so long ago says nothing about now.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// A verb on a resource: what a role allows.
pub(super) type Right = (&'static str, &'static str);

/// The failures in a row of each access, of whatever kind: a write that fails goes on failing, though reads succeed.
#[derive(Debug, Default)]
pub(super) struct Failures(HashMap<Right, Failing>);

#[derive(Debug, Default)]
struct Failing {
    times: u32,
    said: bool,
}

impl Failures {
    /// The access failed; how often in a row by now.
    pub(super) fn failed(&mut self, access: Right) -> u32 {
        let failing = self.0.entry(access).or_default();
        failing.times += 1;
        failing.times
    }

    /// Whether it is news that the access fails, which is said now.
    pub(super) fn is_news(&mut self, access: Right) -> bool {
        !std::mem::replace(&mut self.0.entry(access).or_default().said, true)
    }

    /// The access succeeded.
    pub(super) fn succeeded(&mut self, access: Right) {
        self.0.remove(&access);
    }
}

/// The refusals in a row of each access.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<Right, Row>);

#[derive(Debug)]
struct Row {
    since: Moment,
    last: Moment,
    times: u32,
}

impl Refusals {
    /// The access was refused. Whether it has been for so long and so often that it is refused for good.
    pub(super) fn refused(&mut self, access: Right, now: Moment) -> bool {
        let row = self.0.entry(access).or_insert(Row {
            since: now,
            last: now,
            times: 0,
        });
        if now >= row.last.saturating_add(FORGOTTEN_AFTER) {
            row.since = now;
            row.times = 0;
        }
        row.last = now;
        row.times += 1;
        row.times >= TIMES && now >= row.since.saturating_add(FOR)
    }

    /// The access was allowed.
    pub(super) fn allowed(&mut self, access: Right) {
        self.0.remove(&access);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: Right = ("get", "leases");
    const UPDATE: Right = ("update", "leases");

    /// What is said of a `get` that is refused at each of these seconds.
    fn said(refusals: &mut Refusals, at: &[u64]) -> Vec<bool> {
        at.iter()
            .map(|at| refusals.refused(GET, Duration::from_secs(*at)))
            .collect()
    }

    #[test]
    fn few_refusals_far_apart_are_not_for_good() {
        let mut refusals = Refusals::default();
        assert_eq!(said(&mut refusals, &[0, 7, 14, 21, 28]), [false; 5]);
        assert_eq!(said(&mut refusals, &[29]), [true]);
    }

    #[test]
    fn many_refusals_in_a_moment_are_not_for_good() {
        let mut refusals = Refusals::default();
        assert_eq!(said(&mut refusals, &[0, 1, 1, 2, 3, 4, 4]), [false; 7]);
        assert_eq!(said(&mut refusals, &[5]), [true]);
    }

    #[test]
    fn a_success_of_the_same_access_clears_the_record_and_no_other_does() {
        let mut refusals = Refusals::default();
        assert_eq!(said(&mut refusals, &[0, 1, 2, 3, 4]), [false; 5]);
        refusals.allowed(UPDATE);
        assert_eq!(said(&mut refusals, &[5]), [true]);
        refusals.allowed(GET);
        assert_eq!(said(&mut refusals, &[6, 7, 8, 9, 10]), [false; 5]);
        assert_eq!(said(&mut refusals, &[11]), [true]);
    }

    #[test]
    fn another_access_has_a_record_of_its_own() {
        let mut refusals = Refusals::default();
        for at in 0..5 {
            assert_eq!(said(&mut refusals, &[at]), [false]);
            assert!(!refusals.refused(UPDATE, Duration::from_secs(at)));
        }
        assert_eq!(said(&mut refusals, &[5]), [true]);
    }

    #[test]
    fn old_refusals_are_forgotten() {
        let mut refusals = Refusals::default();
        assert_eq!(said(&mut refusals, &[0, 1, 2, 3, 4]), [false; 5]);
        assert_eq!(said(&mut refusals, &[34, 35]), [false; 2]);
    }
}
