//! When a hold ends, and which are whose; `keeping` is about those that go on.

mod keeping;

use super::*;
use crate::engine::queue::Queue;
use crate::engine::{ClaimView, QueueOrder, SlotView, SpecRecord};

const UID: &str = "11111111-2222-3333-4444-555555555555";
pub(super) const IDENTITY: &str = "seat/11111111-2222-3333-4444-555555555555";
pub(super) const NOW: Moment = Moment::from_secs(1000);

pub(super) fn lock() -> LockView {
    LockView {
        name: "nightly".to_owned(),
        uid: "lock".to_owned(),
        duration_seconds: 15,
        longest_seconds: Some(15),
        max_holders: 1,
        slot: Some(SlotView::default()),
        ..LockView::default()
    }
}

pub(super) fn free() -> LeaseRecord {
    LeaseRecord {
        uid: "lease".to_owned(),
        resource_version: 7,
        lock_label: Some("nightly".to_owned()),
        spec: SpecRecord {
            transitions: 3,
            ..SpecRecord::default()
        },
        ..LeaseRecord::default()
    }
}

pub(super) fn claim(wish: Wish, state: ClaimState) -> HoldClaim {
    HoldClaim {
        claim: ClaimRef {
            name: "seat".to_owned(),
            uid: UID.to_owned(),
        },
        identity: IDENTITY.to_owned(),
        wish,
        state,
    }
}

pub(super) fn pod(uid: Option<&str>, there: Option<&str>, ended: bool) -> Wish {
    Wish::Pod {
        name: "web".to_owned(),
        uid: uid.map(str::to_owned),
        sight: Some(PodSight {
            uid: there.map(str::to_owned),
            ended,
        }),
    }
}

pub(super) fn sight<'a>(
    lock: &'a LockView,
    lease: &'a LeaseRecord,
    standing: Standing,
) -> SlotSight<'a> {
    SlotSight {
        lock,
        lock_read: NOW,
        lease,
        lease_changed: NOW,
        standing,
        expired_when_read: true,
        unchanged_since: NOW,
        held_since: NOW,
        prolonged_to: None,
        remembered: 0,
    }
}

pub(super) fn queue(claim: &HoldClaim) -> Queue {
    let view = ClaimView {
        claim: claim.claim.clone(),
        ticket: 1,
        priority: 0,
        hold: claim.hold(),
        waiting: true,
        dead: false,
    };
    Queue::new([view], [], QueueOrder::Fifo)
}

/// The Lease after the operator took it for this wish.
pub(super) fn taken(lock: &LockView, wish: Wish) -> LeaseRecord {
    let claim = claim(wish, ClaimState::Waiting);
    let lease = free();
    let slot = sight(lock, &lease, Standing::Free);
    let (number, todo) =
        take(&[slot], &queue(&claim), |_| Some(claim.clone()), 5).expect("it takes");
    assert_eq!(number, 0);
    match todo {
        OperatorMove::Write {
            what: OperatorWrite::Take,
            record,
            ..
        } => *record,
        other => panic!("{other:?}"),
    }
}

fn granted(lease: &LeaseRecord, seconds: Option<u32>) -> ClaimState {
    ClaimState::Granted {
        slot: 0,
        token: lease.current_token().expect("a token").get(),
        seconds,
    }
}

pub(super) const HELD: Standing = Standing::Held {
    until: Moment::from_secs(2000),
};

