//! The composition root: builds the store and the service, binds, serves, drains.
//!
//! gRPC runs on one single-threaded runtime per core, with accepted sockets handed out in turn: a
//! call never crosses threads, which costs more than the decision itself. The configuration, the
//! store and the metrics are shared. HTTP and the debug port run on a runtime of their own.

mod store;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use store::Stores;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;

use crate::clock::Clock;
use crate::config::files::{self, Source, Stamp};
use crate::config::parse::{ParseOptions, parse};
use crate::config::watch::Watch;
use crate::config::{Config, ConfigError, FailureMode, Live, report};
use crate::failure::Fallback;
use crate::request::Bounds;
use crate::service::{Options, Service};
use crate::settings::{ConfigSettings, DefaultFailureMode, Settings};
use crate::store::drill::Drill;
use crate::store::memory::Memory;
use crate::store::redis::Redis;
use crate::store::redis::url::{StoreUrl, UrlError};
use crate::telemetry::Telemetry;
use crate::transport::http::Readiness;
use crate::transport::{debug, http, rls};

/// Sockets that wait for a busy worker; beyond it accepting waits.
const HANDOVER_MAX: usize = 1_024;

/// How often the next part of the memory store is swept.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Streams that one connection may have open. Envoy multiplexes all calls of a worker thread over
/// one connection, so this is the bound on what is in flight from it.
const STREAMS_MAX: u32 = 4_096;

/// Envoy resets a stream when its 20 ms are over; under overload it does so by the thousand, and
/// the HTTP/2 layer's default bound of 20 would then close the connection.
const RESETS_PENDING_MAX: usize = 8_192;

/// gRPC headers are a few hundred bytes.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1_024;

/// A peer that doesn't answer a ping is gone, and its connection is closed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the process didn't start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The rules are wrong.
    #[error("{}", report::errors(.0))]
    Config(Vec<ConfigError>),
    /// There is no such store.
    #[error("--store: {0}")]
    Store(#[from] UrlError),
    /// A port can't be had.
    #[error("can't listen on {addr} for {what}: {source}")]
    Bind {
        /// What for.
        what: &'static str,
        /// Where.
        addr: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// A thread or a runtime can't be had.
    #[error("can't start: {0}")]
    Start(io::Error),
    /// The definitions for server reflection are broken.
    #[error("can't serve reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A server that has its ports, but doesn't answer yet.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    store_url: StoreUrl,
    config: Arc<Live>,
    /// What it was made of.
    stamps: Vec<Stamp>,
    sources: Vec<Source>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
    grpc: TcpListener,
    http: TcpListener,
    debug: TcpListener,
}

/// The ports that a server got.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// For gRPC.
    pub grpc: SocketAddr,
    /// For HTTP.
    pub http: SocketAddr,
    /// For the debug port.
    pub debug: SocketAddr,
}

/// Reads the rules; all their errors at once.
pub fn load(settings: &ConfigSettings) -> Result<Config, Vec<ConfigError>> {
    parse(&files::read(&settings.paths)?, parse_options(settings))
}

fn parse_options(settings: &ConfigSettings) -> ParseOptions {
    ParseOptions {
        merge_domains: settings.merge_domains,
    }
}

impl Server {
    /// Loads the rules and takes the ports.
    pub async fn bind(settings: Settings, clock: Clock) -> Result<Self, ServeError> {
        let store_url = StoreUrl::parse(&settings.store.0)?;
        tracing::info!(store = %store_url, "counters");
        let stamps = files::stamps(&settings.config.paths);
        let sources = files::read(&settings.config.paths).map_err(ServeError::Config)?;
        let config = parse(&sources, parse_options(&settings.config));
        let config = config.map_err(ServeError::Config)?;
        let telemetry = Arc::new(Telemetry::new());
        log_domains(&config, failure_mode(settings.failure_mode));
        Ok(Self {
            grpc: bind("gRPC", settings.grpc_addr).await?,
            http: bind("HTTP", settings.http_addr).await?,
            debug: bind("the debug port", settings.debug_addr).await?,
            config: Arc::new(Live::new(config, clock.clone(), telemetry.clone())),
            stamps,
            sources,
            telemetry,
            clock,
            store_url,
            settings,
        })
    }

