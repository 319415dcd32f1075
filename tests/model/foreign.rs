//! An elector of another client (client-go's `LeaseLock`) on a shared Lease.

use leasehold::engine::{LeaseRecord, Moment, SpecRecord};

use super::server::Server;

/// Its lease duration and renew deadline, in seconds.
const DURATION: u64 = 3;
const RENEW_DEADLINE: u64 = 2;
const NAME: &str = "host_5a1e";

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Foreign {
    observed: Option<(SpecRecord, Moment)>,
    /// The write in the air, and when it was sent.
    pub air: Option<(LeaseRecord, Moment)>,
    believes_until: Option<Moment>,
    acted: Option<u32>,
    pub releasing: bool,
    pub crashed: bool,
}

impl Foreign {
    pub fn believes(&self, now: Moment) -> bool {
        !self.crashed && !self.releasing && self.believes_until.is_some_and(|until| now < until)
    }

    pub fn holds(&self) -> bool {
        self.believes_until.is_some()
    }

    /// Whether a new term would start with a step at this tick.
    pub fn may_step(&self, tick: u32, terms_left: bool) -> bool {
        !self.crashed
            && self.air.is_none()
            && self.acted != Some(tick)
            && (self.holds() || terms_left)
    }

    /// Reads, and takes or renews where it may. `true` if a write was sent.
    pub fn step(&mut self, server: &Server, tick: u32, now: Moment, wall: i64) -> bool {
        self.acted = Some(tick);
        let Some(lease) = server.lease(0) else {
            // A real one would make the Lease: it asks nobody.
            return false;
        };
        if self
            .observed
            .as_ref()
            .is_none_or(|(spec, _)| *spec != lease.spec)
        {
            self.observed = Some((lease.spec.clone(), now));
        }
        let since = self.observed.as_ref().map_or(now, |(_, since)| *since);
        let mine = lease.spec.holder == NAME;
        let stored = u64::try_from(lease.spec.duration_seconds.unwrap_or(1)).unwrap_or(1);
        let valid = since + Moment::from_secs(stored) > now;
        if self.believes_until.is_some_and(|until| now >= until) {
            self.believes_until = None;
        }
        if !mine && !lease.is_free() && valid {
            self.believes_until = None;
            return false;
        }
        let mut record = lease.clone();
        if self.releasing && mine {
            record.spec.holder = String::new();
            record.spec.duration_seconds = Some(1);
            record.spec.renew_time = Some(wall);
        } else {
            if !mine {
                record.spec.transitions += 1;
                record.spec.acquire_time = Some(wall);
            }
            NAME.clone_into(&mut record.spec.holder);
            record.spec.duration_seconds = Some(i64::try_from(DURATION).unwrap_or(1));
            record.spec.renew_time = Some(wall);
        }
        self.air = Some((record, now));
        true
    }

    /// Its work has ended: its next step gives the Lease back.
    pub fn release(&mut self) {
        self.releasing = true;
        self.acted = None;
    }

    /// Its write arrives and is answered.
    pub fn land(&mut self, server: &mut Server) {
        let Some((record, sent)) = self.air.take() else {
            return;
        };
        if let Ok(now) = server.put(0, &record, true) {
            self.believes_until =
                (now.spec.holder == NAME).then(|| sent + Moment::from_secs(RENEW_DEADLINE));
            self.releasing = false;
        }
    }
}
