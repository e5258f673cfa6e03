//! What the process tells its operators: every metric, and the log lines that go with them.
//!
//! Label values come from the configuration or from this file, never from a request, so that the
//! number of series is bounded. Handles are made once and kept; counting is one atomic addition.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use metrics::{Counter, Gauge, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::algorithm::Micros;

/// Every metric's name and meaning.
pub const METRICS: [(&str, &str); 19] = [
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
    (REQUESTS, "Requests answered, by overall code."),
    (
        INVALID_REQUESTS,
        "Requests refused because they make no sense.",
    ),
    (
        UNKNOWN_DOMAIN,
        "Requests for a domain that no file configures; they pass.",
    ),
    (DECISIONS, "Descriptors decided, by domain, rule and code."),
    (HITS, "Hits asked for, by domain and rule."),
    (
        REMEMBERED_DENIALS,
        "Requests denied without asking the store, which had denied before.",
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
const REQUESTS: &str = "comporta_requests_total";
const INVALID_REQUESTS: &str = "comporta_invalid_requests_total";
const UNKNOWN_DOMAIN: &str = "comporta_unknown_domain_total";
const DECISIONS: &str = "comporta_decisions_total";
const HITS: &str = "comporta_hits_total";
const DEGRADED: &str = "comporta_degraded_total";
const BREAKER_STATE: &str = "comporta_store_breaker_state";
const REMEMBERED_DENIALS: &str = "comporta_remembered_denials_total";
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
    invalid: Counter,
    unknown_domain: Counter,
    held: Gauge,
}

/// The metrics of one rule.
#[derive(Clone, Debug)]
pub struct RuleMeter {
    ok: Counter,
    over_limit: Counter,
    shadow_over_limit: Counter,
    hits: Counter,
}

/// The metrics of a rule that tell values of its descriptors apart. Clients choose those, so there is
/// a bound; what comes later is counted with the rule as a whole.
#[derive(Debug, Default)]
pub struct ValueMeters(Mutex<HashMap<String, RuleMeter>>);

/// How many series each metric of a rule has at most, beside that of the rule as a whole.
pub const VALUE_SERIES_MAX: usize = 1_000;

/// The metric of remembered denials.
#[derive(Clone, Debug)]
pub struct DenialMeter(Counter);

/// The metric of one node of a shared store.
#[derive(Debug)]
pub struct NodeMeter(Gauge);

/// The metrics of gRPC connections.
#[derive(Debug)]
pub struct ConnectionMeter {
    open: Gauge,
    handshakes_failed: Counter,
}

/// The metrics of counters in memory.
#[derive(Clone, Debug)]
pub struct MemoryMeter {
    counters: Gauge,
    expired: Counter,
    evicted: [(&'static str, Counter); 3],
}

/// What became of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may pass.
    Ok,
    /// It may not.
    OverLimit,
    /// It may pass, since its rule is in shadow mode.
    ShadowOverLimit,
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
        let recorder = PrometheusBuilder::new().build_recorder();
        for (name, meaning) in METRICS {
            let (name, meaning) = (KeyName::from(name), SharedString::from(meaning));
            if name.as_str().ends_with("_total") {
                recorder.describe_counter(name, Some(Unit::Count), meaning);
            } else {
                recorder.describe_gauge(name, None, meaning);
            }
        }
        let version = Label::new("version", env!("CARGO_PKG_VERSION"));
        gauge(&recorder, BUILD_INFO, vec![version]).set(1);
        let requests = |code| counter(&recorder, REQUESTS, vec![Label::new("code", code)]);
        Self {
            handle: recorder.handle(),
            ok: requests("ok"),
            over_limit: requests("over_limit"),
            invalid: counter(&recorder, INVALID_REQUESTS, vec![]),
            unknown_domain: counter(&recorder, UNKNOWN_DOMAIN, vec![]),
            held: gauge(&recorder, HELD, vec![]),
            recorder,
        }
    }

    /// Everything, in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }

    /// The meter of a rule.
    #[must_use]
    pub fn rule(&self, domain: &str, rule: &str) -> RuleMeter {
        let labels = || {
            vec![
                Label::new("domain", domain.to_owned()),
                Label::new("rule", rule.to_owned()),
            ]
        };
        let decisions = |code| {
            let mut labels = labels();
            labels.push(Label::new("code", code));
            counter(&self.recorder, DECISIONS, labels)
        };
        RuleMeter {
            ok: decisions("ok"),
            over_limit: decisions("over_limit"),
            shadow_over_limit: decisions("shadow_over_limit"),
            hits: counter(&self.recorder, HITS, labels()),
        }
    }

    /// The meter of counters in memory, which are used as the store or in its place.
    #[must_use]
    pub fn memory(&self, used_as: &'static str) -> MemoryMeter {
        let labels = || vec![Label::new("used_as", used_as)];
        let evicted = |kind| {
            let mut labels = labels();
            labels.push(Label::new("kind", kind));
            (kind, counter(&self.recorder, COUNTERS_EVICTED, labels))
        };
        MemoryMeter {
            counters: gauge(&self.recorder, COUNTERS, labels()),
            expired: counter(&self.recorder, COUNTERS_EXPIRED, labels()),
            evicted: ["idle", "counting", "denied"].map(evicted),
        }
    }

    /// The meter of remembered denials.
    #[must_use]
    pub fn denials(&self) -> DenialMeter {
        DenialMeter(counter(&self.recorder, REMEMBERED_DENIALS, vec![]))
    }

    /// The meter of a node of a shared store.
    #[must_use]
    pub fn node(&self, name: &str) -> NodeMeter {
        let labels = vec![Label::new("node", name.to_owned())];
        NodeMeter(gauge(&self.recorder, BREAKER_STATE, labels))
    }

    /// The meter of gRPC connections.
    #[must_use]
    pub fn connections(&self) -> ConnectionMeter {
        ConnectionMeter {
            open: gauge(&self.recorder, CONNECTIONS, vec![]),
            handshakes_failed: counter(&self.recorder, HANDSHAKES_FAILED, vec![]),
        }
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
    }

    /// A request was answered.
    pub fn answered(&self, over_limit: bool) {
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
    }

    /// A reply is being held until the guard is dropped.
    #[must_use]
    pub fn holding(&self) -> Counted<'_> {
        Counted::new(&self.held)
    }
}

