//! The composition root: builds the store and the service, binds, serves, drains.
//!
//! gRPC runs on one single-threaded runtime per core, with accepted sockets handed out in turn: a
//! call never crosses threads, which costs more than the decision itself. The configuration, the
//! store and the metrics are shared. HTTP and the debug port run on a runtime of their own.

mod connection;
mod http;
mod listener;
mod options;
mod rules;
mod store;
mod tls;
mod workers;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use connection::Connections;
use listener::{Listener, UnixSocket, bind_unix};
use options::{bounds, options, parse_options};
use rules::Rules;
use store::Stores;
use tls::{Tls, TlsError, TlsFiles};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};
use workers::Workers;

use crate::clock::Clock;
use crate::config::files;
use crate::config::parse::parse;
use crate::config::{Config, ConfigError, FailureMode, Live, report};
use crate::failure::Fallback;
use crate::request::Bounds;
use crate::service::Service;
use crate::settings::{ConfigSettings, GrpcSettings, Settings};
use crate::store::any::AnyStore;
use crate::store::drill::Drill;
use crate::store::memory::Memory;
use crate::store::redis::Redis;
use crate::store::redis::url::{StoreUrl, UrlError};
use crate::telemetry::{Telemetry, Traces};
use crate::transport::http::Readiness;
use crate::transport::{self, debug, rls};
use crate::xds::XdsError;

