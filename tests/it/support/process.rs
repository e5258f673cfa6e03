//! The service as a process of its own, for what happens to a process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::http::get;
use super::wait_until;

/// The program, without arguments or environment.
pub(crate) fn comporta() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_comporta"));
    command.env_clear();
    command
}

/// These rules in a folder of their own.
pub(crate) fn rules_file(rules: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    folder
}

/// A process that doesn't outlive the test.
pub(crate) struct Process {
    child: Child,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    log: Arc<Mutex<Vec<Value>>>,
}

/// Starts one, and waits until it is ready.
pub(crate) fn serve(rules: &Path, flags: &[&str]) -> Process {
    let any_port = "127.0.0.1:0";
    let mut command = comporta();
    command.arg("--config").arg(rules);
    for (flag, value) in [
        ("--grpc-addr", any_port),
        ("--http-addr", any_port),
        ("--debug-addr", any_port),
        ("--log-format", "json"),
    ] {
        if !flags.contains(&flag) {
            command.args([flag, value]);
        }
    }
    spawn(command.args(flags))
}

/// Starts what logs JSON, and waits until it is ready.
pub(crate) fn spawn(command: &mut Command) -> Process {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let read =
        |line: std::io::Result<String>| serde_json::from_str::<Value>(&line.unwrap()).unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let listening = loop {
        let line = read(lines.next().expect("it listens"));
        if line["message"] == "listening" {
            break line;
        }
        log.lock().unwrap().push(line);
    };
    // The log is read to its end, or the child would block on a full pipe.
    std::thread::spawn({
        let log = log.clone();
        move || lines.for_each(|line| log.lock().unwrap().push(read(line)))
    });
    let port = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
    let process = Process {
        child,
        grpc: port("grpc"),
        http: port("http"),
        log,
    };
    wait_until("it is ready", || process.is_ready());
    process
}

impl Process {
    pub(crate) fn is_ready(&self) -> bool {
        get(self.http, "/healthcheck").0 == 200
    }

    /// The lines of its log that say this.
    pub(crate) fn lines(&self, message: &str) -> Vec<Value> {
        let log = self.log.lock().unwrap();
        let lines = log.iter().filter(|line| line["message"] == message);
        lines.cloned().collect()
    }

    /// Asks it to stop, as an orchestrator does.
    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        let kill = Command::new("kill").args(["-TERM", &id]).status();
        assert!(kill.unwrap().success());
    }

    /// How it ended.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut exit = None;
        wait_until("it ends", || {
            exit = self.child.try_wait().unwrap();
            exit.is_some()
        });
        exit.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_gone = self.child.wait();
    }
}
