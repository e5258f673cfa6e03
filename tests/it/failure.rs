//! A store that fails, in each of its ways: what callers see, and that it heals by itself.
//!
//! With `--nocapture` each test prints how long callers waited; the README's table is made of that.

use std::thread::JoinHandle;
use std::time::Duration;

use comporta::clock::instant;
use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::google::protobuf::value::Kind;
use tonic::{Code, Status};

use crate::support::http::{delete, get, post, send};
use crate::support::process::{self, rules_file};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::Redis;
use crate::support::redis::cluster::Cluster;
use crate::support::redis::sentinel::{NAME, Sentinel};
use crate::support::server::{Client, Running, connect, request, start_with};
use crate::support::wait_until;

const RULES: &str = "
domain: d
failure_mode: open
descriptors:
  - key: open
    rate_limit: {unit: day, requests_per_unit: 1000000}
  - key: closed
    failure_mode: closed
    rate_limit: {unit: day, requests_per_unit: 1000000}
  - key: local
    failure_mode: local
    rate_limit: {unit: day, requests_per_unit: 1000000, algorithm: token_bucket}
  - key: error
    failure_mode: error
    rate_limit: {unit: day, requests_per_unit: 1000000}
  - key: exact
    failure_mode: closed
    rate_limit: {unit: day, requests_per_unit: 20, algorithm: token_bucket}
";

const MODES: [&str; 4] = ["open", "closed", "local", "error"];

/// A server over a Redis, with a proxy between them.
struct Scene {
    name: &'static str,
    redis: Redis,
    proxy: Proxy,
    server: Running,
    client: Client,
    /// Requests to the limit of 20 that passed, whether they were counted or not.
    passed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    Counted,
    /// As the failure mode has it.
    Degraded,
}

impl Scene {
    async fn new(name: &'static str) -> Self {
        Self::with(name, Redis::start()).await
    }

    async fn with(name: &'static str, redis: Redis) -> Self {
        let proxy = Proxy::start(redis.port());
        let store = format!("redis://127.0.0.1:{}", proxy.port());
        let server = start_with(RULES, &["--store", &store, "--denials-max", "0"]);
        let client = server.client().await;
        let mut scene = Self {
            name,
            redis,
            proxy,
            server,
            client,
            passed: 0,
        };
        scene.heals().await;
        // On a busy machine, one of them may come too late.
        for _ in 0..15 {
            if scene.passed < 10 {
                scene.ask_exactly(1).await;
            }
        }
        assert_eq!(scene.passed, 10);
        scene
    }

    /// Asks in every mode; says how long each answer took.
    async fn ask(&mut self) -> [(Answered, Duration); 4] {
        let mut answers = [(Answered::Counted, Duration::ZERO); 4];
        for (mode, answered) in MODES.into_iter().zip(&mut answers) {
            let asked_at = instant();
            let answer = self.client.ask(request(&[&[(mode, "x")]])).await;
            *answered = (judge(mode, &answer), asked_at.elapsed());
        }
        answers
    }

    async fn is_counted(&mut self) -> bool {
        let answers = self.ask().await;
        let is_counted = |(answered, _): &(Answered, _)| *answered == Answered::Counted;
        answers.iter().all(is_counted)
    }

    /// Asks the limit of 20.
    async fn ask_exactly(&mut self, times: u32) {
        for _ in 0..times {
            let answer = self
                .client
                .ask(request(&[&[("exact", "x")]]))
                .await
                .unwrap();
            self.passed += u32::from(answer.overall_code == 1);
        }
    }

