//! The debug port: what is in force, and how a request would be decided.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;

use super::http::{json_response, refused};
use super::json;
use crate::algorithm::{Hits, Micros};
use crate::config::matcher::Entry;
use crate::config::{Live, report};
use crate::request::{Bounds, Descriptor, InvalidRequest, Request};
use crate::service::{Explanation, Refusal, Service};
use crate::store::Store;
use crate::store::drill::{DRILL_MAX, Drill};

struct Port<S> {
    service: Arc<Service<S>>,
    config: Arc<Live>,
    drill: Drill,
    bounds: Bounds,
}

/// Everything that the debug port serves.
pub fn router<S: Store>(
    service: Arc<Service<S>>,
    config: Arc<Live>,
    drill: Drill,
    bounds: Bounds,
    message_max: usize,
) -> Router {
    let port = Arc::new(Port {
        service,
        config,
        drill,
        bounds,
    });
    Router::new()
        .route("/", get(index))
        .route("/rlconfig", get(rlconfig::<S>))
        .route("/explain", get(explain_query::<S>).post(explain_body::<S>))
        .route("/counters", get(counters::<S>).delete(reset::<S>))
        .route(
            "/drill",
            get(show_drill::<S>)
                .post(begin_drill::<S>)
                .delete(end_drill::<S>),
        )
        .layer(DefaultBodyLimit::max(message_max))
        .with_state(port)
}

async fn index() -> &'static str {
    "/rlconfig                      the rules in force\n\
     /explain?domain=D&key=value    how a request would be decided, and why (or POST it, as to /json)\n\
     /counters?domain=D&key=value   what counts at present; DELETE it to count anew\n\
     /drill?seconds=N               POST it to make the store unavailable for so long; DELETE it to end that\n"
}

async fn rlconfig<S: Store>(State(port): State<Arc<Port<S>>>) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    let table = report::table(&port.config.current());
    (headers, table + &port.config.history()).into_response()
}

async fn explain_query<S: Store>(
    State(port): State<Arc<Port<S>>>,
    Query(parameters): Query<Vec<(String, String)>>,
) -> Response {
    answer(explain(&port, asked(parameters, port.bounds)).await)
}

async fn explain_body<S: Store>(State(port): State<Arc<Port<S>>>, body: Bytes) -> Response {
    answer(explain(&port, json::read(&body, port.bounds)).await)
}

async fn counters<S: Store>(
    State(port): State<Arc<Port<S>>>,
    Query(parameters): Query<Vec<(String, String)>>,
) -> Response {
    let explanation = explain(&port, asked(parameters, port.bounds)).await;
    answer(explanation.map(|explanation| {
        let descriptors = explanation.descriptors.into_iter();
        descriptors
            .flat_map(|descriptor| descriptor.limits)
            .collect::<Vec<_>>()
    }))
}

async fn reset<S: Store>(
    State(port): State<Arc<Port<S>>>,
    Query(parameters): Query<Vec<(String, String)>>,
) -> Response {
    let reset = async { port.service.reset(&asked(parameters, port.bounds)?).await };
    answer(reset.await)
}

async fn show_drill<S: Store>(State(port): State<Arc<Port<S>>>) -> Response {
    drill_state(&port.drill)
}

async fn begin_drill<S: Store>(
    State(port): State<Arc<Port<S>>>,
    Query(parameters): Query<Vec<(String, String)>>,
) -> Response {
    let max = DRILL_MAX.as_secs_ceil();
    let seconds = match &parameters[..] {
        [(key, value)] if key == "seconds" => value.parse::<u64>().ok(),
        _ => None,
    };
    let Some(seconds) = seconds.filter(|seconds| (1..=max).contains(seconds)) else {
        let remedy = format!("write /drill?seconds=N with N from 1 to {max}\n");
        return (StatusCode::BAD_REQUEST, remedy).into_response();
    };
    port.drill.begin(Micros(seconds * Micros::PER_SECOND));
    drill_state(&port.drill)
}

async fn end_drill<S: Store>(State(port): State<Arc<Port<S>>>) -> Response {
    port.drill.end();
    drill_state(&port.drill)
}

fn drill_state(drill: &Drill) -> Response {
    let left = drill.left().map_or(0, Micros::as_secs_ceil);
    let body = format!("{{\"seconds_left\": {left}}}\n");
    json_response(StatusCode::OK, body.into_bytes())
}

async fn explain<S: Store>(
    port: &Port<S>,
    request: Result<Request, InvalidRequest>,
) -> Result<Explanation, Refusal> {
    port.service.explain(&request?).await
}

fn answer(result: Result<impl Serialize, Refusal>) -> Response {
    match result.map(|answer| serde_json::to_vec_pretty(&answer)) {
        Ok(Ok(body)) => json_response(StatusCode::OK, body),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        Err(refusal) => refused(&refusal),
    }
}

/// One descriptor: each parameter but `domain` is an entry, in order.
fn asked(parameters: Vec<(String, String)>, bounds: Bounds) -> Result<Request, InvalidRequest> {
    let mut domain = String::new();
    let mut entries = Vec::new();
    for (key, value) in parameters {
        if key == "domain" && domain.is_empty() {
            domain = value;
        } else {
            entries.push((key, value));
        }
    }
    one_descriptor(domain, entries, bounds)
}

/// A request of one descriptor and one hit.
pub fn one_descriptor(
    domain: String,
    entries: impl IntoIterator<Item = (String, String)>,
    bounds: Bounds,
) -> Result<Request, InvalidRequest> {
    let entries = entries.into_iter().map(|(key, value)| Entry {
        key: key.into(),
        value: value.into(),
    });
    let descriptor = Descriptor {
        entries: entries.collect(),
        limit: None,
        hits: Hits::Charge(1),
    };
    Request::new(domain.into(), vec![descriptor], None, bounds)
}
