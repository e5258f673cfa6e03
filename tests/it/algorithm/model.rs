//! Slow, obvious models: each keeps the list of what was charged, and answers by going through it.
//!
//! Nothing is rounded here, and no instant is solved for: the code divides and the model compares
//! products, the code computes an instant and the model searches for it.

use comporta::algorithm::{COUNT_MAX, Demand, Hits, Limit, Micros, Outcome, Policy, TICKS_MAX};

/// A limit's key, as one of five rules tells its story.
pub(super) struct Model {
    rule: Box<dyn Rule>,
    charge_denied: bool,
}

/// What one algorithm promises.
trait Rule {
    /// Forgets what no longer counts, and believes nothing that lies absurdly far ahead.
    fn visit(&mut self, now: u64);
    /// Takes hits; gives them back where `hits` is negative.
    fn charge(&mut self, now: u64, hits: i128);
    /// Whether a demand for so many hits would be admitted at an instant to come.
    fn admits(&self, at: u64, hits: u64, patience: u64) -> bool;
    /// Whether so many demands for a single hit would be admitted, one after the other.
    fn admits_singly(&self, at: u64, hits: u64) -> bool {
        self.admits(at, hits, u64::MAX)
    }
    /// Whether what has been charged is over and done with.
    fn is_reset(&self, at: u64) -> bool;
    /// How long a demand that is admitted has to wait.
    fn wait(&self, _now: u64) -> u64 {
        0
    }
}

impl Model {
    pub(super) fn new(limit: &Limit, now: u64) -> Self {
        let (period, requests) = (limit.window().0, i128::from(limit.requests()));
        let windows = |remembered| Windows {
            period,
            remembered,
            index: i128::from(now / period),
            requests,
            hits: Vec::new(),
        };
        let level = |capacity| Level {
            period: i128::from(period),
            requests,
            capacity,
            charges: vec![(0, 0)],
        };
        let rule: Box<dyn Rule> = match limit.policy() {
            Policy::FixedWindow => Box::new(FixedWindow(windows(1))),
            Policy::SlidingWindowCounter => Box::new(SlidingWindowCounter(windows(2))),
            Policy::SlidingWindowLog => Box::new(SlidingWindowLog {
                period,
                requests,
                hits: Vec::new(),
            }),
            Policy::TokenBucket { burst } => Box::new(TokenBucket(level(burst.into()))),
            Policy::LeakyBucket { queue } => Box::new(LeakyBucket {
                queue: queue.into(),
                level: level(i128::from(queue) + requests),
            }),
        };
        Self {
            rule,
            charge_denied: limit.charge_denied(),
        }
    }

    /// Asks and charges, as a store does.
    pub(super) fn ask(&mut self, now: u64, demand: Demand) -> Outcome {
        let (wanted, change) = match demand.hits {
            Hits::Charge(hits) => (hits, i128::from(hits)),
            Hits::Look => (1, 0),
            Hits::Refund(hits) => (0, -i128::from(hits)),
        };
        let admits = |rule: &dyn Rule, at| rule.admits(at, wanted, demand.patience.0);

        self.rule.visit(now);
        let admitted = change < 0 || admits(&*self.rule, now);
        let wait = if admitted && change > 0 {
            self.rule.wait(now)
        } else {
            0
        };
        if change != 0 && (admitted || self.charge_denied) {
            self.rule.charge(now, change);
        }
        let rule = &*self.rule;
        let is_room_for = |hits| rule.admits_singly(now, hits);
        Outcome {
            admitted,
            remaining: first(0, |hits| !is_room_for(hits + 1)).expect("limits are finite"),
            reset_after: Micros(first(now, |at| rule.is_reset(at)).expect("hits are forgotten")),
            retry_after: if admitted {
                None
            } else {
                first(now, |at| admits(rule, at)).map(Micros)
            },
            wait: Micros(wait),
        }
    }
}

/// How far `from` lies from the first number at which `holds` does; it holds from there on, or
/// never.
fn first(from: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    if holds(from) {
        return Some(0);
    }
    let (mut before, mut at) = (from, from + (1 << 53));
    if !holds(at) {
        return None;
    }
    while at - before > 1 {
        let between = before + (at - before) / 2;
        if holds(between) {
            at = between;
        } else {
            before = between;
        }
    }
    Some(at - from)
}

