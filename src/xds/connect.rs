//! The way to the server.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::time::timeout;
use tonic::Status;
use tonic::codegen::http::uri::Authority;
use tonic::transport::{self, Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

use crate::settings::XdsSettings;

/// Name, connection and TLS; across the world they take less than a second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The kernel asks a silent machine, about whose questions no server complains, so that one which is gone
/// is noticed before the server itself is asked.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// How often, at most, before it gives up.
const TCP_KEEPALIVE_RETRIES: u32 = 3;

/// Where the server is, and how to be sure of it.
#[derive(Debug)]
pub(super) struct Server {
    authority: Authority,
    tls: Option<TlsFiles>,
    keepalive_interval: Duration,
    keepalive_timeout: Duration,
}

#[derive(Debug)]
struct TlsFiles {
    ca: Option<PathBuf>,
    /// Our certificate, and its key.
    identity: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// A file can't be used.
    #[error("{}: {problem}", .path.display())]
    File { path: PathBuf, problem: io::Error },
    /// There is no connection.
    #[error("can't connect: {}", causes(None, .0))]
    Connect(#[from] transport::Error),
    /// It takes too long to be made.
    #[error("can't connect within {CONNECT_TIMEOUT:?}")]
    Slow,
    /// The server ended the stream.
    #[error("the server ended the stream")]
    Ended,
    /// The server, or the connection, ended the stream with an error.
    #[error("{:?}: {}", .0.code(), causes(Some(.0.message()), .0.as_ref()))]
    Broken(Box<Status>),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Broken(Box::new(status))
    }
}

impl Server {
    pub(super) fn new(authority: Authority, settings: &XdsSettings) -> Self {
        let identity = settings.tls_cert.clone().zip(settings.tls_key.clone());
        Self {
            authority,
            tls: settings.tls.then(|| TlsFiles {
                ca: settings.tls_ca.clone(),
                identity,
                server_name: settings.tls_server_name.clone(),
            }),
            keepalive_interval: settings.keepalive_interval,
            keepalive_timeout: settings.keepalive_timeout,
        }
    }

    /// A new connection. Certificates are read for each, so that they can be renewed.
    pub(super) async fn connect(&self) -> Result<Channel, Failure> {
        let endpoint = self.endpoint()?;
        let connected = timeout(CONNECT_TIMEOUT, endpoint.connect()).await;
        Ok(connected.map_err(|_| Failure::Slow)??)
    }

    fn endpoint(&self) -> Result<Endpoint, Failure> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let uri = Uri::builder()
            .scheme(scheme)
            .authority(self.authority.clone())
            .path_and_query("/");
        let uri = uri
            .build()
            .expect("the parts are right, and none is missing");
        let endpoint = Endpoint::from(uri)
            .user_agent(concat!("comporta/", env!("CARGO_PKG_VERSION")))?
            .tcp_keepalive(Some(TCP_KEEPALIVE))
            .tcp_keepalive_interval(Some(TCP_KEEPALIVE))
            .tcp_keepalive_retries(Some(TCP_KEEPALIVE_RETRIES))
            .http2_keep_alive_interval(self.keepalive_interval)
            .keep_alive_timeout(self.keepalive_timeout);
        match &self.tls {
            Some(files) => Ok(endpoint.tls_config(files.read()?)?),
            None => Ok(endpoint),
        }
    }
}

impl TlsFiles {
    fn read(&self) -> Result<ClientTlsConfig, Failure> {
        // Some servers speak HTTP/2 without agreeing upon it, and there is nothing else to speak.
        let mut tls = ClientTlsConfig::new().assume_http2(true);
        tls = match &self.ca {
            Some(path) => tls.ca_certificate(Certificate::from_pem(certificates(path)?)),
            None => tls.with_webpki_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            let (certificate, key) = (certificates(certificate)?, contents(key)?);
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        Ok(match &self.server_name {
            Some(name) => tls.domain_name(name),
            None => tls,
        })
    }
}

/// The text of a file that has a certificate in it.
fn certificates(path: &Path) -> Result<Vec<u8>, Failure> {
    let text = contents(path)?;
    if CertificateDer::pem_slice_iter(&text)
        .next()
        .is_some_and(|first| first.is_ok())
    {
        return Ok(text);
    }
    Err(Failure::File {
        path: path.to_owned(),
        problem: io::Error::other("no certificate in it; write one or more in PEM"),
    })
}

fn contents(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|problem| Failure::File {
        path: path.to_owned(),
        problem,
    })
}

/// What happened, and what caused it, in one line. Causes that repeat their effect are left out.
fn causes(what: Option<&str>, error: &dyn Error) -> String {
    let mut parts: Vec<_> = what.map(str::to_owned).into_iter().collect();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if parts.last() != Some(&cause_text) {
            parts.push(cause_text);
        }
        source = cause.source();
    }
    parts.join(": ").escape_debug().to_string()
}
