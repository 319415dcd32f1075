//! Single rules of the engine, and the engine against a dumb twin over random histories.

use std::time::Duration;

use leasehold::engine::{
    Answer, ClaimRef, ClaimView, Claimant, EndKind, Ended, Grant, GrantId, GrantNote, Held, Hold,
    LeaseRecord, LockView, Move, NextChange, Observation, Patience, PodRef, Queue, QueueOrder,
    Refusal, Requester, Seen, Standing, Take, Terms, TermsError, Waiting, change, standing, token,
};
use proptest::prelude::*;

use super::engine_words::{claim, claim_view, claimant, identity, lock, new_lease, ranked};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn terms_keep_their_order() {
    for seconds in [1, 2, 5, 15, 30, 3600] {
        for grace in [Duration::ZERO, secs(seconds) / 10, secs(seconds) / 5] {
            let terms = Terms::new(secs(seconds), grace).unwrap();
            assert!(terms.renew_period(1.0) + terms.retry_period() < terms.renew_deadline());
            assert!(terms.renew_deadline() + terms.kill_grace() == terms.work_deadline());
            assert!(terms.work_deadline() < terms.duration());
            assert!(terms.slow_beat() >= secs(5) && terms.slow_beat() <= secs(30));
        }
    }
    assert_eq!(
        Terms::new(Duration::from_millis(999), Duration::ZERO),
        Err(TermsError::TooShort)
    );
    assert!(matches!(
        Terms::new(secs(15), secs(4)),
        Err(TermsError::GraceTooLong { most, .. }) if most == secs(3)
    ));
    assert_eq!(Terms::fitting(15, secs(60)).kill_grace(), secs(3));
}

#[test]
fn a_queue_goes_round_and_leaves_out_the_dead_and_the_holder() {
    let mut claims = vec![
        claim_view("c", 30),
        claim_view("a", 10),
        claim_view("b", 20),
        claim_view("gone", 5),
    ];
    claims[3].waiting = false;
    let mut held = new_lease(1);
    let queue = Queue::new(claims.clone(), held.holder_uid(), QueueOrder::Fifo);
    let names: Vec<_> = queue
        .claims()
        .iter()
        .map(|c| c.claim.name.as_str())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(queue.after(&claim("c")), Some(&claim("a")));
    assert_eq!(queue.after(&claim("unknown")), Some(&claim("a")));
    assert_eq!(queue.places_behind(&claim("b"), &claim("a")), Some(2));
    assert_eq!(queue.place(Some(&claim("b")), &claim("b")), Some(1));
    assert_eq!(queue.place(None, &claim("c")), Some(3));
    assert_eq!(queue.places_behind(&claim("b"), &claim("unknown")), None);
    claims[1].dead = true;
    let queue = Queue::new(claims.clone(), held.holder_uid(), QueueOrder::Fifo);
    assert_eq!(queue.first(), Some(&claim("b")));
    held.spec.holder = identity("b");
    let queue = Queue::new(claims, held.holder_uid(), QueueOrder::Fifo);
    assert_eq!(queue.first(), Some(&claim("c")));
    assert_eq!(queue.after(&claim("c")), None, "never oneself");
}

#[test]
fn where_priority_counts_the_higher_claim_goes_first_and_equal_ones_in_the_order_of_coming() {
    let claims = [
        ranked("low", 10, -5),
        ranked("early", 20, 3),
        ranked("late", 30, 3),
        ranked("high", 40, 9),
    ];
    let queue = Queue::new(claims.clone(), [], QueueOrder::Priority);
    let order: Vec<_> = queue
        .claims()
        .iter()
        .map(|c| c.claim.name.as_str())
        .collect();
    assert_eq!(order, ["high", "early", "late", "low"]);
    assert!(queue.outranks(&claim("high"), &claim("early")));
    assert!(!queue.outranks(&claim("early"), &claim("late")), "equal");
    assert!(!queue.outranks(&claim("early"), &claim("high")));
    assert!(
        !queue.outranks(&claim("high"), &claim("unknown")),
        "who knows"
    );
    let queue = Queue::new(claims, [], QueueOrder::Fifo);
    assert_eq!(queue.first(), Some(&claim("low")));
    assert!(
        !queue.outranks(&claim("high"), &claim("low")),
        "priority does not count"
    );
}