/// Hits by the number of their window.
struct Windows {
    period: u64,
    /// How many windows count, the key's own included.
    remembered: i128,
    requests: i128,
    /// The key's window. It never goes back, unless it is more than one ahead of the clock: then
    /// the whole story moves. Without hits it is wherever the clock is.
    index: i128,
    hits: Vec<(i128, i128)>,
}

impl Windows {
    fn visit(&mut self, now: u64) {
        let here = i128::from(now / self.period);
        if self.index > here + 1 {
            let ahead = self.index - here;
            self.hits.iter_mut().for_each(|(index, _)| *index -= ahead);
            self.index = here;
        }
        if self.hits.iter().all(|(_, hits)| *hits == 0) {
            self.index = here;
        }
        self.index = self.index.max(here);
        let forgotten = self.index - self.remembered;
        self.hits.retain(|(index, _)| *index > forgotten);
    }

    fn charge(&mut self, hits: i128) {
        let room = i128::from(COUNT_MAX) - self.count(self.index);
        self.hits.push((self.index, hits.min(room)));
        take_back(&mut self.hits);
    }

    fn index_at(&self, at: u64) -> i128 {
        self.index.max(i128::from(at / self.period))
    }

    fn count(&self, index: i128) -> i128 {
        let of_window = self.hits.iter().filter(|(of, _)| *of == index);
        of_window.map(|(_, hits)| hits).sum()
    }
}

/// If the last entry is a refund, takes the newest hits out.
fn take_back<T>(charges: &mut Vec<(T, i128)>) {
    while let Some((_, hits)) = charges.pop_if(|(_, hits)| *hits <= 0) {
        if let Some((_, newest)) = charges.last_mut() {
            *newest += hits;
        }
    }
}

struct FixedWindow(Windows);

impl Rule for FixedWindow {
    fn visit(&mut self, now: u64) {
        self.0.visit(now);
    }

    fn charge(&mut self, _now: u64, hits: i128) {
        self.0.charge(hits);
    }

    fn admits(&self, at: u64, hits: u64, _patience: u64) -> bool {
        self.0.count(self.0.index_at(at)) + i128::from(hits) <= self.0.requests
    }

    fn is_reset(&self, at: u64) -> bool {
        self.0.index_at(at) > self.0.index
    }
}

struct SlidingWindowCounter(Windows);

impl SlidingWindowCounter {
    /// The estimate and the ticks of a window: the estimate is in units of a hit ÷ ticks.
    fn estimate(&self, at: u64) -> (i128, i128) {
        let Self(windows) = self;
        let index = windows.index_at(at);
        let tick = i128::from(windows.period.div_ceil(TICKS_MAX));
        let period = i128::from(windows.period);
        let ticks = (period + tick - 1) / tick;
        let elapsed = (i128::from(at) - index * period).max(0);
        let previous = windows.count(index - 1).min(u32::MAX.into());
        let weighted = previous * (ticks - elapsed / tick);
        (weighted + windows.count(index) * ticks, ticks)
    }
}

impl Rule for SlidingWindowCounter {
    fn visit(&mut self, now: u64) {
        self.0.visit(now);
    }

    fn charge(&mut self, _now: u64, hits: i128) {
        self.0.charge(hits);
    }

    fn admits(&self, at: u64, hits: u64, _patience: u64) -> bool {
        let (estimate, ticks) = self.estimate(at);
        estimate + i128::from(hits) * ticks <= self.0.requests * ticks
    }

    fn is_reset(&self, at: u64) -> bool {
        self.estimate(at).0 == 0
    }
}

struct SlidingWindowLog {
    period: u64,
    requests: i128,
    hits: Vec<(u64, i128)>,
}

impl SlidingWindowLog {
    fn count(&self, at: u64) -> i128 {
        let inside = self.hits.iter().filter(|hit| hit.0 + self.period > at);
        inside.map(|(_, hits)| hits).sum()
    }
}

