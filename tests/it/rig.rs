//! That what the other tests stand on holds: real Redis servers, and a proxy that misbehaves.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::certificates::certificates;
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::Redis;
use crate::support::redis::cluster::Cluster;
use crate::support::redis::resp::{Connection, Reply};
use crate::support::redis::sentinel::{NAME, Passwords, Sentinel};
use crate::support::wait_until;

/// Long enough for an answer that comes at once, short enough to wait for one that doesn't.
const A_MOMENT: Duration = Duration::from_millis(300);

fn bulk(text: &str) -> Reply {
    Reply::Bulk(Some(text.as_bytes().to_vec()))
}

fn error(reply: &Reply) -> &str {
    match reply {
        Reply::Error(text) => text,
        other => panic!("not an error: {other:?}"),
    }
}

#[test]
fn replies_of_every_kind_are_understood() {
    let redis = Redis::start();
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    let mut connection = Connection::tcp(redis.port()).unwrap();
    let mut ask = |words: &[&str]| connection.command(words).unwrap();
    ask(&["SET", "k", "a\r\nb"]).expect_ok();
    assert_eq!(ask(&["GET", "k"]), bulk("a\r\nb"));
    assert_eq!(ask(&["GET", "none"]), Reply::Bulk(None));
    assert_eq!(ask(&["INCRBY", "n", "-3"]).int(), -3);
    assert!(error(&ask(&["INCR", "k"])).starts_with("ERR"));
    assert_eq!(
        ask(&["EVAL", "return {1, {}, 'x'}", "0"]).array(),
        [Reply::Int(1), Reply::Array(vec![]), bulk("x")]
    );
    assert_eq!(ask(&["BLPOP", "none", "0.01"]), Reply::Bulk(None));
    assert_eq!(ask(&["HGETALL", "none"]).array(), []);
}

#[test]
fn calls_count_what_the_test_did() {
    let redis = Redis::start_with(&["--maxmemory", "100mb"]);
    assert_eq!(redis.info("memory", "maxmemory"), "104857600");
    assert_eq!((redis.calls("ping"), redis.calls("get")), (0, 0));
    for _ in 0..3 {
        redis.command(&["GET", "k"]);
    }
    assert_eq!(redis.calls("GET"), 3);
    assert!(Connection::unix(&redis.unix_socket()).is_ok());
}

#[test]
fn a_password_is_used() {
    let redis = Redis::start_with(&["--requirepass", "secret"]);
    redis.command(&["SET", "k", "v"]).expect_ok();
    let mut stranger = Connection::tcp(redis.port()).unwrap();
    let reply = stranger.command(&["GET", "k"]).unwrap();
    assert!(error(&reply).starts_with("NOAUTH"));
}

#[test]
fn a_killed_server_comes_back_empty_on_its_port() {
    let mut redis = Redis::start();
    redis.command(&["SET", "k", "v"]).expect_ok();
    redis.command(&["SAVE"]).expect_ok();
    let port = redis.port();
    redis.kill9();
    assert!(redis.try_command(&["PING"]).is_err());
    redis.restart();
    assert_eq!(redis.port(), port);
    let mut connection = Connection::tcp(port).unwrap();
    assert_eq!(connection.command(&["DBSIZE"]).unwrap(), Reply::Int(0));
}

#[test]
fn a_stopped_server_accepts_and_answers_later() {
    let redis = Redis::start();
    redis.stop();
    let mut connection = Connection::tcp(redis.port()).unwrap();
    assert_silent(&mut connection, &["PING"]);
    redis.cont();
    assert_eq!(connection.receive().unwrap().text(), "PONG");
}

fn assert_silent(connection: &mut Connection<std::net::TcpStream>, words: &[&str]) {
    connection.set_patience(A_MOMENT).unwrap();
    let answer = connection.command(words).unwrap_err();
    assert_eq!(answer.kind(), ErrorKind::WouldBlock, "{answer}");
    connection.set_patience(Duration::from_secs(30)).unwrap();
}

