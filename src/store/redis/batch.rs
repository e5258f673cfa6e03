//! Shared round trips: what queued while the last call was in flight goes out as the next one.
//!
//! A lane belongs to one runtime: its workers and their connections never cross threads. There is no
//! timer: at low load a request goes out at once and alone; under load a call carries what has queued,
//! and costs Redis a fraction per request.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;

use super::error::{Failure, Health, Remedy, health, remedy, store_error};
use super::node::Node;
use super::pool::{LastFailure, Link, Manager};
use super::script::{self, Answer, Argument, Ask, Call, Garbled};
use super::slots::Slot;
use crate::algorithm::Micros;
use crate::clock::{self, Clock};
use crate::store::StoreError;

/// Requests in one call at most: beyond some tens nothing more is saved, and each would wait longer.
const BATCH_MAX: usize = 128;

/// A queue, and the workers that empty it.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    queue: mpsc::Sender<Queued>,
    node: Arc<Node>,
}

/// What lanes are made by.
#[derive(Clone, Debug)]
pub(super) struct LaneOptions {
    /// Connections, each with a worker.
    pub(super) connections: u32,
    /// Requests that may wait.
    pub(super) queue_max: usize,
    /// How long a connection may take to be made.
    pub(super) connect_timeout: Duration,
    /// A server that takes longer for one call is of no use to callers.
    pub(super) call_timeout: Duration,
    /// What counters' names begin with.
    pub(super) prefix: Arc<[u8]>,
    /// A manual clock's time is given to the script; otherwise Redis' own counts.
    pub(super) clock: Clock,
}

impl LaneOptions {
    /// The time to give to the script, if it isn't Redis' own.
    pub(super) fn manual_now(&self) -> Option<Micros> {
        match &self.clock {
            Clock::System => None,
            Clock::Manual(clock) => Some(clock.now()),
        }
    }
}

/// How an ask is sent. Only in a cluster is there a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Route {
    /// The slot of all its counters: a script has but one.
    pub(super) slot: Slot,
    /// Whether its counters are on their way to the node that is asked.
    pub(super) asking: bool,
    /// Whether it must not share a run of the script.
    pub(super) alone: bool,
}

impl Route {
    pub(super) fn to(slot: Slot) -> Self {
        Self {
            slot,
            ..Self::default()
        }
    }
}

#[derive(Debug)]
struct Queued {
    ask: Ask,
    route: Route,
    answer: oneshot::Sender<Result<Answer, Failure>>,
}

/// What one run of the script decides.
struct Run {
    route: Route,
    queued: Vec<Queued>,
}

impl Lane {
    /// Starts workers on this runtime.
    pub(super) fn start(node: Arc<Node>, options: &LaneOptions) -> Self {
        let (queue, asks) = mpsc::channel(options.queue_max.clamp(1, mpsc_max()));
        let manager = node.manager().clone();
        let connecting = manager.last_failure();
        let pool = bb8::Pool::builder()
            .max_size(options.connections.max(1))
            .connection_timeout(options.connect_timeout)
            .test_on_check_out(false)
            .retry_connection(false)
            .build_unchecked(manager);
        let asks = Arc::new(Mutex::new(asks));
        for _ in 0..options.connections.max(1) {
            let worker = Worker {
                asks: asks.clone(),
                pool: pool.clone(),
                connecting: connecting.clone(),
                node: node.clone(),
                options: options.clone(),
            };
            tokio::spawn(worker.run());
        }
        Self { queue, node }
    }

    /// Whether its runtime is gone, and its workers with it.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Asks. Whoever stops waiting before it is sent takes it back.
    pub(super) async fn ask(&self, ask: Ask, route: Route) -> Result<Answer, Failure> {
        self.node.admit()?;
        let (answer, answered) = oneshot::channel();
        let queued = Queued { ask, route, answer };
        self.queue
            .try_send(queued)
            .map_err(|_| StoreError::Overloaded)?;
        match answered.await {
            Ok(answer) => answer,
            Err(_worker_gone) => Err(StoreError::Unreachable("shutting down".to_owned()).into()),
        }
    }
}

