//! What `deploy/` says about Comporta is true of it. Kubernetes' schemas, the Helm chart and the alerts'
//! own tests are the business of `tests/deploy/run`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use clap::{Args, Command as Flags};
use comporta::config::files;
use comporta::config::parse::{ParseOptions, parse};
use comporta::settings::{DRAIN_DELAY_DEFAULT, DRAIN_TIMEOUT_DEFAULT, Settings};
use comporta::telemetry::METRICS;
use serde_json::{Value, json};

mod istio;

use crate::support::redis::resp::{Connection, Reply};
use crate::support::{envoy, server, wait_until};

/// Where the rules that are deployed by example are.
const RULES: &str = "deploy/kubernetes/base/rules";

/// What stands between our name and our flags.
const COMMANDS: [&str; 4] = ["serve", "check", "explain", "counters"];

#[test]
fn every_flag_and_variable_exists() {
    let command = Settings::augment_args(Flags::new("comporta"));
    let variables: Vec<_> = command
        .get_arguments()
        .filter_map(|argument| argument.get_env()?.to_str())
        .collect();
    let flags: Vec<_> = command
        .get_arguments()
        .filter_map(|argument| argument.get_long())
        .collect();
    let mut found = 0;
    for (file, text) in texts("deploy") {
        for word in words(&text, |c| c.is_ascii_alphanumeric() || c == '_') {
            if word.starts_with("COMPORTA_") {
                assert!(variables.contains(&word), "{}: {word}", file.display());
                found += 1;
            }
        }
        // Other programs have flags too: ours are those that follow our name and a command.
        for (_, call) in text.lines().filter_map(|line| line.split_once("comporta ")) {
            if !COMMANDS.iter().any(|command| call.starts_with(command)) {
                continue;
            }
            for word in call.split_whitespace() {
                let flag = word.strip_prefix("--").map(|flag| flag.trim_matches('`'));
                let is_ours = flag.is_none_or(|flag| flags.contains(&flag));
                assert!(is_ours || word == "--domain", "{}: {word}", file.display());
            }
        }
    }
    assert!(found > 0);
}

#[test]
fn every_metric_exists() {
    for folder in ["deploy/prometheus", "deploy/grafana"] {
        let mut found = 0;
        for (file, text) in texts(folder) {
            for word in words(&text, |c| c.is_ascii_alphanumeric() || c == '_') {
                if word.starts_with("comporta_") {
                    let parts = ["_bucket", "_count", "_sum"];
                    let metric = parts.iter().find_map(|part| word.strip_suffix(part));
                    let metric = metric.unwrap_or(word);
                    let is_known = METRICS.iter().any(|(name, _)| *name == metric);
                    assert!(is_known, "{}: {word}", file.display());
                    found += 1;
                }
            }
        }
        assert!(found > 0, "{folder} asks for no metric");
    }
}

#[test]
fn the_rules_are_beyond_reproach() {
    let sources = files::read(&[RULES.into()]).unwrap();
    let config = parse(&sources, ParseOptions::default()).unwrap();
    assert_eq!(config.warnings(), []);
}

/// Kubernetes kills what isn't gone in time.
#[test]
fn there_is_time_to_drain() {
    let deployment = documents("deploy/kubernetes/base/deployment.yaml").remove(0);
    let pod = &deployment["spec"]["template"]["spec"];
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    let seconds = |default: &str| default.trim_end_matches('s').parse::<u64>().unwrap();
    let drain = seconds(DRAIN_DELAY_DEFAULT) + seconds(DRAIN_TIMEOUT_DEFAULT);
    assert!(
        grace >= drain + 10,
        "{drain} s of drain, {grace} s of grace"
    );
}

/// No engine is needed to know that what the image copies exists, and gets past `.dockerignore`.
#[test]
fn the_image_is_made_of_what_there_is() {
    let ignored = fs::read_to_string(".dockerignore").unwrap();
    let kept: BTreeSet<_> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    assert!(ignored.lines().any(|line| line == "*"));
    let dockerfile = fs::read_to_string("deploy/Dockerfile").unwrap();
    let instructions = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "));
    let copied: BTreeSet<_> = instructions
        .filter(|copy| !copy.starts_with("--from"))
        .flat_map(|copy| {
            let (sources, _) = copy.rsplit_once(' ').unwrap();
            sources.split(' ')
        })
        .collect();
    assert_eq!(copied, kept);
    for source in copied {
        assert!(Path::new(source).exists(), "there is no {source}");
    }

    let minor = |text: &str, before: &str| -> u32 {
        let (_, version) = text.split_once(before).unwrap();
        let digits = version.split(|c: char| !c.is_ascii_digit()).next();
        digits.unwrap().parse().unwrap()
    };
    let manifest = fs::read_to_string("Cargo.toml").unwrap();
    let needed = minor(&manifest, "rust-version = \"1.");
    assert!(minor(&dockerfile, "RUST_VERSION=1.") >= needed);
}

