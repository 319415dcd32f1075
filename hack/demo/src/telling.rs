//! One telling: ten contenders, one of them struck at 85 s, until all customers are charged.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::Client;

use crate::ledger::{self, Address};
use crate::pod::{Exit, News, Pod};
use crate::record::{Activity, CONTENDERS, FREEZE, Kind, Record, THAW, Tenure};
use crate::said::{Said, now};
use crate::speed::Speed;
use crate::stage::{NAMESPACE, Stage, last_words};
use crate::words::{Live, thousands};

/// How often it looks how far the ledger is.
const TICK: Duration = Duration::from_millis(500);
/// How long it waits for the first holder.
const BEGIN: Duration = Duration::from_secs(30);
/// How much longer than the story a telling may take: what is left is charged as fast as the ledger takes it.
const OVERTIME: Duration = Duration::from_mins(2);
/// `leasehold run` lost its lock while its command ran.
const EXIT_LOST: i32 = 76;

/// Tells it.
pub(crate) async fn tell(
    stage: &Stage,
    live: &Live,
    kind: Kind,
    speed: Speed,
    customers: u32,
) -> Result<Record> {
    live.begin(kind);
    let address = stage.ledger(kind.name());
    let client = ledger::open(&address, customers).await?;
    let lock = format!("nightly-billing-{}", kind.name());
    stage
        .make_lock(&lock, speed.lease_seconds(kind.lease()))
        .await?;

    let (send, news) = unbounded_channel();
    let mut pods = Vec::new();
    for index in 0..CONTENDERS {
        let around = stage.surroundings(kind.name(), &pod_name(index));
        let command = contender(stage, &address, kind, speed, customers, &lock, index)?;
        pods.push(Pod::start(&around, &command, index, send.clone())?);
    }
    let telling = Telling {
        stage,
        live,
        kind,
        speed,
        customers: u64::from(customers),
        client,
        pods,
        news,
        begin: 0,
        tenures: Vec::new(),
        exited: [false; CONTENDERS],
        struck: None,
        thawed: None,
    };
    let record = telling
        .run()
        .await
        .with_context(|| format!("the telling {} broke off", kind.name()));
    live.end(kind);
    record
}

fn pod_name(index: usize) -> String {
    format!("pod-{index}")
}

/// The command at the root of a Pod.
fn contender(
    stage: &Stage,
    ledger: &Address,
    kind: Kind,
    speed: Speed,
    customers: u32,
    lock: &str,
    index: usize,
) -> Result<Vec<OsString>> {
    let this = std::env::current_exe().context("can't find this program")?;
    let contend: [OsString; 2] = if kind.renews() {
        [stage.leasehold.clone().into(), "run".into()]
    } else {
        [this.clone().into(), "contend".into()]
    };
    let mut command = Vec::from(contend);
    let pod = pod_name(index);
    command
        .extend(["--lock", lock, "--namespace", NAMESPACE, "--as", &pod, "--"].map(OsString::from));
    command.extend([
        this.into(),
        "bill".into(),
        "--ledger-socket".into(),
        ledger.ledger_socket.clone().into(),
    ]);
    let options = [
        ("--ledger-port", ledger.ledger_port.to_string()),
        ("--schema", ledger.schema.clone()),
        ("--customers", customers.to_string()),
        ("--pace-millis", speed.real(FREEZE).as_millis().to_string()),
    ];
    command.extend(
        options
            .into_iter()
            .flat_map(|(option, value)| [option.into(), value.into()]),
    );
    if kind.has_gate() {
        command.push("--gate".into());
    }
    Ok(command)
}

/// A telling under way.
struct Telling<'a> {
    stage: &'a Stage,
    live: &'a Live,
    kind: Kind,
    speed: Speed,
    customers: u64,
    client: Client,
    pods: Vec<Pod>,
    news: UnboundedReceiver<(usize, News)>,
    /// The wall clock at story second 0.
    begin: i64,
    tenures: Vec<Tenure>,
    exited: [bool; CONTENDERS],
    struck: Option<f64>,
    thawed: Option<f64>,
}

