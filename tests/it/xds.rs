//! Rules over xDS, from a server that behaves as those in use do.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::node::UserAgentVersionType;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct, Value};
use tonic::Code;

use crate::support::ads::{Ads, Descriptor, Policy, RateLimitConfig, Replace, TYPE_URL};
use crate::support::certificates::certificates;
use crate::support::http::get;
use crate::support::process::comporta;
use crate::support::proxy::{Mode, Proxy};
use crate::support::server::{Client, Running, descriptor, request, start, start_with, with_hits};
use crate::support::wait_until;

const SECOND: i32 = 1;
const HOUR: i32 = 3;
const DAY: i32 = 4;
const WEEK: i32 = 7;

/// A service whose rules come from `server`, with more flags.
fn follow(server: &str, flags: &[&str]) -> Running {
    let flags: Vec<_> = ["--xds-server", server]
        .iter()
        .chain(flags)
        .copied()
        .collect();
    start_with("", &flags)
}

fn policy(unit: i32, requests_per_unit: u32) -> Policy {
    Policy {
        unit,
        requests_per_unit,
        ..Policy::default()
    }
}

fn leaf(key: &str, value: &str, rate_limit: impl Into<Option<Policy>>) -> Descriptor {
    Descriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        rate_limit: rate_limit.into(),
        ..Descriptor::default()
    }
}

fn resource(domain: &str, descriptors: Vec<Descriptor>) -> RateLimitConfig {
    RateLimitConfig {
        name: format!("{domain}/rules"),
        domain: domain.to_owned(),
        descriptors,
    }
}

/// One rule: so many requests a day for each value of `k`.
fn rules(domain: &str, requests: u32) -> RateLimitConfig {
    resource(domain, vec![leaf("k", "", policy(DAY, requests))])
}

async fn ask(client: &mut Client) -> (i32, u32, u32) {
    let answer = client.ask(request(&[&[("k", "x")]])).await.unwrap();
    let status = &answer.statuses[0];
    let limit = status.current_limit.as_ref();
    let limit = limit.map_or(0, |limit| limit.requests_per_unit);
    (answer.overall_code, limit, status.limit_remaining)
}

