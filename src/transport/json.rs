//! The same messages as protobuf JSON: both spellings of a field, enums by name or number, 64-bit
//! numbers as text or not, unknown fields refused.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::algorithm::Unit;
use crate::config::matcher::Entry;
use crate::request::{self, Bounds, Descriptor, InvalidRequest, Override, Request};
use crate::response::{Code, CurrentLimit, Decision, Status};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RateLimitRequest {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<RateLimitDescriptor>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Option<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RateLimitDescriptor {
    #[serde(default)]
    entries: Vec<JsonEntry>,
    limit: Option<RateLimitOverride>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RateLimitOverride {
    #[serde(default, alias = "requests_per_unit")]
    requests_per_unit: Option<Number>,
    unit: Option<JsonUnit>,
    #[serde(alias = "unit_multiplier")]
    unit_multiplier: Option<Number>,
}

/// A number, or a text that is one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonUnit {
    Number(i32),
    Name(String),
}

/// Reads the body of a JSON request.
pub(super) fn read(body: &[u8], bounds: Bounds) -> Result<Request, InvalidRequest> {
    let message: RateLimitRequest = serde_json::from_slice(body).map_err(|error| {
        InvalidRequest::Unreadable(format!(
            "the body is not a RateLimitRequest in JSON: {error}"
        ))
    })?;
    let addend = number(
        "hitsAddend",
        message.hits_addend.as_ref(),
        u64::from(u32::MAX),
    )?;
    let addend = u32::try_from(addend.unwrap_or_default()).unwrap_or(u32::MAX);
    let descriptors = message.descriptors.into_iter().enumerate();
    let descriptors = descriptors
        .map(|(index, descriptor)| read_descriptor(index, descriptor, addend))
        .collect::<Result<Vec<_>, _>>()?;
    Request::new(message.domain.into(), descriptors, None, bounds)
}

fn read_descriptor(
    index: usize,
    message: RateLimitDescriptor,
    request_addend: u32,
) -> Result<Descriptor, InvalidRequest> {
    let entries = message.entries.into_iter().map(|entry| Entry {
        key: entry.key.into(),
        value: entry.value.into(),
    });
    let addend = number("hitsAddend", message.hits_addend.as_ref(), u64::MAX)?;
    let limit = message.limit.map(|limit| read_override(index, &limit));
    Ok(Descriptor {
        entries: entries.collect(),
        limit: limit.transpose()?,
        hits: request::hits(
            request_addend,
            addend,
            message.is_negative_hits.unwrap_or(false),
        ),
    })
}

fn read_override(index: usize, message: &RateLimitOverride) -> Result<Override, InvalidRequest> {
    let unknown = |unit| InvalidRequest::UnknownUnit {
        descriptor: index,
        unit,
    };
    let unit = match &message.unit {
        None => return Err(unknown(0)),
        Some(JsonUnit::Number(number)) => request::unit(*number).ok_or(unknown(*number))?,
        Some(JsonUnit::Name(name)) => named_unit(name)?,
    };
    let max = u64::from(u32::MAX);
    let requests = number("requestsPerUnit", message.requests_per_unit.as_ref(), max)?;
    let multiplier = number("unitMultiplier", message.unit_multiplier.as_ref(), max)?;
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(Override {
        requests: narrow(requests.unwrap_or_default()),
        unit,
        multiplier: multiplier.map_or(1, narrow),
    })
}

fn named_unit(name: &str) -> Result<Unit, InvalidRequest> {
    let unit = Unit::ALL
        .into_iter()
        .find(|unit| unit.name().eq_ignore_ascii_case(name));
    unit.ok_or_else(|| {
        InvalidRequest::Unreadable(format!(
            "`unit` is `{}`; write SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
            name.escape_debug()
        ))
    })
}

fn number(field: &str, number: Option<&Number>, max: u64) -> Result<Option<u64>, InvalidRequest> {
    let Some(number) = number else {
        return Ok(None);
    };
    let parsed = match number {
        Number::Number(number) => Some(*number),
        Number::Text(text) => text.parse().ok(),
    };
    match parsed {
        Some(number) if number <= max => Ok(Some(number)),
        _ => Err(InvalidRequest::Unreadable(format!(
            "`{field}` is not a whole number from 0 to {max}"
        ))),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RateLimitResponse {
    overall_code: &'static str,
    statuses: Vec<DescriptorStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<HeaderValue>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    dynamic_metadata: Map<String, Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DescriptorStatus {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<RateLimit>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RateLimit {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    unit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit_multiplier: Option<u32>,
}

#[derive(Serialize)]
struct HeaderValue {
    key: &'static str,
    value: String,
}

/// The decision as a JSON body, fields at their default left out.
pub(super) fn write(decision: Decision) -> Vec<u8> {
    let header = |header: crate::response::Header| HeaderValue {
        key: header.name,
        value: header.value,
    };
    let response = RateLimitResponse {
        overall_code: code(decision.code),
        statuses: decision.statuses.into_iter().map(write_status).collect(),
        response_headers_to_add: decision.headers.into_iter().map(header).collect(),
        dynamic_metadata: decision.metadata,
    };
    serde_json::to_vec(&response).expect("maps have text keys, so this is always JSON")
}

fn write_status(status: Status) -> DescriptorStatus {
    DescriptorStatus {
        code: code(status.code),
        current_limit: status.current_limit.map(write_limit),
        limit_remaining: status.remaining,
        duration_until_reset: status
            .reset_after
            .map(|after| format!("{}s", after.as_secs_ceil())),
    }
}

fn write_limit(limit: CurrentLimit) -> RateLimit {
    RateLimit {
        name: limit.name,
        requests_per_unit: limit.requests,
        unit: limit.unit.name().to_ascii_uppercase(),
        unit_multiplier: (limit.multiplier != 1).then_some(limit.multiplier),
    }
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
