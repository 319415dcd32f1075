//! Holds that go on: prolonged, renewed, with their annotation put back.

use super::*;

#[test]
fn raised_seconds_prolong_by_what_was_not_seen_to_pass() {
    let lock = lock();
    let lease = taken(&lock, Wish::Fixed { seconds: 60 });
    let raised = claim(Wish::Fixed { seconds: 600 }, granted(&lease, Some(60)));
    let slot = sight(&lock, &lease, HELD);
    let after = |slot: &SlotSight<'_>, seconds| {
        keep(
            slot,
            Holder::InView(&raised),
            "op",
            NOW + Duration::from_secs(seconds),
            9,
        )
    };
    match after(&slot, 50) {
        Some(OperatorMove::Prolong { record, total: 600 }) => {
            assert_eq!(record.spec.duration_seconds, Some(550));
            assert_eq!(record.grant, lease.grant, "the token stays");
            assert_ne!(record.spec.renew_time, lease.spec.renew_time);
        }
        other => panic!("{other:?}"),
    }
    let done = SlotSight {
        prolonged_to: Some(600),
        ..slot.clone()
    };
    assert!(
        matches!(after(&done, 50), Some(OperatorMove::Wait { .. })),
        "once is enough"
    );
    let limited = LockView {
        max_hold_seconds: Some(60),
        ..lock.clone()
    };
    let cut = SlotSight {
        lock: &limited,
        ..slot.clone()
    };
    assert!(
        matches!(after(&cut, 50), Some(OperatorMove::Wait { .. })),
        "not beyond the limit"
    );
    let waits = claim(Wish::Fixed { seconds: 600 }, ClaimState::Waiting);
    let todo = keep(&slot, Holder::InView(&waits), "op", NOW, 9);
    assert!(
        matches!(todo, Some(OperatorMove::Wait { .. })),
        "it is shown as granted first"
    );
}

#[test]
fn a_pod_hold_is_renewed_every_third_of_a_day() {
    let lock = lock();
    let lease = taken(&lock, pod(None, Some("p1"), false));
    let shown = claim(pod(None, Some("p1"), false), granted(&lease, None));
    let slot = sight(&lock, &lease, Standing::HeldWithoutEnd);
    let after = |seconds| {
        keep(
            &slot,
            Holder::InView(&shown),
            "op",
            NOW + Duration::from_secs(seconds),
            9,
        )
    };
    assert_eq!(
        after(28_799),
        Some(wait(Some(NOW + Duration::from_hours(8))))
    );
    match after(28_800) {
        Some(OperatorMove::Write {
            what: OperatorWrite::Renew,
            record,
            ..
        }) => {
            assert_eq!(record.spec.duration_seconds, Some(86_400));
            assert!(record.spec.renew_time > lease.spec.renew_time);
            assert_eq!(record.grant, lease.grant);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_annotation_is_put_back_only_as_status_knows_it() {
    let wish = || pod(None, Some("p1"), false);
    let lease = taken(&lock(), wish());
    let grant = lease.current_grant().expect("a grant").clone();
    let bare = LeaseRecord {
        grant: GrantNote::Absent,
        ..lease.clone()
    };
    let entry = SlotView {
        token: grant.token.get(),
        holder: IDENTITY.to_owned(),
        hold: Some(Hold::Pod),
        pod: grant.pod.clone(),
        duration_seconds: Some(86_400),
    };
    let shown = claim(wish(), granted(&lease, None));
    let waits = claim(wish(), ClaimState::Waiting);
    let knows = LockView {
        slot: Some(entry.clone()),
        ..lock()
    };
    let slot = sight(&knows, &bare, Standing::HeldWithoutEnd);
    for claim in [&shown, &waits] {
        match keep(&slot, Holder::InView(claim), "op", NOW, 9) {
            Some(OperatorMove::Write {
                what: OperatorWrite::Restore,
                record,
                ..
            }) => {
                assert_eq!(*record, lease);
            }
            other => panic!("{other:?}"),
        }
    }
    let gone = keep(&slot, Holder::Gone, "op", NOW, 9);
    match gone {
        Some(OperatorMove::Write { record, .. }) => {
            let ended = record.ended.expect("a note");
            assert_eq!(
                ended.token,
                grant.token.get(),
                "the next token stays above it"
            );
        }
        other => panic!("{other:?}"),
    }
    // A later grant was seen: the token in status is not that of this one.
    let later = SlotSight {
        remembered: grant.token.get() + 1,
        ..slot.clone()
    };
    assert_eq!(
        end_of(keep(&later, Holder::InView(&waits), "op", NOW, 9)).1,
        EndKind::Released
    );
    let todo = keep(&later, Holder::InView(&shown), "op", NOW, 9);
    assert!(
        matches!(
            todo,
            Some(OperatorMove::Write {
                what: OperatorWrite::Restore,
                ..
            })
        ),
        "its claim knows its token"
    );
    let other = LockView {
        slot: Some(SlotView { token: 99, ..entry }),
        ..lock()
    };
    let other = sight(&other, &bare, Standing::HeldWithoutEnd);
    let todo = keep(&other, Holder::InView(&shown), "op", NOW, 9);
    assert_eq!(todo, Some(wait(None)), "its claim is shown as over first");
    // Else nothing would ever end it.
    let ended = keep(&later, Holder::Gone, "op", NOW, 9);
    assert_eq!(end_of(ended), (OperatorWrite::End, EndKind::Released));
}
