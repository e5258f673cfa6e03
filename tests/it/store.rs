//! Redis answers as the embedded store does, field by field, whatever is asked of it.
//!
//! Random histories, with half of their steps aimed at the instants that the answers announce.

use std::fmt::Debug;

use comporta::algorithm::{Demand, Hits, Limit, Micros, Outcome, Policy, Unit};
use comporta::clock::{Clock, ManualClock};
use comporta::store::denials::Denials;
use comporta::store::key::Counted;
use comporta::store::memory::Memory;
use comporta::store::redis::{Access, Redis, RedisOptions};
use comporta::store::{Check, CounterKey, Role, Store};
use comporta::telemetry::Telemetry;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;

use crate::redis::{PATIENT, options, telemetry, url};
use crate::support::redis;
use crate::support::redis::cluster::Cluster;
use crate::support::redis::sentinel::{NAME, Sentinel};
use crate::support::server::START;

/// Where Redis is, in one of the forms that it is run in.
enum Place {
    Alone(redis::Redis),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

impl Place {
    fn url(&self) -> String {
        match self {
            Self::Alone(server) => server.url(),
            Self::Sentinel(sentinel) => {
                format!("redis-sentinel://{}/{NAME}", sentinel.addresses().join(","))
            }
            Self::Cluster(cluster) => format!("redis-cluster://{}", cluster.seeds().join(",")),
        }
    }

