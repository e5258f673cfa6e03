//! The gRPC side: `ShouldRateLimit`, health, reflection.

use std::sync::Arc;

use opentelemetry::propagation::Extractor;
use tonic::metadata::{KeyRef, MetadataMap};
use tonic::service::Routes;
use tonic::{Request as Call, Response, Status};
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::HealthReporter;

use super::proto::FILE_DESCRIPTOR_SET;
use super::proto::envoy::config::core::v3::HeaderValue;
use super::proto::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
};
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code as ProtoCode, DescriptorStatus, RateLimit, rate_limit::Unit as ProtoUnit,
};
use super::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use super::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::{invalid_argument, status};
use crate::algorithm::{Micros, Unit};
use crate::config::matcher::Entry;
use crate::request::{self, Bounds, Descriptor, InvalidRequest, Override, Request, printable};
use crate::response::{Code, CurrentLimit, Decision, Status as Judgement};
use crate::service::{Refusal, Service};
use crate::store::Store;
use crate::telemetry::{CallSpan, Telemetry, Traces};

/// The names under which the service reports its health: of the server as a whole, as
/// envoyproxy/ratelimit does, and by the full name of the service.
pub const HEALTH_NAMES: [&str; 3] = [
    "",
    "ratelimit",
    "envoy.service.ratelimit.v3.RateLimitService",
];

/// Everything that the gRPC port serves.
///
/// # Errors
/// Only if the definitions that reflection serves were broken, which a test rules out.
pub fn routes<S: Store>(
    service: Arc<Service<S>>,
    telemetry: Arc<Telemetry>,
    bounds: Bounds,
    message_max: usize,
    traces: Option<Traces>,
    health: HealthServer<impl Health>,
) -> Result<Routes, tonic_reflection::server::Error> {
    let rls = Rls {
        service,
        telemetry,
        bounds,
        traces,
    };
    let rls = RateLimitServiceServer::new(rls).max_decoding_message_size(message_max);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    Ok(Routes::new(rls).add_service(health).add_service(reflection))
}

/// Reports every name's health.
pub async fn report_health(reporter: &HealthReporter, is_serving: bool) {
    let status = if is_serving {
        tonic_health::ServingStatus::Serving
    } else {
        tonic_health::ServingStatus::NotServing
    };
    for name in HEALTH_NAMES {
        reporter.set_service_status(name, status).await;
    }
}

#[derive(Debug)]
struct Rls<S> {
    service: Arc<Service<S>>,
    telemetry: Arc<Telemetry>,
    bounds: Bounds,
    traces: Option<Traces>,
}

#[tonic::async_trait]
impl<S: Store> RateLimitService for Rls<S> {
    async fn should_rate_limit(
        &self,
        call: Call<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let begin = |traces: &Traces| traces.begin(&Headers(call.metadata()));
        let span = self.traces.as_ref().map(begin);
        let timeout = timeout(call.metadata());
        let request = read(call.into_inner(), timeout, self.bounds).map_err(|invalid| {
            self.telemetry.refused();
            invalid_argument(&invalid)
        })?;
        let decided = self.service.decide(&request).await;
        if let Some(span) = span.filter(CallSpan::is_recording) {
            describe(span, &request, &decided);
        }
        match decided {
            Ok(decision) => Ok(Response::new(write(decision))),
            Err(refusal) => Err(status(&refusal)),
        }
    }
}

/// What came with a call, for whoever looks for the trace that it belongs to.
struct Headers<'c>(&'c MetadataMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0
            .keys()
            .filter_map(|key| match key {
                KeyRef::Ascii(key) => Some(key.as_str()),
                KeyRef::Binary(_) => None,
            })
            .collect()
    }
}

/// Ends the span of a call that was decided, or got no decision.
fn describe(mut span: CallSpan, request: &Request, decided: &Result<Decision, Refusal>) {
    span.say("ratelimit.domain", printable(&request.domain));
    match decided {
        Ok(decision) => {
            let code = code(decision.code).as_str_name().to_ascii_lowercase();
            span.say("ratelimit.code", code);
            if let Some(mode) = decision
                .metadata
                .get("failure_mode")
                .and_then(|mode| mode.as_str())
            {
                span.say("ratelimit.degraded", mode.to_owned());
            }
        }
        Err(refusal) => span.fail(refusal.to_string()),
    }
}

