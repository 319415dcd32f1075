//! Every gate keeps the same promise (R10): one set of checks, run against each.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leasehold::api::FencingToken;
use leasehold::fence::postgres::{self, GateError};
use leasehold::fence::{MemoryGate, Pass, Place, Refused};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};
use xtask::postgres::Postgres;

use crate::server::within;

const SOON: Duration = Duration::from_secs(20);

/// A gate under test.
trait Gate: Clone + Send + Sync + 'static {
    fn raise(&self, place: &Place, pass: &Pass)
    -> impl Future<Output = Result<(), Refused>> + Send;

    /// Shows the pass, says how that went, and if let in runs until `finish`.
    fn work(
        &self,
        place: Place,
        pass: Pass,
        admitted: oneshot::Sender<Result<(), Refused>>,
        finish: oneshot::Receiver<()>,
    ) -> impl Future<Output = ()> + Send;

    /// Returns when somebody waits to be let in with `pass`.
    fn somebody_waits(&self, place: &Place, pass: &Pass) -> impl Future<Output = ()> + Send;
}

/// Starts work in a task of its own; also if refused it goes on until told to finish.
async fn start(gate: &impl Gate, place: &Place, pass: &Pass) -> Result<Work, (Refused, Work)> {
    let (admitted, answer) = oneshot::channel();
    let (finish, finished) = oneshot::channel();
    let (gate, place, pass) = (gate.clone(), place.clone(), pass.clone());
    let task = tokio::spawn(async move { gate.work(place, pass, admitted, finished).await });
    let work = Work { finish, task };
    match within(SOON, "the gate answers", answer)
        .await
        .expect("an answer")
    {
        Ok(()) => Ok(work),
        Err(refused) => Err((refused, work)),
    }
}

/// A piece of work, let in or not, that has not finished.
#[derive(Debug)]
struct Work {
    finish: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Work {
    async fn finish(self) {
        let _ = self.finish.send(());
        within(SOON, "the work finishes", self.task)
            .await
            .expect("it does not panic");
    }
}

impl Gate for MemoryGate {
    async fn raise(&self, place: &Place, pass: &Pass) -> Result<(), Refused> {
        MemoryGate::raise(self, place, pass).await
    }

    async fn work(
        &self,
        place: Place,
        pass: Pass,
        admitted: oneshot::Sender<Result<(), Refused>>,
        finish: oneshot::Receiver<()>,
    ) {
        let outcome = self.admit(&place, &pass).await;
        let (admission, answer) = match outcome {
            Ok(admission) => (Some(admission), Ok(())),
            Err(refused) => (None, Err(refused)),
        };
        let _ = admitted.send(answer);
        let _ = finish.await;
        drop(admission);
    }

    async fn somebody_waits(&self, place: &Place, pass: &Pass) {
        while self.kept(place).as_ref() != Some(pass) {
            tokio::task::yield_now().await;
        }
    }
}

#[derive(Clone)]
struct InPostgres(Arc<Postgres>);

impl InPostgres {
    async fn connect(&self) -> Client {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.0.socket_dir()).port(self.0.port());
        config.user(Postgres::USER).dbname(Postgres::DATABASE);
        let (client, connection) = config.connect(NoTls).await.expect("the server is up");
        tokio::spawn(connection);
        client
    }
}

fn answer_of(result: Result<(), GateError>) -> Result<(), Refused> {
    match result {
        Ok(()) => Ok(()),
        Err(GateError::Refused(refused)) => Err(refused),
        Err(other) => panic!("{other}"),
    }
}

impl Gate for InPostgres {
    async fn raise(&self, place: &Place, pass: &Pass) -> Result<(), Refused> {
        answer_of(postgres::raise(&self.connect().await, place, pass).await)
    }

