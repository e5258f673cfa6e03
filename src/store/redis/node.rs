//! A server, as all runtimes know it: whether it is asked at present, and the probes while it is not.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bb8::ManageConnection;
use redis::Value;
use tokio::task::spawn_blocking;
use tokio::time::{sleep_until, timeout};

use super::batch::{self, LaneOptions};
use super::breaker::{Event, State, Tolerance};
use super::error::{Health, health, store_error};
use super::pool::Manager;
use super::script::{Ask, Call};
use super::slots::{Slot, slot_of};
use crate::algorithm::{Demand, Hits, Limit, Policy, Unit};
use crate::clock::{instant, jitter};
use crate::store::{Check, CounterKey, Role, StoreError};
use crate::telemetry::NodeMeter;

/// A server that fails for less is having a hiccup; in deadlines of one call.
const HICCUP: u32 = 2;

/// One server.
pub(super) struct Node {
    name: String,
    /// Whether it is one of a cluster, and has only some of the slots.
    is_in_cluster: bool,
    manager: Manager,
    options: LaneOptions,
    meter: NodeMeter,
    /// What every ask looks at …
    is_closed: AtomicBool,
    /// … and every answer.
    is_well: AtomicBool,
    /// Asks that were not sent since it was given up.
    spared: AtomicU64,
    known: Mutex<Known>,
}

struct Known {
    state: State,
    /// Why it is not asked.
    cause: Arc<StoreError>,
}

impl Node {
    pub(super) fn new(
        name: String,
        is_in_cluster: bool,
        manager: Manager,
        options: LaneOptions,
        meter: NodeMeter,
    ) -> Self {
        let known = Known {
            state: State::NEW,
            cause: Arc::new(StoreError::Timeout),
        };
        meter.set(State::NEW.number());
        Self {
            name,
            is_in_cluster,
            manager,
            options,
            meter,
            is_closed: AtomicBool::new(true),
            is_well: AtomicBool::new(true),
            spared: AtomicU64::new(0),
            known: Mutex::new(known),
        }
    }

    /// Connects to it.
    /// It was called for so many requests, and took so long.
    pub(super) fn called(&self, requests: usize, time: Duration) {
        self.meter.called(requests, time);
    }

