//! Serves the HTTP and the debug port, over TLS if there is a certificate.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;

use super::stop_signal;
use super::tls::Tls;

/// Handshakes at a time; beyond it accepting waits.
const HANDSHAKES_MAX: usize = 64;

/// Serves until `stopped`.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
    stopped: watch::Receiver<bool>,
) {
    let stop = stop_signal(stopped);
    let served = match tls {
        None => {
            axum::serve(listener, router)
                .with_graceful_shutdown(stop)
                .await
        }
        Some(tls) => {
            let listener = TlsListener {
                listener,
                tls,
                shaking: JoinSet::new(),
            };
            axum::serve(listener, router)
                .with_graceful_shutdown(stop)
                .await
        }
    };
    if let Err(error) = served {
        tracing::error!(%error, "HTTP ended");
    }
}

/// Shakes hands with many at a time, so that nobody waits for one that is slow.
struct TlsListener {
    listener: TcpListener,
    tls: Arc<Tls>,
    shaking: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                // axum's own, which waits a little when it can't.
                (socket, peer) = Listener::accept(&mut self.listener), if self.shaking.len() < HANDSHAKES_MAX => {
                    let tls = self.tls.clone();
                    self.shaking.spawn(async move { Some((tls.shake_hands(socket).await.ok()?, peer)) });
                }
                Some(shaken) = self.shaking.join_next() => {
                    if let Ok(Some(safe)) = shaken {
                        return safe;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
