//! One map of the document, key by key: which keys there may be, and of what kind their values are.

use std::ops::RangeInclusive;

use super::error::{Position, Problem};
use super::findings::{At, Document, Findings};
use super::raw::any_of;
use super::yaml::{Map, Node, Scalar, Value, shorten};

/// Where a map stands, and the keys that it may have.
const GRAMMAR: [(&str, &[&str]); 7] = [
    (
        "the document",
        &[
            "domain",
            "failure_mode",
            "headers",
            "hash_tag",
            "defaults",
            "max_log_entries",
            "descriptors",
            // What a control plane calls the configuration. Nothing depends on it.
            "name",
        ],
    ),
    ("`defaults`", &["algorithm", "charge_denied"]),
    (
        "a descriptor",
        &[
            "key",
            "value",
            "rate_limit",
            "descriptors",
            "shadow_mode",
            "quota_mode",
            "failure_mode",
            "charge_denied",
            "ip_prefix",
            "share_threshold",
            "value_to_metric",
            "detailed_metric",
            "metadata",
        ],
    ),
    (
        "`rate_limit`",
        &[
            "unit",
            "unit_multiplier",
            "requests_per_unit",
            "algorithm",
            "burst",
            "queue",
            "delay",
            "charge_denied",
            "lease",
            "unlimited",
            "name",
            "replaces",
        ],
    ),
    ("`replaces`", &["name"]),
    ("`ip_prefix`", &["ipv4", "ipv6"]),
    ("`lease`", &["max_share"]),
];

/// A map that is being read.
pub(super) struct Fields<'n, 'f> {
    file: &'n Document,
    map: &'n Map,
    at: Position,
    within: &'static str,
    findings: &'f mut Findings,
}

impl<'n, 'f> Fields<'n, 'f> {
    /// Reads `node`, which must be a map, and reports the keys that it should not have.
    pub(super) fn new(
        file: &'n Document,
        node: &'n Node,
        within: &'static str,
        findings: &'f mut Findings,
    ) -> Option<Self> {
        let Value::Map(_) = &node.value else {
            let problem = wrong_kind(within, node, "keys and values");
            findings.error(file, node.at, problem);
            return None;
        };
        let fields = Self::checked(file, node, within, findings)?;
        for (key, field) in fields.map {
            if let Some(problem) = unknown_key(key, within) {
                fields.findings.error(file, field.at, problem);
            }
        }
        Some(fields)
    }

    /// The same map again, once its keys have been reported.
    pub(super) fn checked(
        file: &'n Document,
        node: &'n Node,
        within: &'static str,
        findings: &'f mut Findings,
    ) -> Option<Self> {
        let Value::Map(map) = &node.value else {
            return None;
        };
        Some(Self {
            file,
            map,
            at: node.at,
            within,
            findings,
        })
    }

    /// Where the map starts.
    pub(super) fn at(&self) -> Position {
        self.at
    }

    /// Where `key` is written, if it has a value.
    pub(super) fn written(&self, key: &str) -> Option<Position> {
        let field = self.map.get(key)?;
        (!field.value.is_null()).then_some(field.at)
    }

