//! A service through hours of requests, faults of its store and reloads of its rules, on a clock that the
//! test moves: after each step, what was admitted is within the limits that were in force.
//!
//! `SEED=n cargo test simulation` repeats the run that a failure names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use comporta::algorithm::{Hits, Micros, State};
use comporta::clock::{Clock, ManualClock};
use comporta::config::files::Source;
use comporta::config::matcher::Entry;
use comporta::config::parse::{ParseOptions, parse};
use comporta::config::{Config, FailureMode, Live};
use comporta::failure::Fallback;
use comporta::request::{Bounds, Descriptor, Request};
use comporta::response::Code;
use comporta::response::HeaderNames;
use comporta::service::{Options, Service};
use comporta::store::memory::Memory;
use comporta::store::{Charged, Check, CounterKey, Store, StoreError};
use comporta::telemetry::Telemetry;

use crate::support::server::START;

const SEEDS: u64 = 40;
const STEPS: usize = 1_500;

/// Instances that `local` divides by.
const REPLICAS: u32 = 2;

/// A store that fails when it is told to.
#[derive(Debug)]
struct Faulty {
    memory: Memory,
    fault: Arc<AtomicU8>,
}

const WELL: u8 = 0;
/// Nothing is charged.
const AWAY: u8 = 1;
/// Charged, but the answer is lost.
const MUTE: u8 = 2;

impl Store for Faulty {
    async fn charge(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        deadline: Micros,
    ) -> Result<Charged, StoreError> {
        let fault = self.fault.load(Ordering::Relaxed);
        if fault == AWAY {
            return Err(StoreError::Unreachable("as scripted".to_owned()));
        }
        let charged = self.memory.charge(checks, now, deadline).await;
        if fault == MUTE {
            return Err(StoreError::Timeout);
        }
        charged
    }

    async fn peek(
        &self,
        checks: &[Check<'_>],
        now: Micros,
    ) -> Result<Vec<Option<State>>, StoreError> {
        self.memory.peek(checks, now).await
    }

    async fn reset(&self, keys: &[CounterKey]) -> Result<usize, StoreError> {
        self.memory.reset(keys).await
    }
}

/// A small generator of numbers: what matters is that a seed gives the same ones everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn pick<'s>(&mut self, sides: &[&'s str]) -> &'s str {
        let number = self.roll(sides.len() as u64);
        sides[usize::try_from(number).unwrap()]
    }
}

const ALGORITHMS: [&str; 5] = [
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
    "token_bucket",
    "leaky_bucket",
];
const MODES: [&str; 4] = ["open", "closed", "local", "error"];

/// Each algorithm in each mode, all with the same limit per minute.
fn config(requests: u64) -> Config {
    let mut text = "domain: d\nfailure_mode: open\ndescriptors:\n".to_owned();
    for algorithm in ALGORITHMS {
        for mode in MODES {
            let queue = if algorithm == "leaky_bucket" {
                ", queue: 3, delay: client"
            } else {
                ""
            };
            writeln!(
                text,
                "  - key: {algorithm}-{mode}\n    failure_mode: {mode}\n    rate_limit: \
                 {{unit: minute, requests_per_unit: {requests}, algorithm: {algorithm}{queue}}}"
            )
            .unwrap();
        }
    }
    let source = Source {
        name: "rules.yaml".into(),
        text,
    };
    parse(&[source], ParseOptions::default()).unwrap()
}

const MINUTE: u64 = 60 * Micros::PER_SECOND;

/// What passed for one key, and who let it.
#[derive(Default)]
struct Passed {
    counted: Vec<u64>,
    local: Vec<u64>,
}

/// The most that any span of these instants may hold, under limits of `requests` a minute and less.
#[track_caller]
fn check_bound(algorithm: &str, passed: &[u64], requests: u64, story: &str) {
    let newest = *passed.last().unwrap();
    let recent: Vec<u64> = passed
        .iter()
        .copied()
        .filter(|at| newest - at < 4 * MINUTE)
        .collect();
    for (index, &first) in recent.iter().enumerate() {
        let span = newest - first;
        let count = (recent.len() - index) as u64;
        let most = match algorithm {
            "fixed_window" | "sliding_window_counter" => {
                let is_one_window = first / MINUTE == newest / MINUTE;
                if is_one_window { requests } else { continue }
            }
            "sliding_window_log" => {
                if span < MINUTE {
                    requests
                } else {
                    continue;
                }
            }
            "token_bucket" => requests + span * requests / MINUTE,
            "leaky_bucket" => 1 + 3 + span * requests / MINUTE,
            _ => unreachable!(),
        };
        assert!(
            count <= most,
            "{story}: {count} in {span} µs, which may be {most}"
        );
    }
}

