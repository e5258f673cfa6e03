//! What is answered when the store cannot.

use std::sync::Arc;

use crate::algorithm::{Limit, Micros, Policy};
use crate::config::FailureMode;
use crate::store::memory::Memory;
use crate::store::{Charged, Check};

/// When a caller may try again that was denied because nobody could count.
pub const CLOSED_RETRY_AFTER: Micros = Micros(5 * Micros::PER_SECOND);

/// Answers in the store's place.
#[derive(Debug)]
pub struct Fallback {
    /// Counts for the `local` mode.
    memory: Arc<Memory>,
    /// How many instances share the limits; at least 1.
    replicas: u32,
}

/// An answer without the store.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Nobody counted: the same for every caller.
    Uncounted {
        /// Whether it denies.
        denied: bool,
    },
    /// Counted in this process, at its share of the limits.
    Local(Box<Charged>),
    /// No decision: the caller has to make it.
    None,
}

impl Fallback {
    /// Counts in `memory`, at one part in `replicas` of each limit.
    #[must_use]
    pub fn new(memory: Arc<Memory>, replicas: u32) -> Self {
        Self {
            memory,
            replicas: replicas.max(1),
        }
    }

    /// What `mode` says to these checks.
    #[must_use]
    pub fn answer(&self, mode: FailureMode, checks: &[Check<'_>], now: Micros) -> Answer {
        match mode {
            FailureMode::Open => Answer::Uncounted { denied: false },
            FailureMode::Closed => Answer::Uncounted { denied: true },
            FailureMode::Local => Answer::Local(Box::new(self.count(checks, now))),
            FailureMode::Error => Answer::None,
        }
    }

    fn count(&self, checks: &[Check<'_>], now: Micros) -> Charged {
        let shares: Vec<_> = checks.iter().map(|check| self.share(check.limit)).collect();
        let checks: Vec<_> = checks
            .iter()
            .zip(&shares)
            .map(|(check, share)| Check {
                limit: share,
                ..check.clone()
            })
            .collect();
        self.memory.charge_now(&checks, now)
    }

    /// This instance's share of a limit: at least one request per window, unless it is zero.
    fn share(&self, limit: &Limit) -> Limit {
        let share = |whole: u32| (whole / self.replicas).max(1.min(whole));
        let policy = match limit.policy() {
            Policy::TokenBucket { burst } => Policy::TokenBucket {
                burst: share(burst),
            },
            Policy::LeakyBucket { queue } => Policy::LeakyBucket {
                queue: queue / self.replicas,
            },
            policy => policy,
        };
        Limit::new(
            policy,
            share(limit.requests()),
            limit.unit(),
            limit.multiplier(),
        )
        .unwrap_or_else(|_| limit.clone())
        .charging_denied(limit.charge_denied())
    }
}
