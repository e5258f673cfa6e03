//! Shared round trips: what queued while the last call was in flight goes out as the next one.
//!
//! A lane belongs to one runtime: its workers and their connections never cross threads. There is no
//! timer: at low load a request goes out at once and alone; under load a call carries what has queued,
//! and costs Redis a fraction per request.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::error::{Remedy, remedy, store_error};
use super::pool::{LastFailure, Link, Manager};
use super::script::{self, Answer, Argument, Ask, Call};
use crate::clock::Clock;
use crate::store::StoreError;

/// Requests in one call at most: beyond some tens nothing more is saved, and each would wait longer.
const BATCH_MAX: usize = 128;

/// A queue, and the workers that empty it.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    queue: mpsc::Sender<Queued>,
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
    /// What counters' names begin with.
    pub(super) prefix: Arc<[u8]>,
    /// A manual clock's time is given to the script; otherwise Redis' own counts.
    pub(super) clock: Clock,
}

#[derive(Debug)]
struct Queued {
    ask: Ask,
    answer: oneshot::Sender<Result<Answer, StoreError>>,
}

impl Lane {
    /// Starts workers on this runtime.
    pub(super) fn start(manager: Manager, options: &LaneOptions) -> Self {
        let (queue, asks) = mpsc::channel(options.queue_max.clamp(1, mpsc_max()));
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
                options: options.clone(),
            };
            tokio::spawn(worker.run());
        }
        Self { queue }
    }

    /// Whether its runtime is gone, and its workers with it.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Queues `ask`. Dropping the receiver before it is sent takes it back.
    pub(super) fn send(
        &self,
        ask: Ask,
    ) -> Result<oneshot::Receiver<Result<Answer, StoreError>>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let queued = Queued { ask, answer };
        self.queue
            .try_send(queued)
            .map_err(|_| StoreError::Overloaded)?;
        Ok(answered)
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
        let answers = self.exchange(batch).await;
        match answers {
            Ok(answers) => {
                for (queued, answer) in batch.drain(..).zip(answers) {
                    let _gone = queued.answer.send(Ok(answer));
                }
            }
            Err(error) => {
                for queued in batch.drain(..) {
                    let _gone = queued.answer.send(Err(error.clone()));
                }
            }
        }
    }

    async fn exchange(&self, batch: &[Queued]) -> Result<Vec<Answer>, StoreError> {
        let asks = || batch.iter().map(|queued| &queued.ask);
        let mut link = self.pool.get().await.map_err(|error| match error {
            bb8::RunError::User(error) => error,
            bb8::RunError::TimedOut => self.connecting.get(),
        })?;
        let now = match &self.options.clock {
            Clock::System => None,
            Clock::Manual(clock) => Some(clock.now()),
        };
        let command = self.command(&Call::new(asks(), now));
        let reply = ask_twice_if_unknown(&mut link, &command).await;
        let reply = reply.map_err(|error| store_error(&error))?;
        let numbers = numbers(reply).ok_or_else(garbled)?;
        script::answers(asks(), &numbers).map_err(|_| garbled())
    }

    fn command(&self, call: &Call<'_>) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::sha1()).arg(call.keys.len());
        let mut name = self.options.prefix.to_vec();
        for key in &call.keys {
            name.truncate(self.options.prefix.len());
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
}

/// Nothing has run where the script was not known, so that it is safe to ask again; after any other
/// error it is not.
async fn ask_twice_if_unknown(link: &mut Link, command: &Cmd) -> Result<Value, RedisError> {
    let error = match ask(link, command).await {
        Ok(reply) => return Ok(reply),
        Err(error) => error,
    };
    match remedy(&error) {
        Remedy::LoadScript => {
            ask(link, &script::load()).await?;
            ask(link, command).await
        }
        Remedy::Keep | Remedy::Reconnect => Err(error),
    }
}

async fn ask(link: &mut Link, command: &Cmd) -> Result<Value, RedisError> {
    let reply = command.query_async(&mut link.connection).await;
    if let Err(error) = &reply {
        link.is_broken |= remedy(error) == Remedy::Reconnect;
    }
    reply
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

fn garbled() -> StoreError {
    StoreError::Refused("its reply makes no sense".to_owned())
}
