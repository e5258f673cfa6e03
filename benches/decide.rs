//! What a decision costs in this process: matching, naming the counter, the arithmetic, the embedded
//! store, and all of it together. `cargo bench --bench decide -- WORD` runs those with WORD in their name.
#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that can't go on should end"
)]

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use comporta::algorithm::{self, Demand, Hits, Limit, Micros, Policy, State, Unit};
use comporta::clock::Clock;
use comporta::config::files::Source;
use comporta::config::matcher::Entry;
use comporta::config::parse::{ParseOptions, parse};
use comporta::config::{Config, FailureMode, Live};
use comporta::failure::Fallback;
use comporta::request::{Descriptor, Request};
use comporta::response::{Code, HeaderNames};
use comporta::service::{Options, Service};
use comporta::store::any::AnyStore;
use comporta::store::drill::{Drill, Drilled};
use comporta::store::key::Counted;
use comporta::store::memory::Memory;
use comporta::store::{Check, CounterKey, Role};
use comporta::telemetry::Telemetry;
use divan::{Bencher, Divan};
use futures_util::FutureExt;

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DOMAIN: &str = "bench";

/// Nothing is denied, and nothing is forgotten meanwhile.
const AMPLE: u32 = 1_000_000_000;

const POLICIES: [Policy; 5] = [
    Policy::FixedWindow,
    Policy::SlidingWindowLog,
    Policy::SlidingWindowCounter,
    Policy::TokenBucket { burst: AMPLE },
    Policy::LeakyBucket { queue: AMPLE },
];

fn main() {
    // So many are timed at once that reading the clock doesn't count, and so few that they stay in the cache.
    Divan::default()
        .sample_size(100)
        .sample_count(1_000)
        .config_with_args()
        .main();
}

// === Matching ===

/// A descriptor's way to its rule, one of so many that have a value each.
#[divan::bench(args = [10, 1_000, 100_000])]
fn walk_rules(bencher: Bencher<'_, '_>, rules: u32) {
    let config = config(&rules_by_value(rules));
    let numbers = Numbers::below(rules);
    walk(bencher, &config, || [entry("tenant", numbers.next())]);
}

/// The same past so many wildcards, none of which matches: the first that does counts, so all are tried.
#[divan::bench(args = [1, 10, 100])]
fn walk_wildcards(bencher: Bencher<'_, '_>, wildcards: u32) {
    let wildcard = |number| format!("  - {{key: tenant, value: 'w{number}*', {FIXED_WINDOW}}}\n");
    let rules = (0..wildcards).map(wildcard).collect::<String>();
    let config = config(&format!("{rules}  - {{key: tenant, {FIXED_WINDOW}}}\n"));
    let numbers = Numbers::below(1_000);
    walk(bencher, &config, || [entry("tenant", numbers.next())]);
}

/// Four entries, a level each.
#[divan::bench]
fn walk_four_levels(bencher: Bencher<'_, '_>) {
    let config = config(
        "  - key: a
    descriptors:
      - key: b
        descriptors:
          - key: c
            descriptors:
              - {key: d, rate_limit: {unit: hour, requests_per_unit: 1}}
",
    );
    let numbers = Numbers::below(1_000);
    walk(bencher, &config, || {
        ["a", "b", "c", "d"].map(|key| entry(key, numbers.next()))
    });
}

fn walk<const N: usize>(
    bencher: Bencher<'_, '_>,
    config: &Config,
    entries: impl Fn() -> [Entry; N] + Sync,
) {
    let root = &config.domain(DOMAIN.as_bytes()).unwrap().root;
    assert!(root.walk(&entries()).rule.is_some());
    bencher
        .with_inputs(entries)
        .bench_refs(|entries| root.walk(entries).rule.is_some());
}

// === Naming the counter ===

#[divan::bench]
fn name_counter(bencher: Bencher<'_, '_>) {
    let limit = limit(Policy::FixedWindow);
    let numbers = Numbers::below(1_000_000);
    bencher
        .with_inputs(|| entry("tenant", numbers.next()))
        .bench_refs(|entry| counter_key(entry, &limit));
}

fn counter_key(entry: &Entry, limit: &Limit) -> CounterKey {
    let mut key = CounterKey::of_domain(DOMAIN.as_bytes());
    key.push_entry(&entry.key, Counted::Value(&entry.value));
    key.for_limit(limit)
}

// === The arithmetic ===

