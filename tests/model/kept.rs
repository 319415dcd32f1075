//! Claims whose hold the operator keeps (Fixed and Pod), as the server has them and as an operator shows them.

use leasehold::api::FencingToken;
use leasehold::engine::{
    ClaimEnd, ClaimRef, ClaimState, ClaimView, EndKind, Hold, HoldClaim, LeaseRecord, LockView,
    PodSight, Wish,
};

use super::part::Part;
use super::server::{Lock, Server};

/// What somebody applied in place of a process that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    Fixed(u32),
    Pod,
}

/// Name and uid of the only Pod.
const POD: &str = "pod";

/// A claim as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    pub claim: HoldClaim,
    pub ticket: u64,
    pub revision: u64,
    /// When its status says that it was granted, in ticks: the operator's time of the take.
    pub granted_at: u32,
}

impl Kept {
    /// A Fixed or Pod claim of the model's, made as the `number`-th.
    pub fn new(number: usize, asks: Asks, server: &mut Server) -> Self {
        let uid = server.new_uid();
        let name = format!("k{number}");
        server.revision += 1;
        let wish = match asks {
            Asks::Fixed(seconds) => Wish::Fixed { seconds },
            Asks::Pod => Wish::Pod {
                name: POD.to_owned(),
                uid: Some(POD.to_owned()),
                sight: None,
            },
        };
        Self {
            claim: HoldClaim {
                identity: format!("{name}/{uid}"),
                claim: ClaimRef { name, uid },
                wish,
                state: ClaimState::Waiting,
            },
            ticket: server.revision,
            revision: server.revision,
            granted_at: 0,
        }
    }

    /// The claim with what is known of its Pod.
    pub fn seen(&self, pod_lives: bool) -> HoldClaim {
        let mut claim = self.claim.clone();
        if let Wish::Pod { sight, .. } = &mut claim.wish {
            *sight = Some(PodSight {
                uid: Some(POD.to_owned()),
                ended: !pod_lives,
            });
        }
        claim
    }

    /// The claim as the queue sees it.
    pub fn view(&self, pod_lives: bool) -> ClaimView {
        let claim = self.seen(pod_lives);
        ClaimView {
            dead: claim.lacks_its_pod(),
            claim: claim.claim,
            ticket: self.ticket,
            priority: 0,
            hold: self.hold(),
            waiting: self.waits(),
        }
    }

    pub fn waits(&self) -> bool {
        self.claim.state == ClaimState::Waiting
    }

    /// The slot and the token with which it is shown as granted.
    pub fn shown(&self) -> Option<(u32, i64)> {
        match self.claim.state {
            ClaimState::Granted { slot, token, .. } => Some((slot, token)),
            _ => None,
        }
    }

    /// Whether it is shown as granted for as long as its Pod lives.
    pub fn is_with_pod(&self) -> bool {
        self.shown().is_some() && self.hold() == Hold::Pod
    }

    fn hold(&self) -> Hold {
        match self.claim.wish {
            Wish::Fixed { .. } => Hold::Fixed,
            Wish::Pod { .. } => Hold::Pod,
        }
    }

    /// Whether whoever reads its status believes that it holds the slot.
    pub fn believes(&self, slot: u32, now: u32, pod_lives: bool) -> bool {
        match self.claim.state {
            ClaimState::Granted {
                slot: shown,
                seconds,
                ..
            } => {
                let in_time = match seconds {
                    Some(seconds) => now < self.granted_at + seconds,
                    None => pod_lives,
                };
                shown == slot && in_time
            }
            _ => false,
        }
    }

    /// What its status is to say, by what an operator knows of the lock and of its slots; `None` if it says so.
    pub fn told(&self, lock: &Lock, leases: &[(u32, &LeaseRecord, Option<u32>)]) -> Option<Told> {
        let identity = &self.claim.identity;
        let held = leases.iter().find_map(|(slot, lease, prolonged)| {
            let view = lock.view(*slot);
            let entry = view.slot.as_ref()?;
            let mirrored = || (entry.holder == *identity).then_some(entry.token);
            let token = lease.current_token().map(FencingToken::get);
            let token = token.or_else(mirrored)?;
            let same = self.shown().is_none_or(|shown| shown == (*slot, token));
            (lease.spec.holder == *identity && same).then_some((*slot, *lease, *prolonged, token))
        });
        let Some((slot, lease, prolonged, token)) = held else {
            let (_, token) = self.shown()?;
            let notes = leases
                .iter()
                .filter_map(|(_, lease, _)| lease.ended.as_ref());
            let note = notes.into_iter().find(|note| note.token == token);
            return Some(Told::Over(match note.map(|note| note.kind) {
                Some(EndKind::Released) => ClaimEnd::Released,
                Some(EndKind::Ended) => ClaimEnd::PodEnded,
                Some(EndKind::Expired) => ClaimEnd::Expired,
                Some(EndKind::Revoked) | None => ClaimEnd::Revoked,
            }));
        };
        let mirrored = shows(&lock.view(slot), lease, token);
        let stored = lease
            .spec
            .duration_seconds
            .and_then(|s| u32::try_from(s).ok());
        let shown = match self.claim.state {
            ClaimState::Granted { seconds, .. } => Some(seconds),
            ClaimState::Waiting if mirrored => None,
            _ => return None,
        };
        let seconds = (self.hold() == Hold::Fixed).then(|| {
            let first = shown.flatten().or(stored).unwrap_or(0);
            first.max(prolonged.filter(|_| mirrored).unwrap_or(0))
        });
        let state = ClaimState::Granted {
            slot,
            token,
            seconds,
        };
        let since = match shown {
            Some(_) => self.granted_at,
            None => ticks(lease.spec.acquire_time),
        };
        (state != self.claim.state).then_some(Told::Granted(state, since))
    }
}

fn ticks(wall: Option<i64>) -> u32 {
    wall.and_then(|wall| u32::try_from(wall / 1_000_000).ok())
        .unwrap_or(0)
}

/// Whether the lock's status shows this grant, with the duration that the Lease stores.
fn shows(view: &LockView, lease: &LeaseRecord, token: i64) -> bool {
    view.slot.as_ref().is_some_and(|entry| {
        entry.token == token
            && entry.holder == lease.spec.holder
            && entry.duration_seconds.map(i64::from) == lease.spec.duration_seconds
    })
}

/// What an operator would write about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// And since when it is shown to be.
    Granted(ClaimState, u32),
    /// Its Lease does not show its grant any more.
    Over(ClaimEnd),
}

impl Server {
    /// All claims, as a list shows them.
    pub fn listed(&self) -> Vec<ClaimView> {
        let kept = self.kept.iter().map(|kept| kept.view(self.pod_lives));
        self.claims.iter().cloned().chain(kept).collect()
    }

    /// A claim by its uid.
    pub fn kept(&self, uid: &str) -> Option<&Part<Kept>> {
        self.kept.iter().find(|kept| kept.claim.claim.uid == uid)
    }

    /// A write of a claim's status, guarded by the revision that the writer read.
    pub fn put_kept(&mut self, mut kept: Kept) -> Result<(), ()> {
        let uid = kept.claim.claim.uid.clone();
        let mut all = self.kept.iter_mut();
        let known = all.find(|known| known.claim.claim.uid == uid).ok_or(())?;
        if known.revision != kept.revision {
            return Err(());
        }
        self.revision += 1;
        kept.revision = self.revision;
        // Status is written, spec stays.
        kept.claim.wish = known.claim.wish.clone();
        *known = Part::new(kept);
        Ok(())
    }
}
