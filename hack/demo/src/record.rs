//! What happened in one telling, and whether it is what the story promises. Times are story seconds since the first
//! holder began.

use clap::ValueEnum;
use serde::Serialize;

/// When the holder freezes, or is killed.
pub(crate) const FREEZE: f64 = 85.0;
/// When it thaws.
pub(crate) const THAW: f64 = 140.0;
/// How many contend.
pub(crate) const CONTENDERS: usize = 10;
/// The lease of those who do not renew it.
const PLAIN_LEASE: u32 = 120;
/// The lease of those who do.
const RENEWED_LEASE: u32 = 15;
/// How much later than the lease says another may begin: seconds of this machine, whatever the speed, for naive ...
const PLAIN_SLACK: f64 = 3.0;
/// ... and with Leasehold.
const RENEWED_SLACK: f64 = 2.0;

/// Which of the four tellings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// A plain 120 s lease, not renewed; the ledger checks nothing
    Naive,
    /// The same, but the ledger is a gate
    Fenced,
    /// `leasehold run`, a 15 s lease, renewed; the ledger is a gate
    Leasehold,
    /// The same, but holder and wrapper are killed
    Crash,
}

impl Kind {
    /// All, in the order of telling.
    pub(crate) const ALL: [Self; 4] = [Self::Naive, Self::Fenced, Self::Leasehold, Self::Crash];

    /// The name, in words, schemas and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Fenced => "fenced",
            Self::Leasehold => "leasehold",
            Self::Crash => "crash",
        }
    }

    /// What it is about.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Naive => "a plain 120 s lease, never renewed; the ledger checks nothing",
            Self::Fenced => "a plain 120 s lease, never renewed; the ledger is a gate for tokens",
            Self::Leasehold => {
                "leasehold run: a 15 s lease, renewed; the ledger is a gate for tokens"
            }
            Self::Crash => "leasehold run, and kill -9 for holder and wrapper",
        }
    }

    /// The lease, in story seconds.
    pub(crate) fn lease(self) -> u32 {
        if self.renews() {
            RENEWED_LEASE
        } else {
            PLAIN_LEASE
        }
    }

    /// Whether the contenders are `leasehold run`.
    pub(crate) fn renews(self) -> bool {
        matches!(self, Self::Leasehold | Self::Crash)
    }

    /// Whether the ledger compares tokens.
    pub(crate) fn has_gate(self) -> bool {
        self != Self::Naive
    }

    /// Whether the holder freezes; else it is killed.
    pub(crate) fn freezes(self) -> bool {
        self != Self::Crash
    }
}

/// One grant of the lock, and the work under it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tenure {
    /// Whose.
    pub(crate) pod: usize,
    /// The token.
    pub(crate) token: i64,
    /// When it began.
    pub(crate) start: f64,
    /// When the work ended, if it did.
    pub(crate) end: Option<f64>,
}

/// What one Pod wrote in one story second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Activity {
    /// Who.
    pub(crate) pod: usize,
    /// The second.
    pub(crate) second: i64,
    /// First charges of a customer.
    pub(crate) charged: u64,
    /// Further charges of a customer.
    pub(crate) duplicates: u64,
    /// What the gate refused.
    pub(crate) refused: u64,
}

/// One telling.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Which.
    pub(crate) kind: Kind,
    /// Story seconds in a second.
    pub(crate) factor: u32,
    /// How many customers there are.
    pub(crate) customers: u64,
    /// How many charges the ledger took.
    pub(crate) charges: u64,
    /// How many customers were charged at least once.
    pub(crate) charged_customers: u64,
    /// How many charges the ledger refused.
    pub(crate) refused: u64,
    /// The grants, in their order.
    pub(crate) tenures: Vec<Tenure>,
    /// When the first holder was frozen or killed.
    pub(crate) struck: f64,
    /// When it thawed.
    pub(crate) thawed: Option<f64>,
    /// Who wrote when.
    pub(crate) activity: Vec<Activity>,
    /// When it was over.
    pub(crate) end: f64,
}

