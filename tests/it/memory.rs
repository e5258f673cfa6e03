//! The embedded store: exact under concurrency, all or nothing, bounded.

use std::process::Command;

use comporta::algorithm::{Demand, Hits, Limit, Micros, Policy, Unit};
use comporta::store::key::Counted;
use comporta::store::memory::Memory;
use comporta::store::{Charged, Check, CounterKey, Role};
use comporta::telemetry::Telemetry;

use crate::support::server::START;

const SECOND: u64 = Micros::PER_SECOND;

fn limit(policy: Policy, requests: u32, unit: Unit) -> Limit {
    Limit::new(policy, requests, unit, 1).unwrap()
}

fn key(value: &str, limit: &Limit) -> CounterKey {
    let mut key = CounterKey::of_domain(b"d");
    key.push_entry(b"k", Counted::Value(value.as_bytes()));
    key.for_limit(limit)
}

fn check<'l>(value: &str, limit: &'l Limit, hits: u64) -> Check<'l> {
    Check {
        key: key(value, limit),
        limit,
        demand: Demand::patient(Hits::Charge(hits)),
        role: Role::Hard,
    }
}

fn at(micros: u64) -> Micros {
    Micros(START.0 + micros)
}

fn store(counters_max: usize) -> (Memory, Telemetry) {
    let telemetry = Telemetry::new();
    (
        Memory::new(counters_max, telemetry.memory("store")),
        telemetry,
    )
}

fn is_ok(memory: &Memory, value: &str, limit: &Limit, now: Micros) -> bool {
    !memory.charge_now(&[check(value, limit, 1)], now).denied
}