/// Bringing the state up to date, checking and charging one hit, a millisecond after the last: of a log
/// that holds the last second, one instant leaves as one enters.
#[divan::bench(args = POLICIES.map(Name))]
fn step(bencher: Bencher<'_, '_>, policy: Name) {
    let limit = Limit::new(policy.0, AMPLE, Unit::Second, 1).unwrap();
    let mut now = Clock::System.now();
    let mut state = State::new(&limit, now);
    let demand = Demand::patient(Hits::Charge(1));
    bencher.bench_local(|| {
        now.0 += 1_000;
        state.advance(&limit, now);
        let outcome = algorithm::check(black_box(&limit), &state, now, demand);
        algorithm::charge(&limit, &mut state, now, demand.hits);
        outcome
    });
}

// === The embedded store ===

/// One counter of so many.
#[divan::bench(args = [1_000, 1_000_000])]
fn store(bencher: Bencher<'_, '_>, counters: u32) {
    let memory = Memory::new(2 * counters as usize, Telemetry::new().memory("store"));
    let limit = limit(Policy::TokenBucket { burst: AMPLE });
    let check = |number| Check {
        key: counter_key(&entry("tenant", number), &limit),
        limit: &limit,
        demand: Demand::patient(Hits::Charge(1)),
        role: Role::Hard,
    };
    let now = Clock::System.now();
    for number in 0..counters {
        assert!(!memory.charge_now(&[check(number)], now).denied);
    }
    let numbers = Numbers::below(counters);
    bencher
        .with_inputs(|| check(numbers.next()))
        .bench_refs(|check| memory.charge_now(std::slice::from_ref(check), now).denied);
}

// === A whole request ===

/// Token buckets, admitted: by descriptors, each of which has a limit, and live keys.
#[divan::bench(args = [(1, 1_000), (3, 1_000), (1, 1_000_000), (3, 1_000_000)].map(Size))]
fn decide(bencher: Bencher<'_, '_>, Size((descriptors, keys)): Size) {
    let bench = Bench::new(&rules_by_key(TOKEN_BUCKET));
    bench.fill(descriptors, keys);
    bench.run(bencher, descriptors, keys, Code::Ok);
}

/// The same from two threads, 1 000 keys.
#[divan::bench(threads = [1, 2])]
fn decide_in_threads(bencher: Bencher<'_, '_>) {
    Bench::new(&rules_by_key(TOKEN_BUCKET)).run(bencher, 1, 1_000, Code::Ok);
}

/// One descriptor, which has a rule of its own among so many.
#[divan::bench(args = [10, 1_000, 100_000])]
fn decide_rules(bencher: Bencher<'_, '_>, rules: u32) {
    let bench = Bench::new(&rules_by_value(rules));
    bench.fill(1, rules);
    bench.run(bencher, 1, rules, Code::Ok);
}

/// One descriptor, admitted by each algorithm.
#[divan::bench(args = ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "leaky_bucket"])]
fn decide_admitted(bencher: Bencher<'_, '_>, algorithm: &str) {
    // A log may have 10 000 entries, and a leaky bucket must not make anyone wait.
    let numbers = match algorithm {
        "sliding_window_log" => "unit: second, requests_per_unit: 10000",
        "leaky_bucket" => "unit: second, requests_per_unit: 1000000000, delay: client, queue: 1000",
        _ => "unit: hour, requests_per_unit: 1000000000",
    };
    let limit = format!("rate_limit: {{algorithm: {algorithm}, {numbers}}}");
    Bench::new(&rules_by_key(&limit)).run(bencher, 1, 10_000, Code::Ok);
}

/// One descriptor, denied.
#[divan::bench]
fn decide_denied(bencher: Bencher<'_, '_>) {
    let bench = Bench::new(&rules_by_key(
        "rate_limit: {unit: year, requests_per_unit: 1}",
    ));
    bench.fill(1, 1_000);
    bench.run(bencher, 1, 1_000, Code::OverLimit);
}

/// One descriptor that no rule is for.
#[divan::bench]
fn decide_unlimited(bencher: Bencher<'_, '_>) {
    Bench::new("  - {key: other}\n").run(bencher, 1, 1_000, Code::Ok);
}

/// A service with the embedded store, as the server puts it together.
struct Bench(Service<AnyStore>);

