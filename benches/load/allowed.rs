//! Whether a server admitted more than its limit allows, as far as callers can know.
//!
//! A caller knows when a call began and when it ended, and that it was decided between. So this counts
//! only what is certain: whichever the instants of decision were, that many calls were too many. The
//! clocks of both machines have to agree where windows are those of the calendar.

use clap::{Args, ValueEnum};
use comporta::algorithm::Micros;

/// The limit that the server holds every key to.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// Requests per window and key
    #[arg(long = "limit", value_name = "N", default_value_t = 1_000_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) requests: u32,

    /// Seconds in a window
    #[arg(long = "window", value_name = "SECONDS", default_value_t = 3_600, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) window_seconds: u32,

    /// How the server counts
    #[arg(long, value_enum, default_value_t = Algorithm::FixedWindow)]
    pub(crate) algorithm: Algorithm,

    /// What a token bucket admits at once; as many as --limit says unless written
    #[arg(long, value_name = "N")]
    pub(crate) burst: Option<u32>,
}

/// What the promise is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Algorithm {
    /// N in every window of the calendar
    FixedWindow,
    /// N in any window
    SlidingWindowLog,
    /// A burst, and N per window beyond it
    TokenBucket,
}

/// A call for some key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) key: u32,
    pub(crate) began: Micros,
    pub(crate) ended: Micros,
    pub(crate) admitted: bool,
}

/// What was admitted, and what should have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Admissions {
    pub(crate) admitted: usize,
    /// At most: an end of a window in the middle of a call counts as in both.
    pub(crate) allowed: usize,
    /// Certainly.
    pub(crate) too_many: usize,
}

impl Limit {
    /// Judges all calls of a run.
    pub(crate) fn judge(&self, calls: &mut [Call]) -> Admissions {
        calls.sort_unstable_by_key(|call| (call.key, call.began));
        let mut sum = Admissions::default();
        for of_key in calls.chunk_by(|a, b| a.key == b.key) {
            let admitted: Vec<_> = of_key
                .iter()
                .copied()
                .filter(|call| call.admitted)
                .collect();
            sum.admitted += admitted.len();
            sum.allowed += self.allowed(of_key);
            sum.too_many += match self.algorithm {
                Algorithm::FixedWindow => self.too_many_of_the_calendar(&admitted),
                Algorithm::SlidingWindowLog => self.too_many_of_any_window(&admitted),
                Algorithm::TokenBucket => self.too_many_of_the_bucket(&admitted),
            };
        }
        sum
    }

    /// How many of a key's calls, which are in order, could pass.
    fn allowed(&self, calls: &[Call]) -> usize {
        let ended = calls.iter().map(|call| call.ended).max();
        let (Some(first), Some(ended)) = (calls.first(), ended) else {
            return 0;
        };
        let requests = u64::from(self.requests);
        let passed = ended.since(first.began).0;
        let most = match self.algorithm {
            Algorithm::FixedWindow => {
                requests * (self.window_of(ended) - self.window_of(first.began) + 1)
            }
            Algorithm::SlidingWindowLog => requests * (passed / self.window().0 + 1),
            Algorithm::TokenBucket => match passed.checked_div(self.interval()) {
                Some(tokens) => tokens + u64::from(self.burst()),
                None => u64::MAX,
            },
        };
        calls.len().min(usize::try_from(most).unwrap_or(usize::MAX))
    }

    /// Calls within one window of the calendar from beginning to end.
    fn too_many_of_the_calendar(&self, admitted: &[Call]) -> usize {
        let within = |call: &&Call| self.window_of(call.began) == self.window_of(call.ended);
        let windows: Vec<_> = admitted.iter().filter(within).collect();
        let same = |a: &&Call, b: &&Call| self.window_of(a.began) == self.window_of(b.began);
        let counts = windows.chunk_by(same).map(<[_]>::len);
        counts
            .map(|count| count.saturating_sub(self.requests as usize))
            .sum()
    }

    /// Calls that ended less than a window after the one began that is N before them.
    fn too_many_of_any_window(&self, admitted: &[Call]) -> usize {
        let mut right: Vec<Call> = Vec::new();
        let mut too_many = 0;
        let mut ended = Micros::ZERO;
        for call in admitted {
            ended = ended.max(call.ended);
            let before = right.len().checked_sub(self.requests as usize);
            if before.is_some_and(|before| ended.since(right[before].began) < self.window()) {
                too_many += 1;
            } else {
                right.push(*call);
            }
        }
        too_many
    }

    /// Calls for which a bucket had no token when they ended, had all been decided when they began.
    fn too_many_of_the_bucket(&self, admitted: &[Call]) -> usize {
        let capacity = u64::from(self.burst()) * self.interval();
        let mut too_many = 0;
        let (mut drained_at, mut ended) = (Micros::ZERO, Micros::ZERO);
        for call in admitted {
            ended = ended.max(call.ended);
            let with_call = Micros(drained_at.max(call.began).0 + self.interval());
            if with_call.since(ended).0 > capacity {
                too_many += 1;
            } else {
                drained_at = with_call;
            }
        }
        too_many
    }

    fn window(&self) -> Micros {
        Micros(u64::from(self.window_seconds) * Micros::PER_SECOND)
    }

    fn window_of(&self, at: Micros) -> u64 {
        at.0 / self.window().0
    }

    fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.requests)
    }

    /// The microseconds that one token takes, rounded down in favour of the server; at more than a
    /// million a second nothing is too many.
    fn interval(&self) -> u64 {
        self.window().0 / u64::from(self.requests)
    }
}
