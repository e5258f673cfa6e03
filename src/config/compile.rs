//! From descriptors as written to the tree that requests walk.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;

use super::error::{Oddity, Position, Problem};
use super::findings::{At, Document, Findings};
use super::matcher::{CountBy, Node, composite_key};
use super::raw::{RawDescriptor, RawLimit, any_of, step};
use super::yaml::shorten;
use super::{Enforcement, Limits, Overrides, Rule, RuleLimit, SeriesBy};
use crate::algorithm::{Algorithm, LEASE_MIN, Limit, Policy};
use crate::telemetry::ValueMeters;

/// From here on a sliding window log is worth a warning: 16 KB for each value.
const LOG_ENTRIES_LARGE: u32 = 1_000;

/// Builds the tree of one domain.
pub(super) fn tree(
    descriptors: Vec<RawDescriptor>,
    defaults: Overrides,
    findings: &mut Findings,
) -> Node {
    let mut compiler = Compiler {
        findings,
        defaults,
        shown: Vec::new(),
        names: HashSet::new(),
        replaced: Vec::new(),
    };
    let mut root = Node::default();
    compiler.level(&mut root, descriptors);
    for (file, name) in compiler.replaced {
        if !compiler.names.contains(&name.value) {
            let oddity = Oddity::UnknownName(shorten(&name.value));
            compiler.findings.warn(&file, name.at, oddity);
        }
    }
    root
}

struct Compiler<'f> {
    findings: &'f mut Findings,
    defaults: Overrides,
    /// For each level down to here, whether metrics show its values (`value_to_metric`).
    shown: Vec<bool>,
    /// The names that rules of the domain have.
    names: HashSet<String>,
    /// The names that rules of the domain replace.
    replaced: Vec<(Document, At<String>)>,
}

/// The descriptors of a level so far, by composite key.
type Origins = IndexMap<String, Origin>;

struct Origin {
    file: Document,
    at: Position,
    key: String,
    value: String,
}