#[test]
fn an_observation_restarts_at_changes_of_spec_and_at_lists_that_may_have_missed_some() {
    let first = new_lease(1);
    let mut seen = Observation::first(&first, secs(0));
    let annotated = change::name(
        &LeaseRecord {
            resource_version: 2,
            ..first.clone()
        },
        Some(claim("a")),
    );
    seen.note(&annotated, Seen::Watched, secs(1));
    assert_eq!(seen.since(), secs(0));
    assert!(seen.is_of(&annotated) && !seen.is_of(&first));
    seen.note(&annotated, Seen::Read, secs(2));
    assert_eq!(seen.since(), secs(0), "the same resourceVersion");
    let again = LeaseRecord {
        resource_version: 3,
        ..annotated.clone()
    };
    seen.note(&again, Seen::Read, secs(3));
    assert_eq!(seen.since(), secs(3));
    let mut renewed = LeaseRecord {
        resource_version: 4,
        ..again
    };
    renewed.spec.renew_time = Some(7);
    seen.note(&renewed, Seen::Watched, secs(4));
    assert_eq!(seen.since(), secs(4));
    let other = LeaseRecord {
        uid: "L2".to_owned(),
        ..renewed
    };
    seen.note(&other, Seen::Watched, secs(5));
    assert_eq!(seen.since(), secs(5));
}

/// A grant of the free lock, written at revision 101.
fn taken(lock: &LockView) -> Take {
    let who = Requester::heartbeat("a/1");
    let free = new_lease(100);
    change::take(lock, &free, Standing::Free, &who, NextChange::Keep, 0).unwrap()
}

#[test]
fn a_shorter_duration_moves_the_deadline_when_it_is_sent() {
    let mut lock = lock();
    let take = taken(&lock);
    let record = LeaseRecord {
        resource_version: 101,
        ..take.record
    };
    let mut held = Held::new(take.grant, record, secs(10), Duration::ZERO);
    assert_eq!(held.work_deadline(), secs(22));
    lock.duration_seconds = 5;
    let renewal = held.renewal(&lock, 0);
    held.sending(&renewal);
    assert_eq!(held.work_deadline(), secs(14), "whatever its answer");
    // Applied, its answer lost: a read supplies the resourceVersion and moves nothing.
    let applied = LeaseRecord {
        resource_version: 102,
        ..renewal
    };
    held.reread(Some(&applied), None).unwrap();
    assert_eq!(held.work_deadline(), secs(14));
    assert_eq!(held.record().resource_version, 102);
    // A 2xx that changed nothing proves nothing.
    assert!(!held.renewed(&applied, secs(13)));
    let renewal = held.renewal(&lock, 0);
    held.sending(&renewal);
    assert!(held.renewed(
        &LeaseRecord {
            resource_version: 103,
            ..renewal
        },
        secs(13)
    ));
    assert_eq!(held.work_deadline(), secs(17));
}

#[test]
fn a_take_answered_late_leaves_what_is_left_of_its_lease() {
    let lock = lock();
    let take = taken(&lock);
    let held = Held::new(take.grant, take.record, secs(0), secs(1));
    assert!(held.is_held(secs(10)));
    assert!(
        !held.is_held(secs(12)),
        "0.8 T after it was sent it may not start"
    );
    assert_eq!(held.lease_end(), secs(15));
}

fn waiting(lock: &LockView, lease: LeaseRecord, claims: Vec<ClaimView>) -> Claimant {
    let mut me = claimant(Patience::Wait);
    me.lock_read(Some(vec![lock.clone()]), secs(0));
    me.lease_seen(0, Some(lease), Seen::Read, secs(0));
    me.joined(claim("me"), identity("me"));
    me.claims_listed(claims);
    me
}

#[test]
fn a_hold_in_between_restarts_the_two_seconds() {
    let free = LeaseRecord {
        next: Some(claim("a")),
        ..new_lease(100)
    };
    let mut me = waiting(
        &lock(),
        free.clone(),
        vec![claim_view("a", 1), claim_view("me", 2)],
    );
    let turn = |until| Move::Wait {
        until: Some(secs(until)),
        why: Waiting::Turn,
    };
    assert_eq!(me.decide(secs(0), 0), turn(2));
    let mut held = LeaseRecord {
        resource_version: 101,
        ..free.clone()
    };
    held.spec.holder = "foreign".to_owned();
    me.lease_seen(0, Some(held), Seen::Watched, secs(1));
    me.lease_seen(
        0,
        Some(LeaseRecord {
            resource_version: 102,
            ..free
        }),
        Seen::Watched,
        secs(5),
    );
    assert_eq!(me.decide(secs(5), 0), turn(7));
}

