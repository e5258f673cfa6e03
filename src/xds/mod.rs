//! Rules over xDS: a stream to an aggregated discovery service, over which whole sets of rules come.
//!
//! Each response is a set, and takes the place of the last as a changed folder of files would. It is
//! accepted (ACK), or refused with all that is wrong with it (NACK), and then changes nothing. While there
//! is no server, the last set stays in force.

mod backoff;
mod connect;
mod link;
mod resources;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use prost_types::{Any, Struct, Value, value::Kind};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::uri::Authority;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::{Code, Request, Streaming};

use crate::clock::jitter;
use crate::config::parse::ParseOptions;
use crate::config::{Live, report};
use crate::settings::{Hidden, XdsSettings};
use crate::telemetry::Telemetry;
use connect::{Failure, Server};
use link::Link;
use proto::envoy::config::core::v3::Node;
use proto::envoy::config::core::v3::node::UserAgentVersionType;
use proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use proto::google::rpc::Status;

/// The generated types.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::pedantic,
    missing_debug_implementations
)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/xds/proto.rs"));
}

/// The one kind of resource that is asked for.
const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A stream that hasn't ended after so long is one on which the server just has nothing to say: many don't
/// answer at all before they do.
const SILENCE: Duration = Duration::from_secs(1);

/// Servers made with Go's library send a set that was refused again at once, and would for ever.
const REPEATED_NACK_DELAY: Duration = Duration::from_secs(5);

/// What a NACK says at most, since servers take no more than 4 MB. The log has all of it.
const REPORT_BYTES_MAX: usize = 64 * 1024;

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XdsError {
    /// It isn't repeated, since it may hold a secret.
    #[error("--xds-headers: number {0} is no header; write name=value, in ASCII")]
    Header(usize),
}

/// Follows what an xDS server says the rules are.
#[derive(Debug)]
pub struct Client {
    server: Server,
    node: Node,
    headers: Vec<(AsciiMetadataKey, AsciiMetadataValue)>,
    message_bytes_max: usize,
    options: ParseOptions,
    live: Arc<Live>,
    link: Link,
    /// Streams in a row that ended before anything came.
    failures: u32,
    /// The set in force; none before the first.
    in_force: Option<Set>,
    refused: Option<Refused>,
}

/// Resources as they came, but in an order of ours: the one in which they come means nothing.
type Set = Vec<Any>;

/// The set that came last, if it was refused.
#[derive(Debug)]
struct Refused {
    set: Set,
    report: String,
}

