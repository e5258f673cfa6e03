//! The five algorithms, as pure integer arithmetic: no clock, no I/O, no locks.
//!
//! A store keeps a [`State`] per counter and asks in three steps, so that it can check every limit
//! of a request before it charges any:
//!
//! 1. [`State::advance`] brings the state up to `now`; doing so is invisible to later answers;
//! 2. [`check`] says what a [`Demand`] would get, and changes nothing;
//! 3. [`charge`] takes the hits.
//!
//! Time is integer microseconds. Instants count from the Unix epoch, by the store's clock; answers
//! are spans, because another process may have another clock.
//!
//! A clock that steps back never grants extra and never locks a key out. Each algorithm keeps its
//! own time from running backwards as long as the step is at most about one window; a stored
//! instant further ahead than that is pulled back to the fullest state that the limit allows now.

mod fixed_window;
mod gcra;
mod leaky_bucket;
mod lease;
mod limit;
mod sliding_window_counter;
mod sliding_window_log;
mod token_bucket;

pub use fixed_window::Window;
pub use gcra::{Bucket, BucketTerms, Pair, bucket_terms};
pub use lease::{LEASE_MIN, Lease, Share};
pub use limit::{Algorithm, Limit, LimitError, Policy, Unit, WINDOW_MAX};
pub use sliding_window_counter::{Counter, TICKS_MAX, ticks};
pub use sliding_window_log::Log;

/// Microseconds: a span, or an instant counted from the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// The longest span; stands for "no bound" where a span is a bound.
    pub const MAX: Self = Self(u64::MAX);
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// Microseconds in a second.
    pub const PER_SECOND: u64 = 1_000_000;

    /// The span in whole seconds, rounded up.
    #[must_use]
    pub fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(Self::PER_SECOND)
    }

    /// The span in whole milliseconds, rounded up.
    #[must_use]
    pub fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// The span from `earlier` to `self`, or none if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl From<std::time::Duration> for Micros {
    fn from(span: std::time::Duration) -> Self {
        Self(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for std::time::Duration {
    fn from(span: Micros) -> Self {
        Self::from_micros(span.0)
    }
}

/// Counts saturate here: sixteen times the largest limit, and small enough that a fixed window is one
/// integer which Lua's doubles hold exactly.
pub const COUNT_MAX: u64 = 1 << 36;

/// What a descriptor asks of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Take this many hits, or none. At least 1, at most [`COUNT_MAX`].
    Charge(u64),
    /// Only look: would one hit be admitted?
    Look,
    /// Give this many hits back. Always admitted; a limit never becomes more than full.
    Refund(u64),
}

impl Hits {
    /// The hits that must fit for the demand to be admitted; nothing for a refund.
    fn wanted(self) -> u64 {
        match self {
            Self::Charge(hits) => hits,
            Self::Look => 1,
            Self::Refund(_) => 0,
        }
    }

    /// The hits that are charged once admitted.
    fn charged(self) -> u64 {
        match self {
            Self::Charge(hits) => hits,
            Self::Look | Self::Refund(_) => 0,
        }
    }
}

/// One question to one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// How many hits.
    pub hits: Hits,
    /// How long the caller can be made to wait for its turn; only a leaky bucket asks.
    pub patience: Micros,
    /// The last instant, by the store's time, at which a refund may be made: later, others' hits may be in
    /// the place of those that it gives back.
    pub until: Micros,
}

impl Demand {
    /// A demand whose caller can wait as long as the limit likes.
    #[must_use]
    pub fn patient(hits: Hits) -> Self {
        Self {
            hits,
            patience: Micros::MAX,
            until: Micros::MAX,
        }
    }

    /// Whether it is a refund that comes too late, and so changes nothing.
    #[must_use]
    pub fn is_late(self, now: Micros) -> bool {
        matches!(self.hits, Hits::Refund(_)) && self.until < now
    }
}

/// One limit's answer to one demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the demand fits.
    pub admitted: bool,
    /// Single hits that would still be admitted at this instant, after this demand.
    pub remaining: u64,
    /// When the limit is back at its full allowance, if nothing more is charged.
    pub reset_after: Micros,
    /// For a denied demand: the first instant at which it would be admitted. None if it was
    /// admitted, and none if it never can be.
    pub retry_after: Option<Micros>,
    /// How long an admitted demand has to wait for its turn (leaky bucket).
    pub wait: Micros,
}

