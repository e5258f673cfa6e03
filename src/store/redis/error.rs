//! What Redis says when it hurts, and what that means for the connection it was said on.

use redis::RedisError;

use super::url::Address;
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

/// What an error says about the server that it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It is up to its work.
    Well,
    /// It will serve nobody for now.
    Ill,
    /// Nothing: it may be about this counter alone.
    Unknown,
}

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// Nothing has run, and the cluster may answer if it is asked this way.
    pub(super) detour: Option<Detour>,
}

/// What a cluster's node says instead of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Detour {
    /// The slot is that node's.
    Moved(Address),
    /// The counter is on its way there.
    Ask(Address),
    /// Some of the counters are on their way, and some are not.
    TryAgain,
    /// Nobody has the slot, or too few nodes are there to know.
    Down,
}

impl Failure {
    pub(super) fn of(error: &RedisError) -> Self {
        let node = || {
            error
                .redirect_node()
                .and_then(|(node, _slot)| Address::of_node(node))
        };
        let detour = match code(error) {
            Some("MOVED") => node().map(Detour::Moved),
            Some("ASK") => node().map(Detour::Ask),
            Some("TRYAGAIN") => Some(Detour::TryAgain),
            Some("CLUSTERDOWN") => Some(Detour::Down),
            _ => None,
        };
        Self {
            error: store_error(error),
            detour,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            detour: None,
        }
    }
}

/// What the error begins with. Before 7.0, what stopped a script is told in the middle of a sentence about it.
fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let detail = error.detail().unwrap_or_default();
    if code != "ERR" || !detail.contains("user_script") {
        return Some(code);
    }
    let words = || detail.split(|c: char| !c.is_ascii_uppercase());
    let known = STOPS_A_SCRIPT.into_iter();
    let mut known = known.filter(|known| words().any(|word| word == *known));
    Some(known.next().unwrap_or(code))
}

const STOPS_A_SCRIPT: [&str; 6] = [
    "READONLY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "NOPERM",
];

pub(super) fn remedy(error: &RedisError) -> Remedy {
    match code(error) {
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

pub(super) fn health(error: &RedisError) -> Health {
    match code(error) {
        Some("MOVED" | "ASK" | "TRYAGAIN" | "NOSCRIPT") => Health::Well,
        Some(
            "READONLY" | "LOADING" | "MASTERDOWN" | "NOREPLICAS" | "CLUSTERDOWN" | "OOM"
            | "MISCONF" | "BUSY" | "NOAUTH" | "WRONGPASS" | "NOPERM",
        )
        | None => Health::Ill,
        Some(_) => Health::Unknown,
    }
}

/// What to tell the failure path.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    if error.is_timeout() {
        return StoreError::Timeout;
    }
    match code(error) {
        Some(code @ ("NOAUTH" | "WRONGPASS" | "NOPERM")) => {
            StoreError::NotPermitted(code.to_owned())
        }
        // The script is longer than what a stranger may send, which is said before who we are is asked.
        Some(_)
            if error
                .detail()
                .is_some_and(|detail| detail.contains("unauthenticated")) =>
        {
            StoreError::NotPermitted("NOAUTH".to_owned())
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
