//! What the process says about itself.

use crate::support::http::get;
use crate::support::redis::Redis;
use crate::support::server::{Running, request, start_with};
use crate::support::wait_until;

const RULES: &str = "
domain: d
failure_mode: local
descriptors:
  - key: k
    value: v
    rate_limit: {unit: hour, requests_per_unit: 10}
    descriptors:
      - key: deep
        descriptors:
          - key: deeper
            rate_limit: {unit: hour, requests_per_unit: 10}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
";

/// The value of a series, written as in the exposition.
fn value(server: &Running, series: &str) -> Option<f64> {
    let (_, text) = get(server.ports.http, "/metrics");
    let mut lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let found = lines.find(|(name, _)| *name == series);
    found.map(|(_, value)| value.parse().unwrap())
}

#[track_caller]
fn check(server: &Running, expected: &[(&str, f64)]) {
    for (series, count) in expected {
        let found = value(server, series);
        assert!(
            found.is_some_and(|found| (found - count).abs() < 1e-9),
            "{series}: {found:?}"
        );
    }
}

fn decisions(rule: &str, code: &str, source: &str) -> String {
    format!(
        r#"comporta_decisions_total{{domain="d",rule="{rule}",code="{code}",source="{source}"}}"#
    )
}

/// The store, a denial that it is remembered for, and the limiter in its place.
#[tokio::test]
async fn who_decided() {
    let mut redis = Redis::start();
    let url = redis.url();
    let server = start_with(RULES, &["--store", &url, "--store-timeout", "2s"]);
    let mut client = server.client().await;
    for _ in 0..13 {
        client.ask(request(&[&[("k", "v")]])).await.unwrap();
    }
    redis.kill9();
    client
        .ask(request(&[&[("k", "v"), ("deep", "x"), ("deeper", "y")]]))
        .await
        .unwrap();
    check(
        &server,
        &[
            (&decisions("k=v", "ok", "store"), 10.0),
            (&decisions("k=v", "over_limit", "store"), 1.0),
            (&decisions("k=v", "over_limit", "remembered"), 2.0),
            (&decisions("k=v, deep, deeper", "ok", "local"), 1.0),
            (
                r#"comporta_near_limit_hits_total{domain="d",rule="k=v"}"#,
                2.0,
            ),
            ("comporta_decision_seconds_count", 14.0),
            (r#"comporta_decision_seconds_bucket{le="+Inf"}"#, 14.0),
        ],
    );
}

#[tokio::test]
async fn calls_to_the_store() {
    let redis = Redis::start();
    let url = redis.url();
    let server = start_with(RULES, &["--store", &url, "--store-timeout", "2s"]);
    let mut client = server.client().await;
    for _ in 0..3 {
        client.ask(request(&[&[("k", "v")]])).await.unwrap();
    }
    let of_node = |name: &str| format!("{name}{{node=\"{url}/0\"}}");
    check(
        &server,
        &[
            (&of_node("comporta_store_call_seconds_count"), 3.0),
            (&of_node("comporta_store_call_requests_sum"), 3.0),
            (&of_node("comporta_store_connections"), 1.0),
        ],
    );
    drop(redis);
    client.ask(request(&[&[("k", "v")]])).await.unwrap();
    wait_until("the connection is gone", || {
        value(&server, &of_node("comporta_store_connections")).is_some_and(|open| open < 0.5)
    });
}

#[tokio::test]
async fn the_names_of_envoyproxy_ratelimit() {
    let server = start_with(RULES, &["--ratelimit-metrics"]);
    let mut client = server.client().await;
    for _ in 0..12 {
        client
            .ask(request(&[&[("k", "v")], &[("shadow", "x")]]))
            .await
            .unwrap();
    }
    let of_rule = |name: &str, keys: &str| {
        format!("ratelimit_service_rate_limit_{name}{{domain=\"d\",{keys}}}")
    };
    let (k, shadow) = ("key1=\"k_v\"", "key1=\"shadow\"");
    check(
        &server,
        &[
            (&of_rule("total_hits", k), 12.0),
            (&of_rule("within_limit", k), 10.0),
            (&of_rule("near_limit", k), 2.0),
            (&of_rule("over_limit", k), 2.0),
            (&of_rule("shadow_mode", k), 0.0),
            (&of_rule("over_limit", shadow), 11.0),
            (&of_rule("shadow_mode", shadow), 11.0),
            (
                r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}"#,
                12.0,
            ),
            (
                r#"ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"}"#,
                12.0,
            ),
        ],
    );
    let deep = request(&[&[("k", "v"), ("deep", "x"), ("deeper", "y")]]);
    client.ask(deep).await.unwrap();
    check(
        &server,
        &[(&of_rule("total_hits", "key1=\"k_v\",key2=\"deep\""), 1.0)],
    );
    let without = start_with(RULES, &[]);
    assert!(
        !get(without.ports.http, "/metrics")
            .1
            .contains("ratelimit_service")
    );
}

/// Every line is a comment, or a series and a number; every series belongs to the type before it.
#[tokio::test]
async fn the_exposition_is_well_formed() {
    let redis = Redis::start();
    let url = redis.url();
    let server = start_with(RULES, &["--store", &url, "--ratelimit-metrics"]);
    server
        .client()
        .await
        .ask(request(&[&[("k", "v")]]))
        .await
        .unwrap();
    let (_, text) = get(server.ports.http, "/metrics");
    let mut family = "";
    let mut seen = std::collections::HashSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            family = kind.split(' ').next().unwrap();
            assert!(seen.insert(family.to_owned()), "{family} comes twice");
        } else if !line.starts_with("# HELP ") {
            assert!(line.starts_with(family), "{line} is not of {family}");
            let (_, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(seen.len() > 15, "{text}");
}
