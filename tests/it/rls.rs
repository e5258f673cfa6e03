//! `ShouldRateLimit` over the wire, asked with types that are not ours.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Code;

use crate::support::server::{Client, descriptor, request, start, start_with, with_hits};

const OK: i32 = 1;
const OVER: i32 = 2;

const RULES: &str = "
domain: d
failure_mode: open
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: token
    rate_limit: {unit: second, unit_multiplier: 4, requests_per_unit: 2, algorithm: token_bucket}
  - key: both
    rate_limit:
      - {unit: second, requests_per_unit: 2}
      - {unit: hour, requests_per_unit: 3}
  - key: free
    rate_limit: {unlimited: true}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: quota
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: counted
    rate_limit: {unit: hour, requests_per_unit: 2, charge_denied: true}
  - key: base
    rate_limit: {unit: hour, requests_per_unit: 1, name: base}
  - key: vip
    rate_limit: {unit: hour, requests_per_unit: 5, name: vip, replaces: [{name: base}]}
";

fn codes(response: &RateLimitResponse) -> (i32, Vec<i32>) {
    let statuses = response.statuses.iter().map(|status| status.code);
    (response.overall_code, statuses.collect())
}

/// Code, remaining and seconds until reset of the only status.
async fn ask_one(client: &mut Client, request: RateLimitRequest) -> (i32, u32, Option<i64>) {
    let response = client.ask(request).await.unwrap();
    let status = &response.statuses[0];
    let reset = status.duration_until_reset.as_ref().map(|d| d.seconds);
    (response.overall_code, status.limit_remaining, reset)
}

#[tokio::test]
async fn statuses_come_in_order_one_per_descriptor() {
    let server = start(RULES);
    let mut client = server.client().await;
    let response = client
        .ask(request(&[
            &[("nobody", "knows")],
            &[("user", "ann")],
            &[("free", "x")],
            &[],
            &[("user", "bob"), ("deeper", "still")],
        ]))
        .await
        .unwrap();
    assert_eq!(codes(&response), (OK, vec![OK; 5]));
    let remaining: Vec<_> = response
        .statuses
        .iter()
        .map(|s| s.limit_remaining)
        .collect();
    assert_eq!(remaining, [0, 2, u32::MAX, 0, 0]);
    let limits: Vec<_> = response
        .statuses
        .iter()
        .map(|status| {
            let limit = status.current_limit.as_ref()?;
            Some((limit.requests_per_unit, limit.unit))
        })
        .collect();
    assert_eq!(
        limits,
        [None, Some((3, Unit::Minute as i32)), None, None, None]
    );
}

#[tokio::test]
async fn a_fixed_window_denies_until_it_ends() {
    let server = start(RULES);
    let mut client = server.client().await;
    let ask = request(&[&[("user", "ann")]]);
    server.clock.advance(comporta::algorithm::Micros(500_000));
    for remaining in [2, 1, 0] {
        assert_eq!(
            ask_one(&mut client, ask.clone()).await,
            (OK, remaining, Some(60))
        );
    }
    server
        .clock
        .advance(comporta::algorithm::Micros(10_000_000));
    // 49.5 s are left: rounded up, or a client that obeys would be denied once more.
    assert_eq!(ask_one(&mut client, ask.clone()).await, (OVER, 0, Some(50)));
    server
        .clock
        .advance(comporta::algorithm::Micros(49_500_000));
    assert_eq!(ask_one(&mut client, ask).await, (OK, 2, Some(60)));
}

#[tokio::test]
async fn hits_are_what_the_descriptor_or_else_the_request_says() {
    let server = start(RULES);
    let mut client = server.client().await;
    let user = || descriptor(&[("user", "ann")]);
    let with = |hits_addend, descriptor| RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![descriptor],
        hits_addend,
    };
    // A request's 0 means 1; a descriptor's own hits win.
    assert_eq!(ask_one(&mut client, with(0, user())).await.1, 2);
    assert_eq!(
        ask_one(&mut client, with(3, with_hits(user(), 1))).await.1,
        1
    );
    // A descriptor's 0 only looks.
    assert_eq!(
        ask_one(&mut client, with(9, with_hits(user(), 0))).await,
        (OK, 1, Some(60))
    );
    // Two don't fit any more; that takes nothing.
    assert_eq!(ask_one(&mut client, with(2, user())).await.0, OVER);
    assert_eq!(
        ask_one(&mut client, with(1, user())).await,
        (OK, 0, Some(60))
    );
    assert_eq!(
        ask_one(&mut client, with(1, with_hits(user(), 0))).await.0,
        OVER
    );
    // More than ever fits: denied, and nothing is said about when to come back.
    assert_eq!(ask_one(&mut client, with(4, user())).await, (OVER, 0, None));
    assert_eq!(
        ask_one(&mut client, with(u32::MAX, user())).await,
        (OVER, 0, None)
    );
    assert_eq!(
        ask_one(&mut client, with(1, with_hits(user(), u64::MAX)))
            .await
            .0,
        OVER
    );
}

