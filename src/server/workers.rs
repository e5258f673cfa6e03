//! The threads that answer gRPC, and who hands them their connections.

use std::convert::Infallible;
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::connection::Connections;
use super::listener::{Listener, Socket};
use super::stop_signal;

/// Sockets that wait for a busy worker; beyond it accepting waits.
const HANDOVER_MAX: usize = 1_024;

/// How long to let the system recover when it can't accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The threads that answer gRPC.
pub(super) struct Workers {
    senders: Vec<mpsc::Sender<Socket>>,
    /// Every worker holds the other end until it ends.
    running: mpsc::Receiver<Infallible>,
}

impl Workers {
    /// Starts so many, or one per core for 0.
    pub(super) fn start(
        count: usize,
        connections: &Arc<Connections>,
        stopped: &watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let count = NonZero::new(count)
            .or_else(|| std::thread::available_parallelism().ok())
            .map_or(1, NonZero::get);
        let mut senders = Vec::new();
        let (is_running, running) = mpsc::channel(1);
        for number in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let (sender, sockets) = mpsc::channel(HANDOVER_MAX);
            let (connections, stopped) = (connections.clone(), stopped.clone());
            let is_running = is_running.clone();
            std::thread::Builder::new()
                .name(format!("grpc-{number}"))
                .spawn(move || {
                    runtime.block_on(work(connections, sockets, stopped));
                    drop(is_running);
                })?;
            senders.push(sender);
        }
        Ok(Self { senders, running })
    }

    /// Accepts connections and hands them to the workers in turn, until `stopped`.
    pub(super) fn accept(
        &self,
        listener: Listener,
        stopped: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + use<> {
        accept(listener, self.senders.clone(), stopped)
    }

    /// Waits for all of them. Their threads are not joined: who stops waiting must not be held up by
    /// a call that never ends.
    pub(super) async fn ended(mut self) {
        drop(self.senders);
        let _all_gone = self.running.recv().await;
    }
}

async fn accept(
    listener: Listener,
    workers: Vec<mpsc::Sender<Socket>>,
    stopped: watch::Receiver<bool>,
) {
    let mut turns = workers.iter().cycle();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop_signal(stopped.clone()) => return,
        };
        match accepted {
            Ok(socket) => {
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

/// Serves the sockets that come, until there are none to come and all have ended.
async fn work(
    connections: Arc<Connections>,
    mut sockets: mpsc::Receiver<Socket>,
    stopped: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            socket = sockets.recv() => {
                let Some(socket) = socket else { break };
                let (connections, stopped) = (connections.clone(), stopped.clone());
                open.spawn(async move { connections.serve(socket, stopped).await });
            }
            Some(_ended) = open.join_next() => {}
        }
    }
    while open.join_next().await.is_some() {}
}
