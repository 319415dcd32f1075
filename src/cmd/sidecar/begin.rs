//! What the sidecar keeps on the volume, and how it begins after a restart (R5): pure.
//!
//! One grant for each start of the work. A Pod's volume outlives the sidecar's container and the app's, so what it says
//! tells a first start from a restart: nothing was taken yet, a grant is to be resumed, or one is over. After one that
//! is over nothing is taken again, as the app that had it may still run; `leasehold sidecar --new-work`, which
//! Kubernetes runs as an init container only while no app does, clears the volume.

use std::time::Duration;

use leasehold::api::names::MAX_LOCK_LEASE_SECONDS;
use leasehold::client::Resumable;
use leasehold::clock::BootInstant;
use leasehold::supervise::Mark;
use serde::{Deserialize, Serialize};

/// So far ahead lies what was told of a lease that lasts an hour, at most.
const AHEAD_MOST: Duration = Duration::from_secs(MAX_LOCK_LEASE_SECONDS.unsigned_abs() as u64);
/// The one version of the file that this program knows.
const VERSION: u32 = 1;

/// Where and when this process runs.
#[derive(Clone, Debug)]
pub(super) struct Here {
    /// The Pod's uid; `None` outside a Pod.
    pub(super) pod: Option<String>,
    /// Which boot of the machine.
    pub(super) boot: Option<String>,
    pub(super) now: BootInstant,
}

/// Until when the app may work, and how long it may be left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Work {
    /// It has ended by then.
    pub(super) ends: BootInstant,
    /// What it gets between TERM and KILL, where that is sooner.
    pub(super) grace: Duration,
    /// The containers that were there before the app.
    pub(super) spared: Vec<Mark>,
}

impl Work {
    /// When what is left of it is killed, if it is told to end now: a lock that was revoked may be another's already.
    pub(super) fn kill_at(&self, now: BootInstant) -> BootInstant {
        self.ends.min(now + self.grace)
    }
}

/// What became of the grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// Held, and the app was told or is about to be; until then, unless renewed.
    Held {
        grant: Resumable,
        until: BootInstant,
    },
    /// Lost or given back, and why.
    Over { reason: String },
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    version: u32,
    pod: Option<String>,
    boot: Option<String>,
    lock: String,
    pub(super) work: Work,
    pub(super) phase: Phase,
}

impl State {
    pub(super) fn new(here: &Here, lock: &str, work: Work, phase: Phase) -> Self {
        Self {
            version: VERSION,
            pod: here.pod.clone(),
            boot: here.boot.clone(),
            lock: lock.to_owned(),
            work,
            phase,
        }
    }

    /// Whether it was left on the volume by another Pod, or before the machine was started again: whatever worked then
    /// has ended.
    fn is_of_another_life(&self, here: &Here) -> bool {
        // Where one of them is not known, nothing is concluded from it.
        let differ = |then: &Option<String>, now: &Option<String>| {
            then.is_some() && now.is_some() && then != now
        };
        differ(&self.pod, &here.pod) || differ(&self.boot, &here.boot) || self.is_ahead_of(here.now)
    }

    /// Whether the clock, which only goes on in one boot, was further then: some machines have the same boot id again.
    fn is_ahead_of(&self, now: BootInstant) -> bool {
        let taken = match &self.phase {
            Phase::Held { grant, .. } => Some(grant.granted),
            Phase::Over { .. } => None,
        };
        self.work.ends > now + AHEAD_MOST || taken.is_some_and(|taken| taken > now)
    }
}

/// How the sidecar begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// Nothing of this Pod has had the lock: take it.
    Take,
    /// Prove the grant again before its deadline.
    Resume {
        grant: Resumable,
        until: BootInstant,
        work: Work,
    },
    /// A grant of this Pod is over: nothing is taken.
    Over { reason: String, work: Work },
    /// Another lock's sidecar has this folder.
    OtherLock(String),
}

