//! The picture: who held the lock when, who wrote when, what was refused. A panel a telling, a row a contender.

use std::fmt::Write;

use crate::record::{Record, Tenure, pod_name};
use crate::words::thousands;

const WIDTH: f64 = 1160.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 28.0;
const HEAD: f64 = 116.0;
const TITLE: f64 = 58.0;
const ROW: f64 = 20.0;
const AXIS: f64 = 46.0;
/// The picture of a story on processes shows at least so many story seconds.
const SHORTEST: f64 = 155.0;
/// Which share of all, charged in a story second, makes a stroke as high as its row: on processes ...
const FULL_SHARE: f64 = 0.02;
/// ... and in Pods, where seconds are real.
const FULL_SHARE_IN_PODS: f64 = 0.2;
/// Of a story shorter than this the axis shows smaller steps.
const SHORT: f64 = 100.0;

const INK: &str = "#1f2933";
const FAINT: &str = "#d5dae0";
const MUTED: &str = "#616e7c";
const HELD: &str = "#b9d8f5";
const CHARGED: &str = "#1864ab";
const DUPLICATE: &str = "#e8590c";
const REFUSED: &str = "#c2255c";
const FROZEN: &str = "#868e96";

/// The whole picture.
pub(crate) fn draw(records: &[Record]) -> String {
    let in_pods = records.iter().any(|record| record.kind.is_in_pods());
    let height = HEAD + records.iter().map(panel_height).sum::<f64>();
    let last = records
        .iter()
        .map(|record| record.end)
        .fold(if in_pods { 1.0 } else { SHORTEST }, f64::max);
    let mut svg = Svg {
        text: String::new(),
        last,
    };
    let _ = write!(
        svg.text,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="12" fill="{INK}">
<title>Nightly billing</title>
<defs><pattern id="frozen" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="white"/><line x1="0" y1="0" x2="0" y2="6" stroke="{FROZEN}" stroke-width="3"/></pattern></defs>
<rect width="{WIDTH}" height="{height}" fill="white"/>
"#
    );
    let customers = records.first().map_or(0, |record| record.customers);
    svg.words(
        LEFT,
        34.0,
        20.0,
        INK,
        "start",
        &format!(
            "Nightly billing: {} customers, each to be charged once",
            thousands(customers)
        ),
    );
    let about = if in_pods {
        "Pods on a node contend for one lock: leasehold run in each. What happens to the holder's Pod, to its container or to its node, and who charges when."
    } else {
        "Ten contenders for one lock. At 85 s the holder freezes (in the last telling: dies), at 140 s it thaws and goes on with the list that it had loaded."
    };
    svg.words(LEFT, 56.0, 12.5, MUTED, "start", about);
    svg.legend(84.0);
    let mut top = HEAD;
    for record in records {
        svg.panel(record, top);
        top += panel_height(record);
    }
    svg.text.push_str("</svg>\n");
    svg.text
}

fn panel_height(record: &Record) -> f64 {
    TITLE + rows_height(record) + AXIS
}

fn rows_height(record: &Record) -> f64 {
    ROW * row(record.contenders)
}

struct Svg {
    text: String,
    last: f64,
}

impl Svg {
    fn x(&self, second: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (second / self.last).clamp(0.0, 1.0)
    }

    fn words(&mut self, x: f64, y: f64, size: f64, colour: &str, anchor: &str, words: &str) {
        let _ = writeln!(
            self.text,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{}</text>"#,
            escaped(words)
        );
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, style: &str) {
        let _ = writeln!(
            self.text,
            r#"<rect x="{x:.2}" y="{y:.2}" width="{:.2}" height="{height:.2}" {style}/>"#,
            width.max(0.0)
        );
    }

