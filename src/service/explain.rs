//! Says how a request would be decided, and why; charges nothing.

use serde::Serialize;

use super::plan::{Overrides, Plan, Subject, Treatment};
use super::{Refusal, Service};
use crate::algorithm::{self, Demand, Hits, Micros, State};
use crate::config::matcher::{Entry, How, Node};
use crate::config::{Domain, Enforcement};
use crate::request::{Descriptor, Request, printable};
use crate::store::{Check, Store, denies};

/// How a request would be decided.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The domain asked for.
    pub domain: String,
    /// Whether there is such a domain. If not, everything passes.
    pub domain_exists: bool,
    /// `OK` or `OVER_LIMIT`.
    pub verdict: &'static str,
    /// What the verdict would be made from, one per descriptor.
    pub descriptors: Vec<DescriptorExplained>,
}

/// How one descriptor would be treated.
#[derive(Clone, Debug, Serialize)]
pub struct DescriptorExplained {
    /// Its entries, `key=value`.
    pub entries: Vec<String>,
    /// What was tried at each level, and what matched.
    pub steps: Vec<String>,
    /// What that comes to.
    pub result: String,
    /// Where the rule is written, if one applies.
    pub rule: Option<String>,
    /// The limits it would have to pass.
    pub limits: Vec<LimitExplained>,
}

/// How one limit stands.
#[derive(Clone, Debug, Serialize)]
pub struct LimitExplained {
    /// The limit, in words.
    pub limit: String,
    /// The counter's name in the store.
    pub counter: String,
    /// Whether the store knows this counter.
    pub counter_exists: bool,
    /// Hits that would still be admitted.
    pub remaining: u64,
    /// Hits that count at present: what a counter that nobody has used would still admit, less what
    /// this one does.
    pub count: u64,
    /// Milliseconds until the limit is back at its full allowance.
    pub reset_after_ms: u64,
    /// Whether it would admit the request.
    pub admits: bool,
    /// Milliseconds until it would, if it doesn't; none if it never will.
    pub retry_after_ms: Option<u64>,
}

impl<S: Store> Service<S> {
    /// Says how `request` would be decided, with the matcher and the store that decide.
    pub async fn explain(&self, request: &Request) -> Result<Explanation, Refusal> {
        let config = self.config.current();
        let name = printable(&request.domain);
        let Some(domain) = config.domain(&request.domain) else {
            if config.is_awaited() {
                return Err(Refusal::NoRules);
            }
            return Ok(Explanation {
                domain: name,
                domain_exists: false,
                verdict: "OK",
                descriptors: Vec::new(),
            });
        };

        let now = self.clock.now();
        let overrides = Overrides::of(domain, request)?;
        let plan = Plan::new(domain, request, &overrides);
        let checks = plan.checks(Micros::MAX);
        let states = self.store.peek(&checks, now).await;
        let states = states.map_err(Refusal::Unavailable)?;

        let outcomes: Vec<_> = checks
            .iter()
            .zip(&states)
            .map(|(check, state)| {
                let new = State::new(check.limit, now);
                let state = state.as_ref().unwrap_or(&new);
                algorithm::check(check.limit, state, now, check.demand)
            })
            .collect();
        let verdict = if denies(&checks, &outcomes) {
            "OVER_LIMIT"
        } else {
            "OK"
        };

        let mut limits = checks
            .iter()
            .zip(&states)
            .map(|(check, state)| explain_limit(check, state.as_ref(), now));
        let descriptors = plan
            .subjects
            .iter()
            .zip(&request.descriptors)
            .map(|(subject, descriptor)| {
                let count = subject.limits().len();
                explain_descriptor(domain, subject, descriptor, limits.by_ref().take(count))
            })
            .collect();
        Ok(Explanation {
            domain: name,
            domain_exists: true,
            verdict,
            descriptors,
        })
    }
}

/// What a reset did.
#[derive(Clone, Debug, Serialize)]
pub struct Reset {
    /// The counters that a request like this is counted by.
    pub counters: Vec<String>,
    /// How many of them there were.
    pub reset: usize,
}

