//! A Redis Cluster: counters in one slot and in several, slots that move, and nodes that are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comporta::algorithm::{Demand, Hits, Limit, Policy};
use comporta::clock::{Clock, ManualClock};
use comporta::store::redis::{Access, Redis, RedisOptions};
use comporta::store::{Charged, Check, Role, Store, StoreError};
use tokio::task::JoinSet;

use crate::redis::{PATIENT, check, day, key, options, telemetry, url};
use crate::support::redis;
use crate::support::redis::cluster::Cluster;
use crate::support::server::{START, request, start_with};

/// All counters are in one slot.
const TOGETHER: &str = "{test}:";
/// Each is in the slot of its own name.
const APART: &str = "test:";

fn store_at(seeds: &[String], prefix: &str) -> Arc<Redis> {
    let url = url(&format!("redis-cluster://{}", seeds.join(",")));
    let options = RedisOptions {
        prefix: prefix.to_owned(),
        // So long does an ask take whose node is gone.
        connect_timeout: Duration::from_millis(300),
        ..options()
    };
    // Time stands still, so that a bucket doesn't refill.
    let clock = Clock::Manual(ManualClock::new(START));
    Arc::new(Redis::new(
        url,
        Access::default(),
        &options,
        clock,
        telemetry(),
    ))
}

fn store(cluster: &Cluster, prefix: &str) -> Arc<Redis> {
    store_at(&cluster.seeds(), prefix)
}

fn fixed(requests: u32) -> Limit {
    day(Policy::FixedWindow, requests)
}

