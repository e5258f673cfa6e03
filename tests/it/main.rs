//! The integration tests: one binary, one module per feature.
#![allow(missing_docs)]
