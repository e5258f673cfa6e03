//! Counters that many instances share.
//!
//! Every runtime that asks has a *lane* of its own: a queue and a few connections. What queued while
//! the last call was in flight goes out as the next, as one run of the script for all of it.

mod batch;
mod breaker;
mod cluster;
mod error;
mod lanes;
mod node;
mod pool;
pub mod script;
mod slots;
mod split;
pub mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use batch::{LaneOptions, Route};
use bb8::ManageConnection;
use cluster::Cluster;
use error::store_error;
use lanes::Lanes;
pub use pool::{Access, Secret};
use script::{Answer, Ask};
use split::ends_after;
use url::{RedisUrl, Server};

use super::{Charged, Check, CounterKey, Store, StoreError};
use crate::algorithm::{Demand, Hits, Micros, State};
use crate::clock::Clock;
use crate::telemetry::Telemetry;

/// Counters in Redis.
pub struct Redis {
    url: RedisUrl,
    topology: Topology,
}

/// Whom to ask.
enum Topology {
    /// One server, whichever that is at present.
    One(Box<Lanes>),
    /// The node that has the counter.
    Many(Arc<Cluster>),
}

/// How Redis is used.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// What counters' names begin with, so that several services can share a database.
    pub prefix: String,
    /// Connections of each runtime.
    pub connections: u32,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a call may take; a server that often takes longer is not asked for a while.
    pub call_timeout: Duration,
    /// How long a call may take before its connection is given up.
    pub round_trip_timeout: Duration,
    /// Requests of each runtime that may wait.
    pub queue_max: usize,
}

/// The version of counters' names and values: others are left alone.
const FORMAT: &str = "1:";

impl Redis {
    /// Connects to nothing yet: the first request does.
    #[must_use]
    pub fn new(
        url: RedisUrl,
        access: Access,
        options: &RedisOptions,
        clock: Clock,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        let lane_options = LaneOptions {
            connections: options.connections,
            queue_max: options.queue_max,
            connect_timeout: options.connect_timeout,
            call_timeout: options.call_timeout,
            prefix: format!("{}{FORMAT}", options.prefix).into_bytes().into(),
            clock,
        };
        let lanes = Lanes::new(
            url.clone(),
            access,
            options.round_trip_timeout,
            lane_options,
            telemetry,
        );
        let topology = match &url.server {
            Server::At(_) | Server::Named { .. } => Topology::One(Box::new(lanes)),
            Server::Cluster { seeds } => {
                Topology::Many(Arc::new(Cluster::new(lanes, seeds.clone())))
            }
        };
        Self { url, topology }
    }

    /// Asks before anybody else does, so that the log says at once whether there is a store.
    pub async fn greet(&self) {
        match &self.topology {
            Topology::One(lanes) => lanes.node(None).greet().await,
            Topology::Many(cluster) => cluster.greet().await,
        }
    }
}

async fn ask(lanes: &Lanes, ask: Ask, deadline: Micros) -> Result<Answer, StoreError> {
    let lane = lanes.lane(None, &[]);
    let answered = lane.ask(ask, Route::default());
    match tokio::time::timeout(deadline.into(), answered).await {
        Ok(answer) => answer.map_err(|failure| failure.error),
        Err(_elapsed) => Err(StoreError::Timeout),
    }
}

/// On a connection of its own: operators do this, now and then.
async fn delete(lanes: &Lanes, keys: &[CounterKey]) -> Result<usize, StoreError> {
    let mut delete = redis::cmd("DEL");
    for key in keys {
        delete.arg(lanes.name(key.as_bytes()));
    }
    let mut link = lanes.manager(None).connect().await?;
    let deleted = delete.query_async(&mut link.connection).await;
    deleted.map_err(|error| store_error(&error))
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Store for Redis {
    async fn charge(
        &self,
        checks: &[Check<'_>],
        _now: Micros,
        deadline: Micros,
    ) -> Result<Charged, StoreError> {
        match &self.topology {
            Topology::One(lanes) => {
                let answer = ask(lanes, Ask::new(checks), deadline).await?;
                Ok(answer.charged(checks)?)
            }
            Topology::Many(cluster) => {
                split::charge(cluster, checks, ends_after(deadline.into())).await
            }
        }
    }

    async fn peek(
        &self,
        checks: &[Check<'_>],
        _now: Micros,
    ) -> Result<Vec<Option<State>>, StoreError> {
        let looks: Vec<_> = checks
            .iter()
            .map(|check| Check {
                demand: Demand::patient(Hits::Look),
                ..check.clone()
            })
            .collect();
        match &self.topology {
            Topology::One(lanes) => {
                let answer = ask(lanes, Ask::new(&looks), PEEK_DEADLINE).await?;
                let states = answer.states(checks)?;
                Ok(states.into_iter().map(Some).collect())
            }
            Topology::Many(cluster) => {
                split::states(cluster, &looks, ends_after(PEEK_DEADLINE.into())).await
            }
        }
    }

    async fn reset(&self, keys: &[CounterKey]) -> Result<usize, StoreError> {
        if keys.is_empty() {
            return Ok(0);
        }
        match &self.topology {
            Topology::One(lanes) => delete(lanes, keys).await,
            Topology::Many(cluster) => {
                let mut deleted = 0;
                for key in keys {
                    deleted += cluster.delete(key).await?;
                }
                Ok(deleted)
            }
        }
    }
}

/// Explanations are for people.
const PEEK_DEADLINE: Micros = Micros(Micros::PER_SECOND);