#[tokio::test]
async fn a_request_is_charged_to_all_its_limits_or_to_none() {
    let server = start(RULES);
    let mut client = server.client().await;
    for _ in 0..3 {
        client.ask(request(&[&[("user", "full")]])).await.unwrap();
    }
    let response = client
        .ask(request(&[
            &[("user", "ann")],
            &[("user", "full")],
            &[("token", "t")],
        ]))
        .await
        .unwrap();
    assert_eq!(codes(&response), (OVER, vec![OK, OVER, OK]));
    assert_eq!(response.statuses[0].limit_remaining, 3, "nothing was taken");
    assert_eq!(response.statuses[2].limit_remaining, 2, "nothing was taken");
    assert_eq!(
        ask_one(&mut client, request(&[&[("user", "ann")]])).await.1,
        2
    );
}

#[tokio::test]
async fn a_descriptor_sent_twice_counts_twice() {
    let server = start(RULES);
    let mut client = server.client().await;
    let twice = request(&[&[("user", "ann")], &[("user", "ann")]]);
    let response = client.ask(twice.clone()).await.unwrap();
    assert_eq!(codes(&response), (OK, vec![OK, OK]));
    assert_eq!(response.statuses[1].limit_remaining, 1);
    let response = client.ask(twice).await.unwrap();
    assert_eq!(codes(&response), (OVER, vec![OK, OVER]));
    assert_eq!(
        ask_one(&mut client, request(&[&[("user", "ann")]])).await.1,
        0
    );
}

#[tokio::test]
async fn several_windows_of_a_rule_are_one_status() {
    let server = start(RULES);
    let mut client = server.client().await;
    let ask = request(&[&[("both", "x")]]);
    assert_eq!(ask_one(&mut client, ask.clone()).await, (OK, 1, Some(1)));
    assert_eq!(ask_one(&mut client, ask.clone()).await, (OK, 0, Some(1)));
    assert_eq!(ask_one(&mut client, ask.clone()).await, (OVER, 0, Some(1)));
    server.clock.advance(comporta::algorithm::Micros(1_000_000));
    assert_eq!(
        ask_one(&mut client, ask.clone()).await,
        (OK, 0, Some(3_599))
    );
    server.clock.advance(comporta::algorithm::Micros(1_000_000));
    assert_eq!(ask_one(&mut client, ask).await, (OVER, 0, Some(3_598)));
}

#[tokio::test]
async fn shadow_rules_count_but_never_deny() {
    let server = start(RULES);
    let mut client = server.client().await;
    let ask = request(&[&[("shadow", "x")]]);
    assert_eq!(ask_one(&mut client, ask.clone()).await.0, OK);
    let response = client.ask(ask).await.unwrap();
    assert_eq!(codes(&response), (OK, vec![OK]));
    assert!(response.statuses[0].current_limit.is_some());
    assert!(
        response.response_headers_to_add.is_empty(),
        "clients needn't know"
    );
}

#[tokio::test]
async fn quota_rules_deny_only_together() {
    let server = start(RULES);
    let mut client = server.client().await;
    client.ask(request(&[&[("quota", "a")]])).await.unwrap();
    let one_over = request(&[&[("quota", "a")], &[("quota", "b")]]);
    let response = client.ask(one_over.clone()).await.unwrap();
    assert_eq!(codes(&response), (OK, vec![OVER, OK]));
    let response = client.ask(one_over).await.unwrap();
    assert_eq!(codes(&response), (OVER, vec![OVER, OVER]));
    let with_hard = request(&[&[("quota", "a")], &[("user", "x")]]);
    let response = client.ask(with_hard).await.unwrap();
    assert_eq!(
        codes(&response),
        (OVER, vec![OVER, OK]),
        "its only quota is over"
    );
}

#[tokio::test]
async fn charged_denials_keep_a_hammering_client_out() {
    let server = start(
        "
domain: d
failure_mode: open
descriptors:
  - key: k
    rate_limit:
      {unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 2, charge_denied: true}
",
    );
    let mut client = server.client().await;
    let ask = request(&[&[("k", "x")]]);
    for _ in 0..20 {
        client.ask(ask.clone()).await.unwrap();
    }
    // Two bucketfuls of debt at the most: three seconds until there is a token again.
    assert_eq!(ask_one(&mut client, ask.clone()).await, (OVER, 0, Some(3)));
    server.clock.advance(comporta::algorithm::Micros(3_000_000));
    assert_eq!(ask_one(&mut client, ask).await.0, OK);
}

