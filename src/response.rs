//! From outcomes to the answer: statuses, headers, metadata.
//!
//! Header values are digits, or are made of checked characters: no control byte ever leaves in one.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use smallvec::SmallVec;

use crate::algorithm::{Hits, Limit, Micros, Outcome, Unit};
use crate::config::matcher::Entry;
use crate::config::{Delay, Enforcement, FailureMode, HeaderProfile, Rule, RuleLimit};
use crate::failure::CLOSED_RETRY_AFTER;
use crate::request::{Descriptor, Request, printable};
use crate::store::StoreError;

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Whether the request may pass.
    pub code: Code,
    /// One per descriptor, in order: Envoy pairs them by index.
    pub statuses: SmallVec<[Status; 4]>,
    /// For the client, on success and on denial.
    pub headers: SmallVec<[Header; 4]>,
    /// For the proxy's logs and filters.
    pub metadata: Map<String, Value>,
    /// How long the answer is to be held.
    pub hold: Micros,
}

/// Whether something may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It may.
    Ok,
    /// It may not.
    OverLimit,
}

/// What became of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether its limits admit it.
    pub code: Code,
    /// The limit closest to denying, if anything was counted.
    pub current_limit: Option<CurrentLimit>,
    /// Hits left.
    pub remaining: u32,
    /// For an admitted descriptor, when its limit is back at its full allowance; for a denied one,
    /// when to come back. None where neither is known.
    pub reset_after: Option<Micros>,
}

/// A limit, as answers name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentLimit {
    /// The rule's name; may be empty.
    pub name: String,
    /// Requests per window.
    pub requests: u32,
    /// The unit.
    pub unit: Unit,
    /// How many units make the window.
    pub multiplier: u32,
}

/// A response header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: &'static str,
    /// Its value: visible ASCII and spaces.
    pub value: String,
}

/// What the headers of the profile `ratelimit` are called: for the limit, what remains, and the reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderNames(pub [&'static str; 3]);

impl Default for HeaderNames {
    fn default() -> Self {
        Self(["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"])
    }
}

/// One descriptor with the outcomes of its limits.
#[derive(Clone, Debug)]
pub struct Judged<'c> {
    /// The rule that applies; none for a limit that the request brought along.
    pub rule: Option<&'c Rule>,
    /// Whether the rule says that there is no limit.
    pub is_unlimited: bool,
    /// Whether there is anything to count.
    pub is_limited: bool,
    /// What a denial does.
    pub enforcement: Enforcement,
    /// The limits with their outcomes; empty if nobody counted.
    pub limits: SmallVec<[(&'c RuleLimit, Outcome); 1]>,
    /// What was asked.
    pub hits: Hits,
}

impl Judged<'_> {
    /// Whether one of the limits denies, whatever that leads to.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.limits.iter().any(|(_, outcome)| !outcome.admitted)
    }

    /// The limit closest to denying.
    pub(crate) fn closest(&self) -> Option<(&RuleLimit, Outcome)> {
        let closest = self.limits.iter().min_by_key(|(_, outcome)| rank(outcome));
        closest.map(|(limit, outcome)| (*limit, *outcome))
    }

    fn status(&self) -> Status {
        let is_over = self.is_over() && self.enforcement != Enforcement::Shadow;
        let Some((limit, outcome)) = self.closest() else {
            return Status {
                code: Code::Ok,
                current_limit: None,
                remaining: if self.is_unlimited { u32::MAX } else { 0 },
                reset_after: None,
            };
        };
        let name = self.rule.map_or_else(String::new, |rule| rule.name.clone());
        Status {
            code: if is_over { Code::OverLimit } else { Code::Ok },
            current_limit: Some(CurrentLimit::new(name, &limit.limit)),
            remaining: u32::try_from(outcome.remaining).unwrap_or(u32::MAX),
            reset_after: reset_after(&outcome),
        }
    }
}

impl CurrentLimit {
    fn new(name: String, limit: &Limit) -> Self {
        Self {
            name,
            requests: limit.requests(),
            unit: limit.unit(),
            multiplier: limit.multiplier(),
        }
    }
}

impl Decision {
    /// Nothing limits the request.
    #[must_use]
    pub fn no_limit(descriptors: usize) -> Self {
        Self::uncounted(descriptors, |_| Code::Ok)
    }

