//! The mirror never breaks the API server's transition rules, whatever becomes of the Lease.

use proptest::prelude::*;

use super::*;
use crate::api::{DistributedLockSpec, EndReason, FencingToken, SlotStatus};
use crate::controller::index::Slot;
use crate::controller::news::note_news;
use crate::engine::change::{self, NextChange, Requester};
use crate::engine::{EndKind, GrantNote, SpecRecord, Standing};
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

struct World {
    lock: DistributedLock,
    lease: LeaseRecord,
    slot: Slot,
    revision: u64,
    uids: u32,
    people: u32,
    saved: Vec<LeaseRecord>,
}

impl World {
    fn new() -> Self {
        let mut lock = DistributedLock::new("nightly", DistributedLockSpec::default());
        lock.metadata.uid = Some("lock".into());
        lock.metadata.generation = Some(1);
        let lease = LeaseRecord {
            uid: "u0".into(),
            resource_version: 10,
            deleting: false,
            lock_label: Some("nightly".into()),
            shared_with: None,
            owners: vec![],
            spec: SpecRecord::default(),
            grant: GrantNote::Absent,
            next: None,
            ended: None,
            holder_note: None,
        };
        let mut world = Self {
            lock,
            lease,
            slot: Slot::default(),
            revision: 10,
            uids: 0,
            people: 0,
            saved: vec![],
        };
        world.lock.status = Some(world.look(true));
        world
    }

    fn look(&self, open: bool) -> DistributedLockStatus {
        mirror(&Sight {
            lock: &self.lock,
            slots: vec![SlotSight {
                view: lock_view(&self.lock, 0, false),
                lease: Some(&self.lease),
                trouble: None,
                open,
                loss: Loss::None,
                ends: self.slot.ends.iter().cloned().collect(),
            }],
            queue: &Queue::default(),
            wall: 1_000_000,
        })
    }

    fn put(&mut self, mut lease: LeaseRecord) {
        self.revision += 1;
        lease.resource_version = self.revision;
        note_news(&mut self.slot, Some(&self.lease), Some(&lease), 2_000_000);
        self.saved.push(lease.clone());
        self.lease = lease;
    }

    fn step(&mut self, step: Step) {
        let lease = self.lease.clone();
        let view = lock_view(&self.lock, 0, false);
        match step {
            Step::Take => {
                self.people += 1;
                let who = Requester {
                    identity: format!("pod/00000000-0000-4000-8000-{:012}", self.people),
                    hold: Hold::Heartbeat,
                    pod: None,
                    note: None,
                    remembered: 0,
                };
                let standing = if lease.is_free() {
                    Standing::Free
                } else {
                    Standing::Expired
                };
                if let Ok(take) = change::take(&view, &lease, standing, &who, NextChange::Keep, 3) {
                    self.put(take.record);
                }
            }
            Step::Renew => {
                let mut renewed = lease;
                renewed.spec.renew_time = Some(renewed.spec.renew_time.unwrap_or(0) + 1);
                self.put(renewed);
            }
            Step::Release if !lease.is_free() => {
                self.put(change::end(&lease, EndKind::Released, "holder", "", 3));
            }
            Step::Expire if !lease.is_free() => {
                self.put(change::end(&lease, EndKind::Expired, "operator", "", 3));
            }
            Step::Revoke if !lease.is_free() => {
                self.put(change::end(&lease, EndKind::Revoked, "operator", "", 3));
            }
            Step::ForeignTake => {
                let mut taken = lease;
                taken.spec.holder = format!("elector_{}", self.people % 3);
                taken.spec.transitions += i64::from(self.people % 2);
                self.people += 1;
                self.put(taken);
            }
            Step::Stamp
                if !lease.is_free() && !lease.is_missing() && lease.current_grant().is_none() =>
            {
                if let Some(stamped) = change::stamp(&view, &lease, 0) {
                    self.put(stamped);
                }
            }
            Step::DropAnnotation => {
                let mut dropped = lease;
                dropped.grant = GrantNote::Absent;
                self.put(dropped);
            }
            Step::PutOldAnnotationBack => {
                if let Some(old) = self.saved.first().cloned() {
                    let mut edited = lease;
                    edited.grant = old.grant;
                    self.put(edited);
                }
            }
            Step::DeleteAndMakeAgain => {
                self.uids += 1;
                let mut made = World::new().lease;
                made.uid = format!("u{}", self.uids);
                made.spec = change::missing(&view, 3);
                self.put(made);
            }
            Step::RestoreOld => {
                if let Some(mut old) = self.saved.first().cloned() {
                    self.uids += 1;
                    old.uid = format!("u{}", self.uids);
                    self.put(old);
                }
            }
            Step::Mirror => {
                let before = self.lock.status.clone().unwrap_or_default();
                let after = self.look(false);
                check(&before, &after);
                self.lock.status = Some(after.clone());
                self.slot.ends.clear();
                assert_eq!(self.look(false), after, "a second look changes nothing");
                let mut renewed = self.lease.clone();
                renewed.spec.renew_time = Some(renewed.spec.renew_time.unwrap_or(0) + 1);
                renewed.resource_version += u64::from(!renewed.is_missing());
                let kept = std::mem::replace(&mut self.lease, renewed);
                assert_eq!(self.look(false), after, "a renewal changes nothing");
                self.lease = kept;
            }
            Step::Restart => self.slot = Slot::default(),
            Step::Release | Step::Expire | Step::Revoke | Step::Stamp => {}
        }
    }
}

