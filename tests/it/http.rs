//! The HTTP port and the debug port.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::support::http::{delete, get, post};
use crate::support::server::{start, start_with};

const RULES: &str = "
domain: d
failure_mode: open
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        ip_prefix: {ipv4: 24, ipv6: 64}
        rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 5, algorithm: sliding_window_log}
  - key: path
    value: /img/*
    rate_limit: {unit: second, requests_per_unit: 40}
";

const ANN: &str =
    r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;

#[test]
fn json_answers_as_grpc_does() {
    let server = start(RULES);
    let (status, body) = server.post_json(ANN);
    assert_eq!(status, 200);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        body,
        json!({
            "overallCode": "OK",
            "statuses": [{
                "code": "OK",
                "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE"},
                "limitRemaining": 1,
                "durationUntilReset": "60s"
            }],
            "responseHeadersToAdd": [
                {"key": "RateLimit-Limit", "value": "2"},
                {"key": "RateLimit-Remaining", "value": "1"},
                {"key": "RateLimit-Reset", "value": "60"}
            ]
        })
    );
    assert_eq!(server.post_json(ANN).0, 200);
    let (status, body) = server.post_json(ANN);
    assert_eq!(status, 429);
    assert!(body.contains(r#""overallCode":"OVER_LIMIT""#), "{body}");
}

#[test]
fn json_takes_both_spellings_numbers_as_text_and_enums_by_number() {
    let server = start(RULES);
    for (body, remaining) in [
        (
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"b"}],"limit":{"requestsPerUnit":9,"unit":"HOUR"},"hitsAddend":"2"}]}"#,
            7,
        ),
        (
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"b"}],"limit":{"requests_per_unit":9,"unit":3},"hits_addend":2}]}"#,
            5,
        ),
        (
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"b"}],"limit":{"requests_per_unit":9,"unit":3},"hits_addend":2,"is_negative_hits":true}]}"#,
            7,
        ),
        (
            r#"{"domain":"d","hits_addend":3,"descriptors":[{"entries":[{"key":"user","value":"b"}],"limit":{"requests_per_unit":9,"unit":3}}]}"#,
            4,
        ),
    ] {
        let (status, answer) = server.post_json(body);
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["statuses"][0]["limitRemaining"], remaining, "{body}");
    }
}

#[test]
fn bad_bodies_get_400_and_a_sentence() {
    let server = start_with(RULES, &["--message-bytes-max", "2000"]);
    let check = |body: &str, expected: &str| {
        let (status, answer) = server.post_json(body);
        assert_eq!((status, answer.trim_end()), (400, expected), "{body}");
    };
    check(
        "{",
        "the body is not a RateLimitRequest in JSON: EOF while parsing an object at line 1 column 1",
    );
    check(
        r#"{"domain":"d","descriptor":[]}"#,
        "the body is not a RateLimitRequest in JSON: unknown field `descriptor`, expected one of \
         `domain`, `descriptors`, `hitsAddend`, `hits_addend` at line 1 column 26",
    );
    check(
        r#"{"domain":"d","descriptors":[]}"#,
        "there are no descriptors; send at least one",
    );
    check(
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"user"}],"limit":{"unit":"FORTNIGHT"}}]}"#,
        "`unit` is `FORTNIGHT`; write SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
    );
    check(
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"user"}],"limit":{"unit":"DAY","unitMultiplier":4000000}}]}"#,
        "the limit of descriptor 0 is impossible: a window of 4000000 days is longer than 50 years",
    );
    check(
        r#"{"domain":"d","hitsAddend":"many","descriptors":[]}"#,
        "`hitsAddend` is not a whole number from 0 to 4294967295",
    );
    assert_eq!(server.post_json(&"x".repeat(3_000)).0, 413);
    assert_eq!(get(server.ports.http, "/json").0, 405);
    assert_eq!(get(server.ports.http, "/nothing").0, 404);
}

#[test]
fn health_and_metrics() {
    let server = start(RULES);
    assert_eq!(
        get(server.ports.http, "/healthcheck"),
        (200, "OK".to_owned())
    );
    server.post_json(ANN);
    let (status, metrics) = get(server.ports.http, "/metrics");
    assert_eq!(status, 200);
    for line in [
        r#"comporta_decisions_total{domain="d",rule="user",code="ok",source="store"} 1"#,
        r#"comporta_hits_total{domain="d",rule="user"} 1"#,
        r#"comporta_requests_total{code="ok"} 1"#,
        "comporta_config_rules 3",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn explain_says_what_matched_and_charges_nothing() {
    let server = start(RULES);
    let path = "/explain?domain=d&path=/login&remote_address=198.51.100.7";
    for _ in 0..9 {
        let (status, body) = get(server.ports.debug, path);
        assert_eq!(status, 200, "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["verdict"], "OK");
        let descriptor = &body["descriptors"][0];
        assert_eq!(
            descriptor["steps"],
            json!([
                "`path` = `/login`: matched exactly",
                "`remote_address` = `198.51.100.7`: no such value, none of 0 wildcards; matched \
                 by `remote_address` alone"
            ])
        );
        let limit = &descriptor["limits"][0];
        assert_eq!(
            limit["counter"],
            "d:path=/login:remote_address@198.51.100.0/24:log300"
        );
        assert_eq!(
            (&limit["remaining"], &limit["count"]),
            (&json!(5), &json!(0))
        );
    }
    let (_, body) = post(
        server.ports.debug,
        "/explain",
        br#"{"domain":"d","hits_addend":6,"descriptors":[{"entries":[{"key":"path","value":"/login"},{"key":"remote_address","value":"::1"}]}]}"#,
    );
    assert!(body.contains(r#""verdict": "OVER_LIMIT""#), "{body}");
    let (status, body) = get(server.ports.debug, "/explain?domain=&a=b");
    assert_eq!(status, 400, "{body}");
}

#[test]
fn rlconfig_shows_the_rules_in_force() {
    let server = start(RULES);
    let (status, body) = get(server.ports.debug, "/rlconfig");
    assert_eq!(status, 200);
    for part in [
        "path=/login, remote_address",
        "sliding_window_log",
        "path=/img/*",
    ] {
        assert!(body.contains(part), "{part} is not in\n{body}");
    }
}

#[test]
fn counters_are_read_and_reset() {
    let server = start(RULES);
    for _ in 0..3 {
        server.post_json(ANN);
    }
    assert_eq!(server.post_json(ANN).0, 429);
    let (status, body) = get(server.ports.debug, "/counters?domain=d&user=ann");
    assert_eq!(status, 200);
    let counters: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(counters[0]["counter"], "d:user=ann:fixed60");
    assert_eq!(
        (&counters[0]["count"], &counters[0]["remaining"]),
        (&json!(2), &json!(0))
    );

    let (status, body) = delete(server.ports.debug, "/counters?domain=d&user=ann");
    assert_eq!(status, 200);
    let reset: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        reset,
        json!({"counters": ["d:user=ann:fixed60"], "reset": 1})
    );
    assert_eq!(server.post_json(ANN).0, 200);
    let (status, body) = delete(server.ports.debug, "/counters?user=ann");
    assert_eq!(status, 400);
    assert!(body.starts_with("the domain is empty"), "{body}");
}

/// Any body at all, and bodies that are nearly right.
#[test]
fn no_body_does_harm() {
    let server = start(RULES);
    let damaged = (any::<Index>(), any::<u8>()).prop_map(|(place, byte)| {
        let mut body = ANN.as_bytes().to_vec();
        let place = place.index(body.len());
        body[place] = byte;
        body
    });
    let bodies = prop_oneof![vec(any::<u8>(), 0..200), damaged];
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let ran = TestRunner::new(config).run(&bodies, |body| {
        let (status, _) = post(server.ports.http, "/json", &body);
        prop_assert!([200, 400, 429].contains(&status), "{status}");
        Ok(())
    });
    ran.unwrap();
}
