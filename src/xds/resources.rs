//! From protobuf to rules.

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Any, Struct, Value};
use serde_json::{Map, Number, Value as Json, json};

use super::TYPE_URL;
use super::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use crate::config::Config;
use crate::config::error::{ConfigError, Place, Problem};
use crate::config::parse::{ParseOptions, parse_resources};
use crate::config::resource::Resource;

/// Reads a set. Either all of it is right, or the result is everything that is wrong.
pub(super) fn parse(resources: &[Any], options: ParseOptions) -> Result<Config, Vec<ConfigError>> {
    let mut read = Vec::new();
    let mut errors = Vec::new();
    for (index, any) in resources.iter().enumerate() {
        let unnamed = || format!("resource {}", index + 1);
        let decoded = decode(any).map_err(|problem| (unnamed(), problem));
        let resource = decoded.and_then(|config| {
            let name = Some(config.name.escape_debug().to_string());
            let name = name.filter(|name| !name.is_empty());
            resource(name.unwrap_or_else(unnamed), config)
        });
        match resource {
            Ok(resource) => read.push(resource),
            Err((name, problem)) => errors.push(error(&name, problem)),
        }
    }
    // Where domains are merged, the order of wildcards is the same for everyone.
    read.sort_by(|a, b| a.name.cmp(&b.name));
    match parse_resources(&read, options) {
        Ok(config) if errors.is_empty() => Ok(config),
        Ok(_) => Err(errors),
        Err(others) => {
            errors.extend(others);
            Err(errors)
        }
    }
}

fn decode(any: &Any) -> Result<RateLimitConfig, Problem> {
    if any.type_url != TYPE_URL {
        return Err(Problem::OtherResource {
            found: any.type_url.escape_debug().to_string(),
            expected: TYPE_URL,
        });
    }
    RateLimitConfig::decode(&*any.value).map_err(|error| Problem::Undecodable(error.to_string()))
}

fn resource(name: String, config: RateLimitConfig) -> Result<Resource, (String, Problem)> {
    match rules(config) {
        Ok(rules) => Ok(Resource {
            name: name.into(),
            rules,
        }),
        Err(problem) => Err((name, problem)),
    }
}

/// What a file would say, by the same keys. What is empty is not written: on the wire, it is the same.
fn rules(config: RateLimitConfig) -> Result<Json, Problem> {
    Ok(json!({"domain": config.domain, "descriptors": descriptors(config.descriptors)?}))
}

fn descriptors(messages: Vec<RateLimitDescriptor>) -> Result<Json, Problem> {
    messages.into_iter().map(descriptor).collect()
}

fn descriptor(message: RateLimitDescriptor) -> Result<Json, Problem> {
    let mut map = Map::new();
    map.insert("key".to_owned(), message.key.into());
    if !message.value.is_empty() {
        map.insert("value".to_owned(), message.value.into());
    }
    if let Some(policy) = message.rate_limit {
        map.insert("rate_limit".to_owned(), rate_limit(policy));
    }
    if !message.descriptors.is_empty() {
        let children = descriptors(message.descriptors)?;
        map.insert("descriptors".to_owned(), children);
    }
    for (key, flag) in [
        ("shadow_mode", message.shadow_mode),
        ("detailed_metric", message.detailed_metric),
        ("quota_mode", message.quota_mode),
    ] {
        if flag {
            map.insert(key.to_owned(), true.into());
        }
    }
    if let Some(metadata) = message.metadata {
        map.insert("metadata".to_owned(), structure(metadata)?);
    }
    Ok(Json::Object(map))
}

fn rate_limit(policy: RateLimitPolicy) -> Json {
    let mut map = Map::new();
    match RateLimitUnit::try_from(policy.unit) {
        Ok(RateLimitUnit::Unknown) => None,
        Ok(unit) => map.insert("unit".to_owned(), unit.as_str_name().into()),
        Err(_) => map.insert("unit".to_owned(), policy.unit.into()),
    };
    if policy.unlimited {
        map.insert("unlimited".to_owned(), true.into());
    }
    if policy.requests_per_unit > 0 || !policy.unlimited {
        let requests = policy.requests_per_unit;
        map.insert("requests_per_unit".to_owned(), requests.into());
    }
    if !policy.name.is_empty() {
        map.insert("name".to_owned(), policy.name.into());
    }
    if !policy.replaces.is_empty() {
        let names = policy.replaces.into_iter();
        let names = names.map(|replaced| json!({"name": replaced.name}));
        map.insert("replaces".to_owned(), names.collect());
    }
    Json::Object(map)
}

fn structure(message: Struct) -> Result<Json, Problem> {
    let fields = message.fields.into_iter();
    let fields = fields.map(|(key, field)| Ok((key, value(field)?)));
    Ok(Json::Object(fields.collect::<Result<_, Problem>>()?))
}

fn value(message: Value) -> Result<Json, Problem> {
    Ok(match message.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::NumberValue(number)) => {
            let no_number = || Problem::Metadata(format!("it holds {number}, which is no number"));
            Json::Number(Number::from_f64(number).ok_or_else(no_number)?)
        }
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::BoolValue(flag)) => flag.into(),
        Some(Kind::StructValue(inner)) => structure(inner)?,
        Some(Kind::ListValue(list)) => {
            let values = list.values.into_iter().map(value);
            Json::Array(values.collect::<Result<_, Problem>>()?)
        }
    })
}

fn error(resource: &str, problem: Problem) -> ConfigError {
    let place = Place {
        file: resource.into(),
        position: None,
        path: String::new(),
    };
    ConfigError { place, problem }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nearly_right() -> Vec<u8> {
        let limited = RateLimitDescriptor {
            key: "path".to_owned(),
            value: "/a*".to_owned(),
            rate_limit: Some(RateLimitPolicy {
                unit: RateLimitUnit::Week.into(),
                requests_per_unit: 5,
                ..RateLimitPolicy::default()
            }),
            metadata: Some(Struct {
                fields: [("plan".to_owned(), Value::from("gold"))].into(),
            }),
            ..RateLimitDescriptor::default()
        };
        let config = RateLimitConfig {
            name: "d".to_owned(),
            domain: "d".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                key: "tenant".to_owned(),
                descriptors: vec![limited],
                ..RateLimitDescriptor::default()
            }],
        };
        config.encode_to_vec()
    }

    fn parse_bytes(value: Vec<u8>) -> Result<Config, Vec<ConfigError>> {
        let any = Any {
            type_url: TYPE_URL.to_owned(),
            value,
        };
        parse(&[any], ParseOptions::default())
    }

    #[test]
    fn what_is_right_is_taken() {
        assert_eq!(parse_bytes(nearly_right()).unwrap().rules(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A panic would end the stream for good.
        #[test]
        fn any_bytes_are_read_or_refused(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            more in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let mut bytes = nearly_right();
            for (place, byte) in damage {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            bytes.extend(more);
            let _either = parse_bytes(bytes);
        }
    }
}
