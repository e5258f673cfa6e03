//! Rule files of the shapes in public use, behind a real Envoy with the actions that they are used with.
//!
//! The listeners are in `tests/data/envoy/`. No two rules of a file have the same limit, which Envoy's headers tell.

use std::path::Path;

use crate::support::http::{Response, send};
use crate::support::server::{self, Running};
use crate::support::{envoy, upstream, wait_until};

/// Dropped from the outside in.
struct Stack {
    envoy: envoy::Envoy,
    _server: Running,
    _upstream: upstream::Upstream,
}

/// Starts Envoy with a listener, and the service with files of rules.
fn start(listener: &str, rules: &[&str]) -> Stack {
    let folder = tempfile::tempdir().unwrap();
    for name in rules {
        let file = Path::new("tests/data/public").join(name);
        std::fs::copy(file, folder.path().join(name)).unwrap();
    }
    let upstream = upstream::start();
    let server = server::start_in(folder, "", &[]);
    let listener = Path::new("tests/data/envoy").join(listener);
    Stack {
        envoy: envoy::start_listener(&listener, upstream.addr, server.ports.grpc),
        _server: server,
        _upstream: upstream,
    }
}

impl Stack {
    /// Sends `GET /path name=value name=value`.
    fn send(&self, request: &str) -> Response {
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let headers = words.map(|word| word.split_once('=').unwrap());
        let headers: Vec<_> = headers
            .map(|(name, value)| (name, value.as_bytes()))
            .collect();
        send(self.envoy.ingress, method, path, &headers, b"")
    }

    /// Sends requests, each with the limit that is to answer it; none for one that nothing limits.
    #[track_caller]
    fn check(&self, cases: &[(&str, Option<&str>)]) {
        for (request, limit) in cases {
            let response = self.send(request);
            let header = response.header("x-ratelimit-limit");
            // `3, 3;w=60` is 3 requests, of a window of 60 seconds.
            let found = header.as_deref().and_then(|value| value.split(',').next());
            assert_eq!(found, *limit, "{request}: {response:?}");
        }
        let failures = self.envoy.stat("cluster.upstream.ratelimit.error");
        assert_eq!(failures, 0, "Envoy had a decision for every request");
    }
}

#[test]
fn istio_limits_paths() {
    let stack = start("istio_paths.yaml", &["istio_paths.yaml"]);
    stack.check(&[
        ("GET /checkout", Some("3")),
        ("GET /checkout?coupon=1", Some("120")),
        ("GET /", Some("120")),
        ("POST /checkout", Some("3")),
        ("GET /checkout", Some("3")),
    ]);
    assert_eq!(stack.send("GET /checkout").status, 429);
    assert_eq!(stack.send("GET /").status, 200);
}

#[test]
fn the_references_example_limits_clusters_and_headers() {
    let stack = start("reference_example.yaml", &["reference_example.yaml"]);
    stack.check(&[
        ("GET /clusters", Some("4")),
        ("GET /header region=eu", Some("9")),
        ("GET /header", None),
        ("GET /two region=eu tier=gold", Some("13")),
        ("GET /two region=eu tier=closed", Some("0")),
        ("GET /two region=eu page=home", Some("6")),
        ("GET /two region=eu page=beta", Some("7")),
        ("GET /two region=eu", None),
        ("GET /two tier=gold", None),
    ]);
    assert_eq!(stack.send("GET /two region=eu tier=closed").status, 429);
    for _ in 0..10 {
        let shadow = stack.send("GET /two region=eu page=beta");
        assert_eq!(shadow.status, 200, "{shadow:?}");
    }
}

#[test]
fn contour_sends_entries_of_each_kind() {
    let stack = start("contour.yaml", &["contour.yaml"]);
    stack.check(&[
        ("GET /generic", Some("2")),
        ("GET /address", Some("5")),
        ("GET /agent", Some("7")),
        ("GET /agent user-agent=curl", None),
        ("GET /customer x-customer=ann", Some("8")),
        ("GET /customer", None),
    ]);
}