impl Compiler<'_> {
    fn level(&mut self, node: &mut Node, descriptors: Vec<RawDescriptor>) {
        let mut origins = Origins::new();
        for raw in descriptors {
            self.findings.enter(step(&raw.key, &raw.value));
            self.shown.push(is_set(raw.value_to_metric.as_ref()));
            self.descriptor(node, raw, &mut origins);
            self.shown.pop();
            self.findings.leave();
        }
        for origin in origins.values() {
            if let Some(taker) = node.hidden_by(&origin.key, &origin.value) {
                let taker = shorten(taker);
                let oddity = if origin.value.is_empty() {
                    Oddity::NeverMatches(taker)
                } else {
                    Oddity::MatchesItself(taker)
                };
                self.findings.enter(step(&origin.key, &origin.value));
                self.findings.warn(&origin.file, origin.at, oddity);
                self.findings.leave();
            }
        }
    }

    fn descriptor(&mut self, parent: &mut Node, raw: RawDescriptor, origins: &mut Origins) {
        let composite = composite_key(&raw.key, &raw.value);
        let Some(node) = parent.insert(&raw.key, &raw.value) else {
            let first = origins.get(&composite);
            let first = first.map_or(String::new(), |first| first.file.line(first.at));
            let problem = Problem::DuplicateDescriptor { first };
            return self.findings.error(&raw.file, raw.at, problem);
        };
        let origin = Origin {
            file: raw.file.clone(),
            at: raw.at,
            key: raw.key.clone(),
            value: raw.value.clone(),
        };
        origins.insert(composite, origin);
        node.count_by = self.count_by(&raw);
        node.rule = self.rule(&raw).map(Arc::new);
        self.level(node, raw.descriptors);
    }

    fn count_by(&mut self, raw: &RawDescriptor) -> CountBy {
        let shares = raw.share_threshold.as_ref().filter(|flag| flag.value);
        let composite = composite_key(&raw.key, &raw.value);
        if let Some(shares) = shares
            && !composite.contains('*')
        {
            let problem = Problem::ShareWithoutWildcard(shorten(&composite));
            self.findings.error(&raw.file, shares.at, problem);
        }
        if let Some(prefix) = &raw.ip_prefix {
            let useless = if shares.is_some() {
                Some("share_threshold")
            } else {
                (!raw.value.is_empty() && !composite.contains('*')).then_some("value")
            };
            if let Some(beside) = useless {
                let problem = Problem::UselessPrefix(beside);
                self.findings.error(&raw.file, prefix.at, problem);
            }
            return CountBy::Network(prefix.value);
        }
        if shares.is_some() {
            // The key of the request is counted by anyway; where the pattern is in the value alone,
            // that is all there is to add.
            let pattern = if raw.key.contains('*') {
                composite
            } else {
                raw.value.clone()
            };
            return CountBy::Pattern(pattern.into_bytes().into());
        }
        CountBy::Value
    }

    fn rule(&mut self, raw: &RawDescriptor) -> Option<Rule> {
        let Some(raw_limits) = &raw.limits else {
            self.without_limit(raw);
            return None;
        };
        let limits = self.limits(raw, raw_limits);
        let name = self.name(raw, raw_limits);
        let replaces = self.replaces(raw, raw_limits, &name);
        self.names.insert(name.clone());
        let shadow = is_set(raw.shadow_mode.as_ref());
        let enforcement = match raw.quota_mode.as_ref().filter(|flag| flag.value) {
            Some(quota) if shadow => {
                self.findings
                    .warn(&raw.file, quota.at, Oddity::ShadowedQuota);
                Enforcement::Shadow
            }
            Some(_) => Enforcement::Quota,
            None if shadow => Enforcement::Shadow,
            None => Enforcement::Hard,
        };
        let series_by = if is_set(raw.detailed_metric.as_ref()) {
            SeriesBy::Descriptor
        } else if self.shown.contains(&true) {
            SeriesBy::Values(self.shown.clone().into())
        } else {
            SeriesBy::Rule
        };
        Some(Rule {
            path: self.findings.rule_path(),
            limits,
            name,
            replaces,
            enforcement: self.defaults.enforcement.unwrap_or(enforcement),
            failure_mode: raw.failure_mode.as_ref().map(|mode| mode.value),
            metadata: raw.metadata.as_ref().map(|metadata| metadata.value.clone()),
            series_by,
            origin: raw.file.line(raw.at),
            meter: OnceLock::new(),
            value_meters: ValueMeters::default(),
        })
    }

    /// What only a rule can have is refused where it could be missed in an outage, and otherwise
    /// warned of, since envoyproxy/ratelimit takes it.
    fn without_limit(&mut self, raw: &RawDescriptor) {
        let needs_limit = [
            (
                "failure_mode",
                raw.failure_mode.as_ref().map(|mode| mode.at),
            ),
            (
                "charge_denied",
                raw.charge_denied.as_ref().map(|flag| flag.at),
            ),
        ];
        for (key, at) in needs_limit {
            if let Some(at) = at {
                self.findings.error(&raw.file, at, Problem::NeedsLimit(key));
            }
        }
        let place = |flag: &Option<At<bool>>| flag.as_ref().filter(|f| f.value).map(|f| f.at);
        let no_effect = [
            ("shadow_mode", place(&raw.shadow_mode)),
            ("quota_mode", place(&raw.quota_mode)),
            ("detailed_metric", place(&raw.detailed_metric)),
            (
                "metadata",
                raw.metadata.as_ref().map(|metadata| metadata.at),
            ),
        ];
        for (key, at) in no_effect {
            if let Some(at) = at {
                self.findings.warn(&raw.file, at, Oddity::NoEffect(key));
            }
        }
    }

    /// The limits of a list have one name between them, or none.
    fn name(&mut self, raw: &RawDescriptor, limits: &[RawLimit]) -> String {
        let mut names = limits.iter().filter_map(|limit| limit.name.as_ref());
        let Some(first) = names.next() else {
            return String::new();
        };
        if let Some(other) = names.find(|name| name.value != first.value) {
            let problem = Problem::TwoNames(shorten(&first.value), shorten(&other.value));
            self.findings.error(&raw.file, other.at, problem);
        }
        first.value.clone()
    }

    fn replaces(&mut self, raw: &RawDescriptor, limits: &[RawLimit], own: &str) -> Vec<String> {
        let mut replaces = Vec::new();
        for name in limits.iter().flat_map(|limit| &limit.replaces) {
            if name.value == own {
                let problem = Problem::ReplacesItself(shorten(own));
                self.findings.error(&raw.file, name.at, problem);
            }
            self.replaced.push((raw.file.clone(), name.clone()));
            replaces.push(name.value.clone());
        }
        replaces
    }

    fn limits(&mut self, raw: &RawDescriptor, limits: &[RawLimit]) -> Limits {
        if let Some(unlimited) = limits.iter().find(|limit| limit.unlimited) {
            if limits.len() > 1 {
                let problem = Problem::UnlimitedAmongOthers;
                self.findings.error(&raw.file, unlimited.at, problem);
            }
            return Limits::Unlimited;
        }
        let mut counted: Vec<RuleLimit> = Vec::new();
        for raw_limit in limits {
            let Some(limit) = self.limit(raw, raw_limit) else {
                continue;
            };
            let counts = |limit: &Limit| (limit.policy().algorithm(), limit.window());
            if counted
                .iter()
                .any(|other| counts(&other.limit) == counts(&limit.limit))
            {
                let algorithm = limit.limit.policy().algorithm().name();
                let problem = Problem::SameCounter { algorithm };
                self.findings.error(&raw.file, raw_limit.at, problem);
            }
            counted.push(limit);
        }
        let leases = limits.iter().filter_map(|limit| limit.lease.as_ref());
        for lease in leases.filter(|_| limits.len() > 1) {
            self.findings
                .warn(&raw.file, lease.at, Oddity::LeaseAmongOthers);
        }
        Limits::Counted(counted)
    }

    /// None where something is missing or wrong, which has been reported.
    fn limit(&mut self, raw: &RawDescriptor, limit: &RawLimit) -> Option<RuleLimit> {
        let algorithm = limit.algorithm.as_ref().map(|algorithm| algorithm.value);
        let algorithm = algorithm.unwrap_or(self.defaults.algorithm);
        self.parameters(raw, limit, algorithm);
        let requests = limit.requests_per_unit.as_ref()?;
        let policy = match algorithm {
            Algorithm::FixedWindow => Policy::FixedWindow,
            Algorithm::SlidingWindowLog => self.log(raw, requests),
            Algorithm::SlidingWindowCounter => Policy::SlidingWindowCounter,
            Algorithm::TokenBucket => Policy::TokenBucket {
                burst: limit
                    .burst
                    .as_ref()
                    .map_or(requests.value, |burst| burst.value),
            },
            Algorithm::LeakyBucket => Policy::LeakyBucket {
                queue: limit.queue.as_ref().map_or(0, |queue| queue.value),
            },
        };
        if requests.value == 0 {
            self.findings
                .warn(&raw.file, requests.at, Oddity::DeniesAll);
        }
        if let Some(At { at, value: 0 }) = limit.burst {
            self.findings.warn(&raw.file, at, Oddity::EmptyBurst);
        }
        let multiplier = limit
            .unit_multiplier
            .as_ref()
            .map_or(1, |multiplier| multiplier.value);
        let made = match Limit::new(policy, requests.value, limit.unit?, multiplier) {
            Ok(made) => made,
            Err(error) => {
                self.findings.error(&raw.file, limit.at, error);
                return None;
            }
        };
        let written = limit.charge_denied.as_ref().or(raw.charge_denied.as_ref());
        let charge_denied = written.map_or_else(
            || self.defaults.charge_denied.applies_to(algorithm),
            |flag| flag.value,
        );
        Some(RuleLimit {
            limit: self.leased(raw, limit, made.charging_denied(charge_denied)),
            delay: limit
                .delay
                .as_ref()
                .map(|delay| delay.value)
                .unwrap_or_default(),
        })
    }

    fn leased(&mut self, raw: &RawDescriptor, written: &RawLimit, limit: Limit) -> Limit {
        let Some(lease) = &written.lease else {
            return limit;
        };
        let share = lease.value;
        if share.of(&limit) < LEASE_MIN {
            self.findings
                .warn(&raw.file, lease.at, Oddity::SmallLease { share });
        }
        limit.leased(share)
    }

    /// Each parameter has a meaning for some algorithms only.
    fn parameters(&mut self, raw: &RawDescriptor, limit: &RawLimit, algorithm: Algorithm) {
        let parameters: [(_, &[Algorithm], _); 4] = [
            (
                "burst",
                &[Algorithm::TokenBucket],
                limit.burst.as_ref().map(|burst| burst.at),
            ),
            (
                "queue",
                &[Algorithm::LeakyBucket],
                limit.queue.as_ref().map(|queue| queue.at),
            ),
            (
                "delay",
                &[Algorithm::LeakyBucket],
                limit.delay.as_ref().map(|delay| delay.at),
            ),
            (
                "lease",
                &[Algorithm::FixedWindow, Algorithm::TokenBucket],
                limit.lease.as_ref().map(|lease| lease.at),
            ),
        ];
        for (key, belongs_to, at) in parameters {
            if let Some(at) = at.filter(|_| !belongs_to.contains(&algorithm)) {
                let problem = Problem::WrongAlgorithm {
                    key,
                    belongs_to: any_of(belongs_to.iter().map(|algorithm| algorithm.name())),
                    algorithm: algorithm.name(),
                };
                self.findings.error(&raw.file, at, problem);
            }
        }
    }

    fn log(&mut self, raw: &RawDescriptor, requests: &At<u32>) -> Policy {
        let allowed = self.defaults.log_entries_max;
        if requests.value > allowed {
            let problem = Problem::LongLog {
                requests: requests.value,
                allowed,
            };
            self.findings.error(&raw.file, requests.at, problem);
        } else if requests.value >= LOG_ENTRIES_LARGE {
            let oddity = Oddity::LargeLog(requests.value);
            self.findings.warn(&raw.file, requests.at, oddity);
        }
        Policy::SlidingWindowLog
    }
}

fn is_set(flag: Option<&At<bool>>) -> bool {
    flag.is_some_and(|flag| flag.value)
}
