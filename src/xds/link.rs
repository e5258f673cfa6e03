//! Whether there is a server: what the log and the metric say of it.

use tonic::codegen::http::uri::Authority;

use super::connect::Failure;
use crate::telemetry::XdsMeter;

/// What is known of the way to the server. The log tells what is new.
#[derive(Debug)]
pub(super) struct Link {
    server: Authority,
    meter: XdsMeter,
    told: Told,
}

/// What the log said last.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Connected,
    Lost(String),
}

impl Link {
    pub(super) fn new(server: Authority, meter: XdsMeter) -> Self {
        Self {
            server,
            meter,
            told: Told::Nothing,
        }
    }

    /// There is a stream.
    pub(super) fn connected(&mut self) {
        self.meter.set_connected(true);
        if self.told != Told::Connected {
            tracing::info!(server = %self.server, "rules come over xDS");
            self.told = Told::Connected;
        }
    }

    /// There is none.
    pub(super) fn lost(&mut self, failure: &Failure) {
        self.meter.set_connected(false);
        let lost = Told::Lost(failure.to_string());
        if self.told == lost {
            tracing::debug!(server = %self.server, %failure, "still no xDS server");
        } else {
            tracing::warn!(server = %self.server, %failure, "no xDS server; the rules stay as they are");
            self.told = lost;
        }
    }
}
