//! In the place of envoyproxy/ratelimit: its variables, its name, its defaults.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use comporta::settings::envoyproxy::{Translation, is_meant, translate};
use comporta::telemetry::LEGACY_METRICS;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tempfile::TempDir;
use tonic::Code as Status;

use crate::support::ads::{Ads, Descriptor, Policy, RateLimitConfig};
use crate::support::certificates::certificates;
use crate::support::http::get;
use crate::support::process::{Process, spawn};
use crate::support::redis::Redis;
use crate::support::server::{connect, connect_tls, request};
use crate::support::wait_until;

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: once
    rate_limit: {unit: hour, requests_per_unit: 1}
";

fn translated(variables: &[(&str, &str)]) -> Translation {
    translate(&|name| {
        let mut found = variables.iter().filter(|(other, _)| *other == name);
        found.next().map(|(_, value)| (*value).to_owned())
    })
}

/// What is said whatever is set.
const ALWAYS: [&str; 5] = [
    "--config=/srv/runtime_data/current/config",
    "--failure-mode=error",
    "--charge-denied",
    "--headers=none",
    "--ratelimit-metrics",
];

#[test]
fn each_variable_in_our_settings() {
    for (variables, expected) in [
        ("", ""),
        ("PORT=9000", "--http-addr=0.0.0.0:9000"),
        ("GRPC_HOST=::1 GRPC_PORT=1", "--grpc-addr=[::1]:1"),
        ("DEBUG_PORT=1", "--debug-addr=127.0.0.1:1"),
        ("DEBUG_HOST=0.0.0.0", "--debug-addr=0.0.0.0:6070"),
        ("GRPC_UDS=/s", "--grpc-socket=/s"),
        (
            "GRPC_MAX_CONNECTION_AGE=1h30m",
            "--grpc-connection-age-max=5400000000us",
        ),
        ("GRPC_SERVER_TLS_CERT=/c", ""),
        (
            "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=/c GRPC_SERVER_TLS_KEY=/k \
             GRPC_CLIENT_TLS_CACERT=/a GRPC_CLIENT_TLS_SAN=edge",
            "--grpc-tls-cert=/c --grpc-tls-key=/k --grpc-client-ca=/a --grpc-client-names=edge",
        ),
        ("MERGE_DOMAIN_CONFIG=1", "--merge-domains"),
        ("MERGE_DOMAIN_CONFIG=false", ""),
        ("SHADOW_MODE=t", "--enforcement=shadow"),
        ("QUOTA_MODE=TRUE", "--enforcement=quota"),
        ("RESPONSE_DYNAMIC_METADATA=true", "--describe-requests"),
        (
            "REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379",
            "--store=redis://redis:6379",
        ),
        ("REDIS_URL=/s.sock", "--store=redis+unix:///s.sock"),
        (
            "REDIS_URL=redis://u:p@r:1/2 REDIS_TLS=true",
            "--store=rediss://u:p@r:1/2",
        ),
        (
            "REDIS_TYPE=cluster REDIS_URL=a:1,redis://b:2 REDIS_AUTH=secret",
            "--store=redis-cluster://a:1,b:2 --redis-password=secret",
        ),
        (
            "REDIS_TYPE=SENTINEL REDIS_URL=primary,a:1,b:2 REDIS_AUTH=user:se:cret REDIS_SENTINEL_AUTH=other",
            "--store=redis-sentinel://a:1,b:2/primary --redis-user=user --redis-password=se:cret \
             --redis-sentinel-password=other",
        ),
        (
            "CACHE_KEY_PREFIX=p REDIS_TIMEOUT=2s",
            "--redis-prefix=p --redis-connect-timeout=2000000us",
        ),
        (
            "REDIS_TLS_CACERT=/a REDIS_TLS_CLIENT_CERT=/c",
            "--redis-tls-ca=/a --redis-tls-cert=/c",
        ),
        ("LOG_LEVEL=WARN", "--log-level=warn"),
        ("LOG_FORMAT=json", "--log-format=json"),
        (
            "USE_PROMETHEUS=true PROMETHEUS_ADDR=:19001",
            "--metrics-addr=0.0.0.0:19001",
        ),
        (
            "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 \
             CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit CONFIG_GRPC_XDS_SERVER_USE_TLS=true \
             CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/c CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/k \
             CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/a FORCE_START_WITHOUT_INITIAL_CONFIG=true",
            "--xds-server=envoy-gateway:18001 --xds-node-id=envoy-ratelimit \
             --xds-start-without-rules --xds-tls --xds-tls-ca=/a --xds-tls-cert=/c --xds-tls-key=/k",
        ),
        (
            "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a:b,c:d \
             CONFIG_GRPC_XDS_NODE_METADATA=x=y,z=1 XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=9",
            "--xds-server=localhost:18000 --xds-node-id=default --xds-node-metadata=x=y,z=1 \
             --xds-headers=a=b,c=d --xds-message-bytes-max=9",
        ),
    ] {
        let set = variables
            .split_whitespace()
            .map(|set| set.split_once('=').unwrap());
        let made = translated(&set.collect::<Vec<_>>());
        let beyond = |flag: &&String| !ALWAYS.contains(&flag.as_str());
        let flags: Vec<_> = made.flags.iter().filter(beyond).collect();
        let expected: Vec<_> = expected.split_whitespace().collect();
        assert_eq!(flags, expected, "{variables}");
        assert!(made.errors.is_empty(), "{variables}: {:?}", made.errors);
    }
    assert_eq!(translated(&[]).flags, ALWAYS);
}