    /// The ports, which matter where a setting left them to the system.
    pub fn ports(&self) -> io::Result<Ports> {
        Ok(Ports {
            grpc: self.grpc.local_addr()?,
            http: self.http.local_addr()?,
            debug: self.debug.local_addr()?,
        })
    }

    /// Serves until `shutdown`, then drains.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self {
            settings,
            store_url,
            config,
            stamps,
            sources,
            telemetry,
            clock,
            grpc,
            http,
            debug,
        } = self;
        let drill = Drill::new(clock.clone());
        let stores = Stores::new(store_url, &settings, &clock, &telemetry, drill.clone());
        let service = Arc::new(Service::new(
            config.clone(),
            stores.shared,
            Fallback::new(stores.local, settings.replicas),
            clock.clone(),
            telemetry.clone(),
            options(&settings),
        ));

        let bounds = bounds(&settings);
        let message_max = settings.message_bytes_max;
        let readiness = Readiness::default();
        let (health_reporter, health) = tonic_health::server::health_reporter();
        let routes = rls::routes(
            service.clone(),
            telemetry.clone(),
            bounds,
            message_max,
            health,
        )?;
        let http_router = http::router(
            service.clone(),
            telemetry,
            readiness.clone(),
            bounds,
            message_max,
        );
        let debug_router = debug::router(service, config.clone(), drill, bounds, message_max);

        let watch = Watch::new(
            settings.config.paths.clone(),
            parse_options(&settings.config),
            config.clone(),
            stamps,
            sources,
        );
        let hangups = hangups().map_err(ServeError::Start)?;
        let (stop, stopped) = watch::channel(false);
        let workers = Workers::start(&settings, &routes, &stopped).map_err(ServeError::Start)?;
        let accepting = tokio::spawn(accept(grpc, workers.senders.clone(), stopped.clone()));
        let sweeping = tokio::spawn(sweep(stores.in_memory, clock));
        let greeting = tokio::spawn(greet(stores.redis));
        let watching = tokio::spawn(watch.run(settings.reload_interval, hangups));
        let http = tokio::spawn(serve_http(http, http_router, stopped.clone()));
        let debug = tokio::spawn(serve_http(debug, debug_router, stopped));
        rls::report_health(&health_reporter, true).await;
        readiness.set(true);
        tracing::info!("ready");

        shutdown.await;
        tracing::info!("draining");
        readiness.set(false);
        rls::report_health(&health_reporter, false).await;
        let _nobody_left = stop.send(true);
        sweeping.abort();
        greeting.abort();
        watching.abort();
        let drained = async {
            let _ended = accepting.await;
            workers.ended().await;
            let _ended = tokio::join!(http, debug);
        };
        if tokio::time::timeout(settings.drain_timeout, drained)
            .await
            .is_ok()
        {
            tracing::info!("stopped");
        } else {
            tracing::warn!(timeout = ?settings.drain_timeout, "stopped with calls in flight");
        }
        Ok(())
    }
}

/// The threads that answer gRPC.
struct Workers {
    senders: Vec<mpsc::Sender<TcpStream>>,
    /// Every worker holds the other end until it ends.
    running: mpsc::Receiver<Infallible>,
}

impl Workers {
    fn start(
        settings: &Settings,
        routes: &Routes,
        stopped: &watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let count = NonZero::new(settings.workers)
            .or_else(|| std::thread::available_parallelism().ok())
            .map_or(1, NonZero::get);
        let mut senders = Vec::new();
        let (is_running, running) = mpsc::channel(1);
        for number in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let (sender, sockets) = mpsc::channel(HANDOVER_MAX);
            let (routes, stopped) = (routes.clone(), stopped.clone());
            let is_running = is_running.clone();
            std::thread::Builder::new()
                .name(format!("grpc-{number}"))
                .spawn(move || {
                    runtime.block_on(serve_grpc(routes, sockets, stopped));
                    drop(is_running);
                })?;
            senders.push(sender);
        }
        Ok(Self { senders, running })
    }

    /// Waits for all of them. Their threads are not joined: who stops waiting must not be held up by
    /// a call that never ends.
    async fn ended(mut self) {
        let _all_gone = self.running.recv().await;
    }
}

