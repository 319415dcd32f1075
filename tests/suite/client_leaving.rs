//! Who was served from the queue still has its claim to delete: no guard is given back before that is over.

use std::time::Duration;

use super::proxy::{Fault, Proxy};
use super::run_bench::{BUSY, Bench};
use super::server::within;

/// A process may end as soon as its release has returned.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_release_nothing_more_is_sent_about_the_queue() {
    let bench = Bench::new().await;
    bench.opened("left", 4).await;
    let other = bench.library().await;
    let holder = other.lock("left").claimant("holder").acquire();
    let holder = holder.await.unwrap();
    let proxy = Proxy::new(&bench).await;
    // By the pauses between them more than a third of the lease, which is what the release itself waits.
    proxy.fault("delete", "lockclaims", 4, Fault::Refuse(503));
    let waiter = tokio::spawn(proxy.locks().lock("left").claimant("waiter").acquire());
    bench.until_waiting(1).await;
    holder.release().await.unwrap();
    let guard = within(BUSY, "it is served", waiter).await.unwrap().unwrap();
    within(BUSY, "it is given back", guard.release())
        .await
        .unwrap();
    let calls = proxy.calls();
    assert_eq!(bench.waiting().await, 0, "{calls:#?}");
    let next = other.lock("left").claimant("next").acquire();
    let next = within(Duration::from_secs(3), "it is to be had", next).await;
    next.unwrap().release().await.unwrap();
    assert_eq!(proxy.calls().len(), calls.len());
    bench.finish().await;
}
