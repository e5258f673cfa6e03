//! How callers connect: TLS, names, renewed certificates, a Unix socket, and connections that grow old.

use std::path::Path;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::support::certificates::{Certificates, certificates};
use crate::support::http::{get, send};
use crate::support::process::{comporta, rules_file};
use crate::support::server::{Client, Running, connect_tls, request, start_with};
use crate::support::{envoy, upstream, wait_until};

const RULES: &str = "
domain: d
failure_mode: open
descriptors:
  - key: k
    rate_limit: {unit: hour, requests_per_unit: 1000}
";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server with this certificate, and with more flags.
fn serve(files: &Certificates, flags: &[&str]) -> Running {
    let (certificate, key) = files.server();
    let tls = [
        "--grpc-tls-cert",
        text(&certificate),
        "--grpc-tls-key",
        text(&key),
    ];
    start_with(RULES, &[&tls[..], flags].concat())
}

/// Whether a client that trusts this authority, and shows this certificate, gets an answer.
async fn is_served(
    server: &Running,
    authority: &Certificates,
    shown: Option<&Certificates>,
) -> bool {
    let client = connect_tls(server.ports.grpc, authority, shown).await;
    match client {
        Some(mut client) => client.ask(request(&[&[("k", "x")]])).await.is_ok(),
        None => false,
    }
}

#[tokio::test]
async fn tls() {
    let files = certificates();
    let server = serve(&files, &[]);
    assert!(is_served(&server, &files, None).await);
    assert!(
        !is_served(&server, &certificates(), None).await,
        "another authority"
    );
    let mut plain = Channel::from_shared(format!("http://{}", server.ports.grpc))
        .unwrap()
        .connect()
        .await
        .map(|channel| Client(RateLimitServiceClient::new(channel)));
    if let Ok(client) = &mut plain {
        assert!(client.ask(request(&[&[("k", "x")]])).await.is_err());
    }
    wait_until("it is counted", || {
        let failed = "comporta_grpc_handshakes_failed_total ";
        let (_, metrics) = get(server.ports.http, "/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(failed));
        line.is_some_and(|count| count != "0")
    });
}

#[tokio::test]
async fn callers_show_who_they_are() {
    let files = certificates();
    let ca = files.ca();
    let authority = ["--grpc-client-ca", text(&ca)];
    let strangers = certificates();
    let server = serve(&files, &authority);
    assert!(is_served(&server, &files, Some(&files)).await);
    assert!(!is_served(&server, &files, None).await);
    assert!(!is_served(&server, &files, Some(&strangers)).await);
    for (names, served) in [
        ("edge.example", true),
        ("spiffe://cluster.local/ns/edge/sa/envoy", true),
        ("other.example,edge.example", true),
        ("example", false),
        ("spiffe://cluster.local/ns/edge/sa/other", false),
    ] {
        let flags = [&authority[..], &["--grpc-client-names", names]].concat();
        let server = serve(&files, &flags);
        assert_eq!(
            is_served(&server, &files, Some(&files)).await,
            served,
            "{names}"
        );
    }
}

/// New connections see the new certificate, those that are open stay; one that is wrong changes nothing.
#[tokio::test]
async fn certificates_are_renewed() {
    let (files, renewed) = (certificates(), certificates());
    let server = serve(&files, &[]);
    assert!(is_served(&server, &files, None).await);
    let (certificate, _) = files.server();
    std::fs::write(&certificate, "not one").unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(is_served(&server, &files, None).await);
    files.replace_server(&renewed);
    let mut is_renewed = false;
    for _ in 0..300 {
        is_renewed = is_served(&server, &renewed, None).await;
        if is_renewed {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(is_renewed);
    assert!(!is_served(&server, &files, None).await);
}

#[test]
fn http_over_tls() {
    let files = certificates();
    let (certificate, key) = files.server();
    let flags = [
        "--http-tls-cert",
        text(&certificate),
        "--http-tls-key",
        text(&key),
    ];
    let server = start_with(RULES, &flags);
    // Somebody who connects and says nothing is in nobody's way.
    let _silent = std::net::TcpStream::connect(server.ports.http).unwrap();
    let mut question = std::process::Command::new("python3");
    let script = "
import ssl, sys, urllib.request
port, ca = sys.argv[1:]
print(urllib.request.urlopen(f'https://localhost:{port}/healthcheck', context=ssl.create_default_context(cafile=ca)).read())
";
    let output = question
        .args(["-c", script, &server.ports.http.port().to_string()])
        .arg(files.ca())
        .output()
        .unwrap();
    let (stdout, stderr) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&stdout), "b'OK'\n", "{stderr}");
}

#[test]
fn files_that_are_wrong_are_named() {
    let files = certificates();
    let (certificate, key) = files.server();
    let (_, other_key) = files.client();
    let rules = rules_file(RULES);
    let complaint = |certificate: &Path, key: &Path| {
        let output = comporta()
            .args(["--config", text(rules.path())])
            .args(["--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"])
            .args(["--debug-addr", "127.0.0.1:0", "--log-format", "json"])
            .args([
                "--grpc-tls-cert",
                text(certificate),
                "--grpc-tls-key",
                text(key),
            ])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(64));
        let stderr = String::from_utf8(output.stderr).unwrap();
        stderr.lines().last().unwrap().to_owned()
    };
    let (certificate_path, key_path) = (certificate.display(), key.display());
    assert_eq!(
        complaint(Path::new("/no/such.pem"), &key),
        "TLS: /no/such.pem: No such file or directory (os error 2); write one or more certificates in PEM"
    );
    assert_eq!(
        complaint(&key, &key),
        format!("TLS: {key_path}: no certificate in it; write one or more certificates in PEM")
    );
    assert_eq!(
        complaint(&certificate, &certificate),
        format!("TLS: {certificate_path}: no items found; write a private key in PEM")
    );
    assert_eq!(
        complaint(&certificate, &other_key),
        format!(
            "TLS: {certificate_path} and {}: keys may not be consistent: KeyMismatch",
            other_key.display()
        )
    );
}

