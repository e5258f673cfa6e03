//! An xDS server, made of Envoy's published types. It does what those do that are made with Go's library,
//! Envoy Gateway among them: whoever asks with another version than the current one is answered at once,
//! and so is a NACK; whoever has the current version is answered when there is a new one.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::{Any, Struct};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use super::certificates::Certificates;

pub(crate) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Rules, as envoyproxy/ratelimit's own definitions have them.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitConfig {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Descriptor {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) rate_limit: Option<Policy>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) descriptors: Vec<Descriptor>,
    #[prost(bool, tag = "5")]
    pub(crate) shadow_mode: bool,
    #[prost(bool, tag = "6")]
    pub(crate) detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub(crate) quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    pub(crate) metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Policy {
    /// SECOND to YEAR are 1 to 6, WEEK is 7.
    #[prost(int32, tag = "1")]
    pub(crate) unit: i32,
    #[prost(uint32, tag = "2")]
    pub(crate) requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub(crate) unlimited: bool,
    #[prost(string, tag = "4")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) replaces: Vec<Replace>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Replace {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

impl RateLimitConfig {
    pub(crate) fn packed(&self) -> Any {
        Any {
            type_url: TYPE_URL.to_owned(),
            value: self.encode_to_vec(),
        }
    }
}

/// A server that ends, together with its streams, when it is dropped.
pub(crate) struct Ads {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    snapshot: watch::Sender<Option<Snapshot>>,
    seen: Mutex<Vec<Seen>>,
}

#[derive(Clone)]
struct Snapshot {
    version: String,
    resources: Vec<Any>,
}

/// A request, and the headers of its stream.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) request: DiscoveryRequest,
    pub(crate) headers: MetadataMap,
}

impl Ads {
    /// One that has nothing to say yet.
    pub(crate) fn start() -> Self {
        Self::serve(Server::builder())
    }

    /// The same over TLS, for clients with a certificate of the same authority.
    pub(crate) fn start_with(certificates: &Certificates) -> Self {
        let read = |path| std::fs::read(path).unwrap();
        let (certificate, key) = certificates.server();
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(read(certificate), read(key)))
            .client_ca_root(Certificate::from_pem(read(certificates.ca())));
        Self::serve(Server::builder().tls_config(tls).unwrap())
    }

    fn serve(mut server: Server) -> Self {
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let (bound, is_bound) = std::sync::mpsc::channel();
        let service = AggregatedDiscoveryServiceServer::new(Service(shared.clone()));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                bound.send(listener.local_addr().unwrap()).unwrap();
                let serving = server
                    .add_service(service)
                    .serve_with_incoming(TcpListenerStream::new(listener));
                tokio::select! {
                    ended = serving => ended.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self {
            addr: is_bound.recv().unwrap(),
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// What is the case from now on.
    pub(crate) fn publish(&self, version: &str, resources: &[RateLimitConfig]) {
        let resources = resources.iter().map(RateLimitConfig::packed);
        self.publish_any(version, resources.collect());
    }

    pub(crate) fn publish_any(&self, version: &str, resources: Vec<Any>) {
        self.shared.snapshot.send_replace(Some(Snapshot {
            version: version.to_owned(),
            resources,
        }));
    }

    /// Every request, in the order in which they came.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }
}

impl Drop for Ads {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || std::thread::panicking());
        }
    }
}

struct Service(Arc<Shared>);

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        call: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let headers = call.metadata().clone();
        let (responses, outgoing) = mpsc::channel(8);
        tokio::spawn(answer(
            self.0.clone(),
            headers,
            call.into_inner(),
            responses,
        ));
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("whole sets only"))
    }
}

/// The life of a stream.
async fn answer(
    shared: Arc<Shared>,
    headers: MetadataMap,
    mut requests: Streaming<DiscoveryRequest>,
    responses: mpsc::Sender<Result<DiscoveryResponse, Status>>,
) {
    let mut snapshots = shared.snapshot.subscribe();
    let mut asked_with: Option<String> = None;
    for nonce in 1.. {
        // Until there is something to say, and somebody to whom it is new.
        let snapshot = loop {
            let snapshot = snapshots.borrow_and_update().clone();
            match (&asked_with, snapshot) {
                (Some(version), Some(snapshot)) if *version != snapshot.version => break snapshot,
                _ => {}
            }
            tokio::select! {
                request = requests.next() => {
                    let Some(Ok(request)) = request else { return };
                    asked_with = Some(request.version_info.clone());
                    let headers = headers.clone();
                    shared.seen.lock().unwrap().push(Seen { request, headers });
                }
                _ = snapshots.changed() => {}
            }
        };
        asked_with = None;
        let response = DiscoveryResponse {
            version_info: snapshot.version,
            resources: snapshot.resources,
            type_url: TYPE_URL.to_owned(),
            nonce: format!("nonce {nonce}"),
            ..DiscoveryResponse::default()
        };
        if responses.send(Ok(response)).await.is_err() {
            return;
        }
    }
}