async fn charge(store: &Redis, checks: &[Check<'_>]) -> Result<Charged, StoreError> {
    store.charge(checks, START, PATIENT).await
}

async fn passes(store: &Redis, checks: &[Check<'_>]) -> bool {
    !charge(store, checks).await.unwrap().denied
}

/// What is left of a counter.
async fn left(store: &Redis, value: &str, limit: &Limit) -> u64 {
    let mut look = check(value, limit);
    look.demand = Demand::patient(Hits::Look);
    charge(store, &[look]).await.unwrap().outcomes[0].remaining
}

/// Asks for all of these from two instances with 32 callers each; says how many passed.
async fn race(cluster: &Cluster, prefix: &str, limits: &[(&'static str, Limit)]) -> usize {
    let mut callers = JoinSet::new();
    for _ in 0..2 {
        let instance = store(cluster, prefix);
        for _ in 0..32 {
            let (instance, limits) = (instance.clone(), limits.to_vec());
            callers.spawn(async move {
                let checks: Vec<_> = limits
                    .iter()
                    .map(|(name, limit)| check(name, limit))
                    .collect();
                let mut passed = 0;
                for _ in 0..4 {
                    passed += usize::from(passes(&instance, &checks).await);
                }
                passed
            });
        }
    }
    callers.join_all().await.into_iter().sum()
}

/// The slot of a counter, and its node.
fn place(cluster: &Cluster, value: &str, limit: &Limit) -> (u16, usize) {
    let slot = cluster.slot_of_key(&format!("{APART}1:{}", key(value, limit)));
    (slot, cluster.node_of_slot(slot))
}

/// A value whose counter is on this node.
fn value_on(cluster: &Cluster, node: usize, limit: &Limit) -> String {
    let mut values = (0..).map(|number| format!("v{number}"));
    let found = values.find(|value| place(cluster, value, limit).1 == node);
    found.unwrap()
}

fn policies() -> [Policy; 5] {
    [
        Policy::FixedWindow,
        Policy::SlidingWindowLog,
        Policy::SlidingWindowCounter,
        Policy::TokenBucket { burst: 50 },
        Policy::LeakyBucket { queue: 49 },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_admit_exactly_the_limit_between_them() {
    let cluster = Cluster::start(3);
    let (tight, wide) = (fixed(50), fixed(1_000));
    let together = [("a", tight.clone()), ("b", wide.clone())];
    assert_eq!(race(&cluster, TOGETHER, &together).await, 50);
    assert_eq!(left(&store(&cluster, TOGETHER), "b", &wide).await, 950);
    for (index, policy) in policies().into_iter().enumerate() {
        let value = ["f", "l", "c", "t", "q"][index];
        let apart = [(value, day(policy, 50)), ("wide", wide.clone())];
        assert_eq!(race(&cluster, APART, &apart).await, 50, "{policy:?}");
        let spent = 50 * (index as u64 + 1);
        let left = left(&store(&cluster, APART), "wide", &wide).await;
        assert_eq!(left, 1_000 - spent, "{policy:?}: given back where denied");
    }
}

/// Two that hold the last of one counter each may deny each other, but there is never too much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_that_run_out_together_admit_no_more_than_the_limit() {
    let cluster = Cluster::start(2);
    let limits = [("a", fixed(50)), ("b", fixed(50)), ("c", fixed(50))];
    let mut passed = race(&cluster, APART, &limits).await;
    assert!(passed <= 50, "{passed}");
    let store = store(&cluster, APART);
    let checks: Vec<_> = limits
        .iter()
        .map(|(name, limit)| check(name, limit))
        .collect();
    while passes(&store, &checks).await {
        passed += 1;
    }
    assert_eq!(passed, 50, "nothing was lost");
}

#[tokio::test]
async fn what_a_denied_request_charged_is_given_back() {
    let cluster = Cluster::start(2);
    let store = store(&cluster, APART);
    let (one, ten) = (fixed(1), fixed(10));
    let bucket = day(Policy::TokenBucket { burst: 10 }, 10);
    let charged_denied = fixed(10).charging_denied(true);
    let checks = [
        check("hard", &ten),
        check("bucket", &bucket),
        Check {
            role: Role::Shadow,
            ..check("shadow", &ten)
        },
        Check {
            role: Role::Quota(7),
            ..check("quota", &ten)
        },
        check("always", &charged_denied),
        check("tight", &one),
    ];
    let first = charge(&store, &checks).await.unwrap();
    assert!(first.split && !first.denied);
    for _ in 0..5 {
        let denied = charge(&store, &checks).await.unwrap();
        assert!(denied.split && denied.denied && denied.evidence.is_none());
        let remaining: Vec<_> = denied.outcomes.iter().map(|o| o.remaining).collect();
        assert_eq!(remaining[..4], [9; 4], "as if it had not been asked");
    }
    assert_eq!(left(&store, "hard", &ten).await, 9);
    assert_eq!(left(&store, "bucket", &bucket).await, 9);
    assert_eq!(left(&store, "shadow", &ten).await, 9);
    assert_eq!(left(&store, "quota", &ten).await, 9);
    assert_eq!(left(&store, "always", &charged_denied).await, 4);
}

/// Quotas deny only together, wherever they are.
#[tokio::test]
async fn quotas_are_weighed_over_all_slots() {
    let cluster = Cluster::start(2);
    let store = store(&cluster, APART);
    let (one, two) = (fixed(1), fixed(2));
    let quota = |number, check: Check<'static>| Check {
        role: Role::Quota(number),
        ..check
    };
    let (one, two): (&'static Limit, &'static Limit) =
        (Box::leak(Box::new(one)), Box::leak(Box::new(two)));
    let checks = [quota(0, check("x", one)), quota(1, check("y", two))];
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(passes(&store, &checks).await);
    }
    assert_eq!(answers, [true, true, false, false]);
}

/// The first seed doesn't answer, the second is no cluster's.
#[tokio::test]
async fn wrong_seeds_are_skipped() {
    let cluster = Cluster::start(2);
    let alone = redis::Redis::start();
    let mut gone = redis::Redis::start();
    gone.kill9();
    let seed = |server: &redis::Redis| format!("127.0.0.1:{}", server.port());
    let mut seeds = vec![seed(&gone), seed(&alone)];
    let only_wrong = store_at(&seeds, APART);
    seeds.push(cluster.seeds().remove(1));
    let limit = fixed(9);
    for node in 0..2 {
        let value = value_on(&cluster, node, &limit);
        assert!(passes(&store_at(&seeds, APART), &[check(&value, &limit)]).await);
    }
    let refused = charge(&only_wrong, &[check("x", &limit)]).await;
    assert!(refused.is_err(), "{refused:?}");
}

/// Until a slot has moved, some of its counters are here and some there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_on_their_way_are_followed() {
    let cluster = Cluster::start(2);
    let store = store(&cluster, TOGETHER);
    let limit: &'static Limit = Box::leak(Box::new(fixed(12)));
    let ask_for_all = async || {
        let mut asks = JoinSet::new();
        for number in 0..64 {
            let store = store.clone();
            let value = format!("v{}", number % 8);
            asks.spawn(async move { passes(&store, &[check(&value, limit)]).await });
        }
        asks.join_all()
            .await
            .into_iter()
            .filter(|&passed| passed)
            .count()
    };
    assert!(passes(&store, &[check("v0", limit)]).await, "one is there");
    let log = day(Policy::SlidingWindowLog, 1);
    assert!(passes(&store, &[check("log", &log)]).await, "and this");
    let slot = cluster.slot_of_key(TOGETHER);
    let from = cluster.node_of_slot(slot);
    cluster.begin_move(slot, from, 1 - from);
    let refund = Check {
        demand: Demand::patient(Hits::Refund(1)),
        ..check("log", &log)
    };
    assert!(passes(&store, &[refund]).await, "it empties here");
    assert!(
        passes(&store, &[check("log", &log)]).await,
        "and fills there"
    );
    assert_eq!(ask_for_all().await, 64);
    let errors = |kind| cluster.nodes[from].info("errorstats", kind);
    errors("errorstat_ASK");
    errors("errorstat_TRYAGAIN");
    cluster.finish_move(slot, from, 1 - from);
    assert_eq!(ask_for_all().await, 8 * 4 - 1);
    errors("errorstat_MOVED");
}

/// Counters move while they are asked for: every answer is a decision, and all add up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_under_load() {
    const LIMIT: u32 = 300;
    let cluster = Arc::new(Cluster::start(3));
    let limits: &'static [Limit] = Vec::leak(vec![
        fixed(LIMIT),
        day(Policy::TokenBucket { burst: LIMIT }, LIMIT),
        day(Policy::SlidingWindowLog, LIMIT),
    ]);
    let is_over = Arc::new(AtomicBool::new(false));
    let mover = {
        let (cluster, is_over) = (cluster.clone(), is_over.clone());
        std::thread::spawn(move || {
            for round in 0..4 {
                for limit in limits {
                    let (slot, from) = place(&cluster, "x", limit);
                    cluster.move_slot(slot, from, (from + 1 + round % 2) % 3);
                }
            }
            is_over.store(true, Ordering::Relaxed);
        })
    };
    let mut callers = JoinSet::new();
    for _ in 0..2 {
        let instance = store(&cluster, APART);
        for _ in 0..8 {
            let (instance, is_over) = (instance.clone(), is_over.clone());
            callers.spawn(async move {
                let mut passed = [0; 3];
                let mut asks = 0;
                while asks < 60 || !is_over.load(Ordering::Relaxed) {
                    for (passed, limit) in passed.iter_mut().zip(limits) {
                        *passed += u32::from(passes(&instance, &[check("x", limit)]).await);
                    }
                    asks += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                passed
            });
        }
    }
    let passed = callers.join_all().await;
    mover.join().unwrap();
    for index in 0..3 {
        let sum: u32 = passed.iter().map(|passed| passed[index]).sum();
        assert_eq!(sum, LIMIT, "{:?}", limits[index].policy());
    }
}

