//! Rules that are refused, each with all that is said about it; rules that are taken; what is odd.

use std::path::Path;

use comporta::config::files::{self, Source};
use comporta::config::parse::{ParseOptions, parse};
use comporta::config::{Config, ConfigError};
use proptest::prelude::*;

fn parse_text(text: &str) -> Result<Config, Vec<ConfigError>> {
    parse_files(&[("rules.yaml", text)], false)
}

fn parse_files(texts: &[(&str, &str)], merge_domains: bool) -> Result<Config, Vec<ConfigError>> {
    let sources: Vec<_> = texts
        .iter()
        .map(|&(name, text)| Source {
            name: name.into(),
            text: text.to_owned(),
        })
        .collect();
    let options = ParseOptions {
        merge_domains,
        ..ParseOptions::default()
    };
    parse(&sources, options)
}

fn lines<T: ToString>(items: &[T]) -> String {
    items.iter().map(|item| item.to_string() + "\n").collect()
}

/// Every file in `refused/` has beside it, in a `.txt`, what is said about it.
#[test]
fn what_is_refused_is_told_why() {
    let mut wrong = Vec::new();
    let folder = Path::new("tests/data/refused");
    let sources = files::read(&[folder.to_owned()]).unwrap();
    assert!(sources.len() > 20);
    for source in sources {
        let expected_file = source.name.replace(".yaml", ".txt");
        let short = source.name.rsplit('/').next().unwrap();
        let said = match parse_files(&[(short, &source.text)], false) {
            Ok(_) => "it was accepted\n".to_owned(),
            Err(errors) => lines(&errors),
        };
        let expected = std::fs::read_to_string(&expected_file).unwrap_or_default();
        if said != expected {
            wrong.push(format!(
                "--- {expected_file} is\n{expected}+++ and should be\n{said}"
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.concat());
}

#[test]
fn what_is_right_is_taken() {
    for folder in ["tests/data/accepted", "config"] {
        for source in files::read(&[folder.into()]).unwrap() {
            if let Err(errors) = parse_text(&source.text) {
                panic!("{}:\n{}", source.name, lines(&errors));
            }
        }
    }
}

/// The example is what people copy.
#[test]
fn the_example_is_beyond_reproach() {
    let sources = files::read(&["config".into()]).unwrap();
    let config = parse(&sources, ParseOptions::default()).unwrap();
    assert_eq!(lines(config.warnings()), "");
}

#[test]
fn what_is_odd_is_warned_of() {
    let text = "
domain: d
descriptors:
  - {key: zero, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: burst, rate_limit: {unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 0}}
  - {key: log, rate_limit: {unit: day, requests_per_unit: 5000, algorithm: sliding_window_log}}
  - {key: path, value: /img/*, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: path, value: /img/big/*, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: path, value: /img/logo, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: any, value: '*', rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: any, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: idle, shadow_mode: true, metadata: {a: b}, quota_mode: false}
  - {key: both, shadow_mode: true, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: who, rate_limit: {unit: second, requests_per_unit: 1, replaces: [{name: nobody}]}}
  - {key: small, rate_limit: {unit: second, requests_per_unit: 199, lease: {max_share: 5%}}}
  - {key: least, rate_limit: {unit: second, requests_per_unit: 200, lease: {max_share: 5%}}}
  - key: two
    rate_limit:
      - {unit: second, requests_per_unit: 200, lease: {max_share: 5%}}
      - {unit: day, requests_per_unit: 1}
";
    let warnings = lines(parse_text(text).unwrap().warnings());
    let expected = "\
rules.yaml:2:9: domain d: no `failure_mode` is written; without the store, the setting --failure-mode decides (open by default)
rules.yaml:4:63: domain d, zero: a limit of 0 denies every request
rules.yaml:5:99: domain d, burst: a burst of 0 denies every request; 1 is the least that lets any pass
rules.yaml:6:59: domain d, log: a sliding_window_log of 5000 requests remembers as many instants for each value; sliding_window_counter remembers two numbers
rules.yaml:8:5: domain d, path=/img/big/*: this matches nothing but its own text: `path_/img/*` takes every other value of it
rules.yaml:11:5: domain d, any: this never matches: `any_*` takes every value of it
rules.yaml:12:30: domain d, idle: `shadow_mode` has no effect without a `rate_limit` beside it
rules.yaml:12:46: domain d, idle: `metadata` has no effect without a `rate_limit` beside it
rules.yaml:13:48: domain d, both: `quota_mode` has no effect beside `shadow_mode`
rules.yaml:14:83: domain d: `replaces` names `nobody`, and no rule of this domain has that name
rules.yaml:15:69: domain d, small: `lease` has no effect: 5% of this limit is less than 10 hits, and fewer are not worth it
rules.yaml:19:48: domain d, two: `lease` has no effect where a rule has several limits
";
    assert_eq!(warnings, expected);
}

const ONE: &str = "domain: d\nfailure_mode: open\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 1}}]";
const TWO: &str = "domain: d\nfailure_mode: closed\ndescriptors: [{key: b, rate_limit: {unit: second, requests_per_unit: 1}}]";

#[test]
fn a_domain_is_in_one_file_unless_they_are_merged() {
    let two = TWO.replace("failure_mode: closed\n", "");
    let errors = parse_files(&[("1.yaml", ONE), ("2.yaml", &two)], false).unwrap_err();
    assert_eq!(
        lines(&errors),
        "2.yaml:1:9: domain `d` is in 1.yaml too; write it in one file, or merge files with --merge-domains\n"
    );
    let config = parse_files(&[("1.yaml", ONE), ("2.yaml", &two)], true).unwrap();
    assert_eq!(config.domain(b"d").unwrap().rules().len(), 2);
    assert_eq!(config.warnings(), []);
}

#[test]
fn merged_files_must_agree() {
    let errors = parse_files(&[("1.yaml", ONE), ("2.yaml", TWO)], true).unwrap_err();
    assert_eq!(
        lines(&errors),
        "2.yaml:2:15: domain d: `failure_mode` is something else in 1.yaml; the files of one domain must agree\n"
    );
    let errors = parse_files(&[("1.yaml", ONE), ("2.yaml", ONE)], true).unwrap_err();
    assert_eq!(
        lines(&errors),
        "2.yaml:3:15: domain d, a: the same key and value are in 1.yaml:3 too; delete one, or give one of them another value\n"
    );
}

#[test]
fn the_errors_of_all_files_are_reported() {
    let errors = parse_files(&[("1.yaml", "domain: ["), ("2.yaml", "domain: ''")], false);
    assert_eq!(errors.unwrap_err().len(), 2);
}

#[test]
fn folders_are_read_in_name_order_without_hidden_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let read = || files::read(std::slice::from_ref(&path));
    assert!(lines(&read().unwrap_err()).contains("holds no .yaml or .yml file"));
    for name in ["b.yaml", "a.yml", ".hidden.yaml", "README.md", "c.yaml~"] {
        std::fs::write(path.join(name), name).unwrap();
    }
    std::fs::create_dir(path.join("folder.yaml")).unwrap();
    let texts: Vec<_> = read()
        .unwrap()
        .into_iter()
        .map(|source| source.text)
        .collect();
    assert_eq!(texts, ["a.yml", "b.yaml"]);
    std::fs::write(path.join("latin.yaml"), b"domain: \xe9").unwrap();
    assert!(lines(&read().unwrap_err()).contains("latin.yaml: can't be read: "));
    let missing = files::read(&["/no/such/folder".into()]).unwrap_err();
    assert!(lines(&missing).starts_with("/no/such/folder: can't be read: "));
}

/// As many rules as anyone has in one file, and one more of the same.
#[test]
fn a_hundred_thousand_rules_load() {
    let rule = |number| {
        format!(
            "  - key: tenant\n    value: t{number}\n    rate_limit: {{unit: second, requests_per_unit: 5}}\n"
        )
    };
    let mut text = "domain: d\nfailure_mode: open\ndescriptors:\n".to_owned();
    text.extend((0..100_000).map(rule));
    let config = parse_text(&text).unwrap();
    assert_eq!(config.domain(b"d").unwrap().rules().len(), 100_000);
    text += "  - key: tenant\n    value: t77\n";
    assert_eq!(parse_text(&text).unwrap_err().len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No text makes the loader panic or hang.
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _either = parse_text(&text);
    }

    /// Nor does a file that is nearly right: the example, with a few bytes replaced.
    #[test]
    fn a_damaged_file_is_read_or_refused(
        damage in prop::collection::vec((any::<prop::sample::Index>(), "[ -~\n]{0,3}"), 1..8)
    ) {
        let mut text = include_str!("../data/accepted/everything.yaml").to_owned();
        for (place, replacement) in damage {
            let start = place.index(text.len());
            text.replace_range(start..=start, &replacement);
        }
        let _either = parse_text(&text);
    }
}