async fn run(seed: u64) {
    let mut dice = Dice(seed);
    let telemetry = Arc::new(Telemetry::new());
    let clock = ManualClock::new(START);
    let fault = Arc::new(AtomicU8::new(WELL));
    let live = Live::new(config(5), Clock::Manual(clock.clone()), telemetry.clone());
    let live = Arc::new(live);
    let memory = || Memory::new(10_000, telemetry.memory("store"));
    let service = Service::new(
        live.clone(),
        Faulty {
            memory: memory(),
            fault: fault.clone(),
        },
        Fallback::new(Arc::new(memory()), REPLICAS),
        Clock::Manual(clock.clone()),
        telemetry.clone(),
        Options {
            failure_mode: FailureMode::Open,
            store_timeout: Micros::MAX,
            holds_max: 10,
            requests_max: 10,
            header_names: HeaderNames::default(),
            describes_request: false,
            near_limit_ratio: 1.0,
        },
    );
    let mut passed: BTreeMap<(&str, &str), Passed> = BTreeMap::new();
    // The largest limit of late: what a bucket or a window took under it may still be there.
    let mut limits = vec![(START.0, 5)];
    for step in 0..STEPS {
        match dice.roll(100) {
            0..=3 => fault.store(u8::try_from(dice.roll(3)).unwrap(), Ordering::Relaxed),
            4..=5 => {
                let requests = 2 + dice.roll(9);
                limits.push((clock.now().0, requests));
                live.replace(config(requests));
            }
            6..=30 => clock.advance(Micros(dice.roll(MINUTE / 4))),
            // Right onto the next window, or a moment before it.
            31 => {
                let into = clock.now().0 % MINUTE;
                clock.advance(Micros(MINUTE - into - dice.roll(2)));
            }
            _ => {
                let (algorithm, mode) = (dice.pick(&ALGORITHMS), dice.pick(&MODES));
                let now = clock.now().0;
                let name = format!("{algorithm}-{mode}");
                let story = format!("SEED={seed}, step {step}, {name}");
                let answer = ask(&service, &name).await;
                let is_well = fault.load(Ordering::Relaxed) == WELL;
                let passed = passed.entry((algorithm, mode)).or_default();
                let in_force = limits
                    .iter()
                    .rev()
                    .scan(false, |is_old, &(since, requests)| {
                        (!std::mem::replace(is_old, now - since >= 4 * MINUTE)).then_some(requests)
                    });
                let most = in_force.max().unwrap();
                match (is_well, mode, answer) {
                    (true, _, Some(Code::Ok)) => {
                        passed.counted.push(now);
                        check_bound(algorithm, &passed.counted, most, &story);
                    }
                    (false, "local", Some(Code::Ok)) => {
                        passed.local.push(now);
                        let share = (most / u64::from(REPLICAS)).max(1);
                        check_bound(algorithm, &passed.local, share, &story);
                    }
                    (true | false, _, Some(Code::OverLimit))
                        if is_well || ["closed", "local"].contains(&mode) => {}
                    (false, "open", Some(Code::Ok)) | (false, "error", None) => {}
                    other => panic!("{story}: {other:?}"),
                }
            }
        }
    }
    let all: usize = passed.values().map(|passed| passed.counted.len()).sum();
    assert!(all > 100, "SEED={seed}: only {all} passed");
}

async fn ask(service: &Service<Faulty>, key: &str) -> Option<Code> {
    let entry = Entry {
        key: key.to_owned().into(),
        value: "x".to_owned().into(),
    };
    let descriptor = Descriptor {
        entries: [entry].into_iter().collect(),
        limit: None,
        hits: Hits::Charge(1),
    };
    let bounds = Bounds {
        descriptors_max: 1,
        entries_max: 1,
    };
    let request = Request::new("d".to_owned().into(), vec![descriptor], None, bounds).unwrap();
    service
        .decide(&request)
        .await
        .ok()
        .map(|decision| decision.code)
}

#[tokio::test]
async fn limits_hold_through_faults_and_reloads() {
    if let Ok(seed) = std::env::var("SEED") {
        return run(seed.parse().unwrap()).await;
    }
    for seed in 0..SEEDS {
        run(seed).await;
    }
}
