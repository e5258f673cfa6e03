//! The HTTP port: health, decisions in JSON, metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::json;
use crate::request::Bounds;
use crate::response::Code;
use crate::service::{Refusal, Service};
use crate::store::Store;
use crate::telemetry::Telemetry;

/// Whether the process wants requests. Shared by everything that says so.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// From now on it does, or doesn't.
    pub fn set(&self, is_ready: bool) {
        self.0.store(is_ready, Ordering::Relaxed);
    }

    /// Whether it does.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct Port<S> {
    service: Arc<Service<S>>,
    telemetry: Arc<Telemetry>,
    readiness: Readiness,
    bounds: Bounds,
}

/// Everything that the HTTP port serves.
pub fn router<S: Store>(
    service: Arc<Service<S>>,
    telemetry: Arc<Telemetry>,
    readiness: Readiness,
    bounds: Bounds,
    message_max: usize,
) -> Router {
    let port = Arc::new(Port {
        service,
        telemetry,
        readiness,
        bounds,
    });
    Router::new()
        .route("/healthcheck", get(healthcheck::<S>))
        .route("/json", post(decide::<S>))
        .route("/metrics", get(metrics::<S>))
        .layer(DefaultBodyLimit::max(message_max))
        .with_state(port)
}

/// Metrics alone, for a port that only Prometheus reaches.
pub fn metrics_router(telemetry: Arc<Telemetry>) -> Router {
    Router::new()
        .route("/metrics", get(exposition))
        .with_state(telemetry)
}

async fn healthcheck<S: Store>(State(port): State<Arc<Port<S>>>) -> Response {
    if port.readiness.get() {
        (StatusCode::OK, "OK").into_response()
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "not ready").into_response()
    }
}

async fn decide<S: Store>(State(port): State<Arc<Port<S>>>, body: Bytes) -> Response {
    let decision = match json::read(&body, port.bounds) {
        Ok(request) => port.service.decide(&request).await,
        Err(invalid) => Err(Refusal::Invalid(invalid)),
    };
    match decision {
        Ok(decision) => {
            let status = match decision.code {
                Code::Ok => StatusCode::OK,
                Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
            };
            json_response(status, json::write(decision))
        }
        Err(refusal) => {
            if matches!(refusal, Refusal::Invalid(_)) {
                port.telemetry.refused();
            }
            refused(&refusal)
        }
    }
}

async fn metrics<S: Store>(State(port): State<Arc<Port<S>>>) -> Response {
    exposition(State(port.telemetry.clone())).await
}

async fn exposition(State(telemetry): State<Arc<Telemetry>>) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (headers, telemetry.render()).into_response()
}

pub(super) fn json_response(status: StatusCode, body: Vec<u8>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (status, headers, body).into_response()
}

/// The one place where a refusal becomes an HTTP status.
pub(super) fn refused(refusal: &Refusal) -> Response {
    let status = match refusal {
        Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
        Refusal::NoRules | Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, format!("{refusal}\n")).into_response()
}
