use super::*;
use crate::engine::holds::ClaimState;
use crate::engine::holds::tests::{
    HELD, IDENTITY, NOW, claim, free, lock, pod, queue, sight, taken,
};
use crate::engine::{LeaseRecord, LockView};
use std::time::Duration;

#[test]
fn a_take_stores_what_the_claim_asks_for_cut_by_the_limit() {
    let limited = LockView {
        max_hold_seconds: Some(60),
        ..lock()
    };
    for (lock, wish, stored, hold) in [
        (lock(), Wish::Fixed { seconds: 600 }, 600, Hold::Fixed),
        (
            limited.clone(),
            Wish::Fixed { seconds: 600 },
            60,
            Hold::Fixed,
        ),
        (
            limited.clone(),
            Wish::Fixed { seconds: 20 },
            20,
            Hold::Fixed,
        ),
        (lock(), pod(None, Some("p1"), false), 86_400, Hold::Pod),
        (
            limited,
            pod(Some("p1"), Some("p1"), false),
            86_400,
            Hold::Pod,
        ),
    ] {
        let lease = taken(&lock, wish);
        assert_eq!(lease.spec.holder, IDENTITY);
        assert_eq!(lease.spec.duration_seconds, Some(stored));
        let grant = lease.current_grant().expect("a grant");
        assert_eq!((grant.hold, grant.token.get()), (hold, 8));
        let bound = grant.pod.as_ref().map(|pod| pod.uid.as_str());
        assert_eq!(bound, (hold == Hold::Pod).then_some("p1"));
    }
}

#[test]
fn nothing_is_taken_for_who_lacks_its_pod_or_out_of_turn_or_from_a_holder() {
    let lock = lock();
    let waits = |wish| claim(wish, ClaimState::Waiting);
    let try_with = |claim: &HoldClaim, lease: &LeaseRecord, standing| {
        take(
            &[sight(&lock, lease, standing)],
            &queue(claim),
            |_| Some(claim.clone()),
            5,
        )
    };
    for wish in [
        pod(None, None, false),
        pod(None, Some("p1"), true),
        pod(Some("p0"), Some("p1"), false),
        Wish::Pod {
            name: "web".to_owned(),
            uid: None,
            sight: None,
        },
    ] {
        assert_eq!(try_with(&waits(wish), &free(), Standing::Free), None);
    }
    let seat = waits(Wish::Fixed { seconds: 1 });
    assert_eq!(
        try_with(&seat, &free(), Standing::Expired),
        None,
        "it is ended first"
    );
    assert_eq!(try_with(&seat, &free(), HELD), None);
    let other = ClaimRef {
        name: "other".to_owned(),
        uid: "o".to_owned(),
    };
    let named = LeaseRecord {
        next: Some(other),
        ..free()
    };
    assert_eq!(
        try_with(&seat, &named, Standing::Free),
        None,
        "it is another's turn"
    );
    let late = SlotSight {
        lease_changed: NOW + Duration::from_secs(1),
        ..sight(&lock, &named, Standing::Free)
    };
    let late = SlotSight {
        lease: &free(),
        ..late
    };
    let todo = take(&[late], &queue(&seat), |_| Some(seat.clone()), 5);
    assert_eq!(todo, Some((0, OperatorMove::ReadLock)));
}

#[test]
fn the_other_slot_is_taken_by_the_one_who_is_named_and_leaves_the_queue_alone() {
    let lock = |number| LockView {
        number,
        max_holders: 2,
        ..lock()
    };
    let (first, second) = (lock(0), lock(1));
    let seat = claim(Wish::Fixed { seconds: 9 }, ClaimState::Waiting);
    let mut head = taken(&first, Wish::Fixed { seconds: 9 });
    let other = free();
    let ask = |head: &LeaseRecord| {
        let slots = [
            sight(&first, head, HELD),
            sight(&second, &other, Standing::Free),
        ];
        take(&slots, &queue(&seat), |_| Some(seat.clone()), 5)
    };
    assert_eq!(ask(&head), None, "it is named first");
    head.next = Some(seat.claim.clone());
    match ask(&head) {
        Some((1, OperatorMove::Write { record, .. })) => assert_eq!(record.next, None),
        other => panic!("{other:?}"),
    }
    let fewer = LockView {
        max_holders: 1,
        ..second.clone()
    };
    let slots = [
        sight(&first, &head, HELD),
        sight(&fewer, &other, Standing::Free),
    ];
    let todo = take(&slots, &queue(&seat), |_| Some(seat.clone()), 5);
    assert_eq!(todo, None, "a surplus slot is not taken");
}
