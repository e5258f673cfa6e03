//! The configuration in force, and what became of those that were to follow it.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::{Config, ConfigError, report};
use crate::algorithm::Micros;
use crate::clock::Clock;
use crate::telemetry::Telemetry;

/// The configuration that requests see: read without a lock, replaced as a whole.
#[derive(Debug)]
pub struct Live {
    config: ArcSwap<Config>,
    history: Mutex<History>,
    clock: Clock,
    telemetry: Arc<Telemetry>,
}

#[derive(Debug)]
struct History {
    loaded_at: Micros,
    /// Sets of rules that followed the first.
    reloads: u64,
    refused: Option<Refused>,
}

/// The latest set, if nothing came of it.
#[derive(Debug)]
struct Refused {
    at: Micros,
    report: String,
}

impl Live {
    /// Starts with `config`.
    #[must_use]
    pub fn new(config: Config, clock: Clock, telemetry: Arc<Telemetry>) -> Self {
        let loaded_at = clock.now();
        telemetry.config_loaded(config.rules(), loaded_at);
        Self {
            config: ArcSwap::from_pointee(config),
            history: Mutex::new(History {
                loaded_at,
                reloads: 0,
                refused: None,
            }),
            clock,
            telemetry,
        }
    }

    /// The configuration at this moment. A request asks once and keeps what it got.
    #[must_use]
    pub fn current(&self) -> arc_swap::Guard<Arc<Config>> {
        self.config.load()
    }

    /// From now on requests get `config`; those that are being decided keep what they have. Counters go on:
    /// their names are those of the rules, whatever the limits are.
    pub fn replace(&self, config: Config) {
        let now = self.clock.now();
        for warning in config.warnings() {
            tracing::warn!("{warning}");
        }
        let (rules, domains) = (config.rules(), config.domains().len());
        self.config.store(Arc::new(config));
        self.telemetry.config_loaded(rules, now);
        self.telemetry.config_reloaded(true);
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.loaded_at = now;
        history.reloads += 1;
        history.refused = None;
        tracing::info!(domains, rules, "rules changed");
    }

    /// A set is as it should not be: it changes nothing.
    pub fn refuse(&self, errors: &[ConfigError]) {
        let report = report::errors(errors);
        tracing::error!(
            "the rules in force stay as they are, since the new ones are wrong:\n{report}"
        );
        self.telemetry.config_reloaded(false);
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.refused = Some(Refused {
            at: self.clock.now(),
            report,
        });
    }

    /// The rules are again those in force, after others were refused.
    pub fn confirm(&self) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if history.refused.take().is_some() {
            self.telemetry.config_confirmed();
            tracing::info!("the rules are those in force again");
        }
    }

    /// Since when the rules are in force, and why others are not; lines that begin with `#`.
    #[must_use]
    pub fn history(&self) -> String {
        let now = self.clock.now();
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let ago = |at: Micros| now.since(at).0 / Micros::PER_SECOND;
        let mut text = format!(
            "# in force for {} s; changed {} times since the start\n",
            ago(history.loaded_at),
            history.reloads
        );
        if let Some(refused) = &history.refused {
            let _infallible = writeln!(
                text,
                "# {} s ago, what followed was refused:",
                ago(refused.at)
            );
            for line in refused.report.lines() {
                let _infallible = writeln!(text, "# {line}");
            }
        }
        text
    }
}