/// The transition rules of `api::rules`, and what history promises.
fn check(before: &DistributedLockStatus, after: &DistributedLockStatus) {
    assert!(after.fencing_token >= before.fencing_token);
    assert!(after.longest_lease_duration_seconds >= before.longest_lease_duration_seconds);
    let entry = |status: &DistributedLockStatus| -> SlotStatus { status.slots[0].clone() };
    let (old, new) = (entry(before), entry(after));
    assert!(new.fencing_token >= old.fencing_token, "{old:?} -> {new:?}");
    assert!(
        new.fencing_token > old.fencing_token
            || new.holder_identity == old.holder_identity
            || new.holder_identity.is_empty(),
        "{old:?} -> {new:?}"
    );
    assert!(new.fencing_token.is_some() || new.is_free());
    let tokens: Vec<_> = after.history.iter().map(|end| end.fencing_token).collect();
    assert!(tokens.windows(2).all(|two| two[0] > two[1]), "{tokens:?}");
    assert!(after.history.len() <= 10);
    // Whoever was shown and is not shown any more is in history.
    if !old.is_free() && old.fencing_token != new.fencing_token {
        assert!(
            tokens.contains(&old.fencing_token),
            "{old:?} is missing in {tokens:?}"
        );
    }
}

proptest! {
    #[test]
    fn no_history_of_a_lease_breaks_the_transition_rules(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
    }
}

#[test]
fn a_foreign_holder_is_counted_but_shown_only_once_it_has_a_token() {
    let mut world = World::new();
    world.step(Step::ForeignTake);
    let status = world.look(false);
    assert_eq!(status.phase, Some(LockPhase::Held));
    assert_eq!(status.holder.as_deref(), Some("elector_0"));
    assert!(status.slots[0].is_free());
    world.step(Step::Stamp);
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
    assert_eq!(world.look(true).slots.len(), 1);
}

#[test]
fn a_grant_that_came_and_went_unseen_is_told_by_the_lease_it_left() {
    let mut world = World::new();
    world.step(Step::Take);
    world.step(Step::Mirror);
    world.step(Step::Release);
    world.step(Step::Take);
    world.step(Step::Release);
    world.step(Step::Restart);
    let token = world.lease.ended.as_ref().map(|ended| ended.token);
    let status = world.look(false);
    assert_eq!(status.fencing_token.map(FencingToken::get), token);
    assert_eq!(status.slots[0].fencing_token, status.fencing_token);
    assert!(status.slots[0].is_free());
    assert_eq!(status.history[0].fencing_token, status.fencing_token);
    assert_eq!(status.history[0].reason, EndReason::Released);
    assert_eq!(status.history.len(), 2);
    world.step(Step::Mirror);
}
