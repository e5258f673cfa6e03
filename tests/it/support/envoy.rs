//! A real Envoy in front of the service, with the file that readers are told to copy, or a listener of the test's own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::http::get;
use super::wait_until;

/// The configuration under test.
const DEPLOYED: &str = "deploy/envoy/envoy.yaml";

/// An Envoy that ends when it is dropped.
pub(crate) struct Envoy {
    child: Child,
    /// Where clients connect.
    pub(crate) ingress: SocketAddr,
    admin: SocketAddr,
    _files: TempDir,
}

/// The Envoy program, without arguments.
pub(crate) fn command() -> Command {
    let named = std::env::var_os("ENVOY").map(PathBuf::from);
    let program = named.unwrap_or_else(|| Path::new(".tools").join("envoy"));
    assert!(
        program.exists(),
        "there is no Envoy at {}; tests/run fetches it to .tools/envoy, and ENVOY can name another",
        program.display()
    );
    Command::new(program)
}

/// Whether Envoy would start with this file; if not, the test ends with the reason.
#[track_caller]
pub(crate) fn validate(file: &Path) {
    let mut validate = command();
    validate.args([
        "--mode",
        "validate",
        "--log-level",
        "error",
        "--config-path",
    ]);
    let Output { status, stderr, .. } = validate.arg(file).output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{}: {stderr}", file.display());
}

/// Starts Envoy between its clients and `upstream`, and waits until it answers.
pub(crate) fn start(upstream: SocketAddr, comporta: SocketAddr) -> Envoy {
    start_with(deployed_with(upstream, comporta))
}

/// The same with several instances, which Envoy asks for their health ten times a second.
pub(crate) fn start_over(upstream: SocketAddr, comporta: &[SocketAddr]) -> Envoy {
    let first = deployed_with(upstream, comporta[0]);
    let endpoint = |port: u16| {
        format!(
            "
              - endpoint:
                  address:
                    socket_address: {{address: 127.0.0.1, port_value: {port}}}"
        )
    };
    let first_endpoint = endpoint(comporta[0].port());
    assert_eq!(first.matches(&first_endpoint).count(), 1);
    let endpoints: String = comporta.iter().map(|addr| endpoint(addr.port())).collect();
    let all = first.replace(&first_endpoint, &endpoints);
    let cluster = "    - name: comporta\n";
    assert_eq!(all.matches(cluster).count(), 1);
    let health = "      health_checks:
        - timeout: 5s
          interval: 0.1s
          no_traffic_interval: 0.1s
          unhealthy_threshold: 1
          healthy_threshold: 1
          grpc_health_check: {service_name: ratelimit}
";
    start_with(all.replace(cluster, &format!("{cluster}{health}")))
}

/// The same with the listener of a file, whose clusters are `upstream` and `comporta`.
pub(crate) fn start_listener(file: &Path, upstream: SocketAddr, comporta: SocketAddr) -> Envoy {
    let file = fs::canonicalize(file).unwrap();
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let bootstrap = json!({
        "node": {"id": "test", "cluster": "edge"},
        "admin": {"address": address(any_port)},
        "dynamic_resources": {
            "lds_config": {"resource_api_version": "V3", "path_config_source": {"path": file}},
        },
        "static_resources": {
            "clusters": [
                cluster("upstream", upstream, "http_protocol_options"),
                cluster("comporta", comporta, "http2_protocol_options"),
            ],
        },
    });
    start_with(bootstrap.to_string())
}

fn cluster(name: &str, endpoint: SocketAddr, protocol: &str) -> Value {
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let endpoint = json!({"endpoint": {"address": address(endpoint)}});
    json!({
        "name": name,
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
        "typed_extension_protocol_options": {
            options: {
                "@type": format!("type.googleapis.com/{options}"),
                "explicit_http_config": {protocol: {}},
            },
        },
    })
}

fn address(addr: SocketAddr) -> Value {
    json!({"socket_address": {"address": addr.ip(), "port_value": addr.port()}})
}

/// Starts Envoy with this configuration, and waits until it answers.
pub(crate) fn start_with(text: String) -> Envoy {
    let files = tempfile::tempdir().unwrap();
    let configuration = files.path().join("envoy.yaml");
    let admin_file = files.path().join("admin");
    fs::write(&configuration, text).unwrap();
    let child = command()
        .arg("--config-path")
        .arg(configuration)
        .arg("--admin-address-path")
        .arg(&admin_file)
        .args(["--concurrency", "1", "--log-level", "error"])
        // Hot restart shares memory between Envoys, and those of two tests have nothing to share.
        .arg("--disable-hot-restart")
        .spawn()
        .unwrap();
    // From here on the child has an owner that ends it, also if what follows goes wrong.
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let mut envoy = Envoy {
        child,
        ingress: nowhere,
        admin: nowhere,
        _files: files,
    };
    envoy.wait(&admin_file);
    envoy
}

/// The deployed file with the addresses of this test.
pub(crate) fn deployed_with(upstream: SocketAddr, comporta: SocketAddr) -> String {
    let port = |port: u16| format!("port_value: {port}}}");
    let mut text = fs::read_to_string(DEPLOYED).unwrap();
    for (deployed, here) in [
        (port(10_000), port(0)),
        (port(9_901), port(0)),
        (port(9_000), port(upstream.port())),
        (port(8_081), port(comporta.port())),
        // On a busy machine 50 ms pass in vain, and Envoy would let the request through.
        (" timeout: 0.05s\n".into(), " timeout: 30s\n".into()),
    ] {
        let found = text.matches(&deployed).count();
        assert_eq!(found, 1, "{DEPLOYED} has `{}`", deployed.trim());
        text = text.replace(&deployed, &here);
    }
    text
}

impl Envoy {
    /// A counter or gauge of Envoy's own; 0 if there is none of that name.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let (_, stats) = get(self.admin, "/stats");
        let mut lines = stats.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(other, _)| *other == name);
        found.map_or(0, |(_, value)| value.parse().unwrap())
    }

    /// Learns the ports, which the system chose, and waits until Envoy is ready.
    fn wait(&mut self, admin_file: &Path) {
        wait_until("Envoy opens its admin port", || {
            let ended = self.child.try_wait().unwrap();
            assert_eq!(ended, None, "Envoy ended; it says why above");
            let written = fs::read_to_string(admin_file).unwrap_or_default();
            written.parse().is_ok_and(|addr| {
                self.admin = addr;
                true
            })
        });
        wait_until("Envoy is ready", || get(self.admin, "/ready").0 == 200);
        let (_, listeners) = get(self.admin, "/listeners");
        let mut lines = listeners.lines();
        let ingress = lines.find_map(|line| line.strip_prefix("ingress::"));
        self.ingress = ingress.unwrap().parse().unwrap();
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_gone = self.child.wait();
    }
}