impl Record {
    /// Charges beyond the first of a customer.
    pub(crate) fn duplicates(&self) -> u64 {
        self.charges - self.charged_customers
    }

    /// The tokens, in the order of their grants.
    pub(crate) fn tokens(&self) -> Vec<i64> {
        self.tenures.iter().map(|tenure| tenure.token).collect()
    }

    /// When the second holder began.
    pub(crate) fn takeover(&self) -> Option<f64> {
        self.tenures.get(1).map(|tenure| tenure.start)
    }

    /// Until when the lock was a tenure's: until the next one began, or it gave it back. The first one, which was
    /// struck, and those who never look back, give nothing back.
    pub(crate) fn held_until(&self, tenure: usize) -> f64 {
        let next = self
            .tenures
            .get(tenure + 1)
            .map_or(self.end, |next| next.start);
        let own = if self.kind.renews() && tenure > 0 {
            self.tenures[tenure].end
        } else {
            None
        };
        own.map_or(next, |own| own.min(next))
    }

    /// The numbers, as `--format json` prints them.
    pub(crate) fn numbers(&self) -> Numbers {
        Numbers {
            charges: self.charges,
            duplicates: self.duplicates(),
            refused: self.refused,
            tokens: self.tokens(),
            takeover_s: self.takeover().map(|at| (at * 10.0).round() / 10.0),
        }
    }

    /// What is not as the story promises.
    pub(crate) fn broken_promises(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut promise = |kept: bool, words: String| {
            if !kept {
                broken.push(format!("{}: {words}", self.kind.name()));
            }
        };
        let (duplicates, customers) = (self.duplicates(), self.customers);
        promise(
            self.charged_customers == customers,
            format!(
                "{} of {customers} customers were charged",
                self.charged_customers
            ),
        );
        if self.kind == Kind::Naive {
            // 30 % are left at the freeze, and the clocks of a busy machine may be off by a seventh of that.
            let (least, most) = (customers * 26 / 100, customers * 34 / 100);
            promise(
                (least..=most).contains(&duplicates),
                format!(
                    "{duplicates} duplicates, expected {least} to {most} (a busy machine may be too slow for this speed)"
                ),
            );
            promise(
                self.refused == 0,
                format!("{} charges were refused without a gate", self.refused),
            );
        } else {
            promise(
                duplicates == 0,
                format!("{duplicates} duplicates, expected none"),
            );
        }
        if self.kind == Kind::Fenced {
            promise(self.refused > 0, "the gate refused nothing".to_owned());
        }
        let tokens = self.tokens();
        promise(
            tokens.len() >= 2 && tokens.windows(2).all(|two| two[0] < two[1]),
            format!("the tokens do not rise strictly: {tokens:?}"),
        );
        let (earliest, latest) = self.takeover_bounds();
        let takeover = self.takeover().unwrap_or(f64::INFINITY);
        promise(
            (earliest..=latest).contains(&takeover),
            format!(
                "the next one began at {takeover:.1} s, expected {earliest:.0} to {latest:.0} s"
            ),
        );
        broken
    }

    /// Leases are story time, what the machine takes is not.
    fn takeover_bounds(&self) -> (f64, f64) {
        let (lease, factor) = (f64::from(self.kind.lease()), f64::from(self.factor));
        if self.kind.renews() {
            (self.struck, FREEZE + lease + RENEWED_SLACK * factor)
        } else {
            // Observed by one clock, told by another: they may differ by a hair.
            (lease - 0.1, lease + PLAIN_SLACK * factor)
        }
    }
}

/// The numbers of a telling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Numbers {
    charges: u64,
    duplicates: u64,
    refused: u64,
    tokens: Vec<i64>,
    takeover_s: Option<f64>,
}

