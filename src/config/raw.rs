//! Rules as they are written: every key in its place, every value of its kind, nothing missing.
//!
//! What only makes sense together (a burst and its algorithm, a name and who refers to it) is
//! `parse`'s business.

use std::fmt::Display;

use serde_json::{Map as JsonMap, Value as Json};

use super::error::{Position, Problem};
use super::fields::Fields;
use super::findings::{At, Document, Findings};
use super::matcher::IpPrefix;
use super::metadata;
use super::resource;
use super::yaml::{self, Node, Value, shorten};
use super::{Delay, FailureMode, HeaderProfile};
use crate::algorithm::{Algorithm, Share, Unit};

/// One file.
#[derive(Debug)]
pub(super) struct RawConfig {
    pub(super) file: Document,
    pub(super) domain: At<String>,
    pub(super) failure_mode: Option<At<FailureMode>>,
    pub(super) headers: Option<At<HeaderProfile>>,
    pub(super) hash_tag: Option<At<String>>,
    pub(super) algorithm: Option<At<Algorithm>>,
    pub(super) charge_denied: Option<At<bool>>,
    pub(super) max_log_entries: Option<At<u32>>,
    pub(super) descriptors: Vec<RawDescriptor>,
}

#[derive(Debug)]
pub(super) struct RawDescriptor {
    pub(super) file: Document,
    pub(super) at: Position,
    pub(super) key: String,
    /// Empty stands for every value.
    pub(super) value: String,
    /// None without `rate_limit`.
    pub(super) limits: Option<Vec<RawLimit>>,
    pub(super) shadow_mode: Option<At<bool>>,
    pub(super) quota_mode: Option<At<bool>>,
    pub(super) detailed_metric: Option<At<bool>>,
    pub(super) value_to_metric: Option<At<bool>>,
    pub(super) share_threshold: Option<At<bool>>,
    pub(super) charge_denied: Option<At<bool>>,
    pub(super) failure_mode: Option<At<FailureMode>>,
    pub(super) ip_prefix: Option<At<IpPrefix>>,
    pub(super) metadata: Option<At<JsonMap<String, Json>>>,
    pub(super) descriptors: Vec<RawDescriptor>,
}

#[derive(Debug)]
pub(super) struct RawLimit {
    pub(super) at: Position,
    /// With this, neither unit nor requests.
    pub(super) unlimited: bool,
    pub(super) unit: Option<Unit>,
    pub(super) unit_multiplier: Option<At<u32>>,
    pub(super) requests_per_unit: Option<At<u32>>,
    pub(super) name: Option<At<String>>,
    pub(super) replaces: Vec<At<String>>,
    pub(super) algorithm: Option<At<Algorithm>>,
    pub(super) burst: Option<At<u32>>,
    pub(super) queue: Option<At<u32>>,
    pub(super) delay: Option<At<Delay>>,
    pub(super) charge_denied: Option<At<bool>>,
    pub(super) lease: Option<At<Share>>,
}

/// What `max_log_entries` can be raised to: 16 MB for each value.
const LOG_ENTRIES_MAX: u32 = 1_000_000;

/// Of IPv4, an address is a customer or a household; of IPv6, everybody has at least a /64.
const PREFIX_DEFAULT: IpPrefix = IpPrefix { ipv4: 32, ipv6: 64 };

/// Reads one file; none if there is no domain to speak of.
pub(super) fn read(file: &Document, text: &str, findings: &mut Findings) -> Option<RawConfig> {
    let mut faults = Vec::new();
    let root = yaml::read(text, &mut faults);
    let is_broken = root.is_none() && !faults.is_empty();
    for (at, problem) in faults {
        findings.error(file, at, problem);
    }
    match root {
        None if is_broken => None,
        Some(node) if !node.is_null() => read_root(file, &node, findings),
        _ => {
            findings.error(file, Position::new(1, 1), Problem::EmptyFile);
            None
        }
    }
}

/// The same of rules that are no text.
pub(super) fn read_value(
    resource: &Document,
    rules: &Json,
    findings: &mut Findings,
) -> Option<RawConfig> {
    match resource::tree(rules) {
        Ok(node) => read_root(resource, &node, findings),
        Err(problem) => {
            findings.error(resource, Position::default(), problem);
            None
        }
    }
}