    fn nodes(&self) -> &[redis::Redis] {
        match self {
            Self::Alone(server) => std::slice::from_ref(server),
            Self::Sentinel(sentinel) => &sentinel.nodes[..1],
            Self::Cluster(cluster) => &cluster.nodes,
        }
    }
}

fn store(place: &Place, clock: Clock) -> Redis {
    let options = RedisOptions {
        // In a cluster, a request is decided as one only if its counters share a slot.
        prefix: match place {
            Place::Cluster(_) => "{test}:".to_owned(),
            Place::Alone(_) | Place::Sentinel(_) => options().prefix,
        },
        ..options()
    };
    Redis::new(
        url(&place.url()),
        Access::default(),
        &options,
        clock,
        telemetry(),
    )
}

/// Windows of a minute and more: Redis expires keys by its own clock, which runs.
fn limits() -> Vec<Limit> {
    let policies = [
        (Policy::FixedWindow, 5),
        (Policy::FixedWindow, 1),
        (Policy::SlidingWindowLog, 5),
        (Policy::SlidingWindowLog, 2),
        (Policy::SlidingWindowCounter, 5),
        (Policy::SlidingWindowCounter, u32::MAX),
        (Policy::TokenBucket { burst: 3 }, 10),
        (Policy::TokenBucket { burst: 7 }, 7),
        (Policy::TokenBucket { burst: 0 }, 7),
        (Policy::TokenBucket { burst: u32::MAX }, u32::MAX),
        (Policy::LeakyBucket { queue: 3 }, 7),
        (Policy::LeakyBucket { queue: 0 }, 60),
    ];
    let units = [(Unit::Minute, 1), (Unit::Minute, 7), (Unit::Year, 20)];
    let limit = |(policy, requests), (unit, multiplier), charge_denied| {
        let limit = Limit::new(policy, requests, unit, multiplier).ok()?;
        Some(limit.charging_denied(charge_denied))
    };
    let mut limits = Vec::new();
    for policy in policies {
        for unit in units {
            limits.extend(limit(policy, unit, false));
            limits.extend(limit(policy, unit, true));
        }
    }
    // Its counter is no other limit's: a limit of nothing counts nothing in Redis.
    limits.extend(limit((Policy::FixedWindow, 0), (Unit::Hour, 1), false));
    limits
}

/// One check of a request, before it is known which counters there are.
#[derive(Clone, Debug)]
struct Wanted {
    limit: Index,
    value: u8,
    hits: Hits,
    role: Role,
    patience: Micros,
    /// How much before or after now a refund is too late; none if it never is.
    until: Option<i64>,
}

#[derive(Clone, Debug)]
enum Step {
    /// To an instant that some answer announced, and this much off.
    Announced(Index, i64),
    Forward(u64),
    Back(u64),
    None,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let hits = prop_oneof![
        6 => (1_u64..4).prop_map(Hits::Charge),
        1 => prop_oneof![Just(60), Just(1 << 32), Just(1 << 36)].prop_map(Hits::Charge),
        2 => Just(Hits::Look),
        1 => (1_u64..8).prop_map(Hits::Refund),
    ];
    let role = prop_oneof![
        5 => Just(Role::Hard),
        1 => Just(Role::Shadow),
        1 => Just(Role::Quota(0)),
        1 => Just(Role::Quota(3)),
    ];
    let patience = prop_oneof![
        2 => Just(Micros::MAX),
        1 => (0_u64..60_000_000).prop_map(Micros),
    ];
    let until = prop::option::of(-1_i64..=1);
    (any::<Index>(), 0_u8..2, hits, role, patience, until).prop_map(
        |(limit, value, hits, role, patience, until)| Wanted {
            limit,
            value,
            hits,
            role,
            patience,
            until,
        },
    )
}

fn step(goes_back: bool) -> impl Strategy<Value = Step> {
    let back = if goes_back { 1_500_000_000 } else { 1 };
    prop_oneof![
        4 => (any::<Index>(), -1_i64..=1).prop_map(|(which, off)| Step::Announced(which, off)),
        2 => (1_u64..70_000_000).prop_map(Step::Forward),
        1 => (0_u64..back).prop_map(Step::Back),
        2 => Just(Step::None),
    ]
}

/// A few limits, so that the requests of a history meet at their counters.
type History = (Vec<Index>, Vec<(Step, Vec<Wanted>)>);

fn history(goes_back: bool) -> impl Strategy<Value = History> {
    let request = prop::collection::vec(wanted(), 1..4);
    let steps = prop::collection::vec((step(goes_back), request), 1..40);
    (prop::collection::vec(any::<Index>(), 1..4), steps)
}

fn key(case: usize, value: u8, limit: &Limit) -> CounterKey {
    let mut key = CounterKey::of_domain(b"d");
    key.push_entry(b"case", Counted::Value(case.to_string().as_bytes()));
    key.push_entry(b"k", Counted::Value(&[b'a' + value]));
    key.for_limit(limit)
}

fn moved(now: Micros, step: &Step, announced: &[Micros]) -> Micros {
    match step {
        Step::Announced(which, off) if !announced.is_empty() => {
            // Not years ahead: Redis would have expired by then what a test still finds.
            let target = which.get(announced).0.min(now.0 + 10 * 60_000_000);
            Micros(target.saturating_add_signed(*off))
        }
        Step::Forward(span) => Micros(now.0 + span),
        Step::Back(span) => Micros(now.0 - span),
        Step::Announced(..) | Step::None => now,
    }
}

fn announcements(now: Micros, outcomes: &[Outcome]) -> Vec<Micros> {
    let spans = outcomes
        .iter()
        .flat_map(|outcome| [Some(outcome.reset_after), outcome.retry_after]);
    spans.flatten().map(|span| Micros(now.0 + span.0)).collect()
}

#[test]
fn the_script_and_the_algorithms_are_the_same_function() {
    let alone = Place::Alone(redis::Redis::start());
    same_as_memory(&alone, 400, true, |redis| redis, |outcome| *outcome);
}

#[test]
fn behind_sentinels_it_is_the_same() {
    let sentinel = Place::Sentinel(Sentinel::start());
    same_as_memory(&sentinel, 100, true, |redis| redis, |outcome| *outcome);
}

#[test]
fn in_a_cluster_it_is_the_same() {
    let cluster = Place::Cluster(Cluster::start(3));
    same_as_memory(&cluster, 100, true, |redis| redis, |outcome| *outcome);
}

/// Every decision is the same, as long as the clock is not set back. What others charge meanwhile can make a denial last longer than is
/// said, so that the rest is compared only in the test above.
#[test]
fn remembered_denials_are_exact() {
    let meter = Telemetry::new().denials();
    let layered = |redis| Denials::new(redis, 10_000, meter.clone());
    let alone = Place::Alone(redis::Redis::start());
    same_as_memory(&alone, 400, false, layered, |outcome| outcome.admitted);
}

fn same_as_memory<S: Store, T: Debug + PartialEq>(
    place: &Place,
    cases: u32,
    goes_back: bool,
    layered: impl Fn(Redis) -> S,
    seen: impl Fn(&Outcome) -> T,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let clock = ManualClock::new(START);
    let redis = layered(store(place, Clock::Manual(clock.clone())));
    let limits = limits();
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    });
    let case = std::cell::Cell::new(0);
    let ran = runner.run(&history(goes_back), |(few, steps)| {
        case.set(case.get() + 1);
        let few: Vec<_> = few.iter().map(|index| index.get(&limits)).collect();
        let memory = Memory::new(1_000, Telemetry::new().memory("store"));
        let mut announced = Vec::new();
        clock.set(Micros(START.0 + 3_600_000_000));
        for (number, (step, request)) in steps.iter().enumerate() {
            let now = moved(clock.now(), step, &announced);
            clock.set(now);
            let check = |wanted: &Wanted| {
                let limit = *wanted.limit.get(&few);
                Check {
                    key: key(case.get(), wanted.value, limit),
                    limit,
                    demand: Demand {
                        hits: wanted.hits,
                        patience: wanted.patience,
                        until: wanted.until.map_or(Micros::MAX, |until| {
                            Micros(now.0.saturating_add_signed(until))
                        }),
                    },
                    role: wanted.role,
                }
            };
            let mut checks: Vec<Check<'_>> = Vec::new();
            for check in request.iter().map(check) {
                // A limit that changes keeps its counter; within a request there is one limit each.
                let is_other =
                    |other: &Check<'_>| other.key == check.key && other.limit != check.limit;
                if !checks.iter().any(is_other) {
                    checks.push(check);
                }
            }
            let expected = memory.charge_now(&checks, now);
            let answered = runtime.block_on(redis.charge(&checks, now, PATIENT));
            let answered = answered.map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(
                answered.denied,
                expected.denied,
                "step {}: {:?}",
                number,
                &checks
            );
            prop_assert_eq!(
                answered.outcomes.iter().map(&seen).collect::<Vec<_>>(),
                expected.outcomes.iter().map(&seen).collect::<Vec<_>>(),
                "step {}: {:?}",
                number,
                &checks
            );
            announced = announcements(now, &expected.outcomes);
        }
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
    every_key_expires(place);
}

fn every_key_expires(place: &Place) {
    let mut keys = 0;
    for server in place.nodes() {
        for key in server.command(&["KEYS", "*"]).array() {
            let left = server.command(&["PTTL", &key.text()]).int();
            assert_ne!(left, -1, "{} stays for ever", key.text());
            keys += 1;
        }
    }
    assert!(keys > 100);
}
