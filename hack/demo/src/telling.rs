//! A telling on processes: ten contenders, one of them struck at 85 s, until all customers are charged.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::chronicle::{Acts, Chronicle, Plot};
use crate::ledger::Address;
use crate::pod::Pod;
use crate::record::{FREEZE, Record, THAW, pod_name};
use crate::said::now;
use crate::stage::{LOCK, NAMESPACE, Stage, last_words, make_lock};
use crate::words::Live;

/// How much longer than its acts a telling may take.
const OVERTIME: Duration = Duration::from_mins(2);

/// Tells it.
pub(crate) async fn tell(stage: &Stage, live: &Live, plot: Plot) -> Result<Record> {
    let kind = plot.kind;
    let address = stage.ledger(kind.name());
    let (chronicle, news) = Chronicle::begin(live, plot, &address).await?;
    let lock = format!("{LOCK}-{}", kind.name());
    let lease = plot.speed.lease_seconds(plot.lease);
    make_lock(&stage.client, NAMESPACE, &lock, lease).await?;

    let mut pods = Vec::new();
    for index in 0..plot.contenders {
        let around = stage.surroundings(kind.name(), &pod_name(index));
        let command = contender(stage, &address, plot, &lock, index)?;
        pods.push(Pod::start(&around, &command, index, news.clone())?);
    }
    let mut acts = Signals { stage, plot, pods };
    chronicle.tell(&mut acts).await
}

/// The command at the root of a Pod.
fn contender(
    stage: &Stage,
    ledger: &Address,
    plot: Plot,
    lock: &str,
    index: usize,
) -> Result<Vec<OsString>> {
    let this = std::env::current_exe().context("can't find this program")?;
    let contend: [OsString; 2] = if plot.kind.renews() {
        [stage.leasehold.clone().into(), "run".into()]
    } else {
        [this.clone().into(), "contend".into()]
    };
    let mut command = Vec::from(contend);
    let pod = pod_name(index);
    command
        .extend(["--lock", lock, "--namespace", NAMESPACE, "--as", &pod, "--"].map(OsString::from));
    command.push(this.into());
    let work = crate::bill::command(ledger, plot, plot.speed.real(FREEZE));
    command.extend(work.into_iter().map(OsString::from));
    Ok(command)
}

/// SIGSTOP and SIGCONT, or SIGKILL.
struct Signals<'a> {
    stage: &'a Stage,
    plot: Plot,
    pods: Vec<Pod>,
}

impl Acts for Signals<'_> {
    fn next(&self, chronicle: &Chronicle<'_>) -> Option<f64> {
        match (chronicle.struck(), chronicle.relieved()) {
            (None, _) => Some(FREEZE),
            (Some(_), None) if self.plot.kind.freezes() => Some(THAW),
            _ => None,
        }
    }

    async fn act(&mut self, chronicle: &mut Chronicle<'_>) -> Result<()> {
        let pod = &self.pods[chronicle.first()?];
        if chronicle.struck().is_some() {
            pod.thaw();
            let words = "thaws: SIGCONT, and it goes on with the list that it had loaded";
            return chronicle.note_relief(now(), words);
        }
        let at = now();
        let words = if self.plot.kind.freezes() {
            format!("freezes: SIGSTOP for its {} processes", pod.freeze())
        } else {
            format!("dies: SIGKILL for its {} processes", pod.kill())
        };
        chronicle.note_blow(at, &words).await
    }

    fn overtime(&self) -> Duration {
        OVERTIME
    }

    fn last_words(&self, pod: usize) -> String {
        let around = self
            .stage
            .surroundings(self.plot.kind.name(), &pod_name(pod));
        last_words(&around.log)
    }
}