#[test]
fn every_envoy_file_is_valid() {
    let files = texts("deploy/envoy");
    assert!(!files.is_empty());
    for (file, _) in files {
        envoy::validate(&file);
    }
}

/// With the command, the settings and the password file that the overlay gives it, Redis takes Comporta
/// for what it is, and nobody else.
#[test]
fn the_deployed_redis_knows_the_password() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("password"), "0123456789abcdef\n").unwrap();
    let deployed = fs::read_to_string("deploy/kubernetes/redis/redis.conf").unwrap();
    let here = format!("port 0\nunixsocket {}\n", path("socket"));
    fs::write(path("redis.conf"), deployed + &here).unwrap();
    let manifests = documents("deploy/kubernetes/redis/redis.yaml");
    let container = &manifests[1]["spec"]["template"]["spec"]["containers"][0];
    let script = container["args"][0].as_str().unwrap();
    let script = replaced(script, "/etc/redis/redis.conf", &path("redis.conf"));
    let script = replaced(&script, "/run/secrets/redis/password", &path("password"));
    let shell = Command::new("/bin/sh")
        .args(["-c", &script])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .spawn();
    let _redis = Running(shell.unwrap());
    wait_until("redis-server listens", || {
        Path::new(&path("socket")).exists()
    });

    let mut connection = Connection::unix(Path::new(&path("socket"))).unwrap();
    let refusal = connection.command(&["PING"]).unwrap();
    assert!(
        matches!(&refusal, Reply::Error(text) if text.starts_with("NOAUTH")),
        "{refusal:?}"
    );
    let welcome = connection.command(&["AUTH", "0123456789abcdef"]).unwrap();
    welcome.expect_ok();
    for (setting, value) in [("maxmemory-policy", "noeviction"), ("save", "")] {
        let set = connection.command(&["CONFIG", "GET", setting]).unwrap();
        assert_eq!(set.field(setting), value);
    }

    let rules = fs::read_to_string(format!("{RULES}/api.yaml")).unwrap();
    let store = format!("redis+unix://{}", path("socket"));
    let flags = [
        "--store",
        &store,
        "--redis-password-file",
        &path("password"),
        "--store-timeout",
        "1s",
    ];
    let server = server::start_with(&rules, &flags);
    let request =
        r#"{"domain": "api", "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}]}]}"#;
    let (status, body) = server.post_json(request);
    assert_eq!(status, 200, "{body}");
    assert!(!body.contains("egraded"), "{body}");
    assert!(body.contains("limitRemaining"), "{body}");
}

/// Every descriptor that Contour's example makes Envoy send finds a rule.
#[test]
fn contour_s_descriptors_have_rules() {
    let rules = fs::read_to_string(format!("{RULES}/api.yaml")).unwrap();
    let server = server::start(&rules);
    let proxy = documents("deploy/contour/httpproxy.yaml").remove(0);
    let host = &proxy["spec"]["virtualhost"];
    let routes = proxy["spec"]["routes"].as_array().unwrap();
    let limited = routes
        .iter()
        .filter(|route| !route["rateLimitPolicy"].is_null());
    for place in limited.chain([host]) {
        let descriptors = &place["rateLimitPolicy"]["global"]["descriptors"];
        let descriptors: Vec<_> = descriptors.as_array().unwrap().iter().map(sent).collect();
        let request = json!({"domain": "api", "descriptors": descriptors});
        let (status, body) = server.post_json(&request.to_string());
        assert_eq!(status, 200, "{body}");
        let limits = body.matches("currentLimit").count();
        assert_eq!(limits, descriptors.len(), "{request}: {body}");
    }
    assert!(proxy.to_string().contains("/login"));
}

/// What a descriptor of Contour's becomes.
fn sent(descriptor: &Value) -> Value {
    let entries = descriptor["entries"].as_array().unwrap().iter();
    let entries = entries.map(|entry| {
        let (kind, settings) = entry.as_object().unwrap().iter().next().unwrap();
        match kind.as_str() {
            "remoteAddress" => json!({"key": "remote_address", "value": "192.0.2.7"}),
            "requestHeader" => json!({"key": settings["descriptorKey"], "value": "acme"}),
            "genericKey" => settings.clone(),
            other => panic!("what is {other}?"),
        }
    });
    json!({"entries": entries.collect::<Vec<_>>()})
}

/// A process that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _already_gone = self.0.wait();
    }
}

/// With `old`, which has to be there, replaced.
#[track_caller]
fn replaced(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "there is no {old} in {text}");
    text.replace(old, new)
}

/// The YAML documents of a file.
fn documents(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Every file in and below a folder.
fn texts(folder: &str) -> Vec<(PathBuf, String)> {
    let mut texts = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                texts.push((path.clone(), fs::read_to_string(path).unwrap()));
            }
        }
    }
    texts
}

/// The longest runs of such characters.
fn words(text: &str, is_part: impl Fn(char) -> bool) -> impl Iterator<Item = &str> {
    text.split(move |c| !is_part(c))
        .filter(|word| !word.is_empty())
}