    async fn work(
        &self,
        place: Place,
        pass: Pass,
        admitted: oneshot::Sender<Result<(), Refused>>,
        finish: oneshot::Receiver<()>,
    ) {
        let mut client = self.connect().await;
        let transaction = client.transaction().await.expect("a transaction");
        let answer = answer_of(postgres::admit(&transaction, &place, &pass).await);
        let refused = answer.is_err();
        let _ = admitted.send(answer);
        let _ = finish.await;
        if refused {
            transaction.rollback().await.expect("it ends");
        } else {
            transaction.commit().await.expect("it commits");
        }
    }

    async fn somebody_waits(&self, _: &Place, _: &Pass) {
        let client = self.connect().await;
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        while client
            .query_one(waiting, &[])
            .await
            .expect("an answer")
            .get::<_, i64>(0)
            == 0
        {
            tokio::task::yield_now().await;
        }
    }
}

fn pass(token: i64, holder: &str) -> Pass {
    Pass::new(FencingToken::new(token).expect("a token"), holder)
}

async fn keeps_the_promise(gate: impl Gate) {
    lets_in_what_is_not_older(&gate).await;
    finishes_older_work_before_it_lets_newer_in(&gate).await;
    is_not_held_up_by_what_it_refused(&gate).await;
    never_runs_older_work_beside_newer(&gate).await;
}

async fn lets_in_what_is_not_older(gate: &impl Gate) {
    let place = Place::new("team-a", "order", 0);
    let (old, new) = (pass(41, "pod-3/a"), pass(42, "pod-7/b"));
    gate.raise(&place, &old).await.expect("the first");
    let first = start(gate, &place, &old)
        .await
        .expect("what was raised is let in");
    let second = start(gate, &place, &old)
        .await
        .expect("equal ones run side by side");
    let (refused, other) = start(gate, &place, &pass(41, "pod-7/b"))
        .await
        .expect_err("another's");
    assert_eq!(
        refused,
        Refused {
            shown: pass(41, "pod-7/b"),
            kept: old.clone()
        }
    );
    for work in [first, second, other] {
        work.finish().await;
    }

    start(gate, &place, &new)
        .await
        .expect("a higher one needs no raise")
        .finish()
        .await;
    let (refused, work) = start(gate, &place, &old).await.expect_err("older");
    work.finish().await;
    assert_eq!(refused.kept, new);
    assert_eq!(gate.raise(&place, &old).await.expect_err("older").kept, new);
    gate.raise(&place, &new)
        .await
        .expect("raising twice is no change");
    for elsewhere in [
        Place::new("team-b", "order", 0),
        Place::new("team-a", "other", 0),
        Place::new("team-a", "order", 1),
    ] {
        gate.raise(&elsewhere, &old)
            .await
            .expect("each place has tokens of its own");
    }
}

async fn finishes_older_work_before_it_lets_newer_in(gate: &impl Gate) {
    let place = Place::new("team-a", "finish", 0);
    let (old, new) = (pass(41, "pod-3/a"), pass(42, "pod-7/b"));
    let running = start(gate, &place, &old).await.expect("let in");
    let raise = {
        let (gate, place, new) = (gate.clone(), place.clone(), new.clone());
        tokio::spawn(async move { gate.raise(&place, &new).await })
    };
    within(SOON, "the raise waits", gate.somebody_waits(&place, &new)).await;
    assert!(
        !raise.is_finished(),
        "a higher token was let in while older work ran"
    );
    running.finish().await;
    within(SOON, "the raise is done", raise)
        .await
        .expect("no panic")
        .expect("it is higher");
    let (refused, work) = start(gate, &place, &old).await.expect_err("older");
    work.finish().await;
    assert_eq!(refused.kept, new);
}

async fn is_not_held_up_by_what_it_refused(gate: &impl Gate) {
    let place = Place::new("team-a", "refused", 0);
    gate.raise(&place, &pass(42, "pod-7/b"))
        .await
        .expect("the first");
    let (_, refused) = start(gate, &place, &pass(41, "pod-3/a"))
        .await
        .expect_err("older");
    within(SOON, "the raise", gate.raise(&place, &pass(43, "pod-1/c")))
        .await
        .expect("higher");
    refused.finish().await;
}

