//! A gate in front of something inside this process.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Pass, Place, Refused, Step, judge};
use crate::api::FencingToken;

/// A gate that keeps its tokens in memory. Clones are the same gate.
///
/// What it knows ends with the process, as does what it protects. A higher token is kept from the moment it is shown,
/// so that nothing older starts any more, and is let in when everything older has finished.
#[derive(Clone, Debug, Default)]
pub struct MemoryGate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    places: Mutex<HashMap<Place, Kept>>,
    finished: Notify,
}

/// What is kept for one place.
#[derive(Debug)]
struct Kept {
    pass: Pass,
    /// How many admissions run, by their token.
    running: BTreeMap<FencingToken, usize>,
}

/// Work that was let in; it has finished when this is dropped.
#[must_use = "the work counts as finished when this is dropped"]
#[derive(Debug)]
pub struct Admission {
    gate: Arc<Shared>,
    place: Place,
    token: FencingToken,
}

impl MemoryGate {
    /// A gate that has seen nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a new holder does first: from now on nothing older is let in, and everything older has finished.
    pub async fn raise(&self, place: &Place, pass: &Pass) -> Result<(), Refused> {
        self.admit(place, pass).await.map(drop)
    }

    /// Lets work in, waiting until everything with a lower token has finished.
    ///
    /// Safe to drop at any await: a higher token that was shown stays kept, nothing counts as running.
    pub async fn admit(&self, place: &Place, pass: &Pass) -> Result<Admission, Refused> {
        loop {
            // Listening begins before looking, so that no end in between is missed.
            let finished = self.0.finished.notified();
            if let Some(admission) = self.try_enter(place, pass)? {
                return Ok(admission);
            }
            finished.await;
        }
    }

    /// What is kept for a place.
    #[must_use]
    pub fn kept(&self, place: &Place) -> Option<Pass> {
        self.0.lock().get(place).map(|kept| kept.pass.clone())
    }

    /// `None` while something older runs.
    fn try_enter(&self, place: &Place, pass: &Pass) -> Result<Option<Admission>, Refused> {
        let mut places = self.0.lock();
        let step = judge(places.get(place).map(|kept| &kept.pass), pass)?;
        let kept = places.entry(place.clone()).or_insert_with(|| Kept {
            pass: pass.clone(),
            running: BTreeMap::new(),
        });
        if step == Step::Up {
            kept.pass.clone_from(pass);
        }
        if kept.running.range(..pass.token).next().is_some() {
            return Ok(None);
        }
        *kept.running.entry(pass.token).or_default() += 1;
        Ok(Some(Admission {
            gate: Arc::clone(&self.0),
            place: place.clone(),
            token: pass.token,
        }))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Kept>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(kept) = self.gate.lock().get_mut(&self.place)
            && let Some(count) = kept.running.get_mut(&self.token)
        {
            *count -= 1;
            if *count == 0 {
                kept.running.remove(&self.token);
            }
        }
        self.gate.finished.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn pass(token: i64) -> Pass {
        Pass::new(FencingToken::new(token).unwrap(), "pod-3/a")
    }

    /// What a future says when it is asked once.
    fn ask<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_raise_that_is_given_up_keeps_older_work_out_and_nobody_waiting() {
        let gate = MemoryGate::new();
        let place = Place::new("team-a", "nightly-billing", 0);
        let Poll::Ready(Ok(running)) = ask(gate.admit(&place, &pass(41))) else {
            panic!("nothing runs");
        };
        assert!(ask(gate.raise(&place, &pass(42))).is_pending());
        assert!(matches!(
            ask(gate.admit(&place, &pass(41))),
            Poll::Ready(Err(_))
        ));
        assert!(ask(gate.admit(&place, &pass(42))).is_pending());
        drop(running);
        assert!(matches!(
            ask(gate.raise(&place, &pass(43))),
            Poll::Ready(Ok(()))
        ));
    }
}
