//! What becomes of a state once faults stop and everyone acts as soon as he may: one deterministic continuation.
//!
//! It is not a proof for every schedule, but a state in which somebody waits for nothing is found by it, and every
//! state that the checker sees is the start of one.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::client::Phase;
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
            left_behind(&world)?;
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
fn left_behind(world: &World) -> Result<(), String> {
    let operated = world.operators.iter().any(|operator| !operator.crashed);
    let Some(lease) = world.server.lease.as_deref() else {
        return if operated {
            Err(format!("no lease: {world:#?}"))
        } else {
            Ok(())
        };
    };
    let held_for_good = world.server.lock.on_holder_lost == leasehold::engine::OnHolderLost::Hold;
    if operated && !lease.is_free() && !held_for_good {
        return Err(format!("the lock stays with a dead holder: {world:#?}"));
    }
    if operated && lease.is_free() && (lease.next.is_some() || !world.server.claims.is_empty()) {
        return Err(format!("the lock stays named for a dead claim: {world:#?}"));
    }
    Ok(())
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
        if operator.has_news() {
            return Some(Action::Operator(number, Do::Deliver));
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
    for (number, client) in world.clients.iter().enumerate() {
        if client.may_beat(world.now) {
            return Some(Action::Client(number, Do::Beat));
        }
    }
    for (number, operator) in world.operators.iter().enumerate() {
        if operator.may_beat(world.now) && operator.quiet.is_some_and(|until| until.is_some()) {
            return Some(Action::Operator(number, Do::Beat));
        }
    }
    let waits = world.clients.iter().any(|client| client.is_there());
    let timed = world
        .operators
        .iter()
        .any(|operator| !operator.crashed && operator.quiet.is_some_and(|until| until.is_some()));
    (waits && may_end(world) || timed).then_some(Action::Tick)
}

/// Under Hold a lock may rightly stay locked for ever.
fn may_end(world: &World) -> bool {
    let hold = world.server.lock.on_holder_lost == leasehold::engine::OnHolderLost::Hold;
    let dead_holder = world
        .server
        .lease
        .as_deref()
        .is_some_and(|lease| !lease.is_free());
    // Without an operator nobody makes the Lease, or opens the lock.
    let operated = world.operators.iter().any(|operator| !operator.crashed);
    let shut = world.server.lease.is_none() || world.server.lock.slot.is_none();
    !(hold && dead_holder) && (operated || !shut)
}
