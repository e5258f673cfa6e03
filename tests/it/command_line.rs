//! The program as it is run: help, exit codes, what it prints.

use std::process::{Command, Output};

use crate::support::process::{comporta, rules_file};

const RULES: &str = "
domain: d
failure_mode: open
descriptors:
  - key: k
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: leaky_bucket, queue: 5}
";

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn help_names_every_flag_and_its_variable() {
    let (code, help, _) = output(comporta().arg("--help"));
    assert_eq!(code, Some(0));
    let flags = help.matches("      --").count();
    let variables = help.matches("COMPORTA_").count();
    assert!(flags >= 15, "{help}");
    // Every flag but --help and --version has a variable.
    assert_eq!(variables, flags, "{help}");
}

#[test]
fn settings_that_make_no_sense_exit_with_64() {
    for (arguments, complaint) in [
        (
            ["--grpc-addr", "nowhere"],
            "invalid value 'nowhere' for '--grpc-addr <ADDR>'",
        ),
        (
            ["--store-timeout", "10"],
            "`10` has no unit; write for example 10ms or 10s",
        ),
        (
            ["--failure-mode", "ajar"],
            "[possible values: open, closed, local, error]",
        ),
        (["--confg", "x"], "a similar argument exists: '--config'"),
        (
            ["--store", "mongodb://u:secret@h"],
            "--store: `mongodb` is no kind of store; write memory, redis://",
        ),
    ] {
        let (code, _, stderr) = output(comporta().args(arguments));
        assert_eq!(code, Some(64), "{stderr}");
        assert!(stderr.contains(complaint), "{stderr}");
        assert!(!stderr.contains("secret"), "{stderr}");
    }
}

#[test]
fn rules_that_make_no_sense_exit_with_65() {
    let folder = rules_file("domain: d\ndescriptors:\n  - key: k\n    rate_limt: {}\n  - kye: k\n");
    for command in ["check", "serve"] {
        let mut command_line = comporta();
        command_line.arg(command);
        if command == "serve" {
            command_line.arg("--config");
        }
        let (code, _, stderr) = output(command_line.arg(folder.path()));
        assert_eq!(code, Some(65), "{stderr}");
        assert!(stderr.contains("rules.yaml:4:5: "), "{stderr}");
        assert!(
            stderr.contains("`rate_limit`"),
            "a typo gets a suggestion: {stderr}"
        );
        assert!(
            stderr.contains("rules.yaml:5:5: "),
            "all errors are reported: {stderr}"
        );
    }
    let (code, _, stderr) = output(comporta().args(["check", "/no/such/folder"]));
    assert_eq!(code, Some(65), "{stderr}");
}

#[test]
fn check_prints_what_was_loaded_and_what_is_odd() {
    let folder = rules_file(
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: second, requests_per_unit: 0}\n",
    );
    let (code, stdout, _) = output(comporta().arg("check").arg(folder.path()));
    assert_eq!(code, Some(0));
    assert!(stdout.contains("fixed_window"), "{stdout}");
    assert_eq!(
        stdout.matches("warning: ").count(),
        2,
        "no failure mode, and zero: {stdout}"
    );
}

#[test]
fn explain_needs_no_server() {
    let folder = rules_file(RULES);
    let mut command = comporta();
    command.arg("explain").arg("--config").arg(folder.path());
    let (code, stdout, _) = output(command.args(["--domain", "d", "k=x"]));
    assert_eq!(code, Some(0));
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(
        lines[0],
        "`k` = `x`: no such value, none of 0 wildcards; matched by `k` alone"
    );
    assert!(lines.contains(&"  counter d:k=x:leaky1"), "{stdout}");
    assert_eq!(lines.last(), Some(&"OK"));
}