/// Counts what there is while it is there.
#[derive(Debug)]
pub struct Counted<'t>(&'t Gauge);

impl<'t> Counted<'t> {
    fn new(gauge: &'t Gauge) -> Self {
        gauge.increment(1);
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

impl RuleMeter {
    /// A descriptor was decided.
    pub fn decided(&self, verdict: Verdict, hits: u64) {
        match verdict {
            Verdict::Ok => self.ok.increment(1),
            Verdict::OverLimit => self.over_limit.increment(1),
            Verdict::ShadowOverLimit => self.shadow_over_limit.increment(1),
        }
        self.hits.increment(hits);
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

impl DenialMeter {
    /// A request was answered from memory.
    pub(crate) fn answered(&self) {
        self.0.increment(1);
    }
}

impl NodeMeter {
    /// Its breaker is in this state.
    pub(crate) fn set(&self, state: u8) {
        self.0.set(state);
    }
}

impl ConnectionMeter {
    /// A connection is open until the guard is dropped.
    pub(crate) fn opened(&self) -> Counted<'_> {
        Counted::new(&self.open)
    }

    /// A connection was closed before it was of use.
    pub(crate) fn handshake_failed(&self) {
        self.handshakes_failed.increment(1);
    }
}

impl MemoryMeter {
    /// Idle counters were forgotten.
    pub(crate) fn swept(&self, expired: usize, left: usize) {
        self.expired
            .increment(u64::try_from(expired).unwrap_or(u64::MAX));
        self.counters.set(u32::try_from(left).unwrap_or(u32::MAX));
    }

    /// A counter had to make room.
    pub(crate) fn evicted(&self, kind: &'static str) {
        if let Some((_, counter)) = self.evicted.iter().find(|(name, _)| *name == kind) {
            counter.increment(1);
        }
    }
}

fn counter(recorder: &PrometheusRecorder, name: &'static str, labels: Vec<Label>) -> Counter {
    recorder.register_counter(&Key::from_parts(name, labels), &METADATA)
}

fn gauge(recorder: &PrometheusRecorder, name: &'static str, labels: Vec<Label>) -> Gauge {
    recorder.register_gauge(&Key::from_parts(name, labels), &METADATA)
}

static METADATA: Metadata<'static> = Metadata::new("comporta", Level::INFO, None);