    /// Asks for so long as there is a fault; every answer has to be right, and says which they were.
    async fn suffers(&mut self) -> Vec<Answered> {
        let mut answers = Vec::new();
        let mut waits = Vec::new();
        for _ in 0..200 {
            for (answered, wait) in self.ask().await {
                answers.push(answered);
                waits.push(wait);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.ask_exactly(5).await;
        self.report(waits, &answers);
        answers
    }

    #[allow(clippy::print_stdout, reason = "shown only if it is asked for")]
    fn report(&self, mut waits: Vec<Duration>, answers: &[Answered]) {
        waits.sort_unstable();
        let degraded = answers
            .iter()
            .filter(|answer| **answer == Answered::Degraded);
        println!(
            "{}: {} of {} answers degraded; p50 {:?}, p99 {:?}, worst {:?}",
            self.name,
            degraded.count(),
            answers.len(),
            waits[waits.len() / 2],
            waits[waits.len() * 99 / 100],
            waits[waits.len() - 1],
        );
    }

    /// Suffers, with no answer counted.
    async fn suffers_all_along(&mut self) {
        let answers = self.suffers().await;
        let counted = answers
            .iter()
            .filter(|answer| **answer == Answered::Counted);
        assert_eq!(counted.count(), 0, "{}", self.name);
        let breaker = self.metric("comporta_store_breaker_state{");
        assert!(breaker > 0.0, "{}: breaker {breaker}", self.name);
    }

    /// Waits until all is well, which nobody has to see to.
    #[allow(clippy::print_stdout, reason = "shown only if it is asked for")]
    async fn heals(&mut self) {
        let began = instant();
        while !self.is_counted().await {
            assert!(began.elapsed() < Duration::from_secs(30), "{}", self.name);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        println!("{}: healed after {:?}", self.name, began.elapsed());
        let breaker = self.metric("comporta_store_breaker_state{");
        assert!(breaker < 1.0, "{}: breaker {breaker}", self.name);
    }

    /// Heals, and has admitted no more than the limit, beside what the store forgot.
    async fn heals_exactly(mut self, forgotten: u32) {
        self.heals().await;
        self.ask_exactly(40).await;
        assert!(
            self.passed <= 20 + forgotten,
            "{}: {}",
            self.name,
            self.passed
        );
        assert!(self.passed >= 10, "{}: {}", self.name, self.passed);
    }

    /// The sum of the metric's series that begin like this.
    fn metric(&self, start: &str) -> f64 {
        metric(&self.server, start)
    }

    fn degraded_for(&self, reason: &str) -> f64 {
        let (_, metrics) = get(self.server.ports.http, "/metrics");
        let is_one = |line: &&str| {
            line.starts_with("comporta_degraded_total{")
                && line.contains(&format!("reason=\"{reason}\""))
        };
        metrics.lines().filter(is_one).map(value).sum()
    }
}

fn metric(server: &Running, start: &str) -> f64 {
    let (_, metrics) = get(server.ports.http, "/metrics");
    let lines = metrics.lines().filter(|line| line.starts_with(start));
    lines.map(value).sum()
}

fn value(line: &str) -> f64 {
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// The header that says that the store had no part in an answer, and who had.
fn marker(response: &RateLimitResponse) -> Option<&str> {
    let headers = &response.response_headers_to_add;
    let is_marker = |header: &&HeaderValue| header.key.eq_ignore_ascii_case("x-ratelimit-degraded");
    headers
        .iter()
        .find(is_marker)
        .map(|header| header.value.as_str())
}

/// What a client can tell of an answer to a request whose failure mode is `mode`.
#[track_caller]
fn judge(mode: &str, answer: &Result<RateLimitResponse, Status>) -> Answered {
    let response = match answer {
        Ok(response) => response,
        Err(status) => {
            assert_eq!(
                (mode, status.code()),
                ("error", Code::Unavailable),
                "{status}"
            );
            assert!(
                status.message().contains("the failure mode is `error`"),
                "{status}"
            );
            return Answered::Degraded;
        }
    };
    let marker = marker(response);
    let is_counted = response.statuses[0].current_limit.is_some();
    let Some(marker) = marker else {
        assert!(is_counted, "{mode}: {response:?}");
        assert_eq!(response.overall_code, 1, "{mode}: {response:?}");
        return Answered::Counted;
    };
    assert_eq!(marker, mode);
    assert_eq!(is_counted, mode == "local", "{response:?}");
    assert_eq!(response.overall_code, if mode == "closed" { 2 } else { 1 });
    let metadata = &response.dynamic_metadata.as_ref().unwrap().fields;
    assert_eq!(metadata["degraded"].kind, Some(Kind::BoolValue(true)));
    assert_eq!(
        metadata["failure_mode"].kind,
        Some(Kind::StringValue(mode.to_owned()))
    );
    assert!(
        matches!(&metadata["reason"].kind, Some(Kind::StringValue(reason)) if !reason.is_empty())
    );
    Answered::Degraded
}

#[tokio::test]
async fn a_crash() {
    let mut scene = Scene::new("kill -9").await;
    scene.redis.kill9();
    scene.suffers_all_along().await;
    assert!(scene.degraded_for("breaker_open") > 300.0);
    scene.redis.restart();
    scene.heals_exactly(10).await;
}

#[tokio::test]
async fn a_shutdown() {
    let mut scene = Scene::new("SHUTDOWN").await;
    let _closed = scene.redis.try_command(&["SHUTDOWN", "NOSAVE"]);
    scene.suffers_all_along().await;
    scene.redis.restart();
    scene.heals_exactly(10).await;
}

#[tokio::test]
async fn a_stopped_process() {
    let mut scene = Scene::new("SIGSTOP").await;
    scene.redis.stop();
    scene.suffers_all_along().await;
    scene.redis.cont();
    scene.heals_exactly(0).await;
}

#[tokio::test]
async fn a_black_hole() {
    let mut scene = Scene::new("black hole").await;
    scene.proxy.set(Mode::BlackHole);
    scene.suffers_all_along().await;
    scene.proxy.set(Mode::Forward);
    scene.heals_exactly(0).await;
}

#[tokio::test]
async fn a_refused_connection() {
    let mut scene = Scene::new("connection refused").await;
    scene.proxy.set(Mode::Refuse);
    scene.suffers_all_along().await;
    scene.proxy.set(Mode::Forward);
    scene.heals_exactly(0).await;
}

/// It breaks what was in flight, and no more: the breaker stays closed.
#[tokio::test]
async fn a_reply_that_is_cut() {
    let mut scene = Scene::new("cut mid-reply").await;
    scene.proxy.set(Mode::CutMidReply);
    let answers = scene.suffers().await;
    let degraded = answers
        .iter()
        .filter(|answer| **answer == Answered::Degraded);
    assert!(degraded.count() >= 1);
    scene.heals_exactly(0).await;
}

#[tokio::test]
async fn a_network_that_is_too_slow() {
    let mut scene = Scene::new("50 ms of latency").await;
    scene.proxy.set(Mode::Delay(Duration::from_millis(50)));
    scene.suffers_all_along().await;
    scene.proxy.set(Mode::Forward);
    scene.heals_exactly(0).await;
}

/// Sends a command whose reply may be long in coming.
fn in_background(scene: &Scene, words: &'static [&'static str]) -> JoinHandle<()> {
    let mut connection = scene.redis.connect().unwrap();
    std::thread::spawn(move || {
        let _may_be_an_error = connection.command(words);
    })
}

#[tokio::test]
async fn a_sleep() {
    let mut scene = Scene::new("DEBUG SLEEP").await;
    let asleep = in_background(&scene, &["DEBUG", "SLEEP", "2"]);
    wait_until_degraded(&mut scene).await;
    scene.suffers().await;
    asleep.join().unwrap();
    scene.heals_exactly(0).await;
}

#[tokio::test]
async fn a_pause() {
    let mut scene = Scene::new("CLIENT PAUSE").await;
    scene
        .redis
        .command(&["CLIENT", "PAUSE", "2000", "ALL"])
        .expect_ok();
    wait_until_degraded(&mut scene).await;
    scene.suffers().await;
    scene.heals_exactly(0).await;
}

#[tokio::test]
async fn a_script_that_does_not_end() {
    let mut scene = Scene::new("BUSY").await;
    scene
        .redis
        .command(&["CONFIG", "SET", "busy-reply-threshold", "50"])
        .expect_ok();
    let busy = in_background(&scene, &["EVAL", "while true do end", "0"]);
    wait_until_degraded(&mut scene).await;
    scene.suffers_all_along().await;
    assert!(scene.degraded_for("timeout") > 0.0);
    wait_until("the script is killed", || {
        let killed = scene.redis.try_command(&["SCRIPT", "KILL"]);
        killed.is_ok_and(|reply| format!("{reply:?}").contains("OK"))
    });
    busy.join().unwrap();
    scene.heals_exactly(0).await;
}

async fn wait_until_degraded(scene: &mut Scene) {
    let began = instant();
    while scene.is_counted().await {
        assert!(began.elapsed() < Duration::from_secs(30), "{}", scene.name);
    }
}

/// Refuses as `set` makes it, until `unset` does the opposite.
async fn refusal(name: &'static str, set: &[&[&str]], unset: &[&[&str]], reason: &str) {
    refusal_by(Redis::start(), name, set, unset, reason).await;
}

async fn refusal_by(
    redis: Redis,
    name: &'static str,
    set: &[&[&str]],
    unset: &[&[&str]],
    reason: &str,
) {
    let mut scene = Scene::with(name, redis).await;
    for words in set {
        scene.redis.command(words);
    }
    scene.suffers_all_along().await;
    assert!(scene.degraded_for(reason) > 0.0, "{name}");
    for words in unset {
        scene.redis.command(words);
    }
    scene.heals_exactly(0).await;
}

#[tokio::test]
async fn no_memory() {
    let set = |bytes| ["CONFIG", "SET", "maxmemory", bytes];
    refusal("OOM", &[&set("1")], &[&set("0")], "refused").await;
}

/// Its data can't be saved, and it has been told not to write then.
#[tokio::test]
async fn a_full_disk() {
    let redis = Redis::start();
    redis.block_saving();
    wait_until("saving has failed", || {
        redis.info("persistence", "rdb_last_bgsave_status") == "err"
    });
    let save = |when| ["CONFIG", "SET", "save", when];
    refusal_by(
        redis,
        "MISCONF",
        &[&save("3600 1")],
        &[&save("")],
        "refused",
    )
    .await;
}

#[tokio::test]
async fn a_replica() {
    let demote = ["REPLICAOF", "127.0.0.1", "1"];
    refusal(
        "READONLY",
        &[&demote],
        &[&["REPLICAOF", "NO", "ONE"]],
        "refused",
    )
    .await;
}

#[tokio::test]
async fn a_replica_without_its_primary() {
    let serve_stale = |word| ["CONFIG", "SET", "replica-serve-stale-data", word];
    let demote = ["REPLICAOF", "127.0.0.1", "1"];
    let promote = ["REPLICAOF", "NO", "ONE"];
    refusal(
        "MASTERDOWN",
        &[&serve_stale("no"), &demote],
        &[&promote],
        "refused",
    )
    .await;
}

#[tokio::test]
async fn no_replicas() {
    let set = |count| ["CONFIG", "SET", "min-replicas-to-write", count];
    refusal("NOREPLICAS", &[&set("1")], &[&set("0")], "refused").await;
}

/// Connections that are open stay known, so they are closed as well.
#[tokio::test]
async fn a_changed_password() {
    let set = |password| ["CONFIG", "SET", "requirepass", password];
    let kick = ["CLIENT", "KILL", "TYPE", "normal"];
    let mut scene = Scene::new("NOAUTH").await;
    let mut operator = scene.redis.connect().unwrap();
    operator.command(&set("changed")).unwrap().expect_ok();
    operator.command(&kick).unwrap();
    scene.suffers_all_along().await;
    assert!(
        scene.degraded_for("not_permitted") > 300.0,
        "told apart from an outage"
    );
    operator.command(&set("")).unwrap().expect_ok();
    scene.heals_exactly(0).await;
}

#[tokio::test]
async fn a_permission_taken_away() {
    let rule = |rule| ["ACL", "SETUSER", "default", rule];
    refusal(
        "NOPERM",
        &[&rule("-evalsha")],
        &[&rule("+evalsha")],
        "not_permitted",
    )
    .await;
}

/// Its data set is read again, slowly.
#[tokio::test]
async fn a_store_that_still_loads() {
    let mut scene = Scene::new("LOADING").await;
    scene.redis.command(&["DEBUG", "POPULATE", "20000"]);
    scene
        .redis
        .command(&["CONFIG", "SET", "key-load-delay", "200"])
        .expect_ok();
    scene
        .redis
        .command(&[
            "CONFIG",
            "SET",
            "loading-process-events-interval-bytes",
            "1024",
        ])
        .expect_ok();
    let loading = in_background(&scene, &["DEBUG", "RELOAD"]);
    wait_until_degraded(&mut scene).await;
    scene.suffers_all_along().await;
    loading.join().unwrap();
    scene.heals_exactly(0).await;
}

/// Until the sentinels agree, the failure modes answer.
#[tokio::test]
async fn a_failover() {
    let mut sentinel = Sentinel::start();
    sentinel.wait_for_replica();
    let url = format!("redis-sentinel://{}/{NAME}", sentinel.addresses().join(","));
    let server = start_with(RULES, &["--store", &url]);
    let mut client = server.client().await;
    counted(&mut client, "closed", "x").await;
    sentinel.failover();
    counted(&mut client, "closed", "x").await;
    assert!(metric(&server, "comporta_degraded_total{") > 0.0);
}

/// Callers of the other nodes notice nothing, and the node is asked again once it is back.
#[tokio::test]
async fn a_cluster_node_that_dies_under_load() {
    let mut cluster = Cluster::start_with(3, &["--cluster-require-full-coverage", "no"]);
    let store = format!("redis-cluster://{}", cluster.seeds().join(","));
    let server = start_with(RULES, &["--store", &store, "--store-timeout", "500ms"]);
    let mut client = server.client().await;
    let mut values: [Vec<String>; 3] = Default::default();
    for number in 0..60 {
        let value = number.to_string();
        let key = format!("comporta:1:d:closed={value}:fixed86400");
        let slot = cluster.slot_of_key(&key);
        counted(&mut client, "closed", &value).await;
        values[cluster.node_of_slot(slot)].push(value);
    }
    cluster.kill_node(2);
    let is_open = || metric(&server, "comporta_store_breaker_state{") > 1.5;
    let mut round = 0;
    while round < 20 || !is_open() {
        round += 1;
        assert!(round < 2_000, "it is never given up");
        for value in values[0].iter().chain(&values[1]) {
            let answer = client.ask(request(&[&[("closed", value)]])).await;
            assert_eq!(judge("closed", &answer), Answered::Counted, "round {round}");
        }
        for value in &values[2] {
            let answer = client.ask(request(&[&[("closed", value)]])).await;
            assert_eq!(
                judge("closed", &answer),
                Answered::Degraded,
                "round {round}"
            );
        }
    }
    let open = metric(&server, "comporta_store_breaker_state{");
    assert!(open > 0.0 && open < 3.0, "one node's breaker: {open}");
    cluster.nodes[2].restart();
    for value in values.iter().flatten() {
        counted(&mut client, "closed", value).await;
    }
}

/// Waits until the store answers for this value.
async fn counted(client: &mut Client, mode: &str, value: &str) {
    let began = instant();
    loop {
        let answer = client.ask(request(&[&[(mode, value)]])).await;
        if judge(mode, &answer) == Answered::Counted {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{value}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A limit in the failure mode `local` is this instance's share, full at first, and nothing of it is
/// counted in Redis afterwards.
#[tokio::test]
async fn local_counts_its_share_and_replays_nothing() {
    let rules = "
domain: d
failure_mode: local
descriptors:
  - key: k
    rate_limit: {unit: day, requests_per_unit: 30}
";
    let redis = Redis::start();
    let mut proxy = Proxy::start(redis.port());
    let store = format!("redis://127.0.0.1:{}", proxy.port());
    let server = start_with(
        rules,
        &[
            "--store",
            &store,
            "--replicas",
            "3",
            "--store-timeout",
            "1s",
        ],
    );
    let mut client = server.client().await;
    let ask = request(&[&[("k", "x")]]);
    for _ in 0..25 {
        assert_eq!(client.ask(ask.clone()).await.unwrap().overall_code, 1);
    }
    proxy.set(Mode::Refuse);
    let mut codes = Vec::new();
    for _ in 0..12 {
        let answer = client.ask(ask.clone()).await.unwrap();
        assert_eq!(marker(&answer), Some("local"));
        codes.push(answer.overall_code);
    }
    assert_eq!(
        codes,
        [[1; 10].as_slice(), &[2; 2]].concat(),
        "a third of it"
    );
    proxy.set(Mode::Forward);
    let began = instant();
    let left = loop {
        let answer = client.ask(ask.clone()).await.unwrap();
        if marker(&answer).is_none() {
            break answer.statuses[0].limit_remaining;
        }
        assert!(began.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(left, 4, "the shared counter rules again");
}

#[tokio::test]
async fn rules_that_disagree_take_the_strictest() {
    let server = start_with(RULES, &["--store", "redis://127.0.0.1:1"]);
    let mut client = server.client().await;
    let mut mode = async |keys: &[&str]| {
        let entries: Vec<_> = keys.iter().map(|&key| [(key, "x")]).collect();
        let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(|entry| &entry[..]).collect();
        match client.ask(request(&descriptors)).await {
            Ok(response) => marker(&response).unwrap().to_owned(),
            Err(status) => status.message().to_owned(),
        }
    };
    assert_eq!(mode(&["open", "local"]).await, "local");
    assert_eq!(mode(&["local", "closed", "open"]).await, "closed");
    let error = mode(&["closed", "error", "open"]).await;
    assert!(error.ends_with("the failure mode is `error`"), "{error}");
}

#[tokio::test]
async fn json_follows_the_failure_mode() {
    let server = start_with(RULES, &["--store", "redis://127.0.0.1:1"]);
    for (mode, status) in [
        ("open", 200),
        ("closed", 429),
        ("local", 200),
        ("error", 503),
    ] {
        let body = format!(
            r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"{mode}","value":"x"}}]}}]}}"#
        );
        assert_eq!(server.post_json(&body).0, status, "{mode}");
    }
}

