//! Certificates for tests, made by the `openssl` command: the service's own TLS library reads
//! what another one wrote.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A file of our own, as that of the system differs from one version to the next.
const SETTINGS: &str = "
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
subjectAltName = DNS:localhost, IP:127.0.0.1
extendedKeyUsage = serverAuth
[client]
subjectAltName = DNS:edge.example, URI:spiffe://cluster.local/ns/edge/sa/envoy
extendedKeyUsage = clientAuth
";

/// PEM files in a folder that goes away with this value.
pub(crate) struct Certificates {
    folder: TempDir,
}

/// A new authority, and what it certified. Nothing trusts it that wasn't told to.
pub(crate) fn certificates() -> Certificates {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("settings"), SETTINGS).unwrap();
    let new_key = "req -config settings -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        folder.path(),
        &format!("{new_key} -x509 -extensions ca -days 2 -subj /CN=ca -keyout ca.key -out ca.pem"),
    );
    for name in ["server", "client"] {
        openssl(
            folder.path(),
            &format!("{new_key} -subj /CN={name} -keyout {name}.key -out {name}.csr"),
        );
        openssl(
            folder.path(),
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
                 -extfile settings -extensions {name} -out {name}.pem"
            ),
        );
    }
    Certificates { folder }
}

impl Certificates {
    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Certificate and key; valid for `localhost` and `127.0.0.1`.
    pub(crate) fn server(&self) -> (PathBuf, PathBuf) {
        self.pair("server")
    }

    /// Certificate and key.
    pub(crate) fn client(&self) -> (PathBuf, PathBuf) {
        self.pair("client")
    }

    /// Overwrites these files with those, certificate and key one after the other.
    pub(crate) fn replace_server(&self, with: &Certificates) {
        let ((certificate, key), (new_certificate, new_key)) = (self.server(), with.server());
        std::fs::copy(new_certificate, certificate).unwrap();
        std::fs::copy(new_key, key).unwrap();
    }

    fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
        let file = |extension| self.folder.path().join(format!("{name}.{extension}"));
        (file("pem"), file("key"))
    }

    /// What makes redis-server use them.
    pub(crate) fn server_arguments(&self, mutual: bool) -> Vec<String> {
        let ((certificate, key), (client_certificate, client_key)) = (self.server(), self.client());
        let files = [
            ("--tls-ca-cert-file", self.ca()),
            ("--tls-cert-file", certificate),
            ("--tls-key-file", key),
            // What it shows to the others of its cluster.
            ("--tls-client-cert-file", client_certificate),
            ("--tls-client-key-file", client_key),
        ];
        let mut arguments: Vec<String> = files
            .into_iter()
            .flat_map(|(name, file)| [name.to_owned(), file.to_str().unwrap().to_owned()])
            .collect();
        let mutual = if mutual { "yes" } else { "no" };
        arguments.extend(["--tls-auth-clients", mutual].map(str::to_owned));
        arguments
    }
}

fn openssl(folder: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    command.args(arguments.split_whitespace());
    let output = match command.current_dir(folder).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            panic!("this test needs openssl: apt-get install openssl")
        }
        output => output.unwrap(),
    };
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {arguments}: {complaint}");
}