/// Every algorithm, eight threads, one key: exactly the limit is admitted.
#[test]
fn exact_under_concurrency() {
    for policy in [
        Policy::FixedWindow,
        Policy::SlidingWindowLog,
        Policy::SlidingWindowCounter,
        Policy::TokenBucket { burst: 1_000 },
        Policy::LeakyBucket { queue: 999 },
    ] {
        let (memory, _telemetry) = store(1_000);
        let limit = limit(policy, 1_000, Unit::Hour);
        let admitted: usize = std::thread::scope(|scope| {
            let count = || {
                (0..500)
                    .filter(|_| is_ok(&memory, "x", &limit, START))
                    .count()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(count)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(admitted, 1_000, "{policy:?}");
    }
}

/// Requests over the same two counters in opposite order, from several threads: none waits for ever,
/// and the two counters end with the same count.
#[test]
fn all_or_nothing_under_concurrency() {
    let (memory, _telemetry) = store(1_000);
    let (few, many) = (
        limit(Policy::FixedWindow, 300, Unit::Hour),
        limit(Policy::FixedWindow, 1_000, Unit::Day),
    );
    let admitted: usize = std::thread::scope(|scope| {
        let count = |number: usize| {
            let mut checks = vec![check("few", &few, 1), check("many", &many, 1)];
            if number.is_multiple_of(2) {
                checks.reverse();
            }
            (0..200)
                .filter(|_| !memory.charge_now(&checks, START).denied)
                .count()
        };
        let threads: Vec<_> = (0..8)
            .map(|number| scope.spawn(move || count(number)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(admitted, 300);
    let look = Check {
        demand: Demand::patient(Hits::Look),
        ..check("many", &many, 1)
    };
    let Charged { outcomes, .. } = memory.charge_now(&[look], START);
    assert_eq!(outcomes[0].remaining, 700, "denied requests took nothing");
}

#[test]
fn idle_counters_leave() {
    let (memory, telemetry) = store(100_000);
    let limit = limit(Policy::TokenBucket { burst: 1 }, 1, Unit::Second);
    for number in 0..10_000 {
        assert!(is_ok(&memory, &number.to_string(), &limit, START));
    }
    assert_eq!(memory.len(), 10_000);
    // Idle after a second, kept for another in case the clock steps back.
    let sweep = |now| (0..64).for_each(|_| memory.sweep(now));
    sweep(at(2 * SECOND - 1));
    assert_eq!(memory.len(), 10_000);
    sweep(at(2 * SECOND));
    assert_eq!(memory.len(), 0);
    let metrics = telemetry.render();
    assert!(
        metrics.contains("comporta_counters_expired_total{used_as=\"store\"} 10000"),
        "{metrics}"
    );
}

#[test]
fn a_clock_that_steps_back_finds_the_counter() {
    let (memory, _telemetry) = store(1_000);
    let limit = limit(Policy::FixedWindow, 1, Unit::Minute);
    assert!(is_ok(&memory, "x", &limit, at(59 * SECOND)));
    (0..64).for_each(|_| memory.sweep(at(61 * SECOND)));
    assert!(!is_ok(&memory, "x", &limit, at(59 * SECOND)));
}

/// A flood of other keys never frees a denied one: it would let it through.
#[test]
fn a_denied_key_survives_a_flood_of_fresh_ones() {
    let (memory, telemetry) = store(6_400);
    let denied = limit(Policy::FixedWindow, 1, Unit::Second);
    let fresh = limit(Policy::FixedWindow, 1_000, Unit::Day);
    let names: Vec<_> = (0..500).map(|number| format!("denied-{number}")).collect();
    for name in &names {
        assert!(is_ok(&memory, name, &denied, START));
    }
    for number in 0..100_000 {
        is_ok(&memory, &format!("flood-{number}"), &fresh, START);
    }
    let forgotten = names
        .iter()
        .filter(|name| is_ok(&memory, name, &denied, START))
        .count();
    assert_eq!(forgotten, 0);
    assert!(memory.len() <= 6_400, "{} counters", memory.len());
    let metrics = telemetry.render();
    assert!(
        metrics.contains(r#"evicted_total{used_as="store",kind="denied"} 0"#),
        "{metrics}"
    );
    assert!(
        !metrics.contains(r#"evicted_total{used_as="store",kind="counting"} 0"#),
        "{metrics}"
    );
}

/// Where there is nothing but denied keys, the one whose denial ends soonest makes room, and the
/// metric tells.
#[test]
fn among_denied_keys_the_soonest_to_be_free_makes_room() {
    let (memory, telemetry) = store(64);
    let second = limit(Policy::FixedWindow, 1, Unit::Second);
    for number in 0..1_000 {
        assert!(is_ok(&memory, &number.to_string(), &second, START));
    }
    assert!(memory.len() <= 64);
    let metrics = telemetry.render();
    assert!(
        !metrics.contains(r#"evicted_total{used_as="store",kind="denied"} 0"#),
        "{metrics}"
    );
}

#[test]
fn refunds_and_looks_leave_no_counter_behind() {
    let (memory, _telemetry) = store(1_000);
    let limit = limit(Policy::TokenBucket { burst: 5 }, 5, Unit::Second);
    for hits in [Hits::Look, Hits::Refund(3)] {
        let check = Check {
            demand: Demand::patient(hits),
            ..check("x", &limit, 1)
        };
        let Charged {
            outcomes, denied, ..
        } = memory.charge_now(&[check], START);
        assert!(!denied);
        assert_eq!(outcomes[0].remaining, 5);
    }
    assert_eq!(memory.len(), 0);
}

/// The bound that the module states, at a quarter of the default size: keys of 30 bytes, three times
/// as many as there is room for. In a process of its own, because other tests use memory too.
#[test]
fn memory_stays_within_its_bound() {
    const ALONE: &str = "COMPORTA_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return fill_the_store();
    }
    let alone = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::memory_stays_within_its_bound"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    assert!(
        alone.status.success(),
        "{}",
        String::from_utf8_lossy(&alone.stdout)
    );
}

fn fill_the_store() {
    const COUNTERS: usize = 250_000;
    let before = resident_bytes();
    let (memory, _telemetry) = store(COUNTERS);
    let limit = limit(Policy::TokenBucket { burst: 5 }, 5, Unit::Day);
    let name = |number: usize| format!("{number:015}");
    assert_eq!(key(&name(0), &limit).as_bytes().len(), 30);
    for number in 0..3 * COUNTERS {
        assert!(is_ok(&memory, &name(number), &limit, START));
    }
    let per_counter = (resident_bytes() - before) / memory.len();
    assert!(memory.len() <= COUNTERS + 64);
    // The allocator without optimization touches what is only reserved, its rounding included.
    assert!(per_counter <= 150, "{per_counter} bytes a counter");
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