impl Telling<'_> {
    async fn run(mut self) -> Result<Record> {
        while self.tenures.is_empty() {
            let news = tokio::time::timeout(BEGIN, self.news.recv()).await;
            let (pod, news) = news
                .context("nobody took the lock")?
                .context("all Pods are gone")?;
            self.hear(pod, &news)?;
        }
        let mut tick = tokio::time::interval(TICK);
        while !self.is_over() {
            let act = tokio::time::sleep(self.next_act());
            tokio::select! {
                // News first: what happened before an act is told before it.
                biased;
                news = self.news.recv() => {
                    let (pod, news) = news.context("all Pods are gone")?;
                    self.hear(pod, &news)?;
                }
                () = act => self.act().await?,
                _ = tick.tick() => {
                    let charges = ledger::count(&self.client).await?;
                    self.live.progress(self.kind, self.story(now()), charges);
                }
            }
        }
        self.record().await
    }

    fn story(&self, at: i64) -> f64 {
        self.speed.story(self.begin, at)
    }

    fn event(&self, at: f64, pod: usize, text: &str) {
        self.live
            .event(self.kind, at, &format!("{:<6}  {text}", pod_name(pod)));
    }

    /// How long until the story's next act; at its end that is the latest moment for all to be over.
    fn next_act(&self) -> Duration {
        let (at, extra) = match (self.struck, self.thawed) {
            (None, _) => (FREEZE, Duration::ZERO),
            (Some(_), None) if self.kind.freezes() => (THAW, Duration::ZERO),
            _ => (THAW, OVERTIME),
        };
        let passed = Duration::from_micros((now() - self.begin).max(0).unsigned_abs());
        (self.speed.real(at) + extra).saturating_sub(passed)
    }

    async fn act(&mut self) -> Result<()> {
        let first = self.tenures[0].pod;
        match (self.struck, self.thawed) {
            (None, _) => self.strike(first).await,
            (Some(_), None) if self.kind.freezes() => {
                self.pods[first].thaw();
                let at = self.story(now());
                self.thawed = Some(at);
                self.event(
                    at,
                    first,
                    "thaws: SIGCONT, and it goes on with the list that it had loaded",
                );
                Ok(())
            }
            _ => {
                let running: Vec<_> = (0..CONTENDERS)
                    .filter(|pod| !self.exited[*pod])
                    .map(pod_name)
                    .collect();
                bail!(
                    "it does not end: {} did not, {} tenures",
                    running.join(", "),
                    self.tenures.len()
                )
            }
        }
    }

    async fn strike(&mut self, pod: usize) -> Result<()> {
        let at = self.story(now());
        let processes = if self.kind.freezes() {
            self.pods[pod].freeze()
        } else {
            self.pods[pod].kill()
        };
        self.struck = Some(at);
        let charges = thousands(ledger::count(&self.client).await?);
        let (what, signal) = if self.kind.freezes() {
            ("freezes", "SIGSTOP")
        } else {
            ("dies", "SIGKILL")
        };
        self.event(
            at,
            pod,
            &format!(
                "{what}: {signal} for its {processes} processes; {charges} customers are charged"
            ),
        );
        Ok(())
    }

    fn hear(&mut self, pod: usize, news: &News) -> Result<()> {
        match *news {
            News::Said(Said::Took { at, token, .. } | Said::Started { at, token, .. }) => {
                self.took(pod, at, token);
            }
            News::Said(Said::ShutOut { at }) => {
                self.event(
                    self.story(at),
                    pod,
                    "is shut out by the gate before it begins",
                );
            }
            News::Said(Said::Loaded { at, customers }) => {
                if customers > 0 {
                    self.event(
                        self.story(at),
                        pod,
                        &format!("loads {} customers to charge", thousands(customers)),
                    );
                }
            }
            News::Said(Said::Ended {
                at,
                charged,
                refused,
            }) => {
                let text = match (charged, refused) {
                    (0, 0) => "finds nothing left to charge".to_owned(),
                    (_, 0) => format!("is done: {} charged", thousands(charged)),
                    _ => format!(
                        "is done: {} charged, {} refused",
                        thousands(charged),
                        thousands(refused)
                    ),
                };
                self.event(self.story(at), pod, &text);
            }
            News::Exited { at, how } => self.left(pod, at, how)?,
        }
        Ok(())
    }

    fn took(&mut self, pod: usize, at: i64, token: i64) {
        if self
            .tenures
            .iter()
            .any(|tenure| tenure.token == token && tenure.pod == pod)
        {
            return;
        }
        if self.tenures.is_empty() {
            self.begin = at;
        }
        let start = self.story(at);
        self.event(start, pod, &format!("has the lock, token {token}"));
        self.tenures.push(Tenure {
            pod,
            token,
            start,
            end: None,
        });
    }

    fn left(&mut self, pod: usize, at: i64, how: Exit) -> Result<()> {
        self.exited[pod] = true;
        let at = self.story(at);
        let struck =
            self.struck.is_some() && self.tenures.first().is_some_and(|first| first.pod == pod);
        let Some(tenure) = self.tenures.iter_mut().find(|tenure| tenure.pod == pod) else {
            let log = self
                .stage
                .surroundings(self.kind.name(), &pod_name(pod))
                .log;
            bail!(
                "{} ended before its turn ({how:?}): {}",
                pod_name(pod),
                last_words(&log)
            );
        };
        tenure.end = Some(at);
        match how {
            Exit::Code(0) => {}
            Exit::Signal(_) if struck && !self.kind.freezes() => {}
            Exit::Code(EXIT_LOST) => {
                self.event(
                    at,
                    pod,
                    "has lost the lock: leasehold run ended its work (exit 76)",
                );
            }
            Exit::Code(code) => self.event(at, pod, &format!("ends with code {code}")),
            Exit::Signal(signal) => self.event(at, pod, &format!("ends by signal {signal}")),
        }
        Ok(())
    }

    /// All has happened that the story is about. Who only waits for a plain lease to end waits in vain.
    fn is_over(&self) -> bool {
        let acts = self.struck.is_some() && (self.thawed.is_some() || !self.kind.freezes());
        let all = (0..CONTENDERS).all(|pod| self.exited[pod]);
        let holders =
            self.tenures.len() >= 2 && self.tenures.iter().all(|tenure| self.exited[tenure.pod]);
        acts && (all || (holders && !self.kind.renews()))
    }

    async fn record(self) -> Result<Record> {
        let length = i64::try_from(self.speed.real(1.0).as_micros())?;
        let slices = ledger::slices(&self.client, self.begin, length).await?;
        let activity = slices.into_iter().filter_map(|slice| {
            let claimant = slice.holder.split('/').next().unwrap_or_default();
            Some(Activity {
                pod: (0..CONTENDERS).find(|pod| pod_name(*pod) == claimant)?,
                second: slice.number,
                charged: slice.charged,
                duplicates: slice.duplicates,
                refused: slice.refused,
            })
        });
        let totals = ledger::totals(&self.client).await?;
        Ok(Record {
            kind: self.kind,
            factor: self.speed.factor(),
            customers: self.customers,
            charges: totals.charges,
            charged_customers: totals.customers,
            refused: totals.refused,
            end: self.story(now()),
            activity: activity.collect(),
            tenures: self.tenures,
            struck: self.struck.unwrap_or_default(),
            thawed: self.thawed,
        })
    }
}
