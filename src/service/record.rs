//! Counts what was decided, rule by rule.

use super::Service;
use crate::algorithm::Hits;
use crate::config::{Domain, Enforcement, Rule, SeriesBy};
use crate::request::{Descriptor, Request, printable};
use crate::response::Judged;
use crate::telemetry::{RuleMeter, Verdict};

/// The label of limits that requests bring along.
const OVERRIDE: &str = "(limit of the request)";

/// Characters of a value that a label shows.
const VALUE_SHOWN_MAX: usize = 64;

impl<S> Service<S> {
    pub(super) fn record(&self, domain: &Domain, request: &Request, judged: &[Judged<'_>]) {
        let descriptors = request.descriptors.iter().zip(judged);
        for (descriptor, judged) in descriptors.filter(|(_, judged)| judged.is_limited) {
            let Some(rule) = judged.rule else {
                let new = || self.telemetry.rule(&domain.name, OVERRIDE);
                count(domain.override_meter.get_or_init(new), judged);
                continue;
            };
            if let Some(meter) = self.value_meter(domain, rule, descriptor) {
                count(&meter, judged);
            } else {
                let new = || self.telemetry.rule(&domain.name, &rule.path);
                count(rule.meter.get_or_init(new), judged);
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
}

fn count(meter: &RuleMeter, judged: &Judged<'_>) {
    let verdict = match (judged.is_over(), judged.enforcement) {
        (false, _) => Verdict::Ok,
        (true, Enforcement::Shadow) => Verdict::ShadowOverLimit,
        (true, _) => Verdict::OverLimit,
    };
    let hits = match judged.hits {
        Hits::Charge(hits) => hits,
        Hits::Look | Hits::Refund(_) => 0,
    };
    meter.decided(verdict, hits);
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
