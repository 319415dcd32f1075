//! The steps that read and write: each tells the claimant what came of it.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::{Ending, Seeker, Step};
use crate::api::names::STRICT_MODE_REFUSAL;
use crate::client::calls::{backoff, try_limit};
use crate::client::claims::ClaimStore;
use crate::client::error::AcquireError;
use crate::client::guard::Guard;
use crate::client::identity::{identity, random_uid};
use crate::client::keep::Had;
use crate::client::renew::Renewer;
use crate::client::watch::LeaseWatch;
use crate::client::{Listener, Progress};
use crate::engine::{ClaimRef, Held, LockView, PodRef, Seen, Served, Write};
use crate::lease::store::{Access, CLAIMS, LEASES, LOCKS};
use crate::lease::view::lock_view;
use crate::lease::{FoundLease, LeaseStore, Put, StoreError};

impl Seeker {
    pub(super) async fn read_lock(&mut self) -> Step {
        let access = Access {
            verb: "get",
            resource: LOCKS,
            name: self.request.name.clone(),
            namespace: self.request.locks.namespace.clone(),
        };
        let limit = self.call_limit();
        // The lock may change while the answer is on its way.
        let asked = self.mono();
        let lock = match tokio::time::timeout(limit, self.locks.get_opt(&self.request.name)).await {
            Err(_) => return self.trouble(StoreError::timed_out(access, limit)),
            // A server that does not know the resource at all says so in a page, not in an object.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => None,
            Ok(Err(error)) => return self.trouble(StoreError::of(access, &error)),
            Ok(Ok(lock)) => lock,
        };
        let Some(lock) = lock else {
            self.fine(("get", LOCKS));
            if self.ending.is_some() {
                // What is open is not settled by a take any more.
                self.claimant.lock_read(None, asked);
                return Step::Next;
            }
            return self.without_lock();
        };
        self.no_lock_said = None;
        match lock.0 {
            Err(error) => self.trouble(StoreError::unanswered(
                access,
                format!("it cannot be decoded: {}", error.error),
            )),
            Ok(lock) => {
                self.fine(("get", LOCKS));
                let views: Vec<_> = (0..lock.spec.effective_max_holders())
                    .map(|slot| lock_view(&lock, slot, false))
                    .collect();
                let fits = self.request.check_grace(&views[0]);
                if let (Err(error), None) = (fits, &self.ending) {
                    return Step::Over(error);
                }
                self.lease_name = Some(lock.lease_name());
                self.claimant.lock_read(Some(views), asked);
                Step::Next
            }
        }
    }

    pub(super) async fn make_claim(&mut self) -> Step {
        // The same name until it is known what came of it: a create that was not answered may have been applied.
        let name = self
            .making
            .get_or_insert_with(|| claim_name(&self.request.name))
            .clone();
        let made = self
            .claims
            .make(
                &name,
                &self.claimant_name,
                self.request.priority,
                self.owner(),
                self.call_limit(),
            )
            .await;
        match made {
            Ok(claim) => {
                self.fine(("create", CLAIMS));
                self.join(claim);
                Step::Next
            }
            Err(error) => {
                if !matches!(error, StoreError::Unreachable { .. }) {
                    self.making = None;
                }
                self.trouble(error)
            }
        }
    }

    /// The Pod that a claim goes with. Not one of another namespace: the garbage collector finds no such owner, and would
    /// take the claim away at once.
    fn owner(&self) -> Option<&PodRef> {
        let home = self.request.pod_namespace.as_ref();
        let is_home = home == Some(&self.request.locks.namespace);
        self.request.pod.as_ref().filter(|_| is_home)
    }

    pub(super) fn join(&mut self, claim: ClaimRef) {
        self.making = None;
        let identity = identity(&self.claimant_name, &claim.uid);
        self.claimant.joined(claim, identity);
    }

    /// Leaving: a claim whose creation was not answered is looked for, so that it does not stay behind.
    pub(super) async fn find_claim(&mut self, name: &str) -> Step {
        match self.claims.find(name, self.call_limit()).await {
            Ok(Some(claim)) => self.join(claim),
            Ok(None) => self.making = None,
            Err(error) => return self.trouble(error),
        }
        Step::Next
    }

