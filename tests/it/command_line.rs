//! The program as it is run: help, exit codes, signals.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::support::http::get;
use crate::support::server::{connect, request};
use crate::support::wait_until;

const RULES: &str = "
domain: d
failure_mode: open
descriptors:
  - key: k
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: leaky_bucket, queue: 5}
";

fn comporta() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_comporta"));
    command.env_clear();
    command
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn rules_file(rules: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    folder
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

/// A child that does not outlive the test.
struct Serving {
    child: Child,
    grpc: SocketAddr,
    http: SocketAddr,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_gone = self.child.wait();
    }
}

fn serve(rules: &tempfile::TempDir) -> Serving {
    let any_port = "127.0.0.1:0";
    let mut child = comporta()
        .arg("--config")
        .arg(rules.path())
        .args([
            "--grpc-addr",
            any_port,
            "--http-addr",
            any_port,
            "--debug-addr",
            any_port,
        ])
        .args(["--log-format", "json"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let listening = log
        .by_ref()
        .map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap())
        .find(|line| line["message"] == "listening")
        .unwrap();
    // The log is read to its end, or the child would block on a full pipe.
    std::thread::spawn(move || log.for_each(drop));
    let port = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
    Serving {
        child,
        grpc: port("grpc"),
        http: port("http"),
    }
}

/// The health flips first, the call that is being held gets its answer, and then the process ends.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_drains() {
    let rules = rules_file(RULES);
    let mut serving = serve(&rules);
    wait_until("it is ready", || get(serving.http, "/healthcheck").0 == 200);
    let mut client = connect(serving.grpc).await;
    let ask = request(&[&[("k", "x")]]);
    client.ask(ask.clone()).await.unwrap();
    let mut held_client = client.clone();
    let held = tokio::spawn(async move { held_client.ask(ask).await });
    wait_until("a reply is held", || {
        get(serving.http, "/metrics")
            .1
            .contains("comporta_held_replies 1")
    });

    let id = serving.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    let answer = held.await.unwrap().expect("a held call ends well");
    assert_eq!(answer.overall_code, 1);
    let mut exit = None;
    wait_until("it ends", || {
        exit = serving.child.try_wait().unwrap();
        std::thread::sleep(Duration::from_millis(10));
        exit.is_some()
    });
    assert_eq!(exit.unwrap().code(), Some(0));
}
