//! How Redis is reached and used.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Hidden, duration};

/// Apart from whatever else is in the database.
const REDIS_PREFIX_DEFAULT: &str = "comporta:";
/// One carries whatever has queued; a second goes out while the first is on its way.
const REDIS_CONNECTIONS_DEFAULT: u32 = 2;
/// On a network that works, connecting takes a few milliseconds.
const REDIS_CONNECT_TIMEOUT_DEFAULT: &str = "100ms";
/// What a Redis that works serves within its deadline, and some kilobytes each.
const REDIS_QUEUE_MAX_DEFAULT: u32 = 4_096;

/// How Redis is reached and used.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Redis")]
pub struct RedisSettings {
    /// The user, if the URL doesn't say it
    #[arg(long = "redis-user", value_name = "NAME", env = "COMPORTA_REDIS_USER")]
    pub user: Option<String>,

    /// The password, if the URL doesn't say it; better in the variable, or in a file
    #[arg(
        long = "redis-password",
        value_name = "TEXT",
        env = "COMPORTA_REDIS_PASSWORD",
        hide_env_values = true
    )]
    pub password: Option<Hidden>,

    /// A file with the password; read again for every connection, so that it can be rotated
    #[arg(
        long = "redis-password-file",
        value_name = "PATH",
        env = "COMPORTA_REDIS_PASSWORD_FILE",
        conflicts_with = "password"
    )]
    pub password_file: Option<PathBuf>,

    /// The user that sentinels know
    #[arg(
        long = "redis-sentinel-user",
        value_name = "NAME",
        env = "COMPORTA_REDIS_SENTINEL_USER"
    )]
    pub sentinel_user: Option<String>,

    /// The password that sentinels ask for
    #[arg(
        long = "redis-sentinel-password",
        value_name = "TEXT",
        env = "COMPORTA_REDIS_SENTINEL_PASSWORD",
        hide_env_values = true
    )]
    pub sentinel_password: Option<Hidden>,

    /// The authority (PEM) that signed the server's certificate; the system's authorities without it
    #[arg(
        long = "redis-tls-ca",
        value_name = "PATH",
        env = "COMPORTA_REDIS_TLS_CA"
    )]
    pub tls_ca: Option<PathBuf>,

    /// Our own certificate (PEM)
    #[arg(
        long = "redis-tls-cert",
        value_name = "PATH",
        env = "COMPORTA_REDIS_TLS_CERT",
        requires = "tls_key"
    )]
    pub tls_cert: Option<PathBuf>,

    /// The key of our own certificate (PEM)
    #[arg(
        long = "redis-tls-key",
        value_name = "PATH",
        env = "COMPORTA_REDIS_TLS_KEY",
        requires = "tls_cert"
    )]
    pub tls_key: Option<PathBuf>,

    /// What counters' names begin with
    #[arg(long = "redis-prefix", value_name = "TEXT", env = "COMPORTA_REDIS_PREFIX", default_value = REDIS_PREFIX_DEFAULT)]
    pub prefix: String,

    /// Connections of each worker thread
    #[arg(long = "redis-connections", value_name = "N", env = "COMPORTA_REDIS_CONNECTIONS", default_value_t = REDIS_CONNECTIONS_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub connections: u32,

    /// How long a connection may take to be made
    #[arg(long = "redis-connect-timeout", value_name = "TIME", env = "COMPORTA_REDIS_CONNECT_TIMEOUT", default_value = REDIS_CONNECT_TIMEOUT_DEFAULT, value_parser = duration)]
    pub connect_timeout: Duration,

    /// Requests of each worker thread that may wait; beyond it the failure mode answers
    #[arg(long = "redis-queue-max", value_name = "N", env = "COMPORTA_REDIS_QUEUE_MAX", default_value_t = REDIS_QUEUE_MAX_DEFAULT, value_parser = clap::value_parser!(u32).range(1..))]
    pub queue_max: u32,
}
