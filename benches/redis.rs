//! What a decision costs Redis, by algorithm and by the number of limits of a request, beside the
//! `INCRBY` and `PEXPIRE` of a limiter without all or nothing.
//!
//! `cargo bench --bench redis -- redis://127.0.0.1:6379` asks a Redis that has nothing else to do,
//! and whose data may go: it is emptied.
#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that can't go on should end"
)]
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::sync::Arc;
use std::time::Duration;

use comporta::algorithm::{Demand, Hits, Limit, Micros, Policy, Unit};
use comporta::clock::{Clock, instant};
use comporta::store::key::Counted;
use comporta::store::redis::url::StoreUrl;
use comporta::store::redis::{Access, Redis, RedisOptions};
use comporta::store::{Check, CounterKey, Role, Store};
use comporta::telemetry::Telemetry;
use redis::Commands;

/// Callers at the same time; with two connections, half of them share a call.
const CALLERS: u64 = 64;

/// Keys, of which each request takes some.
const KEYS: u64 = 10_000;

const TIME: Duration = Duration::from_secs(2);

/// Nothing is denied.
const AMPLE: u32 = 1_000_000;

fn main() {
    let address = std::env::args().find(|argument| argument.starts_with("redis"));
    let Some(address) = address else {
        return println!("which? cargo bench --bench redis -- redis://127.0.0.1:6379");
    };
    println!(
        "{:<24} {:>7} {:>12} {:>16}",
        "", "limits", "requests/s", "Redis µs/request"
    );
    for limits in [1, 3, 8] {
        increments(&address, limits);
        for (name, policy) in [
            ("fixed_window", Policy::FixedWindow),
            ("token_bucket", Policy::TokenBucket { burst: AMPLE }),
            ("leaky_bucket", Policy::LeakyBucket { queue: AMPLE }),
            ("sliding_window_counter", Policy::SlidingWindowCounter),
        ] {
            // A window of a million, so that a bucket is one integer.
            decisions(&address, name, limits, &limit(policy, AMPLE));
        }
        decisions(
            &address,
            "sliding_window_log",
            limits,
            &limit(Policy::SlidingWindowLog, 100),
        );
    }
}

fn limit(policy: Policy, requests: u32) -> Limit {
    Limit::new(policy, requests, Unit::Second, 1).unwrap()
}

/// Runs `requests` for a while, and says what they cost.
fn measure(address: &str, name: &str, limits: u64, run: impl FnOnce() -> u32) {
    let mut connection = redis::Client::open(address)
        .unwrap()
        .get_connection()
        .unwrap();
    let _: () = connection.flushdb().unwrap();
    let mut cpu_seconds = || {
        let info: redis::InfoDict = redis::cmd("INFO")
            .arg("cpu")
            .query(&mut connection)
            .unwrap();
        let seconds = |field| info.get::<f64>(field).unwrap();
        seconds("used_cpu_user_main_thread") + seconds("used_cpu_sys_main_thread")
    };
    let (before, began) = (cpu_seconds(), instant());
    let requests = f64::from(run());
    let (spent, time) = (cpu_seconds() - before, began.elapsed().as_secs_f64());
    println!(
        "{name:<24} {limits:>7} {:>12.0} {:>16.1}",
        requests / time,
        spent / requests * 1e6
    );
}

fn decisions(address: &str, name: &str, limits: u64, limit: &Limit) {
    let StoreUrl::Redis(url) = StoreUrl::parse(address).unwrap() else {
        panic!("{address} is no Redis")
    };
    let options = RedisOptions {
        prefix: "bench:".to_owned(),
        connections: 2,
        connect_timeout: TIME,
        call_timeout: TIME,
        round_trip_timeout: TIME,
        queue_max: 10_000,
    };
    let telemetry = Arc::new(Telemetry::new());
    let store = Redis::new(url, Access::default(), &options, Clock::System, telemetry);
    let store = Arc::new(store);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    measure(address, name, limits, || {
        runtime.block_on(async {
            let mut callers = tokio::task::JoinSet::new();
            for caller in 0..CALLERS {
                callers.spawn(call(store.clone(), caller, limits, limit.clone()));
            }
            callers.join_all().await.into_iter().sum()
        })
    });
}

async fn call(store: Arc<Redis>, caller: u64, limits: u64, limit: Limit) -> u32 {
    let began = instant();
    let mut requests = 0;
    while began.elapsed() < TIME {
        let first = (caller * 7_919 + u64::from(requests) * 104_729) % KEYS;
        let checks: Vec<_> = (0..limits)
            .map(|number| check(first, number, &limit))
            .collect();
        let charged = store.charge(&checks, Micros::ZERO, Micros(2_000_000)).await;
        charged.unwrap();
        requests += 1;
    }
    requests
}

fn check(first: u64, number: u64, limit: &Limit) -> Check<'_> {
    let mut key = CounterKey::of_domain(b"bench");
    let value = format!("{number}:{first:010}");
    key.push_entry(b"user", Counted::Value(value.as_bytes()));
    Check {
        key: key.for_limit(limit),
        limit,
        demand: Demand::patient(Hits::Charge(1)),
        role: Role::Hard,
    }
}

/// As envoyproxy/ratelimit asks, with as many requests in a call as ours have.
fn increments(address: &str, limits: u64) {
    let mut connection = redis::Client::open(address)
        .unwrap()
        .get_connection()
        .unwrap();
    measure(address, "INCRBY + PEXPIRE", limits, || {
        let began = instant();
        let mut requests = 0;
        while began.elapsed() < TIME {
            let mut pipeline = redis::pipe();
            for _ in 0..CALLERS / 2 {
                let first = u64::from(requests) * 104_729 % KEYS;
                for number in 0..limits {
                    let key = format!("bench_user_{number}:{first:010}_1700000000");
                    pipeline.cmd("INCRBY").arg(&key).arg(1).ignore();
                    pipeline.cmd("PEXPIRE").arg(&key).arg(1_000).ignore();
                }
                requests += 1;
            }
            let _: () = pipeline.query(&mut connection).unwrap();
        }
        requests
    });
}
