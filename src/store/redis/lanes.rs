//! The lanes of a store: one for each runtime and each node that it asks.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::batch::{Lane, LaneOptions};
use super::pool::{Access, Manager};
use super::url::{Address, RedisUrl, Server};

/// Makes lanes, and finds those that there are.
pub(super) struct Lanes {
    /// Which of a thread's lanes are this store's.
    id: u64,
    url: RedisUrl,
    access: Access,
    round_trip_timeout: Duration,
    options: LaneOptions,
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
    ) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            url,
            access,
            round_trip_timeout,
            options,
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
        )
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
            let lane = Lane::start(self.manager(node), &self.options);
            lanes.push(Known {
                store: self.id,
                node: node.cloned(),
                lane: lane.clone(),
            });
            lane
        })
    }
}
