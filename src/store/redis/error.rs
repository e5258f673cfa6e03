//! What Redis says when it hurts, and what that means for the connection it was said on.

use redis::RedisError;

use crate::store::StoreError;

/// What to do after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Nothing: the connection is fine, and its server may be the right one.
    Keep,
    /// Connect anew: this server won't do, or the socket is of no use any more.
    Reconnect,
    /// Load the script and ask again: nothing has run.
    LoadScript,
}

pub(super) fn remedy(error: &RedisError) -> Remedy {
    match error.code() {
        Some("NOSCRIPT") => Remedy::LoadScript,
        // A demoted primary keeps its connections open, and would say so for ever.
        Some("READONLY" | "LOADING" | "MASTERDOWN" | "NOREPLICAS" | "NOAUTH" | "CLUSTERDOWN") => {
            Remedy::Reconnect
        }
        Some(_) => Remedy::Keep,
        // Anything without a code is the socket's, or a time-out: replies to come would be late.
        None => Remedy::Reconnect,
    }
}

/// What to tell the failure path.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    if error.is_timeout() {
        return StoreError::Timeout;
    }
    match error.code() {
        Some(code @ ("NOAUTH" | "WRONGPASS" | "NOPERM")) => {
            StoreError::NotPermitted(code.to_owned())
        }
        Some(code) => StoreError::Refused(code.to_owned()),
        None if error.kind() == redis::ErrorKind::AuthenticationFailed => {
            StoreError::NotPermitted("authentication failed".to_owned())
        }
        None => StoreError::Unreachable(cause(error).to_owned()),
    }
}

/// Not the error's own text, which may quote what was sent.
fn cause(error: &RedisError) -> &'static str {
    if error.is_connection_refusal() {
        "connection refused"
    } else if error.is_io_error() {
        "the connection broke"
    } else {
        "the reply makes no sense"
    }
}