/// Only what is on the node that is gone has no answer; what was charged elsewhere is given back.
#[tokio::test]
async fn a_node_that_is_gone_takes_only_its_own_counters_along() {
    let mut cluster = Cluster::start_with(3, &["--cluster-require-full-coverage", "no"]);
    let store = store(&cluster, APART);
    let limit = fixed(9);
    let values: Vec<_> = (0..3)
        .map(|node| value_on(&cluster, node, &limit))
        .collect();
    for value in &values {
        assert!(passes(&store, &[check(value, &limit)]).await);
    }
    cluster.kill_node(2);
    for _ in 0..2 {
        for value in &values[..2] {
            assert!(passes(&store, &[check(value, &limit)]).await);
        }
        let both = [check(&values[2], &limit), check(&values[0], &limit)];
        for checks in [&both[..1], &both[..]] {
            let gone = charge(&store, checks).await.unwrap_err();
            assert!(matches!(gone, StoreError::Unreachable(_)), "{gone:?}");
        }
    }
    assert_eq!(left(&store, &values[0], &limit).await, 9 - 3);
}

/// Every node is reached as the URL's are, whichever node told of it.
#[tokio::test]
async fn nodes_that_speak_tls() {
    let cluster = Cluster::start_tls(2);
    let certificates = cluster.nodes[0].certificates();
    let access = Access {
        ca_file: Some(certificates.ca()),
        certificate: Some(certificates.client()),
        ..Access::default()
    };
    let url = url(&format!("rediss-cluster://{}", cluster.seeds()[0]));
    let options = RedisOptions {
        prefix: APART.to_owned(),
        ..options()
    };
    let clock = Clock::Manual(ManualClock::new(START));
    let store = Redis::new(url, access, &options, clock, telemetry());
    let limit = fixed(9);
    for node in 0..2 {
        let value = value_on(&cluster, node, &limit);
        assert!(passes(&store, &[check(&value, &limit)]).await);
        let (slot, from) = place(&cluster, &value, &limit);
        cluster.move_slot(slot, from, 1 - from);
        assert!(passes(&store, &[check(&value, &limit)]).await);
        assert_eq!(left(&store, &value, &limit).await, 7);
        cluster.move_slot(slot, 1 - from, from);
    }
}

