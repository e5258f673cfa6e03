//! Hits taken from a shared counter in advance, to be used elsewhere, one by one.
//!
//! They are charged when they are taken, so that using them needs nobody's leave. Giving them back does: a
//! bucket drains and a window ends, and once the shared counter has let go of them by itself, a refund
//! would take away what others were charged since. So a lease has a counter of its own, to which nothing
//! but its hits is charged. What that one holds, the shared one holds because of them.

use std::fmt;

use super::{Hits, Limit, Micros, State, charge};

/// A batch of fewer hits saves no work.
pub const LEASE_MIN: u64 = 10;

/// The part of a limit that an instance may take in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    percent: u8,
}

impl Share {
    /// Beyond it two instances could take all there is.
    pub const PERCENT_MAX: u8 = 50;

    /// That many percent, from 1 to [`Self::PERCENT_MAX`].
    #[must_use]
    pub fn new(percent: u8) -> Option<Self> {
        (1..=Self::PERCENT_MAX)
            .contains(&percent)
            .then_some(Self { percent })
    }

    /// In hits: the most that an instance ever has and has not used.
    #[must_use]
    pub fn of(self, limit: &Limit) -> u64 {
        limit.capacity() * u64::from(self.percent) / 100
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent)
    }
}

/// Hits that were charged to a shared counter, and not used yet. All instants are by that counter's
/// clock.
#[derive(Clone, Debug)]
pub struct Lease {
    limit: Limit,
    own: State,
    left: u64,
}

impl Lease {
    /// No hits.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self {
            own: State::new(&limit, Micros::ZERO),
            left: 0,
            limit,
        }
    }

    /// Hits that may be used.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// `hits` were charged at `now`. Returns how many of an earlier window are worth nothing since.
    pub fn take(&mut self, now: Micros, hits: u64) -> u64 {
        self.own.advance(&self.limit, now);
        let lost = match &self.own {
            State::Window(window) => self.left.saturating_sub(window.count),
            _ => 0,
        };
        charge(&self.limit, &mut self.own, now, Hits::Charge(hits));
        self.left = self.left - lost + hits;
        lost
    }

    /// How long what was taken by `now` may be used: a window's hits are worth nothing in the next.
    #[must_use]
    pub fn lasts(&self, now: Micros) -> Micros {
        match &self.own {
            State::Window(window) => window.idle_at(&self.limit).since(now),
            _ => Micros::MAX,
        }
    }

    /// Uses `hits`, or none.
    pub fn use_up(&mut self, hits: u64) -> bool {
        let is_enough = hits <= self.left;
        if is_enough {
            self.left -= hits;
        }
        is_enough
    }

    /// Ends it. Returns how many hits may be given back, in a refund that is made by `until`.
    pub fn end(&mut self, until: Micros) -> u64 {
        self.own.advance(&self.limit, until);
        let held = match &self.own {
            State::Window(window) => window.count,
            State::Bucket(bucket) => bucket.hits_held(&self.limit, until),
            State::Log(_) | State::Counter(_) => 0,
        };
        let back = self.left.min(held);
        *self = Self::new(self.limit.clone());
        back
    }
}
