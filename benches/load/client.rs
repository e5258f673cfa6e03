//! One connection to a server that speaks Envoy's rate limit protocol: h2, and no more of gRPC than needed.

use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request};
use prost::Message;
use tokio::net::TcpStream;

/// What precedes a message: whether it is compressed, and its length.
const FRAME_HEAD_BYTES: usize = 5;

/// A connection, and a request's head, which is always the same.
#[derive(Clone)]
pub(crate) struct Connection {
    sender: SendRequest<Bytes>,
    head: Request<()>,
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The connection is of no more use.
    #[error("the connection failed: {0}")]
    Connection(String),
    /// The server answered with an error.
    #[error("grpc-status {0}")]
    Status(String),
    /// The server's answer is no answer.
    #[error("an answer that makes no sense")]
    Nonsense,
}

impl From<h2::Error> for CallError {
    fn from(error: h2::Error) -> Self {
        Self::Connection(error.to_string())
    }
}

impl Connection {
    pub(crate) async fn open(server: SocketAddr) -> Result<Self, CallError> {
        let unreachable = |error: std::io::Error| CallError::Connection(error.to_string());
        let socket = TcpStream::connect(server).await.map_err(unreachable)?;
        socket.set_nodelay(true).map_err(unreachable)?;
        let (sender, connection) = h2::client::handshake(socket).await?;
        // What goes wrong with it, its calls say.
        tokio::spawn(async { drop(connection.await) });
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let head = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{server}{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(|error| CallError::Connection(error.to_string()))?;
        Ok(Self { sender, head })
    }

    /// Whether the server admits the request.
    pub(crate) async fn ask(&self, request: &RateLimitRequest) -> Result<bool, CallError> {
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut stream) = sender.send_request(self.head.clone(), false)?;
        stream.send_data(frame(request), true)?;

        let response = response.await?;
        status(response.headers())?;
        let mut body = response.into_body();
        let mut answer = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            answer.extend_from_slice(&chunk);
        }
        if let Some(trailers) = body.trailers().await? {
            status(&trailers)?;
        }

        let message = answer.get(FRAME_HEAD_BYTES..).ok_or(CallError::Nonsense)?;
        let message = RateLimitResponse::decode(message).map_err(|_| CallError::Nonsense)?;
        match message.overall_code() {
            Code::Ok => Ok(true),
            Code::OverLimit => Ok(false),
            Code::Unknown => Err(CallError::Nonsense),
        }
    }
}

fn frame(message: &RateLimitRequest) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(FRAME_HEAD_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).expect("a request is a few hundred bytes"));
    message.encode(&mut frame).expect("there is room");
    frame.freeze()
}

/// An error, if these headers or trailers have one.
fn status(headers: &HeaderMap) -> Result<(), CallError> {
    match headers.get("grpc-status") {
        Some(status) if status != "0" => {
            let status = String::from_utf8_lossy(status.as_bytes());
            Err(CallError::Status(status.into_owned()))
        }
        _ => Ok(()),
    }
}
