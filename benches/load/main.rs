//! Load for a server that speaks Envoy's rate limit protocol, ours or another, with every answer held
//! against the limit.
//!
//! `cargo bench --bench load` starts a server for itself, and `cargo bench --bench load -- --help` says what
//! else there is. Ends with 1 if a call got no answer, or was admitted against the limit.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is a command"
)]

mod allowed;
mod client;
mod report;
mod run;

use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use allowed::{Algorithm, Limit};
use clap::{Parser, ValueEnum};
use comporta::clock::Clock;
use report::{Report, Watched};
use run::{Load, descriptor_key};
use tempfile::TempDir;

/// Sends load to a rate limit server and checks every answer
///
/// A server at --target needs a domain of the name in --domain, with a rule for `key` alone (and for `key_2`
/// and so on, if there are more --descriptors), which allows each value what --limit and the like say.
#[derive(Debug, Parser)]
struct Flags {
    /// The server's gRPC address; without it, one is started whose rules are made of --limit and the like
    #[arg(long, value_name = "ADDR")]
    target: Option<SocketAddr>,

    /// Where the server that is started keeps its counters
    #[arg(
        long,
        value_name = "URL",
        default_value = "memory",
        conflicts_with = "target"
    )]
    store: String,

    /// A process on this machine whose CPU time and memory are of interest, such as the server or its
    /// store; may be repeated
    #[arg(long = "pid", value_name = "ID")]
    pids: Vec<u32>,

    #[command(flatten)]
    load: Load,

    #[command(flatten)]
    limit: Limit,

    /// Cargo says so, and it means nothing
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match measure(Flags::parse()) {
        Ok(report) if report.is_right() => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Ok(report) => {
            print!("{report}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(flags: Flags) -> io::Result<Report> {
    let Flags {
        target,
        store,
        mut pids,
        load,
        limit,
        ..
    } = flags;
    let (addr, _server) = if let Some(addr) = target {
        (addr, None)
    } else {
        let server = Server::start(&store, &load, &limit)?;
        pids.push(server.process.id());
        (server.addr, Some(server))
    };

    let schedule = load.schedule();
    let (sent, processes) = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            thread::sleep(schedule.counts_from.since(Clock::System.now()).into());
            let watched: Vec<_> = pids.iter().filter_map(|&id| Watched::start(id)).collect();
            thread::sleep(schedule.ends.since(Clock::System.now()).into());
            watched.iter().filter_map(Watched::used).collect()
        });
        let sent = load.run(addr, schedule);
        (sent, watcher.join().expect("the watcher doesn't panic"))
    });
    Ok(Report::new(&limit, schedule, sent?, processes))
}

/// A server of our own, until it is dropped.
#[derive(Debug)]
struct Server {
    process: Child,
    addr: SocketAddr,
    _rules: TempDir,
}

impl Server {
    fn start(store: &str, load: &Load, limit: &Limit) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("load.yaml"), rules(load, limit))?;
        let addr = free_addr()?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_comporta"));
        command.arg("--config").arg(folder.path());
        command.args(["--store", store, "--grpc-addr", &addr.to_string()]);
        for flag in ["--http-addr", "--debug-addr"] {
            command.args([flag, &free_addr()?.to_string()]);
        }
        let mut server = Self {
            process: command
                .env("RUST_LOG", "warn")
                .stdin(Stdio::null())
                .spawn()?,
            addr,
            _rules: folder,
        };
        while TcpStream::connect(addr).is_err() {
            if let Some(status) = server.process.try_wait()? {
                return Err(io::Error::other(format!("the server ended: {status}")));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

/// A port that is free at this moment.
fn free_addr() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Rules that hold every value of every descriptor to the limit.
fn rules(load: &Load, limit: &Limit) -> String {
    let burst = match (limit.algorithm, limit.burst) {
        (Algorithm::TokenBucket, Some(burst)) => format!(", burst: {burst}"),
        _ => String::new(),
    };
    let algorithm = limit.algorithm.to_possible_value();
    let algorithm = algorithm.expect("none is hidden");
    let mut rules = format!(
        "domain: {}\nfailure_mode: error\ndescriptors:\n",
        load.domain
    );
    for number in 1..=load.descriptors {
        let _infallible = writeln!(
            rules,
            "  - {{key: {}, rate_limit: {{algorithm: {}, requests_per_unit: {}, unit: second, unit_multiplier: {}{burst}}}}}",
            descriptor_key(number),
            algorithm.get_name(),
            limit.requests,
            limit.window_seconds,
        );
    }
    rules
}