#[test]
fn a_lease_that_goes_makes_the_lock_be_read() {
    let mut me = waiting(&lock(), new_lease(100), vec![claim_view("me", 2)]);
    me.lease_seen(0, None, Seen::Watched, secs(1));
    assert_eq!(me.decide(secs(1), 0), Move::ReadLease(0));
    me.lease_seen(0, None, Seen::Read, secs(1));
    assert_eq!(me.decide(secs(1), 0), Move::ReadLock);
    me.lock_read(None, secs(1));
    assert_eq!(me.decide(secs(1), 0), Move::Refuse(Refusal::NoLock));
}

#[test]
fn the_lock_is_read_again_for_each_attempt_to_replace_a_silent_holder() {
    let named = |revision, name: &str| {
        let mut record = LeaseRecord {
            next: Some(claim(name)),
            ..new_lease(revision)
        };
        record.spec.holder = "dead/9".to_owned();
        record.spec.duration_seconds = Some(15);
        record
    };
    let claims = vec![claim_view("me", 1), claim_view("b", 2)];
    let mut me = waiting(&lock(), named(100, "me"), claims.clone());
    assert_eq!(me.decide(secs(15), 0), Move::ReadLock);
    me.lock_read(Some(vec![lock()]), secs(15));
    let Move::Write(write) = me.decide(secs(15), 0) else {
        panic!("it takes");
    };
    me.sending(&write);
    // Somebody has passed over it, and it is its turn again a while later; Hold may be new by then.
    let refused = me.answered(&write, Answer::Refused, secs(15), secs(15));
    assert_eq!(refused, None);
    me.lease_seen(0, Some(named(101, "b")), Seen::Read, secs(15));
    me.lease_seen(0, Some(named(102, "me")), Seen::Watched, secs(40));
    me.claims_listed(claims);
    assert_eq!(me.decide(secs(40), 0), Move::ReadLock);
}

#[test]
fn a_withdrawn_claim_is_made_again_and_who_leaves_moves_next_first() {
    let mut held = LeaseRecord {
        next: Some(claim("me")),
        ..new_lease(100)
    };
    held.spec.holder = "other/9".to_owned();
    let mut me = waiting(&lock(), held.clone(), vec![claim_view("a", 1)]);
    assert_eq!(me.claim(), None);
    assert_eq!(me.decide(secs(0), 0), Move::MakeClaim);
    let mut me = waiting(&lock(), held, vec![claim_view("me", 1), claim_view("b", 2)]);
    me.stop();
    let Move::Write(write) = me.decide(secs(0), 0) else {
        panic!("it moves next first");
    };
    assert_eq!(write.record().next, Some(claim("b")));
}

/// What may happen to a Lease.
#[derive(Clone, Copy, Debug)]
enum Event {
    Take,
    Renew,
    Release,
    Expire,
    ForeignTake,
    ForeignRelease,
    Stamp,
    DropAnnotations,
    OldAnnotation,
    ResetTransitions,
    Delete,
    /// Other objects' writes raise the revision.
    Pass(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Take),
        4 => Just(Event::Renew),
        4 => Just(Event::Release),
        2 => Just(Event::Expire),
        2 => Just(Event::ForeignTake),
        1 => Just(Event::ForeignRelease),
        2 => Just(Event::Stamp),
        1 => Just(Event::DropAnnotations),
        1 => Just(Event::OldAnnotation),
        1 => Just(Event::ResetTransitions),
        1 => Just(Event::Delete),
        1 => any::<u8>().prop_map(Event::Pass),
    ]
}

/// The twin: what the histories must come to, in the plainest words.
#[derive(Default)]
struct Twin {
    highest: i64,
    held: Option<(GrantId, i64)>,
}

