//! Whether a telling went as the story promises.

use crate::kind::Kind;
use crate::record::{FREEZE, Record, pod_name};

/// How much later than the lease says another may begin: seconds of this machine, whatever the speed, for naive ...
const PLAIN_SLACK: f64 = 3.0;
/// ... with Leasehold, in real time ...
const RENEWED_SLACK: f64 = 2.0;
/// ... faster, where leases are as short as what a busy machine takes ...
const RENEWED_SLACK_FASTER: f64 = 4.0;
/// ... and in Pods, whose node runs on the same cores.
const POD_SLACK: f64 = 3.0;
/// How long after the end of the former's work the next one may begin, when the lock is given back.
const HAND_OVER: f64 = 2.0;
/// The end of a process is noticed a moment after it.
const NOTICE: f64 = 0.2;
/// What is on its way when a worker ends may be refused, and no more: as many as it sends at once.
const ON_ITS_WAY: u64 = crate::bill::IN_FLIGHT as u64;

/// What is not as promised.
pub(crate) fn broken(record: &Record) -> Vec<String> {
    let mut list = List::default();
    let customers = record.customers;
    list.expect(
        record.charged_customers == customers,
        format!(
            "{} of {customers} customers were charged",
            record.charged_customers
        ),
    );
    let duplicates = record.duplicates();
    if record.kind != Kind::Naive {
        list.expect(
            duplicates == 0,
            format!("{duplicates} duplicates, expected none"),
        );
    }
    let tokens = record.tokens();
    list.expect(
        tokens.len() >= 2 && tokens.windows(2).all(|two| two[0] < two[1]),
        format!("the tokens do not rise strictly: {tokens:?}"),
    );
    if record.kind.is_in_pods() {
        in_pods(record, &mut list);
    } else {
        on_processes(record, &mut list);
    }
    let name = record.kind.name();
    let broken = list.broken.into_iter();
    broken.map(|words| format!("{name}: {words}")).collect()
}

#[derive(Default)]
struct List {
    broken: Vec<String>,
}

impl List {
    fn expect(&mut self, kept: bool, words: String) {
        if !kept {
            self.broken.push(words);
        }
    }
}

fn on_processes(record: &Record, list: &mut List) {
    let (duplicates, customers) = (record.duplicates(), record.customers);
    if record.kind == Kind::Naive {
        // 30 % are left at the freeze, and the clocks of a busy machine may be off by a seventh of that.
        let (least, most) = (customers * 26 / 100, customers * 34 / 100);
        list.expect(
            (least..=most).contains(&duplicates),
            format!(
                "{duplicates} duplicates, expected {least} to {most} (a busy machine may be too slow for this speed)"
            ),
        );
        list.expect(
            record.refused == 0,
            format!("{} charges were refused without a gate", record.refused),
        );
    }
    if record.kind == Kind::Fenced {
        list.expect(record.refused > 0, "the gate refused nothing".to_owned());
    }
    let (earliest, latest) = takeover_bounds(record);
    let takeover = record.takeover().unwrap_or(f64::INFINITY);
    list.expect(
        (earliest..=latest).contains(&takeover),
        format!("the next one began at {takeover:.1} s, expected {earliest:.0} to {latest:.0} s"),
    );
}

/// Leases are story time, what the machine takes is not.
fn takeover_bounds(record: &Record) -> (f64, f64) {
    let (lease, factor) = (record.lease, f64::from(record.factor));
    if record.kind.renews() {
        let slack = if record.factor == 1 {
            RENEWED_SLACK
        } else {
            RENEWED_SLACK_FASTER
        };
        (record.struck, FREEZE + lease + slack * factor)
    } else {
        // Observed by one clock, told by another: they may differ by a hair.
        (lease - 0.1, lease + PLAIN_SLACK * factor)
    }
}