    /// The value of `key`, whatever it is.
    pub(super) fn node(&self, key: &str) -> Option<&'n Node> {
        let field = self.map.get(key)?;
        (!field.value.is_null()).then_some(&field.value)
    }

    /// Any scalar, as it is written; a key without a value is empty.
    pub(super) fn text(&mut self, key: &'static str) -> Option<At<String>> {
        let node = &self.map.get(key)?.value;
        let value = match &node.value {
            _ if node.is_null() => String::new(),
            Value::Scalar(scalar) => scalar.text.clone(),
            _ => return self.refuse(key, node, "a text"),
        };
        Some(At { at: node.at, value })
    }

    /// `true` or `false`, or one of YAML 1.1's other words for them.
    pub(super) fn flag(&mut self, key: &'static str) -> Option<At<bool>> {
        let node = self.node(key)?;
        let at = node.at;
        match plain(node).and_then(flag) {
            Some(value) => Some(At { at, value }),
            None => self.refuse(key, node, "true or false"),
        }
    }

    /// A whole number in `range`.
    pub(super) fn number(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u32>,
    ) -> Option<At<u32>> {
        let node = self.node(key)?;
        let at = node.at;
        let number = plain(node).and_then(whole_number);
        match number.and_then(|number| u32::try_from(number).ok()) {
            Some(value) if range.contains(&value) => Some(At { at, value }),
            _ => {
                let (low, high) = range.into_inner();
                let expected = format!("a whole number from {low} to {high}, without quotes");
                self.refuse(key, node, &expected)
            }
        }
    }

    /// A whole number of percent in `range`, with the sign.
    pub(super) fn percent(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u8>,
    ) -> Option<At<u8>> {
        let node = self.node(key)?;
        let at = node.at;
        let text = match &node.value {
            Value::Scalar(scalar) => scalar.text.as_str(),
            _ => "",
        };
        let number = text.strip_suffix('%').and_then(whole_number);
        match number.and_then(|number| u8::try_from(number).ok()) {
            Some(value) if range.contains(&value) => Some(At { at, value }),
            _ => {
                let (low, high) = range.into_inner();
                self.refuse(key, node, &format!("a whole number from {low}% to {high}%"))
            }
        }
    }

    /// One of the named values, in upper or lower case.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<At<T>> {
        let node = self.node(key)?;
        let at = node.at;
        let text = match &node.value {
            Value::Scalar(scalar) => scalar.text.as_str(),
            _ => "",
        };
        let chosen = choices
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text));
        if let Some(&(_, value)) = chosen {
            return Some(At { at, value });
        }
        let expected = any_of(choices.iter().map(|(name, _)| name));
        self.refuse(key, node, &expected)
    }

    /// The items of a list; none where nothing is written.
    pub(super) fn list(&mut self, key: &'static str) -> &'n [Node] {
        let Some(node) = self.node(key) else {
            return &[];
        };
        match &node.value {
            Value::List(items) => items,
            _ => self.refuse(key, node, "a list").unwrap_or_default(),
        }
    }

    /// The map under `key`, which is the only one of its kind.
    pub(super) fn map(&mut self, key: &'static str) -> Option<Fields<'n, '_>> {
        let within = GRAMMAR
            .iter()
            .map(|(within, _)| *within)
            .find(|within| within.trim_matches('`') == key)?;
        let node = self.node(key)?;
        self.inner(node, within)
    }

    /// A map inside of this one.
    pub(super) fn inner(&mut self, node: &'n Node, within: &'static str) -> Option<Fields<'n, '_>> {
        Fields::new(self.file, node, within, self.findings)
    }

    /// Reports that `key` is missing.
    pub(super) fn missing<T>(&mut self, key: &'static str) -> Option<T> {
        let within = self.within;
        self.fail(self.at, Problem::MissingKey { key, within })
    }

    /// Reports a problem; there is no value then.
    pub(super) fn fail<T>(&mut self, at: Position, problem: Problem) -> Option<T> {
        self.findings.error(self.file, at, problem);
        None
    }

    fn refuse<T>(&mut self, key: &str, node: &Node, expected: &str) -> Option<T> {
        self.fail(node.at, wrong_kind(&format!("`{key}`"), node, expected))
    }
}

fn wrong_kind(what: &str, node: &Node, expected: &str) -> Problem {
    Problem::WrongKind {
        what: what.to_owned(),
        found: node.describe(),
        expected: expected.to_owned(),
    }
}

fn unknown_key(key: &str, within: &'static str) -> Option<Problem> {
    let allowed = GRAMMAR.iter().find(|(place, _)| *place == within);
    let allowed = allowed.map_or(&[][..], |(_, keys)| *keys);
    if allowed.contains(&key) {
        return None;
    }
    let key_shown = shorten(key);
    let elsewhere = GRAMMAR.iter().filter(|(_, keys)| keys.contains(&key));
    let elsewhere: Vec<_> = elsewhere.map(|(place, _)| place).collect();
    if !elsewhere.is_empty() {
        return Some(Problem::MisplacedKey {
            key: key_shown,
            within,
            belongs_in: any_of(elsewhere),
        });
    }
    let hint = match nearest(key, allowed) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("write {}", any_of(allowed)),
    };
    Some(Problem::UnknownKey {
        key: key_shown,
        within,
        hint,
    })
}

/// The allowed key that is at most a third of its letters away.
fn nearest(key: &str, allowed: &[&'static str]) -> Option<&'static str> {
    let distance = |allowed: &&str| strsim::damerau_levenshtein(key, allowed);
    let nearest = allowed.iter().min_by_key(|allowed| distance(allowed))?;
    (distance(nearest) * 3 <= nearest.len().max(3)).then_some(*nearest)
}

fn plain(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar(Scalar {
            text,
            is_plain: true,
        }) => Some(text),
        _ => None,
    }
}

/// What YAML 1.1, and so the reference, takes for a boolean.
pub(super) fn flag(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            Some(true)
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            Some(false)
        }
        _ => None,
    }
}

/// Decimal, or with `0x`, `0o`, `0b`; digits may be grouped with `_`. A leading zero, which is octal
/// to one reader and decimal to the next, is refused.
pub(super) fn whole_number(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|&c| c != '_').collect();
    let (digits, radix) = match digits.get(..2) {
        Some("0x") => (&digits[2..], 16),
        Some("0o") => (&digits[2..], 8),
        Some("0b") => (&digits[2..], 2),
        Some(_) if digits.starts_with('0') => return None,
        _ => (digits.as_str(), 10),
    };
    let is_number = !text.starts_with(['_', '+', '-']) && !digits.starts_with(['+', '-']);
    is_number.then(|| u64::from_str_radix(digits, radix).ok())?
}
