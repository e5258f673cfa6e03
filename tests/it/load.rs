//! The load generator of `benches/load`: that it runs, and that it finds out a server that admits too much.

use std::net::SocketAddr;

use clap::Parser;
use comporta::algorithm::Micros;

use crate::support::server::start;
use allowed::{Admissions, Algorithm, Call, Limit};
use report::{Report, Watched};
use run::Load;

#[path = "../../benches/load/allowed.rs"]
mod allowed;
#[path = "../../benches/load/client.rs"]
mod client;
#[path = "../../benches/load/report.rs"]
mod report;
#[path = "../../benches/load/run.rs"]
mod run;

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    limit: Limit,
}

/// A server's rules: five for each value, for ever, since its clock stands still.
const RULES: &str = "
domain: load
failure_mode: error
descriptors:
  - {key: key, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: key_2, rate_limit: {unit: day, requests_per_unit: 5}}
";

/// A second of load, the end of whose window (it lasts a century) is not in sight.
fn load(server: SocketAddr, flags: &[&str]) -> Report {
    const ALWAYS: [&str; 7] = [
        "load",
        "--seconds",
        "1",
        "--warmup",
        "0",
        "--window",
        "3153600000",
    ];
    let Flags { load, limit } = Flags::parse_from(ALWAYS.iter().chain(flags));
    let schedule = load.schedule();
    let this = Watched::start(std::process::id()).unwrap();
    let sent = load.run(server, schedule).unwrap();
    Report::new(&limit, schedule, sent, this.used().into_iter().collect())
}

#[test]
fn closed_loop_counts_what_was_admitted() {
    let server = start(RULES);
    let flags = [
        "--keys",
        "10",
        "--descriptors",
        "2",
        "--limit",
        "5",
        "--threads",
        "2",
    ];
    let report = load(server.ports.grpc, &flags);
    assert!(report.is_right(), "{report}");
    assert!(report.answers > 50);
    let expected = Admissions {
        admitted: 50,
        allowed: 50,
        too_many: 0,
    };
    assert_eq!(report.admissions, expected);
    assert!(report.to_string().contains(" s of CPU per 100 000 calls, "));
}

#[test]
fn open_loop_begins_as_many_calls_as_are_due() {
    let server = start(RULES);
    let flags = [
        "--rate",
        "200",
        "--distribution",
        "zipf",
        "--keys",
        "7",
        "--limit",
        "5",
    ];
    let report = load(server.ports.grpc, &flags);
    assert!(report.is_right(), "{report}");
    assert_eq!(report.answers, 200);
    assert_eq!(
        report.admissions.admitted, 35,
        "even the rarest came five times"
    );
}

#[test]
fn too_many_are_found() {
    let server = start(RULES);
    let report = load(server.ports.grpc, &["--keys", "10", "--limit", "4"]);
    assert_eq!(report.admissions.too_many, 10, "one of each key");
    assert!(!report.is_right());
    assert!(
        report
            .to_string()
            .contains("ERROR       10 calls were admitted")
    );
}

#[test]
fn errors_are_counted_by_kind() {
    let server = start(RULES);
    let report = load(server.ports.grpc, &["--domain", "", "--rate", "10"]);
    assert_eq!(report.errors, [("grpc-status 3".to_owned(), 10)]);
    assert!(!report.is_right());
}

/// Calls of one key, by when they began and ended in milliseconds; the limit is two in 10 s.
#[track_caller]
fn check(algorithm: Algorithm, calls: &[(u64, u64)], expected: usize) {
    let limit = Limit {
        requests: 2,
        window_seconds: 10,
        algorithm,
        burst: None,
    };
    let call = |&(began, ended): &(u64, u64)| Call {
        key: 1,
        began: Micros(began * 1_000),
        ended: Micros(ended * 1_000),
        admitted: true,
    };
    let mut calls: Vec<_> = calls.iter().map(call).collect();
    assert_eq!(limit.judge(&mut calls).too_many, expected);
}

#[test]
fn a_window_of_the_calendar_has_an_end() {
    let check = |calls: &[_], expected| check(Algorithm::FixedWindow, calls, expected);
    check(&[(0, 10), (9_998, 9_999)], 0);
    check(&[(0, 10), (1, 11), (9_998, 9_999)], 1);
    check(&[(0, 10), (1, 11), (9_998, 10_001)], 0);
    check(&[(0, 10), (1, 11), (10_000, 10_001), (10_002, 10_003)], 0);
}

#[test]
fn any_window_is_a_window() {
    let check = |calls: &[_], expected| check(Algorithm::SlidingWindowLog, calls, expected);
    check(&[(9_000, 9_001), (9_500, 9_501)], 0);
    check(&[(9_000, 9_001), (9_500, 9_501), (18_998, 18_999)], 1);
    check(&[(9_000, 9_001), (9_500, 9_501), (18_998, 19_000)], 0);
    // The second ended late: it may have been decided after the third began.
    check(&[(0, 1), (500, 12_000), (9_000, 9_001)], 0);
}

#[test]
fn a_bucket_gets_a_token_in_every_fifth_second() {
    let check = |calls: &[_], expected| check(Algorithm::TokenBucket, calls, expected);
    check(&[(0, 1), (0, 1)], 0);
    check(&[(0, 1), (0, 1), (4_998, 4_999)], 1);
    check(&[(0, 1), (0, 1), (4_998, 5_000)], 0);
    check(&[(0, 1), (0, 1), (5_000, 5_001), (9_998, 9_999)], 1);
    check(&[(0, 1), (0, 1), (5_000, 5_001), (5_001, 10_000)], 0);
}