fn in_pods(record: &Record, list: &mut List) {
    let refused = record.refused;
    if record.kind.freezes() {
        list.expect(refused > 0, "the gate refused nothing".to_owned());
    } else {
        list.expect(
            refused <= ON_ITS_WAY,
            format!("{refused} charges were refused: the next one began while the former worked"),
        );
        let since_end = record.since_end().unwrap_or(f64::NEG_INFINITY);
        list.expect(
            since_end >= -NOTICE,
            format!("the next one began {since_end:.2} s after the end of the former's work"),
        );
    }
    if let Some(reason) = record.ended_as {
        list.expect(
            record.kind.ends_as().contains(&reason),
            format!("the lock's history has {reason:?} for the end of the first holder"),
        );
    }
    if record.kind == Kind::Kubelet
        && let (Some(first), Some(next)) = (record.tenures.first(), record.tenures.get(1))
        && let Some(back) = record.relieved
    {
        list.expect(
            next.start >= back,
            format!(
                "{} lost the lock to {} while the kubelet was away",
                pod_name(first.pod),
                pod_name(next.pod)
            ),
        );
    }
    let (since_blow, since_end) = (record.since_blow(), record.since_end());
    let half = record.lease / 2.0;
    let (what, seconds, most) = match record.kind {
        Kind::Frozen => ("the blow", since_blow, record.lease + POD_SLACK),
        // It may be given back, or run out: with the Pod's object its right to renew and release is gone.
        Kind::Forced => ("the end of the work", since_end, record.lease + POD_SLACK),
        Kind::Oom => ("the blow", since_blow, half),
        _ => {
            if record.kind == Kind::Deleted {
                let seconds = since_blow.unwrap_or(f64::INFINITY);
                list.expect(seconds <= half, late(seconds, "the blow", half));
            }
            ("the end of the work", since_end, HAND_OVER)
        }
    };
    let seconds = seconds.unwrap_or(f64::INFINITY);
    list.expect(seconds <= most, late(seconds, what, most));
}

fn late(seconds: f64, what: &str, most: f64) -> String {
    format!("the next one began {seconds:.1} s after {what}, expected {most:.0} s at most")
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::api::EndReason;

    use crate::record::tests::record;

    #[test]
    fn a_telling_as_it_should_go_breaks_no_promise() {
        for kind in Kind::ON_PROCESSES.into_iter().chain(Kind::IN_PODS) {
            assert_eq!(broken(&record(kind)), Vec::<String>::new());
        }
    }

    /// The one promise that such a change breaks.
    fn told(change: fn(&mut Record), kind: Kind) -> String {
        let mut record = record(kind);
        change(&mut record);
        let broken = broken(&record);
        assert_eq!(broken.len(), 1, "{broken:?}");
        broken.into_iter().next().unwrap_or_default()
    }

    #[test]
    fn each_broken_promise_is_told() {
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
            told(|record| record.tenures[1].start = 120.1, Kind::Crash).contains("85 to 120 s")
        );
        let lost = |record: &mut Record| {
            record.charges -= 1;
            record.charged_customers -= 1;
        };
        assert!(told(lost, Kind::Fenced).contains("49999 of 50000"));
    }

    #[test]
    fn each_broken_promise_of_pods_is_told() {
        for kind in Kind::IN_PODS {
            assert!(told(|record| record.charges += 1, kind).contains("1 duplicates"));
        }
        assert!(told(|record| record.refused = 0, Kind::Frozen).contains("refused nothing"));
        assert!(told(|record| record.refused = 5, Kind::Forced).contains("5 charges"));
        let next_at = |kind, at: fn(&Record) -> f64| {
            let mut record = record(kind);
            record.tenures[1].start = at(&record);
            broken(&record).join("; ")
        };
        let is_told = |words: String, part: &str| assert!(words.contains(part), "{words}");
        is_told(next_at(Kind::Frozen, |r| r.struck + 13.1), "13 s at most");
        is_told(next_at(Kind::Kubelet, |r| r.struck + 8.0), "was away");
        is_told(next_at(Kind::Kubelet, |_| 20.1), "2 s at most");
        is_told(next_at(Kind::Deleted, |_| 6.3), "2 s at most");
        is_told(next_at(Kind::Deleted, |_| 9.5), "5 s at most");
        is_told(next_at(Kind::Oom, |_| 9.1), "5 s at most");
        is_told(next_at(Kind::Forced, |_| 9.0), "-1.00 s after the end");
        let released: fn(&mut Record) = |record| record.ended_as = Some(EndReason::Released);
        assert!(told(released, Kind::Oom).contains("Released for the end"));
        is_told(next_at(Kind::Forced, |_| 23.5), "13 s at most");
    }

    #[test]
    fn in_real_time_the_bounds_are_those_of_the_story() {
        let mut naive = record(Kind::Naive);
        naive.factor = 1;
        assert_eq!(takeover_bounds(&naive), (119.9, 123.0));
        let mut leasehold = record(Kind::Leasehold);
        leasehold.factor = 1;
        assert_eq!(takeover_bounds(&leasehold), (85.0, 102.0));
    }
}
