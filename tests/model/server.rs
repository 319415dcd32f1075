//! The API server: the Leases of one lock, the lock, claims, one revision that only rises.

use leasehold::engine::{ClaimRef, ClaimView, Hold, LeaseRecord, LockView, SlotView, SpecRecord};

use super::kept::Kept;
use super::part::Part;

/// The lock as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lock {
    /// What is the same for all slots.
    pub spec: LockView,
    /// The slots' entries in status.
    pub entries: Vec<Option<SlotView>>,
    /// The floors of single slots.
    pub floors: Vec<Option<i64>>,
}

impl Lock {
    /// The lock, as a slot sees it.
    pub fn view(&self, slot: u32) -> LockView {
        let at = slot as usize;
        let floor = self.floors.get(at).copied().flatten();
        LockView {
            number: slot,
            slot: self.entries.get(at).cloned().flatten(),
            min_token: self.spec.min_token.max(floor),
            ..self.spec.clone()
        }
    }

    /// One view a slot that may be taken.
    pub fn views(&self) -> Vec<LockView> {
        (0..self.spec.max_holders)
            .map(|slot| self.view(slot))
            .collect()
    }
}

/// What etcd keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub revision: u64,
    /// By slot.
    pub leases: Vec<Option<Part<LeaseRecord>>>,
    pub lock: Part<Lock>,
    pub lock_revision: u64,
    /// Heartbeat claims.
    pub claims: Vec<ClaimView>,
    /// Fixed and Pod claims.
    pub kept: Vec<Part<Kept>>,
    /// Whether the Pod of Pod claims lives.
    pub pod_lives: bool,
    uids: u32,
}

impl Server {
    /// A lock of `seconds` and `slots` that no operator has opened.
    pub fn new(seconds: u32, slots: u32, adopts: bool) -> Self {
        let spec = LockView {
            name: "lock".to_owned(),
            uid: "lock-1".to_owned(),
            max_holders: slots,
            duration_seconds: seconds,
            adopts,
            ..LockView::default()
        };
        let lock = Lock {
            spec,
            entries: vec![None; slots as usize],
            floors: vec![None; slots as usize],
        };
        Self {
            revision: 10,
            leases: vec![None; slots as usize],
            lock: Part::new(lock),
            lock_revision: 10,
            claims: Vec::new(),
            kept: Vec::new(),
            pod_lives: true,
            uids: 0,
        }
    }

    /// The slots that there are, those above a lowered limit too.
    pub fn slots(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.leases.len()).unwrap_or(0)
    }

    pub fn lease(&self, slot: u32) -> Option<&LeaseRecord> {
        self.leases[slot as usize].as_deref()
    }

    /// The same, to be passed on.
    pub fn shared(&self, slot: u32) -> Option<Part<LeaseRecord>> {
        self.leases[slot as usize].clone()
    }

    /// Every slot's Lease that there is.
    pub fn all(&self) -> impl Iterator<Item = &Part<LeaseRecord>> {
        self.leases.iter().flatten()
    }

    /// A uid in the form of all uids, which tells our identities from those of other clients.
    pub fn new_uid(&mut self) -> String {
        self.uids += 1;
        format!("{:036x}", self.uids)
    }

    /// A guarded write. `Err` is 409, which says nothing about earlier attempts.
    pub fn put(
        &mut self,
        slot: u32,
        record: &LeaseRecord,
        uid_guarded: bool,
    ) -> Result<LeaseRecord, ()> {
        let Some(now) = self.lease(slot) else {
            if uid_guarded {
                return Err(());
            }
            // What a real server does with a PUT that carries no uid: it makes the object.
            let uid = self.new_uid();
            return Ok(self.store(
                slot,
                LeaseRecord {
                    uid,
                    ..record.clone()
                },
            ));
        };
        if now.resource_version != record.resource_version || (uid_guarded && now.uid != record.uid)
        {
            return Err(());
        }
        if *now == *record {
            return Ok(record.clone());
        }
        Ok(self.store(slot, record.clone()))
    }

    /// A create. `Err` is 409: there is one.
    pub fn create(&mut self, slot: u32, spec: &SpecRecord) -> Result<LeaseRecord, ()> {
        if self.lease(slot).is_some() {
            return Err(());
        }
        let uid = self.new_uid();
        let lock = &self.lock.spec;
        let (adopts, name) = (lock.adopts, lock.name.clone());
        let owners = if adopts {
            Vec::new()
        } else {
            vec![(name.clone(), lock.uid.clone())]
        };
        let made = LeaseRecord {
            uid,
            lock_label: (!adopts).then(|| name.clone()),
            shared_with: adopts.then_some(name),
            owners,
            spec: spec.clone(),
            ..LeaseRecord::default()
        };
        Ok(self.store(slot, made))
    }

    /// An unguarded change by hand; also how a guarded one is stored.
    pub fn store(&mut self, slot: u32, mut record: LeaseRecord) -> LeaseRecord {
        self.revision += 1;
        record.resource_version = self.revision;
        self.leases[slot as usize] = Some(Part::new(record.clone()));
        record
    }

    /// A deletion.
    pub fn delete_lease(&mut self, slot: u32) {
        self.revision += 1;
        self.leases[slot as usize] = None;
    }

    /// A write of the lock's status, guarded by the revision that the writer read.
    pub fn put_lock(&mut self, lock: Lock, read: u64) -> Result<(), ()> {
        if self.lock_revision != read {
            return Err(());
        }
        self.edit_lock(lock);
        Ok(())
    }

    /// A change of the lock by hand.
    pub fn edit_lock(&mut self, lock: Lock) {
        self.revision += 1;
        self.lock_revision = self.revision;
        self.lock = Part::new(lock);
    }

    /// A change of the lock's spec by hand.
    pub fn edit_spec(&mut self, edit: impl FnOnce(&mut LockView)) {
        let mut lock = (*self.lock).clone();
        edit(&mut lock.spec);
        self.edit_lock(lock);
    }

    /// A new Heartbeat claim.
    pub fn make_claim(&mut self, claimant: usize, priority: i32) -> ClaimRef {
        self.revision += 1;
        let uid = self.new_uid();
        let claim = ClaimRef {
            name: format!("c{claimant}"),
            uid,
        };
        self.claims.push(ClaimView {
            claim: claim.clone(),
            ticket: self.revision,
            priority,
            hold: Hold::Heartbeat,
            waiting: true,
            dead: false,
        });
        claim
    }

    pub fn delete_claim(&mut self, claim: &ClaimRef) {
        let before = self.claims.len();
        self.claims.retain(|other| other.claim != *claim);
        if self.claims.len() != before {
            self.revision += 1;
        }
    }

    /// Whether a claim is there and waits.
    pub fn has_claim(&self, claim: &ClaimRef) -> bool {
        let kept = self.kept(&claim.uid);
        self.claims.iter().any(|other| other.claim == *claim)
            || kept.is_some_and(|kept| kept.waits())
    }

    /// The claim that `next` names, while it counts: it is there, and holds nothing.
    pub fn turn(&self) -> Option<&ClaimRef> {
        let next = self.lease(0)?.next.as_ref()?;
        let mut leases = self.leases.iter().flatten();
        let holds = leases.any(|lease| lease.holder_uid() == Some(&next.uid));
        (self.has_claim(next) && !holds).then_some(next)
    }
}
