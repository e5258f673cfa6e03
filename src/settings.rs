//! How the process runs: flags, each with an environment variable of its own.
//!
//! What the rules are is another matter: see `config`.

pub mod envoyproxy;
mod grpc;
mod redis;
mod xds;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

pub use grpc::GrpcSettings;
pub use redis::RedisSettings;
pub use xds::XdsSettings;

/// Where rules are looked for; relative to the working directory.
pub const CONFIG_DEFAULT: &str = "config";
/// Notifications come at once; this is for file systems that send none.
pub const RELOAD_INTERVAL_DEFAULT: &str = "5s";
/// envoyproxy/ratelimit's, so that callers need no change.
pub const HTTP_ADDR_DEFAULT: &str = "0.0.0.0:8080";
/// Loopback only: it shows counters and rules to whoever asks.
pub const DEBUG_ADDR_DEFAULT: &str = "127.0.0.1:6070";
/// About 100 MB when every counter is in use.
pub const MEMORY_COUNTERS_MAX_DEFAULT: usize = 1_000_000;
/// Envoy waits 20 ms for the whole answer; this leaves it half.
pub const STORE_TIMEOUT_DEFAULT: &str = "10ms";
/// As many clients as are ever denied at a time; some 25 MB when all are.
pub const DENIALS_MAX_DEFAULT: usize = 100_000;
/// A held reply is a stream and a timer: some kilobytes.
pub const HOLDS_MAX_DEFAULT: usize = 10_000;
/// Some kilobytes each, and many times what a store that keeps its deadline ever has waiting.
pub const REQUESTS_MAX_DEFAULT: usize = 16_384;
/// Many times what a request for a dozen descriptors needs.
pub const MESSAGE_BYTES_MAX_DEFAULT: usize = 64 * 1024;
/// Envoy sends one descriptor per rate limit action list of a route; a dozen is a lot.
pub const DESCRIPTORS_MAX_DEFAULT: usize = 64;
/// As deep as a configuration is ever nested.
pub const ENTRIES_MAX_DEFAULT: usize = 32;
/// Kubernetes, and Envoy's DNS, take a few seconds to tell everyone that an instance is going.
pub const DRAIN_DELAY_DEFAULT: &str = "5s";
/// With the delay, below Kubernetes' 30 seconds between SIGTERM and SIGKILL.
pub const DRAIN_TIMEOUT_DEFAULT: &str = "20s";

/// As in envoyproxy/ratelimit.
pub const NEAR_LIMIT_RATIO_DEFAULT: &str = "0.8";

/// Enough to see what is normal, at next to no cost.
pub const TRACE_RATIO_DEFAULT: &str = "0.01";

/// Where the rules are.
#[derive(Args, Clone, Debug)]
pub struct ConfigSettings {
    /// Rules: files, or directories whose .yaml and .yml files are read in name order
    #[arg(
        long = "config",
        value_name = "PATH",
        env = "COMPORTA_CONFIG",
        default_value = CONFIG_DEFAULT,
        value_delimiter = ','
    )]
    pub paths: Vec<PathBuf>,

    /// How they are read.
    #[command(flatten)]
    pub reading: ReadingSettings,
}

/// How rules are read.
#[derive(Args, Clone, Debug)]
pub struct ReadingSettings {
    /// Let several files add to one domain, instead of refusing the second
    #[arg(long, env = "COMPORTA_MERGE_DOMAINS")]
    pub merge_domains: bool,

    /// The headers of domains that name none
    #[arg(
        long,
        value_name = "PROFILE",
        env = "COMPORTA_HEADERS",
        default_value = "ratelimit"
    )]
    pub headers: DefaultHeaders,

    /// Fixed windows that don't say otherwise count denied hits, too
    #[arg(long, env = "COMPORTA_CHARGE_DENIED")]
    pub charge_denied: bool,

    /// How rules take part in decisions: as they say; all in shadow mode (counted and reported, never denied); or
    /// all in quota mode (a request is denied only when all of its rules are over)
    #[arg(
        long,
        value_name = "MODE",
        env = "COMPORTA_ENFORCEMENT",
        default_value = "written"
    )]
    pub enforcement: DefaultEnforcement,
}