fn mpsc_max() -> usize {
    tokio::sync::Semaphore::MAX_PERMITS
}

struct Worker {
    asks: Arc<Mutex<mpsc::Receiver<Queued>>>,
    pool: bb8::Pool<Manager>,
    /// How connecting went last.
    connecting: LastFailure,
    node: Arc<Node>,
    options: LaneOptions,
}

impl Worker {
    async fn run(self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            // Held while the queue is empty, so that one worker waits and the others wait for it.
            let received = self
                .asks
                .lock()
                .await
                .recv_many(&mut batch, BATCH_MAX)
                .await;
            if received == 0 {
                return;
            }
            // Whoever has gone by now costs Redis nothing.
            batch.retain(|queued| !queued.answer.is_closed());
            if !batch.is_empty() {
                self.serve(&mut batch).await;
            }
        }
    }

    async fn serve(&self, batch: &mut Vec<Queued>) {
        let runs = runs(batch.drain(..));
        match self.exchange(&runs).await {
            Ok(replies) => {
                for (run, reply) in runs.into_iter().zip(replies) {
                    run.answer(reply);
                }
            }
            Err(failure) => {
                for run in runs {
                    run.fail(&failure);
                }
            }
        }
    }

    /// A reply for each run; how it went is noted.
    async fn exchange(&self, runs: &[Run]) -> Result<Vec<RedisResult<Value>>, Failure> {
        let slot = runs.first().map_or(Slot::default(), |run| run.route.slot);
        let begun = clock::instant();
        let mut replies = pin!(self.connect_and_send(runs));
        let in_time = timeout(self.options.call_timeout, &mut replies).await;
        let is_late = in_time.is_err();
        let replies = match in_time {
            Ok(replies) => replies,
            Err(_elapsed) => {
                // Noted at once: whoever asked has been answered by the failure mode by now.
                self.node.failed(&StoreError::Timeout, slot);
                replies.await
            }
        };
        let requests = runs.iter().map(|run| run.queued.len()).sum();
        self.node.called(requests, clock::instant() - begun);
        match &replies {
            Ok(replies) => {
                let errors = || replies.iter().filter_map(|reply| reply.as_ref().err());
                if let Some(error) = errors().find(|error| health(error) == Health::Ill) {
                    self.node.failed(&store_error(error), slot);
                } else if !is_late && replies.iter().any(is_from_a_well_server) {
                    self.node.answered();
                }
            }
            Err(failure) => self.node.failed(&failure.error, slot),
        }
        replies
    }

    async fn connect_and_send(&self, runs: &[Run]) -> Result<Vec<RedisResult<Value>>, Failure> {
        let mut link = self.pool.get().await.map_err(|error| match error {
            bb8::RunError::User(error) => error,
            bb8::RunError::TimedOut => self.connecting.get(),
        })?;
        let replies = self.send_twice_if_unknown(&mut link, runs).await;
        replies.map_err(|error| Failure::of(&error))
    }

    /// Nothing has run where the script was not known, so that it is safe to ask again; after any other
    /// error it is not.
    async fn send_twice_if_unknown(
        &self,
        link: &mut Link,
        runs: &[Run],
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let mut replies = self.send(link, runs.iter()).await?;
        let is_unknown = |index: &usize| match &replies[*index] {
            Ok(_) => false,
            Err(error) => remedy(error) == Remedy::LoadScript,
        };
        let unknown: Vec<usize> = (0..replies.len()).filter(is_unknown).collect();
        if unknown.is_empty() {
            return Ok(replies);
        }
        let again = self
            .load_and_send(link, unknown.iter().map(|&index| &runs[index]))
            .await;
        // The others have their replies, whatever came of this.
        let again = match again {
            Ok(again) => again,
            Err(error) => unknown.iter().map(|_| Err(error.clone())).collect(),
        };
        for (index, reply) in unknown.into_iter().zip(again) {
            replies[index] = reply;
        }
        Ok(replies)
    }

    async fn load_and_send(
        &self,
        link: &mut Link,
        runs: impl Iterator<Item = &Run>,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let loaded = script::load().exec_async(&mut link.connection).await;
        if let Err(error) = loaded {
            link.note(&error);
            return Err(error);
        }
        self.send(link, runs).await
    }

    /// In one write; each has a reply of its own.
    async fn send(
        &self,
        link: &mut Link,
        runs: impl Iterator<Item = &Run>,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let pipe = self.pipeline(runs);
        let replies: RedisResult<Vec<RedisResult<Value>>> =
            pipe.query_async(&mut link.connection).await;
        match &replies {
            Ok(replies) => {
                let errors = replies.iter().filter_map(|reply| reply.as_ref().err());
                errors.for_each(|error| link.note(error));
            }
            Err(error) => link.note(error),
        }
        replies
    }

    fn pipeline<'r>(&self, runs: impl Iterator<Item = &'r Run>) -> Pipeline {
        let now = self.options.manual_now();
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        for run in runs {
            if run.route.asking {
                pipe.cmd("ASKING").ignore();
            }
            pipe.add_command(command(&self.options.prefix, &Call::new(run.asks(), now)));
        }
        pipe
    }
}

