//! Turns `proto/` into Rust. protox is a protobuf compiler in Rust: no `protoc` is needed.

use std::path::PathBuf;

use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let definitions = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;

    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let shown = as_envoy_has_them(definitions.clone());
    std::fs::write(out.join("reflection.bin"), shown.encode_to_vec())?;

    tonic_prost_build::configure()
        .bytes(".")
        .build_client(false)
        .include_file("proto.rs")
        .codec_path("crate::transport::codec::RlsCodec")
        .compile_fds(definitions)?;

    let xds = [
        "envoy/service/discovery/v3/ads.proto",
        "ratelimit/config/ratelimit/v3/rls_conf.proto",
    ];
    // In a folder of their own: both have types of envoy.config.core.v3.
    let out = out.join("xds");
    std::fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .build_server(false)
        .out_dir(&out)
        .include_file("proto.rs")
        .compile_fds(protox::compile(xds, ["proto"])?)?;
    Ok(())
}

/// What reflection shows: the fields that are `bytes` only so that nothing is refused are `string`,
/// as in Envoy's definitions. Clients that learn the types that way would ask for base64 otherwise.
fn as_envoy_has_them(mut definitions: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut definitions.file {
        file.message_type.iter_mut().for_each(text_fields);
    }
    definitions
}

fn text_fields(message: &mut DescriptorProto) {
    for field in &mut message.field {
        let is_text = matches!(field.name(), "domain" | "key" | "value");
        if is_text && field.r#type() == Type::Bytes {
            field.set_type(Type::String);
        }
    }
    message.nested_type.iter_mut().for_each(text_fields);
}
