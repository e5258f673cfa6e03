//! Where counters live.
//!
//! A [`Store`] decides whole requests: it checks every limit first, and charges all of them or none.
//! Two stores exist, [`memory`] and Redis; what is added to a store, such as a breaker, is a layer
//! that is a `Store` itself.

pub mod any;
pub mod denials;
pub mod drill;
pub mod key;
pub mod lease;
pub mod memory;
pub mod redis;
mod shards;
mod table;

use std::future::Future;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{self, Demand, Hits, Limit, Micros, Outcome, State};
use crate::telemetry::Source;
pub use key::CounterKey;

/// Outcomes, one per check, in order.
pub type Outcomes = SmallVec<[Outcome; 4]>;

/// One limit to be checked, and charged if all agree.
#[derive(Clone, Debug)]
pub struct Check<'c> {
    /// The counter.
    pub key: CounterKey,
    /// What it is held to.
    pub limit: &'c Limit,
    /// What is asked of it.
    pub demand: Demand,
    /// What its denial does.
    pub role: Role,
}

/// What a limit's denial does to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Denies it.
    Hard,
    /// Nothing.
    Shadow,
    /// Denies it if every quota of the request is over. Limits of one descriptor share a number, and
    /// are over together as soon as one of them is.
    Quota(usize),
}

/// What a store decided about a request.
#[derive(Clone, Debug, Default)]
pub struct Charged {
    /// One per check.
    pub outcomes: Outcomes,
    /// Whether the request as a whole is denied; nothing was charged then, except to limits that
    /// charge denied hits.
    pub denied: bool,
    /// The store's time; of no meaning if `split`, or if nobody asked it.
    pub now: Micros,
    /// What a shared store saw, if it denied: each counter's state before its check.
    pub evidence: Option<Box<SmallVec<[State; 4]>>>,
    /// Whether the counters were not in one place, so that each was decided by itself, and what was
    /// charged given back where another denied.
    pub split: bool,
    /// Who decided.
    pub source: Source,
}

/// Why a store gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It didn't answer in time; the hits may or may not have been counted.
    #[error("the store did not answer in time")]
    Timeout,
    /// More requests wait for it than are allowed to.
    #[error("too many requests wait for the store")]
    Overloaded,
    /// It can't be reached.
    #[error("the store can't be reached: {0}")]
    Unreachable(String),
    /// It refuses to work at present.
    #[error("the store refuses: {0}")]
    Refused(String),
    /// It doesn't know us, or doesn't let us.
    #[error("the store does not let us in: {0}")]
    NotPermitted(String),
    /// It failed lately, and is left alone until a probe succeeds.
    #[error("the store is not asked until a probe succeeds; it failed last because {0}")]
    Suspended(Arc<StoreError>),
    /// There are more requests than this process may work on at a time.
    #[error("too many requests are in flight")]
    Shed,
    /// It is made unavailable on purpose.
    #[error("the store is unavailable because of a drill")]
    Drill,
}

impl StoreError {
    /// For labels and metadata: which of them it is.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Overloaded => "overloaded",
            Self::Unreachable(_) => "unreachable",
            Self::Refused(_) => "refused",
            Self::NotPermitted(_) => "not_permitted",
            // Whom to call doesn't change because it is no longer tried.
            Self::Suspended(cause) if matches!(**cause, Self::NotPermitted(_)) => cause.reason(),
            Self::Suspended(_) => "breaker_open",
            Self::Shed => "shed",
            Self::Drill => "drill",
        }
    }
}

/// Keeps counters, and decides over them atomically.
pub trait Store: Send + Sync + 'static {
    /// Checks all, then charges all or none; answers within `deadline`.
    fn charge(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        deadline: Micros,
    ) -> impl Future<Output = Result<Charged, StoreError>> + Send;

    /// The states of the counters as they are at `now`, where there are any; changes nothing.
    fn peek(
        &self,
        checks: &[Check<'_>],
        now: Micros,
    ) -> impl Future<Output = Result<Vec<Option<State>>, StoreError>> + Send;

    /// Forgets the counters; says how many there were.
    fn reset(&self, keys: &[CounterKey]) -> impl Future<Output = Result<usize, StoreError>> + Send;
}

impl<S: Store> Store for Arc<S> {
    fn charge(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        deadline: Micros,
    ) -> impl Future<Output = Result<Charged, StoreError>> + Send {
        S::charge(self, checks, now, deadline)
    }

    fn peek(
        &self,
        checks: &[Check<'_>],
        now: Micros,
    ) -> impl Future<Output = Result<Vec<Option<State>>, StoreError>> + Send {
        S::peek(self, checks, now)
    }

    fn reset(&self, keys: &[CounterKey]) -> impl Future<Output = Result<usize, StoreError>> + Send {
        S::reset(self, keys)
    }
}

/// Whether outcomes such as these deny the request.
#[must_use]
pub fn denies(checks: &[Check<'_>], outcomes: &[Outcome]) -> bool {
    let mut quotas: SmallVec<[(usize, bool); 4]> = SmallVec::new();
    for (check, outcome) in checks.iter().zip(outcomes) {
        match check.role {
            Role::Hard if !outcome.admitted => return true,
            Role::Hard | Role::Shadow => {}
            Role::Quota(number) => match quotas.iter_mut().find(|quota| quota.0 == number) {
                Some(quota) => quota.1 |= !outcome.admitted,
                None => quotas.push((number, !outcome.admitted)),
            },
        }
    }
    !quotas.is_empty() && quotas.iter().all(|&(_, over)| over)
}

/// Whether a check is charged, given its own outcome and the request's.
#[must_use]
pub fn is_charged(check: &Check<'_>, outcome: &Outcome, denied: bool, now: Micros) -> bool {
    let fits = outcome.admitted && !denied;
    (fits || check.limit.charge_denied()) && !check.demand.is_late(now)
}

/// The outcome of an admitted check that is not charged after all: another was denied, or it came late.
#[must_use]
pub fn uncharged(limit: &Limit, state: &State, now: Micros) -> Outcome {
    Outcome {
        admitted: true,
        retry_after: None,
        ..algorithm::check(limit, state, now, Demand::patient(Hits::Look))
    }
}