/// What a counter remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Of [`Policy::FixedWindow`].
    Window(Window),
    /// Of [`Policy::SlidingWindowLog`].
    Log(Box<Log>),
    /// Of [`Policy::SlidingWindowCounter`].
    Counter(Counter),
    /// Of [`Policy::TokenBucket`] and [`Policy::LeakyBucket`].
    Bucket(Bucket),
}

impl State {
    /// The state of a counter that nothing has been charged to.
    #[must_use]
    pub fn new(limit: &Limit, now: Micros) -> Self {
        match limit.policy() {
            Policy::FixedWindow => Self::Window(Window::new(limit, now)),
            Policy::SlidingWindowLog => Self::Log(Box::default()),
            Policy::SlidingWindowCounter => Self::Counter(Counter::new(limit, now)),
            Policy::TokenBucket { .. } | Policy::LeakyBucket { .. } => Self::Bucket(Bucket::EMPTY),
        }
    }

    /// Brings the state up to `now`: forgets what no longer counts, and pulls back what lies
    /// absurdly far ahead. Tells whether it did the latter, which has to be kept even if nothing is
    /// charged: pulled back anew each time, the key would be locked out. The former changes no answer
    /// at or after `now`.
    pub fn advance(&mut self, limit: &Limit, now: Micros) -> bool {
        match self {
            Self::Window(window) => window.advance(limit, now),
            Self::Log(log) => log.advance(limit, now),
            Self::Counter(counter) => counter.advance(limit, now),
            Self::Bucket(bucket) => bucket.advance(gcra::capacity(limit), limit, now),
        }
    }

    /// The instant from which this state answers as a new one would.
    #[must_use]
    pub fn idle_at(&self, limit: &Limit) -> Micros {
        match self {
            Self::Window(window) => window.idle_at(limit),
            Self::Log(log) => log.idle_at(limit),
            Self::Counter(counter) => counter.idle_at(limit),
            Self::Bucket(bucket) => bucket.idle_at(),
        }
    }
}

/// What `demand` would get from `limit`; charges nothing. `state` has been advanced to `now`.
///
/// The outcome describes the limit after the demand: charged if it is admitted, and if it is denied
/// by a limit that charges denied hits as well.
#[must_use]
pub fn check(limit: &Limit, state: &State, now: Micros, demand: Demand) -> Outcome {
    if limit.requests() == 0 {
        return nothing_allowed(demand);
    }
    let outcome = check_without_denied(limit, state, now, demand);
    if outcome.admitted || !limit.charge_denied() || demand.hits == Hits::Look {
        return outcome;
    }
    let mut charged = state.clone();
    charge(limit, &mut charged, now, demand.hits);
    check_without_denied(limit, &charged, now, demand)
}

fn check_without_denied(limit: &Limit, state: &State, now: Micros, demand: Demand) -> Outcome {
    match (limit.policy(), state) {
        (Policy::LeakyBucket { queue }, State::Bucket(bucket)) => {
            leaky_bucket::check(limit, queue, *bucket, now, demand)
        }
        (Policy::TokenBucket { burst }, State::Bucket(bucket)) => {
            token_bucket::check(limit, burst, *bucket, now, demand.hits)
        }
        (_, State::Window(window)) => fixed_window::check(limit, *window, now, demand.hits),
        (_, State::Log(log)) => sliding_window_log::check(limit, log, now, demand.hits),
        (_, State::Counter(counter)) => {
            sliding_window_counter::check(limit, *counter, now, demand.hits)
        }
        // A counter's key names its algorithm, so a state of another one is not met.
        (_, State::Bucket(_)) => check_without_denied(limit, &State::new(limit, now), now, demand),
    }
}

/// Charges `hits` to `state`, admitted or not. `state` has been advanced to `now`.
pub fn charge(limit: &Limit, state: &mut State, now: Micros, hits: Hits) {
    match state {
        State::Window(window) => window.charge(hits),
        State::Log(log) => log.charge(limit, now, hits),
        State::Counter(counter) => counter.charge(hits),
        State::Bucket(bucket) => bucket.charge(gcra::capacity(limit), limit, now, hits),
    }
}

/// The answer of a limit of zero requests.
fn nothing_allowed(demand: Demand) -> Outcome {
    Outcome {
        admitted: matches!(demand.hits, Hits::Refund(_)),
        remaining: 0,
        reset_after: Micros::ZERO,
        retry_after: None,
        wait: Micros::ZERO,
    }
}
