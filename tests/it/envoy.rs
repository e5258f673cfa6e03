//! The whole way through a real Envoy, configured as `deploy/envoy/envoy.yaml` says.

use comporta::algorithm::Micros;

use crate::support::http::{Response, send};
use crate::support::redis::Redis;
use crate::support::server::{self, Running};
use crate::support::{envoy, upstream, wait_until};

const RULES: &str = "
domain: api
failure_mode: closed
descriptors:
  - key: remote_address
    rate_limit: {unit: hour, requests_per_unit: 1000}
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 2}
";

/// Dropped from the outside in.
struct Stack {
    envoy: envoy::Envoy,
    server: Running,
    upstream: upstream::Upstream,
}

fn start(rules: &str) -> Stack {
    start_with(rules, &[])
}

fn start_with(rules: &str, flags: &[&str]) -> Stack {
    let upstream = upstream::start();
    let server = server::start_with(rules, flags);
    Stack {
        envoy: envoy::start(upstream.addr, server.ports.grpc),
        server,
        upstream,
    }
}

impl Stack {
    fn get(&self, path: &str, headers: &[(&str, &[u8])]) -> Response {
        send(self.envoy.ingress, "GET", path, headers, b"")
    }

    fn statuses(&self, count: usize, path: &str, headers: &[(&str, &[u8])]) -> Vec<u16> {
        let answers = (0..count).map(|_| self.get(path, headers).status);
        answers.collect()
    }

    /// What passed because Envoy got no decision: nothing, ever.
    fn failures(&self) -> u64 {
        self.envoy.stat("cluster.upstream.ratelimit.error")
    }
}

#[test]
fn what_passes_reaches_the_upstream_and_what_does_not_is_told_when_to_come_back() {
    let stack = start(RULES);
    let post = || {
        let tenant: &[(&str, &[u8])] = &[("x-tenant", b"acme")];
        send(stack.envoy.ingress, "POST", "/order", tenant, b"a book")
    };
    for remaining in ["2", "1", "0"] {
        let passed = post();
        assert_eq!(passed.status, 200, "{passed:?}");
        assert_eq!(passed.body, "POST /order HTTP/1.1\na book");
        check_headers(&passed, remaining, "60", None);
    }

    // The window began with the test, so that it has a third to go.
    stack.server.clock.advance(Micros(40 * Micros::PER_SECOND));
    let denied = post();
    assert_eq!(denied.status, 429, "{denied:?}");
    check_headers(&denied, "0", "20", Some("20"));
    assert_eq!(stack.upstream.requests(), 3);

    // Who obeys is let in.
    stack.server.clock.advance(Micros(20 * Micros::PER_SECOND));
    assert_eq!(post().status, 200);
    assert_eq!(stack.envoy.stat("cluster.upstream.ratelimit.ok"), 4);
    assert_eq!(stack.envoy.stat("cluster.upstream.ratelimit.over_limit"), 1);
    assert_eq!(stack.failures(), 0);
}

/// Ours beside Envoy's, which are made from the statuses of the same answer.
#[track_caller]
fn check_headers(response: &Response, remaining: &str, reset: &str, retry_after: Option<&str>) {
    for (name, value) in [
        ("RateLimit-Limit", Some("3")),
        ("RateLimit-Remaining", Some(remaining)),
        ("RateLimit-Reset", Some(reset)),
        ("Retry-After", retry_after),
        ("x-ratelimit-limit", Some("3, 1000;w=3600, 3;w=60")),
        ("x-ratelimit-remaining", Some(remaining)),
        ("x-ratelimit-reset", Some(reset)),
    ] {
        let found = response.header(name);
        assert_eq!(found.as_deref(), value, "{name} of {response:?}");
    }
}

/// A server that insists on UTF-8 fails such a call, and Envoy lets the request through.
#[test]
fn odd_header_values_are_limited_like_any_other() {
    let stack = start(RULES);
    let long = vec![b'a'; 50_000];
    // The first two would be the same in a server that replaces what isn't UTF-8.
    let values: [&[u8]; 5] = [b"\xff\xfe", b"\xff\xfd", b"", b"{a}:b_c%00", &long];
    for value in values {
        let statuses = stack.statuses(4, "/", &[("x-tenant", value)]);
        let start = value.get(..20).unwrap_or(value).escape_ascii();
        assert_eq!(statuses, [200, 200, 200, 429], "{start}");
    }
    assert_eq!(stack.failures(), 0);
}

#[test]
fn without_a_tenant_the_address_counts() {
    let stack = start(RULES);
    for remaining in ["999", "998"] {
        let response = stack.get("/", &[]);
        assert_eq!(response.status, 200);
        let found = response.header("RateLimit-Remaining");
        assert_eq!(found.as_deref(), Some(remaining), "{response:?}");
    }
    assert_eq!(stack.failures(), 0);
}

#[test]
fn a_route_with_limits_of_its_own_keeps_those_of_the_rest() {
    let stack = start(RULES);
    let tenant: &[(&str, &[u8])] = &[("x-tenant", b"acme")];
    assert_eq!(stack.statuses(3, "/", tenant), [200, 200, 200]);
    assert_eq!(stack.statuses(1, "/login", tenant), [429]);
    // The denied one took nothing from the address, which has two logins.
    assert_eq!(stack.statuses(3, "/login", &[]), [200, 200, 429]);
}

/// With the rules that readers start from, whatever the client says about itself or the path.
#[test]
fn login_is_limited_more_tightly_however_it_is_written() {
    let stack = start(&std::fs::read_to_string("config/api.yaml").unwrap());
    let spellings = ["/login", "/login?a=b", "//login", "/./login/", "/%6cogin"];
    for expected in [200, 429] {
        for (number, path) in spellings.iter().enumerate() {
            let forged = format!("198.51.100.{number}");
            let forged: &[(&str, &[u8])] = &[("x-forwarded-for", forged.as_bytes())];
            let response = stack.get(path, forged);
            assert_eq!(response.status, expected, "{path}: {response:?}");
            assert_eq!(stack.get("/", forged).status, 200, "{path}");
        }
    }
    assert_eq!(stack.failures(), 0);
}

/// The API stays open and the login closes, each with its reason in a header; then all is as before.
#[test]
fn when_redis_dies_each_route_does_what_its_rule_says() {
    let rules = "
domain: api
failure_mode: open
descriptors:
  - key: remote_address
    rate_limit: {unit: hour, requests_per_unit: 1000000}
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        failure_mode: closed
        rate_limit: {unit: hour, requests_per_unit: 1000000}
";
    let mut redis = Redis::start();
    let stack = start_with(rules, &["--store", &redis.url(), "--store-timeout", "1s"]);
    let healthy = |path| {
        let response = stack.get(path, &[]);
        response.status == 200 && response.header("X-RateLimit-Degraded").is_none()
    };
    assert!(healthy("/") && healthy("/login"));
    redis.kill9();
    for _ in 0..20 {
        let open = stack.get("/", &[]);
        assert_eq!(open.status, 200, "{open:?}");
        assert_eq!(open.header("X-RateLimit-Degraded").as_deref(), Some("open"));
        let closed = stack.get("/login", &[]);
        assert_eq!(closed.status, 429, "{closed:?}");
        assert_eq!(
            closed.header("X-RateLimit-Degraded").as_deref(),
            Some("closed")
        );
        assert!(closed.header("Retry-After").is_some(), "{closed:?}");
    }
    redis.restart();
    wait_until("it heals", || healthy("/") && healthy("/login"));
    assert_eq!(
        stack.failures(),
        0,
        "Envoy had a decision for every request"
    );
}