fn read_root(file: &Document, node: &Node, findings: &mut Findings) -> Option<RawConfig> {
    let mut fields = Fields::new(file, node, "the document", findings)?;
    let domain = match fields.text("domain") {
        Some(domain) if domain.value.is_empty() => {
            fields.fail(domain.at, Problem::EmptyText("domain"))
        }
        None if fields.written("domain").is_none() => fields.missing("domain"),
        domain => domain,
    };
    let step = domain.as_ref().map_or("domain ?".to_owned(), |domain| {
        format!("domain {}", shorten(&domain.value))
    });
    findings.within(step, |findings| {
        let mut fields = Fields::checked(file, node, "the document", findings)?;
        let failure_mode = fields.choice("failure_mode", &FailureMode::ALL.map(|m| (m.name(), m)));
        let headers = fields.choice("headers", &HeaderProfile::ALL.map(|h| (h.name(), h)));
        let hash_tag = match fields.text("hash_tag") {
            Some(key) if key.value.is_empty() => {
                fields.fail(key.at, Problem::EmptyText("hash_tag"))
            }
            key => key,
        };
        let max_log_entries = fields.number("max_log_entries", 1..=LOG_ENTRIES_MAX);
        let (algorithm, charge_denied) = match fields.map("defaults") {
            Some(mut defaults) => (algorithm(&mut defaults), defaults.flag("charge_denied")),
            None => (None, None),
        };
        let descriptors = read_descriptors(file, fields.list("descriptors"), findings);
        Some(RawConfig {
            file: file.clone(),
            domain: domain?,
            failure_mode,
            headers,
            hash_tag,
            algorithm,
            charge_denied,
            max_log_entries,
            descriptors,
        })
    })
}

fn read_descriptors(
    file: &Document,
    nodes: &[Node],
    findings: &mut Findings,
) -> Vec<RawDescriptor> {
    let read = |node| read_descriptor(file, node, findings);
    nodes.iter().filter_map(read).collect()
}

fn read_descriptor(file: &Document, node: &Node, findings: &mut Findings) -> Option<RawDescriptor> {
    let mut fields = Fields::new(file, node, "a descriptor", findings)?;
    let key = match fields.text("key") {
        Some(key) if key.value.is_empty() => fields.fail(key.at, Problem::EmptyText("key")),
        None if fields.written("key").is_none() => fields.missing("key"),
        key => key.map(|key| key.value),
    };
    let value = fields
        .text("value")
        .map_or(String::new(), |value| value.value);
    let step = step(key.as_deref().unwrap_or("?"), &value);
    findings.within(step, |findings| {
        let mut fields = Fields::checked(file, node, "a descriptor", findings)?;
        let shadow_mode = fields.flag("shadow_mode");
        let quota_mode = fields.flag("quota_mode");
        let detailed_metric = fields.flag("detailed_metric");
        let value_to_metric = fields.flag("value_to_metric");
        let share_threshold = fields.flag("share_threshold");
        let charge_denied = fields.flag("charge_denied");
        let failure_mode = fields.choice("failure_mode", &FailureMode::ALL.map(|m| (m.name(), m)));
        let ip_prefix = ip_prefix(&mut fields);
        let metadata = metadata::read(&mut fields);
        let children = fields.list("descriptors");
        let limits = fields.node("rate_limit");
        Some(RawDescriptor {
            file: file.clone(),
            at: node.at,
            limits: limits.map(|limits| read_limits(file, limits, findings)),
            descriptors: read_descriptors(file, children, findings),
            key: key?,
            value,
            shadow_mode,
            quota_mode,
            detailed_metric,
            value_to_metric,
            share_threshold,
            charge_denied,
            failure_mode,
            ip_prefix,
            metadata,
        })
    })
}

/// A descriptor's part of a rule's path: `path=/login`, or `remote_address` for every value.
pub(super) fn step(key: &str, value: &str) -> String {
    let (key, value) = (shorten(key), shorten(value));
    if value.is_empty() {
        key
    } else {
        format!("{key}={value}")
    }
}

