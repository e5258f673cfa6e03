//! From a request to the limits it has to pass.

use std::slice;

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Demand, Hits, Limit, Micros, Outcome, Policy};
use crate::config::matcher::{CountBy, Entry, Walk};
use crate::config::{Delay, Domain, Enforcement, FailureMode, Limits, Rule, RuleLimit};
use crate::request::{Descriptor, InvalidRequest, Override, Request};
use crate::response::Judged;
use crate::store::key::Counted;
use crate::store::{Check, CounterKey, Role};

/// The limits that the request brought along, one place per descriptor; empty if there are none.
pub(super) struct Overrides(SmallVec<[Option<RuleLimit>; 2]>);

/// What each descriptor has to pass, in order.
pub(super) struct Plan<'c> {
    pub(super) subjects: SmallVec<[Subject<'c>; 4]>,
}

/// One descriptor, matched.
pub(super) struct Subject<'c> {
    pub(super) walk: Walk<'c>,
    pub(super) treatment: Treatment<'c>,
    /// The start of its counters' names.
    pub(super) key: CounterKey,
    pub(super) hits: Hits,
}

/// What a descriptor is held to.
#[derive(Clone, Copy)]
pub(super) enum Treatment<'c> {
    /// Nothing: no rule, a rule without a limit, or one that another rule replaces.
    Nothing,
    /// A rule that says so.
    Unlimited,
    /// A rule's limits.
    Rule(&'c Rule, &'c [RuleLimit]),
    /// The limit that the request brought along.
    Override(&'c RuleLimit, Enforcement),
}

impl Overrides {
    pub(super) fn of(domain: &Domain, request: &Request) -> Result<Self, InvalidRequest> {
        if request.descriptors.iter().all(|d| d.limit.is_none()) {
            return Ok(Self(SmallVec::new()));
        }
        let limits = request.descriptors.iter().enumerate().map(|(index, d)| {
            let limit = d.limit.map(|limit| override_limit(domain, index, limit));
            limit.transpose()
        });
        limits.collect::<Result<_, _>>().map(Self)
    }

    fn of_descriptor(&self, index: usize) -> Option<&RuleLimit> {
        self.0.get(index)?.as_ref()
    }
}

impl<'c> Plan<'c> {
    pub(super) fn new(domain: &'c Domain, request: &Request, overrides: &'c Overrides) -> Self {
        let subject = |(index, descriptor): (usize, &Descriptor)| {
            let walk = domain.root.walk(&descriptor.entries);
            let treatment = match (overrides.of_descriptor(index), walk.rule) {
                (Some(limit), _) => {
                    // Enforced, unless the settings say that nothing is.
                    let enforcement = domain.overrides.enforcement.unwrap_or_default();
                    Treatment::Override(limit, enforcement)
                }
                (None, None) => Treatment::Nothing,
                (None, Some(rule)) => match &rule.limits {
                    Limits::Unlimited => Treatment::Unlimited,
                    Limits::Counted(limits) => Treatment::Rule(rule, limits),
                },
            };
            let key = counter_key(domain, descriptor, &walk);
            Subject {
                walk,
                treatment,
                key,
                hits: descriptor.hits,
            }
        };
        let subjects = request
            .descriptors
            .iter()
            .enumerate()
            .map(subject)
            .collect();
        let mut plan = Self { subjects };
        plan.apply_replaces();
        plan
    }

    /// Rules that another matched rule replaces don't count. All names are collected before any
    /// rule is dropped, so two rules that replace each other both vanish, as in the reference.
    fn apply_replaces(&mut self) {
        let rules = self.subjects.iter().filter_map(Subject::matched_rule);
        let replaced: SmallVec<[&str; 4]> = rules
            .flat_map(|rule| rule.replaces.iter().map(String::as_str))
            .collect();
        if replaced.is_empty() {
            return;
        }
        for subject in &mut self.subjects {
            if let Some(rule) = subject.matched_rule()
                && !rule.name.is_empty()
                && replaced.contains(&rule.name.as_str())
            {
                subject.treatment = Treatment::Nothing;
            }
        }
    }

    /// Whether a reply to this may have to be held.
    pub(super) fn may_be_held(&self) -> bool {
        self.subjects.iter().any(|subject| {
            subject.hits != Hits::Look
                && subject.enforcement() != Enforcement::Shadow
                && subject.limits().iter().any(is_held)
        })
    }

    /// What to ask the store; `patience` is how long a reply can be held.
    pub(super) fn checks(&self, patience: Micros) -> SmallVec<[Check<'c>; 4]> {
        let mut checks = SmallVec::new();
        for (number, subject) in self.subjects.iter().enumerate() {
            let role = match subject.enforcement() {
                Enforcement::Hard => Role::Hard,
                Enforcement::Shadow => Role::Shadow,
                Enforcement::Quota => Role::Quota(number),
            };
            for rule_limit in subject.limits() {
                let is_held = is_held(rule_limit) && role != Role::Shadow;
                checks.push(Check {
                    key: subject.key.for_limit(&rule_limit.limit),
                    limit: &rule_limit.limit,
                    demand: Demand {
                        hits: subject.hits,
                        patience: if is_held { patience } else { Micros::MAX },
                        until: Micros::MAX,
                    },
                    role,
                });
            }
        }
        checks
    }