    pub(super) fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Whether it may be asked.
    pub(super) fn admit(&self) -> Result<(), StoreError> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.spared.fetch_add(1, Ordering::Relaxed);
        Err(StoreError::Suspended(self.known().cause.clone()))
    }

    /// It answered in time.
    pub(super) fn answered(&self) {
        if !self.is_well.load(Ordering::Relaxed) {
            self.on(Event::Answered, None);
        }
    }

    /// It didn't, when it was asked about counters of this slot.
    pub(super) fn failed(self: &Arc<Self>, error: &StoreError, slot: Slot) {
        let was_closed = self.is_closed.load(Ordering::Relaxed);
        let state = self.on(Event::Failed, Some(error));
        if was_closed && !state.is_closed() {
            tokio::spawn(self.clone().probe_until_it_answers(slot));
        }
    }

    /// Probes it before anything else is asked.
    pub(super) async fn greet(self: &Arc<Self>) {
        match self.probe(&self.probing_ask(Slot::default())).await {
            Ok(()) => tracing::info!(node = self.name, "the store answers"),
            Err(error) => {
                let state = self.on(Event::ProbeFailed, Some(&error));
                if !state.is_closed() {
                    tokio::spawn(self.clone().probe_until_it_answers(Slot::default()));
                }
            }
        }
    }

    /// It has nothing more to be asked about.
    pub(super) fn retire(&self) {
        if !self.is_closed.load(Ordering::Relaxed) {
            tracing::debug!(node = self.name, "no more probes");
            self.on(Event::Retired, None);
        }
    }

    async fn probe_until_it_answers(self: Arc<Self>, slot: Slot) {
        let mut guard = Unattended(Some(self.clone()));
        let node = self.clone();
        let Ok(ask) = spawn_blocking(move || node.probing_ask(slot)).await else {
            return;
        };
        while let State::Open { probe_at, .. } = self.state() {
            sleep_until(probe_at).await;
            self.on(Event::ProbeBegan, None);
            match self.probe(&ask).await {
                Ok(()) => self.on(Event::ProbeAnswered, None),
                Err(error) => self.on(Event::ProbeFailed, Some(&error)),
            };
        }
        guard.0 = None;
    }

    /// A connection of its own, and a write as quick as callers need it. Anything less a replica would do
    /// as well, or a server without memory, or one that a debugger has stopped.
    async fn probe(&self, ask: &Ask) -> Result<(), StoreError> {
        let connecting = timeout(self.options.connect_timeout * 2, self.manager.connect());
        let mut link = connecting.await.unwrap_or(Err(StoreError::Timeout))?;
        let call = Call::new([ask], self.options.manual_now());
        let command = batch::command(&self.options.prefix, &call);
        let written = command.query_async::<Value>(&mut link.connection);
        match timeout(self.options.call_timeout, written).await {
            Ok(Err(error)) if health(&error) == Health::Ill => Err(store_error(&error)),
            Ok(_) => Ok(()),
            Err(_elapsed) => Err(StoreError::Timeout),
        }
    }

    /// About a counter of its own in that slot, which is gone a moment later. In a cluster it takes
    /// some milliseconds to find a name.
    fn probing_ask(&self, slot: Slot) -> Ask {
        let limit = Limit::new(Policy::FixedWindow, u32::MAX, Unit::Second, 1)
            .expect("a second is a window");
        let key = |number: u32| {
            CounterKey::of_domain(format!("probe {number}").as_bytes()).for_limit(&limit)
        };
        let is_there = |key: &CounterKey| {
            let name = [&self.options.prefix, key.as_bytes()].concat();
            !self.is_in_cluster || slot_of(&name) == slot
        };
        let key = (0..PROBE_NAMES_MAX).map(key).find(is_there);
        Ask::new(&[Check {
            key: key.unwrap_or_else(|| CounterKey::of_domain(b"probe").for_limit(&limit)),
            limit: &limit,
            demand: Demand::patient(Hits::Charge(1)),
            role: Role::Shadow,
        }])
    }

    fn state(&self) -> State {
        self.known().state
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state after `event`, which is told to whom it may concern if it is another.
    fn on(&self, event: Event, error: Option<&StoreError>) -> State {
        let now = instant();
        let tolerance = Tolerance {
            failing_min: self.options.call_timeout * HICCUP,
        };
        let mut known = self.known();
        let before = known.state;
        let state = before.after(event, now, tolerance, jitter());
        known.state = state;
        let is_news = error.is_some_and(|error| known.cause.reason() != error.reason());
        if let Some(error) = error {
            known.cause = Arc::new(error.clone());
        }
        drop(known);

        self.is_closed.store(state.is_closed(), Ordering::Relaxed);
        self.is_well.store(state == State::NEW, Ordering::Relaxed);
        self.meter.set(state.number());
        match (before, state, error) {
            (State::Closed(_), State::Open { .. }, Some(error)) => self.log_given_up(error),
            (State::HalfOpen { .. }, State::Open { .. }, Some(error)) if is_news => {
                self.log_given_up(error);
            }
            (State::HalfOpen { since, .. }, State::Closed(_), _) if event != Event::Retired => {
                tracing::info!(
                    node = self.name,
                    after = ?now.duration_since(since),
                    asks_spared = self.spared.swap(0, Ordering::Relaxed),
                    "the store answers again",
                );
            }
            _ => {}
        }
        state
    }

    /// Whoever has to mend it is another with each kind of error.
    fn log_given_up(&self, error: &StoreError) {
        if matches!(error, StoreError::NotPermitted(_)) {
            tracing::error!(
                node = self.name,
                %error,
                "the store is not asked until a probe is let in: \
                 look at the user, the password and its permissions",
            );
        } else {
            tracing::warn!(
                node = self.name,
                %error,
                "the store is not asked until a probe succeeds; the failure modes answer",
            );
        }
    }
}

/// A node whose probes ended with their runtime: it is asked again, and if it still fails, others probe.
struct Unattended(Option<Arc<Node>>);

impl Drop for Unattended {
    fn drop(&mut self) {
        if let Some(node) = &self.0 {
            node.retire();
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("name", &self.name)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// One name in 16 384 is in a given slot of a cluster; with so many, all but surely one of them is.
const PROBE_NAMES_MAX: u32 = 300_000;
