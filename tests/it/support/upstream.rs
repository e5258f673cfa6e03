//! What Envoy protects: an HTTP server that answers with what it was asked.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// A server that stops when it is dropped. One connection after the other, a request on each.
pub(crate) struct Upstream {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    requests: AtomicUsize,
    is_ending: AtomicBool,
}

/// Starts one on a port of its own.
pub(crate) fn start() -> Upstream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let shared = Arc::new(Shared::default());
    let thread = std::thread::spawn({
        let shared = shared.clone();
        move || serve(&listener, &shared)
    });
    Upstream {
        addr,
        shared,
        thread: Some(thread),
    }
}

impl Upstream {
    /// How many requests have come through.
    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
        // A last connection, to end the wait for one.
        let woken = TcpStream::connect(self.addr);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _panicked = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, shared: &Shared) {
    for socket in listener.incoming() {
        if shared.is_ending.load(Ordering::SeqCst) {
            return;
        }
        // A connection that breaks is missed by whoever waits for its answer.
        let _broken = socket.and_then(|socket| answer(&socket, shared));
    }
}

fn answer(socket: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(socket);
    let start_line = read_line(&mut reader)?;
    let mut length = 0;
    loop {
        let line = read_line(&mut reader)?;
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;

    // Before the answer: who has it may already be counting.
    shared.requests.fetch_add(1, Ordering::SeqCst);
    let body = format!("{start_line}\n{}", String::from_utf8_lossy(&body));
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    reader.into_inner().write_all((head + &body).as_bytes())
}

/// A line without its end. Header values are bytes, and needn't be UTF-8.
fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    if reader.read_until(b'\n', &mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}