    pub(super) async fn write(&mut self, write: Write) -> Step {
        let slot = write.slot();
        let replaces = |found: &&FoundLease| {
            found.record.resource_version == write.record().resource_version
                && found.record.uid == write.record().uid
        };
        let Some(found) = self.found.get(&slot).filter(replaces).cloned() else {
            // The object at hand is not the one that the write replaces: read it again.
            return self.read_lease(slot).await;
        };
        let name = self.lease_name(slot);
        self.claimant.sending(&write);
        let sent = self.boot();
        // An answer that comes after the lease has ended is of no use.
        let limit = self.call_limit().min(self.lease_duration());
        let put = self.leases.put(&name, &found, write.record(), limit).await;
        let turned_down = put.is_turned_down(&found);
        let now = self.mono();
        let held = self.claimant.answered(&write, put.answer(), sent, now);
        match put {
            _ if turned_down => self.turned_down(slot, found),
            Put::Applied(applied) => {
                self.fine(("update", LEASES));
                self.found.insert(slot, *applied);
                match held {
                    Some(held) => self.granted(slot, held).await,
                    None => Step::Next,
                }
            }
            Put::Forbidden(StoreError::Forbidden { message, .. })
                if message.contains(STRICT_MODE_REFUSAL) =>
            {
                self.refusals.allowed(("update", LEASES));
                self.leave_to_operator();
                Step::Next
            }
            Put::Forbidden(error) | Put::Refused(error) | Put::Unknown(error) => {
                self.trouble(error)
            }
            // They turn a write down, see above.
            Put::Conflict | Put::Gone => Step::Next,
        }
    }

    /// A write was not refused for who sent it, but changed nothing. Mostly somebody was faster, and a look at once tells
    /// what came of that. A server that does the same to a Lease that it then shows unchanged is not to be hurried.
    fn turned_down(&mut self, slot: u32, base: FoundLease) -> Step {
        let access = ("update", LEASES);
        self.refusals.allowed(access);
        let base = (base.record.uid, base.record.resource_version);
        if self.turned_down.insert(slot, base.clone()) != Some(base) {
            self.failures.succeeded(access);
            return Step::Next;
        }
        let access = Access {
            verb: "update",
            resource: LEASES,
            name: self.lease_name(slot),
            namespace: self.request.locks.namespace.clone(),
        };
        self.trouble(StoreError::unanswered(
            access,
            "the server turns it down, and shows the lease unchanged",
        ))
    }

    /// A take answered too late to be used is released, and so is one that nobody wants any more.
    async fn granted(&mut self, slot: u32, held: Held) -> Step {
        let wanted = !matches!(self.ending, Some((Ending::CallerGone, _)));
        if wanted && held.is_held(self.boot()) {
            return Step::Granted(slot, Box::new(held));
        }
        let mut held = held;
        let Some((mut renewer, lock)) = self.renewer(slot) else {
            return Step::Next;
        };
        let reason = if wanted {
            "the take was answered too late"
        } else {
            "nobody waits for it any more"
        };
        if let Err(error) = renewer.release(&mut held, &lock, reason).await {
            tracing::warn!(lock = %self.request.name, error, "a lock that was granted too late was not released");
        }
        self.see(slot, None, Seen::Read);
        self.read_lease(slot).await
    }

    pub(super) async fn read_lease(&mut self, slot: u32) -> Step {
        let name = self.lease_name(slot);
        match self.leases.get(&name, self.call_limit()).await {
            Ok(found) => {
                self.fine(("get", LEASES));
                self.see(slot, found, Seen::Read);
                Step::Next
            }
            Err(error) => self.trouble(error),
        }
    }

    fn renewer(&self, slot: u32) -> Option<(Renewer, LockView)> {
        let locks = &self.request.locks;
        let renewer = Renewer::new(
            Arc::clone(&locks.lifeline),
            &locks.namespace,
            &self.lease_name(slot),
            self.found.get(&slot)?.clone(),
            Arc::clone(&locks.clock),
        );
        Some((renewer.ok()?, self.claimant.lock(slot)?.clone()))
    }

