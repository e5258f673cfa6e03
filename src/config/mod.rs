//! The rules in force: immutable, prepared for matching, swapped as a whole.
//!
//! [`parse`] is the only way to make a [`Config`], so a `Config` that exists is right.

mod compile;
pub mod error;
mod fields;
pub mod files;
mod findings;
mod live;
pub mod matcher;
mod metadata;
pub mod parse;
mod raw;
pub mod report;
pub mod resource;
pub mod watch;
mod yaml;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::algorithm::{Algorithm, Limit};
use crate::telemetry::{RuleMeter, ValueMeters};
pub use error::{ConfigError, Warning};
pub use live::Live;
use matcher::Node;

/// Every domain of every file.
#[derive(Debug, Default)]
pub struct Config {
    /// By name, as bytes: a request's domain need not be UTF-8.
    domains: HashMap<Box<[u8]>, Domain>,
    warnings: Vec<Warning>,
    is_awaited: bool,
}

impl Config {
    /// What stands in for the rules until there are any.
    pub(crate) fn awaited() -> Self {
        Self {
            is_awaited: true,
            ..Self::default()
        }
    }

    /// Whether nobody knows yet which domains there are.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// The domain of that name.
    #[must_use]
    pub fn domain(&self, name: &[u8]) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// Every domain, by name.
    #[must_use]
    pub fn domains(&self) -> Vec<&Domain> {
        let mut domains: Vec<_> = self.domains.values().collect();
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        domains
    }

    /// How many rules there are.
    #[must_use]
    pub fn rules(&self) -> usize {
        self.domains
            .values()
            .map(|domain| domain.rules().len())
            .sum()
    }

    /// What is legal but odd, in the order of the files.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

/// One namespace of rules; Envoy names it in its filter.
#[derive(Debug)]
pub struct Domain {
    /// The name.
    pub name: String,
    /// What to answer while the store is unavailable; none if the domain leaves it to the settings.
    pub failure_mode: Option<FailureMode>,
    /// Which headers tell clients about their limits.
    pub headers: HeaderProfile,
    /// The descriptor key whose value decides in which slot of a cluster counters are; none to spread them.
    pub hash_tag: Option<Box<[u8]>>,
    /// What a limit sent in a request is counted by.
    pub overrides: Overrides,
    /// Counts what becomes of limits that requests bring along.
    pub override_meter: OnceLock<RuleMeter>,
    /// The root of the descriptor tree; it has no rule of its own.
    pub root: Node,
}

impl Domain {
    /// Every rule, in file order, depth first.
    #[must_use]
    pub fn rules(&self) -> Vec<&Arc<Rule>> {
        let mut rules = Vec::new();
        self.root.collect_rules(&mut rules);
        rules
    }
}

/// What holds where a rule doesn't say, and for limits that requests bring along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrides {
    /// The domain's default algorithm.
    pub algorithm: Algorithm,
    /// The domain's default for charging denied hits.
    pub charge_denied: ChargeDenied,
    /// How everything takes part in decisions, if the settings say so.
    pub enforcement: Option<Enforcement>,
    /// The most requests per unit that a sliding window log may have.
    pub log_entries_max: u32,
}

/// Which limits count denied hits, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeDenied {
    /// None.
    Never,
    /// Those of envoyproxy/ratelimit, which it counts so.
    FixedWindows,
    /// All.
    Always,
}

impl ChargeDenied {
    /// Whether limits by this algorithm do.
    #[must_use]
    pub fn applies_to(self, algorithm: Algorithm) -> bool {
        match self {
            Self::Never => false,
            Self::FixedWindows => algorithm == Algorithm::FixedWindow,
            Self::Always => true,
        }
    }
}

/// What a matched descriptor is held to.
#[derive(Debug)]
pub struct Rule {
    /// The keys and values that lead here, for people and metrics: `tenant=acme, path`.
    pub path: String,
    /// The limits.
    pub limits: Limits,
    /// The name that `replaces` refers to, and that answers carry.
    pub name: String,
    /// Rules, by name, that do not count for a request which this one matches.
    pub replaces: Vec<String>,
    /// Whether it denies.
    pub enforcement: Enforcement,
    /// What to answer while the store is unavailable, if the rule says so itself.
    pub failure_mode: Option<FailureMode>,
    /// What the answer's dynamic metadata carries.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// What metrics tell apart.
    pub series_by: SeriesBy,
    /// Where it was written: `file:line`.
    pub origin: String,
    /// Counts what becomes of it.
    pub meter: OnceLock<RuleMeter>,
    /// The same, where metrics tell values apart.
    pub value_meters: ValueMeters,
}

/// What the metrics of a rule tell apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SeriesBy {
    /// Nothing: one series for the rule.
    #[default]
    Rule,
    /// The values of some levels (`value_to_metric`), in the order of the descriptor's entries.
    Values(Box<[bool]>),
    /// Every value of the descriptor (`detailed_metric`).
    Descriptor,
}

/// The limits of a rule.
#[derive(Debug)]
pub enum Limits {
    /// Never denies and counts nothing.
    Unlimited,
    /// At least one; all must admit.
    Counted(Vec<RuleLimit>),
}

/// One limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLimit {
    /// The numbers and the algorithm.
    pub limit: Limit,
    /// Who waits for a leaky bucket's turn.
    pub delay: Delay,
}

/// Who waits for a leaky bucket's turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delay {
    /// The server holds its answer.
    #[default]
    Server,
    /// The answer comes at once and says how long to wait.
    Client,
}

/// How a rule takes part in the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Enforcement {
    /// Denies the request when its limit is reached.
    #[default]
    Hard,
    /// Counts and reports, never denies.
    Shadow,
    /// Denies only when every quota rule of the request is over.
    Quota,
}

/// What a domain answers while its store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureMode {
    /// OK.
    Open,
    /// What an in-process limiter of the same rule says.
    Local,
    /// `OVER_LIMIT`.
    Closed,
    /// gRPC `UNAVAILABLE`: the caller decides.
    Error,
}

impl FailureMode {
    /// Every mode; a request whose rules disagree takes the greatest of theirs.
    pub const ALL: [Self; 4] = [Self::Open, Self::Local, Self::Closed, Self::Error];

    /// The name that the configuration uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Local => "local",
            Self::Closed => "closed",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for FailureMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which response headers tell clients about their limits, on success and on denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderProfile {
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
    #[default]
    RateLimit,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`.
    XRateLimit,
    /// `RateLimit-Policy` and `RateLimit`, structured fields as in the IETF draft.
    Structured,
    /// None at all, not even `Retry-After`.
    None,
}

impl HeaderProfile {
    /// Every profile.
    pub const ALL: [Self; 4] = [
        Self::RateLimit,
        Self::XRateLimit,
        Self::Structured,
        Self::None,
    ];

    /// The name that the configuration uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RateLimit => "ratelimit",
            Self::XRateLimit => "x-ratelimit",
            Self::Structured => "structured",
            Self::None => "none",
        }
    }
}
