//! The API server: one Lease, one lock, claims, one revision that only rises.

use leasehold::engine::{ClaimRef, ClaimView, Hold, LeaseRecord, LockView, SpecRecord};

use super::part::Part;

/// What etcd keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub revision: u64,
    pub lease: Option<Part<LeaseRecord>>,
    pub lock: Part<LockView>,
    pub lock_revision: u64,
    pub claims: Vec<ClaimView>,
    uids: u32,
}

impl Server {
    /// A lock of `seconds` that no operator has opened.
    pub fn new(seconds: u32, adopts: bool) -> Self {
        let lock = LockView {
            name: "lock".to_owned(),
            uid: "lock-1".to_owned(),
            duration_seconds: seconds,
            adopts,
            ..LockView::default()
        };
        Self {
            revision: 10,
            lease: None,
            lock: Part::new(lock),
            lock_revision: 10,
            claims: Vec::new(),
            uids: 0,
        }
    }

    /// A uid in the form of all uids, which tells our identities from those of other clients.
    pub fn new_uid(&mut self) -> String {
        self.uids += 1;
        format!("{:036x}", self.uids)
    }

    /// A guarded write. `Err` is 409, which says nothing about earlier attempts.
    pub fn put(&mut self, record: &LeaseRecord, uid_guarded: bool) -> Result<LeaseRecord, ()> {
        let Some(now) = &self.lease else {
            if uid_guarded {
                return Err(());
            }
            // What a real server does with a PUT that carries no uid: it makes the object.
            let uid = self.new_uid();
            return Ok(self.store(LeaseRecord {
                uid,
                ..record.clone()
            }));
        };
        if now.resource_version != record.resource_version || (uid_guarded && now.uid != record.uid)
        {
            return Err(());
        }
        if **now == *record {
            return Ok(record.clone());
        }
        Ok(self.store(record.clone()))
    }

    /// A create. `Err` is 409: there is one.
    pub fn create(&mut self, spec: &SpecRecord) -> Result<LeaseRecord, ()> {
        if self.lease.is_some() {
            return Err(());
        }
        let uid = self.new_uid();
        let adopts = self.lock.adopts;
        let name = self.lock.name.clone();
        Ok(self.store(LeaseRecord {
            uid,
            resource_version: 0,
            deleting: false,
            lock_label: (!adopts).then(|| name.clone()),
            shared_with: adopts.then(|| name.clone()),
            owners: if adopts {
                Vec::new()
            } else {
                vec![(name, self.lock.uid.clone())]
            },
            spec: spec.clone(),
            grant: leasehold::engine::GrantNote::Absent,
            next: None,
            ended: None,
            holder_note: None,
        }))
    }

    /// An unguarded change by hand; also how a guarded one is stored.
    pub fn store(&mut self, mut record: LeaseRecord) -> LeaseRecord {
        self.revision += 1;
        record.resource_version = self.revision;
        self.lease = Some(Part::new(record.clone()));
        record
    }

    /// A deletion.
    pub fn delete_lease(&mut self) {
        self.revision += 1;
        self.lease = None;
    }

    /// A write of the lock's status, guarded by the revision that the writer read.
    pub fn put_lock(&mut self, lock: LockView, read: u64) -> Result<(), ()> {
        if self.lock_revision != read {
            return Err(());
        }
        self.edit_lock(lock);
        Ok(())
    }

    /// A change of the lock by hand.
    pub fn edit_lock(&mut self, lock: LockView) {
        self.revision += 1;
        self.lock_revision = self.revision;
        self.lock = Part::new(lock);
    }

    /// A new Heartbeat claim.
    pub fn make_claim(&mut self, claimant: usize) -> ClaimRef {
        self.revision += 1;
        let uid = self.new_uid();
        let claim = ClaimRef {
            name: format!("c{claimant}"),
            uid,
        };
        self.claims.push(ClaimView {
            claim: claim.clone(),
            ticket: self.revision,
            priority: 0,
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

    pub fn has_claim(&self, claim: &ClaimRef) -> bool {
        self.claims.iter().any(|other| other.claim == *claim)
    }
}
