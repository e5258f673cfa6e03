//! Bytes to [`crate::request::Request`], [`crate::response::Decision`] to bytes.
//!
//! The generated protobuf types are private to this folder.

mod codec;
pub mod debug;
pub mod http;
mod json;
pub mod rls;

use tonic::Status;

use crate::request::InvalidRequest;
use crate::service::Refusal;

/// The generated types.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::pedantic,
    missing_debug_implementations
)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/proto.rs"));

    /// The definitions themselves, for server reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/reflection.bin"));
}

/// The one place where a refusal becomes a gRPC status. UNKNOWN is never among them: as an answer,
/// Envoy takes it for OK.
fn status(refusal: &Refusal) -> Status {
    match refusal {
        Refusal::Invalid(invalid) => invalid_argument(invalid),
        Refusal::NoRules | Refusal::Unavailable(_) => Status::unavailable(refusal.to_string()),
    }
}

fn invalid_argument(invalid: &InvalidRequest) -> Status {
    Status::invalid_argument(invalid.to_string())
}