#[test]
fn files_are_where_they_were() {
    for (variables, path) in [
        (
            [
                ("RUNTIME_ROOT", "/data"),
                ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ],
            "--config=/data/ratelimit/config",
        ),
        (
            [("RUNTIME_ROOT", "/data"), ("RUNTIME_APPDIRECTORY", "rules")],
            "--config=/data/rules",
        ),
    ] {
        assert!(translated(&variables).flags.contains(&path.to_owned()));
    }
}

#[test]
fn what_it_changes_when_it_is_asked_for() {
    let flags = translated(&[
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_RESET_HEADER", "X-Reset"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
    ])
    .flags;
    let names = "--header-names=RateLimit-Limit,RateLimit-Remaining,X-Reset";
    assert_eq!(
        flags[1..],
        ["--failure-mode=error", names, "--ratelimit-metrics"]
    );
}

#[test]
fn what_has_no_meaning_is_listed_if_it_is_wanted() {
    let made = translated(&[
        ("USE_STATSD", "false"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
        ("REDIS_POOL_SIZE", "20"),
        ("REDIS_PERSECOND", "true"),
    ]);
    assert_eq!(made.without_meaning, ["REDIS_PERSECOND", "REDIS_POOL_SIZE"]);
}

#[test]
fn what_makes_no_sense_is_explained() {
    for (variables, error) in [
        (
            &[("BACKEND_TYPE", "memcache")][..],
            "BACKEND_TYPE is `memcache`; write redis; there is no other backend",
        ),
        (
            &[("REDIS_URL", "a:1"), ("REDIS_TYPE", "many")],
            "REDIS_TYPE is `many`; write SINGLE, SENTINEL or CLUSTER",
        ),
        (
            &[("REDIS_URL", "primary"), ("REDIS_TYPE", "sentinel")],
            "REDIS_URL is not what REDIS_TYPE `sentinel` needs; write primary,sentinel:port,sentinel:port",
        ),
        (
            &[("REDIS_TIMEOUT", "10")],
            "REDIS_TIMEOUT is `10`; write a time such as 10ms, 5s or 1h30m",
        ),
        (
            &[("LOG_LEVEL", "loud")],
            "LOG_LEVEL is `loud`; write debug, info, warn or error",
        ),
    ] {
        assert_eq!(translated(variables).errors, [error]);
    }
}

#[test]
fn a_name_or_a_variable_turns_it_on() {
    let nothing = |_: &str| None;
    assert!(is_meant("/bin/ratelimit".as_ref(), &nothing));
    assert!(!is_meant("/bin/comporta".as_ref(), &nothing));
    let only = |set: &'static str| move |name: &str| (name == set).then(|| "x".to_owned());
    assert!(is_meant("comporta".as_ref(), &only("RUNTIME_ROOT")));
    // Many programs have these.
    for common in ["PORT", "HOST", "LOG_LEVEL", "REDIS_URL"] {
        assert!(!is_meant("comporta".as_ref(), &only(common)), "{common}");
    }
}

/// The program under its other name, with rules where Kubernetes samples have them.
struct Deployed {
    folder: TempDir,
    command: Command,
}

fn deployed() -> Deployed {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("data/ratelimit/config");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.yaml"), RULES).unwrap();
    let program = folder.path().join("ratelimit");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_comporta"), &program).unwrap();
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("RUNTIME_ROOT", folder.path().join("data"))
        .env("RUNTIME_SUBDIRECTORY", "ratelimit")
        .env("RUNTIME_WATCH_ROOT", "false")
        .env("RUNTIME_IGNOREDOTFILES", "true")
        .env("LOG_FORMAT", "json")
        .env("LOG_LEVEL", "info");
    for name in ["HOST", "GRPC_HOST", "DEBUG_HOST"] {
        command.env(name, "localhost");
    }
    for name in ["PORT", "GRPC_PORT", "DEBUG_PORT"] {
        command.env(name, "0");
    }
    Deployed { folder, command }
}

impl Deployed {
    fn with(mut self, variables: &[(&str, &str)]) -> (Process, TempDir) {
        self.command.envs(variables.iter().copied());
        (spawn(&mut self.command), self.folder)
    }
}

/// Denied hits count, there are no headers, and a store that is gone is the proxy's business.
#[tokio::test]
async fn its_defaults_hold() {
    let mut redis = Redis::start();
    let url = format!("127.0.0.1:{}", redis.port());
    let (process, _folder) = deployed().with(&[
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &url),
        ("REDIS_OP_TIMEOUT", "5s"),
        ("USE_STATSD", "false"),
        ("REDIS_POOL_SIZE", "10"),
    ]);
    let warnings = process.lines("these variables have no meaning here");
    assert_eq!(
        warnings[0]["variables"],
        "REDIS_POOL_SIZE, RUNTIME_IGNOREDOTFILES"
    );

    let mut client = connect(process.grpc).await;
    let both = || request(&[&[("k", "x")], &[("once", "x")]]);
    let first = client.ask(both()).await.unwrap();
    assert_eq!(first.overall_code, Code::Ok as i32);
    assert!(first.response_headers_to_add.is_empty());
    // Denied by `once`, and yet a hit for `k`.
    let second = client.ask(both()).await.unwrap();
    assert_eq!(second.overall_code, Code::OverLimit as i32);
    assert!(second.response_headers_to_add.is_empty());
    let third = client.ask(request(&[&[("k", "x")]])).await.unwrap();
    assert_eq!(third.overall_code, Code::OverLimit as i32);

    redis.kill9();
    let gone = client.ask(request(&[&[("k", "y")]])).await.unwrap_err();
    assert_eq!(gone.code(), Status::Unavailable, "{gone}");
}

