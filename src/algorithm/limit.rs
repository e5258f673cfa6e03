//! A limit: so many requests per window, under one of five policies.

use std::fmt;

use super::{COUNT_MAX, Micros, Share};

/// The longest window, and the longest time that a bucket may take to fill: fifty years.
///
/// It keeps every instant, a debt of two bucketfuls included, below 2^53 microseconds, where Lua's
/// numbers stop being exact.
pub const WINDOW_MAX: Micros = Micros(50 * 365 * 86_400 * Micros::PER_SECOND);

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Counts hits per window, aligned to the Unix epoch.
    FixedWindow,
    /// Remembers the instant of every admitted hit.
    SlidingWindowLog,
    /// Estimates a sliding window from the counts of two fixed ones.
    SlidingWindowCounter,
    /// Allows bursts, refills at a constant rate.
    TokenBucket,
    /// Lets requests out at a constant rate, and queues a few.
    LeakyBucket,
}

impl Algorithm {
    /// Every algorithm, in the order of the documentation.
    pub const ALL: [Self; 5] = [
        Self::FixedWindow,
        Self::SlidingWindowLog,
        Self::SlidingWindowCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
    ];

    /// Whether instances can take hits in advance: of what counts by the instant of each, they can't.
    #[must_use]
    pub fn is_leasable(self) -> bool {
        matches!(self, Self::FixedWindow | Self::TokenBucket)
    }

    /// The name that the configuration uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindowLog => "sliding_window_log",
            Self::SlidingWindowCounter => "sliding_window_counter",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
        }
    }
}

/// An algorithm with what it needs beside requests and window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// See [`Algorithm::FixedWindow`].
    FixedWindow,
    /// See [`Algorithm::SlidingWindowLog`].
    SlidingWindowLog,
    /// See [`Algorithm::SlidingWindowCounter`].
    SlidingWindowCounter,
    /// See [`Algorithm::TokenBucket`].
    TokenBucket {
        /// Hits that may come at once; 0 denies everything.
        burst: u32,
    },
    /// See [`Algorithm::LeakyBucket`].
    LeakyBucket {
        /// Requests that may wait for their turn.
        queue: u32,
    },
}

impl Policy {
    /// The algorithm without its parameters.
    #[must_use]
    pub fn algorithm(self) -> Algorithm {
        match self {
            Self::FixedWindow => Algorithm::FixedWindow,
            Self::SlidingWindowLog => Algorithm::SlidingWindowLog,
            Self::SlidingWindowCounter => Algorithm::SlidingWindowCounter,
            Self::TokenBucket { .. } => Algorithm::TokenBucket,
            Self::LeakyBucket { .. } => Algorithm::LeakyBucket,
        }
    }
}

/// A unit of time, as the rate limit protocol names them. Months have 30 days, years 365.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 3 600 s.
    Hour,
    /// 86 400 s.
    Day,
    /// 7 days; weeks start on Thursday, as the Unix epoch did.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// Every unit, shortest first.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// The name that the configuration uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Seconds in the unit.
    #[must_use]
    pub fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }
}

/// Why there is no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A window of no length.
    #[error("a window of 0 {0}s limits nothing; `unit_multiplier` is at least 1")]
    EmptyWindow(&'static str),
    /// A window beyond [`WINDOW_MAX`].
    #[error("a window of {multiplier} {unit}s is longer than 50 years")]
    LongWindow {
        /// The unit's name.
        unit: &'static str,
        /// How many of them.
        multiplier: u32,
    },
    /// A bucket that takes longer than [`WINDOW_MAX`] to fill.
    #[error("a {what} of {size} takes longer than 50 years to pass at this rate")]
    SlowBucket {
        /// `burst` or `queue`.
        what: &'static str,
        /// Its size.
        size: u32,
    },
}

/// `requests` per `unit` × `multiplier`, under a policy. Cannot be wrong once it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    policy: Policy,
    requests: u32,
    unit: Unit,
    multiplier: u32,
    window: Micros,
    interval: Interval,
    charge_denied: bool,
    lease: Option<Share>,
}

/// The time between two hits, window ÷ requests, as an exact fraction of microseconds in lowest
/// terms. A rounded interval would drift at high rates; a fraction never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) numerator: u64,
    pub(super) denominator: u32,
}

