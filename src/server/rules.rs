//! Where rules come from, first and later.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::options::{failure_mode, parse_options};
use super::{ServeError, log_domains};
use crate::clock::Clock;
use crate::config::Live;
use crate::config::files;
use crate::config::parse::parse;
use crate::config::watch::Watch;
use crate::settings::Settings;
use crate::telemetry::Telemetry;
use crate::xds;

/// What puts rules in force while the process runs.
#[derive(Debug)]
pub(super) enum Rules {
    /// Files, which may change.
    Files(Watch),
    /// A server, which says what they are.
    Xds(Box<xds::Client>),
}

impl Rules {
    /// Reads the rules, unless a server is to say what they are.
    pub(super) fn new(
        settings: &Settings,
        clock: Clock,
        telemetry: &Arc<Telemetry>,
    ) -> Result<(Arc<Live>, Self), ServeError> {
        let options = parse_options(&settings.config.reading);
        if let Some(server) = settings.xds.server.clone() {
            tracing::info!(%server, "rules are to come over xDS");
            let live = Arc::new(Live::awaiting(clock, telemetry.clone()));
            let client = xds::Client::new(server, &settings.xds, options, live.clone(), telemetry)?;
            return Ok((live, Self::Xds(Box::new(client))));
        }
        let paths = settings.config.paths.clone();
        let stamps = files::stamps(&paths);
        let sources = files::read(&paths).map_err(ServeError::Config)?;
        let config = parse(&sources, options).map_err(ServeError::Config)?;
        log_domains(&config, failure_mode(settings.failure_mode));
        let live = Arc::new(Live::new(config, clock, telemetry.clone()));
        let watch = Watch::new(paths, options, live.clone(), stamps, sources);
        Ok((live, Self::Files(watch)))
    }

    /// Goes on for ever. `interval` and `nudges` are for files.
    pub(super) async fn run(self, interval: Duration, nudges: mpsc::Receiver<()>) {
        match self {
            Self::Files(watch) => watch.run(interval, nudges).await,
            Self::Xds(client) => client.run().await,
        }
    }
}
