//! Turns `proto/` into Rust. protox is a protobuf compiler in Rust: no `protoc` is needed.

use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let definitions = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;

    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("reflection.bin"), definitions.encode_to_vec())?;

    tonic_prost_build::configure()
        .bytes(".")
        .build_client(false)
        .include_file("proto.rs")
        .codec_path("crate::transport::codec::RlsCodec")
        .compile_fds(definitions)?;
    Ok(())
}
