//! No slot leaks, whatever is deleted and whoever is killed, in whatever order.
//!
//! argoproj/argo-workflows#6340, #7633, #4703: semaphores whose slots were never given back, or given to too many.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use leasehold::api::{ClaimPhase, DistributedLockSpec, FencingToken, LockClaim};
use rand::seq::{IndexedRandom, SliceRandom};

use super::operator_place::{fixed, with_pod};
use super::operator_rig::{LONG, Operator, Place, QUICK, in_place, lasting};
use super::run_bench::{long, until};

const SLOTS: i32 = 3;
const CLAIMS: usize = 30;

/// What is done to them.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A claim that holds goes, or the Pod that it holds for.
    EndAHold,
    /// A claim goes that waits.
    LeaveTheQueue,
    KillTheOperator,
}

/// Who holds a slot, by claim, with the token.
type Holders = BTreeMap<i32, (String, i64)>;

/// The lock with its claims, as many as there are to be.
struct Semaphore<'a> {
    place: &'a Place,
    operator: Option<Operator>,
    made: usize,
    /// Claims that were deleted, or whose Pods were.
    ended: BTreeSet<String>,
}

impl Semaphore<'_> {
    /// A claim more; each second one holds for a Pod of its own.
    async fn ask(&mut self) {
        let name = format!("c{}", self.made);
        self.made += 1;
        if self.made.is_multiple_of(2) {
            self.place.make_pod(&name).await;
            self.place.claim(&name, with_pod(&name, None)).await;
        } else {
            self.place.claim(&name, fixed(3600)).await;
        }
    }

    async fn claims(&self) -> Vec<LockClaim> {
        let all = self.place.claims.list(&ListParams::default()).await;
        all.expect("claims").items
    }

    /// Waits until every slot has a holder, in the claims and in the Leases.
    async fn all_held(&self, history: &[Act]) -> Holders {
        let mut held = Holders::new();
        let what = format!("all slots are held after {history:?}");
        until(&what, LONG, async || {
            held = self.holders().await;
            let of_ended = held.values().any(|(name, _)| self.ended.contains(name));
            !of_ended && held.len() == SLOTS as usize && self.leases_say(&held).await
        })
        .await;
        held
    }

    async fn holders(&self) -> Holders {
        let mut held = Holders::new();
        for claim in self.claims().await {
            if claim.phase() != ClaimPhase::Granted || claim.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let status = claim.status.as_ref().expect("a status");
            let token = status.fencing_token.expect("a token").get();
            let slot = status.slot.expect("a slot");
            assert!((0..SLOTS).contains(&slot), "{claim:?}");
            held.insert(slot, (claim.name_any(), token));
        }
        held
    }

    async fn leases_say(&self, held: &Holders) -> bool {
        for (slot, (name, token)) in held {
            let lease = match slot {
                0 => "nightly".to_owned(),
                _ => format!("nightly.{slot}"),
            };
            let lease = self.place.lease(&lease).await.record;
            let holds = lease.spec.holder.split('/').next() == Some(name)
                && lease.current_token().map(FencingToken::get) == Some(*token);
            if !holds {
                return false;
            }
        }
        true
    }

    async fn act(&mut self, act: Act, held: &mut Holders) {
        let delete = DeleteParams::background();
        match act {
            Act::EndAHold => {
                let slots: Vec<_> = held.keys().copied().collect();
                let Some(slot) = slots.choose(&mut rand::rng()) else {
                    return;
                };
                let (name, _) = held.remove(slot).expect("it is held");
                self.ended.insert(name.clone());
                // The claims of Pods end as Released, and stay; they are not asked to hold again.
                let of_pod = self.place.pods().get_opt(&name).await.expect("an answer");
                if of_pod.is_some() && rand::random() {
                    let gone = self.place.pods().delete(&name, &delete).await;
                    gone.expect("the pod goes");
                } else {
                    let gone = self.place.claims.delete(&name, &delete).await;
                    gone.expect("the claim goes");
                }
                self.ask().await;
            }
            Act::LeaveTheQueue => {
                let claims = self.claims().await;
                let waiting: Vec<_> = claims
                    .iter()
                    .filter(|claim| claim.phase() == ClaimPhase::Pending)
                    .collect();
                let claim = waiting.choose(&mut rand::rng()).expect("many wait");
                // It may just be granted, in the place of one that has ended.
                let gone = self.place.claims.delete(&claim.name_any(), &delete).await;
                gone.expect("the claim goes");
                self.ended.insert(claim.name_any());
                self.ask().await;
            }
            Act::KillTheOperator => {
                self.operator = None;
                self.operator = Some(Operator::start(&self.place.namespace, "one", QUICK).await);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_do_not_leak_whatever_is_deleted_in_whatever_order() {
    in_place(async |place| {
        let spec = DistributedLockSpec {
            max_holders: SLOTS,
            ..lasting(15)
        };
        place.make("nightly", spec).await;
        let operator = Some(Operator::start(&place.namespace, "one", QUICK).await);
        let mut semaphore = Semaphore {
            place: &place,
            operator,
            made: 0,
            ended: BTreeSet::new(),
        };
        for _ in 0..CLAIMS {
            semaphore.ask().await;
        }
        let mut before = semaphore.all_held(&[]).await;
        let mut history = vec![];
        for _ in 0..if long() { 1000 } else { 8 } {
            let mut acts = vec![
                Act::EndAHold,
                Act::EndAHold,
                Act::LeaveTheQueue,
                Act::KillTheOperator,
            ];
            acts.shuffle(&mut rand::rng());
            acts.truncate(rand::random_range(1..=acts.len()));
            let mut untouched = before.clone();
            for act in acts {
                history.push(act);
                semaphore.act(act, &mut untouched).await;
            }
            let recent = &history[history.len().saturating_sub(8)..];
            let after = semaphore.all_held(recent).await;
            for (slot, (name, token)) in &after {
                match untouched.get(slot) {
                    // Exactly the slots of those that ended were freed.
                    Some(same) => assert_eq!((name, token), (&same.0, &same.1), "{recent:?}"),
                    None => assert!(*token > before[slot].1, "{recent:?}"),
                }
            }
            before = after;
        }
    })
    .await;
}
