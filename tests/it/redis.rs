//! Redis as it is used: shared by instances, interrupted, behind TLS, passwords and sentinels.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use comporta::algorithm::{Demand, Hits, Limit, Micros, Policy, Unit};
use comporta::clock::{Clock, ManualClock};
use comporta::store::key::Counted;
use comporta::store::redis::url::{RedisUrl, StoreUrl};
use comporta::store::redis::{Access, Redis, RedisOptions, Secret};
use comporta::store::{Check, CounterKey, Role, Store, StoreError};
use comporta::telemetry::Telemetry;
use tokio::task::JoinSet;

use crate::support::redis;
use crate::support::redis::sentinel::{NAME, Passwords, Sentinel};
use crate::support::server::{START, request, start_with};
use crate::support::wait_until;

pub(crate) const PATIENT: Micros = Micros(10 * Micros::PER_SECOND);

pub(crate) fn options() -> RedisOptions {
    RedisOptions {
        prefix: "test:".to_owned(),
        connections: 2,
        connect_timeout: Duration::from_secs(5),
        call_timeout: Duration::from_secs(10),
        round_trip_timeout: Duration::from_secs(10),
        queue_max: 10_000,
    }
}

pub(crate) fn telemetry() -> Arc<Telemetry> {
    Arc::new(Telemetry::new())
}

pub(crate) fn url(text: &str) -> RedisUrl {
    match StoreUrl::parse(text).unwrap() {
        StoreUrl::Redis(url) => url,
        StoreUrl::Memory => panic!("{text} is not Redis"),
    }
}

fn store(url_text: &str, access: Access) -> Arc<Redis> {
    Arc::new(Redis::new(
        url(url_text),
        access,
        &options(),
        Clock::System,
        telemetry(),
    ))
}

pub(crate) fn key(value: &str, limit: &Limit) -> CounterKey {
    let mut key = CounterKey::of_domain(b"d");
    key.push_entry(b"k", Counted::Value(value.as_bytes()));
    key.for_limit(limit)
}

pub(crate) fn check<'l>(value: &str, limit: &'l Limit) -> Check<'l> {
    Check {
        key: key(value, limit),
        limit,
        demand: Demand::patient(Hits::Charge(1)),
        role: Role::Hard,
    }
}

pub(crate) fn day(policy: Policy, requests: u32) -> Limit {
    Limit::new(policy, requests, Unit::Day, 1).unwrap()
}

async fn ask(store: &Redis, value: &str, limit: &Limit) -> Result<bool, StoreError> {
    let charged = store.charge(&[check(value, limit)], START, PATIENT).await?;
    Ok(!charged.denied)
}

/// Asks from four instances with 64 callers each; says how many passed and how many had no answer.
async fn race(server: &redis::Redis, value: &'static str, limit: &Limit) -> (usize, usize) {
    // Time stands still, so that a bucket doesn't refill.
    let clock = Clock::Manual(ManualClock::new(START));
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let instance = Redis::new(
            url(&server.url()),
            Access::default(),
            &options(),
            clock.clone(),
            telemetry(),
        );
        let instance = Arc::new(instance);
        for _ in 0..64 {
            let (instance, limit) = (instance.clone(), limit.clone());
            callers.spawn(async move {
                let mut results = Vec::new();
                for _ in 0..8 {
                    results.push(ask(&instance, value, &limit).await);
                }
                results
            });
        }
    }
    let results: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    let passed = results
        .iter()
        .filter(|result| matches!(result, Ok(true)))
        .count();
    let failed = results.iter().filter(|result| result.is_err()).count();
    (passed, failed)
}

