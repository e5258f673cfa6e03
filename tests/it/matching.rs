//! Which rule a descriptor finds: the reference's rules, corner by corner.

use comporta::config::files::Source;
use comporta::config::matcher::Entry;
use comporta::config::parse::{ParseOptions, parse};
use comporta::config::{Config, Limits};

fn load(rules: &str) -> Config {
    let text = format!("domain: d\nfailure_mode: open\ndescriptors:\n{rules}");
    let source = Source {
        name: "rules.yaml".into(),
        text,
    };
    parse(&[source], ParseOptions::default()).unwrap()
}

/// What the rule allows per window, `unlimited`, or `none`. Entries are written `key=value,key=value`.
fn matched(config: &Config, entries: &str) -> String {
    let entries: Vec<_> = entries
        .split(',')
        .filter(|entry| !entry.is_empty())
        .map(|entry| entry.split_once('=').unwrap())
        .map(|(key, value)| Entry {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
        })
        .collect();
    let walk = config.domain(b"d").unwrap().root.walk(&entries);
    match walk.rule.map(|rule| &rule.limits) {
        None => "none".to_owned(),
        Some(Limits::Unlimited) => "unlimited".to_owned(),
        Some(Limits::Counted(limits)) => limits[0].limit.requests().to_string(),
    }
}

#[track_caller]
fn check(rules: &str, cases: &[(&str, &str)]) {
    let config = load(rules);
    for (entries, expected) in cases {
        assert_eq!(matched(&config, entries), *expected, "{entries}");
    }
}

#[test]
fn values_depth_and_order() {
    check(
        "
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 7}}
  - {key: user, value: vip, rate_limit: {unit: minute, requests_per_unit: 70}}
  - key: tenant
    value: acme
    descriptors:
      - {key: verb, rate_limit: {unit: hour, requests_per_unit: 300}}
      - {key: verb, value: POST, rate_limit: {unit: second, requests_per_unit: 3}}
  - key: plan
    value: gold
    rate_limit: {unit: day, requests_per_unit: 9000}
    descriptors:
      - {key: route, value: /export, rate_limit: {unit: day, requests_per_unit: 11}}
  - {key: office_ip, value: 10.1.2.3}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: number, value: 010, rate_limit: {unit: day, requests_per_unit: 8}}
",
        &[
            ("user=bob", "7"),
            ("user=vip", "70"),
            ("user=VIP", "7"),
            ("user=", "7"),
            ("tenant=acme,verb=GET", "300"),
            ("tenant=acme,verb=POST", "3"),
            ("tenant=acme", "none"),
            ("tenant=other,verb=GET", "none"),
            ("verb=GET,tenant=acme", "none"),
            ("plan=gold", "9000"),
            ("plan=gold,route=/export", "11"),
            ("plan=gold,route=/x", "none"),
            ("user=bob,extra=1", "none"),
            ("office_ip=10.1.2.3", "none"),
            ("free=x", "unlimited"),
            ("", "none"),
            ("number=010", "8"),
            ("number=8", "none"),
            ("number=10", "none"),
        ],
    );
}

#[test]
fn wildcards_come_after_values_and_before_the_key_alone_in_file_order() {
    check(
        "
  - {key: path, value: /img/*, rate_limit: {unit: minute, requests_per_unit: 40}}
  - {key: path, value: /img/big/*, rate_limit: {unit: minute, requests_per_unit: 4}}
  - {key: path, value: /img/logo, rate_limit: {unit: minute, requests_per_unit: 400}}
  - {key: path, value: '*.css', rate_limit: {unit: minute, requests_per_unit: 50}}
  - {key: path, value: /a*b*c, rate_limit: {unit: minute, requests_per_unit: 60}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 1}}
",
        &[
            ("path=/img/", "40"),
            ("path=/img/big/y", "40"),
            ("path=/img/logo", "400"),
            ("path=/site.css", "50"),
            ("path=/img/a.css", "40"),
            ("path=/abc", "60"),
            ("path=/axxbyyc", "60"),
            ("path=/aXcXbXc", "60"),
            ("path=/ac", "1"),
            ("path=/acb", "1"),
            ("path=/IMG/x", "1"),
            ("path=", "1"),
            ("path=*.css", "50"),
        ],
    );
}

/// The text between two wildcards is not the text of both ends.
#[test]
fn a_wildcards_ends_do_not_overlap() {
    check(
        "
  - {key: p, value: ab*bc, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: q, value: '*a*', rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: r, value: a**b, rate_limit: {unit: minute, requests_per_unit: 3}}
",
        &[
            ("p=abc", "none"),
            ("p=abbc", "1"),
            ("q=a", "2"),
            ("q=", "none"),
            ("r=ab", "3"),
        ],
    );
}

#[test]
fn a_key_may_be_a_wildcard() {
    check(
        "
  - {key: h*, rate_limit: {unit: minute, requests_per_unit: 40}}
  - {key: '*', rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: size, rate_limit: {unit: minute, requests_per_unit: 99}}
",
        &[("host=a", "40"), ("size=1", "2"), ("h=", "40")],
    );
}

/// Once a level has matched, what fails deeper down is not tried again another way.
#[test]
fn there_is_no_backtracking() {
    check(
        "
  - key: svc
    value: api
    descriptors: [{key: m, value: GET, rate_limit: {unit: minute, requests_per_unit: 40}}]
  - key: svc
    descriptors: [{key: m, rate_limit: {unit: minute, requests_per_unit: 2}}]
  - key: z
    value: q*
    descriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 3}}]
  - {key: z, rate_limit: {unit: minute, requests_per_unit: 5}}
",
        &[
            ("svc=api,m=PUT", "none"),
            ("svc=api,m=GET", "40"),
            ("svc=web,m=PUT", "2"),
            ("z=q1", "none"),
            ("z=q1,a=x", "3"),
            ("z=r1", "5"),
        ],
    );
}

/// Key and value are joined by `_` before they are compared, as the reference does.
#[test]
fn composite_keys_are_the_references() {
    check(
        "  - {key: a_b, rate_limit: {unit: minute, requests_per_unit: 1}}",
        &[("a=b", "1"), ("a_b=c", "1"), ("a=c", "none")],
    );
}

#[test]
fn bytes_that_are_no_text_match_as_bytes() {
    let config =
        load("  - {key: k, value: 'a*z', rate_limit: {unit: minute, requests_per_unit: 1}}");
    let entry = |value: &'static [u8]| Entry {
        key: "k".into(),
        value: value.into(),
    };
    let root = &config.domain(b"d").unwrap().root;
    assert!(root.walk(&[entry(b"a\xff\x00z")]).rule.is_some());
    assert!(root.walk(&[entry(b"\xff\xfe")]).rule.is_none());
}