impl Limit {
    /// A limit, or why there can't be one.
    pub fn new(
        policy: Policy,
        requests: u32,
        unit: Unit,
        multiplier: u32,
    ) -> Result<Self, LimitError> {
        if multiplier == 0 {
            return Err(LimitError::EmptyWindow(unit.name()));
        }
        let seconds = unit.seconds() * u64::from(multiplier);
        if seconds > WINDOW_MAX.0 / Micros::PER_SECOND {
            return Err(LimitError::LongWindow {
                unit: unit.name(),
                multiplier,
            });
        }
        let window = Micros(seconds * Micros::PER_SECOND);
        let limit = Self {
            policy,
            requests,
            unit,
            multiplier,
            window,
            interval: Interval::new(window, requests),
            charge_denied: false,
            lease: None,
        };
        match policy {
            Policy::TokenBucket { burst } => limit.unless_slow("burst", burst),
            Policy::LeakyBucket { queue } => limit.unless_slow("queue", queue),
            _ => Ok(limit),
        }
    }

    fn unless_slow(self, what: &'static str, size: u32) -> Result<Self, LimitError> {
        let filling = u128::from(size) * u128::from(self.interval.numerator);
        if filling > u128::from(WINDOW_MAX.0) * u128::from(self.interval.denominator) {
            return Err(LimitError::SlowBucket { what, size });
        }
        Ok(self)
    }

    /// The same limit, counting denied hits too (`true`) or not (`false`, as built).
    #[must_use]
    pub fn charging_denied(mut self, charge_denied: bool) -> Self {
        self.charge_denied = charge_denied;
        self
    }

    /// The same limit, of which an instance may take so much in advance. Limits that can't be leased
    /// stay as they are.
    #[must_use]
    pub fn leased(mut self, share: Share) -> Self {
        self.lease = self.policy.algorithm().is_leasable().then_some(share);
        self
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Requests per window; 0 denies everything.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// The unit as configured.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// How many units make the window; at least 1.
    #[must_use]
    pub fn multiplier(&self) -> u32 {
        self.multiplier
    }

    /// The window: at least a second, at most [`WINDOW_MAX`].
    #[must_use]
    pub fn window(&self) -> Micros {
        self.window
    }

    /// Whether a denied hit is counted all the same.
    #[must_use]
    pub fn charge_denied(&self) -> bool {
        self.charge_denied
    }

    /// How much of it an instance may take in advance, if any.
    #[must_use]
    pub fn lease(&self) -> Option<Share> {
        self.lease
    }

    /// What remains of a limit that nobody has used.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        match self.policy {
            Policy::TokenBucket { burst } => u64::from(burst),
            Policy::LeakyBucket { queue } => u64::from(queue) + 1,
            _ => u64::from(self.requests),
        }
    }

    pub(super) fn interval(&self) -> Interval {
        self.interval
    }

    /// The most hits that could be admitted at one instant.
    pub(super) fn hits_max(&self) -> u64 {
        match self.policy {
            Policy::TokenBucket { burst } => u64::from(burst),
            _ => u64::from(self.requests),
        }
    }
}

/// `10 per 5 minutes`, and what the policy and a lease add.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per ", self.requests)?;
        match self.multiplier {
            1 => f.write_str(self.unit.name())?,
            multiplier => write!(f, "{multiplier} {}s", self.unit.name())?,
        }
        match self.policy {
            Policy::TokenBucket { burst } => write!(f, ", burst {burst}")?,
            Policy::LeakyBucket { queue } => write!(f, ", queue {queue}")?,
            _ => {}
        }
        match self.lease {
            Some(share) => write!(f, ", leases of up to {share}"),
            None => Ok(()),
        }
    }
}

impl Interval {
    fn new(window: Micros, requests: u32) -> Self {
        // A limit of zero requests is answered before its interval is asked for.
        let requests = requests.max(1);
        let divisor = gcd(window.0, u64::from(requests));
        let denominator = u64::from(requests) / divisor;
        Self {
            numerator: window.0 / divisor,
            denominator: u32::try_from(denominator).expect("it divides a u32"),
        }
    }
}

/// `count + hits`, saturating at [`COUNT_MAX`].
pub(super) fn add_hits(count: u64, hits: u64) -> u64 {
    count.saturating_add(hits).min(COUNT_MAX)
}

fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
