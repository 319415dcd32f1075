//! The order of the queue outlives the operator.

use std::collections::BTreeMap;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::api::ListParams;
use leasehold::api::{
    ClaimPhase, DistributedLockSpec, LockClaim, LockClaimSpec, QueuePolicy, QueueSpec,
};
use leasehold::client::{Acquiring, Locks};
use leasehold::engine::Grant;
use rustix::process::Signal;

use super::operator_place::{fixed, token};
use super::operator_rig::{LONG, Operator, Place, QUICK, in_place, lasting};
use super::run_bench::until;
use super::server::within;

/// Who comes, with which priority, in this order. The last one comes while there is no operator.
const COMING: [(&str, i32); 4] = [("c", 0), ("a", 5), ("b", 0), ("0", 3)];

/// In which order they are to be served.
fn order(policy: QueuePolicy) -> [&'static str; 4] {
    match policy {
        QueuePolicy::Priority => ["a", "0", "c", "b"],
        QueuePolicy::Fifo => ["c", "a", "b", "0"],
    }
}

/// The tickets of a lock's claims, by claimant; of those that have one.
async fn tickets(place: &Place, lock: &str) -> BTreeMap<String, i64> {
    let claims = place.claims.list(&ListParams::default()).await;
    let of_lock = |claim: &LockClaim| claim.spec.lock_name == lock;
    let claims = claims.expect("claims").items.into_iter().filter(of_lock);
    let ticket = |claim: LockClaim| Some((claim.claimant(), claim.status.as_ref()?.ticket?));
    claims.filter_map(ticket).collect()
}

async fn have_tickets(place: &Place, lock: &str, count: usize) -> BTreeMap<String, i64> {
    let what = format!("{count} claims on {lock} have tickets");
    until(&what, LONG, async || {
        tickets(place, lock).await.len() == count
    })
    .await;
    tickets(place, lock).await
}

/// Two locks that somebody holds: claims hold `nightly` for a second each, and processes wait for `daily`.
struct Queues<'a> {
    place: &'a Place,
    library: Locks,
    holders: [Grant; 2],
    waiters: Vec<Acquiring>,
}

impl<'a> Queues<'a> {
    async fn new(place: &'a Place, policy: QueuePolicy) -> Self {
        let queue = QueueSpec {
            policy,
            ..QueueSpec::default()
        };
        let spec = DistributedLockSpec {
            queue,
            ..lasting(60)
        };
        for lock in ["nightly", "daily"] {
            place.make_free_of(lock, spec.clone()).await;
        }
        Self {
            place,
            library: place.library().await,
            holders: [
                place.take("nightly", "pod-0").await,
                place.take("daily", "pod-0").await,
            ],
            waiters: vec![],
        }
    }

    /// One more of each kind comes, and is there.
    async fn comes(&mut self, (name, priority): (&str, i32)) {
        let spec = LockClaimSpec {
            priority,
            ..fixed(1)
        };
        self.place.claim(name, spec).await;
        let waiter = self.library.lock("daily").claimant(name);
        self.waiters.push(waiter.priority(priority).begin());
        until("its claim is there", LONG, async || {
            let claims = self.place.claims.list(&ListParams::default()).await;
            claims.expect("claims").items.len() == 2 * self.waiters.len()
        })
        .await;
    }

    async fn all_have_tickets(&self) -> [BTreeMap<String, i64>; 2] {
        let count = self.waiters.len();
        [
            have_tickets(self.place, "nightly", count).await,
            have_tickets(self.place, "daily", count).await,
        ]
    }

    /// Both are given back; says who was served when.
    async fn served(self) -> [Vec<String>; 2] {
        let [of_claims, of_processes] = &self.holders;
        self.place.release("nightly", of_claims).await;
        self.place.release("daily", of_processes).await;
        let outcomes = self.waiters.into_iter().zip(COMING);
        let mut outcomes: FuturesUnordered<_> = outcomes
            .map(async |(mut waiter, (name, _))| {
                let guard = waiter.outcome().await.expect("it has it");
                let token = guard.token().get();
                guard.release().await.expect("it is given back");
                (token, name.to_owned())
            })
            .collect();
        let mut by_token = [BTreeMap::new(), BTreeMap::new()];
        while let Some((token, name)) = within(LONG, "all had it", outcomes.next()).await {
            by_token[1].insert(token, name);
        }
        for (name, _) in COMING {
            let over = self.place.claim_in(name, ClaimPhase::Expired).await;
            by_token[0].insert(token(&over), name.to_owned());
        }
        by_token.map(|names| names.into_values().collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn places_in_the_queue_are_kept_over_a_restart_of_the_operator() {
    let kept = |policy| in_place(async move |place| places_are_kept(&place, policy).await);
    tokio::join!(
        Box::pin(kept(QueuePolicy::Fifo)),
        Box::pin(kept(QueuePolicy::Priority))
    );
}

async fn places_are_kept(place: &Place, policy: QueuePolicy) {
    let mut operator = Operator::start(&place.namespace, "one", QUICK).await;
    let mut queues = Queues::new(place, policy).await;
    let (last, first) = COMING.split_last().expect("some come");
    for one in first {
        queues.comes(*one).await;
    }
    let before = queues.all_have_tickets().await;
    operator.signal(Signal::KILL);
    operator.ended().await;
    queues.comes(*last).await;
    let _heir = Operator::start(&place.namespace, "heir", QUICK).await;
    // It has been over all claims once it has seen the one that came meanwhile.
    let mut after = queues.all_have_tickets().await;
    for (before, after) in before.iter().zip(&mut after) {
        let late = after.remove(last.0).expect("a ticket");
        assert_eq!(before, after, "{policy:?}: tickets stay");
        assert!(after.values().all(|ticket| *ticket < late), "{policy:?}");
    }
    let served = queues.served().await;
    assert_eq!(served[0], order(policy), "{policy:?}: claims");
    assert_eq!(served[1], order(policy), "{policy:?}: processes");
}
