//! What is heard of a telling under way, wherever its contenders run, until all has happened that it is about.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::Client;

use crate::kind::Kind;
use crate::ledger::{self, Address};
use crate::pod::{Exit, News};
use crate::record::{Activity, Record, Tenure, pod_name};
use crate::said::{Said, now};
use crate::speed::Speed;
use crate::words::{Live, thousands};

/// How often it looks how far the ledger is.
const TICK: Duration = Duration::from_millis(500);
/// How long it waits for the first holder.
const BEGIN: Duration = Duration::from_secs(30);
/// `leasehold run` lost its lock while its command ran.
const EXIT_LOST: i32 = 76;

/// What is to be told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plot {
    /// Which telling.
    pub(crate) kind: Kind,
    /// How fast.
    pub(crate) speed: Speed,
    /// How many story seconds the lease has.
    pub(crate) lease: u32,
    /// How many contend.
    pub(crate) contenders: usize,
    /// How many customers there are.
    pub(crate) customers: u32,
    /// How many story seconds a slice of the picture has.
    pub(crate) slice: f64,
}

/// What is done to the holder, and when.
pub(crate) trait Acts {
    /// The story second of the next act; after the last one none.
    fn next(&self, chronicle: &Chronicle<'_>) -> Option<f64>;
    /// Does it.
    async fn act(&mut self, chronicle: &mut Chronicle<'_>) -> Result<()>;
    /// How much longer than its acts the telling may take: what is left is charged as fast as the ledger takes it.
    fn overtime(&self) -> Duration;
    /// What a contender said last, for the message of a failure.
    fn last_words(&self, pod: usize) -> String;
}

/// A telling under way.
pub(crate) struct Chronicle<'a> {
    live: &'a Live,
    /// What is told.
    pub(crate) plot: Plot,
    /// The way into the ledger.
    pub(crate) ledger: Client,
    /// Where the news come from.
    news: UnboundedReceiver<(usize, News)>,
    /// The wall clock at story second 0.
    begin: i64,
    tenures: Vec<Tenure>,
    exited: Vec<bool>,
    struck: Option<f64>,
    relieved: Option<f64>,
    /// The struck one's Pod object is gone.
    is_gone: bool,
    /// The process of the struck one's work has ended.
    has_ended: bool,
}

impl<'a> Chronicle<'a> {
    /// Opens the ledger. News go where the second of the two leads.
    pub(crate) async fn begin(
        live: &'a Live,
        plot: Plot,
        address: &Address,
    ) -> Result<(Self, UnboundedSender<(usize, News)>)> {
        live.begin(plot.kind);
        let ledger = ledger::open(address, plot.customers).await?;
        let (send, news) = unbounded_channel();
        let chronicle = Self {
            live,
            plot,
            ledger,
            news,
            begin: 0,
            tenures: Vec::new(),
            exited: vec![false; plot.contenders],
            struck: None,
            relieved: None,
            is_gone: false,
            has_ended: false,
        };
        Ok((chronicle, send))
    }

    /// Tells it to its end.
    pub(crate) async fn tell(mut self, acts: &mut impl Acts) -> Result<Record> {
        let kind = self.plot.kind;
        let told = self.tell_all(acts).await;
        let record = match told {
            Ok(()) => self.record().await,
            Err(error) => Err(error),
        };
        record.with_context(|| format!("the telling {} broke off", kind.name()))
    }

    async fn tell_all(&mut self, acts: &mut impl Acts) -> Result<()> {
        while self.tenures.is_empty() {
            let news = tokio::time::timeout(BEGIN, self.news.recv()).await;
            let (pod, news) = news
                .context("nobody took the lock")?
                .context("all Pods are gone")?;
            self.hear(pod, &news, acts)?;
        }
        let mut tick = tokio::time::interval(TICK);
        let mut last_act = now();
        while !self.is_over() {
            let next = acts.next(self);
            let wait = match next {
                Some(at) => self.until(at),
                None => acts.overtime().saturating_sub(since(last_act)),
            };
            tokio::select! {
                // News first: what happened before an act is told before it.
                biased;
                news = self.news.recv() => {
                    let (pod, news) = news.context("all Pods are gone")?;
                    self.hear(pod, &news, acts)?;
                }
                () = tokio::time::sleep(wait) => {
                    if next.is_none() {
                        return Err(self.endless());
                    }
                    acts.act(self).await?;
                    last_act = now();
                }
                _ = tick.tick() => {
                    let charges = ledger::count(&self.ledger).await?;
                    self.live.progress(self.plot.kind, self.story(now()), charges);
                }
            }
        }
        self.live.end(self.plot.kind);
        Ok(())
    }

