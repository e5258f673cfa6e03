//! The life of a gRPC connection: handshake, calls, and an end that no call in flight notices.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::service::Routes;
use tower::ServiceExt;

use super::listener::Socket;
use super::stop_signal;
use super::tls::Tls;
use crate::clock::jitter;
use crate::settings::GrpcSettings;
use crate::telemetry::{ConnectionMeter, Telemetry};

/// Streams that one connection may have open. Envoy multiplexes all calls of a worker thread over
/// one connection, so this is the bound on what is in flight from it.
const STREAMS_MAX: u32 = 4_096;

/// Envoy resets a stream when its 20 ms are over; under overload it does so by the thousand, and
/// the HTTP/2 layer's default bound of 20 would then close the connection.
const RESETS_PENDING_MAX: usize = 8_192;

/// gRPC headers are a few hundred bytes.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1_024;

/// What every gRPC connection has in common.
pub(super) struct Connections {
    http2: http2::Builder<TokioExecutor>,
    routes: Routes,
    tls: Option<Arc<Tls>>,
    age_max: Duration,
    age_grace: Duration,
    meter: ConnectionMeter,
}

impl Connections {
    pub(super) fn new(
        settings: &GrpcSettings,
        routes: Routes,
        tls: Option<Arc<Tls>>,
        telemetry: &Telemetry,
    ) -> Self {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .keep_alive_interval(Some(settings.keepalive_interval))
            .keep_alive_timeout(settings.keepalive_timeout);
        Self {
            http2,
            routes: routes.prepare(),
            tls,
            age_max: settings.connection_age_max,
            age_grace: settings.connection_age_grace,
            meter: telemetry.connections(),
        }
    }

    /// Serves a connection to its end.
    pub(super) async fn serve(&self, socket: Socket, stopped: watch::Receiver<bool>) {
        let socket = match socket.adopt() {
            Ok(socket) => socket,
            Err(error) => return tracing::debug!(%error, "the connection is gone already"),
        };
        match (socket, &self.tls) {
            (Socket::Unix(socket), _) => self.answer(socket, stopped).await,
            (Socket::Tcp(socket), None) => self.answer(socket, stopped).await,
            (Socket::Tcp(socket), Some(tls)) => match tls.shake_hands(socket).await {
                Ok(socket) => self.answer(socket, stopped).await,
                Err(error) => {
                    self.meter.handshake_failed();
                    tracing::debug!(%error, "TLS handshake failed");
                }
            },
        }
    }

    async fn answer<I>(&self, io: I, stopped: watch::Receiver<bool>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let _open = self.meter.opened();
        let routes = self.routes.clone();
        let routes = routes.map_request(|call: hyper::Request<Incoming>| call.map(Body::new));
        let connection = self
            .http2
            .serve_connection(TokioIo::new(io), TowerToHyperService::new(routes));
        let mut connection = pin!(connection);
        let is_stopping = tokio::select! {
            ended = connection.as_mut() => return log_end(ended),
            () = stop_signal(stopped) => true,
            () = grow_old(self.age_max) => false,
        };
        // Says GOAWAY: the peer takes another connection for new calls, and those in flight end here.
        connection.as_mut().graceful_shutdown();
        if is_stopping {
            // Bounded by the time that the whole process takes to stop.
            log_end(connection.await);
        } else if let Ok(ended) = tokio::time::timeout(self.age_grace, connection).await {
            log_end(ended);
        }
    }
}

/// Ends when a connection is that old, give or take a tenth, so that those which were opened together
/// don't end together. Never for 0.
async fn grow_old(age_max: Duration) {
    if age_max.is_zero() {
        return std::future::pending().await;
    }
    tokio::time::sleep(age_max * 9 / 10 + age_max / 5 * u32::from(jitter()) / 255).await;
}

fn log_end(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}
