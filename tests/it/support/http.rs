//! HTTP/1.1 by hand: what is sent is what the test says, byte for byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    /// The values of a header, joined: a header that was sent twice shows.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let same = |(other, _): &&(String, String)| other.eq_ignore_ascii_case(name);
        let values = self.headers.iter().filter(same);
        let values: Vec<_> = values.map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(" | "))
    }
}

/// `GET`: status and body.
pub(crate) fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    let response = send(addr, "GET", path, &[], b"");
    (response.status, response.body)
}

/// `POST`: status and body.
pub(crate) fn post(addr: SocketAddr, path: &str, body: &[u8]) -> (u16, String) {
    let response = send(addr, "POST", path, &[], body);
    (response.status, response.body)
}

/// `DELETE`: status and body.
pub(crate) fn delete(addr: SocketAddr, path: &str) -> (u16, String) {
    let response = send(addr, "DELETE", path, &[], b"");
    (response.status, response.body)
}

/// Any request; the values of its headers are bytes.
pub(crate) fn send(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &[u8])],
    body: &[u8],
) -> Response {
    let length = body.len();
    let start = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    let mut request = format!("{start}content-length: {length}\r\n").into_bytes();
    for (name, value) in headers {
        request.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    request.extend([b"\r\n", body].concat());

    let mut socket = TcpStream::connect(addr).unwrap();
    let patience = Some(Duration::from_secs(30));
    socket.set_read_timeout(patience).unwrap();
    socket.write_all(&request).unwrap();
    let mut response = Vec::new();
    socket.read_to_end(&mut response).unwrap();
    parse(&String::from_utf8_lossy(&response))
}

fn parse(response: &str) -> Response {
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let headers = lines.map(|line| line.split_once(':').unwrap());
    Response {
        status: status.parse().unwrap(),
        headers: headers
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}
