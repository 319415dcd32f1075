//! What the examples' containers print of their work: `UPTIME begins with token N`, `UPTIME ends`. The uptime is the
//! node's, the same clock for all of them, so overlapping work shows.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, LogParams};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::stage::{LONG, Team, status_of};

/// The work of one container, once it has begun.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub pod: String,
    pub token: i64,
    /// Of a lock with more than one.
    pub slot: i64,
    /// In seconds since the node's boot.
    pub begin: f64,
    pub end: Option<f64>,
    /// Its container has ended, whether it said so or not.
    pub over: bool,
}

/// What a container has printed.
#[derive(Debug, Default)]
struct Printed {
    lines: Vec<String>,
    /// And all that it ever will.
    over: bool,
}

/// What the containers of one name in a namespace print, from their first line to their last.
pub struct Works {
    told: watch::Receiver<All>,
    watching: JoinHandle<()>,
}

/// A Pod's name, and the id of its container.
type Key = (String, String);
type All = BTreeMap<Key, Printed>;

impl Works {
    /// Follows every container of this name, also those that do not exist yet.
    pub fn of(team: &Team, container: &'static str) -> Self {
        let (tell, told) = watch::channel(BTreeMap::new());
        let watching = tokio::spawn(watch_pods(team.pods(), container, tell));
        Self { told, watching }
    }

    /// The work so far, in the order in which it began.
    pub fn now(&self) -> Vec<Work> {
        works(&self.told.borrow())
    }

    /// Waits until the work shows this.
    pub async fn until(&mut self, what: &str, is_so: impl Fn(&[Work]) -> bool) -> Vec<Work> {
        let so = self.told.wait_for(|lines| is_so(&works(lines)));
        let found = tokio::time::timeout(LONG, so).await;
        let found = found.map(|lines| works(&lines.expect("it is followed")));
        found.unwrap_or_else(|_| panic!("not within {LONG:?}: {what}: {:#?}", *self.told.borrow()))
    }

    /// Waits until a further one has begun, after so many.
    pub async fn begun_after(&mut self, count: usize) -> Work {
        let what = format!("work begins after {count} others");
        let works = self.until(&what, |works| works.len() > count).await;
        works[count].clone()
    }

    /// Waits until so many have ended and none goes on; all of them.
    pub async fn ended(&mut self, count: usize) -> Vec<Work> {
        let over = |works: &[Work]| works.iter().filter(|work| work.end.is_some()).count();
        self.until(&format!("{count} have ended"), |works| {
            works.len() == count && over(works) == count
        })
        .await
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// No work began before the one before it had ended, each with a higher token.
pub fn assert_one_at_a_time(works: &[Work]) {
    for pair in works.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        assert!(
            before.end.is_some_and(|end| end <= after.begin),
            "at once: {before:?} {after:?}"
        );
        assert!(before.token < after.token, "{before:?} {after:?}");
    }
}

/// How many worked at once, at most.
pub fn most_at_once(works: &[Work]) -> usize {
    let at = |moment: f64| {
        let goes_on =
            |work: &&Work| work.begin <= moment && work.end.is_none_or(|end| moment < end);
        works.iter().filter(goes_on).count()
    };
    works.iter().map(|work| at(work.begin)).max().unwrap_or(0)
}

fn works(all: &All) -> Vec<Work> {
    let mut works: Vec<Work> = all
        .iter()
        .filter_map(|((pod, _), printed)| work(pod, printed))
        .collect();
    works.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    works
}

fn work(pod: &str, printed: &Printed) -> Option<Work> {
    let at = |word: &str| {
        printed.lines.iter().find_map(|line| {
            let (up, rest) = line.split_once(' ')?;
            rest.starts_with(word).then_some((up.parse().ok()?, rest))
        })
    };
    let (begin, words) = at("begins")?;
    let number = |name: &str| {
        let mut words = words.split(' ').skip_while(|word| *word != name);
        words.nth(1)?.parse().ok()
    };
    Some(Work {
        pod: pod.to_owned(),
        token: number("token")?,
        slot: number("slot").unwrap_or(0),
        begin,
        end: at("ends").map(|(end, _)| end),
        over: printed.over,
    })
}

async fn watch_pods(pods: Api<Pod>, container: &'static str, tell: watch::Sender<All>) {
    let mut seen = watcher(pods.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    while let Some(pod) = seen.next().await {
        let Ok(pod) = pod else { continue };
        let Some(id) = started(&pod, container) else {
            continue;
        };
        let key = (pod.name_any(), id);
        let new = !tell.borrow().contains_key(&key);
        if new {
            tell.send_modify(|all| drop(all.insert(key.clone(), Printed::default())));
            tokio::spawn(follow(pods.clone(), container, key, tell.clone()));
        }
    }
}

/// The id of a Pod's container that runs or has run.
fn started(pod: &Pod, container: &str) -> Option<String> {
    let status = status_of(pod, container)?;
    let state = status.state.as_ref()?;
    let started = state.running.is_some() || state.terminated.is_some();
    started.then(|| status.container_id.clone())?
}

/// Reads what a container prints until it has ended, begun again where the connection breaks.
async fn follow(pods: Api<Pod>, container: &str, key: Key, tell: watch::Sender<All>) {
    let params = LogParams {
        container: Some(container.to_owned()),
        follow: true,
        ..LogParams::default()
    };
    let mut had = 0;
    loop {
        if let Ok(stream) = pods.log_stream(&key.0, &params).await {
            let mut lines = stream.lines();
            let mut count = 0;
            while let Ok(Some(line)) = lines.try_next().await {
                count += 1;
                if count > had {
                    had = count;
                    tell.send_modify(|all| all.entry(key.clone()).or_default().lines.push(line));
                }
            }
        }
        // The container may have ended while nobody read: its last words are there to be read once more.
        let pod = pods.get_opt(&key.0).await.ok().flatten();
        let goes_on = pod.is_some_and(|pod| {
            status_of(&pod, container).is_some_and(|status| {
                let runs = status.state.as_ref().is_some_and(|s| s.running.is_some());
                status.container_id.as_ref() == Some(&key.1) && runs
            })
        });
        if !goes_on {
            tell.send_modify(|all| all.entry(key).or_default().over = true);
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn printed(lines: &[&str]) -> Printed {
    Printed {
        lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        over: true,
    }
}

#[test]
fn work_is_read_from_what_a_container_prints() {
    let lines = [
        "leasehold: waiting",
        "12.5 begins with token 77 in slot 2",
        "14.25 ends",
    ];
    let read = work("import-1", &printed(&lines)).expect("work");
    assert_eq!((read.token, read.slot), (77, 2));
    assert_eq!((read.begin, read.end), (12.5, Some(14.25)));
    assert_eq!(work("import-1", &printed(&lines[..1])), None);
    let other = Work {
        begin: 14.0,
        ..read.clone()
    };
    assert_eq!(most_at_once(&[read.clone(), other]), 2);
    let later = Work {
        begin: 14.25,
        ..read.clone()
    };
    assert_eq!(most_at_once(&[read, later]), 1);
}

#[test]
#[should_panic(expected = "at once")]
fn work_that_overlaps_is_noticed() {
    let first = work("a", &printed(&["1.00 begins with token 5", "2.00 ends"]));
    let second = work("b", &printed(&["1.99 begins with token 6", "3.00 ends"]));
    assert_one_at_a_time(&[first, second].map(|work| work.expect("work")));
}
