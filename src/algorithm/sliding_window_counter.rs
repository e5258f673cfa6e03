//! A sliding window estimated from two fixed ones: two counts, and a small error.
//!
//! The previous window's count is weighted by how much of it the sliding window still covers, as
//! if its hits had come evenly. The weight moves in ticks, at most [`TICKS_MAX`] a window, so that
//! count × ticks stays below 2^53 and Lua computes the same integers; for a window of a second
//! the tick is one microsecond. Every rounding is upward, towards denying.

use super::{Hits, Limit, Micros, Outcome, limit::add_hits};

/// The most ticks that a window is divided into.
pub const TICKS_MAX: u64 = 1 << 20;

/// The hits of a window and of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The current window's number: windows are counted from the Unix epoch.
    pub index: u64,
    /// Hits charged in the current window.
    pub current: u64,
    /// Hits charged in the window before.
    pub previous: u64,
}

impl Counter {
    pub(super) fn new(limit: &Limit, now: Micros) -> Self {
        Self {
            index: now.0 / limit.window().0,
            current: 0,
            previous: 0,
        }
    }

    pub(super) fn advance(&mut self, limit: &Limit, now: Micros) -> bool {
        let index = now.0 / limit.window().0;
        if self.current == 0 && self.previous == 0 {
            // Without hits, any window is as good as the current one.
            self.index = index;
        } else if self.index.checked_add(1) == Some(index) {
            *self = Self {
                index,
                current: 0,
                previous: self.current,
            };
        } else if self.index < index {
            *self = Self::new(limit, now);
        } else if self.index > index + 1 {
            // Absurdly far ahead; one window ahead is a clock that stepped back over an edge.
            self.index = index;
            return true;
        }
        false
    }

    pub(super) fn charge(&mut self, hits: Hits) {
        match hits {
            Hits::Refund(hits) => {
                let left = hits.saturating_sub(self.current);
                self.current = self.current.saturating_sub(hits);
                self.previous = self.previous.saturating_sub(left);
            }
            _ => self.current = add_hits(self.current, hits.charged()),
        }
    }

    pub(super) fn idle_at(&self, limit: &Limit) -> Micros {
        Micros((self.index + 2) * limit.window().0)
    }
}

pub(super) fn check(limit: &Limit, counter: Counter, now: Micros, hits: Hits) -> Outcome {
    let requests = u64::from(limit.requests());
    let wanted = hits.wanted();
    let ticks = Ticks::new(limit);
    // 0 after a step back over the edge: the key stays at the start of its window.
    let start = Micros(counter.index * limit.window().0);
    let elapsed = now.since(start);

    let estimate = ticks.weighted(counter.previous, elapsed) + counter.current;
    let admitted = wanted == 0 || estimate + wanted <= requests;

    let mut after = counter;
    if admitted {
        after.charge(hits);
    }
    let estimate_after = ticks.weighted(after.previous, elapsed) + after.current;
    let from_start = |at: Micros| Micros(start.0 + at.0).since(now);
    Outcome {
        admitted,
        remaining: requests.saturating_sub(estimate_after),
        reset_after: match (after.current, after.previous) {
            (0, 0) => Micros::ZERO,
            _ => from_start(ticks.fits_at(after, 0)),
        },
        retry_after: (!admitted && wanted <= requests)
            .then(|| from_start(ticks.fits_at(after, requests - wanted))),
        wait: Micros::ZERO,
    }
}

/// The length of a tick in microseconds, and how many of them make a window, for a store that decides
/// elsewhere.
#[must_use]
pub fn ticks(limit: &Limit) -> (u64, u64) {
    let Ticks { length, count, .. } = Ticks::new(limit);
    (length, count)
}

/// A window cut into ticks.
struct Ticks {
    /// The window.
    window: u64,
    /// Microseconds in a tick.
    length: u64,
    /// Ticks in the window; the last one may be cut short.
    count: u64,
}

impl Ticks {
    fn new(limit: &Limit) -> Self {
        let window = limit.window().0;
        let length = window.div_ceil(TICKS_MAX);
        Self {
            window,
            length,
            count: window.div_ceil(length),
        }
    }

    /// The part of `previous` that still counts, rounded up.
    fn weighted(&self, previous: u64, elapsed: Micros) -> u64 {
        let left = self.count - (elapsed.0 / self.length).min(self.count);
        (clamped(previous) * left).div_ceil(self.count)
    }

    /// The first instant, as a span from the start of the counter's window, at which the estimate
    /// is `room` or less.
    fn fits_at(&self, counter: Counter, room: u64) -> Micros {
        if counter.current <= room {
            let tick = self.first_tick(counter.previous, room - counter.current);
            if tick * self.length < self.window {
                return Micros(tick * self.length);
            }
        }
        let tick = self.first_tick(counter.current, room);
        // In the last tick's stead the window after next begins, where neither count is left.
        Micros(self.window + (tick * self.length).min(self.window))
    }

    /// The first tick in which `previous` weighs `room` or less.
    fn first_tick(&self, previous: u64, room: u64) -> u64 {
        let previous = clamped(previous);
        if previous <= room {
            return 0;
        }
        self.count - room * self.count / previous
    }
}

/// Counts that charged denials pushed beyond any limit weigh as the largest limit.
fn clamped(count: u64) -> u64 {
    count.min(u64::from(u32::MAX))
}
