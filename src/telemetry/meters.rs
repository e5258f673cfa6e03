//! What the parts of the process count with.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Label};

use super::histogram::Histogram;
use super::{
    BREAKER_STATE, CONNECTIONS, COUNTERS, COUNTERS_EVICTED, COUNTERS_EXPIRED, HANDSHAKES_FAILED,
    LEASE_SERVED, LEASE_WASTED, LEASED_HITS, REMEMBERED_DENIALS, STORE_CONNECTIONS, Telemetry,
    XDS_CONNECTED, counter, gauge, micros,
};

/// The metric of remembered denials.
#[derive(Clone, Debug)]
pub struct DenialMeter(Counter);

/// The metrics of hits taken in advance.
#[derive(Clone, Debug)]
pub struct LeaseMeter {
    hits: Counter,
    served: Counter,
    wasted: Counter,
}

/// The metrics of one node of a shared store.
#[derive(Clone, Debug)]
pub struct NodeMeter(pub(super) Arc<NodeSeries>);

#[derive(Debug)]
pub(super) struct NodeSeries {
    name: String,
    breaker_state: Gauge,
    connections: Gauge,
    pub(super) call_time: Histogram,
    pub(super) call_requests: Histogram,
}

/// The metrics of gRPC connections.
#[derive(Debug)]
pub struct ConnectionMeter {
    open: Gauge,
    handshakes_failed: Counter,
}

/// The metric of the server that rules come from.
#[derive(Debug)]
pub struct XdsMeter(Gauge);

/// The metrics of counters in memory.
#[derive(Clone, Debug)]
pub struct MemoryMeter {
    counters: Gauge,
    expired: Counter,
    evicted: [(&'static str, Counter); 3],
}

impl Telemetry {
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

    /// The meter of hits taken in advance.
    #[must_use]
    pub fn leases(&self) -> LeaseMeter {
        LeaseMeter {
            hits: counter(&self.recorder, LEASED_HITS, vec![]),
            served: counter(&self.recorder, LEASE_SERVED, vec![]),
            wasted: counter(&self.recorder, LEASE_WASTED, vec![]),
        }
    }

    /// The meter of a node of a shared store.
    #[must_use]
    pub fn node(&self, name: &str) -> NodeMeter {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = nodes.iter().find(|node| node.0.name == name) {
            return known.clone();
        }
        let labels = || vec![Label::new("node", name.to_owned())];
        let meter = NodeMeter(Arc::new(NodeSeries {
            name: name.to_owned(),
            breaker_state: gauge(&self.recorder, BREAKER_STATE, labels()),
            connections: gauge(&self.recorder, STORE_CONNECTIONS, labels()),
            call_time: Histogram::of_micros(),
            call_requests: Histogram::of_sizes(),
        }));
        nodes.push(meter.clone());
        meter
    }

    /// The meter of gRPC connections.
    #[must_use]
    pub fn connections(&self) -> ConnectionMeter {
        ConnectionMeter {
            open: gauge(&self.recorder, CONNECTIONS, vec![]),
            handshakes_failed: counter(&self.recorder, HANDSHAKES_FAILED, vec![]),
        }
    }

    /// The meter of the server that rules come from.
    #[must_use]
    pub fn xds(&self) -> XdsMeter {
        XdsMeter(gauge(&self.recorder, XDS_CONNECTED, vec![]))
    }
}

/// Counts what there is while it is there.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    pub(super) fn new(gauge: &Gauge) -> Self {
        gauge.increment(1);
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

impl DenialMeter {
    /// A request was answered from memory.
    pub(crate) fn answered(&self) {
        self.0.increment(1);
    }
}

impl LeaseMeter {
    /// Hits were taken.
    pub(crate) fn taken(&self, hits: u64) {
        self.hits.increment(hits);
    }

    /// A request was answered by some of them.
    pub(crate) fn served(&self) {
        self.served.increment(1);
    }

    /// Some will never be of use to anybody.
    pub(crate) fn wasted(&self, hits: u64) {
        self.wasted.increment(hits);
    }
}

impl NodeMeter {
    /// Its breaker is in this state.
    pub(crate) fn set(&self, state: u8) {
        self.0.breaker_state.set(state);
    }

    /// It was called for so many requests, and took so long.
    pub(crate) fn called(&self, requests: usize, time: Duration) {
        self.0
            .call_requests
            .observe(u64::try_from(requests).unwrap_or(u64::MAX));
        self.0.call_time.observe(micros(time));
    }

    /// There is a connection to it until the guard is dropped.
    pub(crate) fn connected(&self) -> Counted {
        Counted::new(&self.0.connections)
    }
}

impl NodeSeries {
    pub(super) fn label(&self) -> String {
        format!("node=\"{}\"", self.name.escape_default())
    }
}

impl ConnectionMeter {
    /// A connection is open until the guard is dropped.
    pub(crate) fn opened(&self) -> Counted {
        Counted::new(&self.open)
    }

    /// A connection was closed before it was of use.
    pub(crate) fn handshake_failed(&self) {
        self.handshakes_failed.increment(1);
    }
}

impl XdsMeter {
    /// There is a stream, or not.
    pub(crate) fn set_connected(&self, is_connected: bool) {
        self.0.set(f64::from(u8::from(is_connected)));
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