async fn never_runs_older_work_beside_newer(gate: &impl Gate) {
    let place = Place::new("team-a", "beside", 0);
    let highest = Arc::new(AtomicI64::new(0));
    let mut all = Vec::new();
    for round in 0_i64..60 {
        // Tokens come up and down, several at a time: 1 4 7 5 3 6 9 7 5 …
        let token = 1 + round / 2 + (round * 7) % 5;
        let (gate, place, highest) = (gate.clone(), place.clone(), Arc::clone(&highest));
        all.push(tokio::spawn(async move {
            match start(&gate, &place, &pass(token, "one")).await {
                Ok(work) => {
                    highest.fetch_max(token, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    assert_eq!(
                        highest.load(Ordering::SeqCst),
                        token,
                        "newer work was let in beside it"
                    );
                    work.finish().await;
                    true
                }
                Err((refused, work)) => {
                    assert!(refused.kept.token.get() > token);
                    work.finish().await;
                    false
                }
            }
        }));
    }
    let mut admitted = 0;
    for task in all {
        admitted += i32::from(within(SOON, "all end", task).await.expect("no panic"));
    }
    assert!(admitted > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_gate_in_memory_keeps_the_promise() {
    keeps_the_promise(MemoryGate::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_gate_in_postgres_keeps_the_promise() {
    let gate = InPostgres(Arc::new(Postgres::start().expect("PostgreSQL starts")));
    let client = gate.connect().await;
    postgres::install(&client).await.expect("the table is made");
    postgres::install(&client)
        .await
        .expect("making it twice is no change");
    keeps_the_promise(gate.clone()).await;
    a_checked_statement_waits_for_a_raise_and_then_does_nothing(&gate).await;
    a_row_edited_by_hand_is_an_error(&gate).await;
}

async fn a_checked_statement_waits_for_a_raise_and_then_does_nothing(gate: &InPostgres) {
    let place = Place::new("team-a", "statement", 0);
    let (old, new) = (pass(41, "pod-3/a"), pass(42, "pod-7/b"));
    let client = gate.connect().await;
    client
        .batch_execute("CREATE TABLE charges (customer integer)")
        .await
        .expect("a table");
    let charge = |client: Client, shown: Pass| {
        let place = place.clone();
        async move {
            let statement = format!(
                "WITH gate AS ({}) INSERT INTO charges SELECT $6 FROM gate",
                postgres::CHECK
            );
            let Place {
                namespace,
                lock,
                slot,
            } = &place;
            client
                .execute(
                    &statement,
                    &[
                        namespace,
                        lock,
                        slot,
                        &shown.token.get(),
                        &shown.holder,
                        &1_i32,
                    ],
                )
                .await
                .expect("the statement is good")
        }
    };
    postgres::raise(&client, &place, &old)
        .await
        .expect("the first");
    assert_eq!(charge(gate.connect().await, old.clone()).await, 1);

    let raising = start(gate, &place, &new).await.expect("nothing runs");
    let late = tokio::spawn(charge(gate.connect().await, old.clone()));
    within(SOON, "the charge waits", gate.somebody_waits(&place, &old)).await;
    raising.finish().await;
    assert_eq!(
        within(SOON, "the charge ends", late)
            .await
            .expect("no panic"),
        0
    );
    assert_eq!(charge(gate.connect().await, new).await, 1);
}

async fn a_row_edited_by_hand_is_an_error(gate: &InPostgres) {
    let place = Place::new("team-a", "edited", 0);
    let client = gate.connect().await;
    postgres::raise(&client, &place, &pass(7, "pod-3/a"))
        .await
        .expect("the first");
    let edit = "UPDATE leasehold_gate SET token = 9007199254740992 WHERE lock = 'edited'";
    client
        .batch_execute(edit)
        .await
        .expect("the table allows it");
    let error = postgres::raise(&client, &place, &pass(8, "pod-3/a"))
        .await
        .expect_err("no token");
    assert!(matches!(error, GateError::Damaged(_)), "{error}");
}
