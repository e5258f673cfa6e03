//! gRPC health and reflection, asked with the standard clients.

use comporta::transport::rls::HEALTH_NAMES;
use prost::Message;
use prost_types::FileDescriptorProto;
use prost_types::field_descriptor_proto::Type;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::support::server::{Running, start};

const RULES: &str = "
domain: d
failure_mode: open
descriptors: []
";

async fn channel(server: &Running) -> Channel {
    let address = format!("http://{}", server.ports.grpc);
    Channel::from_shared(address)
        .unwrap()
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn every_name_is_healthy_and_others_are_unknown() {
    let server = start(RULES);
    let mut health = HealthClient::new(channel(&server).await);
    let mut check = async |name: &str| {
        let service = name.to_owned();
        health.check(HealthCheckRequest { service }).await
    };
    for name in HEALTH_NAMES {
        let response = check(name).await.unwrap().into_inner();
        assert_eq!(response.status, ServingStatus::Serving as i32, "{name:?}");
    }
    assert_eq!(check("nobody").await.unwrap_err().code(), Code::NotFound);
}

async fn reflect(server: &Running, question: MessageRequest) -> MessageResponse {
    let mut reflection = ServerReflectionClient::new(channel(server).await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(question),
    };
    let answers = reflection
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    answer.message_response.unwrap()
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let server = start(RULES);
    let answer = reflect(&server, MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(list) = answer else {
        panic!("{answer:?}");
    };
    let mut names: Vec<_> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "envoy.service.ratelimit.v3.RateLimitService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
        ]
    );
}

/// A client that learns the types this way writes a domain as text, not as base64.
#[tokio::test]
async fn reflection_shows_text_where_envoy_has_text() {
    let server = start(RULES);
    let symbol = "envoy.service.ratelimit.v3.RateLimitRequest".to_owned();
    let answer = reflect(&server, MessageRequest::FileContainingSymbol(symbol)).await;
    let MessageResponse::FileDescriptorResponse(files) = answer else {
        panic!("{answer:?}");
    };
    let file = FileDescriptorProto::decode(&files.file_descriptor_proto[0][..]).unwrap();
    let request = file
        .message_type
        .iter()
        .find(|message| message.name() == "RateLimitRequest");
    let domain = &request.unwrap().field[0];
    assert_eq!((domain.name(), domain.r#type()), ("domain", Type::String));
}
