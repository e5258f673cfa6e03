//! What becomes of a rule's descriptors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use metrics::{Counter, Label};

use super::legacy::Legacy;
use super::{DECISIONS, HITS, NEAR_LIMIT, Telemetry, counter};

/// The metrics of one rule.
#[derive(Clone, Debug)]
pub struct RuleMeter(Arc<Series>);

#[derive(Debug)]
struct Series {
    labels: Vec<Label>,
    /// By source and verdict; made when first needed.
    decisions: [[OnceLock<Counter>; 3]; 4],
    hits: Counter,
    near_limit: Counter,
    legacy: Option<Legacy>,
}

/// The metrics of a rule that tell values of its descriptors apart. Clients choose those, so there is
/// a bound; what comes later is counted with the rule as a whole.
#[derive(Debug, Default)]
pub struct ValueMeters(Mutex<HashMap<String, RuleMeter>>);

/// How many series each metric of a rule has at most, beside that of the rule as a whole.
pub const VALUE_SERIES_MAX: usize = 1_000;

/// What became of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Whether it may pass.
    pub verdict: Verdict,
    /// Who said so.
    pub source: Source,
    /// The hits that were asked for.
    pub hits: u64,
    /// How many of them, having passed, were near the limit.
    pub near_limit: u64,
}

/// Whether a descriptor may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Ok,
    /// It may not.
    OverLimit,
    /// It may, since its rule is in shadow mode.
    ShadowOverLimit,
}

/// Who decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The store.
    #[default]
    Store,
    /// A denial of the store that was remembered.
    Remembered,
    /// Nobody had to: the hits were taken in advance.
    Leased,
    /// The failure mode `local`.
    Local,
}

impl Verdict {
    const ALL: [Self; 3] = [Self::Ok, Self::OverLimit, Self::ShadowOverLimit];

    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::OverLimit => "over_limit",
            Self::ShadowOverLimit => "shadow_over_limit",
        }
    }
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Remembered => "remembered",
            Self::Leased => "leased",
            Self::Local => "local",
        }
    }
}

impl Telemetry {
    /// The meter of a rule.
    #[must_use]
    pub fn rule(&self, domain: &str, rule: &str) -> RuleMeter {
        let labels = vec![
            Label::new("domain", domain.to_owned()),
            Label::new("rule", rule.to_owned()),
        ];
        let meter = RuleMeter(Arc::new(Series {
            hits: counter(&self.recorder, HITS, labels.clone()),
            near_limit: counter(&self.recorder, NEAR_LIMIT, labels.clone()),
            legacy: self
                .has_legacy_names
                .then(|| Legacy::new(&self.recorder, domain, rule)),
            labels,
            decisions: Default::default(),
        }));
        // A rate needs a beginning: what never happened is shown as 0.
        for verdict in Verdict::ALL {
            meter.decisions(self, verdict, Source::Store);
        }
        meter
    }
}

impl RuleMeter {
    /// A descriptor was decided.
    pub fn decided(&self, telemetry: &Telemetry, decided: Decided) {
        self.decisions(telemetry, decided.verdict, decided.source)
            .increment(1);
        self.0.hits.increment(decided.hits);
        if decided.near_limit > 0 {
            self.0.near_limit.increment(decided.near_limit);
        }
        if let Some(legacy) = &self.0.legacy {
            legacy.decided(decided);
        }
    }

    fn decisions(&self, telemetry: &Telemetry, verdict: Verdict, source: Source) -> &Counter {
        self.0.decisions[source as usize][verdict as usize].get_or_init(|| {
            let mut labels = self.0.labels.clone();
            labels.push(Label::new("code", verdict.name()));
            labels.push(Label::new("source", source.name()));
            counter(&telemetry.recorder, DECISIONS, labels)
        })
    }
}

impl ValueMeters {
    /// The meter of these values, made by `new` if they are new; none beyond the bound.
    pub fn get(&self, values: &str, new: impl FnOnce() -> RuleMeter) -> Option<RuleMeter> {
        let mut meters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(meter) = meters.get(values) {
            return Some(meter.clone());
        }
        if meters.len() >= VALUE_SERIES_MAX {
            return None;
        }
        let meter = meters.entry(values.to_owned()).or_insert_with(new);
        Some(meter.clone())
    }
}
