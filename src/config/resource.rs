//! Rules that another program made and sent as a value: over xDS.

use std::sync::Arc;

use serde_json::Value as Json;

use super::error::{Position, Problem};
use super::yaml::{DEPTH_MAX, Field, Map, NODES_MAX, Node, Scalar, Value};

/// One part of a set, as a file is of a folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// What to call it.
    pub name: Arc<str>,
    /// What a file would say, by the same keys.
    pub rules: Json,
}

/// The tree that a file of the same content would be read as, but for the places in it.
pub(super) fn tree(rules: &Json) -> Result<Node, Problem> {
    let mut nodes = 0;
    node(rules, 0, &mut nodes)
}

fn node(value: &Json, depth: usize, nodes: &mut usize) -> Result<Node, Problem> {
    *nodes += 1;
    if depth > DEPTH_MAX {
        return Err(Problem::TooDeep(DEPTH_MAX));
    }
    if *nodes > NODES_MAX {
        return Err(Problem::TooLarge(NODES_MAX));
    }
    let value = match value {
        Json::Null => scalar("null", true),
        Json::Bool(flag) => scalar(&flag.to_string(), true),
        Json::Number(number) => scalar(&number.to_string(), true),
        Json::String(text) => scalar(text, false),
        Json::Array(items) => {
            let items = items.iter().map(|item| node(item, depth + 1, nodes));
            Value::List(items.collect::<Result<Vec<_>, Problem>>()?)
        }
        Json::Object(map) => {
            let fields = map.iter().map(|(key, value)| {
                let value = node(value, depth + 1, nodes)?;
                let at = Position::default();
                Ok((key.clone(), Field { at, value }))
            });
            Value::Map(fields.collect::<Result<Map, Problem>>()?)
        }
    };
    let at = Position::default();
    Ok(Node { at, value })
}

/// As it would be written: text in quotes, so that it is nothing else.
fn scalar(text: &str, is_plain: bool) -> Value {
    Value::Scalar(Scalar {
        text: text.to_owned(),
        is_plain,
    })
}
