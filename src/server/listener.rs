//! Where connections come from: a port, or a Unix socket.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Something to accept connections from.
#[derive(Debug)]
pub(super) enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A socket in the file system.
    Unix(UnixSocket),
}

/// A listening socket, whose file goes when it does.
#[derive(Debug)]
pub(super) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// A connection, on the runtime that accepted it.
#[derive(Debug)]
pub(super) enum Socket {
    /// Over the network.
    Tcp(TcpStream),
    /// From the same machine.
    Unix(UnixStream),
}

impl Listener {
    pub(super) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => Ok(Socket::Tcp(listener.accept().await?.0)),
            Self::Unix(socket) => Ok(Socket::Unix(socket.listener.accept().await?.0)),
        }
    }
}

impl Socket {
    /// A socket belongs to the runtime that accepted it until it is registered anew.
    pub(super) fn adopt(self) -> io::Result<Self> {
        match self {
            Self::Tcp(socket) => {
                let socket = TcpStream::from_std(socket.into_std()?)?;
                socket.set_nodelay(true)?;
                Ok(Self::Tcp(socket))
            }
            Self::Unix(socket) => Ok(Self::Unix(UnixStream::from_std(socket.into_std()?)?)),
        }
    }
}

/// Takes the place of a socket that nobody listens to any more, as a process leaves it that was killed.
pub(super) fn bind_unix(path: &Path) -> io::Result<UnixSocket> {
    let is_socket = |file: fs::Metadata| file.file_type().is_socket();
    if fs::symlink_metadata(path).is_ok_and(is_socket) {
        match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
            }
            _ => return Err(io::ErrorKind::AddrInUse.into()),
        }
    }
    Ok(UnixSocket {
        listener: UnixListener::bind(path)?,
        path: path.to_owned(),
    })
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _already_gone = fs::remove_file(&self.path);
    }
}
