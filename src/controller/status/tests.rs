//! The mirror never breaks the API server's transition rules, whatever becomes of the Lease.

use proptest::prelude::*;

use super::*;
use crate::api::{DistributedLockSpec, EndReason, FencingToken, SlotStatus};
use crate::controller::index::Slot;
use crate::controller::news::note_news;
use crate::engine::change::{self, NextChange, Requester};
use crate::engine::{EndKind, GrantNote, Standing};
use crate::lease::view::lock_view;

/// Something that happens to a Lease.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take,
    Renew,
    Release,
    Expire,
    Revoke,
    ForeignTake,
    Stamp,
    DropAnnotation,
    PutOldAnnotationBack,
    DeleteAndMakeAgain,
    RestoreOld,
    /// The operator looks, with or without having seen the steps in between.
    Mirror,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Take),
        1 => Just(Step::Renew),
        2 => Just(Step::Release),
        1 => Just(Step::Expire),
        1 => Just(Step::Revoke),
        1 => Just(Step::ForeignTake),
        1 => Just(Step::Stamp),
        1 => Just(Step::DropAnnotation),
        1 => Just(Step::PutOldAnnotationBack),
        1 => Just(Step::DeleteAndMakeAgain),
        1 => Just(Step::RestoreOld),
        5 => Just(Step::Mirror),
        1 => Just(Step::Restart),
    ]
}

/// A lock of two slots: one revision counts the writes of both Leases, as in etcd.
struct World {
    lock: DistributedLock,
    leases: [LeaseRecord; 2],
    slots: [Slot; 2],
    revision: u64,
    uids: u32,
    people: u32,
    saved: [Vec<LeaseRecord>; 2],
}

impl World {
    fn new() -> Self {
        let spec = DistributedLockSpec {
            max_holders: 2,
            ..DistributedLockSpec::default()
        };
        let mut lock = DistributedLock::new("nightly", spec);
        lock.metadata.uid = Some("lock".into());
        lock.metadata.generation = Some(1);
        let lease = |slot: u64| LeaseRecord {
            uid: format!("u{slot}"),
            resource_version: 10 + slot,
            lock_label: Some("nightly".into()),
            ..LeaseRecord::default()
        };
        let mut world = Self {
            lock,
            leases: [lease(0), lease(1)],
            slots: Default::default(),
            revision: 11,
            uids: 1,
            people: 0,
            saved: Default::default(),
        };
        world.lock.status = Some(world.look(true));
        world
    }

    fn look(&self, open: bool) -> DistributedLockStatus {
        let slots = [0, 1].map(|at: usize| {
            let number = i32::try_from(at).expect("a slot");
            let ends = self.slots[at].ends.iter().cloned();
            SlotSight {
                view: lock_view(&self.lock, number, false),
                lease: Some(&self.leases[at]),
                trouble: None,
                open,
                loss: Loss::None,
                ends: ends
                    .map(|end| HistoryEntry {
                        slot: number,
                        ..end
                    })
                    .collect(),
            }
        });
        mirror(&Sight {
            lock: &self.lock,
            slots: slots.into(),
            queue: &Queue::default(),
            wall: 1_000_000,
        })
    }

    fn put(&mut self, at: usize, mut lease: LeaseRecord) {
        self.revision += 1;
        lease.resource_version = self.revision;
        let (before, slot) = (&self.leases[at], &mut self.slots[at]);
        note_news(slot, Some(before), &lease, 2_000_000);
        self.saved[at].push(lease.clone());
        self.leases[at] = lease;
    }

