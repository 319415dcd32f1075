//! Gates: what a protected resource does with fencing tokens (R10).
//!
//! The lock picks a winner; the gate keeps the losers from writing. A gate keeps the highest [`Pass`] (token and
//! holder) that it has seen for each [`Place`] (namespace, lock, slot), and refuses a lower token, or an equal one from
//! another holder.
//!
//! * [`MemoryGate`] protects something inside this process.
//! * [`postgres`] (feature `fence-postgres`) protects what is in a `PostgreSQL` database, in the same transaction as
//!   the work.
//!
//! **Guarantee.** What was admitted is finished before a higher token is admitted; equal ones run side by side. So a
//! new holder that first raises the gate and only then reads what it acts on sees all that its predecessors will ever
//! have written.
//!
//! **Limits.** A gate protects only what is written through it. Work that was admitted and then freezes holds up the
//! next holder, not the data: bound it where the resource can (for `PostgreSQL` see [`postgres`]).
//!
//! ```
//! use leasehold::api::FencingToken;
//! use leasehold::fence::{MemoryGate, Pass, Place};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let gate = MemoryGate::new();
//! let place = Place::new("team-a", "nightly-billing", 0);
//! let old = Pass::new(FencingToken::new(41).unwrap(), "pod-3/9b2e");
//! let new = Pass::new(FencingToken::new(42).unwrap(), "pod-7/51c0");
//!
//! gate.raise(&place, &old).await.unwrap();
//! gate.raise(&place, &new).await.unwrap();
//! let refused = gate.admit(&place, &old).await.unwrap_err();
//! assert_eq!(refused.kept, new);
//! # });
//! ```

mod memory;
#[cfg(feature = "fence-postgres")]
pub mod postgres;

use std::fmt;

use crate::api::FencingToken;

pub use memory::{Admission, MemoryGate};

/// What a token is compared within: one slot of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The namespace of the lock.
    pub namespace: String,
    /// The name of the lock.
    pub lock: String,
    /// The slot; 0 for a lock of one holder.
    pub slot: i32,
}

impl Place {
    /// The place of `slot` of `lock` in `namespace`.
    #[must_use]
    pub fn new(namespace: impl Into<String>, lock: impl Into<String>, slot: i32) -> Self {
        Self {
            namespace: namespace.into(),
            lock: lock.into(),
            slot,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} slot {}", self.namespace, self.lock, self.slot)
    }
}

/// What a holder shows with each piece of work: learnt once, with its grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// The fencing token of the grant.
    pub token: FencingToken,
    /// The `holderIdentity` of the grant.
    pub holder: String,
}

impl Pass {
    /// The pass of a grant.
    #[must_use]
    pub fn new(token: FencingToken, holder: impl Into<String>) -> Self {
        Self {
            token,
            holder: holder.into(),
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {} of {:?}", self.token, self.holder)
    }
}

/// A pass was refused: the lock has been granted to another since.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{shown} is refused, the gate keeps {kept}: the lock is another's by now, stop this work")]
pub struct Refused {
    /// What was shown.
    pub shown: Pass,
    /// What the gate keeps.
    pub kept: Pass,
}

/// How a pass that is let in stands towards what the gate keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is what the gate keeps.
    Same,
    /// It is higher, or the first: the gate must keep it from now on.
    Up,
}

/// The rule of every gate: `kept` is what it keeps, `shown` what somebody shows.
pub fn judge(kept: Option<&Pass>, shown: &Pass) -> Result<Step, Refused> {
    match kept {
        Some(kept) if kept == shown => Ok(Step::Same),
        Some(kept) if kept.token >= shown.token => Err(Refused {
            shown: shown.clone(),
            kept: kept.clone(),
        }),
        _ => Ok(Step::Up),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(token: i64, holder: &str) -> Pass {
        Pass::new(FencingToken::new(token).unwrap(), holder)
    }

    #[test]
    fn a_lower_token_and_an_equal_one_of_another_holder_are_refused() {
        let kept = pass(42, "pod-7/b");
        assert_eq!(judge(None, &kept), Ok(Step::Up));
        assert_eq!(judge(Some(&kept), &kept), Ok(Step::Same));
        assert_eq!(judge(Some(&kept), &pass(43, "pod-3/a")), Ok(Step::Up));
        assert_eq!(judge(Some(&kept), &pass(43, "pod-7/b")), Ok(Step::Up));
        for refused in [
            pass(41, "pod-3/a"),
            pass(41, "pod-7/b"),
            pass(42, "pod-3/a"),
        ] {
            assert_eq!(judge(Some(&kept), &refused).unwrap_err().shown, refused);
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = judge(Some(&pass(42, "pod-7/b")), &pass(41, "pod-3/a")).unwrap_err();
        assert_eq!(
            refused.to_string(),
            r#"token 41 of "pod-3/a" is refused, the gate keeps token 42 of "pod-7/b": the lock is another's by now, stop this work"#
        );
    }
}
