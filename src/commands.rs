//! `check` and `explain`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use comporta::algorithm::Micros;
use comporta::clock::Clock;
use comporta::config::{Config, FailureMode, Live, report};
use comporta::failure::Fallback;
use comporta::request::Bounds;
use comporta::response::HeaderNames;
use comporta::server::{self, ServeError};
use comporta::service::{Explanation, Options, Service};
use comporta::settings::{ConfigSettings, ReadingSettings};
use comporta::store::memory::Memory;
use comporta::telemetry::Telemetry;
use comporta::transport::debug::one_descriptor;

use crate::{EXIT_CONFIG, EXIT_SETTINGS, complain, print};

/// What `check` can be told.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Rules: files, or directories whose .yaml and .yml files are read in name order
    #[arg(value_name = "PATH", default_value = comporta::settings::CONFIG_DEFAULT)]
    paths: Vec<PathBuf>,

    #[command(flatten)]
    reading: ReadingSettings,
}

/// What `explain` can be told.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    config: ConfigSettings,

    /// The domain that the request would name
    #[arg(long)]
    domain: String,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The entries of the descriptor, in order
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = entry)]
    entries: Vec<(String, String)>,
}

pub(crate) fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) | None => Err(format!("`{text}` is no entry; write key=value")),
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
    }
}

pub(crate) fn check(args: &CheckArgs) -> ExitCode {
    let settings = ConfigSettings {
        paths: args.paths.clone(),
        reading: args.reading.clone(),
    };
    match server::load(&settings) {
        Ok(config) => {
            print(report::table(&config).trim_end());
            for warning in config.warnings() {
                print(&format!("warning: {warning}"));
            }
            ExitCode::SUCCESS
        }
        Err(errors) => {
            complain(&ServeError::Config(errors).to_string());
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

pub(crate) fn explain(args: ExplainArgs) -> ExitCode {
    let config = match server::load(&args.config) {
        Ok(config) => config,
        Err(errors) => {
            complain(&ServeError::Config(errors).to_string());
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    let bounds = Bounds {
        descriptors_max: 1,
        entries_max: usize::MAX,
    };
    let request = match one_descriptor(args.domain, args.entries, bounds) {
        Ok(request) => request,
        Err(invalid) => {
            complain(&invalid.to_string());
            return ExitCode::from(EXIT_SETTINGS);
        }
    };
    let service = idle_service(config);
    let explained = crate::block_on(async { Ok(service.explain(&request).await) });
    match explained {
        Ok(Ok(explanation)) => {
            print(&show(&explanation, args.json));
            ExitCode::SUCCESS
        }
        Ok(Err(refusal)) => {
            complain(&refusal.to_string());
            ExitCode::from(EXIT_SETTINGS)
        }
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// A service that has counted nothing yet.
fn idle_service(config: Config) -> Service<Arc<Memory>> {
    let telemetry = Arc::new(Telemetry::new());
    let config = Live::new(config, Clock::System, telemetry.clone());
    let memory = || Arc::new(Memory::new(1, telemetry.memory("store")));
    Service::new(
        Arc::new(config),
        memory(),
        Fallback::new(memory(), 1),
        Clock::System,
        telemetry.clone(),
        Options {
            failure_mode: FailureMode::Open,
            store_timeout: Micros::MAX,
            holds_max: 1,
            requests_max: 1,
            header_names: HeaderNames::default(),
            describes_request: false,
            near_limit_ratio: 1.0,
        },
    )
}

fn show(explanation: &Explanation, as_json: bool) -> String {
    if as_json {
        return serde_json::to_string_pretty(explanation).unwrap_or_else(|error| error.to_string());
    }
    if !explanation.domain_exists {
        return format!(
            "there is no domain `{}`, so nothing limits the request",
            explanation.domain
        );
    }
    let mut lines = Vec::new();
    for descriptor in &explanation.descriptors {
        lines.extend(descriptor.steps.iter().cloned());
        lines.push(match &descriptor.rule {
            Some(origin) => format!("{} ({origin})", descriptor.result),
            None => descriptor.result.clone(),
        });
        for limit in &descriptor.limits {
            lines.push(format!("  {}", limit.limit));
            lines.push(format!("  counter {}", limit.counter));
            lines.push(match limit.retry_after_ms {
                Some(wait) => format!("  denies for {wait} ms, {} left", limit.remaining),
                None if limit.admits => format!("  admits, {} left", limit.remaining),
                None => "  always denies".to_owned(),
            });
        }
    }
    lines.push(explanation.verdict.to_owned());
    lines.join("\n")
}