    fn step(&mut self, at: usize, step: Step) {
        let lease = self.leases[at].clone();
        let view = lock_view(&self.lock, i32::try_from(at).expect("a slot"), false);
        match step {
            Step::Take => {
                self.people += 1;
                let who = format!("pod/00000000-0000-4000-8000-{:012}", self.people);
                let who = Requester::heartbeat(who);
                let standing = if lease.is_free() {
                    Standing::Free
                } else {
                    Standing::Expired
                };
                if let Ok(take) = change::take(&view, &lease, standing, &who, NextChange::Keep, 3) {
                    self.put(at, take.record);
                }
            }
            Step::Renew => {
                let mut renewed = lease;
                renewed.spec.renew_time = Some(renewed.spec.renew_time.unwrap_or(0) + 1);
                self.put(at, renewed);
            }
            Step::Release if !lease.is_free() => {
                self.put(at, change::end(&lease, EndKind::Released, "holder", "", 3));
            }
            Step::Expire if !lease.is_free() => {
                self.put(at, change::end(&lease, EndKind::Expired, "operator", "", 3));
            }
            Step::Revoke if !lease.is_free() => {
                self.put(at, change::end(&lease, EndKind::Revoked, "operator", "", 3));
            }
            Step::ForeignTake => {
                let mut taken = lease;
                taken.spec.holder = format!("elector_{}", self.people % 3);
                taken.spec.transitions += i64::from(self.people % 2);
                self.people += 1;
                self.put(at, taken);
            }
            Step::Stamp
                if !lease.is_free() && !lease.is_missing() && lease.current_grant().is_none() =>
            {
                if let Some(stamped) = change::stamp(&view, &lease, 0) {
                    self.put(at, stamped);
                }
            }
            Step::DropAnnotation => {
                let mut dropped = lease;
                dropped.grant = GrantNote::Absent;
                self.put(at, dropped);
            }
            Step::PutOldAnnotationBack => {
                if let Some(old) = self.saved[at].first().cloned() {
                    let mut edited = lease;
                    edited.grant = old.grant;
                    self.put(at, edited);
                }
            }
            Step::DeleteAndMakeAgain => {
                self.uids += 1;
                let mut made = World::new().leases[at].clone();
                made.uid = format!("u{}", self.uids);
                made.spec = change::missing(&view, 3);
                self.put(at, made);
            }
            Step::RestoreOld => {
                if let Some(mut old) = self.saved[at].first().cloned() {
                    self.uids += 1;
                    old.uid = format!("u{}", self.uids);
                    self.put(at, old);
                }
            }
            Step::Mirror => {
                let before = self.lock.status.clone().unwrap_or_default();
                let after = self.look(false);
                check(&before, &after);
                self.lock.status = Some(after.clone());
                for slot in &mut self.slots {
                    slot.ends.clear();
                }
                assert_eq!(self.look(false), after, "a second look changes nothing");
                let mut renewed = lease;
                renewed.spec.renew_time = Some(renewed.spec.renew_time.unwrap_or(0) + 1);
                renewed.resource_version += u64::from(!renewed.is_missing());
                let kept = std::mem::replace(&mut self.leases[at], renewed);
                assert_eq!(self.look(false), after, "a renewal changes nothing");
                self.leases[at] = kept;
            }
            Step::Restart => self.slots = Default::default(),
            Step::Release | Step::Expire | Step::Revoke | Step::Stamp => {}
        }
    }
}

