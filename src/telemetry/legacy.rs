//! The names under which envoyproxy/ratelimit's dashboards look for the same things.

use metrics::{Counter, Label};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::counter;
use super::rule::{Decided, Verdict};

/// Every metric's name and meaning.
pub const LEGACY_METRICS: [(&str, &str); 10] = [
    (TOTAL_HITS, "As envoyproxy/ratelimit: hits asked for."),
    (OVER_LIMIT, "As envoyproxy/ratelimit: hits over the limit."),
    (
        NEAR_LIMIT,
        "As envoyproxy/ratelimit: hits that passed near the limit.",
    ),
    (WITHIN_LIMIT, "As envoyproxy/ratelimit: hits that passed."),
    (
        SHADOW_MODE,
        "As envoyproxy/ratelimit: hits over a limit in shadow mode.",
    ),
    (TOTAL_REQUESTS, "As envoyproxy/ratelimit: calls."),
    (
        RESPONSE_TIME,
        "As envoyproxy/ratelimit: seconds to a decision.",
    ),
    (
        ERRORS,
        "As envoyproxy/ratelimit: calls without a decision of the store.",
    ),
    (
        CONFIG_LOADED,
        "As envoyproxy/ratelimit: sets of rules loaded.",
    ),
    (
        CONFIG_REFUSED,
        "As envoyproxy/ratelimit: sets of rules refused.",
    ),
];

const TOTAL_HITS: &str = "ratelimit_service_rate_limit_total_hits";
const OVER_LIMIT: &str = "ratelimit_service_rate_limit_over_limit";
const NEAR_LIMIT: &str = "ratelimit_service_rate_limit_near_limit";
const WITHIN_LIMIT: &str = "ratelimit_service_rate_limit_within_limit";
const SHADOW_MODE: &str = "ratelimit_service_rate_limit_shadow_mode";
pub(super) const TOTAL_REQUESTS: &str = "ratelimit_service_total_requests";
pub(super) const RESPONSE_TIME: &str = "ratelimit_service_response_time_seconds";
pub(super) const ERRORS: &str = "ratelimit_service_should_rate_limit_error";
pub(super) const CONFIG_LOADED: &str = "ratelimit_service_config_load_success";
pub(super) const CONFIG_REFUSED: &str = "ratelimit_service_config_load_error";

/// The label of calls.
pub(super) const METHOD: Label = Label::from_static_parts("grpc_method", "ShouldRateLimit");

/// A rule's metrics under those names.
#[derive(Debug)]
pub(super) struct Legacy {
    total_hits: Counter,
    over_limit: Counter,
    near_limit: Counter,
    within_limit: Counter,
    shadow_mode: Counter,
}

impl Legacy {
    /// `rule` is `key=value, key`, of which two levels are shown, as there.
    pub(super) fn new(recorder: &PrometheusRecorder, domain: &str, rule: &str) -> Self {
        let mut labels = vec![Label::new("domain", domain.to_owned())];
        let keys = rule.split(", ").map(|level| level.replacen('=', "_", 1));
        for (name, key) in ["key1", "key2"].into_iter().zip(keys) {
            labels.push(Label::new(name, key));
        }
        let series = |name| counter(recorder, name, labels.clone());
        Self {
            total_hits: series(TOTAL_HITS),
            over_limit: series(OVER_LIMIT),
            near_limit: series(NEAR_LIMIT),
            within_limit: series(WITHIN_LIMIT),
            shadow_mode: series(SHADOW_MODE),
        }
    }

    pub(super) fn decided(&self, decided: Decided) {
        self.total_hits.increment(decided.hits);
        match decided.verdict {
            Verdict::Ok => {
                self.within_limit.increment(decided.hits);
                self.near_limit.increment(decided.near_limit);
            }
            Verdict::OverLimit => self.over_limit.increment(decided.hits),
            Verdict::ShadowOverLimit => {
                self.over_limit.increment(decided.hits);
                self.shadow_mode.increment(decided.hits);
            }
        }
    }
}
