//! TLS for those who call: certificates that may be renewed, and clients that must show theirs.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use crate::config::files::{Stamp, stamps};

/// A peer that takes longer has something else in mind.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often to look whether the files were renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);

/// Where certificates are, and whose are accepted.
#[derive(Clone, Debug)]
pub(super) struct TlsFiles {
    /// Our own (PEM), with those between it and its authority.
    pub(super) certificate: PathBuf,
    /// Its key (PEM).
    pub(super) key: PathBuf,
    /// The authorities (PEM) of clients, who must then have a certificate.
    pub(super) client_ca: Option<PathBuf>,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read, or isn't what it should be.
    #[error("{}: {problem}; {expected}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The files don't fit.
    #[error("{} and {}: {problem}", .certificate.display(), .key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's.
        key: PathBuf,
        /// Why they don't.
        problem: rustls::Error,
    },
}

/// What makes a connection safe.
#[derive(Debug)]
pub(super) struct Tls {
    files: TlsFiles,
    protocol: &'static [u8],
    /// The names (DNS or URI) of clients that may come; everyone whom the authority knows if it's empty.
    client_names: Vec<String>,
    config: ArcSwap<ServerConfig>,
}

impl Tls {
    /// Reads the files, for a port that speaks this protocol.
    pub(super) fn new(
        files: TlsFiles,
        client_names: Vec<String>,
        protocol: &'static [u8],
    ) -> Result<Self, TlsError> {
        Ok(Self {
            config: ArcSwap::new(read(&files, protocol)?),
            files,
            protocol,
            client_names,
        })
    }

    /// Agrees on a secret, and on who the client is.
    pub(super) async fn shake_hands(&self, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(self.config.load_full());
        let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(socket)).await??;
        if self.client_names.is_empty() || self.is_named(&stream) {
            return Ok(stream);
        }
        Err(io::Error::other(
            "the client's certificate has another name",
        ))
    }

    fn is_named(&self, stream: &TlsStream<TcpStream>) -> bool {
        let certificates = stream.get_ref().1.peer_certificates();
        let Some(certificate) = certificates.and_then(<[_]>::first) else {
            return false;
        };
        EndEntityCert::try_from(certificate).is_ok_and(|certificate| {
            let mut names = certificate
                .valid_dns_names()
                .chain(certificate.valid_uri_names());
            names.any(|name| self.client_names.iter().any(|known| known == name))
        })
    }

    /// Takes renewed files for the connections to come. If they are wrong, the old ones stay: more often
    /// than not, the other file is just about to follow.
    pub(super) async fn renew(self: Arc<Self>) {
        let mut known = self.stamps();
        loop {
            tokio::time::sleep(RENEWAL_INTERVAL).await;
            let found = self.stamps();
            if found == known {
                continue;
            }
            known = found;
            match read(&self.files, self.protocol) {
                Ok(config) => {
                    self.config.store(config);
                    tracing::info!(certificate = %self.files.certificate.display(), "certificate renewed");
                }
                Err(error) => tracing::error!(%error, "the old certificate stays in use"),
            }
        }
    }

    fn stamps(&self) -> Vec<Stamp> {
        let files = [&self.files.certificate, &self.files.key].into_iter();
        let files = files.chain(&self.files.client_ca).cloned();
        stamps(&files.collect::<Vec<_>>())
    }
}

fn read(files: &TlsFiles, protocol: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let certificates = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&contents(&files.key, A_KEY)?);
    let key = key.map_err(|problem| file_error(&files.key, &problem, A_KEY))?;
    let builder = ServerConfig::builder();
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in self::certificates(path)? {
                roots
                    .add(authority)
                    .map_err(|problem| file_error(path, &problem, CERTIFICATES))?;
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
            let verifier = verifier.map_err(|problem| file_error(path, &problem, CERTIFICATES))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(certificates, key);
    let mut config = config.map_err(|problem| TlsError::Pair {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        problem,
    })?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

const CERTIFICATES: &str = "write one or more certificates in PEM";
const A_KEY: &str = "write a private key in PEM";

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = contents(path, CERTIFICATES)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(file_error(path, &"no certificate in it", CERTIFICATES))
        }
        Ok(certificates) => Ok(certificates),
        Err(problem) => Err(file_error(path, &problem, CERTIFICATES)),
    }
}

fn contents(path: &Path, expected: &'static str) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|problem| file_error(path, &problem, expected))
}

fn file_error(path: &Path, problem: &dyn fmt::Display, expected: &'static str) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        problem: problem.to_string(),
        expected,
    }
}