/// Hands accepted sockets to the workers in turn.
async fn accept(
    listener: TcpListener,
    workers: Vec<mpsc::Sender<TcpStream>>,
    stopped: watch::Receiver<bool>,
) {
    let mut turns = workers.iter().cycle();
    loop {
        let socket = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop_signal(stopped.clone()) => return,
        };
        match socket {
            Ok((socket, _)) => {
                let Some(worker) = turns.next() else { return };
                if worker.send(socket).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                // Out of file descriptors, most likely: more may come when connections close.
                tracing::warn!(%error, "can't accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// How long to let the system recover when it can't accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

async fn serve_grpc(
    routes: Routes,
    sockets: mpsc::Receiver<TcpStream>,
    stopped: watch::Receiver<bool>,
) {
    // A socket belongs to the runtime that accepted it until it is registered anew.
    let sockets = ReceiverStream::new(sockets).map(|socket| {
        let socket = TcpStream::from_std(socket.into_std()?)?;
        socket.set_nodelay(true)?;
        io::Result::Ok(socket)
    });
    let served = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_PENDING_MAX))
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_routes(routes)
        .serve_with_incoming_shutdown(sockets, stop_signal(stopped))
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "gRPC ended");
    }
}

async fn serve_http(listener: TcpListener, router: Router, stopped: watch::Receiver<bool>) {
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(stop_signal(stopped))
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "HTTP ended");
    }
}

async fn sweep(stores: Vec<Arc<Memory>>, clock: Clock) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        ticks.tick().await;
        for store in &stores {
            store.sweep(clock.now());
        }
    }
}

/// A message for each SIGHUP.
fn hangups() -> io::Result<mpsc::Receiver<()>> {
    let mut hangups = signal(SignalKind::hangup())?;
    let (nudge, nudges) = mpsc::channel(1);
    tokio::spawn(
        async move { while hangups.recv().await.is_some() && nudge.send(()).await.is_ok() {} },
    );
    Ok(nudges)
}

/// Nobody waits for it: a process without its store serves, by its failure modes.
async fn greet(redis: Option<Arc<Redis>>) {
    if let Some(redis) = redis {
        redis.greet().await;
    }
}

async fn stop_signal(mut stopped: watch::Receiver<bool>) {
    let _sender_gone = stopped.wait_for(|&stopped| stopped).await;
}

async fn bind(what: &'static str, addr: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(addr)
        .await
        .map_err(|source| ServeError::Bind { what, addr, source })
}

/// Says at start what each domain will do without its store, and what is odd about the rules: the time
/// to read it is now.
fn log_domains(config: &Config, default: FailureMode) {
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    for domain in config.domains() {
        let mode = domain.failure_mode.unwrap_or(default);
        tracing::info!(
            domain = domain.name,
            rules = domain.rules().len(),
            failure_mode = mode.name(),
            failure_mode_written = domain.failure_mode.is_some(),
            "domain loaded"
        );
    }
}

fn options(settings: &Settings) -> Options {
    Options {
        failure_mode: failure_mode(settings.failure_mode),
        store_timeout: settings.store_timeout.into(),
        holds_max: settings.holds_max.min(tokio::sync::Semaphore::MAX_PERMITS),
        requests_max: settings.requests_max,
    }
}

fn bounds(settings: &Settings) -> Bounds {
    Bounds {
        descriptors_max: settings.descriptors_max,
        entries_max: settings.entries_max,
    }
}

fn failure_mode(setting: DefaultFailureMode) -> FailureMode {
    match setting {
        DefaultFailureMode::Open => FailureMode::Open,
        DefaultFailureMode::Closed => FailureMode::Closed,
        DefaultFailureMode::Local => FailureMode::Local,
        DefaultFailureMode::Error => FailureMode::Error,
    }
}