#[test]
fn a_cluster_shares_the_slots_and_moves_them() {
    let cluster = Cluster::start(3);
    assert_eq!(cluster.seeds().len(), 3);
    let owners = [0, 5460, 5461, 10921, 10922, 16383].map(|slot| cluster.node_of_slot(slot));
    assert_eq!(owners, [0, 0, 1, 1, 2, 2]);

    let slot = cluster.slot_of_key("{tag}");
    let from = cluster.node_of_slot(slot);
    let to = (from + 1) % 3;
    let node = |index: usize| &cluster.nodes[index];
    // More than one MIGRATE takes.
    let keys: Vec<_> = (0..150).map(|number| format!("{{tag}}{number}")).collect();
    for key in &keys {
        node(from).command(&["SET", key, key]).expect_ok();
    }
    let get = ["GET", keys[0].as_str()];
    let redirection = |kind: &str| format!("{kind} {slot} {}", cluster.seeds()[to]);
    cluster.begin_move(slot, from, to);
    assert_eq!(node(from).command(&get), bulk(&keys[0]));
    let new = node(from).command(&["GET", "{tag}new"]);
    assert_eq!(error(&new), redirection("ASK"));
    cluster.finish_move(slot, from, to);
    assert_eq!(cluster.node_of_slot(slot), to);
    assert_eq!(error(&node(from).command(&get)), redirection("MOVED"));
    for key in &keys {
        assert_eq!(node(to).command(&["GET", key]), bulk(key));
    }
    cluster.move_slot(slot, to, from);
    assert_eq!(node(from).command(&get), bulk(&keys[0]));
}

#[test]
fn a_cluster_without_full_coverage_outlives_a_node() {
    let no_full_coverage = ["--cluster-require-full-coverage", "no"];
    let mut cluster = Cluster::start_with(3, &no_full_coverage);
    cluster.kill_node(0);
    assert!(cluster.nodes[0].try_command(&["PING"]).is_err());
    wait_until("the others notice", || {
        let nodes = cluster.nodes[1].command(&["CLUSTER", "NODES"]).text();
        nodes.contains("master,fail ")
    });
    let key = (0..1000).map(|number| number.to_string()).find(|key| {
        let slot = cluster.slot_of_key(key);
        cluster.node_of_slot(slot) == 1
    });
    cluster.nodes[1]
        .command(&["SET", &key.unwrap(), "v"])
        .expect_ok();
}

#[test]
fn sentinels_elect_the_replica() {
    let mut sentinel = Sentinel::start();
    let [old, new] = [0, 1].map(|index| sentinel.nodes[index].port());
    assert_eq!(sentinel.current_primary(), old);
    sentinel.nodes[0].command(&["SET", "k", "v"]).expect_ok();
    sentinel.wait_for_replica();
    sentinel.failover();
    assert_eq!(sentinel.current_primary(), new);
    assert_eq!(sentinel.nodes[1].command(&["GET", "k"]), bulk("v"));
    sentinel.nodes[1].command(&["SET", "k", "w"]).expect_ok();
    sentinel.revive();
    sentinel.wait_for_replica();
    assert_eq!(sentinel.nodes[0].command(&["GET", "k"]), bulk("w"));
}

#[test]
fn sentinels_with_passwords_elect_the_replica() {
    let mut sentinel = Sentinel::start_with(Passwords {
        redis: "of redis",
        sentinel: "of-sentinel",
    });
    assert_eq!(sentinel.addresses().len(), 3);
    let mut stranger = Connection::tcp(sentinel.sentinels[0].port()).unwrap();
    let reply = stranger.command(&["SENTINEL", "MASTER", NAME]).unwrap();
    assert!(error(&reply).starts_with("NOAUTH"));
    sentinel.failover();
    assert_eq!(sentinel.current_primary(), sentinel.nodes[1].port());
}

#[test]
fn tls_needs_our_authority() {
    let redis = Redis::start_tls(false);
    assert!(redis.url().starts_with("rediss://127.0.0.1:"));
    redis.command(&["SET", "k", "v"]).expect_ok();
    let trusted = redis.certificates();
    for host in ["localhost", "127.0.0.1"] {
        assert!(ping_over_tls(&redis, host, trusted.ca(), None), "{host}");
    }
    assert!(!ping_over_tls(&redis, "elsewhere", trusted.ca(), None));
    assert!(!ping_over_tls(
        &redis,
        "localhost",
        certificates().ca(),
        None
    ));
}

#[test]
fn mutual_tls_needs_a_client_certificate() {
    let redis = Redis::start_tls(true);
    let trusted = redis.certificates();
    let ping = |client| ping_over_tls(&redis, "localhost", trusted.ca(), client);
    assert!(ping(Some(trusted.client())));
    assert!(!ping(None));
    assert!(!ping(Some(certificates().client())));
}

