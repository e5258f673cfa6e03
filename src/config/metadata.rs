//! `metadata`: whatever is written, as the protobuf `Struct` that goes out with an answer.

use serde_json::{Map, Number, Value as Json};

use super::error::Problem;
use super::fields::{Fields, flag, whole_number};
use super::findings::At;
use super::yaml::{Node, Scalar, Value};

/// Reads `metadata`, which must be a map.
pub(super) fn read(fields: &mut Fields<'_, '_>) -> Option<At<Map<String, Json>>> {
    let node = fields.node("metadata")?;
    let at = node.at;
    match json(node) {
        Ok(Json::Object(value)) => Some(At { at, value }),
        Ok(_) => {
            let problem = Problem::WrongKind {
                what: "`metadata`".to_owned(),
                found: node.describe(),
                expected: "keys and values".to_owned(),
            };
            fields.fail(at, problem)
        }
        Err(problem) => fields.fail(at, Problem::Metadata(problem)),
    }
}

fn json(node: &Node) -> Result<Json, String> {
    Ok(match &node.value {
        _ if node.is_null() => Json::Null,
        Value::Scalar(scalar) => self::scalar(scalar)?,
        Value::List(items) => Json::Array(items.iter().map(json).collect::<Result<_, _>>()?),
        Value::Map(map) => {
            let entries = map
                .iter()
                .map(|(key, field)| Ok((key.clone(), json(&field.value)?)));
            Json::Object(entries.collect::<Result<_, String>>()?)
        }
    })
}

/// Unquoted, a scalar is what YAML takes it for. A `Struct` knows one kind of number, the double.
fn scalar(scalar: &Scalar) -> Result<Json, String> {
    let text = scalar.text.as_str();
    if !scalar.is_plain {
        return Ok(Json::String(text.to_owned()));
    }
    if let Some(flag) = flag(text) {
        return Ok(Json::Bool(flag));
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_negative = text.starts_with('-');
    match whole_number(unsigned).map(i64::try_from) {
        Some(Ok(number)) if is_negative => return Ok(Json::from(-number)),
        Some(Ok(number)) => return Ok(Json::from(number)),
        _ => {}
    }
    if matches!(
        unsigned,
        ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN"
    ) {
        return Err(format!("it holds {text}, which is no number"));
    }
    let is_number = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && !(unsigned.len() > 1 && unsigned.starts_with('0') && !unsigned.starts_with("0."));
    let number = is_number.then(|| text.parse().ok()).flatten();
    Ok(match number.and_then(Number::from_f64) {
        Some(number) => Json::Number(number),
        None => Json::String(text.to_owned()),
    })
}