    /// How long until a story second.
    fn until(&self, at: f64) -> Duration {
        self.plot.speed.real(at).saturating_sub(since(self.begin))
    }

    fn endless(&self) -> anyhow::Error {
        let running: Vec<_> = (0..self.plot.contenders)
            .filter(|pod| !self.has_left(*pod))
            .map(pod_name)
            .collect();
        anyhow::anyhow!(
            "it does not end: {} did not, {} tenures",
            running.join(", "),
            self.tenures.len()
        )
    }

    /// The story second of a moment of the wall clock.
    pub(crate) fn story(&self, at: i64) -> f64 {
        self.plot.speed.story(self.begin, at)
    }

    /// The one who holds the lock first, and is struck.
    pub(crate) fn first(&self) -> Result<usize> {
        let first = self.tenures.first().context("nobody has taken the lock")?;
        Ok(first.pod)
    }

    /// When the first holder was struck.
    pub(crate) fn struck(&self) -> Option<f64> {
        self.struck
    }

    /// When the next one began.
    pub(crate) fn takeover(&self) -> Option<f64> {
        self.tenures.get(1).map(|tenure| tenure.start)
    }

    /// When what struck it was undone.
    pub(crate) fn relieved(&self) -> Option<f64> {
        self.relieved
    }

    /// The first holder is struck, at this moment; with what is told of it.
    pub(crate) async fn note_blow(&mut self, at: i64, words: &str) -> Result<()> {
        let at = self.story(at);
        self.struck = Some(at);
        let charges = thousands(ledger::count(&self.ledger).await?);
        let words = format!("{words}; {charges} customers are charged");
        self.event(at, self.first()?, &words);
        Ok(())
    }

    /// What struck it is undone, at this moment.
    pub(crate) fn note_relief(&mut self, at: i64, words: &str) -> Result<()> {
        let at = self.story(at);
        self.relieved = Some(at);
        self.event(at, self.first()?, words);
        Ok(())
    }

    fn event(&self, at: f64, pod: usize, text: &str) {
        let text = format!("{:<6}  {text}", pod_name(pod));
        self.live.event(self.plot.kind, at, &text);
    }

    fn hear(&mut self, pod: usize, news: &News, acts: &impl Acts) -> Result<()> {
        match news {
            News::Said(said) => self.hear_word(pod, said),
            News::Exited { at, how } => {
                if !self.left(pod, *at, how) {
                    bail!(
                        "{} ended before its turn ({how:?}): {}",
                        pod_name(pod),
                        acts.last_words(pod)
                    );
                }
            }
            News::Gone { at } => {
                self.is_gone = true;
                self.event(self.story(*at), pod, "its Pod object is gone");
            }
            News::WorkEnded { at } => {
                let at = self.story(*at);
                self.has_ended = true;
                self.tenure_ends(pod, at);
                // Of the others the kubelet tells.
                if self.plot.kind == Kind::Forced {
                    self.event(at, pod, "its work has ended");
                }
            }
        }
        Ok(())
    }

