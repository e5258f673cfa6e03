//! Counts what was decided, rule by rule.

use super::Service;
use crate::algorithm::Hits;
use crate::config::{Domain, Enforcement, Rule, SeriesBy};
use crate::request::{Descriptor, Request, printable};
use crate::response::Judged;
use crate::telemetry::{Decided, RuleMeter, Source, Verdict};

/// The label of limits that requests bring along.
const OVERRIDE: &str = "(limit of the request)";

/// Characters of a value that a label shows.
const VALUE_SHOWN_MAX: usize = 64;

impl<S> Service<S> {
    pub(super) fn record(
        &self,
        domain: &Domain,
        request: &Request,
        judged: &[Judged<'_>],
        source: Source,
    ) {
        let descriptors = request.descriptors.iter().zip(judged);
        for (descriptor, judged) in descriptors.filter(|(_, judged)| judged.is_limited) {
            let Some(rule) = judged.rule else {
                let new = || self.telemetry.rule(&domain.name, OVERRIDE);
                self.count(domain.override_meter.get_or_init(new), judged, source);
                continue;
            };
            if let Some(meter) = self.value_meter(domain, rule, descriptor) {
                self.count(&meter, judged, source);
            } else {
                let new = || self.telemetry.rule(&domain.name, &rule.path);
                self.count(rule.meter.get_or_init(new), judged, source);
            }
        }
    }

    /// The meter of this descriptor's values, if the rule asks for one and there is room.
    fn value_meter(
        &self,
        domain: &Domain,
        rule: &Rule,
        descriptor: &Descriptor,
    ) -> Option<RuleMeter> {
        let values = values_label(&rule.series_by, descriptor)?;
        let new = || self.telemetry.rule(&domain.name, &values);
        rule.value_meters.get(&values, new)
    }

    fn count(&self, meter: &RuleMeter, judged: &Judged<'_>, source: Source) {
        let verdict = match (judged.is_over(), judged.enforcement) {
            (false, _) => Verdict::Ok,
            (true, Enforcement::Shadow) => Verdict::ShadowOverLimit,
            (true, _) => Verdict::OverLimit,
        };
        let hits = match judged.hits {
            Hits::Charge(hits) => hits,
            Hits::Look | Hits::Refund(_) => 0,
        };
        let near_limit = match verdict {
            Verdict::Ok => self.near_limit(judged, hits),
            Verdict::OverLimit | Verdict::ShadowOverLimit => 0,
        };
        let decided = Decided {
            verdict,
            source,
            hits,
            near_limit,
        };
        meter.decided(&self.telemetry, decided);
    }

    /// How many of these hits took what comes after the ratio of the limit that is closest to denying.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a ratio of a limit, rounded down; nothing is decided by it"
    )]
    fn near_limit(&self, judged: &Judged<'_>, hits: u64) -> u64 {
        let Some((limit, outcome)) = judged.closest() else {
            return 0;
        };
        let capacity = limit.limit.capacity();
        let near = (capacity as f64 * self.options.near_limit_ratio) as u64;
        let taken = capacity.saturating_sub(outcome.remaining);
        taken.saturating_sub(near).min(hits)
    }
}

/// `tenant=acme, path=/x`, with the values that the rule's metrics tell apart.
fn values_label(series_by: &SeriesBy, descriptor: &Descriptor) -> Option<String> {
    let is_shown = |index: usize| match series_by {
        SeriesBy::Rule => false,
        SeriesBy::Values(shown) => shown.get(index).copied().unwrap_or(false),
        SeriesBy::Descriptor => true,
    };
    if *series_by == SeriesBy::Rule {
        return None;
    }
    let entries = descriptor.entries.iter().enumerate();
    let parts = entries.map(|(index, entry)| {
        let key = printable(&entry.key);
        if !is_shown(index) {
            return key;
        }
        let value: String = printable(&entry.value)
            .chars()
            .take(VALUE_SHOWN_MAX)
            .collect();
        format!("{key}={value}")
    });
    Some(parts.collect::<Vec<_>>().join(", "))
}