impl<S: Store> Service<S> {
    /// Forgets the counters that `request` is counted by.
    pub async fn reset(&self, request: &Request) -> Result<Reset, Refusal> {
        let config = self.config.current();
        let mut keys = Vec::new();
        if let Some(domain) = config.domain(&request.domain) {
            let overrides = Overrides::of(domain, request)?;
            let plan = Plan::new(domain, request, &overrides);
            keys.extend(plan.checks(Micros::MAX).into_iter().map(|check| check.key));
        }
        let counters: Vec<_> = keys.iter().map(ToString::to_string).collect();
        let reset = self.store.reset(&keys).await;
        let reset = reset.map_err(Refusal::Unavailable)?;
        tracing::info!(?counters, reset, "counters reset");
        Ok(Reset { counters, reset })
    }
}

fn explain_descriptor(
    domain: &Domain,
    subject: &Subject<'_>,
    descriptor: &Descriptor,
    limits: impl Iterator<Item = LimitExplained>,
) -> DescriptorExplained {
    let entry_text =
        |entry: &Entry| format!("{}={}", printable(&entry.key), printable(&entry.value));
    let rule = subject.walk.rule;
    let result = match subject.treatment {
        Treatment::Override(..) => "the limit that the request brought along applies".to_owned(),
        Treatment::Rule(rule, _) => match rule.enforcement {
            Enforcement::Hard => format!("rule `{}` applies", rule.path),
            Enforcement::Shadow => format!("rule `{}` applies, in shadow mode", rule.path),
            Enforcement::Quota => format!("rule `{}` applies, in quota mode", rule.path),
        },
        Treatment::Unlimited => "the rule says unlimited".to_owned(),
        Treatment::Nothing if rule.is_some() => "another rule replaces this one".to_owned(),
        Treatment::Nothing if subject.walk.levels.len() < descriptor.entries.len() => {
            "no rule reaches this deep: no limit".to_owned()
        }
        Treatment::Nothing => "no rule ends here: no limit".to_owned(),
    };
    DescriptorExplained {
        entries: descriptor.entries.iter().map(entry_text).collect(),
        steps: steps(&domain.root, subject, descriptor),
        result,
        rule: rule.map(|rule| rule.origin.clone()),
        limits: limits.collect(),
    }
}

/// One line per level that was looked at.
fn steps(root: &Node, subject: &Subject<'_>, descriptor: &Descriptor) -> Vec<String> {
    let mut node = root;
    let mut lines = Vec::new();
    for (index, entry) in descriptor.entries.iter().enumerate() {
        let (key, value) = (printable(&entry.key), printable(&entry.value));
        let Some(level) = subject.walk.levels.get(index) else {
            let wildcards = node.wildcards().count();
            lines.push(format!(
                "`{key}` = `{value}`: no such value, none of {wildcards} wildcards, no `{key}` alone"
            ));
            return lines;
        };
        lines.push(match level.how {
            How::Exact => format!("`{key}` = `{value}`: matched exactly"),
            How::Wildcard(number) => {
                let pattern = node.wildcards().nth(number).unwrap_or_default();
                format!(
                    "`{key}` = `{value}`: no such value; wildcard {} of this level matched: `{pattern}`",
                    number + 1
                )
            }
            How::KeyOnly => {
                let wildcards = node.wildcards().count();
                format!(
                    "`{key}` = `{value}`: no such value, none of {wildcards} wildcards; matched by `{key}` alone"
                )
            }
        });
        node = level.node;
    }
    lines
}

fn explain_limit(check: &Check<'_>, state: Option<&State>, now: Micros) -> LimitExplained {
    let new = State::new(check.limit, now);
    let current = state.unwrap_or(&new);
    let look = algorithm::check(check.limit, current, now, Demand::patient(Hits::Look));
    let fresh = algorithm::check(check.limit, &new, now, Demand::patient(Hits::Look));
    let outcome = algorithm::check(check.limit, current, now, check.demand);
    LimitExplained {
        limit: format!(
            "{}, {}",
            check.limit,
            check.limit.policy().algorithm().name()
        ),
        counter: check.key.to_string(),
        counter_exists: state.is_some(),
        remaining: look.remaining,
        count: fresh.remaining.saturating_sub(look.remaining),
        reset_after_ms: look.reset_after.as_millis_ceil(),
        admits: outcome.admitted,
        retry_after_ms: outcome.retry_after.map(Micros::as_millis_ceil),
    }
}