fn metric(server: &Running, name: &str) -> String {
    let (_, metrics) = get(server.ports.http, "/metrics");
    let start = format!("{name} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or("-").to_owned()
}

fn rlconfig(server: &Running) -> String {
    get(server.ports.debug, "/rlconfig").1
}

fn is_ready(server: &Running) -> bool {
    get(server.ports.http, "/healthcheck").0 == 200
}

/// The requests that came, as (version, nonce, complaint).
fn acknowledged(ads: &Ads) -> Vec<(String, String, Option<String>)> {
    let requests = ads.seen().into_iter().map(|seen| seen.request);
    let seen = |request: DiscoveryRequest| {
        assert_eq!(request.type_url, TYPE_URL);
        let complaint = request.error_detail.map(|status| {
            assert_eq!(status.code, Code::InvalidArgument as i32);
            status.message
        });
        (request.version_info, request.response_nonce, complaint)
    };
    requests.map(seen).collect()
}

fn ack(version: &str, nonce: &str) -> (String, String, Option<String>) {
    (version.to_owned(), nonce.to_owned(), None)
}

#[tokio::test]
async fn sets_are_awaited_put_in_force_and_replaced() {
    let ads = Ads::start();
    let server = follow(&ads.addr.to_string(), &[]);
    let mut client = server.client().await;

    wait_until("it asks", || ads.seen().len() == 1);
    assert_eq!(acknowledged(&ads), [ack("", "")]);
    assert!(!is_ready(&server));
    let refusal = client.ask(request(&[&[("k", "x")]])).await.unwrap_err();
    assert_eq!(refusal.code(), Code::Unavailable);
    assert_eq!(refusal.message(), "no rules have come yet");
    assert!(rlconfig(&server).ends_with("# no rules yet, for 0 s\n"));
    assert_eq!(metric(&server, "comporta_config_rules"), "0");
    // The server says nothing, and is there.
    let is_connected = || metric(&server, "comporta_xds_connected") == "1";
    wait_until("that is seen", is_connected);

    ads.publish("1", &[rules("d", 100), rules("e", 5)]);
    wait_until("it is ready", || is_ready(&server));
    assert_eq!(ask(&mut client).await, (1, 100, 99));
    wait_until("the set is accepted", || ads.seen().len() == 2);
    let table = rlconfig(&server);
    assert!(table.contains("d/rules"), "{table}");
    assert!(table.ends_with("# in force for 0 s; changed 0 times since the start\n"));
    assert_eq!(metric(&server, "comporta_config_rules"), "2");

    ads.publish("2", &[rules("d", 50), rules("e", 5)]);
    let is_loaded = |number: &str| {
        metric(&server, "comporta_config_reloads_total{result=\"loaded\"}") == number
    };
    wait_until("the rules are changed", || is_loaded("1"));
    assert_eq!(ask(&mut client).await, (1, 50, 48));

    // A domain that isn't in the set any more has no limits.
    ads.publish("3", &[rules("e", 5)]);
    wait_until("the rules are changed", || is_loaded("2"));
    assert_eq!(ask(&mut client).await, (1, 0, 0));
    wait_until("the set is accepted", || ads.seen().len() == 4);
    assert_eq!(
        acknowledged(&ads)[1..],
        [
            ack("1", "nonce 1"),
            ack("2", "nonce 2"),
            ack("3", "nonce 3")
        ]
    );

    // Nor are there any in a set without domains; and it is a set.
    ads.publish("4", &[]);
    wait_until("the rules are changed", || is_loaded("3"));
    assert_eq!(metric(&server, "comporta_config_rules"), "0");
    assert!(is_ready(&server));
    assert_eq!(ask(&mut client).await, (1, 0, 0));
}

/// What is wrong with the parts of `wrong_set`, by name of the resource.
const COMPLAINT: &str = "\
resource 1: is a `type.googleapis.com/google.protobuf.Empty`; send a type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig
resource 2: can't be decoded: failed to decode Protobuf message: RateLimitConfig.name: buffer underflow
numbers/rules: `metadata` can't be sent: it holds NaN, which is no number
/rules: `domain` is empty
d/rules: domain d, a: `unit` is missing; write second, minute, hour, day, week, month or year
d/rules: domain d, b: `unit` is `99`; write second, minute, hour, day, week, month or year
d/rules: domain d, c: `unlimited` and `unit` contradict each other; delete one
d/rules: domain d: `key` is empty
d/rules: domain d, i: `replaces` names the rule itself, `n`; name another
d/rules: domain d, i: the same key and value are in d/rules too; delete one, or give one of them another value
resource 7: domain `d` is in d/rules too; write it in one file, or merge files with --merge-domains
";

fn wrong_set() -> Vec<Any> {
    let number = Value {
        kind: Some(Kind::NumberValue(f64::NAN)),
    };
    let metadata = Struct {
        fields: [("a".to_owned(), number)].into(),
    };
    let numbers = Descriptor {
        metadata: Some(metadata),
        ..leaf("k", "", policy(DAY, 1))
    };
    let unlimited = Policy {
        unlimited: true,
        unit: DAY,
        ..Policy::default()
    };
    let itself = Policy {
        name: "n".to_owned(),
        replaces: vec![Replace {
            name: "n".to_owned(),
        }],
        ..policy(DAY, 1)
    };
    let many = vec![
        leaf("a", "", policy(0, 1)),
        leaf("b", "", policy(99, 1)),
        leaf("c", "", Some(unlimited)),
        leaf("", "x", policy(DAY, 1)),
        leaf("i", "", Some(itself)),
        leaf("i", "", policy(DAY, 2)),
    ];
    let again = RateLimitConfig {
        name: String::new(),
        ..rules("d", 1)
    };
    let empty = Any {
        type_url: "type.googleapis.com/google.protobuf.Empty".to_owned(),
        value: Vec::new(),
    };
    let broken = Any {
        type_url: TYPE_URL.to_owned(),
        value: vec![10, 200, 1, 0],
    };
    let right = [
        resource("d", many),
        resource("numbers", vec![numbers]),
        rules("", 1),
        rules("e", 1),
        again,
    ];
    let mut set = vec![empty, broken];
    set.extend(right.iter().map(RateLimitConfig::packed));
    set
}

#[tokio::test]
async fn a_wrong_set_changes_nothing_and_is_told_why() {
    let ads = Ads::start();
    ads.publish("good", &[rules("d", 100)]);
    let server = follow(&ads.addr.to_string(), &[]);
    wait_until("it is ready", || is_ready(&server));
    let mut client = server.client().await;
    assert_eq!(ask(&mut client).await, (1, 100, 99));

    ads.publish_any("bad", wrong_set());
    wait_until("it is refused", || ads.seen().len() == 3);
    let complaint = format!("{COMPLAINT}11 errors; nothing was loaded");
    let nack = |nonce: &str| {
        let (version, nonce, _) = ack("good", nonce);
        (version, nonce, Some(complaint.clone()))
    };
    assert_eq!(
        acknowledged(&ads),
        [ack("", ""), ack("good", "nonce 1"), nack("nonce 2")]
    );
    assert_eq!(metric(&server, "comporta_config_refused"), "1");
    let refused = "comporta_config_reloads_total{result=\"refused\"}";
    assert_eq!(metric(&server, refused), "1");
    let shown = rlconfig(&server);
    assert!(shown.contains("# 0 s ago, what followed was refused:\n# "));
    assert!(
        shown.contains("# 11 errors; nothing was loaded\n"),
        "{shown}"
    );
    assert_eq!(ask(&mut client).await, (1, 100, 98));

    // The server has sent the same again, and the answer is in no hurry.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(ads.seen().len(), 3);
    ads.publish("better", &[rules("d", 200)]);
    wait_until("it is put in force", || {
        metric(&server, "comporta_config_refused") == "0"
    });
    assert_eq!(ask(&mut client).await, (1, 200, 197));
    wait_until("that is said", || ads.seen().len() == 5);
    let requests = acknowledged(&ads);
    assert_eq!(requests[3..], [nack("nonce 3"), ack("better", "nonce 4")]);
    assert_eq!(metric(&server, refused), "1", "the same set counts once");
}

#[tokio::test]
async fn the_last_set_outlives_its_server() {
    let ads = Ads::start();
    ads.publish("1", &[rules("d", 100)]);
    let mut way = Proxy::start(ads.addr.port());
    let server = follow(&format!("127.0.0.1:{}", way.port()), &[]);
    wait_until("it is ready", || is_ready(&server));
    let connected = |value: &str| metric(&server, "comporta_xds_connected") == value;
    wait_until("it is connected", || connected("1"));
    let mut client = server.client().await;

    way.set(Mode::Refuse);
    wait_until("the server is gone", || connected("0"));
    assert!(is_ready(&server));
    assert_eq!(ask(&mut client).await, (1, 100, 99));

    // The same set again is no change.
    way.set(Mode::Forward);
    wait_until("it is connected again", || connected("1"));
    wait_until("the set is accepted", || ads.seen().len() == 4);
    let shown = rlconfig(&server);
    assert!(
        shown.ends_with("changed 0 times since the start\n"),
        "{shown}"
    );

    // A server that has been started anew counts from 1 again.
    way.set(Mode::Refuse);
    wait_until("the server is gone", || connected("0"));
    ads.publish("1", &[rules("d", 200)]);
    way.set(Mode::Forward);
    wait_until("the rules are changed", || {
        rlconfig(&server).ends_with("changed 1 times since the start\n")
    });
    assert_eq!(ask(&mut client).await, (1, 200, 198));
    wait_until("the set is accepted", || ads.seen().len() == 6);
    let stream = [ack("", ""), ack("1", "nonce 1")];
    assert_eq!(
        acknowledged(&ads),
        [stream.clone(), stream.clone(), stream].concat()
    );
}

/// Without an answer, TCP would wait for a quarter of an hour.
#[tokio::test]
async fn a_server_that_falls_silent_is_noticed() {
    let ads = Ads::start();
    ads.publish("1", &[rules("d", 100)]);
    let mut way = Proxy::start(ads.addr.port());
    let patience = [
        "--xds-keepalive-interval",
        "200ms",
        "--xds-keepalive-timeout",
        "200ms",
    ];
    let server = follow(&format!("127.0.0.1:{}", way.port()), &patience);
    let connected = |value: &str| metric(&server, "comporta_xds_connected") == value;
    wait_until("it is connected", || connected("1"));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(way.connections(), 1, "a server that is there is left alone");

    way.set(Mode::BlackHole);
    wait_until("that is noticed", || connected("0"));
    way.set(Mode::Forward);
    wait_until("it is connected again", || connected("1"));
}

#[tokio::test]
async fn it_starts_without_a_server() {
    let ads = Ads::start();
    ads.publish("1", &[rules("d", 100)]);
    let mut way = Proxy::start(ads.addr.port());
    way.set(Mode::Refuse);
    let address = format!("127.0.0.1:{}", way.port());
    let patient = follow(&address, &[]);
    let hasty = follow(&address, &["--xds-start-without-rules"]);

    wait_until("one is ready", || is_ready(&hasty));
    assert!(!is_ready(&patient));
    for server in [&hasty, &patient] {
        let mut client = server.client().await;
        let refusal = client.ask(request(&[&[("k", "x")]])).await.unwrap_err();
        assert_eq!(refusal.code(), Code::Unavailable);
        let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "x"}]}]}"#;
        let answer = server.post_json(body);
        assert_eq!(answer, (503, "no rules have come yet\n".to_owned()));
        assert_eq!(metric(server, "comporta_xds_connected"), "0");
    }

    way.set(Mode::Forward);
    for server in [&hasty, &patient] {
        wait_until("there are rules", || {
            metric(server, "comporta_config_rules") == "1"
        });
        wait_until("it is ready", || is_ready(server));
        assert_eq!(ask(&mut server.client().await).await, (1, 100, 99));
    }
}