fn ip_prefix(fields: &mut Fields<'_, '_>) -> Option<At<IpPrefix>> {
    let mut prefix = fields.map("ip_prefix")?;
    let at = prefix.at();
    let bits = |number: Option<At<u32>>| u8::try_from(number?.value).ok();
    let ipv4 = bits(prefix.number("ipv4", 0..=32)).unwrap_or(PREFIX_DEFAULT.ipv4);
    let ipv6 = bits(prefix.number("ipv6", 0..=128)).unwrap_or(PREFIX_DEFAULT.ipv6);
    let value = IpPrefix { ipv4, ipv6 };
    Some(At { at, value })
}

/// `rate_limit` takes one limit, or a list of them.
fn read_limits(file: &Document, node: &Node, findings: &mut Findings) -> Vec<RawLimit> {
    let nodes = match &node.value {
        Value::List(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if nodes.is_empty() {
        let problem = Problem::WrongKind {
            what: "`rate_limit`".to_owned(),
            found: "an empty list".to_owned(),
            expected: "one limit, or a list of limits".to_owned(),
        };
        findings.error(file, node.at, problem);
    }
    let read = |node| {
        let mut fields = Fields::new(file, node, "`rate_limit`", findings)?;
        Some(read_limit(&mut fields))
    };
    nodes.iter().filter_map(read).collect()
}

fn read_limit(fields: &mut Fields<'_, '_>) -> RawLimit {
    let unlimited = fields.flag("unlimited").is_some_and(|flag| flag.value);
    if unlimited {
        for key in [
            "unit",
            "unit_multiplier",
            "requests_per_unit",
            "algorithm",
            "burst",
            "queue",
            "lease",
        ] {
            if let Some(at) = fields.written(key) {
                fields.fail::<()>(at, Problem::Unlimited(key));
            }
        }
    } else {
        if fields.written("unit").is_none() {
            fields.fail::<()>(fields.at(), Problem::MissingUnit);
        }
        if fields.written("requests_per_unit").is_none() {
            fields.fail::<()>(fields.at(), Problem::MissingRequests);
        }
    }
    RawLimit {
        at: fields.at(),
        unlimited,
        unit: fields
            .choice("unit", &Unit::ALL.map(|u| (u.name(), u)))
            .map(|unit| unit.value),
        unit_multiplier: fields.number("unit_multiplier", 1..=u32::MAX),
        requests_per_unit: fields.number("requests_per_unit", 0..=u32::MAX),
        name: fields.text("name").filter(|name| !name.value.is_empty()),
        replaces: replaces(fields),
        algorithm: algorithm(fields),
        burst: fields.number("burst", 0..=u32::MAX),
        queue: fields.number("queue", 0..=u32::MAX),
        delay: fields.choice(
            "delay",
            &[("server", Delay::Server), ("client", Delay::Client)],
        ),
        charge_denied: fields.flag("charge_denied"),
        lease: lease(fields),
    }
}

fn lease(fields: &mut Fields<'_, '_>) -> Option<At<Share>> {
    let at = fields.written("lease")?;
    let mut lease = fields.map("lease")?;
    if lease.written("max_share").is_none() {
        return lease.missing("max_share");
    }
    let percent = lease.percent("max_share", 1..=Share::PERCENT_MAX)?;
    Share::new(percent.value).map(|value| At { at, value })
}

fn algorithm(fields: &mut Fields<'_, '_>) -> Option<At<Algorithm>> {
    fields.choice("algorithm", &Algorithm::ALL.map(|a| (a.name(), a)))
}

fn replaces(fields: &mut Fields<'_, '_>) -> Vec<At<String>> {
    let mut names = Vec::new();
    for node in fields.list("replaces") {
        let Some(mut entry) = fields.inner(node, "`replaces`") else {
            continue;
        };
        match entry.text("name") {
            Some(name) if name.value.is_empty() => {
                entry.fail::<()>(name.at, Problem::EmptyText("name"));
            }
            Some(name) => names.push(name),
            None => {
                entry.missing::<()>("name");
            }
        }
    }
    names
}

/// `a, b or c`.
pub(super) fn any_of<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut names: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    match names.pop() {
        Some(last) if !names.is_empty() => format!("{} or {last}", names.join(", ")),
        last => last.unwrap_or_default(),
    }
}