impl Bench {
    fn new(rules: &str) -> Self {
        let (clock, telemetry) = (Clock::System, Arc::new(Telemetry::new()));
        let live = Live::new(config(rules), clock.clone(), telemetry.clone());
        let memory = Arc::new(Memory::new(4_000_000, telemetry.memory("store")));
        let local = Arc::new(Memory::new(1, telemetry.memory("local")));
        let options = Options {
            failure_mode: FailureMode::Open,
            store_timeout: Micros(10_000),
            holds_max: 1,
            requests_max: 16,
            header_names: HeaderNames::default(),
            describes_request: false,
            near_limit_ratio: 0.8,
        };
        Self(Service::new(
            Arc::new(live),
            AnyStore::Memory(Drilled::new(memory, Drill::new(clock.clone()))),
            Fallback::new(local, 1),
            clock,
            telemetry,
            options,
        ))
    }

    /// Charges every key once.
    fn fill(&self, descriptors: usize, keys: u32) {
        for number in 0..keys {
            assert_eq!(self.code(&request(descriptors, number)), Code::Ok);
        }
    }

    fn run(&self, bencher: Bencher<'_, '_>, descriptors: usize, keys: u32, expected: Code) {
        let numbers = Numbers::below(keys);
        let next = || request(descriptors, numbers.next());
        assert_eq!(self.code(&next()), expected);
        bencher
            .with_inputs(next)
            .bench_refs(|request| self.code(request));
    }

    /// The embedded store never makes anyone wait. Not inlined, so that a profiler can tell deciding from
    /// making up the request.
    #[inline(never)]
    fn code(&self, request: &Request) -> Code {
        let decision = self.0.decide(request).now_or_never().unwrap();
        decision.unwrap().code
    }
}

// === What is asked, and of which rules ===

const FIXED_WINDOW: &str = "rate_limit: {unit: hour, requests_per_unit: 1000000000}";
const TOKEN_BUCKET: &str =
    "rate_limit: {unit: hour, requests_per_unit: 1000000000, algorithm: token_bucket}";

fn limit(policy: Policy) -> Limit {
    Limit::new(policy, AMPLE, Unit::Hour, 1).unwrap()
}

/// `tenant`, `tenant_2` and `tenant_3`, whatever their value.
fn rules_by_key(limit: &str) -> String {
    let keys = ["tenant", "tenant_2", "tenant_3"];
    keys.map(|key| format!("  - {{key: {key}, {limit}}}\n"))
        .concat()
}

/// A rule for each value of `tenant`.
fn rules_by_value(rules: u32) -> String {
    let rule = |number| format!("  - {{key: tenant, value: {number:09}, {FIXED_WINDOW}}}\n");
    (0..rules).map(rule).collect()
}

fn config(rules: &str) -> Config {
    let text = format!("domain: {DOMAIN}\nfailure_mode: open\ndescriptors:\n{rules}");
    let name = "bench.yaml".into();
    parse(&[Source { name, text }], ParseOptions::default()).unwrap()
}

fn request(descriptors: usize, number: u32) -> Request {
    let keys = ["tenant", "tenant_2", "tenant_3"];
    let descriptor = |key| Descriptor {
        entries: [entry(key, number)].into_iter().collect(),
        limit: None,
        hits: Hits::Charge(1),
    };
    Request {
        domain: Bytes::from_static(DOMAIN.as_bytes()),
        descriptors: keys.into_iter().take(descriptors).map(descriptor).collect(),
        timeout: None,
    }
}

fn entry(key: &'static str, number: u32) -> Entry {
    Entry {
        key: Bytes::from_static(key.as_bytes()),
        value: format!("{number:09}").into(),
    }
}

/// Numbers below a bound that jump about, for any number of threads.
struct Numbers {
    count: AtomicU32,
    bound: u32,
}

impl Numbers {
    fn below(bound: u32) -> Self {
        Self {
            count: AtomicU32::new(0),
            bound,
        }
    }

    fn next(&self) -> u32 {
        // The golden ratio: neighbours are far apart, and every number comes up as often as any other.
        const STRIDE: u32 = 2_654_435_769;
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let spread = u64::from(count.wrapping_mul(STRIDE));
        u32::try_from((spread * u64::from(self.bound)) >> 32).unwrap()
    }
}

// === How cases are called ===

#[derive(Clone, Copy)]
struct Name(Policy);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.algorithm())
    }
}

/// Descriptors and keys.
#[derive(Clone, Copy)]
struct Size((usize, u32));

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (descriptors, keys) = self.0;
        write!(f, "{descriptors} of {keys} keys")
    }
}
