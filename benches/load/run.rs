//! Sends the load, from one thread or several, and writes down what became of every call.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use comporta::algorithm::Micros;
use comporta::clock::Clock;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

use super::allowed::Call;
use super::client::{CallError, Connection};

/// What is sent, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// The domain of the server's rules
    #[arg(long, default_value = "load")]
    pub(crate) domain: String,

    /// Descriptors in a request: one entry each, `key`, `key_2`, `key_3` and so on, with the same value
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) descriptors: u32,

    /// How many different values
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keys: u32,

    /// How often each of them comes up
    #[arg(long, value_enum, default_value_t = Distribution::Uniform)]
    pub(crate) distribution: Distribution,

    /// Open loop: begin so many calls per second, whatever the server does; without it, closed loop: a
    /// call begins when another has ended
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: Option<u32>,

    /// Seconds that are measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,

    /// Seconds of the same load before those
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=60))]
    pub(crate) warmup: u32,

    /// Connections to the server
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) connections: u32,

    /// Closed loop: calls in flight on each connection
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) in_flight: u32,

    /// Threads that send
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
}

/// How often each value comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Distribution {
    /// As often as any other
    Uniform,
    /// The nth an nth as often as the first
    Zipf,
}

/// What became of the calls, those of the warm-up included.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// With an answer.
    pub(crate) calls: Vec<Call>,
    /// Without one.
    pub(crate) errors: BTreeMap<String, usize>,
}

impl Sent {
    fn count(&mut self, called: Result<Call, CallError>) {
        match called {
            Ok(call) => self.calls.push(call),
            Err(error) => *self.errors.entry(error.to_string()).or_default() += 1,
        }
    }

    fn add(&mut self, other: Self) {
        self.calls.extend(other.calls);
        for (error, count) in other.errors {
            *self.errors.entry(error).or_default() += count;
        }
    }
}

/// When calls begin, when they begin to count, and when the last one begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    begins: Micros,
    pub(crate) counts_from: Micros,
    pub(crate) ends: Micros,
}

impl Load {
    /// Starting now.
    pub(crate) fn schedule(&self) -> Schedule {
        let begins = Clock::System.now();
        let counts_from = begins.0 + u64::from(self.warmup) * Micros::PER_SECOND;
        Schedule {
            begins,
            counts_from: Micros(counts_from),
            ends: Micros(counts_from + u64::from(self.seconds) * Micros::PER_SECOND),
        }
    }

    /// Sends it all. Fails if there is no connection to begin with.
    pub(crate) fn run(&self, server: SocketAddr, schedule: Schedule) -> io::Result<Sent> {
        let keys = &Keys::new(self.keys, self.distribution);
        let threads = self.threads.min(self.connections);
        thread::scope(|scope| {
            let spawn = |number| {
                let sender = Sender {
                    load: self,
                    number,
                    threads,
                    keys,
                    schedule,
                };
                scope.spawn(move || sender.run(server))
            };
            let senders: Vec<_> = (0..threads).map(spawn).collect();
            let mut sent = Sent::default();
            for sender in senders {
                sent.add(sender.join().expect("a sender doesn't panic")?);
            }
            Ok(sent)
        })
    }

    fn request(&self, key: u32) -> RateLimitRequest {
        let descriptor = |number| RateLimitDescriptor {
            entries: vec![Entry {
                key: descriptor_key(number),
                value: format!("{key:09}"),
            }],
            ..RateLimitDescriptor::default()
        };
        RateLimitRequest {
            domain: self.domain.clone(),
            descriptors: (1..=self.descriptors).map(descriptor).collect(),
            hits_addend: 0,
        }
    }
}

/// The key of the descriptor of that number, counted from 1.
pub(crate) fn descriptor_key(number: u32) -> String {
    match number {
        1 => "key".to_owned(),
        _ => format!("key_{number}"),
    }
}

/// One thread, with its share of the connections and of the rate.
struct Sender<'l> {
    load: &'l Load,
    number: u32,
    threads: u32,
    keys: &'l Keys,
    schedule: Schedule,
}