/// Decides by the text of the file; `None` where there is none.
pub(super) fn decide(text: Option<&str>, here: &Here, lock: &str) -> Beginning {
    let Some(text) = text else {
        return Beginning::Take;
    };
    let known = serde_json::from_str::<State>(text);
    let Some(state) = known.ok().filter(|state| state.version == VERSION) else {
        // If it can't tell, it has lost.
        return Beginning::Over {
            reason: "StateUnreadable".to_owned(),
            work: Work {
                ends: here.now,
                grace: Duration::ZERO,
                spared: vec![],
            },
        };
    };
    if state.is_of_another_life(here) {
        return Beginning::Take;
    }
    if state.lock != lock {
        return Beginning::OtherLock(state.lock);
    }
    let is_boot_known = state.boot.is_some() && here.boot.is_some();
    let work = state.work;
    match state.phase {
        // Its deadline means nothing on the clock of another boot. If it can't tell, it has lost.
        Phase::Held { .. } if !is_boot_known => Beginning::Over {
            reason: "BootUnknown".to_owned(),
            work,
        },
        Phase::Held { grant, until } if here.now < until => {
            Beginning::Resume { grant, until, work }
        }
        Phase::Held { .. } => Beginning::Over {
            reason: "Expired".to_owned(),
            work,
        },
        Phase::Over { reason } => Beginning::Over { reason, work },
    }
}

