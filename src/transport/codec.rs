//! Protobuf over gRPC, with a caller's nonsense called by its name.
//!
//! tonic's own codec answers INTERNAL to bytes that are no protobuf, as if the server were broken.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Encodes `T`, decodes `U`.
#[derive(Debug)]
pub(crate) struct RlsCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for RlsCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for RlsCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProtobufEncoder<T>;
    type Decoder = ProtobufDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProtobufEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProtobufDecoder(PhantomData)
    }
}

#[derive(Debug)]
pub(crate) struct ProtobufEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for ProtobufEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer)
            .map_err(|error| Status::internal(format!("the answer can't be encoded: {error}")))
    }

    fn buffer_settings(&self) -> BufferSettings {
        message_buffer()
    }
}

#[derive(Debug)]
pub(crate) struct ProtobufDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for ProtobufDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(buffer).map(Some).map_err(|error| {
            Status::invalid_argument(format!("the message can't be read: {error}"))
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        message_buffer()
    }
}

/// Messages are a few hundred bytes; tonic's default of 8 KiB a call would be cleared for nothing.
fn message_buffer() -> BufferSettings {
    BufferSettings::new(512, 32 * 1024)
}
