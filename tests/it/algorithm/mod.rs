//! The five algorithms: against slow models of them, and against what is claimed of them.
//!
//! Random steps of the clock don't find edges. Most steps here are aimed: at an instant that an
//! earlier answer announced, at the microsecond before it and at the one after.

mod claims;
mod clock;
mod model;
mod windows;

use std::fmt::Debug;

use comporta::algorithm::{
    self, Algorithm, COUNT_MAX, Demand, Hits, Limit, Micros, Outcome, Policy, State, Unit,
    WINDOW_MAX,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;

use model::Model;

#[test]
fn the_code_and_its_model_agree() {
    check(&histories(&Algorithm::ALL), |history| {
        let mut model = Model::new(&history.limit, history.start);
        history.walk(|visit| {
            let expected = model.ask(visit.now, visit.demand);
            assert_eq!(
                visit.outcome, expected,
                "at {} {:?}",
                visit.now, visit.demand
            );
        });
    });
}

/// Half a second or so a property.
const CASES: u32 = 400;

/// Tries `property` on many cases. A failure shows the smallest case that fails.
fn check<C: Debug>(cases: &impl Strategy<Value = C>, property: impl Fn(&C)) {
    let config = ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(cases, |case| {
        property(&case);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// A key of a store: a limit and what is remembered.
#[derive(Clone, Debug)]
struct Key {
    limit: Limit,
    state: State,
}

impl Key {
    fn new(limit: &Limit, now: u64) -> Self {
        Self {
            limit: limit.clone(),
            state: State::new(limit, Micros(now)),
        }
    }

    /// Asks and charges, as a store does.
    fn ask(&mut self, now: u64, demand: Demand) -> Outcome {
        self.state.advance(&self.limit, Micros(now));
        let outcome = algorithm::check(&self.limit, &self.state, Micros(now), demand);
        if outcome.admitted || self.limit.charge_denied() {
            algorithm::charge(&self.limit, &mut self.state, Micros(now), demand.hits);
        }
        outcome
    }

    /// What the demand would get at that instant.
    fn peek(&self, now: u64, demand: Demand) -> Outcome {
        self.clone().ask(now, demand)
    }

    fn admits(&self, now: u64, hits: u64) -> bool {
        self.peek(now, charge(hits)).admitted
    }

    fn remaining(&self, now: u64) -> u64 {
        self.peek(now, Demand::patient(Hits::Look)).remaining
    }

    /// Takes single hits until one is denied; says how many it got. For small limits.
    fn drain(&mut self, now: u64) -> u64 {
        let taken = (0..1_000).position(|_| !self.ask(now, charge(1)).admitted);
        u64::try_from(taken.expect("a limit")).unwrap()
    }
}

fn charge(hits: u64) -> Demand {
    Demand::patient(Hits::Charge(hits))
}

/// The most hits that the limit admits at one instant, and those that may wait beside them.
fn size(limit: &Limit) -> (u64, u64) {
    match limit.policy() {
        Policy::TokenBucket { burst } => (burst.into(), 0),
        Policy::LeakyBucket { queue } => (limit.requests().into(), queue.into()),
        _ => (limit.requests().into(), 0),
    }
}

/// A limit, and what happens to one key of it.
#[derive(Clone, Debug)]
struct History {
    limit: Limit,
    start: u64,
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    clock: Clock,
    ask: Ask,
    patience: Patience,
}

/// What the clock does before the demand.
#[derive(Clone, Copy, Debug)]
enum Clock {
    /// Goes to an instant announced before (which of them, by number), and past it by so much.
    Aim(usize, i64),
    /// Goes on, by thousandths of a window.
    On(u64),
    /// Steps back, by thousandths of a window and by microseconds.
    Back(u64, u64),
}

/// How many hits. What is aimed at the limit's own numbers misses by so many.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Hits(u64),
    Requests(i64),
    Size(i64),
    Remaining(i64),
    Refund(u64),
    RefundRequests(i64),
    Look,
}

/// How long the caller can wait.
#[derive(Clone, Copy, Debug)]
enum Patience {
    Endless,
    /// As long as it would have to, and so much longer.
    Wait(i64),
}

/// One demand of a history.
struct Visit<'h> {
    now: u64,
    demand: Demand,
    outcome: Outcome,
    before: &'h Key,
    after: &'h Key,
}

impl History {
    fn walk(&self, mut observe: impl FnMut(&Visit<'_>)) {
        let mut key = Key::new(&self.limit, self.start);
        let mut now = self.start;
        let mut announced = vec![now];
        for step in &self.steps {
            now = self.instant(step.clock, now, &announced);
            let before = key.clone();
            let demand = Demand {
                hits: self.hits(step.ask, key.remaining(now)),
                patience: patience(step.patience, &key, now),
                until: Micros::MAX,
            };
            let outcome = key.ask(now, demand);
            self.announce(&mut announced, now, &key, outcome);
            observe(&Visit {
                now,
                demand,
                outcome,
                before: &before,
                after: &key,
            });
        }
    }

    fn instant(&self, clock: Clock, now: u64, announced: &[u64]) -> u64 {
        let window = self.limit.window().0;
        match clock {
            Clock::Aim(number, miss) => {
                let ahead = |at: &&u64| **at >= now;
                let aims: Vec<_> = announced.iter().rev().filter(ahead).collect();
                let aim = aims.get(number % aims.len().max(1)).map_or(now, |at| **at);
                aim.saturating_add_signed(miss).max(now)
            }
            Clock::On(thousandths) => now + window / 1_000 * thousandths,
            Clock::Back(thousandths, micros) => {
                now.saturating_sub(window / 1_000 * thousandths + micros)
            }
        }
    }

    fn announce(&self, announced: &mut Vec<u64>, now: u64, key: &Key, outcome: Outcome) {
        let window = self.limit.window().0;
        announced.extend(outcome.retry_after.map(|span| now + span.0));
        announced.extend([
            now + outcome.reset_after.0,
            now + outcome.wait.0,
            (now / window + 1) * window,
            key.state.idle_at(&self.limit).0,
        ]);
    }

    fn hits(&self, ask: Ask, remaining: u64) -> Hits {
        let requests = u64::from(self.limit.requests());
        let (most, queue) = size(&self.limit);
        let near = |hits: u64, miss| hits.saturating_add_signed(miss).max(1);
        match ask {
            Ask::Hits(hits) => Hits::Charge(hits),
            Ask::Requests(miss) => Hits::Charge(near(requests, miss)),
            Ask::Size(miss) => Hits::Charge(near(most + queue, miss)),
            Ask::Remaining(miss) => Hits::Charge(near(remaining, miss)),
            Ask::Refund(hits) => Hits::Refund(hits),
            Ask::RefundRequests(miss) => Hits::Refund(near(requests, miss)),
            Ask::Look => Hits::Look,
        }
    }

    /// The same history with a clock that never steps back, and without refunds and charged
    /// denials: what is admitted then counts for good, and nothing else does.
    fn of_charges(&self) -> Self {
        let mut history = self.clone();
        history.limit = history.limit.charging_denied(false);
        for step in &mut history.steps {
            if let Clock::Back(..) = step.clock {
                step.clock = Clock::On(0);
            }
            if let Ask::Refund(_) | Ask::RefundRequests(_) = step.ask {
                step.ask = Ask::Hits(1);
            }
        }
        history
    }

    /// The instants and hits of what was admitted.
    fn admitted(&self) -> Vec<(u64, u64)> {
        let mut admitted = Vec::new();
        self.walk(|visit| {
            if let (true, Hits::Charge(hits)) = (visit.outcome.admitted, visit.demand.hits) {
                admitted.push((visit.now, hits));
            }
        });
        admitted
    }
}

fn patience(patience: Patience, key: &Key, now: u64) -> Micros {
    match patience {
        Patience::Endless => Micros::MAX,
        Patience::Wait(miss) => {
            let wait = key.peek(now, charge(1)).wait;
            Micros(wait.0.saturating_add_signed(miss))
        }
    }
}

/// Histories of keys under these algorithms.
fn histories(algorithms: &'static [Algorithm]) -> impl Strategy<Value = History> {
    let start = prop_oneof![Just(0), 0..WINDOW_MAX.0, Just(1_790_000_000_000_000)];
    let steps = proptest::collection::vec(steps(), 1..30);
    let parts = (limits(algorithms), any::<bool>(), start, steps);
    parts.prop_map(|(limit, charge_denied, start, steps)| History {
        limit: limit.charging_denied(charge_denied),
        start,
        steps,
    })
}

fn steps() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![
        6 => (0..6_usize, -1..=1_i64).prop_map(|(number, miss)| Clock::Aim(number, miss)),
        1 => Just(Clock::On(0)),
        2 => (0..2_500_u64).prop_map(Clock::On),
        1 => (select(&[0, 300, 1_000, 2_000, 90_000]), 0..3_u64)
            .prop_map(|(thousandths, micros)| Clock::Back(thousandths, micros)),
    ];
    let ask = prop_oneof![
        4 => Just(Ask::Hits(1)),
        2 => (1..6_u64).prop_map(Ask::Hits),
        1 => select(&[(1 << 32) - 1, COUNT_MAX]).prop_map(Ask::Hits),
        2 => (-1..=1_i64).prop_map(Ask::Requests),
        2 => (-1..=1_i64).prop_map(Ask::Size),
        4 => (-1..=1_i64).prop_map(Ask::Remaining),
        1 => select(&[1, 2, COUNT_MAX]).prop_map(Ask::Refund),
        1 => (-1..=1_i64).prop_map(Ask::RefundRequests),
        1 => Just(Ask::Look),
    ];
    let patience = prop_oneof![
        2 => Just(Patience::Endless),
        1 => (-1..=1_i64).prop_map(Patience::Wait),
    ];
    (clock, ask, patience).prop_map(|(clock, ask, patience)| Step {
        clock,
        ask,
        patience,
    })
}

/// Limits of any size under these algorithms.
fn limits(algorithms: &'static [Algorithm]) -> impl Strategy<Value = Limit> {
    let requests = prop_oneof![
        3 => 1..5_u32,
        3 => 1..2_000_u32,
        2 => select(&[1_000_000, 1 << 20, (1 << 20) + 1, u32::MAX - 1, u32::MAX]),
        1 => 1..u32::MAX,
    ];
    let size = prop_oneof![0..3_u32, 0..2_000_u32, Just(u32::MAX), 0..u32::MAX];
    let parts = (select(algorithms), requests, windows(), size);
    parts.prop_map(|(algorithm, requests, window, size)| limit(algorithm, requests, window, size))
}

/// A second to decades.
fn windows() -> impl Strategy<Value = (Unit, u32)> {
    let multiplier = prop_oneof![1..4_u32, Just(u32::MAX), 1..u32::MAX];
    (select(&Unit::ALL), multiplier).prop_map(|(unit, multiplier)| {
        let longest = WINDOW_MAX.0 / Micros::PER_SECOND / unit.seconds();
        (unit, multiplier.min(u32::try_from(longest).unwrap()))
    })
}

/// The limit, with a bucket of that size if it has one, or the largest that there can be.
fn limit(algorithm: Algorithm, requests: u32, window: (Unit, u32), size: u32) -> Limit {
    let (unit, multiplier) = window;
    let period = unit.seconds() * u64::from(multiplier);
    let longest = WINDOW_MAX.0 / Micros::PER_SECOND;
    let largest = u128::from(longest) * u128::from(requests) / u128::from(period);
    let size = size.min(u32::try_from(largest).unwrap_or(u32::MAX));
    let policy = match algorithm {
        Algorithm::FixedWindow => Policy::FixedWindow,
        Algorithm::SlidingWindowLog => Policy::SlidingWindowLog,
        Algorithm::SlidingWindowCounter => Policy::SlidingWindowCounter,
        Algorithm::TokenBucket => Policy::TokenBucket { burst: size.max(1) },
        Algorithm::LeakyBucket => Policy::LeakyBucket { queue: size },
    };
    Limit::new(policy, requests, unit, multiplier).unwrap()
}
