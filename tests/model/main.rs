//! A state-space model of the lock: the engine's own functions, an API server, clients, operators, and faults.
//!
//! Every [`Claimant`](leasehold::engine::Claimant), [`Held`](leasehold::engine::Held) and
//! [`Keeper`](leasehold::engine::Keeper) here is the real one. The model only plays their shells (reads, writes,
//! watches), the server ([`server`]), another client's elector ([`foreign`]) and what goes wrong: lost, late and
//! delayed answers, writes that land long after their sender gave up, pauses, crashes, deletions, edits.
//!
//! [`checks`] walks every state that small budgets allow; [`mutations`] breaks one rule at a time and wants to see the
//! model fail. `LEASEHOLD_LONG=1` raises the budgets.
//!
//! What it does not show: more than a few claimants, clocks that run at different speeds, two claims of one client,
//! several slots. "Nobody is stranded" means: from each state seen, once faults stop and everyone acts as soon as he
//! may, everybody is served within a bound ([`fair`]).

mod acts;
mod checks;
mod client;
mod fair;
mod foreign;
mod landing;
mod mutations;
mod operator;
mod part;
mod server;
mod world;
