//! What the two buckets share: the generic cell rate algorithm, whose whole state is one instant.
//!
//! That instant, the theoretical arrival time (TAT), is when the bucket will have drained. What the
//! bucket holds is the span from now to then; a hit adds one interval, window ÷ requests. The
//! interval is an exact fraction of microseconds, so spans are counted in units of 1/denominator
//! of a microsecond: nothing is rounded, and nothing drifts, at any rate.

use super::{Demand, Hits, Limit, Micros, Policy, leaky_bucket};

/// The theoretical arrival time: `tat` plus `fraction` ÷ denominator of the limit's interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Whole microseconds since the Unix epoch.
    pub tat: Micros,
    /// Numerator of the rest; 0 wherever the interval is a whole number of microseconds.
    pub fraction: u32,
}

/// A span in units of 1/denominator of a microsecond.
pub(super) type Span = u128;

impl Bucket {
    /// A bucket that has been empty for ever.
    pub const EMPTY: Self = Self {
        tat: Micros::ZERO,
        fraction: 0,
    };

    /// What the bucket holds.
    pub(super) fn held(self, limit: &Limit, now: Micros) -> Span {
        if self.tat < now {
            return 0;
        }
        let denominator = Span::from(limit.interval().denominator);
        Span::from(self.tat.0 - now.0) * denominator + Span::from(self.fraction)
    }

    /// Pulls back a TAT that is more than a whole bucket beyond what the limit allows. Less than
    /// that is a clock that stepped back, or a debt of charged denials.
    pub(super) fn advance(&mut self, capacity: Span, limit: &Limit, now: Micros) -> bool {
        let is_beyond = self.held(limit, now) > held_max(capacity);
        if is_beyond {
            *self = Self::holding(capacity, limit, now);
        }
        is_beyond
    }

    pub(super) fn charge(&mut self, capacity: Span, limit: &Limit, now: Micros, hits: Hits) {
        let held = self.held(limit, now);
        *self = match hits {
            Hits::Look => return,
            Hits::Charge(_) => {
                let held = held + span_of(hits.charged(), limit);
                Self::holding(held.min(held_max(capacity)), limit, now)
            }
            Hits::Refund(hits) => {
                Self::holding(held.saturating_sub(span_of(hits, limit)), limit, now)
            }
        };
    }

    /// Whole hits that the bucket holds.
    pub(super) fn hits_held(self, limit: &Limit, now: Micros) -> u64 {
        let hits = self.held(limit, now) / span_of(1, limit);
        u64::try_from(hits).unwrap_or(u64::MAX)
    }

    pub(super) fn idle_at(self) -> Micros {
        Micros(self.tat.0 + u64::from(self.fraction > 0))
    }

    /// An empty bucket is empty at any time, also if the clock steps back.
    fn holding(held: Span, limit: &Limit, now: Micros) -> Self {
        if held == 0 {
            return Self::EMPTY;
        }
        let (whole, fraction) = split(held, limit.interval().denominator);
        Self {
            tat: Micros(now.0.saturating_add(whole)),
            fraction,
        }
    }
}

/// A span as whole microseconds and a fraction, in units of 1/denominator.
pub type Pair = (u64, u32);

/// What a bucket's decision comes down to, for a store that makes it elsewhere: the demand is admitted
/// if what is held and what it needs come to at most the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTerms {
    /// Of all fractions.
    pub denominator: u32,
    /// What the demand needs.
    pub needs: Pair,
    /// What may be held, that included.
    pub room: Pair,
    /// What a charge adds, or a refund takes away.
    pub adds: Pair,
    /// The most that admitted hits leave.
    pub capacity: Pair,
    /// The most that charged denials leave.
    pub most: Pair,
}

/// The terms of `demand`, which `limit` (not of zero requests) is asked for.
#[must_use]
pub fn bucket_terms(limit: &Limit, demand: Demand) -> BucketTerms {
    let denominator = limit.interval().denominator;
    let capacity = capacity(limit);
    let most = held_max(capacity);
    let pair = |span: Span| split(span, denominator);
    // Beyond any room, and still a number that Lua holds exactly.
    let beyond = most + Span::from(denominator);
    let hits = match demand.hits {
        Hits::Charge(hits) | Hits::Refund(hits) => hits,
        Hits::Look => 0,
    };
    let (needs, room) = match (demand.hits, limit.policy()) {
        (Hits::Refund(_), _) => (0, beyond),
        (_, Policy::LeakyBucket { queue }) => leaky_bucket::wait_max(limit, queue, demand)
            .map_or((beyond, most), |wait_max| (0, wait_max.min(beyond))),
        _ => (span_of(demand.hits.wanted(), limit).min(beyond), capacity),
    };
    BucketTerms {
        denominator,
        needs: pair(needs),
        room: pair(room),
        adds: pair(span_of(hits, limit).min(beyond)),
        capacity: pair(capacity),
        most: pair(most),
    }
}

fn split(span: Span, denominator: u32) -> Pair {
    let denominator = Span::from(denominator);
    let whole = u64::try_from(span / denominator).unwrap_or(u64::MAX);
    let fraction = u32::try_from(span % denominator).expect("less than a u32");
    (whole, fraction)
}

/// The span that `hits` take.
pub(super) fn span_of(hits: u64, limit: &Limit) -> Span {
    Span::from(hits) * Span::from(limit.interval().numerator)
}

/// A span in whole microseconds, rounded up.
pub(super) fn micros_ceil(span: Span, limit: &Limit) -> Micros {
    let whole = span.div_ceil(Span::from(limit.interval().denominator));
    Micros(u64::try_from(whole).unwrap_or(u64::MAX))
}

/// The most that admitted hits can leave in the bucket.
pub(super) fn capacity(limit: &Limit) -> Span {
    match limit.policy() {
        Policy::LeakyBucket { queue } => {
            span_of(u64::from(queue) + u64::from(limit.requests()), limit)
        }
        _ => span_of(limit.hits_max(), limit),
    }
}

/// The most that a bucket is ever taken to hold: one more bucketful than admitted hits can leave.
fn held_max(capacity: Span) -> Span {
    2 * capacity
}