/// A server without its store starts, and heals when there is one, without anybody asking.
#[tokio::test]
async fn a_store_that_comes_later() {
    let mut redis = Redis::start();
    redis.kill9();
    let store = redis.url();
    let server = start_with(RULES, &["--store", &store]);
    wait_until("it has noticed", || {
        metric(&server, "comporta_store_breaker_state{") > 0.0
    });
    assert_eq!(
        get(server.ports.http, "/healthcheck").0,
        200,
        "it is ready all the same"
    );
    redis.restart();
    wait_until("it has noticed", || {
        metric(&server, "comporta_store_breaker_state{") < 1.0
    });
    counted(&mut server.client().await, "closed", "x").await;
}

/// Time stands still for the server, so that the drill lasts until it is ended or time goes on.
#[tokio::test]
async fn a_drill() {
    let redis = Redis::start();
    let url = redis.url();
    for store in ["memory", &url] {
        let patience = ["--store-timeout", "5s", "--redis-connect-timeout", "5s"];
        let server = start_with(RULES, &[&["--store", store], &patience[..]].concat());
        let mut client = server.client().await;
        let mut ask = async || judge("closed", &client.ask(request(&[&[("closed", "x")]])).await);
        assert_eq!(ask().await, Answered::Counted);
        let debug = server.ports.debug;
        assert_eq!(
            post(debug, "/drill?seconds=30", b"").1,
            "{\"seconds_left\": 30}\n"
        );
        assert_eq!(ask().await, Answered::Degraded);
        assert!(metric(&server, "comporta_degraded_total{") > 0.0);
        assert_eq!(delete(debug, "/drill").1, "{\"seconds_left\": 0}\n");
        assert_eq!(ask().await, Answered::Counted);

        post(debug, "/drill?seconds=600", b"");
        server
            .clock
            .advance(comporta::algorithm::Micros(599_500_000));
        assert_eq!(get(debug, "/drill").1, "{\"seconds_left\": 1}\n");
        assert_eq!(ask().await, Answered::Degraded);
        server.clock.advance(comporta::algorithm::Micros(500_000));
        assert_eq!(ask().await, Answered::Counted);
        for wrong in [
            "/drill",
            "/drill?seconds=0",
            "/drill?seconds=601",
            "/drill?seconds=x",
        ] {
            let answer = send(debug, "POST", wrong, &[], b"");
            assert_eq!(answer.status, 400, "{wrong}");
            assert_eq!(answer.body, "write /drill?seconds=N with N from 1 to 600\n");
        }
    }
}

