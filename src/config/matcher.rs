//! The descriptor tree, and the walk through it.
//!
//! At each level an entry is looked up as `key_value` exactly, then among the wildcards in file
//! order, then as `key` alone; the first hit is final, whatever happens deeper down. A rule applies
//! only at the depth of the descriptor's last entry. These are envoyproxy/ratelimit's rules, the
//! composite `key_value` included, so that its files match here as they do there.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::Rule;

/// One key and value of a descriptor. Bytes, because Envoy forwards header bytes as they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The key; not empty.
    pub key: Bytes,
    /// The value; may be empty.
    pub value: Bytes,
}

/// A level of the tree: what may follow, and what applies if nothing does.
#[derive(Debug, Default)]
pub struct Node {
    children: Vec<Node>,
    /// From `key` or `key_value` to a child.
    exact: HashMap<Box<[u8]>, usize>,
    /// In file order.
    wildcards: Vec<(Wildcard, usize)>,
    /// What applies to a descriptor that ends here.
    pub rule: Option<Arc<Rule>>,
    /// What the counters of this level are counted by.
    pub count_by: CountBy,
}

/// What tells one counter of a level from another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CountBy {
    /// The value as it was sent.
    #[default]
    Value,
    /// Nothing: all values that match the pattern share one counter (`share_threshold`).
    Pattern(Box<[u8]>),
    /// The network that the value, an address, is in (`ip_prefix`).
    Network(IpPrefix),
}

/// How many leading bits of an address name its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPrefix {
    /// Of an IPv4 address: 0 to 32.
    pub ipv4: u8,
    /// Of an IPv6 address: 0 to 128.
    pub ipv6: u8,
}

impl IpPrefix {
    /// How many bits name the network of an address like this one.
    #[must_use]
    pub fn bits(self, address: IpAddr) -> u8 {
        match address {
            IpAddr::V4(_) => self.ipv4,
            IpAddr::V6(_) => self.ipv6,
        }
    }

    /// The network of `value`; none if it is no address. An IPv4 address written as IPv6 counts
    /// as IPv4.
    #[must_use]
    pub fn network(self, value: &[u8]) -> Option<IpAddr> {
        let address: IpAddr = std::str::from_utf8(value).ok()?.parse().ok()?;
        Some(match address.to_canonical() {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.ipv4)).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.ipv6))
                    .unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        })
    }
}

/// How an entry found its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By `key_value`.
    Exact,
    /// By the wildcard of this number, counted in file order.
    Wildcard(usize),
    /// By `key` alone.
    KeyOnly,
}

/// One step of the walk.
#[derive(Clone, Copy, Debug)]
pub struct Level<'c> {
    /// How the entry was found.
    pub how: How,
    /// Where it led.
    pub node: &'c Node,
}

/// The way of one descriptor through the tree.
#[derive(Debug)]
pub struct Walk<'c> {
    /// One per entry that was found; shorter than the descriptor where the walk ended early.
    pub levels: SmallVec<[Level<'c>; 4]>,
    /// The rule at the end, if the walk went all the way.
    pub rule: Option<&'c Arc<Rule>>,
}

impl Node {
    /// Adds a child for `key` and `value`, where an empty value stands for every value. None if
    /// there is one already under the same composite key.
    pub fn insert(&mut self, key: &str, value: &str) -> Option<&mut Self> {
        let composite = composite_key(key, value);
        let index = self.children.len();
        if self.exact.contains_key(composite.as_bytes()) {
            return None;
        }
        if composite.contains('*') {
            self.wildcards.push((Wildcard::new(&composite), index));
        }
        self.exact.insert(composite.into_bytes().into(), index);
        self.children.push(Self::default());
        self.children.last_mut()
    }

    /// The composite keys of the wildcards, in file order.
    pub fn wildcards(&self) -> impl Iterator<Item = &str> {
        self.wildcards.iter().map(|(wildcard, _)| &*wildcard.text)
    }

    /// The wildcard that takes every entry which the child of `key` and `value` could match, if there
    /// is one. A `*` in a pattern can only be matched by a `*`, so a pattern that matches another's
    /// text matches all that the other does.
    pub(super) fn hidden_by(&self, key: &str, value: &str) -> Option<&str> {
        let composite = composite_key(key, value);
        let index = *self.exact.get(composite.as_bytes())?;
        let (entries, rivals) = if composite.contains('*') {
            let earlier = self.wildcards.partition_point(|(_, other)| *other < index);
            (composite, &self.wildcards[..earlier])
        } else if value.is_empty() {
            (format!("{key}_*"), &self.wildcards[..])
        } else {
            return None;
        };
        let taker = rivals
            .iter()
            .find(|(rival, _)| rival.matches(entries.as_bytes()));
        taker.map(|(taker, _)| &*taker.text)
    }

    /// Walks the tree along `entries`.
    #[must_use]
    pub fn walk<'c>(&'c self, entries: &[Entry]) -> Walk<'c> {
        let mut walk = Walk {
            levels: SmallVec::new(),
            rule: None,
        };
        let mut node = self;
        for entry in entries {
            let Some(level) = node.step(entry) else {
                return walk;
            };
            node = level.node;
            walk.levels.push(level);
        }
        walk.rule = node.rule.as_ref();
        walk
    }

    fn step(&self, entry: &Entry) -> Option<Level<'_>> {
        let mut composite: SmallVec<[u8; 128]> = SmallVec::new();
        composite.extend_from_slice(&entry.key);
        composite.push(b'_');
        composite.extend_from_slice(&entry.value);

        let level = |how, index: usize| Level {
            how,
            node: &self.children[index],
        };
        if let Some(&index) = self.exact.get(&*composite) {
            return Some(level(How::Exact, index));
        }
        let mut wildcards = self.wildcards.iter().enumerate();
        if let Some((number, &(_, index))) =
            wildcards.find(|(_, (wildcard, _))| wildcard.matches(&composite))
        {
            return Some(level(How::Wildcard(number), index));
        }
        let index = *self.exact.get(&*entry.key)?;
        Some(level(How::KeyOnly, index))
    }

    pub(super) fn collect_rules<'c>(&'c self, rules: &mut Vec<&'c Arc<Rule>>) {
        rules.extend(&self.rule);
        for child in &self.children {
            child.collect_rules(rules);
        }
    }
}

/// `key`, or `key_value` where there is a value.
#[must_use]
pub fn composite_key(key: &str, value: &str) -> String {
    if value.is_empty() {
        key.to_owned()
    } else {
        format!("{key}_{value}")
    }
}

/// A composite key with at least one `*`, each standing for any bytes, or none.
#[derive(Debug)]
struct Wildcard {
    text: Box<str>,
}

impl Wildcard {
    fn new(text: &str) -> Self {
        Self { text: text.into() }
    }

    fn matches(&self, composite: &[u8]) -> bool {
        let mut parts = self.text.as_bytes().split(|&byte| byte == b'*');
        let (Some(first), Some(last)) = (parts.next(), parts.next_back()) else {
            return false;
        };
        let Some(mut middle) = composite
            .strip_prefix(first)
            .and_then(|rest| rest.strip_suffix(last))
        else {
            return false;
        };
        for part in parts {
            match find(middle, part) {
                Some(start) => middle = &middle[start + part.len()..],
                None => return false,
            }
        }
        true
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    if needle.is_empty() {
        return Some(0);
    }
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}
