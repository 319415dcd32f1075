//! What becomes of a state once faults stop and everyone acts as soon as he may: one deterministic continuation.
//!
//! It is not a proof for every schedule, but a state in which somebody waits for nothing is found by it, and every
//! state that the checker sees is the start of one.

use std::hash::{DefaultHasher, Hash, Hasher};

use leasehold::engine::{Hold, LeaseRecord, Moment, OnHolderLost};

use super::client::Phase;
use super::operator::Operator;
use super::world::{Action, Do, Fate, Play, World};

/// A continuation of more steps goes on for ever.
const MOST_STEPS: usize = 600;

/// Everybody who lives is served within the bound, and where an operator lives, nothing is left behind.
pub fn nobody_is_stranded(play: &Play, world: &World) -> bool {
    if world.violation.is_some() {
        return true;
    }
    match ticks_to_the_end(play, world) {
        Ok(ticks) => ticks <= play.setup.bound,
        Err(_) => false,
    }
}

/// How long it takes until everything has come to its end, or why it does not.
pub fn ticks_to_the_end(play: &Play, world: &World) -> Result<u32, String> {
    let mut path = Vec::new();
    let mut world = world.clone();
    let rest = loop {
        let print = fingerprint(&world);
        if let Some(rest) = play.ends.lock().unwrap().get(&print) {
            break *rest;
        }
        path.push((print, world.now));
        if path.len() > MOST_STEPS {
            return Err(format!("no end after {MOST_STEPS} steps: {world:#?}"));
        }
        let Some(action) = next(&world) else {
            left_behind(play, &world)?;
            break 0;
        };
        let Some(after) = play.after(&world, action) else {
            return Err(format!("{action:?} changes nothing in {world:#?}"));
        };
        world = after;
    };
    let mut ends = play.ends.lock().unwrap();
    let end = world.now + rest;
    for (print, now) in &path {
        ends.insert(*print, end - now);
    }
    Ok(end - path.first().map_or(world.now, |(_, now)| *now))
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// What is still wrong when nobody has anything to do.
fn left_behind(play: &Play, world: &World) -> Result<(), String> {
    let operated = world.operators.iter().any(|operator| !operator.crashed);
    if !operated {
        return Ok(());
    }
    let held_for_good = world.server.lock.spec.on_holder_lost == OnHolderLost::Hold;
    for slot in world.server.slots() {
        let Some(lease) = world.server.lease(slot) else {
            if world.server.lock.view(slot).is_surplus() {
                continue;
            }
            return Err(format!("no lease: {world:#?}"));
        };
        let stays = held_for_good || (slot == 0 && play.setup.occupied);
        if !lease.is_free() && !stays {
            return Err(format!("slot {slot} stays with a dead holder: {world:#?}"));
        }
    }
    let mut kept = world.server.kept.iter();
    if kept.any(|kept| {
        kept.shown().is_some()
            || (kept.waits() && any_free(world) && !kept.view(world.server.pod_lives).dead)
    }) {
        return Err(format!("a claim is left as it is: {world:#?}"));
    }
    let named = world
        .server
        .lease(0)
        .is_some_and(|lease| (lease.is_free() || play.setup.occupied) && lease.next.is_some());
    if named || (any_free(world) && !world.server.claims.is_empty()) {
        return Err(format!("the lock stays named for a dead claim: {world:#?}"));
    }
    Ok(())
}

/// Whether a slot can be had.
fn any_free(world: &World) -> bool {
    world.server.slots().any(|slot| {
        let lease = world.server.lease(slot);
        lease.is_some_and(LeaseRecord::is_free) && !world.server.lock.view(slot).is_surplus()
    })
}

/// The next thing that happens; `None` when everything has come to its end.
fn next(world: &World) -> Option<Action> {
    for (number, client) in world.clients.iter().enumerate() {
        let act = |what| Some(Action::Client(number, what));
        if client.is_there() {
            match &client.air {
                Some(air) if air.answer.is_some() => return act(Do::Answer),
                Some(_) => return act(Do::Land(Fate::Answered)),
                None => {}
            }
            if !client.inbox.is_empty() {
                return act(Do::Deliver);
            }
            if client.may_release() {
                return Some(Action::Release(number));
            }
            if client.may_step() {
                return act(Do::Step);
            }
        }
        if client.phase == Phase::Away && !client.crashed {
            return Some(Action::Start(number));
        }
    }
    for (number, operator) in world.operators.iter().enumerate() {
        if operator.crashed {
            continue;
        }
        if operator.air.is_some() {
            return Some(Action::Operator(number, Do::Land(Fate::Answered)));
        }
        if !operator.inbox.is_empty() {
            return Some(Action::Operator(number, Do::Deliver));
        }
        if operator.news {
            return Some(Action::Operator(number, Do::Hear));
        }
        if operator.may_step() {
            return Some(Action::Operator(number, Do::Step));
        }
    }
    if let Some(foreign) = &world.foreign {
        if foreign.air.is_some() && !foreign.crashed {
            return Some(Action::ForeignLand);
        }
        if foreign.believes(world.moment()) {
            return Some(Action::ForeignRelease);
        }
        if foreign.releasing && foreign.may_step(world.now, false) {
            return Some(Action::ForeignStep);
        }
    }
    let kept = &world.server.kept;
    if world.server.pod_lives && kept.iter().any(|kept| kept.is_with_pod()) {
        return Some(Action::PodEnds);
    }
    for (number, client) in world.clients.iter().enumerate() {
        if client.may_beat(world.now) {
            return Some(Action::Client(number, Do::Beat));
        }
    }
    for (number, operator) in world.operators.iter().enumerate() {
        if operator.may_beat(world.now) && waits_for_time(operator, world) {
            return Some(Action::Operator(number, Do::Beat));
        }
    }
    let waits = world.clients.iter().any(|client| client.is_there());
    let mut operators = world.operators.iter();
    let timed = operators.any(|operator| !operator.crashed && waits_for_time(operator, world));
    (waits && may_end(world) || timed).then_some(Action::Tick)
}

/// Whether time alone will give it something to do, before long.
fn waits_for_time(operator: &Operator, world: &World) -> bool {
    let far = world.moment() + Moment::from_secs(100);
    operator
        .quiet
        .is_some_and(|until| until.is_some_and(|until| until < far))
}

/// Under Hold a lock may rightly stay locked for ever.
fn may_end(world: &World) -> bool {
    let hold = world.server.lock.spec.on_holder_lost == OnHolderLost::Hold;
    let offered = || {
        let slots = world.server.slots();
        slots.filter(|slot| !world.server.lock.view(*slot).is_surplus())
    };
    let leases = || offered().map(|slot| world.server.lease(slot));
    let dead_holders = leases().all(|lease| lease.is_some_and(|lease| !lease.is_free()));
    // Without an operator nobody makes the Lease, or opens the lock.
    let operated = world.operators.iter().any(|operator| !operator.crashed);
    let shut = world.server.lease(0).is_none()
        || offered().any(|slot| world.server.lock.view(slot).slot.is_none());
    // Nor does anybody end a Pod hold.
    let mut grants = leases().map(|lease| lease.and_then(LeaseRecord::current_grant));
    let pods = grants.all(|grant| grant.is_some_and(|grant| grant.hold == Hold::Pod));
    !(hold && dead_holders) && (operated || !(shut || pods))
}
