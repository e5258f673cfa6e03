//! The settings of envoyproxy/ratelimit, in ours.
//!
//! Its variables become flags, which stand before those of the command line and give way to them and
//! to our variables. Its defaults hold where they differ in effect: denied hits count, no headers
//! unless asked for, and a store that is gone is an error. See COMPATIBILITY.md, variable by variable.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Variables that no other program has, or not by accident: one of them turns this profile on.
const SIGNS: [&str; 12] = [
    "BACKEND_TYPE",
    "CONFIG_GRPC_XDS_SERVER_URL",
    "CONFIG_TYPE",
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "LOCAL_CACHE_SIZE_IN_BYTES",
    "NEAR_LIMIT_RATIO",
    "REDIS_SOCKET_TYPE",
    "RUNTIME_APPDIRECTORY",
    "RUNTIME_IGNOREDOTFILES",
    "RUNTIME_ROOT",
    "RUNTIME_SUBDIRECTORY",
    "RUNTIME_WATCH_ROOT",
];

/// Variables that are accepted and have no meaning here.
const WITHOUT_MEANING: [&str; 47] = [
    "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
    "DISABLE_STATS",
    "EXPIRATION_JITTER_MAX_SECONDS",
    "EXTRA_TAGS",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
    "LOCAL_CACHE_SIZE_IN_BYTES",
    "MEMCACHE_HOST_PORT",
    "MEMCACHE_SRV",
    "PROMETHEUS_MAPPER_YAML",
    "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
    "REDIS_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
    "REDIS_PERSECOND",
    "REDIS_PERSECOND_AUTH",
    "REDIS_PERSECOND_PIPELINE_LIMIT",
    "REDIS_PERSECOND_PIPELINE_WINDOW",
    "REDIS_PERSECOND_POOL_SIZE",
    "REDIS_PERSECOND_SENTINEL_AUTH",
    "REDIS_PERSECOND_SOCKET_TYPE",
    "REDIS_PERSECOND_TIMEOUT",
    "REDIS_PERSECOND_TLS",
    "REDIS_PERSECOND_TYPE",
    "REDIS_PERSECOND_URL",
    "REDIS_PIPELINE_LIMIT",
    "REDIS_PIPELINE_WINDOW",
    "REDIS_POOL_ON_EMPTY_BEHAVIOR",
    "REDIS_POOL_SIZE",
    "REDIS_STARTUP_INITIAL_INTERVAL",
    "REDIS_STARTUP_MAX_ELAPSED_TIME",
    "REDIS_STARTUP_MAX_INTERVAL",
    "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
    "RUNTIME_IGNOREDOTFILES",
    "RUNTIME_WATCH_ROOT",
    "STATSD_HOST",
    "STATSD_PORT",
    "STATSD_PROTOCOL",
    "STATS_FLUSH_INTERVAL",
    "TRACING_SERVICE_INSTANCE_ID",
    "TRACING_SERVICE_NAME",
    "TRACING_SERVICE_NAMESPACE",
    "USE_DOG_STATSD",
    "USE_DOG_STATSD_MOGRIFIERS",
    "USE_STATSD",
    "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
    "XDS_CLIENT_BACKOFF_JITTER",
    "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
    "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
];

/// Where its settings come from.
pub type Variables<'v> = &'v dyn Fn(&str) -> Option<String>;

/// Its settings, in ours.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// `--flag` or `--flag=value`.
    pub flags: Vec<String>,
    /// Variables that are set and have no meaning here.
    pub without_meaning: Vec<&'static str>,
    /// What is wrong, a sentence each.
    pub errors: Vec<String>,
}

/// Whether the profile is on although nobody said so.
pub fn is_meant(program: &OsStr, variables: Variables<'_>) -> bool {
    let name = Path::new(program).file_name();
    name == Some(OsStr::new("ratelimit")) || SIGNS.iter().any(|sign| variables(sign).is_some())
}

/// Translates what is set.
pub fn translate(variables: Variables<'_>) -> Translation {
    let mut translator = Translator {
        variables,
        made: Translation::default(),
    };
    translator.listeners();
    translator.tls();
    translator.rules();
    translator.decisions();
    translator.redis();
    translator.telemetry();
    translator.leftovers();
    translator.made
}

struct Translator<'v> {
    variables: Variables<'v>,
    made: Translation,
}

