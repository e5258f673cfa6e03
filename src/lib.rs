//! Comporta decides, for Envoy, Istio or any service that asks over gRPC, whether a request may
//! pass.

pub mod algorithm;
pub mod clock;
pub mod config;
pub mod store;
pub mod telemetry;