/// A stack as Envoy Gateway and its AI Gateway would make it.
fn start_gateway() -> Stack {
    let rules = [
        "envoy_gateway_kinds.yaml",
        "envoy_gateway_shared.yaml",
        "ai_gateway_quota.yaml",
    ];
    start("envoy_gateway.yaml", &rules)
}

#[test]
fn envoy_gateway_has_rules_of_many_kinds() {
    let stack = start_gateway();
    stack.check(&[
        ("GET /exact x-tier=gold", Some("101")),
        ("GET /exact x-tier=silver", None),
        ("GET /both x-tier=gold", Some("102")),
        ("GET /both x-tier=silver", None),
        ("GET /distinct x-customer=ann", Some("103")),
        ("GET /distinct", None),
        ("GET /overrides x-client=browser", Some("104")),
        ("GET /overrides x-client=mobile", Some("105")),
        ("GET /overrides x-client=partner", Some("106")),
        ("GET /inverted x-tier=silver", Some("107")),
        ("GET /inverted x-tier=gold", None),
        ("GET /methods", Some("108")),
        ("PUT /methods", Some("108")),
        ("POST /methods", Some("109")),
        ("DELETE /methods", None),
        ("GET /paths/one", Some("110")),
        ("GET /paths/17", Some("111")),
        ("GET /paths/two", None),
        ("POST /chained/admin x-client=browser", Some("112")),
        ("POST /chained/admin x-client=mobile", Some("113")),
        ("GET /chained/admin x-client=mobile", None),
        ("POST /chained/public x-client=mobile", None),
        ("GET /queries?sort=price x-tier=gold", Some("114")),
        ("GET /queries?user=bob", Some("115")),
        ("GET /queries?user=ann", Some("116")),
        ("GET /queries?sort=name x-tier=gold", None),
        ("GET /networks", Some("117")),
        ("GET /outside", Some("119")),
        ("GET /addresses", Some("120")),
        ("GET /everything", Some("122")),
        (
            "GET /all/prices x-tier=gold x-client=mobile x-org=acme",
            Some("125"),
        ),
        ("GET /all/prices x-tier=gold x-client=mobile", None),
        ("GET /hosts", Some("130")),
        ("GET /shared x-tier=gold", Some("21")),
        ("GET /shared x-client=browser", Some("22")),
        ("GET /shared x-client=mobile", Some("23")),
        ("GET /shared x-customer=ann", Some("25")),
        ("GET /model x-tier=gold x-user=ann", Some("500000")),
        ("GET /model x-tier=bronze-1", Some("250000")),
        ("GET /model x-tier=iron", None),
    ]);
    // Envoy's own headers, which Envoy Gateway has on.
    let counted = stack.send("GET /distinct x-customer=ann");
    let header = |name| counted.header(name);
    assert_eq!(
        header("x-ratelimit-limit").as_deref(),
        Some("103, 103;w=60")
    );
    assert_eq!(header("x-ratelimit-remaining").as_deref(), Some("101"));
    let other = stack.send("GET /distinct x-customer=bob");
    assert_eq!(
        other.header("x-ratelimit-remaining").as_deref(),
        Some("102")
    );
}

/// The request only asks; 7 hits are charged, and nobody waits for it, when its answer has gone out.
#[test]
fn envoy_gateway_charges_a_cost_afterwards() {
    let stack = start_gateway();
    let ask = || {
        let response = stack.send("GET /cost x-customer=ann");
        assert_eq!(response.status, 200, "{response:?}");
        response.header("RateLimit-Remaining").unwrap()
    };
    assert_eq!(ask(), "132");
    wait_until("the first cost is charged", || ask() != "132");
    let left: u64 = ask().parse().unwrap();
    assert_eq!((132 - left) % 7, 0, "{left} left");
}

#[test]
fn envoy_gateway_takes_a_limit_from_metadata() {
    let stack = start_gateway();
    stack.check(&[("GET /metadata x-customer=ann", Some("500"))]);
}
