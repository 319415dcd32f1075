//! What a container says: its log, as the container runtime writes it on the node, also while no kubelet is there to ask.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::pod::News;
use crate::said::Said;

/// How often it looks for more. What is said tells its own time.
const LOOK: Duration = Duration::from_millis(20);

/// Passes on what a container says, from its first word on, as long as somebody listens.
pub(super) async fn follow(log: PathBuf, index: usize, news: UnboundedSender<(usize, News)>) {
    let mut read = 0;
    let mut rest = String::new();
    while !news.is_closed() {
        if let Ok(more) = read_from(&log, read) {
            read += u64::try_from(more.len()).unwrap_or(0);
            rest.push_str(&String::from_utf8_lossy(&more));
        }
        while let Some((line, after)) = rest.split_once('\n') {
            if let Some(said) = said(line) {
                let _ = news.send((index, News::Said(said)));
            }
            rest = after.to_owned();
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn read_from(log: &PathBuf, at: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(at))?;
    let mut more = Vec::new();
    file.read_to_end(&mut more)?;
    Ok(more)
}

/// `TIME stdout F WORDS`, where the words are ours.
fn said(line: &str) -> Option<Said> {
    let (_, words) = line.split_once(" stdout F ")?;
    serde_json::from_str(words).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_work_says_is_found_among_other_words() {
        let line = r#"2026-11-30T02:00:00.123456789Z stdout F {"said":"shut_out","at":7}"#;
        assert_eq!(said(line), Some(Said::ShutOut { at: 7 }));
        let others = [
            r#"2026-11-30T02:00:00.1Z stderr F {"said":"shut_out","at":7}"#,
            "2026-11-30T02:00:00.1Z stdout F leasehold: waits",
            "",
        ];
        for line in others {
            assert_eq!(said(line), None, "{line}");
        }
    }
}
