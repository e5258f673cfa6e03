//! gRPC health and reflection, asked with the standard clients.

use comporta::transport::rls::HEALTH_NAMES;
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

#[tokio::test]
async fn reflection_lists_the_services() {
    let server = start(RULES);
    let mut reflection = ServerReflectionClient::new(channel(&server).await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
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