/// `config::Enforcement`, as a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DefaultEnforcement {
    /// As each rule says.
    Written,
    /// Nothing is denied.
    Shadow,
    /// Denied only when all rules of a request are over.
    Quota,
}

/// `config::HeaderProfile`, as a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DefaultHeaders {
    /// `RateLimit-Limit`, `-Remaining`, `-Reset`.
    #[value(name = "ratelimit")]
    RateLimit,
    /// The same with an `X-` in front.
    #[value(name = "x-ratelimit")]
    XRateLimit,
    /// `RateLimit-Policy` and `RateLimit`.
    Structured,
    /// None.
    None,
}

/// Everything that `serve` can be told.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Whose settings hold: ours, or envoyproxy/ratelimit's variables and defaults, too. The latter if one of its
    /// variables is set that no other program has, or the program is called `ratelimit`
    #[arg(long, value_name = "NAME", env = "COMPORTA_PROFILE")]
    pub profile: Option<Profile>,

    /// The rules.
    #[command(flatten)]
    pub config: ConfigSettings,

    /// How often to look whether rules have changed, beside being told so by the system; 0s for neither, so
    /// that only SIGHUP loads them anew
    #[arg(long, value_name = "TIME", env = "COMPORTA_RELOAD_INTERVAL", default_value = RELOAD_INTERVAL_DEFAULT, value_parser = duration)]
    pub reload_interval: Duration,

    /// Where counters live: memory (in this process), `redis://[user[:password]@]host[:port][/database]`,
    /// rediss:// (TLS), `redis+unix:///path`, `redis-sentinel://host,host,host/primary`,
    /// `redis-cluster://host,host,host`
    #[arg(
        long,
        value_name = "URL",
        env = "COMPORTA_STORE",
        hide_env_values = true,
        default_value = "memory"
    )]
    pub store: Hidden,

    /// Counters that the memory store keeps at most; beyond it the least important make room
    #[arg(long, value_name = "N", env = "COMPORTA_MEMORY_COUNTERS_MAX", default_value_t = MEMORY_COUNTERS_MAX_DEFAULT)]
    pub memory_counters_max: usize,

    /// Denials of Redis that are remembered until they could first be wrong; 0 asks Redis each time
    #[arg(long, value_name = "N", env = "COMPORTA_DENIALS_MAX", default_value_t = DENIALS_MAX_DEFAULT)]
    pub denials_max: usize,

    /// How long the store may take before the failure mode answers
    #[arg(long, value_name = "TIME", env = "COMPORTA_STORE_TIMEOUT", default_value = STORE_TIMEOUT_DEFAULT, value_parser = duration)]
    pub store_timeout: Duration,

    /// What domains that don't write a failure mode answer while the store is unavailable
    #[arg(
        long,
        value_name = "MODE",
        env = "COMPORTA_FAILURE_MODE",
        default_value = "open"
    )]
    pub failure_mode: DefaultFailureMode,

    /// Instances that share the limits; the failure mode `local` divides by it
    #[arg(long, value_name = "N", env = "COMPORTA_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub replicas: u32,

    /// Where /healthcheck, /json and /metrics are served
    #[arg(long, value_name = "ADDR", env = "COMPORTA_HTTP_ADDR", default_value = HTTP_ADDR_DEFAULT)]
    pub http_addr: SocketAddr,

    /// Where /rlconfig, /explain, /counters and /drill are served
    #[arg(long, value_name = "ADDR", env = "COMPORTA_DEBUG_ADDR", default_value = DEBUG_ADDR_DEFAULT)]
    pub debug_addr: SocketAddr,

    /// Another address where /metrics is served
    #[arg(long, value_name = "ADDR", env = "COMPORTA_METRICS_ADDR")]
    pub metrics_addr: Option<SocketAddr>,

    /// What the headers of the profile `ratelimit` are called: those for the limit, for what remains and for the
    /// reset
    #[arg(long, value_name = "NAMES", env = "COMPORTA_HEADER_NAMES", value_parser = header_names)]
    pub header_names: Option<[String; 3]>,

    /// Which part of a limit has to be taken for metrics to call a hit near it, from 0 to 1
    #[arg(long, value_name = "RATIO", env = "COMPORTA_NEAR_LIMIT_RATIO", default_value = NEAR_LIMIT_RATIO_DEFAULT, value_parser = ratio)]
    pub near_limit_ratio: f64,

    /// Show much of the metrics a second time, under the names that envoyproxy/ratelimit gives them
    #[arg(long, env = "COMPORTA_RATELIMIT_METRICS")]
    pub ratelimit_metrics: bool,

    /// Repeat the request in the answer's dynamic metadata
    #[arg(long, env = "COMPORTA_DESCRIBE_REQUESTS")]
    pub describe_requests: bool,

    /// The certificate (PEM) of the HTTP port, which then speaks TLS
    #[arg(
        long,
        value_name = "PATH",
        env = "COMPORTA_HTTP_TLS_CERT",
        requires = "http_tls_key"
    )]
    pub http_tls_cert: Option<PathBuf>,

    /// The key of that certificate (PEM)
    #[arg(
        long,
        value_name = "PATH",
        env = "COMPORTA_HTTP_TLS_KEY",
        requires = "http_tls_cert"
    )]
    pub http_tls_key: Option<PathBuf>,

    /// Threads that answer gRPC; 0 for one per core
    #[arg(long, value_name = "N", env = "COMPORTA_WORKERS", default_value_t = 0)]
    pub workers: usize,

    /// Replies that leaky buckets may hold at a time; beyond it they deny
    #[arg(long, value_name = "N", env = "COMPORTA_HOLDS_MAX", default_value_t = HOLDS_MAX_DEFAULT)]
    pub holds_max: usize,

    /// Requests that may wait for the store at a time; beyond it the failure mode answers
    #[arg(long, value_name = "N", env = "COMPORTA_REQUESTS_MAX", default_value_t = REQUESTS_MAX_DEFAULT)]
    pub requests_max: usize,

    /// Bytes in a request at most
    #[arg(long, value_name = "BYTES", env = "COMPORTA_MESSAGE_BYTES_MAX", default_value_t = MESSAGE_BYTES_MAX_DEFAULT)]
    pub message_bytes_max: usize,

    /// Descriptors in a request at most
    #[arg(long, value_name = "N", env = "COMPORTA_DESCRIPTORS_MAX", default_value_t = DESCRIPTORS_MAX_DEFAULT)]
    pub descriptors_max: usize,

    /// Entries in a descriptor at most
    #[arg(long, value_name = "N", env = "COMPORTA_ENTRIES_MAX", default_value_t = ENTRIES_MAX_DEFAULT)]
    pub entries_max: usize,

    /// How long to go on serving after SIGTERM, not ready any more, until callers have noticed. SIGINT
    /// doesn't wait
    #[arg(long, value_name = "TIME", env = "COMPORTA_DRAIN_DELAY", default_value = DRAIN_DELAY_DEFAULT, value_parser = duration)]
    pub drain_delay: Duration,

    /// How long calls in flight then have to end
    #[arg(long, value_name = "TIME", env = "COMPORTA_DRAIN_TIMEOUT", default_value = DRAIN_TIMEOUT_DEFAULT, value_parser = duration)]
    pub drain_timeout: Duration,

    /// Where spans go over OTLP (gRPC, without TLS); none without it
    #[arg(long, value_name = "URL", env = "COMPORTA_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,

    /// The share of calls that get a span, from 0 to 1, if their caller doesn't say
    #[arg(long, value_name = "RATIO", env = "COMPORTA_TRACE_RATIO", default_value = TRACE_RATIO_DEFAULT, value_parser = ratio)]
    pub trace_ratio: f64,

    /// What is logged: off, error, warn, info, debug or trace, also for a part alone (`comporta::service=debug`);
    /// `RUST_LOG` is obeyed before it
    #[arg(
        long,
        value_name = "LEVEL",
        env = "COMPORTA_LOG_LEVEL",
        default_value = "info"
    )]
    pub log_level: String,

    /// How logs are written; `auto` is text on a terminal and JSON elsewhere
    #[arg(
        long,
        value_name = "FORMAT",
        env = "COMPORTA_LOG_FORMAT",
        default_value = "auto"
    )]
    pub log_format: LogFormat,

    // Groups come last: clap puts whatever follows one under its heading.
    /// How gRPC is served.
    #[command(flatten)]
    pub grpc: GrpcSettings,

    /// What is said to Redis.
    #[command(flatten)]
    pub redis: RedisSettings,

    /// Where rules come from instead.
    #[command(flatten)]
    pub xds: XdsSettings,
}

