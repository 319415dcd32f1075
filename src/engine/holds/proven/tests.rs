use super::*;
use crate::engine::holds::tests::{HELD, NOW, end_of, lock, pod, sight, taken};
use crate::engine::{EndKind, GrantNote, LockView, OperatorWrite};

#[test]
fn a_heartbeat_grant_ends_with_its_pod_where_the_kubelet_says_so() {
    let lock = lock();
    let mut lease = taken(&lock, pod(None, Some("p1"), false));
    if let GrantNote::V1(grant) = &mut lease.grant {
        grant.hold = Hold::Heartbeat;
    }
    let seen = |uid: &str, ended| PodSight {
        uid: Some(uid.to_owned()),
        ended,
    };
    let slot = sight(&lock, &lease, HELD);
    let ask = |slot: &SlotSight<'_>, pod, now| end_proven(slot, &pod, NOW, "op", now, 9);
    let end = ask(&slot, seen("p1", true), NOW);
    assert_eq!(end_of(end), (OperatorWrite::End, EndKind::Ended));
    assert_eq!(ask(&slot, seen("p1", false), NOW), None);
    assert_eq!(ask(&slot, seen("p2", true), NOW), None, "another Pod");
    let hold = sight(&lock, &lease, Standing::HeldWithoutEnd);
    assert_eq!(ask(&hold, seen("p1", true), NOW), None, "not under Hold");
    let unread = SlotSight {
        lock_read: Moment::ZERO,
        ..slot.clone()
    };
    let todo = ask(&unread, seen("p1", true), NOW);
    assert_eq!(todo, Some(OperatorMove::ReadLock), "Hold may be new");
    let delayed = LockView {
        lock_delay_seconds: 5,
        ..lock.clone()
    };
    let delayed = sight(&delayed, &lease, HELD);
    let due = NOW + Duration::from_secs(5);
    assert_eq!(ask(&delayed, seen("p1", true), NOW), Some(wait(Some(due))));
    // A foreign elector has taken since: the annotation tells of an earlier holder, and its Pod proves nothing.
    let mut taken_over = lease.clone();
    taken_over.spec.holder = "elector_1".to_owned();
    taken_over.spec.transitions += 1;
    let foreign = sight(&lock, &taken_over, HELD);
    assert_eq!(ask(&foreign, seen("p1", true), NOW), None);
}