/// How often the next part of the memory store is swept.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Why the process didn't start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The rules are wrong.
    #[error("{}", report::errors(.0))]
    Config(Vec<ConfigError>),
    /// There is no such store.
    #[error("--store: {0}")]
    Store(#[from] UrlError),
    /// The xDS server can't be asked like this.
    #[error("{0}")]
    Xds(#[from] XdsError),
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
    /// The Unix socket can't be had.
    #[error("can't listen on {} for gRPC: {source}", .path.display())]
    BindSocket {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A certificate is wrong.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// Spans can't be sent.
    #[error("--otlp-endpoint: {0}; write http://host:port")]
    Traces(String),
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
    rules: Rules,
    telemetry: Arc<Telemetry>,
    clock: Clock,
    grpc: TcpListener,
    grpc_socket: Option<UnixSocket>,
    grpc_tls: Option<Arc<Tls>>,
    http: TcpListener,
    http_tls: Option<Arc<Tls>>,
    metrics: Option<TcpListener>,
    debug: TcpListener,
}

/// How a process is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// First let everyone see that it will.
    Announced,
    /// Only end the calls in flight.
    AtOnce,
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
    parse(
        &files::read(&settings.paths)?,
        parse_options(&settings.reading),
    )
}

impl Server {
    /// Loads the rules, if they are in files, and takes the ports.
    pub async fn bind(settings: Settings, clock: Clock) -> Result<Self, ServeError> {
        let store_url = StoreUrl::parse(&settings.store.0)?;
        tracing::info!(store = %store_url, "counters");
        let telemetry = Arc::new(if settings.ratelimit_metrics {
            Telemetry::with_legacy_names()
        } else {
            Telemetry::new()
        });
        let (config, rules) = Rules::new(&settings, clock.clone(), &telemetry)?;
        Ok(Self {
            grpc_tls: grpc_tls(&settings.grpc)?,
            http_tls: http_tls(&settings)?,
            grpc: bind("gRPC", settings.grpc.addr).await?,
            grpc_socket: settings
                .grpc
                .socket
                .as_deref()
                .map(bind_socket)
                .transpose()?,
            http: bind("HTTP", settings.http_addr).await?,
            metrics: match settings.metrics_addr {
                Some(addr) => Some(bind("metrics", addr).await?),
                None => None,
            },
            debug: bind("the debug port", settings.debug_addr).await?,
            config,
            rules,
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
    pub async fn serve(self, shutdown: impl Future<Output = Stop>) -> Result<(), ServeError> {
        let Self {
            settings,
            store_url,
            config,
            rules,
            telemetry,
            clock,
            grpc,
            grpc_socket,
            grpc_tls,
            http,
            http_tls,
            metrics,
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

        let readiness = Readiness::default();
        let (health_reporter, health) = tonic_health::server::health_reporter();
        let answers = Answers {
            service,
            telemetry: telemetry.clone(),
            bounds: bounds(&settings),
            message_max: settings.message_bytes_max,
        };
        let traces = traces(&settings)?;
        let routes = answers.grpc(traces.clone(), health)?;
        let http_router = answers.http(readiness.clone());
        let debug_router = answers.debug(config.clone(), drill);

        let hangups = hangups().map_err(ServeError::Start)?;
        let mut background = JoinSet::new();
        background.spawn(sweep(stores.in_memory, clock));
        background.spawn(greet(stores.redis));
        background.spawn(rules.run(settings.reload_interval, hangups));
        for tls in [&grpc_tls, &http_tls].into_iter().flatten() {
            background.spawn(tls.clone().renew());
        }

        let (stop, stopped) = watch::channel(false);
        let connections = Connections::new(&settings.grpc, routes, grpc_tls, &telemetry);
        let workers = Workers::start(settings.workers, &Arc::new(connections), &stopped)
            .map_err(ServeError::Start)?;
        let mut serving = JoinSet::new();
        let doors = [Some(Listener::Tcp(grpc)), grpc_socket.map(Listener::Unix)];
        for listener in doors.into_iter().flatten() {
            serving.spawn(workers.accept(listener, stopped.clone()));
        }
        serving.spawn(http::serve(http, http_tls, http_router, stopped.clone()));
        if let Some(metrics) = metrics {
            let only_metrics = transport::http::metrics_router(telemetry);
            serving.spawn(http::serve(metrics, None, only_metrics, stopped.clone()));
        }
        serving.spawn(http::serve(debug, None, debug_router, stopped));

        let mut shutdown = pin!(shutdown);
        let is_enough = async {
            if !settings.xds.start_without_rules {
                config.loaded().await;
            }
        };
        let asked = tokio::select! {
            asked = shutdown.as_mut() => asked,
            () = is_enough => {
                rls::report_health(&health_reporter, true).await;
                readiness.set(true);
                tracing::info!("ready");
                shutdown.await
            }
        };
        readiness.set(false);
        rls::report_health(&health_reporter, false).await;
        if asked == Stop::Announced && !settings.drain_delay.is_zero() {
            tracing::info!(delay = ?settings.drain_delay, "not ready any more, and still serving");
            tokio::time::sleep(settings.drain_delay).await;
        }
        tracing::info!("draining");
        let _nobody_left = stop.send(true);
        drop(background);
        let drained = async {
            workers.ended().await;
            serving.join_all().await;
        };
        match tokio::time::timeout(settings.drain_timeout, drained).await {
            Ok(()) => tracing::info!("stopped"),
            Err(_) => {
                tracing::warn!(timeout = ?settings.drain_timeout, "stopped with calls in flight");
            }
        }
        if let Some(traces) = traces {
            let _ended = tokio::task::spawn_blocking(move || traces.end()).await;
        }
        Ok(())
    }
}

/// What each port answers with.
struct Answers {
    service: Arc<Service<AnyStore>>,
    telemetry: Arc<Telemetry>,
    bounds: Bounds,
    message_max: usize,
}

impl Answers {
    fn grpc(
        &self,
        traces: Option<Traces>,
        health: HealthServer<impl Health>,
    ) -> Result<Routes, ServeError> {
        let (service, telemetry) = (self.service.clone(), self.telemetry.clone());
        let routes = rls::routes(
            service,
            telemetry,
            self.bounds,
            self.message_max,
            traces,
            health,
        )?;
        Ok(routes)
    }

    fn http(&self, readiness: Readiness) -> Router {
        let (service, telemetry) = (self.service.clone(), self.telemetry.clone());
        transport::http::router(service, telemetry, readiness, self.bounds, self.message_max)
    }

    fn debug(self, config: Arc<Live>, drill: Drill) -> Router {
        debug::router(self.service, config, drill, self.bounds, self.message_max)
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

fn traces(settings: &Settings) -> Result<Option<Traces>, ServeError> {
    let endpoint = settings.otlp_endpoint.as_deref();
    let traces = endpoint.map(|endpoint| Traces::new(endpoint, settings.trace_ratio));
    traces
        .transpose()
        .map_err(|error| ServeError::Traces(error.to_string()))
}

fn bind_socket(path: &Path) -> Result<UnixSocket, ServeError> {
    bind_unix(path).map_err(|source| ServeError::BindSocket {
        path: path.to_owned(),
        source,
    })
}

fn grpc_tls(settings: &GrpcSettings) -> Result<Option<Arc<Tls>>, TlsError> {
    let pair = settings.tls_cert.as_ref().zip(settings.tls_key.as_ref());
    let tls = pair.map(|(certificate, key)| {
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: settings.client_ca.clone(),
        };
        Tls::new(files, settings.client_names.clone(), b"h2")
    });
    Ok(tls.transpose()?.map(Arc::new))
}

fn http_tls(settings: &Settings) -> Result<Option<Arc<Tls>>, TlsError> {
    let pair = settings
        .http_tls_cert
        .as_ref()
        .zip(settings.http_tls_key.as_ref());
    let tls = pair.map(|(certificate, key)| {
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: None,
        };
        Tls::new(files, Vec::new(), b"http/1.1")
    });
    Ok(tls.transpose()?.map(Arc::new))
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