/// Whether it answers to a client that expects this host name.
fn ping_over_tls(
    redis: &Redis,
    host: &str,
    ca: PathBuf,
    client: Option<(PathBuf, PathBuf)>,
) -> bool {
    let mut command = Command::new("openssl");
    let address = format!("127.0.0.1:{}", redis.port());
    command.args(["s_client", "-quiet", "-verify_return_error"]);
    command.args(["-connect", &address]);
    let is_ip = host.starts_with(|c: char| c.is_ascii_digit());
    command.args([
        if is_ip {
            "-verify_ip"
        } else {
            "-verify_hostname"
        },
        host,
    ]);
    command.arg("-CAfile").arg(ca);
    if let Some((certificate, key)) = client {
        command.arg("-cert").arg(certificate).arg("-key").arg(key);
    }
    let pipes = [Stdio::piped(), Stdio::piped(), Stdio::piped()];
    let [stdin, stdout, stderr] = pipes;
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    let mut child = command.spawn().unwrap();
    // It may have ended before it reads.
    let _broken_pipe = child.stdin.as_mut().unwrap().write_all(b"PING\r\nQUIT\r\n");
    let output = child.wait_with_output().unwrap();
    output.stdout == b"+PONG\r\n+OK\r\n"
}

fn proxied() -> (Redis, Proxy) {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    (redis, proxy)
}

#[test]
fn the_proxy_forwards_and_delays() {
    let (redis, mut proxy) = proxied();
    let mut connection = Connection::tcp(proxy.port()).unwrap();
    let big = "x".repeat(1_000_000);
    connection.command(&["SET", "k", &big]).unwrap().expect_ok();
    assert_eq!(connection.command(&["GET", "k"]).unwrap(), bulk(&big));
    proxy.set(Mode::Delay(2 * A_MOMENT));
    assert_silent(&mut connection, &["PING"]);
    assert_eq!(redis.calls("ping"), 1, "only the reply is late");
    assert_eq!(connection.receive().unwrap().text(), "PONG");
    proxy.set(Mode::Delay(Duration::from_secs(60)));
    assert_silent(&mut connection, &["PING"]);
    proxy.set(Mode::Forward);
    assert_eq!(connection.receive().unwrap().text(), "PONG");
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn a_black_hole_swallows() {
    let (redis, mut proxy) = proxied();
    let [mut open, mut idle] = [(); 2].map(|()| Connection::tcp(proxy.port()).unwrap());
    for connection in [&mut open, &mut idle] {
        connection.command(&["PING"]).unwrap();
    }
    proxy.set(Mode::BlackHole);
    let mut new = Connection::tcp(proxy.port()).unwrap();
    assert_silent(&mut open, &["PING"]);
    assert_silent(&mut new, &["PING"]);
    assert_eq!(redis.calls("ping"), 2);
    proxy.set(Mode::Forward);
    assert_silent(&mut open, &["ECHO", "not an answer to PING"]);
    assert_eq!(idle.command(&["PING"]).unwrap().text(), "PONG");
    proxy.set(Mode::BlackHole);
    drop(redis);
    assert_silent(&mut idle, &["PING"]);
    assert_eq!(proxy.connections(), 3);
}

#[test]
fn one_reply_is_cut() {
    let (redis, mut proxy) = proxied();
    let mut connection = Connection::tcp(proxy.port()).unwrap();
    connection.command(&["PING"]).unwrap();
    proxy.set(Mode::CutMidReply);
    let cut = connection.command(&["INCR", "n"]).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(cut.to_string(), ":1\r");
    assert_eq!(redis.command(&["GET", "n"]), bulk("1"), "it was done");
    let mut next = Connection::tcp(proxy.port()).unwrap();
    assert_eq!(next.command(&["INCR", "n"]).unwrap().int(), 2);
}

#[test]
fn a_proxy_that_refuses_opens_again() {
    let (redis, mut proxy) = proxied();
    for round in 1..=3 {
        let mut connection = Connection::tcp(proxy.port()).unwrap();
        assert_eq!(connection.command(&["PING"]).unwrap().text(), "PONG");
        proxy.set(Mode::Refuse);
        assert!(connection.command(&["PING"]).is_err(), "it was closed");
        let refused = Connection::tcp(proxy.port()).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        proxy.set(Mode::Forward);
        assert_eq!(proxy.connections(), round);
    }
    drop(redis);
    let mut connection = Connection::tcp(proxy.port()).unwrap();
    assert!(connection.command(&["PING"]).is_err(), "the target is gone");
}
