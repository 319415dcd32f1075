//! An operator that dies after any of its writes about a Fixed or Pod hold: the next one goes on where it stopped.

use futures::{StreamExt, stream};
use leasehold::api::{ClaimPhase, EndReason, FencingToken, HoldType};

use super::operator_place::{fixed, token, with_pod};
use super::operator_rig::{Operator, QUICK, in_place, is_free};
use super::operator_wire::Proxy;
use super::run_bench::long;

/// Namespaces at once: each has an operator of its own.
const AT_ONCE: usize = 4;

/// Much longer than it takes the next operator to lead, so that it is the one that tells of the grant.
const FIXED_SECONDS: i32 = 9;

/// When the operator dies: after so many writes since the claim was made, or since its hold came to its end.
#[derive(Clone, Copy, Debug)]
struct Death {
    hold: HoldType,
    at_the_end: bool,
    writes: u64,
}

/// Renewals of the lead and events come between the others, so more is tried than there are writes.
fn deaths() -> Vec<Death> {
    let writes = if long() { 8 } else { 4 };
    let mut deaths = vec![];
    for writes in 0..writes {
        for at_the_end in [false, true] {
            for hold in [HoldType::Fixed, HoldType::Pod] {
                deaths.push(Death {
                    hold,
                    at_the_end,
                    writes,
                });
            }
        }
    }
    deaths
}

/// argoproj/argo-workflows#8684, #4703: what was half done is done again, or never.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_granted_once_and_ended_once_whenever_the_operator_dies() {
    stream::iter(deaths())
        .for_each_concurrent(AT_ONCE, async |death| Box::pin(survives(death)).await)
        .await;
}

async fn survives(death: Death) {
    in_place(async |place| {
        let proxy = Proxy::start().await;
        let kubeconfig = Some(proxy.kubeconfig.as_path());
        let dying = Operator::start_with(&place.namespace, "dying", QUICK, kubeconfig).await;
        dying.leads().await;
        place.make_free("nightly", 1).await;
        place.make_pod("web").await;
        let spec = match death.hold {
            HoldType::Pod => with_pod("web", None),
            _ => fixed(FIXED_SECONDS),
        };
        if !death.at_the_end {
            proxy.cut_after(death.writes);
        }
        place.claim("seat", spec).await;
        if death.at_the_end {
            place.claim_in("seat", ClaimPhase::Granted).await;
            proxy.cut_after(death.writes);
        }
        let end = async || {
            if death.hold == HoldType::Pod {
                place.delete_pod("web").await;
            }
        };
        if death.at_the_end {
            end().await;
        }
        dying
            .eventually("its write is applied and not answered", async || {
                proxy.is_silent()
            })
            .await;
        drop(dying);
        let taken = place.lease("nightly").await.record.current_token();
        let _heir = Operator::start(&place.namespace, "heir", QUICK).await;
        if !death.at_the_end {
            let granted = place.claim_in("seat", ClaimPhase::Granted).await;
            if let Some(taken) = taken {
                assert_eq!(
                    token(&granted),
                    taken.get(),
                    "{death:?}: it is the same grant"
                );
            }
            end().await;
        }
        let (phase, reason) = match death.hold {
            HoldType::Pod => (ClaimPhase::Released, EndReason::Ended),
            _ => (ClaimPhase::Expired, EndReason::Expired),
        };
        let over = place.claim_in("seat", phase).await;
        let told = |lock: &leasehold::api::DistributedLock| {
            let history = lock
                .status
                .as_ref()
                .map_or(&[][..], |status| &status.history);
            let ends = history
                .iter()
                .map(|end| (end.fencing_token.map(FencingToken::get), end.reason));
            is_free(lock) && ends.collect::<Vec<_>>() == [(Some(token(&over)), reason)]
        };
        place
            .lock_is(
                "nightly",
                &format!("{death:?}: one grant, ended once"),
                told,
            )
            .await;
        place.is_looked_at("nightly").await;
        let lease = place.lease("nightly").await;
        assert!(lease.record.is_free(), "{death:?}: it is not taken again");
    })
    .await;
}