fn policies() -> [(&'static str, Policy); 5] {
    [
        ("fixed", Policy::FixedWindow),
        ("log", Policy::SlidingWindowLog),
        ("counter", Policy::SlidingWindowCounter),
        ("token", Policy::TokenBucket { burst: 500 }),
        ("leaky", Policy::LeakyBucket { queue: 499 }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn instances_admit_exactly_the_limit_between_them() {
    let server = redis::Redis::start();
    for (name, policy) in policies() {
        let raced = race(&server, name, &day(policy, 500)).await;
        assert_eq!(raced, (500, 0), "{name}");
    }
    let calls = server.calls("evalsha");
    assert!(
        calls < 5 * 2_048 / 2,
        "requests share round trips: {calls} calls"
    );
}

/// What had no answer may have been charged, so that fewer can pass, but never more.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn never_more_than_the_limit_passes_while_scripts_and_connections_vanish() {
    let server = Arc::new(redis::Redis::start());
    for (name, policy) in policies() {
        let limit = day(policy, 500);
        let vandal = {
            let server = server.clone();
            std::thread::spawn(move || {
                for _ in 0..20 {
                    server.command(&["SCRIPT", "FLUSH"]).expect_ok();
                    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        };
        let (passed, failed) = race(&server, name, &limit).await;
        vandal.join().unwrap();
        assert!(passed <= 500, "{name}: {passed}");
        assert!(
            passed + failed >= 500,
            "{name}: {passed} passed, {failed} failed"
        );
    }
}

/// Callers that hang up while Redis hangs are not asked about once it is back.
#[tokio::test]
async fn who_hung_up_costs_nothing() {
    let server = redis::Redis::start();
    let store = store(&server.url(), Access::default());
    let limit = day(Policy::FixedWindow, 500);
    assert_eq!(ask(&store, "x", &limit).await, Ok(true));
    let before = server.calls("evalsha");
    server.stop();
    for _ in 0..300 {
        let check = check("x", &limit);
        let charged = store.charge(&[check], START, Micros(1_000)).await;
        assert_eq!(charged.unwrap_err(), StoreError::Timeout);
    }
    server.cont();
    assert_eq!(ask(&store, "y", &limit).await, Ok(true));
    let calls = server.calls("evalsha") - before;
    assert!(
        calls <= 4,
        "one in flight on each connection, and the last: {calls}"
    );
}

#[tokio::test]
async fn a_full_queue_is_said_at_once() {
    let server = redis::Redis::start();
    let options = RedisOptions {
        queue_max: 2,
        connections: 1,
        ..options()
    };
    let store = Redis::new(
        url(&server.url()),
        Access::default(),
        &options,
        Clock::System,
        telemetry(),
    );
    let store = Arc::new(store);
    let limit = day(Policy::FixedWindow, 500);
    assert_eq!(ask(&store, "x", &limit).await, Ok(true));
    server.stop();
    let mut asks = JoinSet::new();
    for _ in 0..10 {
        let (store, limit) = (store.clone(), limit.clone());
        asks.spawn(async move { ask(&store, "x", &limit).await });
    }
    let first = asks.join_next().await.unwrap().unwrap();
    server.cont();
    assert_eq!(first, Err(StoreError::Overloaded));
}

#[tokio::test]
async fn a_socket_in_the_file_system() {
    let server = redis::Redis::start();
    let store = store(
        &format!("redis+unix://{}?database=3", server.unix_socket().display()),
        Access::default(),
    );
    assert_eq!(
        ask(&store, "x", &day(Policy::FixedWindow, 1)).await,
        Ok(true)
    );
    assert!(server.info("keyspace", "db3").starts_with("keys=1"));
}

#[tokio::test]
async fn tls_with_certificates_on_both_sides() {
    let server = redis::Redis::start_tls(true);
    let url = format!("rediss://localhost:{}", server.port());
    let limit = day(Policy::FixedWindow, 9);
    let certificates = server.certificates();
    let access = Access {
        ca_file: Some(certificates.ca()),
        certificate: Some(certificates.client()),
        ..Access::default()
    };
    assert_eq!(ask(&store(&url, access), "x", &limit).await, Ok(true));
    let without_ca = ask(&store(&url, Access::default()), "x", &limit).await;
    assert!(
        matches!(without_ca, Err(StoreError::Unreachable(_))),
        "{without_ca:?}"
    );
}

fn password_file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

/// A wrong password is told apart from an outage, and heals when the file is right.
#[tokio::test]
async fn a_password_file_is_read_again() {
    let server = redis::Redis::start();
    let rules = ["on", ">s3cret", "~test:*", "+@all"];
    let user = [&["ACL", "SETUSER", "limiter"], &rules[..]].concat();
    server.command(&user).expect_ok();
    let (_folder, file) = password_file("wrong\n");
    let access = Access {
        user: Some("limiter".to_owned()),
        password: Some(Secret::File(file.clone())),
        ..Access::default()
    };
    let store = store(&server.url(), access);
    let limit = day(Policy::FixedWindow, 9);
    let refused = ask(&store, "x", &limit).await.unwrap_err();
    assert!(
        matches!(refused, StoreError::NotPermitted(_)),
        "{refused:?}"
    );
    assert!(!format!("{refused} {store:?}").contains("wrong"));
    std::fs::write(&file, "s3cret\n").unwrap();
    assert_eq!(ask(&store, "x", &limit).await, Ok(true));
}

/// After a failover decisions flow to the new primary, without a restart.
#[tokio::test]
async fn sentinels_name_the_new_primary() {
    let mut sentinel = Sentinel::start_with(Passwords {
        redis: "s3cret",
        sentinel: "0ther",
    });
    let url = format!(
        "redis-sentinel://:s3cret@{}/{NAME}",
        sentinel.addresses().join(",")
    );
    let access = Access {
        sentinel_password: Some(Secret::Text("0ther".to_owned())),
        ..Access::default()
    };
    let store = store(&url, access);
    let limit = day(Policy::FixedWindow, 1_000_000);
    assert_eq!(ask(&store, "x", &limit).await, Ok(true));
    let before = sentinel.current_primary();
    sentinel.failover();
    assert_ne!(sentinel.current_primary(), before);
    for _ in 0..200 {
        if ask(&store, "x", &limit).await == Ok(true) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the new primary was not found");
}

const RULES: &str = "
domain: d
failure_mode: closed
descriptors:
  - key: k
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: open
    failure_mode: open
    rate_limit: {unit: day, requests_per_unit: 3}
";

/// Two servers, one Redis; then none.
#[tokio::test]
async fn servers_share_their_counters_and_know_what_to_do_without() {
    let mut redis = redis::Redis::start();
    let redis_url = redis.url();
    let flags = ["--store", &redis_url, "--store-timeout", "5s"];
    let servers = [start_with(RULES, &flags), start_with(RULES, &flags)];
    let mut codes = Vec::new();
    for server in servers.iter().cycle().take(4) {
        let mut client = server.client().await;
        codes.push(
            client
                .ask(request(&[&[("k", "x")]]))
                .await
                .unwrap()
                .overall_code,
        );
    }
    assert_eq!(codes, [1, 1, 1, 2]);
    redis.kill9();
    let mut client = servers[0].client().await;
    let closed = client.ask(request(&[&[("k", "x")]])).await.unwrap();
    assert_eq!(closed.overall_code, 2);
    assert!(closed.statuses[0].current_limit.is_none());
    let (_, metrics) = crate::support::http::get(servers[0].ports.http, "/metrics");
    let counted = r#"degraded_total{domain="d",mode="closed",reason="unreachable"} 1"#;
    assert!(metrics.contains(counted), "{metrics}");
    let open = client.ask(request(&[&[("open", "x")]])).await.unwrap();
    assert_eq!(open.overall_code, 1);
    redis.restart();
    let mut last = None;
    for _ in 0..200 {
        last = client
            .ask(request(&[&[("k", "x")]]))
            .await
            .unwrap()
            .statuses
            .pop();
        if last
            .as_ref()
            .is_some_and(|status| status.current_limit.is_some())
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let remaining = last.unwrap().limit_remaining;
    assert_eq!(remaining, 2, "Redis forgot, and counts anew");
}

/// A client that hammers costs Redis one call for each time that there is something to gain.
#[tokio::test]
async fn a_hammering_client_costs_redis_next_to_nothing() {
    let rules = "
domain: d
failure_mode: error
descriptors:
  - key: bucket
    rate_limit: {unit: minute, requests_per_unit: 6, algorithm: token_bucket, burst: 1}
  - key: three
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: sliding_window_log}
";
    let redis = redis::Redis::start();
    let redis_url = redis.url();
    let server = start_with(rules, &["--store", &redis_url, "--store-timeout", "5s"]);
    let mut client = server.client().await;
    wait_until("the server has asked whether it is there", || {
        redis.calls("evalsha") == 1
    });
    let mut passed = 0;
    for _ in 0..10 {
        for ask in [
            request(&[&[("bucket", "x")]]),
            request(&[&[("three", "x")]]),
        ] {
            for _ in 0..50 {
                let answer = client.ask(ask.clone()).await.unwrap();
                passed += usize::from(answer.overall_code == 1);
            }
        }
        server.clock.advance(Micros(10 * Micros::PER_SECOND));
    }
    assert_eq!(passed, 10 + 2, "every ten seconds, and every minute");
    // Each pass, and the denial after it.
    assert_eq!(redis.calls("evalsha"), 1 + 2 * 12);
    let (_, metrics) = crate::support::http::get(server.ports.http, "/metrics");
    assert!(
        metrics.contains("comporta_remembered_denials_total 976"),
        "{metrics}"
    );
}

/// Through Redis and the command line; what was remembered to be denied is forgotten with it.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_reads_and_resets_counters() {
    let rules = "
domain: d
failure_mode: error
descriptors:
  - key: k
    rate_limit:
      - {unit: day, requests_per_unit: 1, algorithm: sliding_window_log}
      - {unit: day, requests_per_unit: 1, algorithm: token_bucket}
      - {unit: day, requests_per_unit: 1, algorithm: sliding_window_counter}
      - {unit: day, requests_per_unit: 1, algorithm: leaky_bucket}
      - {unit: day, requests_per_unit: 1, algorithm: fixed_window}
";
    let redis = redis::Redis::start();
    let redis_url = redis.url();
    let server = start_with(rules, &["--store", &redis_url, "--store-timeout", "5s"]);
    let debug_addr = server.ports.debug.to_string();
    let operate = |action: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_comporta"));
        command.args([
            "counters",
            action,
            "--debug-addr",
            &debug_addr,
            "--domain",
            "d",
            "k=a&b",
        ]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mut client = server.client().await;
    let ask = request(&[&[("k", "a&b")]]);
    let mut codes = Vec::new();
    for _ in 0..3 {
        codes.push(client.ask(ask.clone()).await.unwrap().overall_code);
    }
    assert_eq!(codes, [1, 2, 2]);
    assert_eq!(operate("get").matches("\"count\": 1").count(), 5);
    assert!(operate("reset").contains("\"reset\": 5"));
    assert_eq!(client.ask(ask).await.unwrap().overall_code, 1);
}
