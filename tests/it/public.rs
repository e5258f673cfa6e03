//! Rule files of the shapes in public use: they load, and what their proxies send finds the limit that was meant.
//!
//! Beside each file in `tests/data/public/` are its cases, a request a line: the entries of a descriptor, `=>`, and the
//! limit that applies, or `none`; with ` + ` between several. No two rules of a file have the same limit, so that a limit
//! names its rule. Each descriptor has a counter to itself, unless it says `shared`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use comporta::config::files::{self, Source};
use serde_json::{Value, json};

use crate::support::http::{get, post};
use crate::support::server::{Running, start_in};

const FOLDER: &str = "tests/data/public";

#[test]
fn what_is_sent_finds_the_limit_that_was_meant() {
    let server = start_with_rules_of(FOLDER, &[]);
    let mut wrong = Vec::new();
    for source in files::read(&[FOLDER.into()]).unwrap() {
        let cases = source.name.replace(".yaml", ".txt");
        wrong.extend(misses(server.ports.debug, &source, Path::new(&cases)));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn files_of_one_domain_can_be_merged() {
    let folder = Path::new(FOLDER).join("merged");
    let server = start_with_rules_of(folder.to_str().unwrap(), &["--merge-domains"]);
    let source = &files::read(std::slice::from_ref(&folder)).unwrap()[0];
    let wrong = misses(server.ports.debug, source, &folder.join("cases.txt"));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The files of a folder together, as they would be deployed.
fn start_with_rules_of(folder: &str, flags: &[&str]) -> Running {
    let copy = tempfile::tempdir().unwrap();
    for source in files::read(&[folder.into()]).unwrap() {
        let name = Path::new(&*source.name).file_name().unwrap();
        fs::write(copy.path().join(name), &source.text).unwrap();
    }
    start_in(copy, "", flags)
}

/// What a descriptor came to.
struct Found {
    entries: String,
    /// `5 per minute`, `unlimited` or `none`.
    limit: String,
    counter: Option<String>,
    /// File and line.
    rule: Option<String>,
    is_meant_to_share: bool,
}

/// Every case that came to something else, and every rule that no case came to.
fn misses(debug: SocketAddr, source: &Source, cases: &Path) -> Vec<String> {
    let domain = source
        .text
        .lines()
        .find_map(|line| line.strip_prefix("domain: "));
    let domain = domain.unwrap().split(" #").next().unwrap();
    let mut wrong = Vec::new();
    let mut found = Vec::new();
    for case in fs::read_to_string(cases).unwrap().lines() {
        if case.is_empty() || case.starts_with('#') {
            continue;
        }
        let (sent, meant) = case.split_once("=>").unwrap();
        let of_case = ask(debug, domain, sent, meant);
        let limits: Vec<_> = of_case.iter().map(|one| one.limit.as_str()).collect();
        let limits = limits.join(" + ");
        if meant.trim().replace(", shared", "") != limits {
            wrong.push(format!("{domain}: {case}, but found {limits}"));
        }
        found.extend(of_case);
    }
    wrong.extend(mistaken_counters(&found));
    wrong.extend(mistaken_rules(&found));
    wrong.extend(untried_rules(debug, domain, &found));
    wrong
}

/// Asks how a request would be decided.
fn ask(debug: SocketAddr, domain: &str, sent: &str, meant: &str) -> Vec<Found> {
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').unwrap();
        json!({"key": key, "value": value})
    };
    let descriptor = |entries: &str| {
        let entries: Vec<_> = entries.split_whitespace().map(entry).collect();
        json!({"entries": entries})
    };
    let descriptors: Vec<_> = sent.split(" + ").map(descriptor).collect();
    let request = json!({"domain": domain, "descriptors": descriptors});
    let (status, body) = post(debug, "/explain", request.to_string().as_bytes());
    assert_eq!(status, 200, "{sent}: {body}");
    let explanation: Value = serde_json::from_str(&body).unwrap();
    let explained = explanation["descriptors"].as_array().unwrap().iter();
    let each = sent.split(" + ").zip(meant.split(" + ")).zip(explained);
    let found = each.map(|((entries, meant), explained)| Found {
        entries: entries.trim().to_owned(),
        limit: limit(explained),
        counter: text(&explained["limits"][0]["counter"]),
        rule: text(&explained["rule"]),
        is_meant_to_share: meant.contains(", shared"),
    });
    found.collect()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn limit(explained: &Value) -> String {
    let result = explained["result"].as_str().unwrap();
    if result == "the rule says unlimited" {
        return "unlimited".to_owned();
    }
    let Some((_, mode)) = result.split_once("` applies") else {
        return "none".to_owned();
    };
    let limit = explained["limits"][0]["limit"].as_str().unwrap();
    limit.replace(", fixed_window", mode)
}

fn mistaken_counters(found: &[Found]) -> Vec<String> {
    let mut users: HashMap<&str, HashSet<&str>> = HashMap::new();
    for one in found {
        if let Some(counter) = &one.counter {
            users.entry(counter).or_default().insert(&one.entries);
        }
    }
    let is_mistaken = |one: &&Found| {
        let counter = one.counter.as_deref();
        counter.is_some_and(|counter| (users[counter].len() > 1) != one.is_meant_to_share)
    };
    let mistaken = found.iter().filter(is_mistaken);
    let describe = |one: &Found| format!("{} is counted by {:?}", one.entries, one.counter);
    mistaken.map(describe).collect()
}

fn mistaken_rules(found: &[Found]) -> Vec<String> {
    let mut rules = HashMap::new();
    let mut mistaken = Vec::new();
    for one in found.iter().filter(|one| one.counter.is_some()) {
        let first = *rules.entry(&one.limit).or_insert(&one.rule);
        if *first != one.rule {
            mistaken.push(format!("{:?} and {:?} have one limit", first, one.rule));
        }
    }
    mistaken
}

fn untried_rules(debug: SocketAddr, domain: &str, found: &[Found]) -> Vec<String> {
    let (_, table) = get(debug, "/rlconfig");
    let rules = table
        .lines()
        .filter(|line| line.split_whitespace().next() == Some(domain));
    let tried: HashSet<_> = found.iter().filter_map(|one| one.rule.as_deref()).collect();
    let origins = rules.filter_map(|line| line.split_whitespace().last());
    let untried = origins.filter(|origin| !tried.contains(origin));
    untried
        .map(|origin| format!("no case for {origin}"))
        .collect()
}
