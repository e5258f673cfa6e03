//! Byte for byte: what Envoy's own types write is understood, what we write is theirs, and no bytes
//! do harm.

use std::cell::RefCell;

use bytes::{Buf, BufMut, Bytes};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use http::uri::PathAndQuery;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::support::server::{Running, descriptor, request, start, with_hits};

const RULES: &str = "
domain: d
failure_mode: open
descriptors:
  - key: k
    rate_limit: {unit: week, requests_per_unit: 5, name: weekly}
    metadata: {deep: {list: [1, 2.5, true, ~, text]}}
";

/// Sends and receives bytes as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

struct RawClient(tonic::client::Grpc<Channel>);

impl RawClient {
    async fn of(server: &Running) -> Self {
        let address = format!("http://{}", server.ports.grpc);
        let channel = Channel::from_shared(address)
            .unwrap()
            .connect()
            .await
            .unwrap();
        Self(tonic::client::Grpc::new(channel))
    }

    async fn ask(&mut self, bytes: impl Into<Bytes>) -> Result<Bytes, Status> {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let path = PathAndQuery::from_static(path);
        self.0.ready().await.unwrap();
        let answer = self.0.unary(Request::new(bytes.into()), path, Raw).await?;
        Ok(answer.into_inner())
    }

    async fn decide(&mut self, bytes: impl Into<Bytes>) -> RateLimitResponse {
        let answer = self.ask(bytes).await.unwrap();
        RateLimitResponse::decode(answer).unwrap()
    }
}

/// A field that is length-delimited: its number, then its bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    assert!(number < 16 && length < 128, "one byte each");
    [&[number << 3 | 2, length], content].concat()
}

/// A varint field below 128.
fn small(number: u8, value: u8) -> Vec<u8> {
    assert!(number < 16 && value < 128, "one byte each");
    vec![number << 3, value]
}

/// A request for `k` with that value, and more fields of the descriptor.
fn hand_made(value: &[u8], more: &[u8]) -> Vec<u8> {
    let entry = [field(1, b"k"), field(2, value)].concat();
    let descriptor = [field(1, &entry), more.to_vec()].concat();
    [field(1, b"d"), field(2, &descriptor)].concat()
}

#[tokio::test]
async fn every_field_of_envoys_request_is_understood() {
    let server = start(RULES);
    let mut client = RawClient::of(&server).await;
    let mut message = request(&[&[("k", "x")], &[("k", "y")]]);
    message.hits_addend = 2;
    message.descriptors[1] = with_hits(descriptor(&[("k", "y")]), 3);
    message.descriptors[1].limit = Some(RateLimitOverride {
        requests_per_unit: 7,
        unit: 3,
    });
    let answer = client.decide(message.encode_to_vec()).await;
    let remaining: Vec<_> = answer
        .statuses
        .iter()
        .map(|status| status.limit_remaining)
        .collect();
    assert_eq!(remaining, [3, 4]);
    // A refund, which the published types know as well.
    message.descriptors[1].is_negative_hits = true;
    let answer = client.decide(message.encode_to_vec()).await;
    assert_eq!(answer.statuses[1].limit_remaining, 7);
}

/// Their types read our answer, and write the same bytes: no field of ours is unknown to them.
#[tokio::test]
async fn every_field_of_the_answer_is_envoys() {
    let server = start(RULES);
    let mut client = RawClient::of(&server).await;
    let bytes = client
        .ask(request(&[&[("k", "x")], &[("nobody", "knows")]]).encode_to_vec())
        .await
        .unwrap();
    let answer = RateLimitResponse::decode(bytes.clone()).unwrap();
    assert_eq!(answer.encode_to_vec(), bytes);
    let limit = answer.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!(
        (limit.name.as_str(), limit.requests_per_unit, limit.unit),
        ("weekly", 5, 7)
    );
    assert!(answer.statuses[0].duration_until_reset.is_some());
    assert!(answer.dynamic_metadata.is_some());
    assert_eq!(answer.response_headers_to_add.len(), 3);
}

/// `unit_multiplier` is newer than the published types: field 3 of the override, a wrapped number;
/// in the answer, field 4 of the limit.
#[tokio::test]
async fn a_multiplied_unit_goes_there_and_back() {
    let server = start(RULES);
    let mut client = RawClient::of(&server).await;
    let limit = [small(1, 9), small(2, 2), field(3, &small(1, 5))].concat();
    let answer = client
        .ask(hand_made(b"x", &field(2, &limit)))
        .await
        .unwrap();
    let limit = [small(1, 9), small(2, 2), field(4, &small(1, 5))].concat();
    let limit = field(2, &limit);
    assert!(
        answer.windows(limit.len()).any(|window| window == limit),
        "{answer:?}"
    );
}

/// `hits_addend` present and empty is 0, which only looks.
#[tokio::test]
async fn an_empty_addend_is_zero() {
    let server = start(RULES);
    let mut client = RawClient::of(&server).await;
    let answer = client.decide(hand_made(b"x", &field(3, b""))).await;
    assert_eq!(answer.statuses[0].limit_remaining, 5);
}

#[tokio::test]
async fn values_that_are_no_text_are_limited_each_for_itself() {
    let server = start(RULES);
    let mut client = RawClient::of(&server).await;
    for _ in 0..5 {
        assert_eq!(
            client
                .decide(hand_made(b"\xff\xfe", b""))
                .await
                .overall_code,
            1
        );
    }
    assert_eq!(
        client
            .decide(hand_made(b"\xff\xfe", b""))
            .await
            .overall_code,
        2
    );
    assert_eq!(
        client
            .decide(hand_made(b"\xff\xfd", b""))
            .await
            .overall_code,
        1
    );
}

#[tokio::test]
async fn what_cannot_be_decoded_is_the_callers_fault() {
    let server = start(RULES);
    let mut client = RawClient::of(&server).await;
    let status = client.ask(&b"\x0a\xff"[..]).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().starts_with("the message can't be read: "),
        "{status:?}"
    );
}

/// Any bytes at all, and requests that are nearly right.
#[test]
fn no_bytes_do_harm() {
    let server = start(RULES);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = RefCell::new(runtime.block_on(RawClient::of(&server)));
    let right = hand_made(b"x", &field(2, &[small(1, 9), small(2, 2)].concat()));
    let damaged = (any::<prop::sample::Index>(), any::<u8>()).prop_map(move |(place, byte)| {
        let mut bytes = right.clone();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        bytes
    });
    let bytes = prop_oneof![prop::collection::vec(any::<u8>(), 0..200), damaged];
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let ran = TestRunner::new(config).run(&bytes, |bytes| {
        let answer = runtime.block_on(client.borrow_mut().ask(bytes));
        let code = answer.map_or_else(|status| status.code(), |_| Code::Ok);
        prop_assert!(matches!(code, Code::Ok | Code::InvalidArgument), "{code:?}");
        Ok(())
    });
    ran.unwrap();
    let good = request(&[&[("k", "z")]]).encode_to_vec();
    let answer = runtime.block_on(client.borrow_mut().decide(good));
    assert_eq!(answer.overall_code, 1);
}
