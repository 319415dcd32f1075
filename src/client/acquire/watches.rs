//! The watches of somebody who waits: one of slot 0's Lease, and one of each other slot's while it is its turn.

use std::collections::BTreeMap;

use futures::FutureExt;
use futures::future::select_all;
use kube::api::{Api, DynamicObject};

use crate::client::watch::{LeaseWatch, Sight};
use crate::engine::Moment;

/// The watches, by slot.
#[derive(Default)]
pub(super) struct Watches {
    open: BTreeMap<u32, LeaseWatch>,
    /// Those that were forbidden: when to ask for them again.
    again: BTreeMap<u32, Moment>,
    wanted: usize,
}

impl Watches {
    /// Opens and ends watches, so that there are those of the slots that are `wanted`, by slot and name.
    pub(super) fn keep(
        &mut self,
        leases: &Api<DynamicObject>,
        wanted: &[(u32, String)],
        now: Moment,
    ) {
        self.wanted = wanted.len();
        self.open
            .retain(|slot, _| wanted.iter().any(|(other, _)| other == slot));
        for (slot, name) in wanted {
            if self.again.get(slot).is_none_or(|at| now >= *at) {
                self.open
                    .entry(*slot)
                    .or_insert_with(|| LeaseWatch::new(leases.clone(), name));
            }
        }
    }

    /// Whether all that was wanted is watched; else it must be read.
    pub(super) fn are_open(&self) -> bool {
        self.open.len() == self.wanted
    }

    /// The next thing that one of them tells; never, where there is none. Safe to drop.
    pub(super) async fn next(&mut self) -> (u32, Sight) {
        if self.open.is_empty() {
            return std::future::pending().await;
        }
        let each = self
            .open
            .iter_mut()
            .map(|(slot, watch)| async { (*slot, watch.next().await) }.boxed());
        let ((slot, sight), _, _) = select_all(each).await;
        if !matches!(sight, Sight::Forbidden) {
            self.again.remove(&slot);
        }
        (slot, sight)
    }

    /// The watch of this slot is forbidden until then. Whether that is new.
    pub(super) fn forbidden(&mut self, slot: u32, again: Moment) -> bool {
        self.open.remove(&slot);
        self.again.insert(slot, again).is_none()
    }

    /// Ends the watch of this slot.
    pub(super) fn end(&mut self, slot: u32) {
        self.open.remove(&slot);
    }

    /// The watch of this slot, for whoever goes on with it.
    pub(super) fn take(&mut self, slot: u32) -> Option<LeaseWatch> {
        self.open.remove(&slot)
    }
}