impl Sender<'_> {
    fn run(&self, server: SocketAddr) -> io::Result<Sent> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let connections = (self.number..self.load.connections).step_by(self.threads as usize);
        runtime.block_on(async {
            let connections = connections.map(|_| Connection::open(server));
            let connections = try_join_all(connections).await.map_err(io::Error::other)?;
            Ok(match self.load.rate {
                Some(rate) => self.open_loop(&connections, rate).await,
                None => self.closed_loop(&connections).await,
            })
        })
    }

    /// Always the same number of calls in flight.
    async fn closed_loop(&self, connections: &[Connection]) -> Sent {
        let lanes = (0..self.load.in_flight).flat_map(|_| connections);
        let lanes = lanes.zip(0..).map(async |(connection, lane)| {
            let mut random = self.random(lane);
            let mut sent = Sent::default();
            loop {
                let now = Clock::System.now();
                if now >= self.schedule.ends {
                    break sent;
                }
                let called = self.call(connection, now, random.next()).await;
                let is_connected = !matches!(called, Err(CallError::Connection(_)));
                sent.count(called);
                if !is_connected {
                    break sent;
                }
            }
        });
        let mut sent = Sent::default();
        join_all(lanes)
            .await
            .into_iter()
            .for_each(|lane| sent.add(lane));
        sent
    }

    /// A call whenever one is due. Its latency counts from then, so that a server (or a machine) which
    /// stands still is charged for every call that should have begun meanwhile.
    async fn open_loop(&self, connections: &[Connection], rate: u32) -> Sent {
        let (sender, mut due) = mpsc::unbounded_channel();
        let instants = self.instants(rate);
        // The runtime's timers are a millisecond late, this thread's some 60 µs.
        let pacer = thread::spawn(move || {
            for instant in instants {
                let wait = instant.since(Clock::System.now());
                thread::sleep(Duration::from(wait));
                if sender.send(instant).is_err() {
                    return;
                }
            }
        });
        let mut random = self.random(0);
        let mut connections = connections.iter().cycle();
        let mut calls = FuturesUnordered::new();
        let mut sent = Sent::default();
        loop {
            tokio::select! {
                Some(instant) = due.recv() => {
                    if let Some(connection) = connections.next() {
                        calls.push(self.call(connection, instant, random.next()));
                    }
                }
                Some(called) = calls.next() => sent.count(called),
                else => break,
            }
        }
        pacer.join().expect("the pacer doesn't panic");
        sent
    }

    /// When this thread's calls are due.
    fn instants(&self, rate: u32) -> impl Iterator<Item = Micros> + Send + use<> {
        let Schedule { begins, ends, .. } = self.schedule;
        let numbers = (u64::from(self.number)..).step_by(self.threads as usize);
        numbers
            .map(move |number| Micros(begins.0 + number * Micros::PER_SECOND / u64::from(rate)))
            .take_while(move |instant| *instant < ends)
    }

    async fn call(
        &self,
        connection: &Connection,
        began: Micros,
        random: u64,
    ) -> Result<Call, CallError> {
        let key = self.keys.pick(random);
        let admitted = connection.ask(&self.load.request(key)).await?;
        let ended = Clock::System.now();
        Ok(Call {
            key,
            began,
            ended,
            admitted,
        })
    }

    fn random(&self, lane: u64) -> Random {
        Random(u64::from(self.number) << 32 | lane)
    }
}

/// The values to choose from.
enum Keys {
    Uniform(u32),
    /// Each key's weight and those of all before it.
    Weighted(Vec<u64>),
}

impl Keys {
    fn new(keys: u32, distribution: Distribution) -> Self {
        match distribution {
            Distribution::Uniform => Self::Uniform(keys),
            Distribution::Zipf => {
                let weights = (1..=u64::from(keys)).map(|rank| (1 << 40) / rank);
                let sums = weights.scan(0, |sum, weight| {
                    *sum += weight;
                    Some(*sum)
                });
                Self::Weighted(sums.collect())
            }
        }
    }

    /// The key that `random`, any number at all, stands for.
    fn pick(&self, random: u64) -> u32 {
        let below = |bound: u64| (u128::from(random) * u128::from(bound)) >> 64;
        let key = match self {
            Self::Uniform(keys) => below(u64::from(*keys)),
            Self::Weighted(sums) => {
                let point = below(sums.last().copied().unwrap_or_default());
                sums.partition_point(|&sum| u128::from(sum) <= point) as u128
            }
        };
        u32::try_from(key).expect("there are no more keys")
    }
}

/// `SplitMix64`: the same numbers in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
