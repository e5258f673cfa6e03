//! The integration tests: one binary, one module per feature.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on should end")]

mod algorithm;
mod cancellation;
mod cluster;
mod command_line;
mod config_errors;
mod connections;
mod deploy;
mod drain;
mod envoy;
mod envoyproxy;
mod failure;
mod headers;
mod health;
mod http;
mod leaky_bucket;
mod lease;
mod load;
mod matching;
mod memory;
mod metrics;
mod public;
mod public_envoy;
mod redis;
mod reload;
mod rig;
mod rls;
mod simulation;
mod store;
mod support;
mod tidy;
mod traces;
mod wire;
mod xds;

/// The program's own: what a counter costs depends on it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
