//! The work queue: locks to look at, now or at a moment, each at most once at a time.
//!
//! A lock that is added while somebody works on it is handed out again afterwards. The queue holds one entry a lock
//! at most, so the number of locks bounds it.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::index::Key;
use crate::clock::Clock;
use crate::engine::Moment;

/// The queue. One task takes from it, anybody adds.
#[derive(Debug)]
pub struct WorkQueue {
    state: Mutex<State>,
    wake: Notify,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Key>,
    is_ready: HashSet<Key>,
    running: HashSet<Key>,
    again: HashSet<Key>,
    due: BTreeSet<(Moment, Key)>,
    due_of: HashMap<Key, Moment>,
}

impl WorkQueue {
    /// An empty queue.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            state: Mutex::default(),
            wake: Notify::new(),
            clock,
        }
    }

    /// Looks at `key` as soon as possible.
    pub fn add(&self, key: Key) {
        self.state().make_ready(key);
        self.wake.notify_one();
    }

    /// Looks at `key` at `at`, or earlier if an earlier moment is noted already.
    pub fn add_at(&self, key: &Key, at: Moment) {
        self.state().note(key, at);
        self.wake.notify_one();
    }

    /// The next lock to work on; call [`WorkQueue::done`] with it afterwards. Safe to drop while it waits.
    pub async fn next(&self) -> Key {
        loop {
            let pause = {
                let mut state = self.state();
                let now = self.now();
                state.ripen(now);
                if let Some(key) = state.take() {
                    return key;
                }
                state.due.first().map(|(at, _)| at.saturating_sub(now))
            };
            let pause = pause.unwrap_or(Duration::from_hours(1));
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// The work on `key` has ended.
    pub fn done(&self, key: &Key) {
        let mut state = self.state();
        state.running.remove(key);
        if state.again.remove(key) {
            state.make_ready(key.clone());
            self.wake.notify_one();
        }
    }

    /// Forgets everything: what was worked on was given up.
    pub fn clear(&self) {
        *self.state() = State::default();
    }

    fn now(&self) -> Moment {
        Duration::from_nanos(self.clock.mono().as_nanos())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn make_ready(&mut self, key: Key) {
        if self.running.contains(&key) {
            self.again.insert(key);
        } else if self.is_ready.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn note(&mut self, key: &Key, at: Moment) {
        match self.due_of.get(key) {
            Some(earlier) if *earlier <= at => return,
            Some(later) => {
                self.due.remove(&(*later, key.clone()));
            }
            None => {}
        }
        self.due_of.insert(key.clone(), at);
        self.due.insert((at, key.clone()));
    }

    fn ripen(&mut self, now: Moment) {
        while let Some((at, _)) = self.due.first()
            && *at <= now
            && let Some((_, key)) = self.due.pop_first()
        {
            self.due_of.remove(&key);
            self.make_ready(key);
        }
    }

    fn take(&mut self) -> Option<Key> {
        let key = self.ready.pop_front()?;
        self.is_ready.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    #[tokio::test]
    async fn a_lock_is_handed_out_once_and_again_when_it_changed_meanwhile() {
        let queue = WorkQueue::new(Arc::new(FakeClock::default()));
        queue.add(key("a"));
        queue.add(key("a"));
        queue.add(key("b"));
        assert_eq!(queue.next().await, key("a"));
        queue.add(key("a"));
        assert_eq!(queue.next().await, key("b"), "a is being worked on");
        queue.done(&key("a"));
        assert_eq!(queue.next().await, key("a"));
        assert!(queue.state().ready.is_empty());
    }

    #[tokio::test]
    async fn the_earliest_moment_counts() {
        let clock = FakeClock::default();
        let queue = WorkQueue::new(Arc::new(clock.clone()));
        let now = queue.now();
        let second = Duration::from_secs(1);
        queue.add_at(&key("a"), now + 5 * second);
        queue.add_at(&key("a"), now + second);
        queue.add_at(&key("a"), now + 3 * second);
        assert_eq!(queue.state().due.len(), 1);
        clock.advance(second);
        assert_eq!(queue.next().await, key("a"));
        assert!(queue.state().due.is_empty());
    }
}
