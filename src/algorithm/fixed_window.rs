//! Fixed windows, aligned to the Unix epoch: cheap, and up to twice the limit at their edge.

use super::{Hits, Limit, Micros, Outcome, limit::add_hits};

/// The hits of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The window's number: windows are counted from the Unix epoch.
    pub index: u64,
    /// Hits charged in it.
    pub count: u64,
}

impl Window {
    pub(super) fn new(limit: &Limit, now: Micros) -> Self {
        Self {
            index: now.0 / limit.window().0,
            count: 0,
        }
    }

    pub(super) fn advance(&mut self, limit: &Limit, now: Micros) -> bool {
        let index = now.0 / limit.window().0;
        // Without hits, any window is as good as the current one.
        if self.index < index || self.count == 0 {
            *self = Self { index, count: 0 };
        } else if self.index > index + 1 {
            // Absurdly far ahead. One window ahead is a clock that stepped back over an edge: the
            // key stays in that window, or the hits of its first visit would be granted again.
            self.index = index;
            return true;
        }
        false
    }

    pub(super) fn charge(&mut self, hits: Hits) {
        self.count = match hits {
            Hits::Refund(hits) => self.count.saturating_sub(hits),
            _ => add_hits(self.count, hits.charged()),
        };
    }

    pub(super) fn idle_at(&self, limit: &Limit) -> Micros {
        Micros((self.index + 1) * limit.window().0)
    }
}

pub(super) fn check(limit: &Limit, window: Window, now: Micros, hits: Hits) -> Outcome {
    let requests = u64::from(limit.requests());
    let wanted = hits.wanted();
    let admitted = wanted == 0 || window.count + wanted <= requests;

    let mut after = window;
    if admitted {
        after.charge(hits);
    }
    let reset_after = window.idle_at(limit).since(now);
    Outcome {
        admitted,
        remaining: requests.saturating_sub(after.count),
        reset_after,
        retry_after: (!admitted && wanted <= requests).then_some(reset_after),
        wait: Micros::ZERO,
    }
}
