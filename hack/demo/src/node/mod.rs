//! The story in Pods, `cargo xtask demo --node`: the chart in a cluster with a node, ten Pods that contend, and what can
//! happen to a Pod. Times are seconds.

mod container;
mod log;
mod pods;
mod stage;

use std::time::Duration;

use anyhow::{Context, Result};
use kube::api::{Api, DeleteParams};
use leasehold::api::{DistributedLock, EndReason, FencingToken};
use leasehold::clock::MonoInstant;
use rustix::process::Signal;
use tokio::sync::mpsc::UnboundedSender;
use xtask::cluster::Component;

use self::container::Container;
use self::pods::Cast;
pub(crate) use self::stage::Stage;
use crate::chronicle::{Acts, Chronicle, Plot};
use crate::kind::Kind;
use crate::ledger;
use crate::pod::News;
use crate::record::{Record, pod_name};
use crate::said::now;
use crate::stage::{LOCK, last_words, make_lock};
use crate::words::Live;

/// When the holder is struck.
const BLOW: f64 = 4.0;
/// How much longer than a lease it is frozen, or the kubelet is away.
const SPARE: f64 = 2.0;
/// How long after the beginning of the next one a frozen one thaws, at least.
const AFTER_NEXT: f64 = 1.0;
/// How long the kubelet gives containers to end.
const GRACE: u32 = 6;
/// How much longer than its acts a telling may take.
const OVERTIME: Duration = Duration::from_mins(1);
/// How long the work thaws before those who would end it.
const HEAD_START: Duration = Duration::from_millis(300);
/// How long it has at most to be refused once.
const REFUSED: Duration = Duration::from_secs(10);

/// Tells it.
pub(crate) async fn tell(stage: &Stage, live: &Live, plot: Plot) -> Result<Record> {
    let kind = plot.kind;
    let (chronicle, news) = Chronicle::begin(live, plot, &stage.ledger(kind.name())).await?;
    let pace = Duration::from_secs_f64(BLOW + works_on(kind, plot.lease));
    let work = crate::bill::command(&stage.ledger_for_pods(kind.name()), plot, pace);
    let cast = Cast::start(stage, plot, &work, &news).await?;
    // Not before all of them run: now they queue up at once, and who is struck has somebody behind it.
    make_lock(&stage.client, &cast.namespace, LOCK, plot.lease).await?;
    let namespace = cast.namespace.clone();
    let mut acts = Blows {
        stage,
        plot,
        cast,
        news,
        struck: None,
    };
    let mut record = chronicle.tell(&mut acts).await?;
    record.ended_as = how_it_ended(stage, &namespace, &record).await?;
    Ok(record)
}

/// How the first grant ended, as the lock's history tells; it may have gaps.
async fn how_it_ended(
    stage: &Stage,
    namespace: &str,
    record: &Record,
) -> Result<Option<EndReason>> {
    let locks = Api::<DistributedLock>::namespaced(stage.client.clone(), namespace);
    let lock = locks.get(LOCK).await?;
    let first = record.tokens().first().copied();
    let mut history = lock.status.into_iter().flat_map(|status| status.history);
    Ok(history
        .find(|entry| entry.fencing_token.map(FencingToken::get) == first)
        .map(|entry| entry.reason))
}

/// How much longer than until the blow the work has something to do.
fn works_on(kind: Kind, lease: u32) -> f64 {
    match kind {
        Kind::Kubelet => f64::from(lease) + SPARE + 1.0,
        Kind::Forced => f64::from(GRACE) + 2.0,
        Kind::Deleted | Kind::Oom => 3.0,
        _ => 1.0,
    }
}

/// What is done to the holder's Pod, its container, or its node.
struct Blows<'a> {
    stage: &'a Stage,
    plot: Plot,
    cast: Cast,
    news: UnboundedSender<(usize, News)>,
    struck: Option<Container>,
}

impl Acts for Blows<'_> {
    fn next(&self, chronicle: &Chronicle<'_>) -> Option<f64> {
        let kind = self.plot.kind;
        match (chronicle.struck(), chronicle.relieved()) {
            (None, _) => Some(BLOW),
            (Some(struck), None) if kind.relief().is_some() => {
                let after_lease = struck + f64::from(self.plot.lease) + SPARE;
                // A frozen holder does not thaw before the next one has begun, however slow the machine is.
                let after_next = match chronicle.takeover() {
                    _ if !kind.freezes() => 0.0,
                    Some(next) => next + AFTER_NEXT,
                    None => after_lease + OVERTIME.as_secs_f64(),
                };
                Some(after_lease.max(after_next))
            }
            _ => None,
        }
    }

    async fn act(&mut self, chronicle: &mut Chronicle<'_>) -> Result<()> {
        if chronicle.struck().is_none() {
            self.strike(chronicle).await
        } else {
            self.relieve(chronicle).await
        }
    }

    fn overtime(&self) -> Duration {
        OVERTIME
    }

    fn last_words(&self, pod: usize) -> String {
        last_words(&self.cast.log(pod))
    }
}

impl Blows<'_> {
    async fn strike(&mut self, chronicle: &mut Chronicle<'_>) -> Result<()> {
        let first = chronicle.first()?;
        let name = pod_name(first);
        let pod = self.cast.api.get(&name).await?;
        let container = Container::of(&self.stage.cluster, &pod)?;
        container.tell_end(first, self.news.clone())?;
        let at = now();
        let words = match self.plot.kind {
            Kind::Frozen => {
                let processes = container.freeze().await?;
                format!("freezes: the freezer holds the {processes} processes of its container")
            }
            Kind::Kubelet => {
                self.stage.cluster.kill(Component::Kubelet)?;
                "works on, but the kubelet of its node is killed".to_owned()
            }
            Kind::Deleted => {
                let delete = DeleteParams::default();
                self.cast.api.delete(&name, &delete).await?;
                "is deleted, as kubectl delete does it".to_owned()
            }
            Kind::Oom => {
                container.let_first_process_be_killed()?;
                container.signal_work(Signal::USR1)?;
                "is asked by SIGUSR1 to take more memory than its limit".to_owned()
            }
            _ => {
                let delete = DeleteParams::default().grace_period(0);
                self.cast.api.delete(&name, &delete).await?;
                "is deleted by force, and its work is deaf to SIGTERM".to_owned()
            }
        };
        self.struck = Some(container);
        chronicle.note_blow(at, &words).await
    }

    async fn relieve(&mut self, chronicle: &mut Chronicle<'_>) -> Result<()> {
        if self.plot.kind == Kind::Kubelet {
            self.stage.cluster.start_again(Component::Kubelet)?;
            return chronicle.note_relief(now(), "still works; the kubelet is back");
        }
        let container = self.struck.as_ref().context("nothing is frozen")?;
        // In the worst order: the work before those who would end it.
        let others = container.stop_all_but_work()?;
        let at = now();
        container.thaw().await?;
        let words =
            "thaws, its work before leasehold run: it goes on with the list that it had loaded";
        chronicle.note_relief(at, words)?;
        let begin = MonoInstant::now();
        tokio::time::sleep(HEAD_START).await;
        while ledger::totals(&chronicle.ledger).await?.refused == 0
            && MonoInstant::now().saturating_duration_since(begin) < REFUSED
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        others.go_on();
        Ok(())
    }
}
