//! Every integration test but the model, in one program: a topic is a file here and a line below.
//!
//! Tests that need a server take their client from [`server`]. `cargo xtask test` runs them all, on a control plane of
//! their own.

mod api_crds;
mod api_gitops;
mod api_local;
mod api_objects;
mod api_served;
#[cfg(target_os = "linux")]
mod client_all;
#[cfg(target_os = "linux")]
mod client_answers;
#[cfg(target_os = "linux")]
mod client_cancel;
#[cfg(target_os = "linux")]
mod client_herd;
#[cfg(target_os = "linux")]
mod client_hurry;
#[cfg(target_os = "linux")]
mod client_leaving;
#[cfg(target_os = "linux")]
mod client_loss;
mod client_register;
#[cfg(target_os = "linux")]
mod client_seams;
mod client_slots;
#[cfg(target_os = "linux")]
mod client_waits;
#[cfg(target_os = "linux")]
mod docs;
#[cfg(target_os = "linux")]
mod docs_cases;
mod docs_manifests;
mod engine_duel;
mod engine_keepers;
mod engine_limits;
mod engine_open_takes;
mod engine_rules;
mod engine_slots;
mod engine_stage;
mod engine_transcripts;
mod engine_turns;
mod engine_words;
#[cfg(feature = "fence-postgres")]
mod fence;
#[cfg(feature = "cli")]
mod operator_abandoned;
#[cfg(feature = "cli")]
mod operator_claims;
#[cfg(target_os = "linux")]
mod operator_dies;
#[cfg(feature = "cli")]
mod operator_ends;
#[cfg(target_os = "linux")]
mod operator_holds;
#[cfg(target_os = "linux")]
mod operator_hurry;
#[cfg(target_os = "linux")]
mod operator_kubectl;
#[cfg(feature = "cli")]
mod operator_leaders;
#[cfg(target_os = "linux")]
mod operator_leaks;
#[cfg(feature = "cli")]
mod operator_limits;
#[cfg(feature = "cli")]
mod operator_mirror;
#[cfg(target_os = "linux")]
mod operator_order;
#[cfg(feature = "cli")]
mod operator_place;
#[cfg(target_os = "linux")]
mod operator_pods;
#[cfg(target_os = "linux")]
mod operator_refused;
#[cfg(feature = "cli")]
mod operator_rig;
#[cfg(target_os = "linux")]
mod operator_shared;
#[cfg(target_os = "linux")]
mod operator_skew;
#[cfg(feature = "cli")]
mod operator_slots;
mod operator_storms;
#[cfg(feature = "cli")]
mod operator_wire;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod proxy;
#[cfg(target_os = "linux")]
mod run_access;
#[cfg(target_os = "linux")]
mod run_alone;
#[cfg(target_os = "linux")]
mod run_bench;
#[cfg(target_os = "linux")]
mod run_elector;
#[cfg(target_os = "linux")]
mod run_frozen;
#[cfg(target_os = "linux")]
mod run_heads;
#[cfg(target_os = "linux")]
mod run_health;
#[cfg(target_os = "linux")]
mod run_max_hold;
#[cfg(target_os = "linux")]
mod run_network;
#[cfg(target_os = "linux")]
mod run_outage;
#[cfg(target_os = "linux")]
mod run_pod;
#[cfg(target_os = "linux")]
mod run_process;
#[cfg(target_os = "linux")]
mod run_queue;
#[cfg(target_os = "linux")]
mod run_refused;
#[cfg(target_os = "linux")]
mod run_restore;
#[cfg(target_os = "linux")]
mod run_rounds;
#[cfg(target_os = "linux")]
mod run_several;
#[cfg(target_os = "linux")]
mod run_signals;
#[cfg(target_os = "linux")]
mod run_told;
mod run_words;
mod server;
#[cfg(target_os = "linux")]
mod sidecar;
#[cfg(target_os = "linux")]
mod sidecar_app;
#[cfg(target_os = "linux")]
mod sidecar_lost;
#[cfg(target_os = "linux")]
mod sidecar_restart;
#[cfg(target_os = "linux")]
mod sidecar_words;
#[cfg(target_os = "linux")]
mod supervise_ends;
#[cfg(target_os = "linux")]
mod supervise_lost;
#[cfg(target_os = "linux")]
mod supervise_wrapper;