    pub(super) fn guard(&mut self, slot: u32, held: Held) -> Result<Guard, AcquireError> {
        let Some((renewer, lock)) = self.renewer(slot) else {
            return Err(AcquireError::Unsettled {
                lock: self.request.name.clone(),
                within: self.lease_duration(),
            });
        };
        let had = Had {
            granted: held.proven(),
            held,
            renewer,
            lock,
            slot: i32::try_from(slot).unwrap_or(i32::MAX),
            watch: self.watches.take(slot).unwrap_or_else(|| {
                LeaseWatch::new(self.leases.api().clone(), &self.lease_name(slot))
            }),
            leaving: self.leave_queue(),
        };
        Ok(had.keep(&self.request.locks))
    }

    /// The claim has been served: it is deleted, then `next` is moved on where the take has not done so. A claim whose
    /// creation is not settled, and which a direct take made needless, is looked for and deleted too.
    fn leave_queue(&self) -> Option<JoinHandle<()>> {
        let (claims, progress) = (self.claims.clone(), self.request.progress.clone());
        let Some(claim) = self.claimant.claim().cloned() else {
            let name = self.making.clone()?;
            return Some(tokio::spawn(async move {
                if let Some(claim) = find_made(&claims, &name).await {
                    delete_served(&claims, &claim, progress).await;
                }
            }));
        };
        let (leases, name) = (self.leases.clone(), self.lease_name(0));
        let served = self.claimant.served();
        Some(tokio::spawn(async move {
            // In this order: whoever lists the claims after `next` has moved does not find this one among them.
            delete_served(&claims, &claim, progress).await;
            if let Some(served) = served {
                move_on(&leases, &name, &claims, &served).await;
            }
        }))
    }
}

/// What a create that was not answered made, if anything.
async fn find_made(claims: &ClaimStore, name: &str) -> Option<ClaimRef> {
    for attempt in 0..5 {
        match claims.find(name, try_limit(attempt)).await {
            Ok(found) => return found,
            Err(error) => tracing::debug!(%error, "whether a claim was made is not known yet"),
        }
        tokio::time::sleep(backoff(attempt)).await;
    }
    None
}

async fn delete_served(claims: &ClaimStore, claim: &ClaimRef, progress: Option<Listener>) {
    for attempt in 0..5 {
        match claims.delete(claim, try_limit(attempt)).await {
            Ok(()) => return,
            // A server that has just started forbids everything for a moment.
            Err(error @ StoreError::Forbidden { .. }) if attempt >= 2 => {
                if let Some(tell) = progress {
                    tell(&Progress::ClaimLeft(error.to_string()));
                }
                return;
            }
            Err(error) => tracing::debug!(%error, "a claim that was served is not deleted yet"),
        }
        tokio::time::sleep(backoff(attempt)).await;
    }
}

/// Moves `next` on, while it names the claim that was served. Where that does not succeed the operator does it, or
/// whoever looks around.
async fn move_on(leases: &LeaseStore, name: &str, claims: &ClaimStore, served: &Served) {
    for attempt in 0..5 {
        let limit = try_limit(attempt);
        let read = async {
            let waiting = claims.list(limit).await?;
            Ok::<_, StoreError>((waiting, leases.get(name, limit).await?))
        };
        match read.await {
            Ok((waiting, Some(found))) => {
                let waiting = waiting.into_iter().map(|(claim, _)| claim).collect();
                let Some(record) = served.moves_on(&found.record, waiting) else {
                    return;
                };
                match leases.put(name, &found, &record, limit).await {
                    Put::Applied(_) | Put::Forbidden(_) | Put::Refused(_) => return,
                    // Renewed meanwhile, mostly.
                    Put::Conflict if attempt == 0 => continue,
                    Put::Conflict | Put::Gone | Put::Unknown(_) => {}
                }
            }
            Ok((_, None)) => return,
            Err(error) => tracing::debug!(%error, "whose turn it is could not be moved on yet"),
        }
        tokio::time::sleep(backoff(attempt)).await;
    }
}

/// A name that nobody else uses.
fn claim_name(lock: &str) -> String {
    let suffix: String = random_uid()
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(10)
        .collect();
    format!("{}-{suffix}", lock.chars().take(52).collect::<String>())
}
