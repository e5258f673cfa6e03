//! How gRPC is served.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::duration;

/// envoyproxy/ratelimit's ports, so that callers need no change.
const GRPC_ADDR_DEFAULT: &str = "0.0.0.0:8081";
/// Long before a load balancer forgets an idle connection.
const KEEPALIVE_INTERVAL_DEFAULT: &str = "30s";
/// A peer that doesn't answer a ping for so long is gone.
const KEEPALIVE_TIMEOUT_DEFAULT: &str = "10s";
/// Callers keep connections for ever; a new instance gets its share of the load within this time.
const CONNECTION_AGE_MAX_DEFAULT: &str = "30m";
/// Longer than any reply is held that its caller still waits for.
const CONNECTION_AGE_GRACE_DEFAULT: &str = "1m";

/// How gRPC is served.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "gRPC")]
pub struct GrpcSettings {
    /// Where gRPC is served
    #[arg(long = "grpc-addr", value_name = "ADDR", env = "COMPORTA_GRPC_ADDR", default_value = GRPC_ADDR_DEFAULT)]
    pub addr: SocketAddr,

    /// A Unix socket where gRPC is served, too, without TLS
    #[arg(
        long = "grpc-socket",
        value_name = "PATH",
        env = "COMPORTA_GRPC_SOCKET"
    )]
    pub socket: Option<PathBuf>,

    /// The certificate (PEM) of the gRPC port, which then speaks TLS; read again when it is renewed
    #[arg(
        id = "grpc_tls_cert",
        long = "grpc-tls-cert",
        value_name = "PATH",
        env = "COMPORTA_GRPC_TLS_CERT",
        requires = "grpc_tls_key"
    )]
    pub tls_cert: Option<PathBuf>,

    /// The key of that certificate (PEM)
    #[arg(
        id = "grpc_tls_key",
        long = "grpc-tls-key",
        value_name = "PATH",
        env = "COMPORTA_GRPC_TLS_KEY",
        requires = "grpc_tls_cert"
    )]
    pub tls_key: Option<PathBuf>,

    /// The authority (PEM) of callers' certificates; without one of those, nobody is served then
    #[arg(
        id = "grpc_client_ca",
        long = "grpc-client-ca",
        value_name = "PATH",
        env = "COMPORTA_GRPC_CLIENT_CA",
        requires = "grpc_tls_cert"
    )]
    pub client_ca: Option<PathBuf>,

    /// The names of callers (DNS or URI, as their certificates say them) that are served; all that the
    /// authority knows if there are none
    #[arg(
        long = "grpc-client-names",
        value_name = "NAME",
        env = "COMPORTA_GRPC_CLIENT_NAMES",
        value_delimiter = ',',
        requires = "grpc_client_ca"
    )]
    pub client_names: Vec<String>,

    /// How often to ask whether a silent caller is still there
    #[arg(long = "grpc-keepalive-interval", value_name = "TIME", env = "COMPORTA_GRPC_KEEPALIVE_INTERVAL", default_value = KEEPALIVE_INTERVAL_DEFAULT, value_parser = duration)]
    pub keepalive_interval: Duration,

    /// How long it has to answer
    #[arg(long = "grpc-keepalive-timeout", value_name = "TIME", env = "COMPORTA_GRPC_KEEPALIVE_TIMEOUT", default_value = KEEPALIVE_TIMEOUT_DEFAULT, value_parser = duration)]
    pub keepalive_timeout: Duration,

    /// How old a connection may become, give or take a tenth, before callers are asked for another, so that new
    /// instances get their share; 0s for any age
    #[arg(long = "grpc-connection-age-max", value_name = "TIME", env = "COMPORTA_GRPC_CONNECTION_AGE_MAX", default_value = CONNECTION_AGE_MAX_DEFAULT, value_parser = duration)]
    pub connection_age_max: Duration,

    /// How long the calls in flight then have to end
    #[arg(long = "grpc-connection-age-grace", value_name = "TIME", env = "COMPORTA_GRPC_CONNECTION_AGE_GRACE", default_value = CONNECTION_AGE_GRACE_DEFAULT, value_parser = duration)]
    pub connection_age_grace: Duration,
}