impl Client {
    /// Prepares to follow `server`; `live` gets what it says.
    pub fn new(
        server: Authority,
        settings: &XdsSettings,
        options: ParseOptions,
        live: Arc<Live>,
        telemetry: &Telemetry,
    ) -> Result<Self, XdsError> {
        let headers = settings.headers.iter().enumerate();
        let headers = headers
            .map(|(index, text)| header(text).ok_or(XdsError::Header(index + 1)))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            link: Link::new(server.clone(), telemetry.xds()),
            server: Server::new(server, settings),
            node: node(settings),
            headers,
            message_bytes_max: settings.message_bytes_max,
            options,
            live,
            failures: 0,
            in_force: None,
            refused: None,
        })
    }

    /// Goes on for ever: connects, follows the stream to its end, and waits before it connects anew.
    pub async fn run(mut self) {
        loop {
            let Err(failure) = self.follow().await;
            self.link.lost(&failure);
            sleep(backoff::delay(self.failures, jitter())).await;
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// Follows one stream.
    async fn follow(&mut self) -> Result<Infallible, Failure> {
        let channel = self.server.connect().await?;
        let mut client = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(self.message_bytes_max);
        let (requests, outgoing) = mpsc::channel(1);
        // No version, even after one was accepted: servers count theirs from 1 when they start, so that of
        // a new one may name another set.
        let mut version = String::new();
        let _has_room = requests.try_send(self.request(version.clone(), String::new(), None));
        let mut call = Request::new(ReceiverStream::new(outgoing));
        for (name, value) in &self.headers {
            call.metadata_mut().insert(name, value.clone());
        }
        let mut responses = self.open(client.stream_aggregated_resources(call)).await?;
        while let Some(response) = responses.message().await? {
            if response.type_url != TYPE_URL {
                tracing::debug!(type_url = ?response.type_url, "not asked for");
                continue;
            }
            self.failures = 0;
            let refused = self.take(response.resources).await.err();
            if refused.is_none() {
                version = response.version_info;
            }
            let request = self.request(version.clone(), response.nonce, refused);
            if requests.send(request).await.is_err() {
                break;
            }
        }
        Err(Failure::Ended)
    }

    /// The stream, which a server need not answer before it has something to say.
    async fn open(
        &mut self,
        call: impl Future<Output = Result<tonic::Response<Streaming<DiscoveryResponse>>, tonic::Status>>,
    ) -> Result<Streaming<DiscoveryResponse>, Failure> {
        let mut call = pin!(call);
        let opened = tokio::select! {
            opened = call.as_mut() => opened,
            () = sleep(SILENCE) => {
                self.link.connected();
                call.await
            }
        };
        let opened = opened?;
        self.link.connected();
        Ok(opened.into_inner())
    }

    /// Puts a set in force, or says why not.
    async fn take(&mut self, resources: Vec<Any>) -> Result<(), String> {
        let set = sorted(resources.clone());
        if self.in_force.as_ref() == Some(&set) {
            self.refused = None;
            self.live.confirm();
            return Ok(());
        }
        if let Some(refused) = &self.refused
            && refused.set == set
        {
            sleep(REPEATED_NACK_DELAY).await;
            return Err(refused.report.clone());
        }
        let options = self.options;
        let parsed = spawn_blocking(move || resources::parse(&resources, options)).await;
        match parsed.expect("it doesn't panic, and is not aborted") {
            Ok(config) => {
                for warning in config.warnings() {
                    // Of those who read the log, nobody wrote the rules.
                    tracing::debug!("{warning}");
                }
                self.live.replace(config);
                self.in_force = Some(set);
                self.refused = None;
                Ok(())
            }
            Err(errors) => {
                self.live.refuse(&errors);
                let report = shorten(&report::errors(&errors));
                self.refused = Some(Refused {
                    set,
                    report: report.clone(),
                });
                Err(report)
            }
        }
    }

    fn request(&self, version: String, nonce: String, refused: Option<String>) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: version,
            node: Some(self.node.clone()),
            resource_names: Vec::new(),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce,
            error_detail: refused.map(|message| Status {
                code: Code::InvalidArgument.into(),
                message,
            }),
        }
    }
}

fn node(settings: &XdsSettings) -> Node {
    let metadata = settings.node_metadata.iter().map(|(key, value)| {
        let kind = Some(Kind::StringValue(value.clone()));
        (key.clone(), Value { kind })
    });
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Node {
        id: settings.node_id.clone(),
        metadata: Some(Struct {
            fields: metadata.collect(),
        }),
        user_agent_name: "comporta".to_owned(),
        user_agent_version_type: Some(UserAgentVersionType::UserAgentVersion(version)),
    }
}

fn header(text: &Hidden) -> Option<(AsciiMetadataKey, AsciiMetadataValue)> {
    let (name, value) = text.0.split_once('=').filter(|_| text.0.is_ascii())?;
    let mut value: AsciiMetadataValue = value.parse().ok()?;
    value.set_sensitive(true);
    Some((name.parse().ok()?, value))
}

fn sorted(mut resources: Vec<Any>) -> Set {
    resources.sort_unstable_by(|a, b| (&a.type_url, &a.value).cmp(&(&b.type_url, &b.value)));
    resources
}

/// As many lines as fit.
fn shorten(report: &str) -> String {
    let mut bytes = 0;
    let fits = |line: &&str| {
        bytes += line.len() + 1;
        bytes <= REPORT_BYTES_MAX
    };
    let mut lines: Vec<_> = report.lines().take_while(fits).collect();
    if lines.len() < report.lines().count() {
        lines.push("the rest is in the log of the service");
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_report_is_cut_between_lines() {
        assert_eq!(shorten("one\ntwo"), "one\ntwo");
        let line = "é".repeat(100);
        let long = format!("{line}\n").repeat(1_000);
        let short = shorten(&long);
        assert!(short.len() < REPORT_BYTES_MAX + 100);
        let (lines, last) = short.rsplit_once('\n').unwrap();
        assert!(lines.lines().all(|whole| whole == line));
        assert_eq!(last, "the rest is in the log of the service");
    }
}
