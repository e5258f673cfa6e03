//! How the process runs: flags, each with an environment variable of its own.
//!
//! What the rules are is another matter: see `config`.

mod grpc;
mod redis;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

pub use grpc::GrpcSettings;
pub use redis::RedisSettings;

/// Where rules are looked for; relative to the working directory.
pub const CONFIG_DEFAULT: &str = "config";
/// Notifications come at once; this is for file systems that send none.
pub const RELOAD_INTERVAL_DEFAULT: &str = "5s";
/// envoyproxy/ratelimit's, so that callers need no change.
pub const HTTP_ADDR_DEFAULT: &str = "0.0.0.0:8080";
/// Loopback only: it shows counters and rules to whoever asks.
pub const DEBUG_ADDR_DEFAULT: &str = "127.0.0.1:6070";
/// About 160 MB when every counter is in use.
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

    /// Let several files add to one domain, instead of refusing the second
    #[arg(long, env = "COMPORTA_MERGE_DOMAINS")]
    pub merge_domains: bool,
}

/// Everything that `serve` can be told.
#[derive(Args, Clone, Debug)]
pub struct Settings {
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

    /// What is said to Redis.
    #[command(flatten)]
    pub redis: RedisSettings,

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

    /// How gRPC is served.
    #[command(flatten)]
    pub grpc: GrpcSettings,

    /// Where /healthcheck, /json and /metrics are served
    #[arg(long, value_name = "ADDR", env = "COMPORTA_HTTP_ADDR", default_value = HTTP_ADDR_DEFAULT)]
    pub http_addr: SocketAddr,

    /// Where /rlconfig, /explain, /counters and /drill are served
    #[arg(long, value_name = "ADDR", env = "COMPORTA_DEBUG_ADDR", default_value = DEBUG_ADDR_DEFAULT)]
    pub debug_addr: SocketAddr,

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

    /// How logs are written; `auto` is text on a terminal and JSON elsewhere
    #[arg(
        long,
        value_name = "FORMAT",
        env = "COMPORTA_LOG_FORMAT",
        default_value = "auto"
    )]
    pub log_format: LogFormat,
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
