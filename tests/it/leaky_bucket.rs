//! The leaky bucket that really shapes: replies are held until their turn.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tonic::Code;

use crate::support::server::{request, start, start_with};

const RULES: &str = "
domain: d
failure_mode: open
descriptors:
  - key: k
    rate_limit: {unit: second, requests_per_unit: 20, algorithm: leaky_bucket, queue: 9}
  - key: slow
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: leaky_bucket, queue: 2}
  - key: told
    rate_limit: {unit: second, requests_per_unit: 20, algorithm: leaky_bucket, queue: 9, delay: client}
";

/// The clock stands still, so the server takes all ten for simultaneous; the holding is real time.
#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "measures how long replies were held"
)]
async fn ten_simultaneous_requests_leave_at_a_constant_pace() {
    let server = start(RULES);
    let client = server.client().await;
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..11 {
        let mut client = client.clone();
        calls.spawn(async move {
            let response = client.ask(request(&[&[("k", "x")]])).await.unwrap();
            (start.elapsed(), response.overall_code)
        });
    }
    let mut answers = calls.join_all().await;
    answers.sort();
    let (denied, held): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, code)| *code == 2);
    assert_eq!(
        denied.len(),
        1,
        "nine wait, one goes, the eleventh is denied"
    );
    assert_eq!(held.len(), 10);
    for (turn, (after, _)) in held.iter().enumerate() {
        let due = Duration::from_millis(50) * u32::try_from(turn).unwrap();
        assert!(
            *after >= due,
            "reply {turn} left {after:?} after the start, before {due:?}"
        );
    }
}

#[tokio::test]
async fn a_wait_that_does_not_fit_the_callers_deadline_is_denied_at_once() {
    let server = start(RULES);
    let mut client = server.client().await;
    let ask = request(&[&[("slow", "x")]]);
    let response = client.ask_within(ask.clone(), "1S").await.unwrap();
    assert_eq!(response.overall_code, 1);
    let response = client.ask_within(ask, "5S").await.unwrap();
    assert_eq!(response.overall_code, 2);
    // 60 s until its turn less the 4.998 s that it can wait.
    let reset = response.statuses[0].duration_until_reset.as_ref().unwrap();
    assert_eq!(reset.seconds, 56);
    let retry = response
        .response_headers_to_add
        .iter()
        .find(|h| h.key == "Retry-After");
    assert_eq!(retry.unwrap().value, "56");
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_bound_on_held_replies_a_wait_is_denied() {
    let server = start_with(RULES, &["--holds-max", "1"]);
    let mut client = server.client().await;
    let ask = request(&[&[("slow", "x")]]);
    assert_eq!(client.ask(ask.clone()).await.unwrap().overall_code, 1);
    let mut other = client.clone();
    let waiting = ask.clone();
    let held = tokio::spawn(async move { other.ask(waiting).await });
    crate::support::wait_until("a reply is held", || {
        let (_, metrics) = crate::support::http::get(server.ports.http, "/metrics");
        metrics.contains("comporta_held_replies 1")
    });
    assert_eq!(client.ask(ask).await.unwrap().overall_code, 2);

    // A caller that goes away frees the place for holding.
    held.abort();
    crate::support::wait_until("the reply is let go", || {
        let (_, metrics) = crate::support::http::get(server.ports.http, "/metrics");
        metrics.contains("comporta_held_replies 0")
    });
}

#[tokio::test]
async fn a_client_that_waits_itself_is_told_how_long() {
    let server = start(RULES);
    let mut client = server.client().await;
    let ask = request(&[&[("told", "x")]]);
    let delays = async |client: &mut crate::support::server::Client| {
        let response = client.ask(ask.clone()).await.unwrap();
        let header = |header: &&envoy_types::pb::envoy::config::core::v3::HeaderValue| {
            header.key == "X-RateLimit-Delay-Ms"
        };
        let headers = &response.response_headers_to_add;
        let in_header = headers.iter().find(header).map(|h| h.value.clone());
        let in_metadata = response
            .dynamic_metadata
            .map(|m| format!("{:?}", m.fields["delay_ms"].kind));
        (in_header, in_metadata)
    };
    assert_eq!(delays(&mut client).await, (None, None));
    assert_eq!(
        delays(&mut client).await,
        (Some("50".into()), Some("Some(NumberValue(50.0))".into()))
    );
    assert_eq!(delays(&mut client).await.0, Some("100".into()));
}

#[tokio::test]
async fn a_deadline_that_has_passed_is_no_reason_to_wait() {
    let server = start(RULES);
    let mut client = server.client().await;
    let ask = request(&[&[("slow", "x")]]);
    client.ask(ask.clone()).await.unwrap();
    match client.ask_within(ask, "1m").await {
        Ok(response) => assert_eq!(response.overall_code, 2),
        Err(status) => assert_eq!(status.code(), Code::Cancelled, "{status}"),
    }
}