    fn hear_word(&mut self, pod: usize, said: &Said) {
        match *said {
            Said::Took { at, token, .. } | Said::Started { at, token, .. } => {
                self.took(pod, at, token);
            }
            Said::ShutOut { at } => {
                let words = "is shut out by the gate before it begins";
                self.event(self.story(at), pod, words);
            }
            Said::Loaded { at, customers } => {
                if customers > 0 {
                    let words = format!("loads {} customers to charge", thousands(customers));
                    self.event(self.story(at), pod, &words);
                }
            }
            Said::Hoards { at } => {
                self.event(self.story(at), pod, "its memory runs away");
            }
            Said::Ended {
                at,
                charged,
                refused,
            } => {
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
                // The kubelet's word on the container comes seconds later.
                if self.plot.kind.is_in_pods() {
                    self.tenure_ends(pod, self.story(at));
                }
            }
        }
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

    fn tenure_ends(&mut self, pod: usize, at: f64) -> bool {
        let tenure = self.tenures.iter_mut().find(|tenure| tenure.pod == pod);
        tenure.map(|tenure| tenure.end.get_or_insert(at)).is_some()
    }

    /// False: it never had its turn.
    fn left(&mut self, pod: usize, at: i64, how: &Exit) -> bool {
        self.exited[pod] = true;
        let at = self.story(at);
        if !self.tenure_ends(pod, at) {
            return false;
        }
        let struck =
            self.struck.is_some() && self.tenures.first().is_some_and(|first| first.pod == pod);
        match how {
            Exit::Code(0) => {}
            Exit::Signal(_) if struck && self.plot.kind == Kind::Crash => {}
            Exit::Code(EXIT_LOST) => {
                let words = "has lost the lock: leasehold run ended its work (exit 76)";
                self.event(at, pod, words);
            }
            Exit::Code(code) => self.event(at, pod, &format!("ends with code {code}")),
            Exit::Signal(signal) => self.event(at, pod, &format!("ends by signal {signal}")),
            Exit::Container(reason, code) => {
                let words = format!("the kubelet reports: {reason}, exit code {code}");
                self.event(at, pod, &words);
            }
        }
        true
    }

    /// Of who is deleted, the kubelet may never report the end.
    fn has_left(&self, pod: usize) -> bool {
        let struck = self.tenures.first().is_some_and(|first| first.pod == pod);
        self.exited[pod] || (struck && self.is_gone && self.has_ended)
    }

    /// All has happened that the story is about. Who only waits for a plain lease to end waits in vain.
    fn is_over(&self) -> bool {
        let kind = self.plot.kind;
        let acts = self.struck.is_some() && (self.relieved.is_some() || kind.relief().is_none());
        let all = (0..self.plot.contenders).all(|pod| self.has_left(pod));
        let holders =
            self.tenures.len() >= 2 && self.tenures.iter().all(|tenure| self.has_left(tenure.pod));
        acts && (all || (holders && !kind.renews()))
    }

    async fn record(self) -> Result<Record> {
        let Plot {
            kind,
            speed,
            lease,
            contenders,
            customers,
            slice,
        } = self.plot;
        let length = i64::try_from(speed.real(slice).as_micros())?;
        let slices = ledger::slices(&self.ledger, self.begin, length).await?;
        let activity = slices.into_iter().filter_map(|slice| {
            let claimant = slice.holder.split('/').next().unwrap_or_default();
            Some(Activity {
                pod: (0..contenders).find(|pod| pod_name(*pod) == claimant)?,
                slice: slice.number,
                charged: slice.charged,
                duplicates: slice.duplicates,
                refused: slice.refused,
            })
        });
        let totals = ledger::totals(&self.ledger).await?;
        let token = self.tenures.first().map_or(0, |first| first.token);
        let last_charge = ledger::last_charge(&self.ledger, token).await?;
        let last_charge = last_charge.map(|at| self.story(at));
        Ok(Record {
            kind,
            factor: speed.factor(),
            lease: lease.into(),
            contenders,
            customers: customers.into(),
            charges: totals.charges,
            charged_customers: totals.customers,
            refused: totals.refused,
            end: self.story(now()),
            activity: activity.collect(),
            slice,
            struck: self.struck.unwrap_or_default(),
            relieved: self.relieved,
            last_charge,
            ended_as: None,
            tenures: self.tenures,
        })
    }
}

fn since(at: i64) -> Duration {
    Duration::from_micros((now() - at).max(0).unsigned_abs())
}
