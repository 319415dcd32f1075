//! What happened in one telling. Times are story seconds since the first holder began.

use serde::Serialize;

use leasehold::api::EndReason;

use crate::kind::Kind;

/// When the holder freezes, or is killed.
pub(crate) const FREEZE: f64 = 85.0;
/// When it thaws.
pub(crate) const THAW: f64 = 140.0;

/// What a contender is called, as a claimant and as a Pod.
pub(crate) fn pod_name(index: usize) -> String {
    format!("pod-{index}")
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

/// What one Pod wrote in one slice of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Activity {
    /// Who.
    pub(crate) pod: usize,
    /// The number of the slice since the beginning.
    pub(crate) slice: i64,
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
    /// How many story seconds the lease has.
    pub(crate) lease: f64,
    /// How many contended.
    pub(crate) contenders: usize,
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
    /// When the first holder was struck.
    pub(crate) struck: f64,
    /// When what struck it was undone: it thawed, the kubelet came back.
    pub(crate) relieved: Option<f64>,
    /// When the first holder's last charge was taken or refused.
    pub(crate) last_charge: Option<f64>,
    /// How its grant ended, as the lock's history tells; in Pods.
    pub(crate) ended_as: Option<EndReason>,
    /// Who wrote when.
    pub(crate) activity: Vec<Activity>,
    /// How many story seconds a slice of activity has.
    pub(crate) slice: f64,
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

    /// How many seconds after the blow the next one began.
    pub(crate) fn since_blow(&self) -> Option<f64> {
        self.takeover().map(|at| at - self.struck)
    }

    /// How many seconds after the struck holder's last charge the next one began, where it has to wait for the end of
    /// that one's work; less than none if it did not.
    pub(crate) fn since_end(&self) -> Option<f64> {
        if self.kind.freezes() {
            return None;
        }
        Some(self.takeover()? - self.last_charge?)
    }

    /// Who was the next one.
    pub(crate) fn next(&self) -> Option<String> {
        self.tenures.get(1).map(|tenure| pod_name(tenure.pod))
    }

    /// The numbers, as `--format json` prints them.
    pub(crate) fn numbers(&self) -> Numbers {
        let in_pods = self.kind.is_in_pods();
        Numbers {
            charges: self.charges,
            duplicates: self.duplicates(),
            refused: self.refused,
            tokens: self.tokens(),
            takeover_s: if in_pods {
                self.since_blow().map(|seconds| rounded(seconds, 100.0))
            } else {
                self.takeover().map(|at| rounded(at, 10.0))
            },
            pods: in_pods.then(|| PodNumbers {
                after_end_s: self.since_end().map(|seconds| rounded(seconds, 100.0)),
                lease_s: self.lease,
                ended_as: self.ended_as,
                next: self.next(),
            }),
        }
    }
}

fn rounded(seconds: f64, parts: f64) -> f64 {
    (seconds * parts).round() / parts
}

/// The numbers of a telling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Numbers {
    charges: u64,
    duplicates: u64,
    refused: u64,
    tokens: Vec<i64>,
    /// On processes: story seconds since the first holder began. In Pods: seconds since the blow.
    takeover_s: Option<f64>,
    #[serde(flatten)]
    pods: Option<PodNumbers>,
}

/// What there is to say beyond that of a telling in Pods.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PodNumbers {
    after_end_s: Option<f64>,
    lease_s: f64,
    ended_as: Option<EndReason>,
    next: Option<String>,
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

    /// A telling as it should go: on processes at speed 5.
    pub(crate) fn record(kind: Kind) -> Record {
        let in_pods = kind.is_in_pods();
        let (struck, relieved, ended, second) = match kind {
            Kind::Naive | Kind::Fenced => (85.0, Some(140.0), None, 120.2),
            Kind::Leasehold => (85.0, Some(140.0), None, 99.0),
            Kind::Crash => (85.0, None, None, 99.0),
            Kind::Frozen => (4.0, Some(16.0), Some(17.0), 13.5),
            Kind::Kubelet => (4.0, Some(16.0), Some(18.0), 18.1),
            Kind::Deleted => (4.0, None, Some(4.2), 4.5),
            Kind::Oom => (4.0, None, Some(4.2), 5.5),
            Kind::Forced => (4.0, None, Some(10.0), 19.0),
        };
        let activity = |pod, slice, charged, duplicates, refused| Activity {
            pod,
            slice,
            charged,
            duplicates,
            refused,
        };
        let (duplicates, refused) = match kind {
            Kind::Naive => (15_000, 0),
            Kind::Fenced | Kind::Frozen => (0, 15_000),
            _ => (0, 0),
        };
        Record {
            kind,
            factor: if in_pods { 1 } else { 5 },
            lease: if in_pods { 10.0 } else { kind.lease().into() },
            contenders: 10,
            customers: 50_000,
            charges: 50_000 + duplicates,
            charged_customers: 50_000,
            refused,
            tenures: vec![
                Tenure {
                    pod: 3,
                    token: 41,
                    start: 0.0,
                    end: ended.or(Some(relieved.unwrap_or(struck) + 1.0)),
                },
                Tenure {
                    pod: 7,
                    token: 42,
                    start: second,
                    end: Some(second + 15.0),
                },
            ],
            struck,
            relieved,
            last_charge: ended,
            ended_as: kind.ends_as().first().copied(),
            activity: vec![
                activity(3, 2, 412, 0, 0),
                activity(7, 122, 5_000, 0, 0),
                activity(3, 141, 0, duplicates / 3, refused / 3),
            ],
            slice: if in_pods { 0.2 } else { 1.0 },
            end: second + 25.0,
        }
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
    #[test]
    fn in_pods_the_take_over_counts_from_the_blow_and_from_the_end_of_the_work() {
        let read = |kind| serde_json::to_value(record(kind).numbers()).unwrap();
        let forced = read(Kind::Forced);
        assert_eq!(
            (&forced["takeover_s"], &forced["after_end_s"]),
            (&15.0.into(), &9.0.into())
        );
        assert_eq!(forced["next"], "pod-7");
        // The next one has begun long before the work of a frozen holder ends.
        assert!(read(Kind::Frozen)["after_end_s"].is_null());
    }
}