#[test]
fn the_server_sees_who_asks() {
    let ads = Ads::start();
    let flags = [
        "--xds-node-id",
        "envoy-ratelimit",
        "--xds-node-metadata",
        "zone=a,url=http://x/?y=z",
        "--xds-headers",
        "authorization=Bearer a=b,x-team=edge",
    ];
    let _server = follow(&ads.addr.to_string(), &flags);
    wait_until("it asks", || ads.seen().len() == 1);
    let seen = ads.seen().remove(0);
    let header = |name| seen.headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!(header("authorization"), Some("Bearer a=b"));
    assert_eq!(header("x-team"), Some("edge"));
    let node = seen.request.node.unwrap();
    assert_eq!(node.id, "envoy-ratelimit");
    let text = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let metadata = [
        ("zone".to_owned(), text("a")),
        ("url".to_owned(), text("http://x/?y=z")),
    ];
    assert_eq!(node.metadata.unwrap().fields, metadata.into());
    assert_eq!(node.user_agent_name, "comporta");
    let version = UserAgentVersionType::UserAgentVersion(env!("CARGO_PKG_VERSION").to_owned());
    assert_eq!(node.user_agent_version_type, Some(version));
}

#[test]
fn a_header_that_is_none_is_not_repeated() {
    for wrong in [
        "secret",
        "=secret",
        "x y=secret",
        "x=sécret",
        "x-bin=secret",
    ] {
        let headers = format!("x-team=edge,{wrong}");
        let flags = ["--xds-server", "localhost:1", "--xds-headers", &headers];
        let output = comporta().args(flags).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{said}");
        let complaint = "--xds-headers: number 2 is no header; write name=value, in ASCII\n";
        assert!(said.ends_with(complaint), "{said}");
        assert!(
            !said.contains("secret") && !said.contains("sécret"),
            "{said}"
        );
    }
}