/// Runs the script.
pub(super) fn command(prefix: &[u8], call: &Call<'_>) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script::sha1()).arg(call.keys.len());
    let mut name = prefix.to_vec();
    for key in &call.keys {
        name.truncate(prefix.len());
        name.extend_from_slice(key);
        command.arg(&name[..]);
    }
    for argument in &call.arguments {
        match argument {
            Argument::Number(number) => command.arg(number),
            Argument::Question(question) => command.arg(question),
        };
    }
    command
}

fn is_from_a_well_server(reply: &RedisResult<Value>) -> bool {
    match reply {
        Ok(_) => true,
        Err(error) => health(error) == Health::Well,
    }
}

/// What may share a run of the script does, in the order in which it came.
fn runs(batch: impl Iterator<Item = Queued>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for queued in batch {
        let route = queued.route;
        // Of counters on their way some may be there, which is answered only for one at a time.
        let shares = !route.alone && !route.asking;
        let fitting = runs.iter_mut().rfind(|run| shares && run.route == route);
        match fitting {
            Some(run) => run.queued.push(queued),
            None => runs.push(Run {
                route,
                queued: vec![queued],
            }),
        }
    }
    runs
}

impl Run {
    fn asks(&self) -> impl Iterator<Item = &Ask> {
        self.queued.iter().map(|queued| &queued.ask)
    }

    fn answer(self, reply: RedisResult<Value>) {
        let answers = match reply {
            Ok(reply) => numbers(reply)
                .ok_or(Garbled)
                .and_then(|numbers| script::answers(self.asks(), &numbers))
                .map_err(|garbled| StoreError::from(garbled).into()),
            Err(error) => Err(Failure::of(&error)),
        };
        match answers {
            Ok(answers) => {
                for (queued, answer) in self.queued.into_iter().zip(answers) {
                    let _gone = queued.answer.send(Ok(answer));
                }
            }
            Err(failure) => self.fail(&failure),
        }
    }

    fn fail(self, failure: &Failure) {
        for queued in self.queued {
            let _gone = queued.answer.send(Err(failure.clone()));
        }
    }
}

fn numbers(reply: Value) -> Option<Vec<u64>> {
    let Value::Array(values) = reply else {
        return None;
    };
    let number = |value| match value {
        Value::Int(number) => u64::try_from(number).ok(),
        _ => None,
    };
    values.into_iter().map(number).collect()
}
