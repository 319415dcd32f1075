//! Several locks at once, in the library: all or none, in one order.

use std::sync::Mutex;
use std::time::Duration;

use futures::future::join_all;
use kube::ResourceExt;
use kube::api::ListParams;
use leasehold::client::{
    self, AcquireAll, AcquireAllError, AcquireError, Guard, Guards, LossReason, Progress, Released,
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::proxy::{Call, Fault, Proxy};
use super::run_bench::{BUSY, Bench, long, until};
use super::server::within;

fn asked(proxy: &Proxy, locks: &[&str]) -> AcquireAll {
    let library = proxy.locks();
    client::all(locks.iter().map(|lock| library.lock(lock))).claimant("a")
}

async fn had(asked: AcquireAll) -> Guards {
    within(BUSY, "all locks are had", asked.acquire())
        .await
        .unwrap()
}

/// A lock `a` of two seconds that is free, and a lock `b` that is held.
async fn b_is_held() -> (Bench, Guard, Proxy) {
    let bench = Bench::new().await;
    bench.opened("a", 2).await;
    bench.opened("b", 15).await;
    let holder = bench.hold("b", "holder").await;
    let proxy = Proxy::new(&bench).await;
    (bench, holder, proxy)
}

/// Locks `a`, `b`, `c`, all free.
async fn three_locks() -> (Bench, [&'static str; 3]) {
    let bench = Bench::new().await;
    let locks = ["a", "b", "c"];
    for lock in locks {
        bench.opened(lock, 15).await;
    }
    (bench, locks)
}

/// Nobody holds any of the locks, or soon nobody does, and no claim is left.
async fn nothing_is_left(bench: &Bench, locks: &[&str], limit: Duration, when: &str) {
    for lock in locks {
        until(&format!("{lock} is free {when}"), limit, async || {
            bench.lease(lock).await.is_free()
        })
        .await;
    }
    until(&format!("no claim is left {when}"), limit, async || {
        bench.waiting().await == 0
    })
    .await;
}

/// The locks whose Leases were given to somebody (`true`) or freed, in order.
fn grants(calls: &[Call], given: bool) -> Vec<String> {
    let puts = calls.iter().filter(|call| call.verb == "update");
    puts.filter(|put| {
        let holder = put.body["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default();
        holder.is_empty() != given
    })
    .map(|put| put.body["metadata"]["name"].as_str().unwrap().to_owned())
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn several_locks_are_taken_in_one_order_and_released_in_the_reverse() {
    let (bench, locks) = three_locks().await;
    let proxy = Proxy::new(&bench).await;
    let guards = had(asked(&proxy, &["c", "a", "b"])).await;
    assert_eq!(grants(&proxy.calls(), true), locks);
    let names: Vec<_> = guards.iter().map(Guard::lock).collect();
    assert_eq!(names, locks);
    for lock in names {
        let record = bench.lease(lock).await;
        assert_eq!(record.current_token(), guards.token(lock));
        assert_eq!(record.spec.holder, guards.get(lock).unwrap().identity());
    }
    assert!(guards.is_held());
    let nearest = guards.deadlines().unwrap();
    for guard in guards.iter() {
        assert!(nearest.renew <= guard.deadlines().unwrap().renew);
    }
    let released = guards.release().await;
    for one in &released {
        assert_eq!(one.namespace, bench.namespace);
        assert_eq!(*one.outcome.as_ref().unwrap(), Released::Confirmed);
    }
    let order: Vec<_> = released.iter().map(|one| one.lock.as_str()).collect();
    assert_eq!(order, ["c", "b", "a"]);
    assert_eq!(grants(&proxy.calls(), false), ["c", "b", "a"]);
    proxy.assert_guarded();
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_two_namespaces_go_by_the_namespace_first() {
    let (one, other) = (Bench::new().await, Bench::new().await);
    let mut asked = Vec::new();
    for bench in [&one, &other] {
        for lock in ["b", "a"] {
            bench.opened(lock, 15).await;
            asked.push(bench.library().await.lock(lock));
        }
    }
    let guards = client::all(asked).acquire().await.unwrap();
    let held: Vec<_> = guards
        .iter()
        .map(|guard| (guard.namespace().to_owned(), guard.lock().to_owned()))
        .collect();
    assert_eq!(held.len(), 4);
    assert!(held.is_sorted(), "{held:?}");
    guards.release().await;
    one.finish().await;
    other.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_refused_before_anything_is_taken() {
    let bench = Bench::new().await;
    bench.opened("a", 15).await;
    bench.opened("b", 2).await;
    let proxy = Proxy::new(&bench).await;
    let refused = async |asked: AcquireAll| asked.acquire().await.unwrap_err().to_string();
    let twice = refused(asked(&proxy, &["a", "b", "a"])).await;
    assert!(
        twice.contains(r#"lock "a""#) && twice.contains("twice"),
        "{twice}"
    );
    let empty = refused(asked(&proxy, &[])).await;
    assert!(empty.contains("no lock"), "{empty}");
    let name = refused(asked(&proxy, &["a", "B_"])).await;
    assert!(name.contains("DNS label"), "{name}");
    let priority = refused(asked(&proxy, &["a", "b"]).priority(1001)).await;
    assert!(priority.contains("1001"), "{priority}");
    assert!(proxy.calls().is_empty());
    // The server must be asked for these; still nothing is written.
    let none = asked(&proxy, &["a", "nowhere"]).acquire().await;
    assert!(
        matches!(&none, Err(AcquireAllError::Lock { lock, error, .. })
            if lock == "nowhere" && matches!(**error, AcquireError::NoSuchLock { .. })),
        "{none:?}"
    );
    let grace = refused(asked(&proxy, &["a", "b"]).kill_grace(Duration::from_secs(1))).await;
    assert!(grace.contains(r#"lock "b""#), "{grace}");
    assert!(
        proxy.puts().is_empty() && bench.waiting().await == 0,
        "nothing was written"
    );
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_locks_of_which_one_is_held_a_try_or_a_time_out_leaves_nothing() {
    let (bench, locks) = three_locks().await;
    let proxy = Proxy::new(&bench).await;
    for busy in locks {
        let holder = bench.hold(busy, "holder").await;
        let free: Vec<_> = locks.into_iter().filter(|lock| *lock != busy).collect();
        let tried = asked(&proxy, &locks).try_acquire().await;
        assert!(
            matches!(&tried, Err(AcquireAllError::Lock { lock, error, .. })
                if lock == busy && matches!(**error, AcquireError::Busy(_))),
            "{tried:?}"
        );
        nothing_is_left(&bench, &free, Duration::ZERO, "after a try").await;
        let wait = Duration::from_secs(3);
        let waited = asked(&proxy, &locks).wait(wait).acquire();
        let waited = within(BUSY, "the wait ends", waited).await;
        assert!(
            matches!(&waited, Err(AcquireAllError::Lock { lock, error, .. })
                if lock == busy && matches!(**error, AcquireError::TimedOut(_))),
            "{waited:?}"
        );
        nothing_is_left(&bench, &free, Duration::ZERO, "after a time-out").await;
        holder.release().await.unwrap();
    }
    proxy.assert_guarded();
    bench.finish().await;
}

/// The earlier lock is held, and renewed, for as long as the later one is waited for; whoever goes away leaves both.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_while_it_waits_for_a_later_lock_leaves_nothing() {
    let (bench, holder, proxy) = b_is_held().await;
    for withdraws in [true, false] {
        let asking = asked(&proxy, &["b", "a"]).begin();
        bench.until_waiting(1).await;
        let of_a = bench.lease("a").await;
        assert!(of_a.spec.holder.starts_with("a/"), "{of_a:?}");
        proxy.more_puts(3).await;
        let later = bench.lease("a").await;
        assert_eq!(of_a.grant_id(), later.grant_id());
        let limit = if withdraws {
            asking.withdraw().await;
            Duration::ZERO
        } else {
            drop(asking);
            BUSY
        };
        nothing_is_left(&bench, &["a"], limit, "after it has gone").await;
    }
    assert_eq!(bench.lease("b").await.next, None);
    holder.release().await.unwrap();
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_lost_while_a_later_one_is_waited_for_is_taken_again_with_all() {
    let (bench, holder, proxy) = b_is_held().await;
    let (sender, mut told) = mpsc::unbounded_channel();
    let mut asking = asked(&proxy, &["a", "b"])
        .on_progress(move |progress| {
            if let Progress::StartingOver {
                lock,
                reason,
                waited_for,
            } = progress
            {
                let _ = sender.send((lock.clone(), *reason, waited_for.clone()));
            }
        })
        .begin();
    bench.until_waiting(1).await;
    let first_claim = bench.claims().list(&ListParams::default()).await.unwrap();
    let first_token = bench.lease("a").await.current_token().unwrap();
    let floor = json!({"minFencingToken": first_token.get() + 1});
    bench.edit_lock("a", floor).await;
    let told = within(BUSY, "it is told", told.recv()).await.unwrap();
    assert_eq!(told, ("a".into(), LossReason::Revoked, "b".into()));
    until("a is taken again", BUSY, async || {
        let token = bench.lease("a").await.current_token();
        token.is_some_and(|token| token > first_token)
    })
    .await;
    until("it waits again", BUSY, async || {
        let claims = bench.claims().list(&ListParams::default()).await.unwrap();
        let names: Vec<_> = claims.iter().map(ResourceExt::name_any).collect();
        names.len() == 1 && names[0] != first_claim.items[0].name_any()
    })
    .await;
    holder.release().await.unwrap();
    let guards = within(BUSY, "both are had", asking.outcome())
        .await
        .unwrap();
    assert!(guards.is_held() && guards.token("a").unwrap() > first_token);
    drop(guards);
    nothing_is_left(&bench, &["a", "b"], BUSY, "after a drop").await;
    bench.finish().await;
}

/// Without time to start over the answer says what was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_lost_while_waiting_with_no_time_left_leaves_nothing() {
    let (bench, holder, proxy) = b_is_held().await;
    // To leave the queue takes longer than there is time.
    let late = Fault::DelayRequest(Duration::from_secs(5));
    proxy.always("delete", "lockclaims", late);
    let wait = Duration::from_secs(4);
    let mut asking = asked(&proxy, &["a", "b"]).wait(wait).begin();
    bench.until_waiting(1).await;
    bench
        .edit_lease("a", json!({"spec": {"holderIdentity": "somebody/else"}}))
        .await;
    let outcome = within(BUSY * 2, "it ends", asking.outcome()).await;
    let Err(AcquireAllError::Lost { lost, waited_for }) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!((lost.lock.as_str(), waited_for.as_str()), ("a", "b"));
    assert_eq!(lost.reason, LossReason::TakenOver);
    assert_eq!(bench.waiting().await, 0);
    assert_eq!(bench.lease("b").await.next, None);
    holder.release().await.unwrap();
    bench.finish().await;
}

/// Whichever call is refused, lost or not answered: either both locks are held, or neither is, and nobody waits. The calls
/// of the release are among them.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_any_call_leaves_all_or_none() {
    let mut faults = vec![
        Fault::CommitThenDrop,
        Fault::Refuse(503),
        Fault::Refuse(403),
        Fault::CommitThen(504),
        Fault::Hang,
    ];
    if long() {
        let delay = Duration::from_millis(700);
        faults.extend([Fault::DelayRequest(delay), Fault::DelayAnswer(delay)]);
    }
    let bench = two_locks().await;
    let mut cases = Vec::new();
    for waits in [false, true] {
        let calls = two_locks_with(&bench, None, waits).await;
        for index in 0..calls {
            let each = faults.iter().map(|fault| (index, fault.clone(), waits));
            cases.extend(each);
        }
    }
    bench.finish().await;
    // Most of them wait most of the time.
    let cases = Mutex::new(cases.into_iter());
    let lanes = (0..16).map(async |_| {
        let bench = two_locks().await;
        loop {
            let case = cases.lock().unwrap().next();
            let Some((index, fault, waits)) = case else {
                break;
            };
            Box::pin(two_locks_with(&bench, Some((index, fault)), waits)).await;
        }
        bench.finish().await;
    });
    join_all(lanes).await;
}

/// Free locks `a` and `b`, of so many seconds that a busy machine loses none.
async fn two_locks() -> Bench {
    let bench = Bench::new().await;
    for lock in ["a", "b"] {
        bench.opened(lock, 15).await;
    }
    bench
}

/// Two locks are asked for and given back, the later one after a wait if `waits`, while one of the calls meets a fault:
/// how many calls there were.
async fn two_locks_with(bench: &Bench, fault: Option<(usize, Fault)>, waits: bool) -> usize {
    let locks = ["a", "b"];
    let when = format!("with {fault:?}, waiting: {waits}");
    let holder = if waits {
        Some(bench.hold("b", "holder").await)
    } else {
        None
    };
    let proxy = Proxy::new(bench).await;
    let is_well = fault.is_none();
    if let Some((index, fault)) = fault {
        proxy.fault("*", "*", index, Fault::Pass);
        proxy.fault("*", "*", 1, fault);
    }
    let wait = if is_well {
        BUSY
    } else {
        Duration::from_secs(4)
    };
    let mut asking = asked(&proxy, &locks).wait(wait).begin();
    let releasing = async {
        if let Some(holder) = holder {
            bench.until_waiting(1).await;
            holder.release().await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! {
        outcome = within(BUSY * 2, &when, asking.outcome()) => outcome,
        () = releasing => unreachable!(),
    };
    match outcome {
        Ok(guards) => {
            for guard in guards.iter() {
                let record = bench.lease(guard.lock()).await;
                assert_eq!(record.spec.holder, guard.identity(), "{when}");
                assert_eq!(record.current_token(), Some(guard.token()), "{when}");
            }
            are_given_back(bench, &proxy, guards, &when).await;
        }
        Err(error) => {
            assert!(!is_well, "without a fault they are had: {error}");
            eprintln!("{when}: {error}");
        }
    }
    nothing_is_left(bench, &locks, BUSY, &when).await;
    proxy.assert_guarded_if_written();
    proxy.calls().len()
}

/// Each lock is given back, the last one first, whatever the fault; but for one that a slow machine had lost before.
async fn are_given_back(bench: &Bench, proxy: &Proxy, guards: Guards, when: &str) {
    let before = proxy.calls().len();
    let mut confirmed = Vec::new();
    for one in guards.release().await {
        match one
            .outcome
            .unwrap_or_else(|error| panic!("{when}: {error}"))
        {
            Released::Confirmed => confirmed.push(one.lock),
            Released::AlreadyLost(_) => {
                let next = bench.hold(&one.lock, "next").await;
                next.release().await.unwrap();
            }
        }
    }
    let mut freed = grants(&proxy.calls()[before..], false);
    freed.retain(|lock| confirmed.contains(lock));
    freed.dedup();
    assert_eq!(freed, confirmed, "{when}");
    assert!(confirmed.is_sorted_by(|one, next| one > next), "{when}");
}

/// As with one lock: a time-out around it, at any moment.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_of_several_that_is_dropped_at_any_moment_leaves_nothing() {
    let (bench, locks) = three_locks().await;
    let proxy = Proxy::new(&bench).await;
    let some_ms = |most| Duration::from_millis(rand::random_range(0..most));
    for round in 0..if long() { 500 } else { 30 } {
        let fault = match round % 3 {
            0 => Fault::DelayRequest(some_ms(120)),
            1 => Fault::DelayAnswer(some_ms(120)),
            _ => Fault::CommitThenDrop,
        };
        proxy.fault("update", "leases", round % 4, Fault::Pass);
        proxy.fault("update", "leases", 1, fault);
        let cut = some_ms(250);
        if let Ok(guards) = timeout(cut, asked(&proxy, &locks).acquire()).await {
            let _ = timeout(some_ms(50), guards.unwrap().release()).await;
        }
        // A lease is 15 s here: nobody waits for one to end.
        let when = format!("in round {round}, cut after {cut:?}");
        nothing_is_left(&bench, &locks, Duration::from_secs(8), &when).await;
        proxy.heal();
    }
    proxy.assert_guarded();
    bench.finish().await;
}

/// Named in any order by everybody, and nobody waits for good.
#[tokio::test(flavor = "multi_thread")]
async fn many_who_name_the_same_locks_in_other_orders_all_get_their_turn() {
    let (bench, locks) = three_locks().await;
    let library = bench.library().await;
    let mut tasks = Vec::new();
    for number in 0..6 {
        let mut names = locks.to_vec();
        names.rotate_left(number % 3);
        if number >= 3 {
            names.reverse();
            names.truncate(2);
        }
        let library = library.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..if long() { 100 } else { 10 } {
                let locks = names.iter().map(|name| library.lock(name));
                let who = format!("c{number}");
                let guards = client::all(locks).claimant(&who).acquire().await.unwrap();
                assert!(guards.is_held());
                for one in guards.release().await {
                    one.outcome.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        within(BUSY * 4, "everybody is served", task).await.unwrap();
    }
    nothing_is_left(&bench, &locks, BUSY, "after all").await;
    bench.finish().await;
}

/// For one of them there is no time to wait: it is tried, and had if it is free.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_that_is_not_to_be_waited_for_is_tried() {
    let (bench, holder, proxy) = b_is_held().await;
    let library = proxy.locks();
    let asked = || {
        let locks = [library.lock("a"), library.lock("b").wait(Duration::ZERO)];
        client::all(locks).claimant("a")
    };
    for outcome in [asked().acquire().await, asked().try_acquire().await] {
        let error = outcome.unwrap_err();
        let AcquireAllError::Lock { lock, error, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(lock, "b");
        assert!(matches!(*error, AcquireError::Busy(_)), "{error}");
    }
    nothing_is_left(&bench, &["a"], BUSY, "after a try").await;
    holder.release().await.unwrap();
    had(asked()).await.release().await;
    let tried = asked().try_acquire().await;
    tried.unwrap().release().await;
    bench.finish().await;
}