proptest! {
    #[test]
    fn tokens_rise_and_belong_to_one_grant(events in proptest::collection::vec(event(), 1..80)) {
        let lock = lock();
        let mut revision = 100_u64;
        let mut now = new_lease(revision);
        let mut twin = Twin::default();
        let mut mine: Option<Grant> = None;
        let mut old = GrantNote::Absent;
        for (wall, event) in (0_i64..).zip(events) {
            let before = now.clone();
            let present = mine.clone().filter(|grant| now.grant_id().is(grant));
            let record = match event {
                Event::Take | Event::Expire => {
                    let standing = if now.is_free() { Standing::Free } else { Standing::Expired };
                    if matches!(event, Event::Take) && standing != Standing::Free {
                        continue;
                    }
                    let who = Requester::heartbeat(format!("me/{wall}"));
                    let take = change::take(&lock, &now, standing, &who, NextChange::Keep, wall).unwrap();
                    prop_assert_eq!(take.record.spec.transitions, before.spec.transitions + 1);
                    prop_assert!(take.grant.token.get() > twin.highest);
                    prop_assert!(take.grant.token.get() > i64::try_from(before.resource_version).unwrap());
                    prop_assert!(take.grant.token.get() <= i64::try_from(revision + 1).unwrap());
                    twin.highest = take.grant.token.get();
                    twin.held = Some((take.record.grant_id(), twin.highest));
                    mine = Some(take.grant);
                    take.record
                }
                Event::Renew => {
                    let Some(grant) = &present else { continue };
                    let record = change::renew(&lock, &now, grant, wall);
                    prop_assert_ne!(&record.spec, &now.spec);
                    prop_assert_eq!(record.current_grant(), Some(grant));
                    record
                }
                Event::Release => {
                    let Some(grant) = &present else { continue };
                    let record = change::release(&now, grant, "done", wall);
                    let (id, token) = twin.held.clone().unwrap();
                    let ended = record.end_of(&id, grant.token).unwrap();
                    prop_assert_eq!((ended.kind, ended.token), (EndKind::Released, token));
                    prop_assert!(record.is_free());
                    record
                }
                Event::ForeignTake => {
                    let mut record = now.clone();
                    record.spec.holder = format!("host_{wall}");
                    record.spec.transitions += 1;
                    record
                }
                Event::ForeignRelease => {
                    let mut record = now.clone();
                    record.spec.holder.clear();
                    record
                }
                Event::Stamp => {
                    if now.is_free() || now.current_grant().is_some() || present.is_some() {
                        continue;
                    }
                    let record = change::stamp(&lock, &now, 0).unwrap();
                    prop_assert_eq!(&record.spec, &now.spec);
                    let token = record.current_token().unwrap().get();
                    prop_assert!(token > twin.highest);
                    twin.highest = token;
                    record
                }
                Event::DropAnnotations => LeaseRecord {
                    grant: GrantNote::Absent,
                    next: None,
                    ended: None,
                    ..now.clone()
                },
                Event::OldAnnotation => LeaseRecord { grant: old.clone(), ..now.clone() },
                Event::ResetTransitions => {
                    let mut record = now.clone();
                    record.spec.transitions = 0;
                    record
                }
                Event::Delete => {
                    let missing = change::missing(&lock, wall);
                    LeaseRecord { uid: format!("L{wall}"), spec: missing, ..new_lease(0) }
                }
                Event::Pass(by) => {
                    revision += u64::from(by);
                    continue;
                }
            };
            if let GrantNote::V1(_) = &before.grant {
                old = before.grant.clone();
            }
            revision += 1;
            now = LeaseRecord { resource_version: revision, ..record };
            // The grant that is there is the one that was given there, or none.
            if let (Some(grant), Some((id, token))) = (now.current_grant(), &twin.held)
                && now.grant_id() == *id
            {
                prop_assert_eq!(grant.token.get(), *token);
            }
        }
    }

    #[test]
    fn annotations_of_any_text_are_read_without_harm(text in ".{0,80}", parts in proptest::collection::vec("[a-z0-9/;+-]{0,12}", 0..9)) {
        for text in [text, format!("v1;{}", parts.join(";"))] {
            let note = GrantNote::parse(Some(&text));
            if let GrantNote::V1(grant) = &note {
                let again = GrantNote::parse(Some(&grant.to_string()));
                prop_assert_eq!(&again, &note);
            } else {
                prop_assert_eq!(note.text(), Some(text.clone()));
            }
            if let Some(ended) = Ended::parse(&text) {
                prop_assert_eq!(Ended::parse(&ended.to_string()), Some(ended));
            }
            if let Some(claim) = ClaimRef::parse(&text) {
                prop_assert_eq!(claim.to_string(), text.clone());
            }
            let mut lease = new_lease(7);
            lease.grant = note;
            lease.spec.holder = text;
            let seen = Observation::first(&lease, secs(0));
            let _ = standing::standing(&lock(), &lease, &seen, secs(u64::MAX));
            prop_assert!(token::next_token(&lock(), &lease, 0).is_some());
            let _ = (lease.last_token(), lease.has_absurd_token(), lease.holder_uid());
        }
    }

    #[test]
    fn a_grant_reads_as_it_was_written(transitions in 0_i64..=i64::from(i32::MAX), number in 1_i64..1 << 53, pod in proptest::option::of("[a-z0-9-]{1,20}"), holder in "[^\u{0}]{1,40}") {
        let grant = Grant {
            uid: "8a1d".to_owned(),
            transitions,
            token: leasehold::api::FencingToken::new(number).unwrap(),
            hold: Hold::Pod,
            pod: pod.map(|name| PodRef { uid: format!("{name}-uid"), name }),
            holder,
        };
        prop_assert_eq!(GrantNote::parse(Some(&grant.to_string())), GrantNote::V1(grant));
    }
}