/// One line when it is given up, one when it is back, whatever number of callers notices.
#[tokio::test]
async fn the_log_tells_of_changes_and_not_of_requests() {
    let rules = rules_file(RULES);
    let mut redis = Redis::start();
    let url = redis.url();
    let process = process::serve(rules.path(), &["--store", &url]);
    let mut client = connect(process.grpc).await;
    let mut ask = async || judge("open", &client.ask(request(&[&[("open", "x")]])).await);
    while ask().await != Answered::Counted {}
    let given_up = "the store is not asked until a probe succeeds; the failure modes answer";
    // On a busy machine, it may have been given up before.
    let before = process.lines(given_up).len();
    redis.kill9();
    for _ in 0..500 {
        ask().await;
    }
    wait_until("it is given up", || process.lines(given_up).len() > before);
    redis.restart();
    wait_until("it is back", || {
        process.lines("the store answers again").len() > before
    });
    let lines = process.lines(given_up);
    assert_eq!(lines.len(), before + 1, "{lines:?}");
    assert_eq!(lines[before]["level"], "WARN");
    assert_eq!(lines[before]["node"], format!("{url}/0"));
    assert!(lines[before]["error"].is_string(), "{lines:?}");
}

/// Requests beyond the bound don't wait: the failure mode answers them at once.
#[tokio::test]
async fn too_many_requests_in_flight() {
    let redis = Redis::start();
    let url = redis.url();
    let flags = [
        "--store",
        &url,
        "--store-timeout",
        "10s",
        "--requests-max",
        "4",
    ];
    let server = start_with(RULES, &flags);
    let client = server.client().await;
    let mut first = client.clone();
    assert_eq!(
        judge("open", &first.ask(request(&[&[("open", "x")]])).await),
        Answered::Counted
    );
    redis.stop();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut client = client.clone();
        callers.spawn(async move {
            let answer = client.ask(request(&[&[("open", "x")]])).await;
            judge("open", &answer)
        });
    }
    for _ in 0..16 {
        let answered = callers.join_next().await.unwrap().unwrap();
        assert_eq!(answered, Answered::Degraded);
    }
    redis.cont();
    while let Some(answered) = callers.join_next().await {
        assert_eq!(answered.unwrap(), Answered::Counted);
    }
    let shed = metric(
        &server,
        r#"comporta_degraded_total{domain="d",mode="open",reason="shed"}"#,
    );
    assert!((shed - 16.0).abs() < 0.1, "{shed}");
}
