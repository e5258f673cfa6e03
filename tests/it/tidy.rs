//! What the code promises about itself: who may use whom, and that the README names everything.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use comporta::settings::Settings;
use comporta::telemetry::METRICS;

/// Room by room, the rooms that it may use. Requests flow one way; results come back as values.
const IMPORTS: [(&str, &[&str]); 14] = [
    ("algorithm", &[]),
    ("settings", &[]),
    ("clock", &["algorithm"]),
    ("telemetry", &["algorithm"]),
    ("config", &["algorithm", "clock", "telemetry"]),
    ("xds", &["clock", "config", "settings", "telemetry"]),
    ("request", &["algorithm", "config"]),
    ("store", &["algorithm", "clock", "telemetry"]),
    ("failure", &["algorithm", "config", "store"]),
    (
        "response",
        &["algorithm", "config", "failure", "request", "store"],
    ),
    (
        "service",
        &[
            "algorithm",
            "clock",
            "config",
            "failure",
            "request",
            "response",
            "store",
            "telemetry",
        ],
    ),
    (
        "transport",
        &[
            "algorithm",
            "config",
            "request",
            "response",
            "service",
            "store",
            "telemetry",
        ],
    ),
    (
        "server",
        &[
            "algorithm",
            "clock",
            "config",
            "failure",
            "request",
            "response",
            "service",
            "settings",
            "store",
            "telemetry",
            "transport",
            "xds",
        ],
    ),
    ("lib", &[]),
];

#[test]
fn rooms_use_only_the_rooms_before_them() {
    let mut wrong = Vec::new();
    for file in sources() {
        let room = room_of(&file);
        if ["main", "commands", "counters", "profile"].contains(&room.as_str()) {
            continue;
        }
        let allowed = IMPORTS.iter().find(|(name, _)| *name == room);
        let (_, allowed) = allowed.unwrap_or_else(|| panic!("{room} has no line in IMPORTS"));
        for used in rooms_used(&fs::read_to_string(&file).unwrap()) {
            if used != room && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{}: {room} uses {used}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The generated protobuf types stay in `transport/` and in `xds/`.
#[test]
fn generated_types_stay_where_bytes_come_in() {
    for file in sources() {
        let text = fs::read_to_string(&file).unwrap();
        let is_at_the_edge = ["transport", "xds"].contains(&room_of(&file).as_str());
        assert!(
            is_at_the_edge || !text.contains("proto::envoy"),
            "{}",
            file.display()
        );
    }
}

#[test]
fn the_readme_names_every_setting_and_every_metric() {
    let readme = fs::read_to_string("README.md").unwrap();
    let command = Settings::augment_args(Command::new("comporta"));
    for argument in command.get_arguments() {
        if let (Some(flag), Some(variable)) = (argument.get_long(), argument.get_env()) {
            let (flag, variable) = (format!("`--{flag}`"), variable.to_string_lossy());
            assert!(readme.contains(&flag), "README.md lacks {flag}");
            assert!(readme.contains(&*variable), "README.md lacks {variable}");
        }
    }
    for (name, _) in METRICS {
        assert!(
            readme.contains(&format!("`{name}`")),
            "README.md lacks {name}"
        );
    }
}

fn sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(files.len() > 20, "this test runs in the package's folder");
    files
}

/// `src/store/key.rs` is in room `store`, `src/clock.rs` in `clock`.
fn room_of(file: &Path) -> String {
    let inside = file.strip_prefix("src").unwrap();
    let first = inside.iter().next().unwrap().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// Every `x` of a `crate::x`, also of those in braces.
fn rooms_used(text: &str) -> Vec<String> {
    let uses = text.split("crate::").skip(1);
    let names = uses.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        rest[..end.unwrap_or(rest.len())].to_owned()
    });
    names.filter(|name| !name.is_empty()).collect()
}