    fn legend(&mut self, y: f64) {
        let entries = [
            (format!(r#"fill="{HELD}""#), "holds the lock"),
            (
                format!(r#"fill="none" stroke="{MUTED}" stroke-dasharray="3 2""#),
                "works on, the lock is another's",
            ),
            (r#"fill="url(#frozen)""#.to_owned(), "frozen"),
            (format!(r#"fill="{CHARGED}""#), "charges"),
            (format!(r#"fill="{DUPLICATE}""#), "charges twice"),
            (format!(r#"fill="{REFUSED}""#), "refused by the gate"),
        ];
        let mut x = LEFT;
        for (style, words) in entries {
            self.rect(x, y - 10.0, 14.0, 12.0, &style);
            self.words(x + 20.0, y, 12.0, INK, "start", words);
            // About 6.3 pixels a letter, and some air.
            x += 48.0 + 6.3 * f64::from(u8::try_from(words.len()).unwrap_or(u8::MAX));
        }
    }

    fn panel(&mut self, record: &Record, top: f64) {
        let rows = top + TITLE;
        let bottom = rows + rows_height(record);
        self.words(LEFT, top + 22.0, 15.0, INK, "start", record.kind.name());
        let name_width =
            12.0 + 8.2 * f64::from(u8::try_from(record.kind.name().len()).unwrap_or(u8::MAX));
        self.words(
            LEFT + name_width,
            top + 22.0,
            12.5,
            MUTED,
            "start",
            record.kind.about(),
        );
        let (verdict, colour) = match (record.duplicates(), record.refused) {
            (0, 0) => ("0 charged twice".to_owned(), INK),
            (0, refused) => (
                format!("0 charged twice, {} refused", thousands(refused)),
                REFUSED,
            ),
            (twice, _) => (format!("{} charged twice", thousands(twice)), DUPLICATE),
        };
        self.words(WIDTH - RIGHT, top + 22.0, 15.0, colour, "end", &verdict);

        for pod in 0..record.contenders {
            let y = rows + ROW * row(pod);
            let _ = writeln!(
                self.text,
                r#"<line x1="{LEFT}" y1="{0:.1}" x2="{1:.1}" y2="{0:.1}" stroke="{FAINT}"/>"#,
                y + ROW,
                WIDTH - RIGHT
            );
            let worked = record.tenures.iter().any(|tenure| tenure.pod == pod);
            self.words(
                LEFT - 10.0,
                y + 14.0,
                11.5,
                if worked { INK } else { MUTED },
                "end",
                &pod_name(pod),
            );
        }
        self.acts(record, rows, bottom);
        for index in 0..record.tenures.len() {
            self.tenure(record, index, rows);
        }
        self.frozen(record, rows);
        self.strokes(record, rows);
        self.tokens(record, rows);
        self.axis(bottom);
    }

    /// The moments that the story is about.
    fn acts(&mut self, record: &Record, rows: f64, bottom: f64) {
        let takeover = record.takeover().unwrap_or(self.last);
        // The words stand on the side where there is more room.
        let before = record
            .relieved
            .is_some_and(|relieved| takeover - record.struck > relieved - takeover);
        let relief = record.kind.relief().unwrap_or_default();
        // Where the next one starts after the relief, its words stand behind theirs.
        let relief_before = record.relieved.is_some_and(|at| at < takeover);
        let acts = [
            Some((record.struck, record.kind.blow(), true)),
            Some((takeover, "the next one starts", before && !relief_before)),
            record.relieved.map(|at| (at, relief, relief_before)),
        ];
        for (at, words, before) in acts.into_iter().flatten() {
            let x = self.x(at);
            let _ = writeln!(
                self.text,
                r#"<line x1="{x:.1}" y1="{:.1}" x2="{x:.1}" y2="{bottom:.1}" stroke="{MUTED}" stroke-dasharray="2 3"/>"#,
                rows - 4.0
            );
            let (anchor, x) = if before {
                ("end", x - 3.0)
            } else {
                ("start", x + 3.0)
            };
            self.words(
                x,
                rows - 8.0,
                11.0,
                MUTED,
                anchor,
                &format!("{words} {at:.0} s"),
            );
        }
    }

    fn tenure(&mut self, record: &Record, index: usize, rows: f64) {
        let Tenure {
            pod, start, end, ..
        } = record.tenures[index];
        let y = rows + ROW * row(pod);
        let until = record.held_until(index);
        let (from, to) = (self.x(start), self.x(until));
        self.rect(
            from,
            y + 1.5,
            (to - from).max(1.5),
            ROW - 3.0,
            &format!(r#"fill="{HELD}""#),
        );
        // It goes on although the lock is another's.
        if let Some(end) = end.filter(|end| *end > until + 0.5) {
            let style = format!(r#"fill="none" stroke="{MUTED}" stroke-dasharray="3 2""#);
            self.rect(to, y + 2.0, self.x(end) - to, ROW - 4.0, &style);
        }
    }

    fn frozen(&mut self, record: &Record, rows: f64) {
        let (Some(first), Some(thawed)) = (record.tenures.first(), record.relieved) else {
            return;
        };
        if !record.kind.freezes() {
            return;
        }
        let (from, to) = (self.x(record.struck), self.x(thawed));
        let y = rows + ROW * row(first.pod) + ROW - 6.5;
        self.rect(from, y, to - from, 5.0, r#"fill="url(#frozen)""#);
    }

    fn strokes(&mut self, record: &Record, rows: f64) {
        let share = if record.kind.is_in_pods() {
            FULL_SHARE_IN_PODS
        } else {
            FULL_SHARE
        };
        let full = (share * record.slice * real(record.customers)).max(1.0);
        let wide = self.x(record.slice) - self.x(0.0);
        for activity in &record.activity {
            let slice = f64::from(i32::try_from(activity.slice).unwrap_or(0));
            let x = self.x(slice * record.slice);
            let mut y = rows + ROW * row(activity.pod) + ROW - 1.5;
            let strokes = [
                (activity.charged, CHARGED),
                (activity.duplicates, DUPLICATE),
                (activity.refused, REFUSED),
            ];
            for (count, colour) in strokes.into_iter().filter(|(count, _)| *count > 0) {
                // By the root, so that a slow second is seen beside a fast one.
                let height = ((real(count) / full).sqrt() * (ROW - 3.0)).clamp(2.5, ROW - 3.0);
                let top = (y - height).max(rows + ROW * row(activity.pod) + 1.5);
                self.rect(
                    x,
                    top,
                    (wide - 0.8).max(1.0),
                    y - top,
                    &format!(r#"fill="{colour}""#),
                );
                y = top;
            }
        }
    }

    /// The first two tokens by the bars; those of the hand-overs after the work is done in one line.
    fn tokens(&mut self, record: &Record, rows: f64) {
        for (index, tenure) in record.tenures.iter().enumerate().take(2) {
            let y = rows + ROW * row(tenure.pod) + 13.5;
            let words = format!("token {}", tenure.token);
            if index == 0 {
                self.label(self.x(0.0) + 5.0, y, "start", &words);
            } else {
                self.label(self.x(tenure.start) - 5.0, y, "end", &words);
            }
        }
        let rest: Vec<_> = record
            .tenures
            .iter()
            .skip(2)
            .map(|tenure| tenure.token.to_string())
            .collect();
        if let Some(third) = record.tenures.get(2)
            && !rest.is_empty()
        {
            let words = format!("then tokens {}: nothing left to charge", rest.join(" < "));
            let bottom = rows + rows_height(record);
            let x = self.x(third.start).min(WIDTH - RIGHT - 6.0);
            // They stand on the side where there is more room.
            let anchor = if x < WIDTH / 2.0 { "start" } else { "end" };
            self.words(x, bottom + 31.0, 11.0, MUTED, anchor, &words);
        }
    }

    /// Words that can be read on any ground.
    fn label(&mut self, x: f64, y: f64, anchor: &str, words: &str) {
        let _ = writeln!(
            self.text,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="11" font-weight="bold" text-anchor="{anchor}" stroke="white" stroke-width="3" paint-order="stroke">{}</text>"#,
            escaped(words)
        );
    }

    fn axis(&mut self, bottom: f64) {
        let mut second = 0;
        while f64::from(second) <= self.last {
            let x = self.x(f64::from(second));
            let _ = writeln!(
                self.text,
                r#"<line x1="{x:.1}" y1="{bottom:.1}" x2="{x:.1}" y2="{:.1}" stroke="{MUTED}"/>"#,
                bottom + 4.0
            );
            self.words(
                x,
                bottom + 17.0,
                10.5,
                MUTED,
                "middle",
                &format!("{second} s"),
            );
            second += if self.last < SHORT { 5 } else { 20 };
        }
    }
}

fn row(pod: usize) -> f64 {
    f64::from(u8::try_from(pod).unwrap_or(u8::MAX))
}

fn real(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn escaped(words: &str) -> String {
    words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use crate::record::tests::record;

    #[test]
    fn the_picture_shows_who_held_the_lock_and_what_was_refused() {
        let picture = draw(&Kind::ON_PROCESSES.map(record));
        for word in [
            "naive",
            "fenced",
            "leasehold",
            "crash",
            "pod-9",
            "token 41",
            "token 42",
            "freezes 85 s",
            "dies 85 s",
            "thaws 140 s",
        ] {
            assert!(picture.contains(word), "{word}");
        }
        let drawn = |kind, colour: &str| draw(&[record(kind)]).matches(colour).count() - 1;
        assert!(drawn(Kind::Naive, DUPLICATE) > 0 && drawn(Kind::Naive, REFUSED) == 0);
        assert!(drawn(Kind::Fenced, REFUSED) > 0 && drawn(Kind::Fenced, DUPLICATE) == 0);
        assert_eq!(
            drawn(Kind::Crash, DUPLICATE) + drawn(Kind::Crash, REFUSED),
            0
        );
        // Each element is closed by itself or by its end: enough to be well-formed here.
        assert_eq!(
            picture.matches("<text ").count(),
            picture.matches("</text>").count()
        );
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert!(!picture.contains("NaN"));
    }

    #[test]
    fn the_picture_of_pods_shows_what_happened_to_each() {
        let picture = draw(&Kind::IN_PODS.map(record));
        for kind in Kind::IN_PODS {
            for word in [kind.name(), kind.blow(), kind.relief().unwrap_or_default()] {
                assert!(picture.contains(word), "{word}");
            }
        }
        assert!(!draw(&[record(Kind::Kubelet)]).contains("height=\"5.00\""));
        assert!(!picture.contains("NaN"));
    }

    #[test]
    fn words_cannot_break_out_of_the_picture() {
        assert_eq!(escaped("41 < 42 & more"), "41 &lt; 42 &amp; more");
    }
}