pub(super) fn end_of(todo: Option<OperatorMove>) -> (OperatorWrite, EndKind) {
    match todo {
        Some(OperatorMove::Write { what, record, .. }) => {
            assert!(record.is_free());
            (what, record.ended.expect("a note").kind)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claim_is_shown_as_over_before_its_lease_is_freed() {
    let lock = lock();
    let lease = taken(&lock, Wish::Fixed { seconds: 600 });
    let on_pod = taken(&lock, pod(None, Some("p1"), false));
    let fixed = || Wish::Fixed { seconds: 600 };
    let bound = |there, ended| pod(None, there, ended);
    for (lease, wish, standing, why, kind) in [
        (
            &lease,
            fixed(),
            Standing::Expired,
            ClaimEnd::Expired,
            EndKind::Expired,
        ),
        (
            &lease,
            fixed(),
            Standing::Revoked,
            ClaimEnd::Revoked,
            EndKind::Revoked,
        ),
        (
            &on_pod,
            bound(None, false),
            Standing::HeldWithoutEnd,
            ClaimEnd::PodEnded,
            EndKind::Ended,
        ),
        (
            &on_pod,
            bound(Some("p2"), false),
            Standing::HeldWithoutEnd,
            ClaimEnd::PodEnded,
            EndKind::Ended,
        ),
        (
            &on_pod,
            bound(Some("p1"), true),
            Standing::HeldWithoutEnd,
            ClaimEnd::PodEnded,
            EndKind::Ended,
        ),
        (
            &on_pod,
            bound(Some("p1"), false),
            Standing::Revoked,
            ClaimEnd::Revoked,
            EndKind::Revoked,
        ),
    ] {
        let slot = sight(&lock, lease, standing);
        let shown = claim(wish.clone(), granted(lease, Some(600)));
        let expected = OperatorMove::Finish {
            claim: shown.claim.clone(),
            why,
        };
        assert_eq!(
            keep(&slot, Holder::InView(&shown), "op", NOW, 9),
            Some(expected),
            "{why:?}"
        );
        let over = claim(wish.clone(), ClaimState::Over(why));
        assert_eq!(
            end_of(keep(&slot, Holder::InView(&over), "op", NOW, 9)).1,
            kind
        );
        // Nobody was told of it: it may be taken again, so its claim goes on waiting.
        let waits = claim(wish, ClaimState::Waiting);
        assert_eq!(
            end_of(keep(&slot, Holder::InView(&waits), "op", NOW, 9)).1,
            kind
        );
    }
}

#[test]
fn a_lease_whose_claim_is_gone_is_given_back_once_a_read_says_so() {
    let lock = lock();
    let lease = taken(&lock, Wish::Fixed { seconds: 600 });
    let slot = sight(&lock, &lease, HELD);
    let ask = |holder| keep(&slot, holder, "op", NOW, 9);
    assert_eq!(
        ask(Holder::Unknown),
        Some(OperatorMove::ReadHolder(UID.to_owned()))
    );
    assert!(matches!(
        ask(Holder::OutOfView),
        Some(OperatorMove::Wait { .. })
    ));
    assert_eq!(
        end_of(ask(Holder::Gone)),
        (OperatorWrite::End, EndKind::Released)
    );
    let deleting = |shown| claim(Wish::Fixed { seconds: 600 }, ClaimState::Deleting { shown });
    let shown = deleting(true);
    assert!(matches!(
        ask(Holder::InView(&shown)),
        Some(OperatorMove::Finish { .. })
    ));
    let hidden = deleting(false);
    assert_eq!(end_of(ask(Holder::InView(&hidden))).1, EndKind::Released);
    // Another grant of the same claim: nobody was told of this one.
    let elsewhere = claim(
        Wish::Fixed { seconds: 600 },
        ClaimState::Granted {
            slot: 1,
            token: 99,
            seconds: Some(600),
        },
    );
    assert_eq!(end_of(ask(Holder::InView(&elsewhere))).1, EndKind::Released);
    // Of the same slot, with another token: that grant is over, and its claim is shown as over first.
    let earlier = claim(
        Wish::Fixed { seconds: 600 },
        ClaimState::Granted {
            slot: 0,
            token: 1,
            seconds: Some(600),
        },
    );
    assert_eq!(ask(Holder::InView(&earlier)), Some(wait(None)));
}

#[test]
fn the_lock_is_read_again_before_a_hold_is_ended_by_time() {
    let lock = LockView {
        max_hold_seconds: Some(60),
        ..lock()
    };
    let lease = taken(&lock, Wish::Fixed { seconds: 60 });
    let shown = claim(Wish::Fixed { seconds: 60 }, granted(&lease, Some(60)));
    let slot = SlotSight {
        expired_when_read: false,
        ..sight(&lock, &lease, Standing::Expired)
    };
    let todo = keep(&slot, Holder::InView(&shown), "op", NOW, 9);
    assert_eq!(todo, Some(OperatorMove::ReadLock));

    let lease = taken(&lock, pod(None, Some("p1"), false));
    let shown = claim(pod(None, Some("p1"), false), granted(&lease, None));
    let over = NOW + Duration::from_mins(1);
    let slot = sight(&lock, &lease, Standing::HeldWithoutEnd);
    let ask = |slot: &SlotSight<'_>, now| keep(slot, Holder::InView(&shown), "op", now, 9);
    assert_eq!(ask(&slot, NOW), Some(wait(Some(over))));
    assert_eq!(ask(&slot, over), Some(OperatorMove::ReadLock));
    let read = SlotSight {
        lock_read: over,
        ..slot
    };
    let why = ClaimEnd::MaxHold;
    let expected = OperatorMove::Finish {
        claim: shown.claim.clone(),
        why,
    };
    assert_eq!(ask(&read, over), Some(expected));
}

#[test]
fn holds_of_others_are_left_to_the_keeper() {
    let lock = lock();
    let mut lease = taken(&lock, Wish::Fixed { seconds: 60 });
    if let GrantNote::V1(grant) = &mut lease.grant {
        grant.hold = Hold::Heartbeat;
    }
    for holder in [Holder::Unknown, Holder::Gone] {
        assert_eq!(
            keep(&sight(&lock, &lease, HELD), holder, "op", NOW, 9),
            None
        );
    }
    assert_eq!(
        keep(
            &sight(&lock, &free(), Standing::Free),
            Holder::Unknown,
            "op",
            NOW,
            9
        ),
        None
    );
}

#[test]
fn under_hold_time_does_not_end_a_fixed_hold_and_the_lock_delay_is_waited_for() {
    use crate::engine::{Observation, OnHolderLost};
    let delayed = LockView {
        lock_delay_seconds: 5,
        ..lock()
    };
    let lease = taken(&delayed, Wish::Fixed { seconds: 600 });
    let seen = Observation::first(&lease, NOW);
    let stands = |lock: &LockView, seconds| {
        let now = NOW + Duration::from_secs(seconds);
        crate::engine::standing::standing(lock, &lease, &seen, now)
    };
    assert!(matches!(stands(&delayed, 604), Standing::Held { .. }));
    assert_eq!(stands(&delayed, 605), Standing::Expired);
    let hold = LockView {
        on_holder_lost: OnHolderLost::Hold,
        ..lock()
    };
    assert_eq!(stands(&hold, 100_000), Standing::HeldWithoutEnd);
    let shown = claim(Wish::Fixed { seconds: 600 }, granted(&lease, Some(600)));
    let slot = sight(&hold, &lease, Standing::HeldWithoutEnd);
    let todo = keep(&slot, Holder::InView(&shown), "op", NOW, 9);
    assert_eq!(todo, Some(wait(None)));
    // Its claim, or a revoke, ends it all the same.
    assert_eq!(
        end_of(keep(&slot, Holder::Gone, "op", NOW, 9)).1,
        EndKind::Released
    );
}
