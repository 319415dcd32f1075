//! Whether a claimant comes to rest: what it reads must lead it on, to a write, to a wait, or to its end.
//!
//! Asked in every state that the checker sees, with all reads answered as things are and nothing else happening: who
//! then reads for ever would hurry the server without a pause.

use leasehold::engine::Move;

use super::client::{Client, Phase, identity};
use super::seeking::MOST_READS;
use super::world::{Play, Setup, Violation, World};

/// Whether everybody who seeks rests, at once and after a look around.
pub fn everyone_rests(play: &Play, world: &World) -> bool {
    let setup = &play.setup;
    world.violation != Some(Violation::Restless)
        && world.clients.iter().all(|client| {
            let seeks = client.phase == Phase::Seeking && !client.crashed && client.air.is_none();
            if !seeks {
                return true;
            }
            let as_it_is = Client::clone(client);
            let mut looking = as_it_is.clone();
            looking.mind.look_around(world.moment());
            rests(setup, world, as_it_is) && rests(setup, world, looking)
        })
}

fn rests(setup: &Setup, world: &World, mut client: Client) -> bool {
    let now = world.moment();
    for _ in 0..MOST_READS {
        let step = client.mind.decide(now, world.wall());
        if world.read(setup, &mut client, &step) {
            continue;
        }
        match step {
            Move::StartOver => {
                let identity = identity(client.number, &"f".repeat(36));
                client.mind.start_over(identity);
            }
            Move::Wait { until, .. } => return until.is_none_or(|until| until > now),
            // What changes nothing would be written again and again.
            Move::Write(write) => return client.mind.lease(write.slot()) != Some(write.record()),
            // Their answers change what it decides by.
            _ => return true,
        }
    }
    false
}
