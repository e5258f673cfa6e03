//! Counters that many instances share.
//!
//! Every runtime that asks has a *lane* of its own: a queue and a few connections. What queued while
//! the last call was in flight goes out as the next, as one run of the script for all of it.

mod batch;
mod error;
mod pool;
pub mod script;
pub mod url;

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use batch::{Lane, LaneOptions};
use bb8::ManageConnection;
use error::store_error;
use pool::Manager;
pub use pool::{Access, Secret};
use script::{Answer, Ask};
use url::RedisUrl;

use super::{Charged, Check, CounterKey, Store, StoreError};
use crate::algorithm::{Demand, Hits, Micros, State};
use crate::clock::Clock;

/// Counters in Redis.
pub struct Redis {
    /// Which of a thread's lanes are this store's.
    id: u64,
    url: RedisUrl,
    access: Access,
    round_trip_timeout: Duration,
    lanes: LaneOptions,
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
    pub fn new(url: RedisUrl, access: Access, options: &RedisOptions, clock: Clock) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            url,
            access,
            round_trip_timeout: options.round_trip_timeout,
            lanes: LaneOptions {
                connections: options.connections,
                queue_max: options.queue_max,
                connect_timeout: options.connect_timeout,
                prefix: format!("{}{FORMAT}", options.prefix).into_bytes().into(),
                clock,
            },
        }
    }

    async fn ask(&self, ask: Ask, deadline: Micros) -> Result<Answer, StoreError> {
        let answered = self.lane().send(ask)?;
        match tokio::time::timeout(deadline.into(), answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_worker_gone)) => Err(StoreError::Unreachable("shutting down".to_owned())),
            Err(_elapsed) => Err(StoreError::Timeout),
        }
    }

    fn manager(&self) -> Manager {
        Manager::new(
            self.url.clone(),
            self.access.clone(),
            self.lanes.connect_timeout,
            self.round_trip_timeout,
        )
    }

    /// This runtime's lane.
    fn lane(&self) -> Lane {
        thread_local! {
            static LANES: RefCell<Vec<(u64, Lane)>> = const { RefCell::new(Vec::new()) };
        }
        LANES.with_borrow_mut(|lanes| {
            lanes.retain(|(_, lane)| !lane.is_closed());
            if let Some((_, lane)) = lanes.iter().find(|(id, _)| *id == self.id) {
                return lane.clone();
            }
            let lane = Lane::start(self.manager(), &self.lanes);
            lanes.push((self.id, lane.clone()));
            lane
        })
    }
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
        let answer = self.ask(Ask::new(checks), deadline).await?;
        answer.charged(checks).map_err(|_| nonsense())
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
        let answer = self.ask(Ask::new(&looks), PEEK_DEADLINE).await?;
        let states = answer.states(checks).map_err(|_| nonsense())?;
        Ok(states.into_iter().map(Some).collect())
    }

    /// On a connection of its own: operators do this, now and then.
    async fn reset(&self, keys: &[CounterKey]) -> Result<usize, StoreError> {
        if keys.is_empty() {
            return Ok(0);
        }
        let mut delete = redis::cmd("DEL");
        for key in keys {
            delete.arg([&self.lanes.prefix, key.as_bytes()].concat());
        }
        let mut link = self.manager().connect().await?;
        let deleted = delete.query_async(&mut link.connection).await;
        deleted.map_err(|error| store_error(&error))
    }
}

/// Explanations are for people.
const PEEK_DEADLINE: Micros = Micros(Micros::PER_SECOND);

fn nonsense() -> StoreError {
    StoreError::Refused("its reply makes no sense".to_owned())
}
