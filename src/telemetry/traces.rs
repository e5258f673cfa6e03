//! Spans over OTLP, for who asks for them: one for each call, which continues its caller's trace.

use std::time::Duration;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, Status, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

/// How long the last spans have to be delivered when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Where spans come from, and where they go.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

/// The span of a call, until it ends.
#[derive(Debug)]
pub struct CallSpan(opentelemetry_sdk::trace::Span);

impl Traces {
    /// Sends spans there: of calls whose caller samples its own, and of this share of those whose caller
    /// doesn't say. Belongs to the runtime that it is made on, and needs one.
    pub fn new(endpoint: &str, share: f64) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .build()?;
        let named = std::env::var_os("OTEL_SERVICE_NAME").is_some();
        let resource = Resource::builder();
        let resource = if named {
            resource
        } else {
            resource.with_service_name("comporta")
        };
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share)));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler)
            .with_resource(resource.build())
            .build();
        Ok(Self {
            tracer: provider.tracer("comporta"),
            provider,
            propagator: TraceContextPropagator::new(),
        })
    }

    /// A call begins, with these headers.
    #[must_use]
    pub fn begin(&self, headers: &dyn Extractor) -> CallSpan {
        let parent = self
            .propagator
            .extract_with_context(&Context::new(), headers);
        let span = self
            .tracer
            .span_builder("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
            .with_kind(SpanKind::Server);
        CallSpan(span.start_with_context(&self.tracer, &parent))
    }

    /// Delivers what there is. Blocks.
    pub fn end(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_TIMEOUT) {
            tracing::warn!(%error, "the last spans were not delivered");
        }
    }
}

impl CallSpan {
    /// Whether it is worth saying anything.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.0.is_recording()
    }

    /// Something is known about the call.
    pub fn say(&mut self, key: &'static str, value: String) {
        self.0.set_attribute(KeyValue::new(key, value));
    }

    /// The call failed.
    pub fn fail(&mut self, why: String) {
        self.0.set_status(Status::error(why));
    }
}