    /// The store's outcomes, folded into one answer.
    #[must_use]
    pub fn fold(
        profile: HeaderProfile,
        names: &HeaderNames,
        judged: &[Judged<'_>],
        denied: bool,
    ) -> Self {
        let mut decision = Self {
            code: if denied { Code::OverLimit } else { Code::Ok },
            statuses: judged.iter().map(Judged::status).collect(),
            headers: limit_headers(profile, names, judged, denied),
            metadata: metadata(judged),
            hold: Micros::ZERO,
        };
        if !denied {
            decision.hold = longest_wait(judged, Delay::Server);
            decision.delay_client(longest_wait(judged, Delay::Client));
        }
        decision
    }

    /// The answer of a failure mode that doesn't count.
    #[must_use]
    pub fn without_store(judged: &[Judged<'_>], denied: bool) -> Self {
        let mut decision = Self::uncounted(judged.len(), |index| {
            let judged: &Judged<'_> = &judged[index];
            if denied && judged.is_limited && judged.enforcement != Enforcement::Shadow {
                Code::OverLimit
            } else {
                Code::Ok
            }
        });
        if denied {
            decision.code = Code::OverLimit;
            for status in &mut decision.statuses {
                status.reset_after = (status.code == Code::OverLimit).then_some(CLOSED_RETRY_AFTER);
            }
            decision.header(RETRY_AFTER, CLOSED_RETRY_AFTER.as_secs_ceil().to_string());
        }
        decision
    }

    /// The same answer, saying that the store had no part in it.
    #[must_use]
    pub fn degraded(mut self, mode: FailureMode, error: &StoreError) -> Self {
        self.header(DEGRADED, mode.name().to_owned());
        self.metadata.insert("degraded".into(), json!(true));
        self.metadata
            .insert("failure_mode".into(), json!(mode.name()));
        self.metadata.insert("reason".into(), json!(error.reason()));
        self
    }

    /// The same answer, repeating what was asked, for logs that see only the answer.
    #[must_use]
    pub fn describing(mut self, request: &Request) -> Self {
        let descriptors = request.descriptors.iter().map(description);
        self.metadata
            .insert("domain".into(), json!(printable(&request.domain)));
        self.metadata
            .insert("descriptors".into(), descriptors.collect());
        self
    }

    /// The same answer, saying that its counters were not charged as one.
    #[must_use]
    pub fn split(mut self) -> Self {
        self.metadata.insert("split".into(), json!(true));
        self
    }

    fn uncounted(descriptors: usize, code: impl Fn(usize) -> Code) -> Self {
        let status = |index| Status {
            code: code(index),
            current_limit: None,
            remaining: 0,
            reset_after: None,
        };
        Self {
            code: Code::Ok,
            statuses: (0..descriptors).map(status).collect(),
            headers: SmallVec::new(),
            metadata: Map::new(),
            hold: Micros::ZERO,
        }
    }

    fn delay_client(&mut self, delay: Micros) {
        if delay > Micros::ZERO {
            self.header(DELAY, delay.as_millis_ceil().to_string());
            self.metadata
                .insert("delay_ms".into(), json!(delay.as_millis_ceil()));
        }
    }

    fn header(&mut self, name: &'static str, value: String) {
        self.headers.push(Header { name, value });
    }
}

fn description(descriptor: &Descriptor) -> Value {
    let entry = |entry: &Entry| format!("{}={}", printable(&entry.key), printable(&entry.value));
    let entries: Vec<_> = descriptor.entries.iter().map(entry).collect();
    let mut description = json!({"entries": entries});
    match descriptor.hits {
        Hits::Charge(hits) => description["hitsAddend"] = json!(hits),
        Hits::Look => description["hitsAddend"] = json!(0),
        Hits::Refund(hits) => {
            description["hitsAddend"] = json!(hits);
            description["isNegativeHits"] = json!(true);
        }
    }
    if let Some(wanted) = &descriptor.limit {
        let limit = format!("{} per {}", wanted.requests, wanted.unit.name());
        description["limit"] = json!(limit);
    }
    description
}

/// Smaller is closer to denying: denied, then by how long; then by how little is left.
fn rank(outcome: &Outcome) -> (bool, u64) {
    if outcome.admitted {
        (true, outcome.remaining)
    } else {
        let wait = outcome.retry_after.unwrap_or(Micros::MAX);
        (false, u64::MAX - wait.0)
    }
}

fn reset_after(outcome: &Outcome) -> Option<Micros> {
    if outcome.admitted {
        Some(outcome.reset_after)
    } else {
        outcome.retry_after
    }
}

/// The longest wait that `delay` makes an admitted request wait. Shadow rules don't slow it down.
fn longest_wait(judged: &[Judged<'_>], delay: Delay) -> Micros {
    judged
        .iter()
        .filter(|judged| judged.enforcement != Enforcement::Shadow)
        .flat_map(|judged| &judged.limits)
        .filter(|(limit, _)| limit.delay == delay)
        .map(|(_, outcome)| outcome.wait)
        .max()
        .unwrap_or_default()
}

fn limit_headers(
    profile: HeaderProfile,
    names: &HeaderNames,
    judged: &[Judged<'_>],
    denied: bool,
) -> SmallVec<[Header; 4]> {
    let mut headers = SmallVec::new();
    if profile == HeaderProfile::None {
        return headers;
    }
    // Clients needn't know of rules that can't deny them.
    let visible = || {
        judged
            .iter()
            .filter(|judged| judged.enforcement != Enforcement::Shadow)
    };
    let closest = visible()
        .filter_map(|judged| Some((judged, judged.closest()?)))
        .min_by_key(|(_, (_, outcome))| rank(outcome));
    let Some((owner, (limit, outcome))) = closest else {
        return headers;
    };

    let reset = reset_after(&outcome).map(Micros::as_secs_ceil);
    let mut push = |name, value: String| headers.push(Header { name, value });
    match profile {
        HeaderProfile::RateLimit | HeaderProfile::XRateLimit => {
            let [limit_name, remaining_name, reset_name] = match profile {
                HeaderProfile::RateLimit => names.0,
                _ => X_RATELIMIT,
            };
            push(limit_name, limit.limit.requests().to_string());
            push(remaining_name, outcome.remaining.to_string());
            if let Some(reset) = reset {
                push(reset_name, reset.to_string());
            }
        }
        HeaderProfile::Structured => {
            let policies = visible().flat_map(|judged| {
                let policy = |(limit, _): &(&RuleLimit, Outcome)| policy_item(judged, &limit.limit);
                judged.limits.iter().map(policy)
            });
            push(POLICY, policies.collect::<Vec<_>>().join(", "));
            let mut state = policy_name(owner, &limit.limit);
            let _infallible = write!(state, ";r={}", outcome.remaining);
            if let Some(reset) = reset {
                let _infallible = write!(state, ";t={reset}");
            }
            push(STATE, state);
        }
        HeaderProfile::None => {}
    }
    if denied && let Some(after) = retry_after(judged) {
        push(RETRY_AFTER, after.as_secs_ceil().max(1).to_string());
    }
    headers
}

/// When all of the limits that deny would admit; none if one of them never will.
fn retry_after(judged: &[Judged<'_>]) -> Option<Micros> {
    let denying = judged
        .iter()
        .filter(|judged| judged.enforcement != Enforcement::Shadow)
        .flat_map(|judged| &judged.limits)
        .filter(|(_, outcome)| !outcome.admitted);
    denying
        .map(|(_, outcome)| outcome.retry_after)
        .try_fold(Micros::ZERO, |longest, after| Some(longest.max(after?)))
}

/// `"name";q=10;w=60`, as the IETF draft has it.
fn policy_item(judged: &Judged<'_>, limit: &Limit) -> String {
    let window = limit.window().as_secs_ceil();
    let name = policy_name(judged, limit);
    format!("{name};q={};w={window}", limit.requests())
}

/// The rule's name as a structured field string, or one made from the limit.
fn policy_name(judged: &Judged<'_>, limit: &Limit) -> String {
    let name = judged.rule.map_or("", |rule| rule.name.as_str());
    if name.is_empty() {
        let (multiplier, unit) = (limit.multiplier(), limit.unit().name());
        return match multiplier {
            1 => format!("\"{unit}\""),
            _ => format!("\"{multiplier}-{unit}\""),
        };
    }
    let mut quoted = String::from("\"");
    for character in name.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            ' '..='~' => quoted.push(character),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

/// What the rules that admit carry, merged: the first of two values wins, maps are joined.
fn metadata(judged: &[Judged<'_>]) -> Map<String, Value> {
    let mut merged = Map::new();
    let admitting = judged.iter().filter(|judged| !judged.is_over());
    for rule in admitting.filter_map(|judged| judged.rule) {
        if let Some(metadata) = &rule.metadata {
            merge(&mut merged, metadata);
        }
    }
    if merged.is_empty() {
        return merged;
    }
    Map::from_iter([("metadata".to_owned(), Value::Object(merged))])
}

fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
            (None, _) => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

const X_RATELIMIT: [&str; 3] = [
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
];
const POLICY: &str = "RateLimit-Policy";
const STATE: &str = "RateLimit";
const RETRY_AFTER: &str = "Retry-After";
const DELAY: &str = "X-RateLimit-Delay-Ms";
const DEGRADED: &str = "X-RateLimit-Degraded";
