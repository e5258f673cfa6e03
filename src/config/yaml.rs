//! YAML as a tree in which everything knows where it was written.
//!
//! Built from the events of serde-saphyr's parser rather than through serde, which would stop at the
//! first error and turn `010` into a number before anyone knows that it is the text of a value.
//! Scalars stay text here; whoever asks for a number or a flag reads one.

use std::collections::HashMap;

use indexmap::IndexMap;
use indexmap::map::Entry;
use serde_saphyr::granit_parser::{
    Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput, Tag,
};

use super::error::{Position, Problem};

/// How deep lists and maps may be nested. Rules are nested as deep as descriptors have entries.
pub(super) const DEPTH_MAX: usize = 100;

/// Scalars, lists and maps in a document, with aliases counted as what they stand for. Some 300 000
/// rules; beyond it, a few lines of aliases of aliases would fill the memory.
pub(super) const NODES_MAX: usize = 4_000_000;

/// A part of a document.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Map),
}

/// What was written, and whether it was quoted.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) is_plain: bool,
}

/// In the order of the document.
pub(super) type Map = IndexMap<String, Field>;

/// A key's place, and its value.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) at: Position,
    pub(super) value: Node,
}

/// What is wrong, and where.
pub(super) type Fault = (Position, Problem);

/// Reads the one document of `text`; none if it is empty or broken. Adds to `faults` what is wrong
/// with it.
pub(super) fn read(text: &str, faults: &mut Vec<Fault>) -> Option<Node> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut reader = Reader {
        events: Parser::new_from_str_with_options(text, options),
        anchors: HashMap::new(),
        nodes: 0,
        faults,
    };
    match reader.document() {
        Ok(node) => node,
        Err(fault) => {
            reader.faults.push(fault);
            None
        }
    }
}

impl Node {
    /// Whether nothing is written here, or the word for it.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar(scalar) => {
                let text = scalar.text.as_str();
                scalar.is_plain && matches!(text, "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }

    /// For a sentence: what is written here.
    pub(super) fn describe(&self) -> String {
        match &self.value {
            _ if self.is_null() => "empty".to_owned(),
            Value::Scalar(scalar) if scalar.is_plain => format!("`{}`", shorten(&scalar.text)),
            Value::Scalar(scalar) => format!("the text \"{}\"", shorten(&scalar.text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }

    fn count(&self) -> usize {
        match &self.value {
            Value::Scalar(_) => 1,
            Value::List(items) => 1 + items.iter().map(Self::count).sum::<usize>(),
            Value::Map(map) => 1 + map.values().map(|field| field.value.count()).sum::<usize>(),
        }
    }
}

/// What fits a line, with nothing in it that could garble a terminal.
pub(super) fn shorten(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    let mut shown: String = text
        .chars()
        .take(SHOWN_MAX)
        .flat_map(|c| {
            let escaped = c.is_control().then(|| c.escape_default());
            let plain = (!c.is_control()).then_some(c);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    shown
}

struct Reader<'i, 'f> {
    events: Parser<'i, StrInput<'i>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    faults: &'f mut Vec<Fault>,
}

impl<'i> Reader<'i, '_> {
    fn next(&mut self) -> Result<(Event<'i>, Span), Fault> {
        match self.events.next() {
            Some(Ok((event, span))) => Ok((event, span)),
            Some(Err(error)) => Err(syntax(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn document(&mut self) -> Result<Option<Node>, Fault> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(root),
                Event::DocumentStart(..) if root.is_some() => {
                    return Err((position(span), Problem::SecondDocument));
                }
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => root = Some(self.node(event, span, 0)?),
            }
        }
    }

    fn node(&mut self, event: Event<'i>, span: Span, depth: usize) -> Result<Node, Fault> {
        let at = position(span);
        if depth > DEPTH_MAX {
            return Err((at, Problem::TooDeep(DEPTH_MAX)));
        }
        let (value, anchor) = match event {
            Event::Alias(anchor) => return self.alias(anchor, at),
            Event::Scalar(text, style, anchor, tag) => {
                self.check_tag(tag.as_deref(), at);
                let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
                let scalar = Scalar {
                    text: text.into_owned(),
                    is_plain: style == ScalarStyle::Plain && !is_text,
                };
                (Value::Scalar(scalar), anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), at);
                (Value::List(self.list(depth)?), anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), at);
                (Value::Map(self.map(depth)?), anchor)
            }
            other => {
                let problem = Problem::Syntax(format!("{other:?} is out of place"));
                return Err((at, problem));
            }
        };
        self.count(1, at)?;
        let node = Node { at, value };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// An anchor is known once its node is complete, so nothing can contain itself.
    fn alias(&mut self, anchor: usize, at: Position) -> Result<Node, Fault> {
        let Some(node) = self.anchors.get(&anchor) else {
            let problem = Problem::Syntax("an alias inside of what it stands for".to_owned());
            return Err((at, problem));
        };
        let node = node.clone();
        self.count(node.count(), at)?;
        Ok(node)
    }

    fn count(&mut self, nodes: usize, at: Position) -> Result<(), Fault> {
        self.nodes += nodes;
        if self.nodes > NODES_MAX {
            return Err((at, Problem::TooLarge(NODES_MAX)));
        }
        Ok(())
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Fault> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Map, Fault> {
        let mut map = Map::new();
        let mut merged = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let key = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            match key.value {
                Value::Scalar(key_text) if key_text.is_plain && key_text.text == "<<" => {
                    merged.push(value);
                }
                Value::Scalar(key_text) => self.insert(&mut map, key_text.text, key.at, value),
                _ => self.faults.push((key.at, Problem::KeyIsNoText)),
            }
        }
        for source in merged {
            self.merge(&mut map, source);
        }
        Ok(map)
    }

    fn insert(&mut self, map: &mut Map, key: String, at: Position, value: Node) {
        match map.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Field { at, value });
            }
            Entry::Occupied(first) => {
                let problem = Problem::DuplicateKey {
                    key: shorten(first.key()),
                    first_line: first.get().at.line,
                };
                self.faults.push((at, problem));
            }
        }
    }

    /// `<<: *defaults`: what the map doesn't say itself, it takes from there.
    fn merge(&mut self, map: &mut Map, source: Node) {
        let sources = match source.value {
            Value::List(items) => items,
            _ => vec![source],
        };
        for source in sources {
            let Value::Map(source_map) = source.value else {
                self.faults.push((source.at, Problem::MergeOfNoMap));
                continue;
            };
            for (key, field) in source_map {
                map.entry(key).or_insert(field);
            }
        }
    }

    /// `!!str` and its like are YAML's own; others mean nothing here.
    fn check_tag(&mut self, tag: Option<&Tag>, at: Position) {
        if let Some(tag) = tag
            && !tag.is_yaml_core_schema()
        {
            let tag = shorten(&tag.to_string());
            self.faults.push((at, Problem::UnknownTag(tag)));
        }
    }
}

fn syntax(error: &ScanError) -> Fault {
    let marker = error.marker();
    let at = Position::new(marker.line(), marker.col() + 1);
    (at, Problem::Syntax(error.info()))
}

fn position(span: Span) -> Position {
    Position::new(span.start.line(), span.start.col() + 1)
}