/// Its counters are as unreachable as those of a node that is gone; nobody else waits for it.
#[tokio::test]
async fn a_node_that_hangs_takes_only_its_own_counters_along() {
    let cluster = Cluster::start_with(3, &["--cluster-require-full-coverage", "no"]);
    let store = store(&cluster, APART);
    let limit = fixed(9);
    let values: Vec<_> = (0..3)
        .map(|node| value_on(&cluster, node, &limit))
        .collect();
    for value in &values {
        assert!(passes(&store, &[check(value, &limit)]).await);
    }
    cluster.nodes[2].stop();
    let hanging = [check(&values[2], &limit)];
    let hangs = tokio::time::timeout(Duration::from_millis(300), charge(&store, &hanging)).await;
    assert!(!matches!(hangs, Ok(Ok(_))), "{hangs:?}");
    for value in &values[..2] {
        assert!(passes(&store, &[check(value, &limit)]).await);
        assert_eq!(left(&store, value, &limit).await, 7);
    }
    cluster.nodes[2].cont();
    let mut healed = false;
    for _ in 0..500 {
        healed = charge(&store, &hanging).await.is_ok();
        if healed {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(healed);
}

/// What the replica has received counts on, and nobody restarts anything.
#[tokio::test]
async fn a_replica_takes_over() {
    let mut cluster = Cluster::start(3);
    let replica = cluster.start_replica(0);
    let store = store(&cluster, APART);
    let limit = fixed(9);
    let value = value_on(&cluster, 0, &limit);
    let checks = [check(&value, &limit)];
    for _ in 0..4 {
        assert!(passes(&store, &checks).await);
    }
    assert_eq!(cluster.nodes[0].command(&["WAIT", "1", "5000"]).int(), 1);
    cluster.kill_node(0);
    replica
        .command(&["CLUSTER", "FAILOVER", "TAKEOVER"])
        .expect_ok();
    let mut charged = None;
    for _ in 0..500 {
        charged = charge(&store, &checks).await.ok();
        if charged.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(charged.unwrap().outcomes[0].remaining, 9 - 5);
}

#[tokio::test]
async fn counters_are_read_and_reset_wherever_they_are() {
    let cluster = Cluster::start(2);
    let store = store(&cluster, APART);
    let limit = fixed(1);
    let checks = ["a", "b", "c"].map(|value| check(value, &limit));
    let keys: Vec<_> = checks.iter().map(|check| check.key.clone()).collect();
    assert!(passes(&store, &checks).await);
    // Unknown to the store.
    let (slot, from) = place(&cluster, "a", &limit);
    cluster.move_slot(slot, from, 1 - from);
    let states = store.peek(&checks, START).await.unwrap();
    assert_eq!(states.len(), 3);
    for (check, state) in checks.iter().zip(&states) {
        let state = format!("{:?}", state.as_ref().unwrap());
        assert!(state.contains("count: 1"), "{}: {state}", check.key);
    }
    cluster.move_slot(slot, 1 - from, from);
    assert_eq!(store.reset(&keys).await, Ok(3));
    assert_eq!(store.reset(&keys).await, Ok(0));
    assert!(passes(&store, &checks).await);
}

/// The caller is told when its counters were not charged as one.
#[tokio::test]
async fn a_split_decision_says_so() {
    let rules = "
domain: d
failure_mode: error
descriptors:
  - key: k
    rate_limit: {unit: day, requests_per_unit: 3}
";
    let cluster = Cluster::start_with(2, &["--requirepass", "s3cret"]);
    let store = format!("redis-cluster://:s3cret@{}", cluster.seeds().join(","));
    let server = start_with(rules, &["--store", &store, "--store-timeout", "5s"]);
    let mut client = server.client().await;
    let one = client.ask(request(&[&[("k", "x")]])).await.unwrap();
    let two = client
        .ask(request(&[&[("k", "x")], &[("k", "y")]]))
        .await
        .unwrap();
    let is_split = |metadata: Option<envoy_types::pb::google::protobuf::Struct>| {
        metadata.is_some_and(|metadata| metadata.fields.contains_key("split"))
    };
    assert!(!is_split(one.dynamic_metadata));
    assert!(is_split(two.dynamic_metadata));
    let remaining: Vec<_> = two.statuses.iter().map(|s| s.limit_remaining).collect();
    assert_eq!(remaining, [1, 2]);
}

/// One script on one node, whatever braces a tenant has in its name; a descriptor without one is elsewhere.
#[tokio::test]
async fn a_hash_tag_keeps_a_tenant_together() {
    let rules = "
domain: d
failure_mode: error
hash_tag: tenant
descriptors:
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 3}
    descriptors:
      - key: path
        rate_limit: {unit: day, requests_per_unit: 3}
  - key: path
    rate_limit: {unit: day, requests_per_unit: 100}
";
    let cluster = Cluster::start(3);
    let store = format!("redis-cluster://{}", cluster.seeds().join(","));
    let server = start_with(rules, &["--store", &store, "--store-timeout", "5s"]);
    let mut client = server.client().await;
    let mut is_split = async |descriptors: &[&[(&str, &str)]]| {
        let answer = client.ask(request(descriptors)).await.unwrap();
        assert_eq!(answer.overall_code, 1);
        let metadata = answer.dynamic_metadata;
        metadata.is_some_and(|metadata| metadata.fields.contains_key("split"))
    };
    let mut elsewhere = 0;
    for tenant in ["acme", "", "{}", "a}b", "}{", "{other}"] {
        let both: [&[_]; 2] = [&[("tenant", tenant)], &[("tenant", tenant), ("path", "/")]];
        assert!(!is_split(&both).await, "{tenant}");
        let and_one_without: [&[_]; 2] = [both[0], &[("path", tenant)]];
        elsewhere += usize::from(is_split(&and_one_without).await);
    }
    assert!(elsewhere > 0, "slots are many");
    let debug = server.ports.debug;
    let (_, counters) = crate::support::http::get(debug, "/counters?domain=d&tenant=a%7Db");
    assert!(counters.contains("\"count\": 2"), "{counters}");
}

/// One node has charged, the other hangs, and the caller doesn't wait.
#[tokio::test]
async fn who_hangs_up_in_the_middle_gets_back_what_was_charged() {
    let cluster = Cluster::start(2);
    let store = store(&cluster, APART);
    let limit = fixed(9);
    let values = [0, 1].map(|node| value_on(&cluster, node, &limit));
    let both = [check(&values[0], &limit), check(&values[1], &limit)];
    assert!(passes(&store, &both).await);
    cluster.nodes[1].stop();
    let asked = charge(&store, &both);
    let hung_up = tokio::time::timeout(Duration::from_millis(200), asked).await;
    assert!(hung_up.is_err(), "{hung_up:?}");
    assert_eq!(left(&store, &values[0], &limit).await, 7);
    cluster.nodes[1].cont();
    for value in &values {
        for _ in 0..200 {
            if left(&store, value, &limit).await == 8 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(left(&store, value, &limit).await, 8, "{value}");
    }
}
