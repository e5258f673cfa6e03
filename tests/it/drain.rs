//! How instances go, and others take their place, without anybody noticing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::http::{get, send};
use crate::support::process::{Process, rules_file, serve};
use crate::support::server::{connect, request};
use crate::support::{envoy, upstream, wait_until};

const RULES: &str = "
domain: d
failure_mode: open
descriptors:
  - key: k
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: leaky_bucket, queue: 5}
  - key: often
    rate_limit: {unit: hour, requests_per_unit: 1000}
";

/// The health flips first; the call that is being held gets its answer; then the process ends.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_drains() {
    let rules = rules_file(RULES);
    let mut process = serve(rules.path(), &["--drain-delay", "0s"]);
    let mut client = connect(process.grpc).await;
    let ask = request(&[&[("k", "x")]]);
    client.ask(ask.clone()).await.unwrap();
    let mut held_client = client.clone();
    let held = tokio::spawn(async move { held_client.ask(ask).await });
    wait_until("a reply is held", || {
        get(process.http, "/metrics")
            .1
            .contains("comporta_held_replies 1")
    });
    process.terminate();
    let answer = held.await.unwrap().expect("a held call ends well");
    assert_eq!(answer.overall_code, 1);
    assert_eq!(process.wait().code(), Some(0));
}

/// Not ready any more, but whoever still comes is served, also over a new connection.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_first_waits_until_callers_have_noticed() {
    let rules = rules_file(RULES);
    let mut process = serve(rules.path(), &["--drain-delay", "3s"]);
    let ask = || request(&[&[("often", "x")]]);
    let mut client = connect(process.grpc).await;
    client.ask(ask()).await.unwrap();
    process.terminate();
    wait_until("it isn't ready any more", || !process.is_ready());
    client.ask(ask()).await.unwrap();
    connect(process.grpc).await.ask(ask()).await.unwrap();
    assert_eq!(process.wait().code(), Some(0));
}

/// Two instances are replaced one after the other, under load. Envoy asks for their health, as
/// Kubernetes does, and gets a decision for every single request.
#[test]
fn a_rolling_restart_under_a_real_envoy() {
    let rules = rules_file(
        "
domain: api
failure_mode: closed
descriptors:
  - key: remote_address
    rate_limit: {unit: hour, requests_per_unit: 1000000}
",
    );
    let restart = |at: Option<&Process>| {
        let addr = at.map_or("127.0.0.1:0".to_owned(), |old| old.grpc.to_string());
        let flags = ["--drain-delay", "2s", "--grpc-addr", &addr];
        serve(rules.path(), &flags)
    };
    let upstream = upstream::start();
    let mut replicas = [restart(None), restart(None)];
    let envoy = envoy::start_over(upstream.addr, &[replicas[0].grpc, replicas[1].grpc]);
    wait_until("Envoy has seen both healthy", || {
        envoy.stat("cluster.comporta.membership_healthy") == 2
    });

    let is_over = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicUsize::new(0));
    let ingress = envoy.ingress;
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (is_over, asked) = (is_over.clone(), asked.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(send(ingress, "GET", "/", &[], b"").status, 200);
                    asked.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        })
        .collect();
    for replica in &mut replicas {
        let before = asked.load(Ordering::Relaxed);
        wait_until("there is load", || {
            asked.load(Ordering::Relaxed) > before + 100
        });
        replica.terminate();
        assert_eq!(replica.wait().code(), Some(0));
        let successor = restart(Some(replica));
        *replica = successor;
        wait_until("Envoy has seen both healthy", || {
            envoy.stat("cluster.comporta.membership_healthy") == 2
        });
    }
    is_over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().unwrap();
    }
    let asked = u64::try_from(asked.load(Ordering::Relaxed)).unwrap();
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.ok"), asked);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 0);
    for replica in &replicas {
        let (_, metrics) = get(replica.http, "/metrics");
        let connections = metrics
            .lines()
            .find(|line| line.starts_with("comporta_grpc_connections "));
        assert!(
            connections.is_some_and(|line| !line.ends_with(" 0")),
            "{metrics}"
        );
    }
}