/// Whether new work, before which all earlier work has ended, may go on with what the file says; else it is removed.
pub(super) fn outlasts_the_work(text: Option<&str>, here: &Here) -> bool {
    let lock = text
        .and_then(|text| serde_json::from_str::<State>(text).ok())
        .map(|state| state.lock);
    lock.is_some_and(|lock| matches!(decide(text, here, &lock), Beginning::Resume { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNTIL: u64 = 100;

    fn here(now: u64) -> Here {
        Here {
            pod: Some("u-3".to_owned()),
            boot: Some("b-1".to_owned()),
            now: BootInstant::from_nanos(now),
        }
    }

    fn work() -> Work {
        Work {
            ends: BootInstant::from_nanos(UNTIL + 20),
            grace: Duration::from_nanos(20),
            spared: vec![Mark {
                pid: 20,
                started: 7,
            }],
        }
    }

    fn grant() -> Resumable {
        Resumable {
            lock: "a".to_owned(),
            namespace: "team-a".to_owned(),
            slot: 0,
            grant: "v1;L1;1;7;Heartbeat;pod-3/u-3;pod-3/9b2e".to_owned(),
            granted: BootInstant::from_nanos(10),
        }
    }

    fn text(phase: Phase) -> String {
        serde_json::to_string(&State::new(&here(0), "a", work(), phase)).unwrap()
    }

    fn held() -> String {
        text(Phase::Held {
            grant: grant(),
            until: BootInstant::from_nanos(UNTIL),
        })
    }

    #[test]
    fn a_grant_is_resumed_before_its_deadline_and_over_from_then_on() {
        assert_eq!(
            decide(Some(&held()), &here(UNTIL - 1), "a"),
            Beginning::Resume {
                grant: grant(),
                until: BootInstant::from_nanos(UNTIL),
                work: work(),
            }
        );
        for late in [UNTIL, UNTIL + 1] {
            let over = decide(Some(&held()), &here(late), "a");
            assert!(matches!(over, Beginning::Over { reason, .. } if reason == "Expired"));
        }
    }

    #[test]
    fn work_is_killed_after_its_grace_and_no_later_than_it_ends() {
        let at = BootInstant::from_nanos;
        let work = work();
        assert_eq!(work.kill_at(at(30)), at(50));
        assert_eq!(work.kill_at(at(UNTIL)), work.ends);
        assert_eq!(work.kill_at(at(UNTIL + 19)), work.ends);
    }

    #[test]
    fn nothing_is_taken_where_a_grant_of_this_pod_is_over_or_cannot_be_read() {
        let reason = "Revoked".to_owned();
        let over = text(Phase::Over {
            reason: reason.clone(),
        });
        let work = work();
        assert_eq!(
            decide(Some(&over), &here(20), "a"),
            Beginning::Over { reason, work }
        );
        let newer = held().replace("\"version\":1", "\"version\":2");
        for unreadable in ["", "{}", &held()[..40], &newer] {
            let begun = decide(Some(unreadable), &here(20), "a");
            assert!(
                matches!(&begun, Beginning::Over { reason, .. } if reason == "StateUnreadable"),
                "{unreadable:?}: {begun:?}"
            );
        }
    }

    #[test]
    fn a_new_volume_another_pod_and_another_boot_begin_anew() {
        let over = text(Phase::Over {
            reason: "Revoked".to_owned(),
        });
        let pod = Here {
            pod: Some("u-4".to_owned()),
            ..here(20)
        };
        let boot = Here {
            boot: Some("b-2".to_owned()),
            ..here(20)
        };
        assert_eq!(decide(None, &here(20), "a"), Beginning::Take);
        for state in [held(), over.clone()] {
            for here in [&pod, &boot] {
                assert_eq!(decide(Some(&state), here, "a"), Beginning::Take);
            }
        }
        // Where the boot or the Pod is not known, nothing is taken for it.
        let no_pod = Here {
            pod: None,
            ..here(20)
        };
        let resumed = decide(Some(&held()), &no_pod, "a");
        assert!(matches!(resumed, Beginning::Resume { .. }));
        for unknown in [&no_boot(), &no_pod] {
            assert!(matches!(
                decide(Some(&over), unknown, "a"),
                Beginning::Over { .. }
            ));
        }
    }

    fn no_boot() -> Here {
        Here {
            boot: None,
            ..here(20)
        }
    }

    /// raspberrypi/linux#4517, microsoft/WSL#2518: a boot id that can't be had, or is the same on each boot.
    #[test]
    fn a_deadline_on_the_clock_of_perhaps_another_boot_is_not_believed() {
        let unknown = text(Phase::Held {
            grant: grant(),
            until: BootInstant::from_nanos(UNTIL),
        })
        .replace("\"b-1\"", "null");
        for (state, here) in [(&unknown, &here(20)), (&held(), &no_boot())] {
            let begun = decide(Some(state), here, "a");
            assert!(
                matches!(&begun, Beginning::Over { reason, .. } if reason == "BootUnknown"),
                "{begun:?}"
            );
            assert!(!outlasts_the_work(Some(state), here));
        }
        // By the clock it was taken later than now; or it lasts for days.
        assert_eq!(decide(Some(&held()), &here(9), "a"), Beginning::Take);
        let days = BootInstant::from_nanos(900_000_000_000_000);
        let far = State {
            work: Work {
                ends: days,
                ..work()
            },
            ..serde_json::from_str(&held()).unwrap()
        };
        let far = serde_json::to_string(&far).unwrap();
        assert_eq!(decide(Some(&far), &here(20), "a"), Beginning::Take);
    }

    #[test]
    fn the_folder_of_another_locks_sidecar_is_left_alone() {
        let begun = decide(Some(&held()), &here(20), "b");
        assert_eq!(begun, Beginning::OtherLock("a".to_owned()));
    }

    #[test]
    fn new_work_goes_on_only_with_a_grant_that_is_not_over() {
        assert!(outlasts_the_work(Some(&held()), &here(UNTIL - 1)));
        let over = text(Phase::Over {
            reason: "Revoked".to_owned(),
        });
        for (text, now) in [
            (None, 1),
            (Some("x"), 1),
            (Some(&over[..]), 1),
            (Some(&held()[..]), UNTIL),
        ] {
            assert!(!outlasts_the_work(text, &here(now)), "{text:?}");
        }
    }
}
