//! What the process tells its operators: every metric, and the log lines that go with them.
//!
//! Label values come from the configuration or from this file, never from a request, so that the
//! number of series is bounded. Handles are made once and kept; counting is one atomic addition.

mod histogram;
mod legacy;
mod meters;
mod rule;
mod traces;

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use self::histogram::Histogram;
pub use self::legacy::LEGACY_METRICS;
pub use self::meters::{
    ConnectionMeter, Counted, DenialMeter, LeaseMeter, MemoryMeter, NodeMeter, XdsMeter,
};
pub use self::rule::{Decided, RuleMeter, Source, VALUE_SERIES_MAX, ValueMeters, Verdict};
pub use self::traces::{CallSpan, Traces};
use crate::algorithm::Micros;

/// Every metric's name and meaning.
pub const METRICS: [(&str, &str); 28] = [
    (BUILD_INFO, "1, labelled with the version that runs."),
    (CONFIG_RULES, "Rules in force."),
    (
        CONFIG_LOADED,
        "When the rules in force were loaded, in seconds since 1970.",
    ),
    (
        CONFIG_RELOADS,
        "Sets of rules that followed the first, by whether they were loaded or refused.",
    ),
    (
        CONFIG_REFUSED,
        "1 while the rules that were read last are not in force because they are wrong.",
    ),
    (
        XDS_CONNECTED,
        "1 while there is a stream to the xDS server that rules come from.",
    ),
    (REQUESTS, "Requests answered, by overall code."),
    (
        INVALID_REQUESTS,
        "Requests refused because they make no sense.",
    ),
    (
        UNKNOWN_DOMAIN,
        "Requests for a domain that no file configures; they pass.",
    ),
    (
        DECISION_SECONDS,
        "Time from a request to its decision, without the time that a reply is held.",
    ),
    (
        DECISIONS,
        "Descriptors decided, by domain, rule, code and who decided.",
    ),
    (HITS, "Hits asked for, by domain and rule."),
    (
        NEAR_LIMIT,
        "Hits that passed, but near the limit, by domain and rule.",
    ),
    (
        REMEMBERED_DENIALS,
        "Requests denied without asking the store, which had denied before.",
    ),
    (
        LEASED_HITS,
        "Hits taken from the store in advance, or that may have been.",
    ),
    (
        LEASE_SERVED,
        "Requests answered without asking the store, by hits that were taken in advance.",
    ),
    (
        LEASE_WASTED,
        "Hits taken in advance that were neither used nor given back.",
    ),
    (
        DEGRADED,
        "Requests answered without the store, by domain, failure mode and reason.",
    ),
    (
        BREAKER_STATE,
        "Whether a node of the store is asked: 0 if it is, 2 if it failed lately, 1 during a probe.",
    ),
    (
        CALL_SECONDS,
        "Time that calls to a node of the store took, each for many requests.",
    ),
    (CALL_REQUESTS, "Requests that shared a call to the store."),
    (STORE_CONNECTIONS, "Connections to a node of the store."),
    (
        HELD,
        "Replies that are being held for a leaky bucket's turn.",
    ),
    (CONNECTIONS, "gRPC connections that are open."),
    (
        HANDSHAKES_FAILED,
        "gRPC connections that ended before TLS was agreed upon.",
    ),
    (
        COUNTERS,
        "Counters in memory, of the embedded store or of the failure mode `local`.",
    ),
    (
        COUNTERS_EXPIRED,
        "Idle counters in memory that were forgotten.",
    ),
    (
        COUNTERS_EVICTED,
        "Counters in memory that had to make room, by what they were.",
    ),
];