/// Both sides show a certificate, and files are read for each connection.
#[test]
fn tls_is_mutual_and_certificates_can_be_renewed() {
    let right = certificates();
    let ads = Ads::start_with(&right);
    ads.publish("1", &[rules("d", 100)]);
    let mine = tempfile::tempdir().unwrap();
    let path = |name: &str| mine.path().join(name).to_str().unwrap().to_owned();
    let put = |name: &str, file: &std::path::Path| {
        std::fs::copy(file, path(name)).unwrap();
    };
    let (certificate, key) = right.client();
    let wrong = certificates();
    put("ca", &wrong.ca());
    put("certificate", &wrong.client().0);
    put("key", &wrong.client().1);
    let address = ads.addr.to_string();
    let (ca, cert, cert_key) = (path("ca"), path("certificate"), path("key"));
    let flags = [
        "--xds-tls",
        "--xds-tls-ca",
        &ca,
        "--xds-tls-cert",
        &cert,
        "--xds-tls-key",
        &cert_key,
    ];
    let server = follow(&address, &flags);
    let misled = follow(
        &address,
        &[&flags[..], &["--xds-tls-server-name", "elsewhere"]].concat(),
    );
    let named = follow(
        &address,
        &[&flags[..], &["--xds-tls-server-name", "localhost"]].concat(),
    );
    std::thread::sleep(Duration::from_millis(500));
    // We trust the server now, but it doesn't trust us.
    put("ca", &right.ca());
    std::thread::sleep(Duration::from_secs(2));
    for server in [&server, &misled, &named] {
        assert_eq!(metric(server, "comporta_xds_connected"), "0");
    }
    assert_eq!(ads.seen().len(), 0);

    put("certificate", &certificate);
    put("key", &key);
    for server in [&server, &named] {
        wait_until("it is ready", || is_ready(server));
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(!is_ready(&misled));
    let without_key = follow(&address, &["--xds-tls", "--xds-tls-ca", &ca]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(!is_ready(&without_key));
}

#[tokio::test]
async fn a_set_beyond_the_bound_is_not_taken() {
    let ads = Ads::start();
    ads.publish("1", &[rules("d", 100)]);
    let server = follow(&ads.addr.to_string(), &["--xds-message-bytes-max", "2000"]);
    wait_until("it is ready", || is_ready(&server));
    let many = (0..200).map(|number| leaf("k", &format!("v{number}"), policy(DAY, 1)));
    ads.publish("2", &[resource("d", many.collect())]);
    wait_until("it is dropped", || {
        metric(&server, "comporta_xds_connected") == "0"
    });
    assert_eq!(ask(&mut server.client().await).await, (1, 100, 99));
    ads.publish("3", &[rules("d", 200)]);
    wait_until("the rules are changed", || {
        rlconfig(&server).contains("changed 1 times since the start")
    });
}

#[test]
fn a_tree_that_is_too_deep_is_refused() {
    let ads = Ads::start();
    let nested = |depth| {
        (0..depth).fold(leaf("k", "", policy(DAY, 1)), |inner, _| Descriptor {
            descriptors: vec![inner],
            ..leaf("k", "", None)
        })
    };
    ads.publish("1", &[resource("d", vec![nested(48)])]);
    let server = follow(&ads.addr.to_string(), &[]);
    wait_until("it is ready", || is_ready(&server));
    for (version, depth, complaint) in [
        (
            "2",
            60,
            "d/rules: this is nested more than 100 levels deep\n",
        ),
        (
            "3",
            110,
            "resource 1: can't be decoded: failed to decode Protobuf message: ",
        ),
    ] {
        let refused = ads.seen().len() + 1;
        ads.publish(version, &[resource("d", vec![nested(depth)])]);
        wait_until("it is refused", || ads.seen().len() >= refused);
        wait_until("that is said", || {
            let (.., said) = acknowledged(&ads).pop().unwrap();
            said.is_some_and(|said| said.starts_with(complaint))
        });
    }
}

/// Whatever a resource can say, it says as a file would.
#[tokio::test]
async fn a_resource_means_what_the_file_means() {
    let file = "
domain: d
failure_mode: open
descriptors:
  - key: tenant
    value: acme*
    rate_limit: {unit: week, requests_per_unit: 9, name: weekly}
    detailed_metric: true
    metadata: {plan: gold, limits: [1, 2.5, ~, true, {a: b}]}
  - key: tenant
    rate_limit: {unit: second, requests_per_unit: 0}
    shadow_mode: true
  - key: tenant
    value: free
    rate_limit: {unlimited: true, replaces: [{name: weekly}]}
  - key: path
    value: /a_b:c/*
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 4294967295}
        quota_mode: true
";
    let kind = |kind| Value { kind: Some(kind) };
    let inner = Struct {
        fields: [("a".to_owned(), kind(Kind::StringValue("b".to_owned())))].into(),
    };
    let list = [
        Kind::NumberValue(1.0),
        Kind::NumberValue(2.5),
        Kind::NullValue(0),
        Kind::BoolValue(true),
        Kind::StructValue(inner),
    ];
    let list = envoy_types::pb::google::protobuf::ListValue {
        values: list.map(kind).into(),
    };
    let plan = kind(Kind::StringValue("gold".to_owned()));
    let fields = [
        ("plan".to_owned(), plan),
        ("limits".to_owned(), kind(Kind::ListValue(list))),
    ];
    let weekly = Policy {
        name: "weekly".to_owned(),
        ..policy(WEEK, 9)
    };
    let free = Policy {
        unlimited: true,
        replaces: vec![Replace {
            name: "weekly".to_owned(),
        }],
        ..Policy::default()
    };
    let descriptors = vec![
        Descriptor {
            detailed_metric: true,
            metadata: Some(Struct {
                fields: fields.into(),
            }),
            ..leaf("tenant", "acme*", Some(weekly))
        },
        Descriptor {
            shadow_mode: true,
            ..leaf("tenant", "", policy(SECOND, 0))
        },
        leaf("tenant", "free", Some(free)),
        Descriptor {
            descriptors: vec![Descriptor {
                quota_mode: true,
                ..leaf("user", "", policy(HOUR, u32::MAX))
            }],
            ..leaf("path", "/a_b:c/*", None)
        },
    ];
    let ads = Ads::start();
    ads.publish("1", &[resource("d", descriptors)]);
    let by_file = start(file);
    let by_xds = follow(&ads.addr.to_string(), &["--failure-mode", "open"]);
    wait_until("it is ready", || is_ready(&by_xds));

    // All but the failure mode and the place.
    let table = |server: &Running| {
        let lines = rlconfig(server);
        let columns = |line: &str| {
            let columns = line.split("  ").map(str::trim);
            let columns = columns.filter(|column| !column.is_empty()).take(4);
            columns.map(str::to_owned).collect::<Vec<_>>()
        };
        let lines = lines.lines().filter(|line| !line.starts_with('#'));
        lines.map(columns).collect::<Vec<_>>()
    };
    assert_eq!(table(&by_xds), table(&by_file));
    let requests: [&[&[(&str, &str)]]; 6] = [
        &[&[("tenant", "acme-1")]],
        &[&[("tenant", "acme-1")], &[("tenant", "free")]],
        &[&[("tenant", "free")]],
        &[&[("tenant", "other")]],
        &[&[("path", "/a_b:c/d"), ("user", "u")]],
        &[&[("path", "/a_b:c/d")]],
    ];
    let (mut one, mut other) = (by_file.client().await, by_xds.client().await);
    for descriptors in requests {
        let asked = request(descriptors);
        let (by_file, by_xds) = (one.ask(asked.clone()).await, other.ask(asked).await);
        assert_eq!(by_xds.unwrap(), by_file.unwrap(), "{descriptors:?}");
    }
    let series = "{domain=\"d\",rule=\"tenant=acme-1\"";
    for server in [&by_file, &by_xds] {
        let (_, metrics) = get(server.ports.http, "/metrics");
        assert!(metrics.contains(series), "{metrics}");
    }
}

/// A tree as Envoy Gateway makes it of a policy with three rules, and what its Envoys ask.
#[tokio::test]
async fn envoy_gateways_trees_are_decided() {
    let node = |key: &str, value: &str, shadow_mode, descriptors| Descriptor {
        descriptors,
        shadow_mode,
        ..leaf(key, value, None)
    };
    let route = "httproute/default/shop/rule/0/match/0/www_example_com";
    let chains = vec![
        // A header's value, a method, and each client of a network for itself.
        node(
            "rule-0-match-0",
            "rule-0-match-0",
            false,
            vec![node(
                "rule-0-method",
                "rule-0-method",
                false,
                vec![node(
                    "masked_remote_address",
                    "192.168.0.0/16",
                    false,
                    vec![leaf("remote_address", "", policy(HOUR, 3))],
                )],
            )],
        ),
        // Each value of a header for itself, in shadow mode.
        Descriptor {
            shadow_mode: true,
            ..leaf("rule-1-match-0", "", policy(WEEK, 1))
        },
        // Everything.
        leaf("rule-2-match--1", "rule-2-match--1", policy(SECOND, 2)),
    ];
    let tree = node(route, route, true, chains);
    let domain = "default/eg/http";
    let ads = Ads::start();
    ads.publish(
        "1",
        &[RateLimitConfig {
            name: domain.to_owned(),
            ..resource(domain, vec![tree])
        }],
    );
    let flags = [
        "--xds-node-id",
        "envoy-ratelimit",
        "--xds-start-without-rules",
    ];
    let server = follow(&ads.addr.to_string(), &flags);
    wait_until("there are rules", || {
        metric(&server, "comporta_config_rules") == "3"
    });

    let mut client = server.client().await;
    let chain = |entries: &[(&str, &str)]| descriptor(&[&[(route, route)], entries].concat());
    let of_network = |address| {
        chain(&[
            ("rule-0-match-0", "rule-0-match-0"),
            ("rule-0-method", "rule-0-method"),
            ("masked_remote_address", "192.168.0.0/16"),
            ("remote_address", address),
        ])
    };
    let mut decide = async |descriptor| {
        let mut asked = request(&[]);
        domain.clone_into(&mut asked.domain);
        asked.descriptors = vec![descriptor];
        let answer = client.ask(asked).await.unwrap();
        let status = answer.statuses[0].clone();
        let limit = status
            .current_limit
            .map_or(0, |limit| limit.requests_per_unit);
        let reset = status.duration_until_reset.map_or(0, |reset| reset.seconds);
        (answer.overall_code, limit, status.limit_remaining, reset)
    };

    // A check first, which costs nothing; what the answer was worth is charged when the stream is done.
    let checked = decide(with_hits(of_network("192.168.0.7"), 0)).await;
    assert_eq!(checked, (1, 3, 3, 3_600));
    assert_eq!(
        decide(with_hits(of_network("192.168.0.7"), 2)).await,
        (1, 3, 1, 3_600)
    );
    assert_eq!(decide(of_network("192.168.0.7")).await, (1, 3, 0, 3_600));
    assert_eq!(decide(of_network("192.168.0.7")).await, (2, 3, 0, 3_600));
    assert_eq!(decide(of_network("192.168.0.8")).await, (1, 3, 2, 3_600));

    let header = |value| chain(&[("rule-1-match-0", value)]);
    assert_eq!(decide(header("a")).await.0, 1);
    assert_eq!(decide(header("a")).await.0, 1, "in shadow mode");

    let everything = || chain(&[("rule-2-match--1", "rule-2-match--1")]);
    assert_eq!(decide(everything()).await, (1, 2, 1, 1));
    assert_eq!(decide(everything()).await, (1, 2, 0, 1));
    assert_eq!(decide(everything()).await, (2, 2, 0, 1));

    // No limit is where the chain doesn't end.
    assert_eq!(decide(chain(&[])).await, (1, 0, 0, 0));
}
