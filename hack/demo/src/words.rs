//! The story in words: a line for each event while it happens, and a table at the end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};

use leasehold::clock::MonoInstant;

use crate::kind::Kind;
use crate::record::Record;

/// How often there is a word about progress where there is no terminal.
const PLAIN_EVERY: std::time::Duration = std::time::Duration::from_secs(10);

/// Tells live. The timeline goes to standard output unless data goes there.
pub(crate) struct Live {
    timeline_to_stderr: bool,
    terminal: bool,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    progress: BTreeMap<Kind, String>,
    told: Option<MonoInstant>,
}

impl Live {
    /// Tells on standard output, or on standard error where `data` goes to standard output.
    pub(crate) fn new(data: bool) -> Self {
        Self {
            timeline_to_stderr: data,
            terminal: io::stderr().is_terminal(),
            state: RefCell::default(),
        }
    }

    /// A telling begins.
    pub(crate) fn begin(&self, kind: Kind) {
        self.line(&format!("\n{:<9}  {}", kind.name(), kind.about()));
    }

    /// Something happened, at a story second.
    pub(crate) fn event(&self, kind: Kind, at: f64, text: &str) {
        self.line(&format!("{:<9} {at:>6.1} s  {text}", kind.name()));
    }

    /// How far a telling is.
    pub(crate) fn progress(&self, kind: Kind, at: f64, charges: u64) {
        let text = format!("{} {at:.0} s: {} charges", kind.name(), thousands(charges));
        let mut state = self.state.borrow_mut();
        state.progress.insert(kind, text);
        if self.terminal {
            drop(state);
            self.redraw();
        } else if state
            .told
            .is_none_or(|told| MonoInstant::now().saturating_duration_since(told) >= PLAIN_EVERY)
        {
            state.told = Some(MonoInstant::now());
            eprintln!("{}", joined(&state.progress));
        }
    }

    /// A telling is over.
    pub(crate) fn end(&self, kind: Kind) {
        self.state.borrow_mut().progress.remove(&kind);
        self.redraw();
    }

    fn line(&self, line: &str) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
        if self.timeline_to_stderr {
            eprintln!("{line}");
        } else {
            // A closed pipe ends the listening, not the story.
            let _ = writeln!(io::stdout(), "{line}");
        }
        self.redraw();
    }

    fn redraw(&self) {
        if self.terminal {
            let line: String = joined(&self.state.borrow().progress)
                .chars()
                .take(110)
                .collect();
            eprint!("\r\x1b[2K{line}");
            let _ = io::stderr().flush();
        }
    }
}

fn joined(progress: &BTreeMap<Kind, String>) -> String {
    progress.values().cloned().collect::<Vec<_>>().join("   ")
}

/// The table of all tellings. In Pods it has more columns: how long after the former's last charge the next one began, how
/// the former's grant ended by the lock's history, and who the next one was.
pub(crate) fn table(records: &[Record]) -> String {
    let in_pods = records.iter().any(|record| record.kind.is_in_pods());
    let row = |cells: [&str; 8], tokens: &str| {
        let [
            name,
            charges,
            duplicates,
            refused,
            takeover,
            after,
            ended,
            next,
        ] = cells;
        let more = if in_pods {
            format!(" {after:>10}  {ended:<8}  {next:<6}")
        } else {
            String::new()
        };
        format!(
            "{name:<9} {charges:>9} {duplicates:>11} {refused:>9} {takeover:>10}{more}  {tokens}\n"
        )
    };
    let head = row(
        [
            "",
            "charges",
            "duplicates",
            "refused",
            "take-over",
            "after end",
            "ended",
            "next",
        ],
        "tokens",
    );
    let rows = records.iter().map(|record| {
        let takeover = if in_pods {
            seconds(record.since_blow(), 2, "never")
        } else {
            seconds(record.takeover(), 1, "never")
        };
        let after = seconds(record.since_end(), 2, "before");
        let counts = [record.charges, record.duplicates(), record.refused].map(thousands);
        let [charges, duplicates, refused] = &counts;
        let ended = record.ended_as.map(|reason| format!("{reason:?}"));
        let cells = [
            record.kind.name(),
            charges,
            duplicates,
            refused,
            &takeover,
            &after,
            &ended.unwrap_or_default(),
            &record.next().unwrap_or_default(),
        ];
        row(cells, &rising(&record.tokens()))
    });
    head + &rows.collect::<String>()
}

fn seconds(seconds: Option<f64>, digits: usize, none: &str) -> String {
    seconds.map_or(none.to_owned(), |seconds| format!("{seconds:.digits$} s"))
}

/// All of a few tokens, the first and the last of many.
fn rising(tokens: &[i64]) -> String {
    let words = |tokens: &[i64]| {
        tokens
            .iter()
            .map(i64::to_string)
            .collect::<Vec<_>>()
            .join(" < ")
    };
    match tokens {
        [first, second, third, .., last] if tokens.len() > 4 => {
            format!(
                "{} < … < {last} ({} in all)",
                words(&[*first, *second, *third]),
                tokens.len()
            )
        }
        few => words(few),
    }
}

/// `50,000`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn numbers_have_commas() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(1_234_567), "1,234,567");
    }

    #[test]
    fn many_tokens_are_cut_short() {
        assert_eq!(rising(&[41, 42]), "41 < 42");
        assert_eq!(rising(&[1, 2, 3, 5, 8]), "1 < 2 < 3 < … < 8 (5 in all)");
    }

    #[test]
    fn the_table_has_a_line_for_each_telling() {
        let table = table(&Kind::ON_PROCESSES.map(record));
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[1],
            [
                "naive", "65,000", "15,000", "0", "120.2", "s", "41", "<", "42"
            ]
        );
        assert_eq!(
            lines[2],
            [
                "fenced", "50,000", "0", "15,000", "120.2", "s", "41", "<", "42"
            ]
        );
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn the_table_of_pods_tells_who_was_next_and_how_long_after_the_end() {
        let table = table(&Kind::IN_PODS.map(record));
        let line = |name: &str| table.lines().find(|line| line.starts_with(name));
        let words = |name| line(name).unwrap().split_whitespace().collect::<Vec<_>>();
        let start = [
            "forced", "50,000", "0", "0", "15.00", "s", "9.00", "s", "Expired", "pod-7",
        ];
        assert_eq!(words("forced")[..10], start);
        assert_eq!(words("oom")[8..10], ["Ended", "pod-7"]);
        assert_eq!(words("frozen")[6], "before");
    }
}