const BUILD_INFO: &str = "comporta_build_info";
const CONFIG_RULES: &str = "comporta_config_rules";
const CONFIG_LOADED: &str = "comporta_config_loaded_timestamp_seconds";
const CONFIG_RELOADS: &str = "comporta_config_reloads_total";
const CONFIG_REFUSED: &str = "comporta_config_refused";
const XDS_CONNECTED: &str = "comporta_xds_connected";
const REQUESTS: &str = "comporta_requests_total";
const INVALID_REQUESTS: &str = "comporta_invalid_requests_total";
const UNKNOWN_DOMAIN: &str = "comporta_unknown_domain_total";
const DECISION_SECONDS: &str = "comporta_decision_seconds";
const DECISIONS: &str = "comporta_decisions_total";
const HITS: &str = "comporta_hits_total";
const NEAR_LIMIT: &str = "comporta_near_limit_hits_total";
const DEGRADED: &str = "comporta_degraded_total";
const BREAKER_STATE: &str = "comporta_store_breaker_state";
const CALL_SECONDS: &str = "comporta_store_call_seconds";
const CALL_REQUESTS: &str = "comporta_store_call_requests";
const STORE_CONNECTIONS: &str = "comporta_store_connections";
const REMEMBERED_DENIALS: &str = "comporta_remembered_denials_total";
const LEASED_HITS: &str = "comporta_leased_hits_total";
const LEASE_SERVED: &str = "comporta_lease_served_total";
const LEASE_WASTED: &str = "comporta_lease_wasted_hits_total";
const HELD: &str = "comporta_held_replies";
const CONNECTIONS: &str = "comporta_grpc_connections";
const HANDSHAKES_FAILED: &str = "comporta_grpc_handshakes_failed_total";
const COUNTERS: &str = "comporta_counters";
const COUNTERS_EXPIRED: &str = "comporta_counters_expired_total";
const COUNTERS_EVICTED: &str = "comporta_counters_evicted_total";

/// The process's metrics.
#[derive(Debug)]
pub struct Telemetry {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    ok: Counter,
    over_limit: Counter,
    legacy_requests: Counter,
    invalid: Counter,
    unknown_domain: Counter,
    held: Gauge,
    decision_time: Histogram,
    nodes: Mutex<Vec<NodeMeter>>,
    /// Whether envoyproxy/ratelimit's names are there, too.
    has_legacy_names: bool,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::new()
    }
}

