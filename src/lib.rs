//! Comporta decides, for Envoy, Istio or any service that asks over gRPC, whether a request may
//! pass.

pub mod algorithm;
pub mod clock;
pub mod config;
pub mod failure;
pub mod request;
pub mod response;
pub mod server;
pub mod service;
pub mod settings;
pub mod store;
pub mod telemetry;
pub mod transport;
