//! The exact sliding window: remembers the instant of every hit, at a price in memory.

use std::collections::VecDeque;

use super::{Hits, Limit, Micros, Outcome};

/// The hits of the last window, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// When, and how many; instants rise strictly.
    entries: VecDeque<(Micros, u64)>,
    /// The sum of the hits in `entries`.
    total: u64,
}

impl Log {
    /// A log of hits at rising instants, as a store remembers them.
    #[must_use]
    pub fn from_entries(entries: impl IntoIterator<Item = (Micros, u64)>) -> Self {
        let entries: VecDeque<_> = entries.into_iter().collect();
        let total = entries.iter().map(|&(_, hits)| hits).sum();
        Self { entries, total }
    }

    /// Hits in the window.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.total
    }

    pub(super) fn advance(&mut self, limit: &Limit, now: Micros) -> bool {
        let window = limit.window();
        let is_beyond = self
            .newest()
            .is_some_and(|newest| newest.0 > now.0 + window.0);
        if is_beyond {
            // Keep the hits, as if all had come just now.
            self.entries = VecDeque::from([(now, self.total)]);
        }
        while let Some(&(at, hits)) = self.entries.front() {
            if at.0 + window.0 > now.0 {
                break;
            }
            self.entries.pop_front();
            self.total -= hits;
        }
        is_beyond
    }

    pub(super) fn charge(&mut self, limit: &Limit, now: Micros, hits: Hits) {
        match hits {
            Hits::Look => {}
            Hits::Refund(hits) => self.remove_newest(hits),
            Hits::Charge(hits) => {
                let requests = u64::from(limit.requests());
                let hits = hits.min(requests);
                // The key's time never runs backwards.
                let at = self.newest().map_or(now, |newest| newest.max(now));
                match self.entries.back_mut() {
                    Some((newest, count)) if *newest == at => *count += hits,
                    _ => self.entries.push_back((at, hits)),
                }
                self.total += hits;
                self.keep_newest(requests);
            }
        }
    }

    /// Drops the oldest hits beyond `requests`: charged denials would pile up, and the newest
    /// `requests` alone decide.
    fn keep_newest(&mut self, requests: u64) {
        while self.total > requests {
            let excess = self.total - requests;
            match self.entries.front_mut() {
                Some((_, hits)) if *hits > excess => {
                    *hits -= excess;
                    self.total -= excess;
                }
                Some(_) => {
                    let dropped = self.entries.pop_front().map_or(0, |(_, hits)| hits);
                    self.total -= dropped;
                }
                None => self.total = 0,
            }
        }
    }

    fn remove_newest(&mut self, hits: u64) {
        let mut left = hits.min(self.total);
        self.total -= left;
        while left > 0 {
            match self.entries.back_mut() {
                Some((_, count)) if *count > left => {
                    *count -= left;
                    left = 0;
                }
                Some(_) => left -= self.entries.pop_back().map_or(left, |(_, count)| count),
                None => left = 0,
            }
        }
    }

    pub(super) fn idle_at(&self, limit: &Limit) -> Micros {
        let newest = self.newest().unwrap_or_default();
        Micros(newest.0 + limit.window().0)
    }

    fn newest(&self) -> Option<Micros> {
        self.entries.back().map(|&(at, _)| at)
    }

    /// When the oldest `hits` hits will have left the window.
    fn left_after(&self, hits: u64, limit: &Limit, now: Micros) -> Micros {
        let mut left = 0;
        for &(at, count) in &self.entries {
            left += count;
            if left >= hits {
                return Micros(at.0 + limit.window().0).since(now);
            }
        }
        Micros::ZERO
    }
}

pub(super) fn check(limit: &Limit, log: &Log, now: Micros, hits: Hits) -> Outcome {
    let requests = u64::from(limit.requests());
    let wanted = hits.wanted();
    let admitted = wanted == 0 || log.total + wanted <= requests;

    let after = match hits {
        _ if !admitted => log.total,
        Hits::Refund(hits) => log.total.saturating_sub(hits),
        _ => log.total + hits.charged(),
    };
    let window = limit.window();
    let reset_after = match log.newest() {
        _ if after == 0 => Micros::ZERO,
        Some(newest) if admitted && hits.charged() > 0 => {
            Micros(newest.max(now).0 + window.0).since(now)
        }
        Some(_) => log.left_after(after, limit, now),
        None => window,
    };
    let retry_after = (!admitted && wanted <= requests)
        .then(|| log.left_after(log.total + wanted - requests, limit, now));
    Outcome {
        admitted,
        remaining: requests.saturating_sub(after),
        reset_after,
        retry_after,
        wait: Micros::ZERO,
    }
}