impl Translator<'_> {
    fn listeners(&mut self) {
        for (flag, host, port, default_host, default_port) in [
            ("http-addr", "HOST", "PORT", "0.0.0.0", "8080"),
            ("grpc-addr", "GRPC_HOST", "GRPC_PORT", "0.0.0.0", "8081"),
            // Theirs is open to everyone; ours, which can do more, has to be opened.
            (
                "debug-addr",
                "DEBUG_HOST",
                "DEBUG_PORT",
                "127.0.0.1",
                "6070",
            ),
        ] {
            let (host, port) = (self.text(host), self.text(port));
            if host.is_some() || port.is_some() {
                let host = host.unwrap_or_else(|| default_host.to_owned());
                let port = port.unwrap_or_else(|| default_port.to_owned());
                self.set(flag, &address(&host, &port));
            }
        }
        self.copy("GRPC_UDS", "grpc-socket");
        self.span("GRPC_MAX_CONNECTION_AGE", "grpc-connection-age-max");
        self.span("GRPC_MAX_CONNECTION_AGE_GRACE", "grpc-connection-age-grace");
    }

    fn tls(&mut self) {
        if !self.is_on("GRPC_SERVER_USE_TLS") {
            return;
        }
        self.copy("GRPC_SERVER_TLS_CERT", "grpc-tls-cert");
        self.copy("GRPC_SERVER_TLS_KEY", "grpc-tls-key");
        // The second is Envoy Gateway's name for it.
        let authorities = ["GRPC_CLIENT_TLS_CACERT", "GRPC_SERVER_TLS_CA_CERT"];
        if let Some(authority) = authorities.into_iter().find_map(|name| self.text(name)) {
            self.set("grpc-client-ca", &authority);
            self.copy("GRPC_CLIENT_TLS_SAN", "grpc-client-names");
        }
    }

    fn rules(&mut self) {
        match self.text("CONFIG_TYPE").as_deref() {
            None | Some("FILE") => self.files(),
            Some("GRPC_XDS_SOTW") => self.xds(),
            Some(other) => self.wrong("CONFIG_TYPE", other, "FILE or GRPC_XDS_SOTW"),
        }
        self.switch("MERGE_DOMAIN_CONFIG", "merge-domains");
    }

    fn files(&mut self) {
        let root = self.text("RUNTIME_ROOT");
        let mut path = PathBuf::from(root.unwrap_or_else(|| "/srv/runtime_data/current".into()));
        path.extend(self.text("RUNTIME_SUBDIRECTORY"));
        path.push(
            self.text("RUNTIME_APPDIRECTORY")
                .unwrap_or_else(|| "config".into()),
        );
        self.set("config", &path.to_string_lossy());
    }

    fn xds(&mut self) {
        let server = self.text("CONFIG_GRPC_XDS_SERVER_URL");
        self.set("xds-server", server.as_deref().unwrap_or("localhost:18000"));
        let node = self.text("CONFIG_GRPC_XDS_NODE_ID");
        self.set("xds-node-id", node.as_deref().unwrap_or("default"));
        self.copy("CONFIG_GRPC_XDS_NODE_METADATA", "xds-node-metadata");
        self.switch(
            "FORCE_START_WITHOUT_INITIAL_CONFIG",
            "xds-start-without-rules",
        );
        if let Some(headers) = self.text("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS") {
            let headers = headers
                .split(',')
                .map(|header| header.replacen(':', "=", 1));
            self.set("xds-headers", &headers.collect::<Vec<_>>().join(","));
        }
        if let Some(bytes) = self
            .text("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES")
            .filter(|bytes| bytes != "0")
        {
            self.set("xds-message-bytes-max", &bytes);
        }
        if self.is_on("CONFIG_GRPC_XDS_SERVER_USE_TLS") {
            self.made.flags.push("--xds-tls".to_owned());
            self.copy("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "xds-tls-ca");
            self.copy("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "xds-tls-cert");
            self.copy("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "xds-tls-key");
            self.copy("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "xds-tls-server-name");
        }
    }

    fn decisions(&mut self) {
        self.set("failure-mode", "error");
        if !self.is_on("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") {
            self.made.flags.push("--charge-denied".to_owned());
        }
        if self.is_on("LIMIT_RESPONSE_HEADERS_ENABLED") {
            let name =
                |variable, default: &str| self.text(variable).unwrap_or_else(|| default.to_owned());
            let names = [
                name("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
                name("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
                name("LIMIT_RESET_HEADER", "RateLimit-Reset"),
            ];
            self.set("header-names", &names.join(","));
        } else {
            self.set("headers", "none");
        }
        if self.is_on("SHADOW_MODE") {
            self.set("enforcement", "shadow");
        } else if self.is_on("QUOTA_MODE") {
            self.set("enforcement", "quota");
        }
        self.switch("RESPONSE_DYNAMIC_METADATA", "describe-requests");
    }

    fn redis(&mut self) {
        match self.text("BACKEND_TYPE").as_deref() {
            None | Some("redis") => {}
            Some(other) => self.wrong("BACKEND_TYPE", other, "redis; there is no other backend"),
        }
        if let Some(url) = self.text("REDIS_URL") {
            match self.store(&url) {
                Ok(store) => self.set("store", &store),
                Err(error) => self.made.errors.push(error),
            }
        }
        self.copy("CACHE_KEY_PREFIX", "redis-prefix");
        self.span("REDIS_TIMEOUT", "redis-connect-timeout");
        self.span("REDIS_OP_TIMEOUT", "store-timeout");
        self.copy("REDIS_TLS_CACERT", "redis-tls-ca");
        self.copy("REDIS_TLS_CLIENT_CERT", "redis-tls-cert");
        self.copy("REDIS_TLS_CLIENT_KEY", "redis-tls-key");
        for (variable, prefix) in [
            ("REDIS_AUTH", "redis"),
            ("REDIS_SENTINEL_AUTH", "redis-sentinel"),
        ] {
            let Some(secret) = self.text(variable) else {
                continue;
            };
            let password = match secret.split_once(':') {
                Some((user, password)) => {
                    self.set(&format!("{prefix}-user"), user);
                    password
                }
                None => &secret,
            };
            self.set(&format!("{prefix}-password"), password);
        }
    }

    /// Our URL of a store, or what is wrong with theirs.
    fn store(&self, url: &str) -> Result<String, String> {
        let scheme = if self.is_on("REDIS_TLS") {
            "rediss"
        } else {
            "redis"
        };
        let kind = self
            .text("REDIS_TYPE")
            .unwrap_or_else(|| "SINGLE".to_owned());
        let without_scheme = |item: &str| {
            item.split_once("://")
                .map_or(item, |(_, rest)| rest)
                .to_owned()
        };
        match kind.to_ascii_uppercase().as_str() {
            "SINGLE" if url.starts_with("redis://") => {
                Ok(format!("{scheme}://{}", without_scheme(url)))
            }
            "SINGLE" if url.starts_with("rediss://") => Ok(url.to_owned()),
            "SINGLE"
                if self
                    .text("REDIS_SOCKET_TYPE")
                    .is_none_or(|kind| kind == "unix") =>
            {
                Ok(format!("redis+unix://{url}"))
            }
            "SINGLE" => Ok(format!("{scheme}://{url}")),
            "CLUSTER" => {
                let nodes: Vec<_> = url.split(',').map(without_scheme).collect();
                Ok(format!("{scheme}-cluster://{}", nodes.join(",")))
            }
            "SENTINEL" => {
                let (primary, sentinels) = url
                    .split_once(',')
                    .ok_or_else(|| format!("REDIS_URL is not what REDIS_TYPE `{kind}` needs; write primary,sentinel:port,sentinel:port"))?;
                let sentinels: Vec<_> = sentinels.split(',').map(without_scheme).collect();
                Ok(format!(
                    "{scheme}-sentinel://{}/{primary}",
                    sentinels.join(",")
                ))
            }
            _ => Err(format!(
                "REDIS_TYPE is `{kind}`; write SINGLE, SENTINEL or CLUSTER"
            )),
        }
    }

    fn telemetry(&mut self) {
        if let Some(level) = self.text("LOG_LEVEL") {
            let level = level.to_ascii_lowercase();
            match level.as_str() {
                "trace" | "debug" | "info" | "warn" | "error" => self.set("log-level", &level),
                "warning" => self.set("log-level", "warn"),
                "fatal" | "panic" => self.set("log-level", "error"),
                other => self.wrong("LOG_LEVEL", other, "debug, info, warn or error"),
            }
        }
        self.copy("NEAR_LIMIT_RATIO", "near-limit-ratio");
        self.made.flags.push("--ratelimit-metrics".to_owned());
        if let Some(format) = self.text("LOG_FORMAT") {
            let format = if format == "json" { "json" } else { "text" };
            self.set("log-format", format);
        }
        if self.is_on("USE_PROMETHEUS") {
            let addr = self
                .text("PROMETHEUS_ADDR")
                .unwrap_or_else(|| ":9090".to_owned());
            match addr.rsplit_once(':') {
                Some((host, port)) => self.set("metrics-addr", &address(host, port)),
                None => self.wrong("PROMETHEUS_ADDR", &addr, "[host]:port"),
            }
        }
        let is_grpc = self.text("TRACING_EXPORTER_PROTOCOL").as_deref() == Some("grpc");
        if self.is_on("TRACING_ENABLED") && is_grpc {
            let endpoints = [
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                "OTEL_EXPORTER_OTLP_ENDPOINT",
            ];
            let endpoint = endpoints.into_iter().find_map(|name| self.text(name));
            let endpoint = endpoint.unwrap_or_else(|| "http://localhost:4317".to_owned());
            self.set("otlp-endpoint", &endpoint);
            let share = self.text("TRACING_SAMPLING_RATE");
            self.set("trace-ratio", share.as_deref().unwrap_or("1"));
        } else if self.is_on("TRACING_ENABLED") {
            self.made.without_meaning.push("TRACING_ENABLED");
        }
        if let Some(path) = self.text("PROMETHEUS_PATH")
            && path != "/metrics"
        {
            self.wrong(
                "PROMETHEUS_PATH",
                &path,
                "/metrics, which is where they are",
            );
        }
    }

    /// What is set to no and has no meaning, has the meaning that it should.
    fn leftovers(&mut self) {
        let is_wanted = |name: &&&str| {
            self.text(name).is_some_and(|value| {
                !matches!(
                    value.as_str(),
                    "0" | "f" | "F" | "false" | "FALSE" | "False"
                )
            })
        };
        let unheeded = WITHOUT_MEANING.iter().filter(is_wanted).copied();
        let unheeded: Vec<_> = unheeded.collect();
        self.made.without_meaning.extend(unheeded);
    }

    /// A variable that is set, and not to nothing.
    fn text(&self, name: &str) -> Option<String> {
        (self.variables)(name).filter(|value| !value.is_empty())
    }

    fn is_on(&self, name: &str) -> bool {
        self.text(name).is_some_and(|value| {
            matches!(value.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True")
        })
    }

    fn set(&mut self, flag: &str, value: &str) {
        self.made.flags.push(format!("--{flag}={value}"));
    }

    fn copy(&mut self, name: &str, flag: &str) {
        if let Some(value) = self.text(name) {
            self.set(flag, &value);
        }
    }

    fn switch(&mut self, name: &str, flag: &str) {
        if self.is_on(name) {
            self.made.flags.push(format!("--{flag}"));
        }
    }

    fn span(&mut self, name: &str, flag: &str) {
        let Some(value) = self.text(name) else { return };
        match go_duration(&value) {
            Some(span) => self.set(flag, &format!("{}us", span.as_micros())),
            None => self.wrong(name, &value, "a time such as 10ms, 5s or 1h30m"),
        }
    }

    fn wrong(&mut self, name: &str, value: &str, expected: &str) {
        let error = format!("{name} is `{value}`; write {expected}");
        self.made.errors.push(error);
    }
}

/// `localhost` is the only name that it is ever set to.
fn address(host: &str, port: &str) -> String {
    let host = match host {
        "" => "0.0.0.0",
        "localhost" => "127.0.0.1",
        host => host,
    };
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Go's notation: `1h30m`, `1.5s`, `0`.
fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let amount: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.');
        let unit = &rest[..unit.unwrap_or(rest.len())];
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        sum += amount * seconds;
        rest = &rest[unit.len()..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(sum).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go() {
        for (text, micros) in [
            ("0", Some(0)),
            ("10s", Some(10_000_000)),
            ("1h30m", Some(5_400_000_000)),
            ("1.5s", Some(1_500_000)),
            ("250us", Some(250)),
            ("10", None),
            ("", None),
            ("s", None),
            ("5d", None),
            ("-1s", None),
        ] {
            let found = go_duration(text).map(|span| span.as_micros());
            assert_eq!(found, micros, "{text}");
        }
    }
}
