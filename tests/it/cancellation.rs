//! Callers that give up by the thousand, as Envoy does when its time-out is over.
//!
//! The HTTP/2 layer takes many resets on one connection for an attack and, unless it is told what is usual
//! here, ends the connection with all the calls on it.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use h2::client::{ResponseFuture, SendRequest};
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::redis::Redis;
use crate::support::server::{Running, request, start_with};

const RULES: &str = "
domain: d
failure_mode: error
descriptors:
  - key: k
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Calls that are given up, on one connection.
const CALLS: usize = 20_000;

/// Those that are given up at a time, as a proxy that stalls does.
const BURST: usize = 2_000;

struct Connection {
    calls: SendRequest<Bytes>,
    ended: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl Connection {
    async fn to(server: &Running) -> Self {
        let socket = TcpStream::connect(server.ports.grpc).await.unwrap();
        let (calls, connection) = h2::client::handshake(socket).await.unwrap();
        Self {
            calls,
            ended: tokio::spawn(connection),
        }
    }

    async fn call(&mut self, message: &RateLimitRequest) -> ResponseFuture {
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(message.encoded_len().try_into().unwrap());
        message.encode(&mut body).unwrap();
        let head = http::Request::post(format!("http://test{PATH}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let mut calls = self.calls.clone().ready().await.unwrap();
        let (response, mut stream) = calls.send_request(head, false).unwrap();
        stream.send_data(body.freeze(), true).unwrap();
        response
    }
}

#[tokio::test]
async fn a_connection_outlives_the_calls_that_are_given_up() {
    let redis = Redis::start();
    let url = redis.url();
    let server = start_with(RULES, &["--store", &url, "--store-timeout", "20s"]);
    let mut connection = Connection::to(&server).await;
    let message = request(&[&[("k", "x")]]);
    let answered = connection.call(&message).await.await.unwrap();
    assert_eq!(answered.status(), 200);

    redis.stop();
    for _ in 0..CALLS / BURST {
        let mut responses = Vec::new();
        for _ in 0..BURST {
            responses.push(connection.call(&message).await);
        }
        // The server has to have seen them, or there would be nothing to reset.
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(responses);
        tokio::task::yield_now().await;
    }
    redis.cont();

    let response = connection.call(&message).await;
    let answered = timeout(Duration::from_secs(30), response).await;
    assert_eq!(answered.expect("it answers").unwrap().status(), 200);
    assert!(
        !connection.ended.is_finished(),
        "the connection is the same"
    );
}
