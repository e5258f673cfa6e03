//! The lanes of a store: one for each runtime and each node that it asks.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::batch::{Lane, LaneOptions};
use super::node::Node;
use super::pool::{Access, Manager};
use super::url::{Address, RedisUrl, Server};
use crate::telemetry::Telemetry;

/// Makes lanes, and finds those that there are.
pub(super) struct Lanes {
    /// Which of a thread's lanes are this store's.
    id: u64,
    url: RedisUrl,
    access: Access,
    round_trip_timeout: Duration,
    options: LaneOptions,
    /// What all runtimes know of each node that any of them has a lane to.
    nodes: Mutex<Vec<(Option<Address>, Weak<Node>)>>,
    telemetry: Arc<Telemetry>,
}

struct Known {
    store: u64,
    /// None where the URL says what to ask.
    node: Option<Address>,
    lane: Lane,
}

impl Known {
    fn is_needed(&self, store: u64, nodes: &[Address]) -> bool {
        let is_one_of = |node| nodes.contains(node);
        !self.lane.is_closed() && (self.store != store || self.node.as_ref().is_none_or(is_one_of))
    }
}

impl Lanes {
    pub(super) fn new(
        url: RedisUrl,
        access: Access,
        round_trip_timeout: Duration,
        options: LaneOptions,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            url,
            access,
            round_trip_timeout,
            options,
            nodes: Mutex::default(),
            telemetry,
        }
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.options.connect_timeout
    }

    /// A counter's name in Redis.
    pub(super) fn name(&self, key: &[u8]) -> Vec<u8> {
        [&self.options.prefix, key].concat()
    }

    /// Connects to where the URL says, or to this node.
    pub(super) fn manager(&self, node: Option<&Address>) -> Manager {
        let mut url = self.url.clone();
        if let Some(node) = node {
            url.server = Server::At(node.clone());
        }
        Manager::new(
            url,
            self.access.clone(),
            self.options.connect_timeout,
            self.round_trip_timeout,
            self.telemetry.node(&self.name_of(node)),
        )
    }

    fn name_of(&self, node: Option<&Address>) -> String {
        node.map_or_else(|| self.url.to_string(), ToString::to_string)
    }

    /// This runtime's lane to where the URL says, or to this node. Where it is new, those to nodes that
    /// are not among `nodes` end.
    pub(super) fn lane(&self, node: Option<&Address>, nodes: &[Address]) -> Lane {
        thread_local! {
            static LANES: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) };
        }
        LANES.with_borrow_mut(|lanes| {
            let is_wanted = |known: &&Known| {
                known.store == self.id && known.node.as_ref() == node && !known.lane.is_closed()
            };
            if let Some(known) = lanes.iter().find(is_wanted) {
                return known.lane.clone();
            }
            lanes.retain(|known| known.is_needed(self.id, nodes));
            let lane = Lane::start(self.node(node), &self.options);
            lanes.push(Known {
                store: self.id,
                node: node.cloned(),
                lane: lane.clone(),
            });
            lane
        })
    }

    /// The server that the URL means, or this node.
    pub(super) fn node(&self, address: Option<&Address>) -> Arc<Node> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |(known, _): &&(Option<Address>, _)| known.as_ref() == address;
        if let Some(node) = nodes
            .iter()
            .find(is_it)
            .and_then(|(_, node)| node.upgrade())
        {
            return node;
        }
        nodes.retain(|(_, node)| node.strong_count() > 0);
        let name = self.name_of(address);
        let meter = self.telemetry.node(&name);
        let node = Arc::new(Node::new(
            name,
            address.is_some(),
            self.manager(address),
            self.options.clone(),
            meter,
        ));
        nodes.push((address.cloned(), Arc::downgrade(&node)));
        node
    }

    /// Nodes that are not among these are not asked any more, and need no probes.
    pub(super) fn retire_others(&self, needed: &[Address]) {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        for (address, node) in &*nodes {
            let is_needed = address
                .as_ref()
                .is_none_or(|address| needed.contains(address));
            if let Some(node) = node.upgrade().filter(|_| !is_needed) {
                node.retire();
            }
        }
    }
}