/// The transition rules of `api::rules`, and what history promises.
fn check(before: &DistributedLockStatus, after: &DistributedLockStatus) {
    assert!(after.fencing_token >= before.fencing_token);
    assert!(after.longest_lease_duration_seconds >= before.longest_lease_duration_seconds);
    assert!(after.history.len() <= 10);
    for at in 0..2 {
        let (old, new): (&SlotStatus, &SlotStatus) = (&before.slots[at], &after.slots[at]);
        assert_eq!(old.slot, new.slot);
        assert!(new.fencing_token >= old.fencing_token, "{old:?} -> {new:?}");
        assert!(
            new.fencing_token > old.fencing_token
                || new.holder_identity == old.holder_identity
                || new.holder_identity.is_empty(),
            "{old:?} -> {new:?}"
        );
        assert!(new.fencing_token.is_some() || new.is_free());
        let of_slot = after.history.iter().filter(|end| end.slot == new.slot);
        let tokens: Vec<_> = of_slot.map(|end| end.fencing_token).collect();
        assert!(tokens.windows(2).all(|two| two[0] > two[1]), "{tokens:?}");
        // Whoever was shown and is not shown any more is in history.
        if !old.is_free() && old.fencing_token != new.fencing_token {
            assert!(
                tokens.contains(&old.fencing_token),
                "{old:?} is missing in {tokens:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn no_history_of_two_leases_breaks_the_transition_rules(
        steps in prop::collection::vec((0_usize..2, step()), 1..90),
    ) {
        let mut world = World::new();
        for (at, step) in steps {
            world.step(at, step);
        }
    }
}

#[test]
fn a_foreign_holder_is_counted_but_shown_only_once_it_has_a_token() {
    let mut world = World::new();
    world.step(0, Step::ForeignTake);
    let status = world.look(false);
    assert_eq!(status.phase, Some(LockPhase::Held));
    assert_eq!(status.holder.as_deref(), Some("elector_0"));
    assert!(status.slots[0].is_free());
    world.step(0, Step::Stamp);
    let status = world.look(false);
    assert_eq!(status.slots[0].holder_identity, "elector_0");
    assert_eq!(status.slots[0].hold, None);
}

#[test]
fn a_lock_that_is_not_open_gets_no_entry_from_the_mirror() {
    let mut world = World::new();
    world.lock.status = None;
    let status = world.look(false);
    assert_eq!(status.slots, []);
    assert_eq!(status.longest_lease_duration_seconds, None);
    assert_eq!(world.look(true).slots.len(), 2);
}

#[test]
fn a_grant_that_came_and_went_unseen_is_told_by_the_lease_it_left() {
    let mut world = World::new();
    world.step(0, Step::Take);
    world.step(0, Step::Mirror);
    world.step(0, Step::Release);
    world.step(0, Step::Take);
    world.step(0, Step::Release);
    world.step(0, Step::Restart);
    let token = world.leases[0].ended.as_ref().map(|ended| ended.token);
    let status = world.look(false);
    assert_eq!(status.fencing_token.map(FencingToken::get), token);
    assert_eq!(status.slots[0].fencing_token, status.fencing_token);
    assert!(status.slots[0].is_free());
    assert_eq!(status.history[0].fencing_token, status.fencing_token);
    assert_eq!(status.history[0].reason, EndReason::Released);
    assert_eq!(status.history.len(), 2);
    world.step(0, Step::Mirror);
}

#[test]
fn an_old_copy_of_the_lease_does_not_keep_an_ended_grant_in_view() {
    let mut world = World::new();
    for step in [Step::Take, Step::Mirror, Step::Release, Step::Restart] {
        world.step(0, step);
    }
    // A second grant, seen and not mirrored; then the Lease as it was under the first one.
    for step in [Step::Take, Step::RestoreOld, Step::Mirror] {
        world.step(0, step);
    }
    let status = world.look(false);
    assert!(status.slots[0].is_free());
    assert_eq!(status.history.len(), 2, "{:?}", status.history);
    world.step(0, Step::Take);
    world.step(0, Step::Mirror);
}

#[test]
fn a_semaphore_counts_its_holders_and_names_the_first() {
    let mut world = World::new();
    world.step(1, Step::Take);
    let status = world.look(false);
    assert_eq!(status.held.as_deref(), Some("1/2"));
    assert_eq!(status.holder.as_deref(), Some("pod"));
    assert_eq!(status.fencing_token, status.slots[1].fencing_token);
    world.step(0, Step::DeleteAndMakeAgain);
    let status = world.look(false);
    assert_eq!(status.held.as_deref(), Some("2/2"));
    assert_eq!(
        status.holder.as_deref(),
        Some("pod +1"),
        "a person before a missing"
    );
    // A slot above maxHolders still counts while it is held.
    world.lock.spec.max_holders = 1;
    assert_eq!(world.look(false).held.as_deref(), Some("2/1"));
}