#[tokio::test]
async fn a_named_rule_is_replaced_by_another() {
    let server = start(RULES);
    let mut client = server.client().await;
    let ask = request(&[&[("base", "x")], &[("vip", "x")]]);
    for remaining in [4, 3] {
        let response = client.ask(ask.clone()).await.unwrap();
        assert_eq!(codes(&response), (OK, vec![OK, OK]));
        assert!(response.statuses[0].current_limit.is_none());
        assert_eq!(response.statuses[1].limit_remaining, remaining);
        let limit = response.statuses[1].current_limit.as_ref().unwrap();
        assert_eq!(limit.name, "vip");
    }
}

fn overridden(unit: i32) -> RateLimitRequest {
    let mut descriptor = descriptor(&[("user", "ann")]);
    descriptor.limit = Some(RateLimitOverride {
        requests_per_unit: 1,
        unit,
    });
    RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    }
}

#[tokio::test]
async fn a_limit_in_the_request_overrides_the_files() {
    let server = start(RULES);
    let mut client = server.client().await;
    assert_eq!(
        ask_one(&mut client, overridden(3)).await,
        (OK, 0, Some(3_600))
    );
    assert_eq!(ask_one(&mut client, overridden(3)).await.0, OVER);
    // Of the same window as the rule: they share a counter.
    assert_eq!(
        ask_one(&mut client, request(&[&[("user", "ann")]])).await.1,
        2
    );
    assert_eq!(ask_one(&mut client, overridden(2)).await.0, OVER);
}

#[tokio::test]
async fn an_unknown_unit_is_refused_and_the_process_lives() {
    let server = start(RULES);
    let mut client = server.client().await;
    for unit in [0, 8, -1] {
        let status = client.ask(overridden(unit)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(
            status.message(),
            format!(
                "the limit of descriptor 0 has unit {unit}, which is unknown; send 1 (second), \
                 2 (minute), 3 (hour), 4 (day), 5 (month), 6 (year) or 7 (week)"
            )
        );
    }
    assert_eq!(
        ask_one(&mut client, request(&[&[("user", "ann")]])).await.0,
        OK
    );
}

#[tokio::test]
async fn bad_requests_get_a_sentence() {
    let flags = [
        "--descriptors-max",
        "2",
        "--entries-max",
        "2",
        "--message-bytes-max",
        "4096",
    ];
    let server = start_with(RULES, &flags);
    let mut client = server.client().await;
    let mut refused = async |request: RateLimitRequest| {
        let status = client.ask(request).await.unwrap_err();
        (status.code(), status.message().to_owned())
    };
    let invalid = |message: &str| (Code::InvalidArgument, message.to_owned());
    let mut no_domain = request(&[&[("user", "ann")]]);
    no_domain.domain.clear();
    assert_eq!(
        refused(no_domain).await,
        invalid("the domain is empty; name a domain of the rate limit configuration")
    );
    assert_eq!(
        refused(request(&[])).await,
        invalid("there are no descriptors; send at least one")
    );
    assert_eq!(
        refused(request(&[
            &[("user", "ann")],
            &[("user", "ann"), ("", "x")]
        ]))
        .await,
        invalid("the key of entry 1 in descriptor 1 is empty")
    );
    let one: &[(&str, &str)] = &[("user", "ann")];
    assert_eq!(
        refused(request(&[one; 3])).await,
        invalid("3 descriptors in one request; 2 are allowed")
    );
    let deep: &[(&str, &str)] = &[("a", "b"); 3];
    assert_eq!(
        refused(request(&[deep])).await,
        invalid("3 entries in descriptor 0; 2 are allowed")
    );
    let long = "x".repeat(5_000);
    let (code, message) = refused(request(&[&[("user", &long)]])).await;
    assert_eq!(code, Code::OutOfRange);
    assert!(message.contains("the limit is: 4096 bytes"), "{message}");
}

#[tokio::test]
async fn an_unknown_domain_passes_and_is_counted() {
    let server = start(RULES);
    let mut client = server.client().await;
    let mut ask = request(&[&[("user", "ann")], &[("user", "bob")]]);
    ask.domain = "nobody's".to_owned();
    let response = client.ask(ask).await.unwrap();
    assert_eq!(codes(&response), (OK, vec![OK, OK]));
    let (_, metrics) = crate::support::http::get(server.ports.http, "/metrics");
    assert!(
        metrics.contains("comporta_unknown_domain_total 1"),
        "{metrics}"
    );
}
