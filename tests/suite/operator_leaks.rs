//! No slot leaks, whatever is deleted and whoever is killed, in whatever order.
//!
//! argoproj/argo-workflows#6340, #7633, #4703: semaphores whose slots were never given back, or given to too many.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Resource, ResourceExt};
use leasehold::api::{ClaimPhase, DistributedLockSpec, FencingToken, LockClaim};
use rand::seq::{IndexedRandom, SliceRandom};

use super::operator_place::{fixed, with_pod};
use super::operator_rig::{Operator, Place, QUICK, in_place, lasting};
use super::run_bench::{long, until};

const SLOTS: i32 = 3;
const CLAIMS: usize = 30;

/// The garbage collector, which deletes the claims of Pods that are gone, looks for new kinds of objects every 30 s.
const WITH_COLLECTION: Duration = Duration::from_mins(1);

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
    /// A claim more; each second one holds for a Pod of its own, and of the others each second one goes with its Pod.
    async fn ask(&mut self) {
        let name = format!("c{}", self.made);
        self.made += 1;
        let spec = if self.made.is_multiple_of(2) {
            with_pod(&name, None)
        } else {
            fixed(3600)
        };
        let mut claim = LockClaim::new(&name, spec);
        if self.made % 4 != 1 {
            let pod = self.place.make_pod(&name).await;
            let owned = self.made % 4 == 3;
            claim.metadata.owner_references =
                owned.then(|| vec![pod.owner_ref(&()).expect("an owner")]);
        }
        let made = self
            .place
            .claims
            .create(&PostParams::default(), &claim)
            .await;
        made.expect("the claim is made");
    }

    async fn claims(&self) -> Vec<LockClaim> {
        let all = self.place.claims.list(&ListParams::default()).await;
        all.expect("claims").items
    }

    /// Waits until every slot has a holder, in the claims and in the Leases.
    async fn all_held(&self, history: &[Act]) -> Holders {
        let mut held = Holders::new();
        let what = format!("all slots are held after {history:?}");
        until(&what, WITH_COLLECTION, async || {
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
            let same = held.insert(slot, (claim.name_any(), token));
            assert_eq!(same, None, "slot {slot} is granted twice: {held:?}");
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

/// Looks on for ever: at no revision are two claims shown as granted in one slot, or one in a slot that is not there.
async fn never_too_many(claims: Api<LockClaim>) {
    let mut granted = BTreeMap::<i32, String>::new();
    let events = watcher(claims, watcher::Config::default()).default_backoff();
    let mut events = events.boxed();
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            // It begins again by itself.
            Err(_) => continue,
            Ok(None) => return,
        };
        let (claim, gone) = match event {
            Event::Apply(claim) | Event::InitApply(claim) => (claim, false),
            Event::Delete(claim) => (claim, true),
            Event::Init => {
                granted.clear();
                continue;
            }
            Event::InitDone => continue,
        };
        let name = claim.name_any();
        granted.retain(|_, holder| *holder != name);
        if gone || claim.phase() != ClaimPhase::Granted {
            continue;
        }
        let slot = claim.status.as_ref().and_then(|status| status.slot);
        let slot = slot.expect("a slot");
        assert!((0..SLOTS).contains(&slot), "{claim:?}");
        let same = granted.insert(slot, name);
        assert_eq!(same, None, "slot {slot} is granted twice: {granted:?}");
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
        let looks_on = tokio::spawn(never_too_many(place.claims.clone()));
        tokio::select! {
            () = whatever_happens(&place) => {}
            seen = looks_on => panic!("{seen:?}"),
        }
    })
    .await;
}

async fn whatever_happens(place: &Place) {
    let operator = Some(Operator::start(&place.namespace, "one", QUICK).await);
    let mut semaphore = Semaphore {
        place,
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
}