impl Rule for SlidingWindowLog {
    fn visit(&mut self, now: u64) {
        let newest = self.hits.last().map_or(0, |hit| hit.0);
        if newest > now + self.period {
            self.hits.iter_mut().for_each(|hit| hit.0 = now);
        }
        self.hits.retain(|hit| hit.0 + self.period > now);
    }

    fn charge(&mut self, now: u64, hits: i128) {
        let newest = self.hits.last().map_or(0, |hit| hit.0);
        self.hits.push((newest.max(now), hits.min(self.requests)));
        take_back(&mut self.hits);
        // Charged denials push the oldest hits out: a log is never more than full.
        let mut excess = self.count(0) - self.requests;
        for (_, hits) in &mut self.hits {
            let dropped = excess.clamp(0, *hits);
            *hits -= dropped;
            excess -= dropped;
        }
        self.hits.retain(|hit| hit.1 > 0);
    }

    fn admits(&self, at: u64, hits: u64, _patience: u64) -> bool {
        self.count(at) + i128::from(hits) <= self.requests
    }

    fn is_reset(&self, at: u64) -> bool {
        self.count(at) == 0
    }
}

/// A bucket as a level: a hit adds one period, a microsecond drains as much as there are requests.
/// What has been emptied by hand is empty at any time.
struct Level {
    period: i128,
    requests: i128,
    /// The most that admitted hits can leave in it, in hits.
    capacity: i128,
    charges: Vec<(u64, i128)>,
}

impl Level {
    /// After a step back the clock has yet to drain what it had drained before.
    fn at(&self, now: u64) -> i128 {
        let (mut last, _) = self.charges[0];
        let mut level = 0;
        let drained = |level: i128, last: u64, now: u64| {
            (level - (i128::from(now) - i128::from(last)) * self.requests).max(0)
        };
        for &(at, hits) in &self.charges {
            let charged = drained(level, last, at) + hits * self.period;
            level = charged.clamp(0, 2 * self.capacity * self.period);
            last = at;
        }
        drained(level, last, now)
    }

    fn charge(&mut self, now: u64, hits: i128) {
        self.charges.push((now, hits));
        if self.at(now) == 0 {
            self.charges = vec![(0, 0)];
        }
    }

    fn visit(&mut self, now: u64) {
        if self.at(now) > 2 * self.capacity * self.period {
            self.charges = vec![(now, self.capacity)];
        }
    }
}

struct TokenBucket(Level);

impl Rule for TokenBucket {
    fn visit(&mut self, now: u64) {
        self.0.visit(now);
    }

    fn charge(&mut self, now: u64, hits: i128) {
        self.0.charge(now, hits);
    }

    fn admits(&self, at: u64, hits: u64, _patience: u64) -> bool {
        let Self(level) = self;
        level.at(at) + i128::from(hits) * level.period <= level.capacity * level.period
    }

    fn is_reset(&self, at: u64) -> bool {
        self.0.at(at) == 0
    }
}

struct LeakyBucket {
    queue: i128,
    level: Level,
}

impl Rule for LeakyBucket {
    fn visit(&mut self, now: u64) {
        self.level.visit(now);
    }

    fn charge(&mut self, now: u64, hits: i128) {
        self.level.charge(now, hits);
    }

    fn admits(&self, at: u64, hits: u64, patience: u64) -> bool {
        let level = self.level.at(at);
        let is_in_time = level <= i128::from(patience) * self.level.requests;
        let is_in_queue = level <= self.queue * self.level.period;
        i128::from(hits) <= self.level.requests && is_in_time && is_in_queue
    }

    fn admits_singly(&self, at: u64, hits: u64) -> bool {
        let before = (i128::from(hits) - 1) * self.level.period;
        self.level.at(at) + before <= self.queue * self.level.period
    }

    fn is_reset(&self, at: u64) -> bool {
        self.level.at(at) == 0
    }

    fn wait(&self, now: u64) -> u64 {
        let level = self.level.at(now);
        first(0, |wait| i128::from(wait) * self.level.requests >= level).expect("it drains")
    }
}
