//! A state-space model of the lock: the engine's own functions, an API server, clients, operators, and faults.
//!
//! Every [`Claimant`](leasehold::engine::Claimant), [`Held`](leasehold::engine::Held),
//! [`Keeper`](leasehold::engine::Keeper), [`Turns`](leasehold::engine::Turns) and what
//! [`holds`](leasehold::engine::holds) decides here is the real one. The model only plays their shells (reads, writes,
//! watches), the server ([`server`], [`kept`]), another client's elector ([`foreign`]) and what goes wrong: lost, late
//! and delayed answers, writes that land long after their sender gave up, pauses, crashes, deletions, edits.
//!
//! [`checks`], [`checks_slots`] and [`checks_holds`] walk every state that small budgets allow; [`mutations`] and
//! [`mutations_slots`] break one rule at a time and want to see the model fail. `LEASEHOLD_LONG=1` raises the budgets.
//!
//! What it does not show: more than a few claimants and two slots, clocks that run at different speeds, two claims of
//! one client, several locks at once (they are asked for one after the other). "Nobody is stranded" means: from each
//! state seen, once faults stop and everyone acts as soon as he may, everybody is served within a bound ([`fair`]).

mod acts;
mod checks;
mod checks_holds;
mod checks_slots;
mod client;
mod fair;
mod foreign;
mod keeping;
mod kept;
mod landing;
mod mutations;
mod mutations_slots;
mod operating;
mod operator;
mod part;
mod rest;
mod seeking;
mod server;
mod setup;
mod world;
