//! A cluster: each slot's counters are asked about at the node that has them, wherever that is by now.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bb8::ManageConnection;
use redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::batch::Route;
use super::error::{Detour, Failure, store_error};
use super::lanes::Lanes;
use super::script::{Answer, Ask};
use super::slots::{Slot, Slots, slot_of};
use super::url::Address;
use crate::store::{CounterKey, StoreError};

/// Times that an ask is sent elsewhere, before it is given up.
const DETOURS_MAX: u32 = 5;

/// The pause before an ask that no node can answer yet is sent again, the first time; it doubles.
const PAUSE: Duration = Duration::from_millis(10);

/// Nodes are not asked more often who has which slot.
const REST: Duration = Duration::from_millis(100);

/// The nodes, and what is known of them; all runtimes share it.
pub(super) struct Cluster {
    lanes: Lanes,
    seeds: Vec<Address>,
    slots: ArcSwap<Slots>,
    learning: watch::Sender<Learning>,
    /// Where the next lesson begins, so that no node which is behind the times is asked for ever.
    lessons: AtomicUsize,
}

/// How far the nodes have been asked who has which slot.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Learning {
    /// Done a while ago, or never; with what came of it.
    Idle(Result<(), StoreError>),
    /// With what came of the time before.
    Asking(Result<(), StoreError>),
    /// Just done, or failed.
    Resting(Result<(), StoreError>),
}

impl Learning {
    fn result(&self) -> &Result<(), StoreError> {
        match self {
            Self::Idle(result) | Self::Asking(result) | Self::Resting(result) => result,
        }
    }
}

/// Whoever learns; its end lets others.
struct Learner(Arc<Cluster>);

impl Drop for Learner {
    fn drop(&mut self) {
        self.0.learning.send_modify(|learning| {
            *learning = Learning::Idle(learning.result().clone());
        });
    }
}

/// The way of one ask.
struct Trip {
    route: Route,
    /// Where to, if the map of slots doesn't say it.
    target: Option<Address>,
    detours: u32,
    has_moved: bool,
}

impl Trip {
    fn new(slot: Slot) -> Self {
        Self {
            route: Route::to(slot),
            target: None,
            detours: 0,
            has_moved: false,
        }
    }
}

impl Cluster {
    pub(super) fn new(lanes: Lanes, seeds: Vec<Address>) -> Self {
        Self {
            lanes,
            seeds,
            slots: ArcSwap::default(),
            learning: watch::Sender::new(Learning::Idle(Ok(()))),
            lessons: AtomicUsize::new(0),
        }
    }

    /// Says at once whether the nodes can be reached.
    pub(super) async fn greet(self: &Arc<Self>) {
        match self.learned().await {
            Ok(()) => {
                let nodes = self.slots.load().nodes().len();
                tracing::info!(nodes, "the cluster answers");
            }
            Err(error) => tracing::warn!(
                %error,
                "no node of the cluster answers; the failure modes do until one is there",
            ),
        }
    }

    pub(super) fn slot_of(&self, key: &CounterKey) -> Slot {
        slot_of(&self.lanes.name(key.as_bytes()))
    }

    /// Asks about counters of one slot.
    pub(super) async fn ask(
        self: &Arc<Self>,
        ask: Ask,
        slot: Slot,
        ends: Instant,
    ) -> Result<Answer, StoreError> {
        let answered = timeout_at(ends, self.follow(ask, slot)).await;
        let answer = answered.unwrap_or(Err(StoreError::Timeout));
        // Another may have taken the place of a node that doesn't answer, or that has to start anew.
        if matches!(&answer, Err(error) if *error != StoreError::Overloaded) {
            self.learn_soon();
        }
        answer
    }

