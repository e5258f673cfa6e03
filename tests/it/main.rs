//! The integration tests: one binary, one module per feature.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on should end")]

mod config_errors;
mod matching;