impl Telemetry {
    /// Starts at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::with_names(false)
    }

    /// The same, and much of it a second time under the names that envoyproxy/ratelimit gives it.
    #[must_use]
    pub fn with_legacy_names() -> Self {
        Self::with_names(true)
    }

    fn with_names(has_legacy_names: bool) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        for (name, meaning) in METRICS {
            let (name, meaning) = (KeyName::from(name), SharedString::from(meaning));
            if name.as_str().ends_with("_total") {
                recorder.describe_counter(name, Some(Unit::Count), meaning);
            } else {
                recorder.describe_gauge(name, None, meaning);
            }
        }
        for (name, meaning) in LEGACY_METRICS {
            recorder.describe_counter(name.into(), None, meaning.into());
        }
        let version = Label::new("version", env!("CARGO_PKG_VERSION"));
        gauge(&recorder, BUILD_INFO, vec![version]).set(1);
        let requests = |code| counter(&recorder, REQUESTS, vec![Label::new("code", code)]);
        Self {
            handle: recorder.handle(),
            ok: requests("ok"),
            over_limit: requests("over_limit"),
            legacy_requests: if has_legacy_names {
                counter(&recorder, legacy::TOTAL_REQUESTS, vec![legacy::METHOD])
            } else {
                Counter::noop()
            },
            invalid: counter(&recorder, INVALID_REQUESTS, vec![]),
            unknown_domain: counter(&recorder, UNKNOWN_DOMAIN, vec![]),
            held: gauge(&recorder, HELD, vec![]),
            decision_time: Histogram::of_micros(),
            nodes: Mutex::default(),
            has_legacy_names,
            recorder,
        }
    }

    /// Everything, in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.run_upkeep();
        let mut text = self.handle.render();
        self.write_histograms(&mut text);
        text
    }

    fn write_histograms(&self, text: &mut String) {
        let heading = |text: &mut String, name: &str| {
            let metrics = METRICS.iter().chain(&LEGACY_METRICS);
            let meaning = metrics
                .filter(|(other, _)| *other == name)
                .map(|(_, meaning)| meaning);
            for meaning in meaning {
                let _infallible =
                    write!(text, "\n# HELP {name} {meaning}\n# TYPE {name} histogram\n");
            }
        };
        heading(text, DECISION_SECONDS);
        self.decision_time.write(text, DECISION_SECONDS, "");
        if self.has_legacy_names {
            heading(text, legacy::RESPONSE_TIME);
            let label = "grpc_method=\"ShouldRateLimit\"";
            self.decision_time.write(text, legacy::RESPONSE_TIME, label);
        }
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes.is_empty() {
            return;
        }
        heading(text, CALL_SECONDS);
        for NodeMeter(node) in &*nodes {
            node.call_time.write(text, CALL_SECONDS, &node.label());
        }
        heading(text, CALL_REQUESTS);
        for NodeMeter(node) in &*nodes {
            node.call_requests.write(text, CALL_REQUESTS, &node.label());
        }
    }

    /// No configuration is in force yet.
    pub fn config_awaited(&self) {
        gauge(&self.recorder, CONFIG_RULES, vec![]).set(0);
    }

    /// A configuration is in force since then.
    pub fn config_loaded(&self, rules: usize, now: Micros) {
        let rules = u32::try_from(rules).unwrap_or(u32::MAX);
        let now = u32::try_from(now.0 / Micros::PER_SECOND).unwrap_or(u32::MAX);
        gauge(&self.recorder, CONFIG_RULES, vec![]).set(rules);
        gauge(&self.recorder, CONFIG_LOADED, vec![]).set(now);
        self.config_confirmed();
    }

    /// What was read last is in force.
    pub fn config_confirmed(&self) {
        gauge(&self.recorder, CONFIG_REFUSED, vec![]).set(0);
    }

    /// Another configuration was to follow.
    pub fn config_reloaded(&self, is_loaded: bool) {
        let result = if is_loaded { "loaded" } else { "refused" };
        counter(
            &self.recorder,
            CONFIG_RELOADS,
            vec![Label::new("result", result)],
        )
        .increment(1);
        if !is_loaded {
            gauge(&self.recorder, CONFIG_REFUSED, vec![]).set(1);
        }
        if self.has_legacy_names {
            let name = if is_loaded {
                legacy::CONFIG_LOADED
            } else {
                legacy::CONFIG_REFUSED
            };
            counter(&self.recorder, name, vec![]).increment(1);
        }
    }

    /// A request was answered.
    pub fn answered(&self, over_limit: bool, time: Duration) {
        self.decision_time.observe(micros(time));
        self.legacy_requests.increment(1);
        if over_limit {
            self.over_limit.increment(1);
        } else {
            self.ok.increment(1);
        }
    }

    /// A request was refused.
    pub fn refused(&self) {
        self.invalid.increment(1);
    }

    /// A request named a domain that there isn't.
    pub fn unknown_domain(&self) {
        self.unknown_domain.increment(1);
    }

    /// A request was answered by the failure mode.
    pub fn degraded(&self, domain: &str, mode: &'static str, reason: &'static str) {
        let labels = vec![
            Label::new("domain", domain.to_owned()),
            Label::new("mode", mode),
            Label::new("reason", reason),
        ];
        counter(&self.recorder, DEGRADED, labels).increment(1);
        if self.has_legacy_names {
            let labels = vec![Label::new("err_type", "redis_error")];
            counter(&self.recorder, legacy::ERRORS, labels).increment(1);
        }
    }

    /// A reply is being held until the guard is dropped.
    #[must_use]
    pub fn holding(&self) -> Counted {
        Counted::new(&self.held)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn counter(recorder: &PrometheusRecorder, name: &'static str, labels: Vec<Label>) -> Counter {
    recorder.register_counter(&Key::from_parts(name, labels), &METADATA)
}

fn gauge(recorder: &PrometheusRecorder, name: &'static str, labels: Vec<Label>) -> Gauge {
    recorder.register_gauge(&Key::from_parts(name, labels), &METADATA)
}

static METADATA: Metadata<'static> = Metadata::new("comporta", Level::INFO, None);
