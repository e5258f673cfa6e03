//! What clients are told, by header profile: on success and on denial.

use crate::support::server::{request, start};

/// Asks `count` times for `k=x` and returns the headers of the last answer, a line each.
async fn headers_after(rules: &str, count: usize, descriptors: &[&[(&str, &str)]]) -> String {
    let server = start(rules);
    let mut client = server.client().await;
    let mut last = Vec::new();
    for _ in 0..count {
        let response = client.ask(request(descriptors)).await.unwrap();
        last = response.response_headers_to_add;
    }
    let lines = last.iter().map(|h| format!("{}: {}", h.key, h.value));
    lines.collect::<Vec<_>>().join("\n")
}

fn rules(profile: &str) -> String {
    format!(
        r#"
domain: d
failure_mode: open
headers: {profile}
descriptors:
  - key: k
    rate_limit:
      - {{unit: second, requests_per_unit: 2, algorithm: token_bucket}}
      - {{unit: minute, unit_multiplier: 5, requests_per_unit: 9, name: 'ban"ana\ ü', algorithm: sliding_window_log}}
  - key: other
    rate_limit: {{unit: hour, requests_per_unit: 100, name: plan}}
"#
    )
}

async fn check(profile: &str, on_success: &str, on_denial: &str) {
    let rules = rules(profile);
    let ask: &[&[(&str, &str)]] = &[&[("k", "x")], &[("other", "y")]];
    assert_eq!(headers_after(&rules, 1, ask).await, on_success);
    assert_eq!(headers_after(&rules, 3, ask).await, on_denial);
}

#[tokio::test]
async fn ratelimit() {
    check(
        "ratelimit",
        "RateLimit-Limit: 2\nRateLimit-Remaining: 1\nRateLimit-Reset: 1",
        "RateLimit-Limit: 2\nRateLimit-Remaining: 0\nRateLimit-Reset: 1\nRetry-After: 1",
    )
    .await;
}

#[tokio::test]
async fn x_ratelimit() {
    check(
        "x-ratelimit",
        "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 1",
        "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1\nRetry-After: 1",
    )
    .await;
}

/// The names are structured field strings: quotes and backslashes escaped, nothing beyond ASCII.
#[tokio::test]
async fn structured() {
    let policy = r#"RateLimit-Policy: "ban\"ana\\ ?";q=2;w=1, "ban\"ana\\ ?";q=9;w=300, "plan";q=100;w=3600"#;
    let success = format!("{policy}\nRateLimit: \"ban\\\"ana\\\\ ?\";r=1;t=1");
    let denial = format!("{policy}\nRateLimit: \"ban\\\"ana\\\\ ?\";r=0;t=1\nRetry-After: 1");
    check("structured", &success, &denial).await;
}

#[tokio::test]
async fn none() {
    check("none", "", "").await;
}

/// The longest wait of all that deny, or a client that obeys would be denied again.
#[tokio::test]
async fn retry_after_is_the_longest() {
    let rules = "
domain: d
failure_mode: open
descriptors:
  - key: second
    rate_limit: {unit: second, requests_per_unit: 1}
  - key: hour
    rate_limit: {unit: hour, requests_per_unit: 1}
";
    let ask: &[&[(&str, &str)]] = &[&[("second", "x")], &[("hour", "x")]];
    assert_eq!(
        headers_after(rules, 2, ask).await,
        "RateLimit-Limit: 1\nRateLimit-Remaining: 0\nRateLimit-Reset: 3600\nRetry-After: 3600"
    );
}

#[tokio::test]
async fn what_never_fits_has_no_retry_after() {
    let rules = "
domain: d
failure_mode: open
descriptors:
  - key: k
    rate_limit: {unit: second, requests_per_unit: 0}
";
    assert_eq!(
        headers_after(rules, 1, &[&[("k", "x")]]).await,
        "RateLimit-Limit: 0\nRateLimit-Remaining: 0"
    );
}

#[tokio::test]
async fn metadata_of_the_rules_that_admit_is_merged() {
    let rules = "
domain: d
failure_mode: open
descriptors:
  - key: a
    rate_limit: {unit: hour, requests_per_unit: 9}
    metadata: {plan: gold, deep: {a: 1}}
  - key: b
    rate_limit: {unit: hour, requests_per_unit: 9}
    metadata: {plan: silver, deep: {b: true}}
";
    let server = start(rules);
    let (status, body) = server.post_json(
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "x"}]},
            {"entries": [{"key": "b", "value": "x"}]}]}"#,
    );
    assert_eq!(status, 200);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        body["dynamicMetadata"],
        serde_json::json!({"metadata": {"plan": "gold", "deep": {"a": 1, "b": true}}})
    );
}