/// What is left of the caller's patience: `grpc-timeout`, up to eight digits and a unit.
fn timeout(metadata: &MetadataMap) -> Option<Micros> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    let micros = match unit {
        "H" => amount * 3_600 * Micros::PER_SECOND,
        "M" => amount * 60 * Micros::PER_SECOND,
        "S" => amount * Micros::PER_SECOND,
        "m" => amount * 1_000,
        "u" => amount,
        "n" => amount / 1_000,
        _ => return None,
    };
    Some(Micros(micros))
}

fn read(
    message: RateLimitRequest,
    timeout: Option<Micros>,
    bounds: Bounds,
) -> Result<Request, InvalidRequest> {
    let addend = message.hits_addend;
    let descriptors = message.descriptors.into_iter().enumerate();
    let descriptors = descriptors
        .map(|(index, descriptor)| read_descriptor(index, descriptor, addend))
        .collect::<Result<Vec<_>, _>>()?;
    Request::new(message.domain, descriptors, timeout, bounds)
}

fn read_descriptor(
    index: usize,
    message: RateLimitDescriptor,
    request_addend: u32,
) -> Result<Descriptor, InvalidRequest> {
    let entries = message.entries.into_iter().map(|entry| Entry {
        key: entry.key,
        value: entry.value,
    });
    let limit = message.limit.map(|limit| read_override(index, limit));
    Ok(Descriptor {
        entries: entries.collect(),
        limit: limit.transpose()?,
        hits: request::hits(
            request_addend,
            message.hits_addend,
            message.is_negative_hits,
        ),
    })
}

fn read_override(index: usize, message: RateLimitOverride) -> Result<Override, InvalidRequest> {
    let unit = request::unit(message.unit).ok_or(InvalidRequest::UnknownUnit {
        descriptor: index,
        unit: message.unit,
    })?;
    Ok(Override {
        requests: message.requests_per_unit,
        unit,
        multiplier: message.unit_multiplier.unwrap_or(1),
    })
}

fn write(decision: Decision) -> RateLimitResponse {
    let header = |header: crate::response::Header| HeaderValue {
        key: header.name.to_owned(),
        value: header.value,
        raw_value: bytes::Bytes::new(),
    };
    RateLimitResponse {
        overall_code: code(decision.code).into(),
        statuses: decision.statuses.into_iter().map(write_status).collect(),
        response_headers_to_add: decision.headers.into_iter().map(header).collect(),
        dynamic_metadata: (!decision.metadata.is_empty()).then(|| structure(decision.metadata)),
        ..RateLimitResponse::default()
    }
}

fn write_status(status: Judgement) -> DescriptorStatus {
    DescriptorStatus {
        code: code(status.code).into(),
        current_limit: status.current_limit.map(write_limit),
        limit_remaining: status.remaining,
        duration_until_reset: status.reset_after.map(|after| prost_types::Duration {
            seconds: i64::try_from(after.as_secs_ceil()).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        quota: None,
    }
}

fn write_limit(limit: CurrentLimit) -> RateLimit {
    RateLimit {
        name: limit.name,
        requests_per_unit: limit.requests,
        unit: unit(limit.unit).into(),
        unit_multiplier: (limit.multiplier != 1).then_some(limit.multiplier),
    }
}

fn code(code: Code) -> ProtoCode {
    match code {
        Code::Ok => ProtoCode::Ok,
        Code::OverLimit => ProtoCode::OverLimit,
    }
}

fn unit(unit: Unit) -> ProtoUnit {
    match unit {
        Unit::Second => ProtoUnit::Second,
        Unit::Minute => ProtoUnit::Minute,
        Unit::Hour => ProtoUnit::Hour,
        Unit::Day => ProtoUnit::Day,
        Unit::Week => ProtoUnit::Week,
        Unit::Month => ProtoUnit::Month,
        Unit::Year => ProtoUnit::Year,
    }
}

fn structure(map: serde_json::Map<String, serde_json::Value>) -> prost_types::Struct {
    let fields = map.into_iter().map(|(key, json)| (key, value(json)));
    prost_types::Struct {
        fields: fields.collect(),
    }
}

fn value(json: serde_json::Value) -> prost_types::Value {
    use prost_types::value::Kind;
    use serde_json::Value;

    let kind = match json {
        Value::Null => Kind::NullValue(0),
        Value::Bool(bool) => Kind::BoolValue(bool),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text),
        Value::Array(values) => Kind::ListValue(prost_types::ListValue {
            values: values.into_iter().map(value).collect(),
        }),
        Value::Object(map) => Kind::StructValue(structure(map)),
    };
    prost_types::Value { kind: Some(kind) }
}