    /// Puts the outcomes, one per check, back to their descriptors.
    pub(super) fn judge(&self, outcomes: &[Outcome]) -> SmallVec<[Judged<'c>; 4]> {
        let mut outcomes = outcomes.iter();
        let judge = |subject: &Subject<'c>| Judged {
            rule: subject.matched_rule(),
            is_unlimited: matches!(subject.treatment, Treatment::Unlimited),
            enforcement: subject.enforcement(),
            limits: subject
                .limits()
                .iter()
                .zip(outcomes.by_ref())
                .map(|(limit, outcome)| (limit, *outcome))
                .collect(),
            is_limited: !subject.limits().is_empty(),
            hits: subject.hits,
        };
        self.subjects.iter().map(judge).collect()
    }

    /// The strictest failure mode of the rules that could deny the request.
    pub(super) fn failure_mode(&self, domain: &Domain, default: FailureMode) -> FailureMode {
        let of_domain = domain.failure_mode.unwrap_or(default);
        let modes = self.subjects.iter().filter_map(|subject| {
            let could_deny =
                !subject.limits().is_empty() && subject.enforcement() != Enforcement::Shadow;
            let own = subject.walk.rule.and_then(|rule| rule.failure_mode);
            could_deny.then_some(own.unwrap_or(of_domain))
        });
        modes.max().unwrap_or(FailureMode::Open)
    }
}

impl<'c> Subject<'c> {
    /// The rule that applies, if its own limits do.
    fn matched_rule(&self) -> Option<&'c Rule> {
        match self.treatment {
            Treatment::Rule(rule, _) => Some(rule),
            Treatment::Unlimited => self.walk.rule.map(|rule| &**rule),
            Treatment::Nothing | Treatment::Override(..) => None,
        }
    }

    pub(super) fn enforcement(&self) -> Enforcement {
        match self.treatment {
            Treatment::Rule(rule, _) => rule.enforcement,
            Treatment::Override(_, enforcement) => enforcement,
            Treatment::Nothing | Treatment::Unlimited => Enforcement::Hard,
        }
    }

    pub(super) fn limits(&self) -> &'c [RuleLimit] {
        match self.treatment {
            Treatment::Nothing | Treatment::Unlimited => &[],
            Treatment::Rule(_, limits) => limits,
            Treatment::Override(limit, _) => slice::from_ref(limit),
        }
    }
}

/// Whether the server holds replies for this limit.
fn is_held(rule_limit: &RuleLimit) -> bool {
    rule_limit.limit.policy().algorithm() == Algorithm::LeakyBucket
        && rule_limit.delay == Delay::Server
}

/// Counters go by what was sent, not by the rule, so that an override continues the rule's count.
fn counter_key(domain: &Domain, descriptor: &Descriptor, walk: &Walk<'_>) -> CounterKey {
    let counted = |index: usize, entry| {
        let level = walk.levels.get(index);
        counted(entry, level.map(|level| &level.node.count_by))
    };
    let entries = || descriptor.entries.iter().enumerate();
    let mut key = CounterKey::of_domain(domain.name.as_bytes());
    if let Some(tag) = &domain.hash_tag
        && let Some((index, entry)) = entries().find(|(_, entry)| *entry.key == **tag)
    {
        key.push_hash_tag(counted(index, entry));
    }
    for (index, entry) in entries() {
        key.push_entry(&entry.key, counted(index, entry));
    }
    key
}

fn counted<'e>(entry: &'e Entry, count_by: Option<&'e CountBy>) -> Counted<'e> {
    match count_by {
        Some(CountBy::Pattern(pattern)) => Counted::Pattern(pattern),
        Some(CountBy::Network(prefix)) => match prefix.network(&entry.value) {
            Some(network) => Counted::Network(network, prefix.bits(network)),
            None => Counted::Value(&entry.value),
        },
        Some(CountBy::Value) | None => Counted::Value(&entry.value),
    }
}

fn override_limit(
    domain: &Domain,
    descriptor: usize,
    wanted: Override,
) -> Result<RuleLimit, InvalidRequest> {
    let impossible = |reason: String| InvalidRequest::ImpossibleLimit { descriptor, reason };
    let overrides = domain.overrides;
    let policy = match overrides.algorithm {
        Algorithm::FixedWindow => Policy::FixedWindow,
        Algorithm::SlidingWindowLog => Policy::SlidingWindowLog,
        Algorithm::SlidingWindowCounter => Policy::SlidingWindowCounter,
        Algorithm::TokenBucket => Policy::TokenBucket {
            burst: wanted.requests,
        },
        Algorithm::LeakyBucket => Policy::LeakyBucket { queue: 0 },
    };
    if policy == Policy::SlidingWindowLog && wanted.requests > overrides.log_entries_max {
        return Err(impossible(format!(
            "a sliding window log of {} requests; this domain allows {}",
            wanted.requests, overrides.log_entries_max
        )));
    }
    let limit = Limit::new(policy, wanted.requests, wanted.unit, wanted.multiplier)
        .map_err(|error| impossible(error.to_string()))?;
    Ok(RuleLimit {
        limit: limit.charging_denied(overrides.charge_denied.applies_to(overrides.algorithm)),
        delay: Delay::Server,
    })
}
