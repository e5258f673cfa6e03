//! A TCP proxy that can be made to misbehave while connections are open.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::wait_until;

/// What happens to bytes and to new connections. Bytes on their way while the mode is set may
/// still be treated in the old way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Forward,
    /// Every chunk of replies comes that much later.
    Delay(Duration),
    /// Connections stay open, and what is sent in either direction is lost. A connection that lost
    /// something stays silent for good: TCP never loses bytes and then delivers later ones.
    BlackHole,
    /// The next reply, on whichever connection, ends after a few bytes, and so does the
    /// connection. After that the mode is `Forward`.
    CutMidReply,
    /// As if nobody listened: open connections are closed as well.
    Refuse,
}

/// A proxy that ends, together with its connections, when it is dropped.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    door: Door,
}

enum Door {
    Open(JoinHandle<()>),
    /// Bound, but not listening: clients are refused, and nobody else gets the port.
    Closed(Socket),
}

struct Shared {
    target: u16,
    mode: Mutex<Mode>,
    mode_changed: Condvar,
    accepted: AtomicUsize,
    links: Mutex<Vec<Weak<Link>>>,
}

/// A client's connection and, unless it goes into a black hole, ours to the target.
struct Link {
    client: TcpStream,
    target: Option<TcpStream>,
    has_lost_bytes: AtomicBool,
}

impl Proxy {
    /// Starts a proxy to a port of this host.
    pub(crate) fn start(target: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target,
            mode: Mutex::new(Mode::Forward),
            mode_changed: Condvar::new(),
            accepted: AtomicUsize::new(0),
            links: Mutex::default(),
        });
        let door = open(listener, &shared);
        Proxy { port, shared, door }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How many connections were accepted since the start.
    pub(crate) fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// When this returns, new connections are accepted or refused as the mode says.
    pub(crate) fn set(&mut self, mode: Mode) {
        self.shared.set(mode);
        match &self.door {
            Door::Open(_) if mode == Mode::Refuse => self.close(),
            Door::Closed(socket) if mode != Mode::Refuse => {
                let socket = socket.try_clone().unwrap();
                socket.listen(128).unwrap();
                self.door = open(socket.into(), &self.shared);
            }
            _ => {}
        }
    }

    fn close(&mut self) {
        // The thread looks at the mode when someone comes.
        drop(TcpStream::connect(self.address()));
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        let door = std::mem::replace(&mut self.door, Door::Closed(socket));
        if let Door::Open(thread) = door {
            thread.join().unwrap();
        }
        if let Door::Closed(socket) = &self.door {
            // A child process that is just being started has a copy of the listener. While that
            // is so, clients are still accepted and this fails.
            let address = self.address().into();
            wait_until("nobody listens", || socket.bind(&address).is_ok());
        }
        // After the thread's end, as it adds to them.
        for link in self.shared.links.lock().unwrap().drain(..) {
            if let Some(link) = link.upgrade() {
                link.close();
            }
        }
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Mode::Refuse);
    }
}

fn open(listener: TcpListener, shared: &Arc<Shared>) -> Door {
    let shared = Arc::clone(shared);
    Door::Open(std::thread::spawn(move || {
        for client in listener.incoming() {
            if shared.mode() == Mode::Refuse {
                return;
            }
            // A target that is gone looks to the client like a proxy that hangs up.
            let _target_is_gone = client.and_then(|client| shared.connect(client));
        }
    }))
}

impl Shared {
    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap()
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
        self.mode_changed.notify_all();
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        self.accepted.fetch_add(1, Ordering::SeqCst);
        client.set_nodelay(true)?;
        let link = Arc::new(Link {
            target: self.connect_target()?,
            client,
            has_lost_bytes: AtomicBool::new(false),
        });
        let mut links = self.links.lock().unwrap();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(&link));
        if link.target.is_some() {
            self.spawn(&link, Shared::forward_replies);
        }
        self.spawn(&link, Shared::forward_requests);
        Ok(())
    }

    fn connect_target(&self) -> io::Result<Option<TcpStream>> {
        if self.mode() == Mode::BlackHole {
            return Ok(None);
        }
        let target = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target))?;
        target.set_nodelay(true)?;
        Ok(Some(target))
    }

    fn spawn(self: &Arc<Self>, link: &Arc<Link>, run: fn(&Shared, &Link)) {
        let (shared, link) = (Arc::clone(self), Arc::clone(link));
        std::thread::spawn(move || run(&shared, &link));
    }

    fn forward_requests(&self, link: &Link) {
        let _either_end_is_gone = each_chunk(&link.client, |chunk| match &link.target {
            Some(target) if !self.loses(link) => {
                let mut target = target;
                target.write_all(chunk)
            }
            _ => Ok(()),
        });
        link.close();
    }

    fn forward_replies(&self, link: &Link) {
        let target = link.target.as_ref().unwrap();
        let _either_end_is_gone = each_chunk(target, |chunk| self.forward_reply(link, chunk));
        // Nor does a black hole let out that the target is gone.
        if !self.loses(link) {
            link.close();
        }
    }

    fn forward_reply(&self, link: &Link, chunk: &[u8]) -> io::Result<()> {
        self.delay();
        if self.loses(link) {
            return Ok(());
        }
        if self.is_to_cut() {
            (&link.client).write_all(&chunk[..3.min(chunk.len() - 1)])?;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        (&link.client).write_all(chunk)
    }

    /// Ends early when the mode changes.
    fn delay(&self) {
        let mode = self.mode.lock().unwrap();
        if let Mode::Delay(time) = *mode {
            let is_same = |mode: &mut Mode| *mode == Mode::Delay(time);
            let waited = self.mode_changed.wait_timeout_while(mode, time, is_same);
            drop(waited.unwrap());
        }
    }

    fn loses(&self, link: &Link) -> bool {
        if self.mode() == Mode::BlackHole {
            link.has_lost_bytes.store(true, Ordering::SeqCst);
        }
        link.has_lost_bytes.load(Ordering::SeqCst)
    }

    /// One reply is cut, so whoever asks first gets the mode.
    fn is_to_cut(&self) -> bool {
        let mut mode = self.mode.lock().unwrap();
        let is_to_cut = *mode == Mode::CutMidReply;
        if is_to_cut {
            *mode = Mode::Forward;
        }
        is_to_cut
    }
}

impl Link {
    fn close(&self) {
        for socket in [Some(&self.client), self.target.as_ref()] {
            let _already_closed = socket.map(|socket| socket.shutdown(Shutdown::Both));
        }
    }
}

/// Until the end of the stream or an error.
fn each_chunk(
    mut from: &TcpStream,
    mut forward: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut chunk = vec![0; 64 * 1024];
    loop {
        match from.read(&mut chunk)? {
            0 => return Ok(()),
            length => forward(&chunk[..length])?,
        }
    }
}
