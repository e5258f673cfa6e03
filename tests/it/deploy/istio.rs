//! Istio's gateway, without Istio: its patches are applied to an Envoy that knows nothing of limits.

use std::fs;

use serde_json::{Map, Value, json};

use super::{RULES, documents};
use crate::support::http::send;
use crate::support::{envoy, server, upstream};

#[test]
fn the_patches_limit_what_the_rules_say() {
    let rules = fs::read_to_string(format!("{RULES}/api.yaml")).unwrap();
    let server = server::start(&rules);
    let upstream = upstream::start();
    let mut configuration = without_limits(&envoy::deployed_with(upstream.addr, server.ports.grpc));
    for patch in documents("deploy/istio/envoyfilter.yaml")[0]["spec"]["configPatches"]
        .as_array()
        .unwrap()
    {
        apply(patch, &mut configuration, server.ports.grpc.port());
    }
    let envoy = envoy::start_with(configuration.to_string());

    let get = |path| send(envoy.ingress, "GET", path, &[("x-tenant", b"acme")], b"");
    let statuses: Vec<_> = (0..6).map(|_| get("/login").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    // The tenant's burst is 40, and five of it were spent at the login.
    let elsewhere = get("/");
    let remaining = elsewhere.header("RateLimit-Remaining");
    assert_eq!(remaining.as_deref(), Some("34"), "{elsewhere:?}");
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 0);
}

/// Envoy's example, less what the patches are to bring.
fn without_limits(deployed: &str) -> Value {
    let mut envoy: Value = serde_saphyr::from_str(deployed).unwrap();
    let filters = &mut connections(&mut envoy)["http_filters"];
    filters.as_array_mut().unwrap().remove(0);
    let host = object(&mut connections(&mut envoy)["route_config"]["virtual_hosts"][0]);
    host.remove("rate_limits");
    let login = object(&mut host["routes"][0]);
    login.remove("typed_per_filter_config");
    object(&mut login["route"]).remove("rate_limits");
    let clusters = &mut envoy["static_resources"]["clusters"];
    clusters.as_array_mut().unwrap().pop();
    assert!(!envoy.to_string().contains("ratelimit"), "{envoy}");
    envoy
}

/// As Istio does, but for the addresses, and for patience with a busy machine.
fn apply(patch: &Value, envoy: &mut Value, comporta: u16) {
    let mut value = patch["patch"]["value"].clone();
    match patch["applyTo"].as_str().unwrap() {
        "HTTP_FILTER" => {
            value["typed_config"]["timeout"] = json!("30s");
            let filters = &mut connections(envoy)["http_filters"];
            filters.as_array_mut().unwrap().insert(0, value);
        }
        "CLUSTER" => {
            let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
            *value.pointer_mut(endpoint).unwrap() =
                json!({"socket_address": {"address": "127.0.0.1", "port_value": comporta}});
            let clusters = &mut envoy["static_resources"]["clusters"];
            clusters.as_array_mut().unwrap().push(value);
        }
        "VIRTUAL_HOST" => {
            let hosts = &mut connections(envoy)["route_config"]["virtual_hosts"];
            merge(&mut hosts[0], value);
        }
        "HTTP_ROUTE" => {
            let hosts = &mut connections(envoy)["route_config"]["virtual_hosts"];
            merge(&mut hosts[0]["routes"][0], value);
        }
        other => panic!("what is {other}?"),
    }
}

/// The settings of the filter that all others are in.
fn connections(envoy: &mut Value) -> &mut Value {
    let place = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    envoy.pointer_mut(place).unwrap()
}

fn object(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().unwrap()
}

/// Objects are merged, lists are appended to, and anything else is replaced.
fn merge(old: &mut Value, new: Value) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in new {
                merge(old.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(old), Value::Array(new)) => old.extend(new),
        (old, new) => *old = new,
    }
}
