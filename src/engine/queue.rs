//! The order of claims: by ticket, or by priority first, round again to the front. One queue for all slots of a lock.

use std::cmp::Reverse;

use super::record::{ClaimRef, Hold};

/// Who comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueueOrder {
    /// In the order of coming.
    #[default]
    Fifo,
    /// Higher priority first, then in the order of coming.
    Priority,
}

/// What the rules need to know of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimView {
    /// Name and uid.
    pub claim: ClaimRef,
    /// `status.ticket`, else the resourceVersion: the place in the queue.
    pub ticket: u64,
    /// `spec.priority`: counts where the lock's queue goes by it.
    pub priority: i32,
    /// How it wants to hold.
    pub hold: Hold,
    /// Whether it waits: not finished, not being deleted, not granted.
    pub waiting: bool,
    /// Whether its Pod is known to be gone: it is passed over at once.
    pub dead: bool,
}

/// The waiting claims of a lock, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queue {
    waiting: Vec<ClaimView>,
    order: QueueOrder,
}

impl Queue {
    /// The queue that a list of claims makes. A claim that holds a slot waits no more: `holders` are the uids of all
    /// holders, see [`LeaseRecord::holder_uid`](super::LeaseRecord::holder_uid).
    #[must_use]
    pub fn new<'a>(
        claims: impl IntoIterator<Item = ClaimView>,
        holders: impl IntoIterator<Item = &'a str>,
        order: QueueOrder,
    ) -> Self {
        let holders: Vec<_> = holders.into_iter().collect();
        let mut waiting: Vec<_> = claims
            .into_iter()
            .filter(|claim| claim.waiting && !holders.contains(&claim.claim.uid.as_str()))
            .collect();
        waiting.sort_by(|a, b| {
            let by_ticket = (a.ticket, &a.claim).cmp(&(b.ticket, &b.claim));
            match order {
                QueueOrder::Fifo => by_ticket,
                QueueOrder::Priority => Reverse(a.priority)
                    .cmp(&Reverse(b.priority))
                    .then(by_ticket),
            }
        });
        Self { waiting, order }
    }

    /// Whether `who` goes before the one named, whose turn it would be: where priority counts, a higher one does.
    #[must_use]
    pub fn outranks(&self, who: &ClaimRef, named: &ClaimRef) -> bool {
        let (Some(who), Some(named)) = (self.position(who), self.position(named)) else {
            return false;
        };
        self.order == QueueOrder::Priority
            && self.waiting[who].priority > self.waiting[named].priority
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The claims in order.
    #[must_use]
    pub fn claims(&self) -> &[ClaimView] {
        &self.waiting
    }

    /// The first one that is not known to be dead.
    #[must_use]
    pub fn first(&self) -> Option<&ClaimRef> {
        self.waiting
            .iter()
            .find(|claim| !claim.dead)
            .map(|claim| &claim.claim)
    }

    /// Whether `claim` waits here.
    #[must_use]
    pub fn contains(&self, claim: &ClaimRef) -> bool {
        self.position(claim).is_some()
    }

    /// The claim after `claim`, round again to the front; never `claim` itself, never one known to be dead.
    /// Where `claim` is not in the list any more, that is the first.
    #[must_use]
    pub fn after(&self, claim: &ClaimRef) -> Option<&ClaimRef> {
        let Some(at) = self.position(claim) else {
            return self.first();
        };
        let (before, from) = self.waiting.split_at(at);
        from.iter()
            .skip(1)
            .chain(before)
            .find(|other| !other.dead)
            .map(|other| &other.claim)
    }

    /// How many places `who` stands behind `head`, going round; 0 if it is the head, `None` if it does not wait.
    #[must_use]
    pub fn places_behind(&self, head: &ClaimRef, who: &ClaimRef) -> Option<usize> {
        let who = self.position(who)?;
        let head = self.position(head).unwrap_or(0);
        Some((who + self.waiting.len() - head) % self.waiting.len())
    }

    /// The place of `who`, 1 for the one whose turn it is: about right, since claims come and go.
    #[must_use]
    pub fn place(&self, next: Option<&ClaimRef>, who: &ClaimRef) -> Option<usize> {
        let head = next
            .filter(|next| self.contains(next))
            .or_else(|| self.first())?;
        self.places_behind(head, who).map(|behind| behind + 1)
    }

    fn position(&self, claim: &ClaimRef) -> Option<usize> {
        self.waiting.iter().position(|other| other.claim == *claim)
    }
}