    async fn follow(self: &Arc<Self>, ask: Ask, slot: Slot) -> Result<Answer, StoreError> {
        let mut trip = Trip::new(slot);
        loop {
            let node = self.next_node(&mut trip).await?;
            let lane = self.lanes.lane(Some(&node), self.slots.load().nodes());
            match lane.ask(ask.clone(), trip.route).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.redirect(&mut trip, &node, failure).await?,
            }
        }
    }

    /// Deletes a counter; says how many there were.
    pub(super) async fn delete(self: &Arc<Self>, key: &CounterKey) -> Result<usize, StoreError> {
        let name = self.lanes.name(key.as_bytes());
        let mut trip = Trip::new(slot_of(&name));
        loop {
            let node = self.next_node(&mut trip).await?;
            match self.delete_at(&node, &name, trip.route).await {
                Ok(deleted) => return Ok(deleted),
                Err(failure) => self.redirect(&mut trip, &node, failure).await?,
            }
        }
    }

    async fn delete_at(&self, node: &Address, name: &[u8], route: Route) -> Result<usize, Failure> {
        let mut link = self.lanes.manager(Some(node)).connect().await?;
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        if route.asking {
            pipe.cmd("ASKING").ignore();
        }
        pipe.cmd("DEL").arg(name);
        let replies: Result<Vec<Result<usize, _>>, _> =
            pipe.query_async(&mut link.connection).await;
        match replies.map(|mut replies| replies.pop()) {
            Ok(Some(Ok(deleted))) => Ok(deleted),
            Ok(Some(Err(error))) | Err(error) => Err(Failure::of(&error)),
            Ok(None) => Err(StoreError::Unreachable("it did not answer".to_owned()).into()),
        }
    }

    async fn next_node(self: &Arc<Self>, trip: &mut Trip) -> Result<Address, StoreError> {
        match trip.target.take() {
            Some(node) => Ok(node),
            None => self.owner(trip.route.slot).await,
        }
    }

    async fn owner(self: &Arc<Self>, slot: Slot) -> Result<Address, StoreError> {
        let owner = || self.slots.load().owner(slot).cloned();
        if let Some(owner) = owner() {
            return Ok(owner);
        }
        self.learned().await?;
        owner().ok_or_else(|| StoreError::Unreachable("no node has the slot".to_owned()))
    }

    /// What came of the latest lesson; the next one, if that was a while ago. Where the nodes were not to
    /// be found last time, nobody waits for them to be found this time.
    async fn learned(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut learning = self.learning.subscribe();
        loop {
            self.learn_soon();
            let news = learning
                .wait_for(|learning| *learning != Learning::Asking(Ok(())))
                .await;
            match news.as_deref() {
                Ok(Learning::Resting(result)) => return result.clone(),
                Ok(Learning::Asking(Err(error))) => return Err(error.clone()),
                // Its runtime ended, or its rest did meanwhile.
                Ok(Learning::Idle(_) | Learning::Asking(Ok(()))) => {}
                Err(_) => return Err(StoreError::Unreachable("shutting down".to_owned())),
            }
        }
    }

    /// Where to next, after `node` has not answered; fails where it makes no sense to go on.
    async fn redirect(
        self: &Arc<Self>,
        trip: &mut Trip,
        node: &Address,
        failure: Failure,
    ) -> Result<(), StoreError> {
        let Some(detour) = failure.detour else {
            return Err(failure.error);
        };
        if trip.detours == DETOURS_MAX {
            return Err(failure.error);
        }
        trip.route.asking = false;
        let pause = PAUSE * (1 << trip.detours);
        match detour {
            Detour::Moved(owner) => {
                self.moved(trip.route.slot, &owner.or_host_of(node));
                // Nodes that have not yet heard of each other's news may point at each other.
                if trip.has_moved {
                    sleep(pause).await;
                }
                trip.has_moved = true;
            }
            Detour::Ask(other) => {
                trip.target = Some(other.or_host_of(node));
                trip.route.asking = true;
            }
            Detour::TryAgain => {
                // Some of the counters have moved and some have not; those of this ask may be together.
                trip.route.alone = true;
                sleep(pause).await;
            }
            Detour::Down => {
                self.learn_soon();
                sleep(pause).await;
            }
        }
        trip.detours += 1;
        Ok(())
    }

    fn moved(self: &Arc<Self>, slot: Slot, owner: &Address) {
        if self.slots.load().owner(slot) != Some(owner) {
            self.slots.rcu(|slots| {
                let mut slots = Slots::clone(slots);
                slots.set_owner(slot, owner);
                slots
            });
        }
        self.learn_soon();
    }

    /// Learns who has which slot, unless somebody does or just did.
    fn learn_soon(self: &Arc<Self>) {
        let starts = self.learning.send_if_modified(|learning| {
            let Learning::Idle(result) = learning else {
                return false;
            };
            *learning = Learning::Asking(result.clone());
            true
        });
        if !starts {
            return;
        }
        let learner = Learner(self.clone());
        tokio::spawn(async move {
            let cluster = &learner.0;
            let result = cluster.learn().await;
            cluster.learning.send_replace(Learning::Resting(result));
            sleep(REST).await;
        });
    }

    /// The first node that knows is believed.
    async fn learn(&self) -> Result<(), StoreError> {
        let mut failure = StoreError::Unreachable("there are no nodes".to_owned());
        for node in self.teachers() {
            match timeout(self.lanes.connect_timeout() * 2, self.slots_by(&node)).await {
                Ok(Ok(slots)) => {
                    self.lanes.retire_others(slots.nodes());
                    self.slots.store(Arc::new(slots));
                    return Ok(());
                }
                Ok(Err(error)) => failure = error,
                Err(_elapsed) => failure = StoreError::Timeout,
            }
        }
        Err(failure)
    }

    /// Whoever is known, each time beginning with another; then the seeds.
    fn teachers(&self) -> Vec<Address> {
        let mut nodes = self.slots.load().nodes().to_vec();
        if !nodes.is_empty() {
            let first = self.lessons.fetch_add(1, Ordering::Relaxed) % nodes.len();
            nodes.rotate_left(first);
        }
        let is_new = |seed: &&Address| !nodes.contains(seed);
        let seeds: Vec<_> = self.seeds.iter().filter(is_new).cloned().collect();
        nodes.extend(seeds);
        nodes
    }

    async fn slots_by(&self, node: &Address) -> Result<Slots, StoreError> {
        let mut link = self.lanes.manager(Some(node)).connect().await?;
        let mut command = redis::cmd("CLUSTER");
        let asked = command.arg("SLOTS").query_async(&mut link.connection).await;
        let reply: Value = asked.map_err(|error| store_error(&error))?;
        Slots::read(&reply, node).ok_or_else(|| {
            StoreError::Unreachable("a node of the cluster knows of no slots".to_owned())
        })
    }
}