async fn over_socket(path: &Path) -> Client {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    Client(RateLimitServiceClient::new(channel))
}

/// Beside the port. A socket that a killed process left is taken over, one in use isn't.
#[tokio::test]
async fn a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("comporta.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = start_with(RULES, &["--grpc-socket", text(&path)]);
    let mut clients = [over_socket(&path).await, server.client().await];
    for (client, remaining) in clients.iter_mut().zip([999, 998]) {
        let answer = client.ask(request(&[&[("k", "x")]])).await.unwrap();
        assert_eq!(answer.statuses[0].limit_remaining, remaining);
    }
    let rules = rules_file(RULES);
    let output = comporta()
        .args(["--config", text(rules.path()), "--grpc-socket", text(&path)])
        .args(["--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"])
        .args(["--debug-addr", "127.0.0.1:0"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let complaint = format!(
        "can't listen on {} for gRPC: address in use",
        path.display()
    );
    assert_eq!(stderr.lines().last(), Some(&*complaint));
    drop(server);
    assert!(!path.exists());
}

/// Envoy opens another connection, and no call fails.
#[test]
fn connections_grow_old() {
    let rules = "
domain: api
failure_mode: open
descriptors:
  - key: remote_address
    rate_limit: {unit: hour, requests_per_unit: 100000}
";
    let server = start_with(rules, &["--grpc-connection-age-max", "200ms"]);
    let upstream = upstream::start();
    let envoy = envoy::start(upstream.addr, server.ports.grpc);
    let mut asked = 0;
    while envoy.stat("cluster.comporta.upstream_cx_total") < 4 {
        assert_eq!(send(envoy.ingress, "GET", "/", &[], b"").status, 200);
        asked += 1;
        assert!(asked < 3_000, "connections stay for ever");
    }
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.ok"), asked);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 0);
}
