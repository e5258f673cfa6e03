//! The service in this process, on ports of its own, with a clock that stands still.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use clap::Parser;
use comporta::algorithm::Micros;
use comporta::clock::{Clock, ManualClock};
use comporta::server::{Ports, Server, Stop};
use comporta::settings::Settings;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Request, Status};

use super::certificates::Certificates;

/// The start of a window of every length up to a year, so that tests know where they are.
pub(crate) const START: Micros = Micros(365 * 86_400 * 56 * Micros::PER_SECOND);

/// A server that stops when it is dropped.
pub(crate) struct Running {
    pub(crate) ports: Ports,
    pub(crate) clock: ManualClock,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    pub(crate) config: TempDir,
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    settings: Settings,
}

/// Starts a server with these rules.
pub(crate) fn start(rules: &str) -> Running {
    start_with(rules, &[])
}

/// Starts a server with these rules and flags.
pub(crate) fn start_with(rules: &str, flags: &[&str]) -> Running {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    start_in(folder, "", flags)
}

/// Starts a server with the rules that are in a folder, or at a path in it.
pub(crate) fn start_in(config: TempDir, path: &str, flags: &[&str]) -> Running {
    let rules = config.path().join(path);
    let any_port = "127.0.0.1:0";
    let arguments = [
        "comporta",
        "--config",
        rules.to_str().unwrap(),
        "--grpc-addr",
        any_port,
        "--http-addr",
        any_port,
        "--debug-addr",
        any_port,
        "--workers",
        "2",
        // A test that ends with an open client blocks the runtime which would close it.
        "--drain-timeout",
        "100ms",
    ];
    let settings = Flags::parse_from(arguments.iter().chain(flags)).settings;
    let clock = ManualClock::new(START);
    let (stop, stopped) = oneshot::channel();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server_clock = Clock::Manual(clock.clone());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let server = match Server::bind(settings, server_clock).await {
                Ok(server) => server,
                Err(error) => panic!("{error}"),
            };
            ready.send(server.ports().unwrap()).unwrap();
            let stopped = async {
                drop(stopped.await);
                Stop::AtOnce
            };
            server.serve(stopped).await.unwrap();
        });
    });
    Running {
        ports: is_ready.recv().expect("the server starts"),
        clock,
        stop: Some(stop),
        thread: Some(thread),
        config,
    }
}

impl Running {
    pub(crate) async fn client(&self) -> Client {
        connect(self.ports.grpc).await
    }

    /// `POST /json`: status and body.
    pub(crate) fn post_json(&self, body: &str) -> (u16, String) {
        super::http::post(self.ports.http, "/json", body.as_bytes())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "the server panicked"
            );
        }
    }
}

/// A gRPC client made of types that are not ours.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) RateLimitServiceClient<Channel>);

pub(crate) async fn connect(addr: SocketAddr) -> Client {
    let channel = Channel::from_shared(format!("http://{addr}")).unwrap();
    Client(RateLimitServiceClient::new(
        channel.connect().await.unwrap(),
    ))
}

/// The same over TLS, trusting this authority and showing this certificate; none if that is refused,
/// which with TLS 1.3 is only told to the first call.
pub(crate) async fn connect_tls(
    addr: SocketAddr,
    authority: &Certificates,
    shown: Option<&Certificates>,
) -> Option<Client> {
    let read = |path| std::fs::read_to_string(path).unwrap();
    let mut tls = ClientTlsConfig::new()
        .domain_name("localhost")
        .ca_certificate(Certificate::from_pem(read(authority.ca())));
    if let Some(shown) = shown {
        let (certificate, key) = shown.client();
        tls = tls.identity(Identity::from_pem(read(certificate), read(key)));
    }
    let endpoint = Channel::from_shared(format!("https://{addr}")).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect().await.ok()?;
    Some(Client(RateLimitServiceClient::new(channel)))
}

impl Client {
    pub(crate) async fn ask(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        Ok(self.0.should_rate_limit(request).await?.into_inner())
    }

    /// Asks with a `grpc-timeout`, which the client side ignores so that the server's answer is seen.
    pub(crate) async fn ask_within(
        &mut self,
        request: RateLimitRequest,
        grpc_timeout: &str,
    ) -> Result<RateLimitResponse, Status> {
        let mut request = Request::new(request);
        let timeout = grpc_timeout.parse().unwrap();
        request.metadata_mut().insert("grpc-timeout", timeout);
        Ok(self.0.should_rate_limit(request).await?.into_inner())
    }
}

/// A request of one hit to domain `d`, a descriptor for each list of entries.
pub(crate) fn request(descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: descriptors
            .iter()
            .map(|entries| descriptor(entries))
            .collect(),
        hits_addend: 0,
    }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

/// The same descriptor with hits of its own.
pub(crate) fn with_hits(mut descriptor: RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    descriptor.hits_addend = Some(UInt64Value { value: hits });
    descriptor
}
