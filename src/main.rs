//! The command line: `serve`, `check`, `explain`.

use std::future::Future;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use comporta::clock::Clock;
use comporta::server::{ServeError, Server, Stop};
use comporta::settings::{LogFormat, Profile, Settings};
use profile::CommandLine;
use tracing_subscriber::filter::ParseError;

mod commands;
mod counters;
mod profile;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A gRPC rate limit decision service, compatible with Envoy's ratelimit.v3
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answers rate limit requests (the default)
    Serve(Box<Settings>),
    /// Reads rules and reports what they say, or what is wrong with them
    Check(commands::CheckArgs),
    /// Says how a request would be decided, and why; charges nothing
    Explain(commands::ExplainArgs),
    /// Reads or resets the counters of a running server, through its debug port
    #[command(subcommand)]
    Counters(counters::Action),
}

fn main() -> ExitCode {
    let variables = |name: &str| std::env::var(name).ok();
    let CommandLine {
        arguments,
        profile,
        without_meaning,
    } = match profile::command_line(std::env::args_os().collect(), &variables) {
        Ok(arguments) => arguments,
        Err(errors) => {
            complain(&errors.join("\n"));
            return ExitCode::from(EXIT_SETTINGS);
        }
    };
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let is_help = !error.use_stderr();
            let _closed_pipe = error.print();
            return if is_help {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(EXIT_SETTINGS)
            };
        }
    };
    match cli.command {
        None => serve(cli.settings, profile, &without_meaning),
        Some(Command::Serve(settings)) => serve(*settings, profile, &without_meaning),
        Some(Command::Check(args)) => commands::check(&args),
        Some(Command::Explain(args)) => commands::explain(args),
        Some(Command::Counters(action)) => counters::run(&action),
    }
}

/// Exit code for settings that make no sense (`EX_USAGE`).
const EXIT_SETTINGS: u8 = 64;
/// Exit code for rules that make no sense (`EX_DATAERR`).
const EXIT_CONFIG: u8 = 65;

fn serve(settings: Settings, profile: Profile, without_meaning: &[&str]) -> ExitCode {
    if let Err(error) = log_to_stderr(&settings) {
        complain(&format!("--log-level: {error}"));
        return ExitCode::from(EXIT_SETTINGS);
    }
    if profile == Profile::Envoyproxy {
        tracing::info!(
            "envoyproxy/ratelimit's variables and defaults hold; --profile comporta turns them off"
        );
    }
    if !without_meaning.is_empty() {
        let variables = without_meaning.join(", ");
        tracing::warn!(variables, "these variables have no meaning here");
    }
    let served = block_on(async {
        let shutdown = shutdown_signal().map_err(ServeError::Start)?;
        let server = Server::bind(settings, Clock::System).await?;
        if let Ok(ports) = server.ports() {
            tracing::info!(grpc = %ports.grpc, http = %ports.http, debug = %ports.debug, "listening");
        }
        server.serve(shutdown).await
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            match error {
                ServeError::Config(_) => ExitCode::from(EXIT_CONFIG),
                ServeError::Store(_)
                | ServeError::Xds(_)
                | ServeError::Tls(_)
                | ServeError::Traces(_) => ExitCode::from(EXIT_SETTINGS),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Runs `future` on this thread.
fn block_on<T>(future: impl Future<Output = Result<T, ServeError>>) -> Result<T, ServeError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Start)?
        .block_on(future)
}

/// Ends on SIGTERM, which an orchestrator sends, or on SIGINT, for which a person waits.
fn shutdown_signal() -> io::Result<impl Future<Output = Stop>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => Stop::Announced,
            _ = interrupt.recv() => Stop::AtOnce,
        }
    })
}

fn log_to_stderr(settings: &Settings) -> Result<(), ParseError> {
    use tracing_subscriber::EnvFilter;
    use tracing_subscriber::filter::LevelFilter;

    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(wanted) => filter.parse_lossy(wanted),
        Err(_) => filter.parse(&settings.log_level)?,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let is_json = match settings.log_format {
        LogFormat::Auto => !io::stderr().is_terminal(),
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    if is_json {
        builder.json().flatten_event(true).init();
    } else {
        builder.init();
    }
    Ok(())
}

/// Writes a message for a person; a closed pipe is no reason to fail.
fn complain(message: &str) {
    let _closed_pipe = writeln!(io::stderr(), "{message}");
}

fn print(text: &str) {
    let _closed_pipe = writeln!(io::stdout(), "{text}");
}
