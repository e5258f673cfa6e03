//! Spans, as a collector receives them.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::support::redis::Redis;
use crate::support::server::{request, start_with};

const RULES: &str = "
domain: d
failure_mode: open
descriptors:
  - key: k
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: strict
    failure_mode: error
    rate_limit: {unit: hour, requests_per_unit: 1}
";

/// The trace that a sampled caller is in; the one of a caller that isn't sampled ends in 00.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let spans = scopes.flat_map(|scope| scope.spans);
        self.0.lock().unwrap().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A collector, and where it listens.
async fn collect() -> (Collector, String) {
    let collector = Collector::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serving = tonic::transport::Server::builder()
        .add_service(TraceServiceServer::new(collector.clone()))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(serving);
    (collector, endpoint)
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|found| found.key == name)?;
    Some(format!("{:?}", found.value.as_ref()?.value.as_ref()?))
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_continue_the_callers_trace() {
    let (collector, endpoint) = collect().await;
    let mut redis = Redis::start();
    let url = redis.url();
    let flags = [
        "--store",
        &url,
        "--store-timeout",
        "2s",
        "--denials-max",
        "0",
    ];
    let traced = ["--otlp-endpoint", &endpoint, "--trace-ratio", "0"];
    let server = start_with(RULES, &[&flags[..], &traced].concat());
    let mut client = server.client().await;
    let mut ask = async |key: &str, flags: Option<&str>| {
        let mut call = Request::new(request(&[&[(key, "x")]]));
        if let Some(flags) = flags {
            let parent = format!("00-{TRACE}-{PARENT}-{flags}");
            let parent = parent.parse().unwrap();
            call.metadata_mut().insert("traceparent", parent);
        }
        client.0.should_rate_limit(call).await
    };
    ask("k", Some("01")).await.unwrap();
    ask("k", Some("01")).await.unwrap();
    // Their caller doesn't sample, or doesn't say.
    ask("k", Some("00")).await.unwrap();
    ask("k", None).await.unwrap();
    redis.kill9();
    ask("k", Some("01")).await.unwrap();
    ask("strict", Some("01")).await.unwrap_err();
    // The last ones are delivered when the process ends.
    tokio::task::spawn_blocking(|| drop(server)).await.unwrap();

    let spans = collector.0.lock().unwrap();
    assert_eq!(spans.len(), 4, "{spans:?}");
    let trace = u128::from_str_radix(TRACE, 16).unwrap();
    let parent = u64::from_str_radix(PARENT, 16).unwrap();
    for span in &*spans {
        assert_eq!(
            span.name,
            "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        );
        assert_eq!(span.trace_id, trace.to_be_bytes());
        assert_eq!(span.parent_span_id, parent.to_be_bytes());
        assert!(span.end_time_unix_nano > span.start_time_unix_nano);
        let domain = attribute(span, "ratelimit.domain").unwrap();
        assert_eq!(domain, "StringValue(\"d\")");
    }
    let codes: Vec<_> = spans
        .iter()
        .map(|span| attribute(span, "ratelimit.code").unwrap_or_default())
        .collect();
    let [ok, over] = ["ok", "over_limit"].map(|code| format!("StringValue(\"{code}\")"));
    assert_eq!(codes, [ok.clone(), over, ok, String::new()]);
    assert_eq!(attribute(&spans[0], "ratelimit.degraded"), None);
    assert_eq!(
        attribute(&spans[2], "ratelimit.degraded").unwrap(),
        "StringValue(\"open\")"
    );
    let status = spans[3].status.as_ref().unwrap();
    assert!(
        status.message.ends_with("the failure mode is `error`"),
        "{status:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_the_others_is_sampled() {
    let (collector, endpoint) = collect().await;
    let flags = ["--otlp-endpoint", &endpoint, "--trace-ratio", "1"];
    let server = start_with(RULES, &flags);
    let mut client = server.client().await;
    for _ in 0..10 {
        client.ask(request(&[&[("k", "x")]])).await.unwrap();
    }
    tokio::task::spawn_blocking(|| drop(server)).await.unwrap();
    assert_eq!(collector.0.lock().unwrap().len(), 10);
}

/// Decisions don't depend on who looks.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_collects() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let flags = ["--otlp-endpoint", &endpoint, "--trace-ratio", "1"];
    let server = start_with(RULES, &flags);
    let mut client = server.client().await;
    for _ in 0..10 {
        client.ask(request(&[&[("k", "x")]])).await.unwrap();
    }
}