/// The object that `--format json` prints; in the order of telling, for people who read it.
pub(crate) fn json(customers: u64, records: &[Record]) -> serde_json::Result<String> {
    let mut text = format!(r#"{{"customers":{customers}"#);
    for record in records {
        let numbers = serde_json::to_string(&record.numbers())?;
        text += &[",\"", record.kind.name(), "\":", &numbers].concat();
    }
    Ok(text + "}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A telling as it should go, at speed 5.
    pub(crate) fn record(kind: Kind) -> Record {
        let second = if kind.renews() { 99.0 } else { 120.2 };
        let activity = |pod, second, charged, duplicates, refused| Activity {
            pod,
            second,
            charged,
            duplicates,
            refused,
        };
        let (duplicates, refused) = match kind {
            Kind::Naive => (15_000, 0),
            Kind::Fenced => (0, 15_000),
            Kind::Leasehold | Kind::Crash => (0, 0),
        };
        Record {
            kind,
            factor: 5,
            customers: 50_000,
            charges: 50_000 + duplicates,
            charged_customers: 50_000,
            refused,
            tenures: vec![
                Tenure {
                    pod: 3,
                    token: 41,
                    start: 0.0,
                    end: Some(if kind.freezes() { 145.0 } else { 85.0 }),
                },
                Tenure {
                    pod: 7,
                    token: 42,
                    start: second,
                    end: Some(second + 15.0),
                },
            ],
            struck: 85.0,
            thawed: kind.freezes().then_some(140.0),
            activity: vec![
                activity(3, 40, 412, 0, 0),
                activity(7, 122, 5_000, 0, 0),
                activity(3, 141, 0, duplicates / 3, refused / 3),
            ],
            end: 150.0,
        }
    }

    #[test]
    fn a_telling_as_it_should_go_breaks_no_promise() {
        for kind in Kind::ALL {
            assert_eq!(record(kind).broken_promises(), Vec::<String>::new());
        }
    }

    #[test]
    fn each_broken_promise_is_told() {
        let told = |change: fn(&mut Record), kind| {
            let mut record = record(kind);
            change(&mut record);
            let broken = record.broken_promises();
            assert_eq!(broken.len(), 1, "{broken:?}");
            broken.into_iter().next().unwrap_or_default()
        };
        let naive = told(|record| record.charges = 50_000, Kind::Naive);
        assert!(
            naive.starts_with("naive: 0 duplicates, expected 13000 to 17000"),
            "{naive}"
        );
        assert!(told(|record| record.charges += 1, Kind::Leasehold).contains("1 duplicates"));
        assert!(told(|record| record.refused = 0, Kind::Fenced).contains("refused nothing"));
        assert!(told(|record| record.tenures[1].token = 41, Kind::Crash).contains("do not rise"));
        assert!(
            told(|record| record.tenures[1].start = 119.8, Kind::Naive).contains("120 to 135 s")
        );
        assert!(
            told(|record| record.tenures[1].start = 110.1, Kind::Crash).contains("85 to 110 s")
        );
        let lost = |record: &mut Record| {
            record.charges -= 1;
            record.charged_customers -= 1;
        };
        assert!(told(lost, Kind::Fenced).contains("49999 of 50000"));
    }

    #[test]
    fn in_real_time_the_bounds_are_those_of_the_story() {
        let mut naive = record(Kind::Naive);
        naive.factor = 1;
        assert_eq!(naive.takeover_bounds(), (119.9, 123.0));
        let mut leasehold = record(Kind::Leasehold);
        leasehold.factor = 1;
        assert_eq!(leasehold.takeover_bounds(), (85.0, 102.0));
    }

    #[test]
    fn the_numbers_have_the_agreed_names() {
        let all = json(50_000, &[record(Kind::Naive), record(Kind::Fenced)]).unwrap();
        assert_eq!(
            all,
            r#"{"customers":50000,"naive":{"charges":65000,"duplicates":15000,"refused":0,"tokens":[41,42],"takeover_s":120.2},"fenced":{"charges":50000,"duplicates":0,"refused":15000,"tokens":[41,42],"takeover_s":120.2}}"#
        );
        let read: serde_json::Value = serde_json::from_str(&all).unwrap();
        assert_eq!(read["fenced"]["tokens"][1], 42);
    }
}
