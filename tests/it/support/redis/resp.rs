//! RESP2 by hand, so that what the service's client says is checked by something else.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Nothing that a test asks for takes this long; a server that hangs fails the test.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Int(i64),
    /// RESP2 has two ways to say "nothing"; both are `Bulk(None)`.
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Reply {
    /// What a status, a bulk string or a number says.
    #[track_caller]
    pub(crate) fn text(&self) -> String {
        match self {
            Reply::Status(text) => text.clone(),
            Reply::Int(number) => number.to_string(),
            Reply::Bulk(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("not a text: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn int(&self) -> i64 {
        match self {
            Reply::Int(number) => *number,
            other => panic!("not a number: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn array(&self) -> &[Reply] {
        match self {
            Reply::Array(replies) => replies,
            other => panic!("not an array: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn expect_ok(&self) {
        assert_eq!(*self, Reply::Status("OK".to_owned()));
    }

    /// The value after this name, in an array of names and values.
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> String {
        let mut pairs = self.array().chunks_exact(2);
        let pair = pairs.find(|pair| pair[0].text() == name);
        pair.unwrap_or_else(|| panic!("no {name} in {self:?}"))[1].text()
    }
}

pub(crate) struct Connection<S> {
    stream: BufReader<S>,
}

impl Connection<TcpStream> {
    pub(crate) fn tcp(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut connection = Connection::over(stream);
        connection.set_patience(PATIENCE)?;
        Ok(connection)
    }

    /// How long to wait for a reply.
    pub(crate) fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        self.stream.get_mut().set_read_timeout(Some(patience))
    }
}

impl Connection<UnixStream> {
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection::over(stream))
    }
}

impl<S: Read + Write> Connection<S> {
    fn over(stream: S) -> Self {
        Connection {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) fn command(&mut self, words: &[&str]) -> io::Result<Reply> {
        self.send(words)?;
        self.receive()
    }

    pub(crate) fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let count = format!("*{}\r\n", words.len());
        let words = words.iter();
        let words = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let request: String = std::iter::once(count).chain(words).collect();
        self.stream.get_mut().write_all(request.as_bytes())
    }

    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
        match kind {
            "+" => Ok(Reply::Status(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Int(number(rest)?)),
            "$" => self.bulk(number(rest)?),
            "*" => self.array(number(rest)?),
            _ => Err(malformed(&line)),
        }
    }

    fn bulk(&mut self, length: i64) -> io::Result<Reply> {
        let Ok(length) = usize::try_from(length) else {
            return Ok(Reply::Bulk(None));
        };
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Reply::Bulk(Some(bytes)))
    }

    fn array(&mut self, length: i64) -> io::Result<Reply> {
        if length < 0 {
            return Ok(Reply::Bulk(None));
        }
        let replies: io::Result<_> = (0..length).map(|_| self.receive()).collect();
        Ok(Reply::Array(replies?))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, line)),
        }
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| malformed(text))
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP2: {line:?}"))
}