#[tokio::test]
async fn what_was_off_can_be_on() {
    let metrics = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (process, _folder) = deployed().with(&[
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-Limit"),
        ("RESPONSE_DYNAMIC_METADATA", "true"),
        ("SHADOW_MODE", "true"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", &metrics.to_string()),
    ]);
    let mut client = connect(process.grpc).await;
    for _ in 0..3 {
        let answer = client.ask(request(&[&[("once", "x")]])).await.unwrap();
        assert_eq!(answer.overall_code, Code::Ok as i32, "shadow mode");
        let metadata = format!("{:?}", answer.dynamic_metadata.unwrap());
        assert!(metadata.contains("once=x"), "{metadata}");
    }
    let (status, text) = get(metrics, "/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("comporta_build_info"));
    assert_eq!(get(metrics, "/json").0, 404);
}

#[tokio::test]
async fn headers_have_the_names_that_they_are_given() {
    let (process, _folder) = deployed().with(&[
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-Limit"),
    ]);
    let mut client = connect(process.grpc).await;
    let answer = client.ask(request(&[&[("k", "x")]])).await.unwrap();
    let headers = answer.response_headers_to_add.into_iter();
    let headers: Vec<_> = headers.map(|header| (header.key, header.value)).collect();
    let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["X-Limit", "RateLimit-Remaining", "RateLimit-Reset"]);
    assert_eq!(headers[0].1, "2");
}

/// The container as Envoy Gateway runs it, variable by variable: rules come over xDS, everyone shows a
/// certificate, and it is ready before there are rules.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_gateway_runs_it() {
    let files = certificates();
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    let ((certificate, key), (client_certificate, client_key)) = (files.server(), files.client());
    let (certificate, key, ca) = (path(certificate), path(key), path(files.ca()));
    let (client_certificate, client_key) = (path(client_certificate), path(client_key));
    let ads = Ads::start_with(&files);
    let redis = Redis::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = closed.local_addr().unwrap();
    drop(closed);
    let mut deployed = deployed();
    for name in [
        "RUNTIME_ROOT",
        "RUNTIME_SUBDIRECTORY",
        "RUNTIME_WATCH_ROOT",
        "RUNTIME_IGNOREDOTFILES",
    ] {
        deployed.command.env_remove(name);
    }
    let (process, _folder) = deployed.with(&[
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        (
            "CONFIG_GRPC_XDS_SERVER_URL",
            &format!("localhost:{}", ads.addr.port()),
        ),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &client_certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &client_key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_SERVER_TLS_CA_CERT", &ca),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &format!("127.0.0.1:{}", redis.port())),
        ("REDIS_OP_TIMEOUT", "5s"),
        ("USE_STATSD", "false"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", &metrics.to_string()),
    ]);
    let mut client = connect_tls(process.grpc, &files, Some(&files))
        .await
        .unwrap();
    let ask = || request(&[&[("route", "route-1"), ("rule-0-match--1", "rule-0-match--1")]]);
    let before = client.ask(ask()).await.unwrap_err();
    assert_eq!(before.code(), Status::Unavailable, "{before}");

    let rule = Descriptor {
        key: "rule-0-match--1".into(),
        value: "rule-0-match--1".into(),
        rate_limit: Some(Policy {
            unit: 3,
            requests_per_unit: 1,
            ..Policy::default()
        }),
        ..Descriptor::default()
    };
    let route = Descriptor {
        key: "route".into(),
        value: "route-1".into(),
        descriptors: vec![rule],
        ..Descriptor::default()
    };
    ads.publish(
        "1",
        &[RateLimitConfig {
            name: "d".into(),
            domain: "d".into(),
            descriptors: vec![route],
        }],
    );
    let loaded = "comporta_config_rules 1\n";
    wait_until("the rules are in force", || {
        get(metrics, "/metrics").1.contains(loaded)
    });
    let codes = [(); 2].map(|()| ask());
    for (ask, code) in codes.into_iter().zip([Code::Ok, Code::OverLimit]) {
        assert_eq!(client.ask(ask).await.unwrap().overall_code, code as i32);
    }
    assert_eq!(
        ads.seen()[0].request.node.as_ref().unwrap().id,
        "envoy-ratelimit"
    );
    if let Some(mut stranger) = connect_tls(process.grpc, &files, None).await {
        assert!(
            stranger.ask(ask()).await.is_err(),
            "it shows no certificate"
        );
    }
}

/// Ours come before theirs: the flag, and the variable.
#[tokio::test]
async fn our_own_settings_win() {
    let mut deployed = deployed();
    deployed.command.args(["serve", "--headers", "ratelimit"]);
    let (process, _folder) = deployed.with(&[("COMPORTA_FAILURE_MODE", "closed")]);
    let mut client = connect(process.grpc).await;
    let answer = client.ask(request(&[&[("k", "x")]])).await.unwrap();
    assert_eq!(answer.response_headers_to_add.len(), 3);
    let domains = process.lines("domain loaded");
    assert_eq!(domains[0]["failure_mode"], "closed");
}

#[test]
fn every_metric_is_in_the_document() {
    let document = std::fs::read_to_string("COMPATIBILITY.md").unwrap();
    for (name, _) in LEGACY_METRICS {
        assert!(document.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn every_variable_is_in_the_table() {
    let table = std::fs::read_to_string("COMPATIBILITY.md").unwrap();
    let source = std::fs::read_to_string(Path::new("src/settings/envoyproxy.rs")).unwrap();
    let quoted = source.split('"').skip(1).step_by(2);
    let is_variable = |text: &&str| {
        text.len() > 3
            && text.starts_with(|c: char| c.is_ascii_uppercase())
            && text
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    };
    let mut count = 0;
    for name in quoted.filter(is_variable) {
        count += 1;
        let is_listed = table.contains(&format!("`{name}`")) || ["FALSE", "TRUE"].contains(&name);
        let is_value = ["CLUSTER", "FILE", "SENTINEL", "SINGLE"].contains(&name);
        assert!(is_listed || is_value, "COMPATIBILITY.md lacks {name}");
    }
    assert!(count > 80, "{count}");
}