/// A text that no debug output shows, because it is a password or may hold one.
#[derive(Clone)]
pub struct Hidden(pub String);

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// `config::FailureMode`, as a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DefaultFailureMode {
    /// Requests pass.
    Open,
    /// Requests are denied.
    Closed,
    /// An in-process limiter decides.
    Local,
    /// Callers get UNAVAILABLE.
    Error,
}

/// Whose settings hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Ours.
    Comporta,
    /// envoyproxy/ratelimit's, too.
    Envoyproxy,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For machines, one object a line.
    Json,
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text
        .parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| format!("`{text}` is no ratio; write a number from 0 to 1"))
}

/// Three names of headers, as HTTP allows them, with commas.
fn header_names(text: &str) -> Result<[String; 3], String> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let names: Vec<_> = text.split(',').map(str::to_owned).collect();
    let wrong = names
        .iter()
        .find(|name| name.is_empty() || !name.bytes().all(is_token));
    if let Some(wrong) = wrong {
        return Err(format!(
            "`{wrong}` is no header's name; write letters, digits and `-`"
        ));
    }
    names
        .try_into()
        .map_err(|names: Vec<_>| format!("{} names; write three, with commas", names.len()))
}

/// A span with its unit: `250us`, `10ms`, `5s`, `2m`. A bare number could mean any of them.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let amount: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is not a time; write for example 10ms, 5s or 2m"))?;
    match unit {
        "us" => Ok(Duration::from_micros(amount)),
        "ms" => Ok(Duration::from_millis(amount)),
        "s" => Ok(Duration::from_secs(amount)),
        "m" if amount <= u64::MAX / 60 => Ok(Duration::from_secs(amount * 60)),
        "" => Err(format!(
            "`{text}` has no unit; write for example {text}ms or {text}s"
        )),
        _ => Err(format!("`{unit}` is no unit of time; write us, ms, s or m")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_headers_are_three() {
        let names = ["A", "b-c", "D"].map(str::to_owned);
        assert_eq!(header_names("A,b-c,D"), Ok(names));
        let refused = |text| header_names(text).unwrap_err();
        assert_eq!(refused("A,b"), "2 names; write three, with commas");
        assert_eq!(
            refused("A,b c,D"),
            "`b c` is no header's name; write letters, digits and `-`"
        );
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(duration("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        let refused = |text| duration(text).unwrap_err();
        assert_eq!(
            refused("10"),
            "`10` has no unit; write for example 10ms or 10s"
        );
        assert_eq!(
            refused("10d"),
            "`d` is no unit of time; write us, ms, s or m"
        );
        assert_eq!(
            refused("ms"),
            "`ms` is not a time; write for example 10ms, 5s or 2m"
        );
    }
}
