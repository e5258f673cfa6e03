//! The configuration in force, and what became of those that were to follow it.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{Config, ConfigError, report};
use crate::algorithm::Micros;
use crate::clock::Clock;
use crate::telemetry::Telemetry;

/// The configuration that requests see: read without a lock, replaced as a whole.
#[derive(Debug)]
pub struct Live {
    config: ArcSwap<Config>,
    history: Mutex<History>,
    has_rules: watch::Sender<bool>,
    clock: Clock,
    telemetry: Arc<Telemetry>,
}

#[derive(Debug)]
struct History {
    /// If there are any rules; else, since when they are awaited.
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
        telemetry.config_loaded(config.rules(), clock.now());
        Self::starting_with(config, clock, telemetry)
    }

    /// Starts without rules, which are to follow.
    #[must_use]
    pub fn awaiting(clock: Clock, telemetry: Arc<Telemetry>) -> Self {
        telemetry.config_awaited();
        Self::starting_with(Config::awaited(), clock, telemetry)
    }

    fn starting_with(config: Config, clock: Clock, telemetry: Arc<Telemetry>) -> Self {
        Self {
            has_rules: watch::Sender::new(!config.is_awaited()),
            config: ArcSwap::from_pointee(config),
            history: Mutex::new(History {
                loaded_at: clock.now(),
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

    /// Ends when there are rules.
    pub async fn loaded(&self) {
        let mut has_rules = self.has_rules.subscribe();
        let _sender_is_here = has_rules.wait_for(|&has_rules| has_rules).await;
    }

    /// From now on requests get `config`; those that are being decided keep what they have. Counters go on:
    /// their names are those of the rules, whatever the limits are.
    pub fn replace(&self, config: Config) {
        let now = self.clock.now();
        let is_first = self.current().is_awaited();
        let (rules, domains) = (config.rules(), config.domains().len());
        self.config.store(Arc::new(config));
        self.telemetry.config_loaded(rules, now);
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.loaded_at = now;
        history.refused = None;
        if is_first {
            self.has_rules.send_replace(true);
            tracing::info!(domains, rules, "rules loaded");
        } else {
            history.reloads += 1;
            self.telemetry.config_reloaded(true);
            tracing::info!(domains, rules, "rules changed");
        }
    }

    /// A set is as it should not be: it changes nothing.
    pub fn refuse(&self, errors: &[ConfigError]) {
        let report = report::errors(errors);
        if self.current().is_awaited() {
            tracing::error!("there are still no rules, since those that came are wrong:\n{report}");
        } else {
            tracing::error!(
                "the rules in force stay as they are, since the new ones are wrong:\n{report}"
            );
        }
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
        let since = ago(history.loaded_at);
        let mut text = if self.current().is_awaited() {
            format!("# no rules yet, for {since} s\n")
        } else {
            let reloads = history.reloads;
            format!("# in force for {since} s; changed {reloads} times since the start\n")
        };
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
