//! Where rules come from, if not from files.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tonic::codegen::http::uri::Authority;

use super::{Hidden, duration};

/// What servers that tell nodes apart know this service by.
const XDS_NODE_ID_DEFAULT: &str = "comporta";
/// Go's gRPC servers, of which most xDS servers are made, hang up on peers that ask more often than
/// every five minutes, unless told otherwise.
const XDS_KEEPALIVE_INTERVAL_DEFAULT: &str = "330s";
/// A server that is there answers in milliseconds.
const XDS_KEEPALIVE_TIMEOUT_DEFAULT: &str = "20s";
/// As of a rule file: a hundred thousand rules are some 10 MB.
const XDS_MESSAGE_BYTES_MAX_DEFAULT: usize = 64 * 1024 * 1024;

/// Where rules come from, if not from files.
///
/// Every flag has an id, since its field's name may be that of another room's.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "xDS")]
pub struct XdsSettings {
    /// The server that rules come from, instead of --config: an aggregated discovery service
    #[arg(id = "xds_server", long = "xds-server", value_name = "HOST:PORT", env = "COMPORTA_XDS_SERVER", value_parser = server)]
    pub server: Option<Authority>,

    /// Be ready before the first set of rules has come; requests get UNAVAILABLE until then
    #[arg(
        id = "xds_start_without_rules",
        long = "xds-start-without-rules",
        env = "COMPORTA_XDS_START_WITHOUT_RULES"
    )]
    pub start_without_rules: bool,

    /// What to call ourselves
    #[arg(id = "xds_node_id", long = "xds-node-id", value_name = "TEXT", env = "COMPORTA_XDS_NODE_ID", default_value = XDS_NODE_ID_DEFAULT)]
    pub node_id: String,

    /// What else to say about ourselves; several, with commas
    #[arg(
        id = "xds_node_metadata",
        long = "xds-node-metadata",
        value_name = "KEY=VALUE",
        env = "COMPORTA_XDS_NODE_METADATA",
        value_delimiter = ',',
        value_parser = pair
    )]
    pub node_metadata: Vec<(String, String)>,

    /// gRPC headers that the server asks for; several, with commas
    #[arg(
        id = "xds_headers",
        long = "xds-headers",
        value_name = "NAME=VALUE",
        env = "COMPORTA_XDS_HEADERS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub headers: Vec<Hidden>,

    /// Speak TLS with the server
    #[arg(id = "xds_tls", long = "xds-tls", env = "COMPORTA_XDS_TLS")]
    pub tls: bool,

    /// The authority (PEM) that signed the server's certificate; Mozilla's authorities without it
    #[arg(
        id = "xds_tls_ca",
        long = "xds-tls-ca",
        value_name = "PATH",
        env = "COMPORTA_XDS_TLS_CA",
        requires = "xds_tls"
    )]
    pub tls_ca: Option<PathBuf>,

    /// Our own certificate (PEM)
    #[arg(
        id = "xds_tls_cert",
        long = "xds-tls-cert",
        value_name = "PATH",
        env = "COMPORTA_XDS_TLS_CERT",
        requires_all = ["xds_tls", "xds_tls_key"]
    )]
    pub tls_cert: Option<PathBuf>,

    /// The key of our own certificate (PEM)
    #[arg(
        id = "xds_tls_key",
        long = "xds-tls-key",
        value_name = "PATH",
        env = "COMPORTA_XDS_TLS_KEY",
        requires = "xds_tls_cert"
    )]
    pub tls_key: Option<PathBuf>,

    /// The name in the server's certificate, if it isn't the host
    #[arg(
        long = "xds-tls-server-name",
        value_name = "NAME",
        env = "COMPORTA_XDS_TLS_SERVER_NAME",
        requires = "xds_tls"
    )]
    pub tls_server_name: Option<String>,

    /// How often to ask whether a silent server is still there
    #[arg(id = "xds_keepalive_interval", long = "xds-keepalive-interval", value_name = "TIME", env = "COMPORTA_XDS_KEEPALIVE_INTERVAL", default_value = XDS_KEEPALIVE_INTERVAL_DEFAULT, value_parser = duration)]
    pub keepalive_interval: Duration,

    /// How long it has to answer
    #[arg(id = "xds_keepalive_timeout", long = "xds-keepalive-timeout", value_name = "TIME", env = "COMPORTA_XDS_KEEPALIVE_TIMEOUT", default_value = XDS_KEEPALIVE_TIMEOUT_DEFAULT, value_parser = duration)]
    pub keepalive_timeout: Duration,

    /// Bytes in a set of rules at most
    #[arg(id = "xds_message_bytes_max", long = "xds-message-bytes-max", value_name = "BYTES", env = "COMPORTA_XDS_MESSAGE_BYTES_MAX", default_value_t = XDS_MESSAGE_BYTES_MAX_DEFAULT)]
    pub message_bytes_max: usize,
}

fn server(text: &str) -> Result<Authority, String> {
    let authority: Option<Authority> = text.parse().ok();
    let has_port = |authority: &Authority| authority.port_u16().is_some_and(|port| port > 0);
    authority
        .filter(|authority| has_port(authority) && !authority.host().is_empty())
        .filter(|authority| !authority.as_str().contains('@'))
        .ok_or_else(|| format!("`{text}` is no server; write host:port"))
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no pair; write key=value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_and_a_port() {
        for right in ["envoy-gateway:18001", "10.0.0.1:1", "[::1]:18000"] {
            assert_eq!(server(right).unwrap().as_str(), right);
        }
        for wrong in [
            "",
            "host",
            "host:",
            ":18000",
            "host:0",
            "http://host:1",
            "u@host:1",
            "h:1/p",
        ] {
            let said = format!("`{wrong}` is no server; write host:port");
            assert_eq!(server(wrong).unwrap_err(), said);
        }
    }
}
