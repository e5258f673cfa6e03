//! Connections: how one is made, and when one is done with.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError, TlsCertificates,
};

use super::error::{Remedy, remedy, store_error};
use super::script;
use super::url::{Address, RedisUrl, Server};
use crate::store::StoreError;
use crate::telemetry::{Counted, NodeMeter};

/// A peer that doesn't acknowledge for so long is gone.
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes connections to one server for a bb8 pool.
#[derive(Clone)]
pub(super) struct Manager {
    url: RedisUrl,
    access: Access,
    connect_timeout: Duration,
    round_trip_timeout: Duration,
    failure: LastFailure,
    /// Counts connections.
    meter: NodeMeter,
}

/// Why the last attempt to connect failed; bb8 itself only tells that time ran out.
#[derive(Clone, Debug, Default)]
pub(super) struct LastFailure(Arc<Mutex<Option<StoreError>>>);

impl LastFailure {
    fn set(&self, failure: Option<StoreError>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    pub(super) fn get(&self) -> StoreError {
        let failure = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        failure.unwrap_or_else(|| StoreError::Unreachable("no connection in time".to_owned()))
    }
}

/// Who we are to the servers, where the URL doesn't say it.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The user that sentinels know.
    pub sentinel_user: Option<String>,
    /// The password that sentinels ask for.
    pub sentinel_password: Option<Secret>,
    /// A PEM file with the authority that signed the server's certificate; the system's otherwise.
    pub ca_file: Option<PathBuf>,
    /// PEM files with our own certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// A password.
#[derive(Clone)]
pub enum Secret {
    /// The thing itself.
    Text(String),
    /// Whatever is in the file when a connection is made, so that it can be rotated.
    File(PathBuf),
}

/// One connection, and whether it is done with.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    pub(super) is_broken: bool,
    _open: Counted,
}

impl Link {
    /// An error was seen on it.
    pub(super) fn note(&mut self, error: &RedisError) {
        self.is_broken |= remedy(error) == Remedy::Reconnect;
    }
}

impl Manager {
    pub(super) fn new(
        url: RedisUrl,
        access: Access,
        connect_timeout: Duration,
        round_trip_timeout: Duration,
        meter: NodeMeter,
    ) -> Self {
        Self {
            url,
            access,
            connect_timeout,
            round_trip_timeout,
            failure: LastFailure::default(),
            meter,
        }
    }

    /// Where failures to connect are kept.
    pub(super) fn last_failure(&self) -> LastFailure {
        self.failure.clone()
    }

    async fn connect_anywhere(&self) -> Result<MultiplexedConnection, StoreError> {
        let address = match &self.url.server {
            Server::At(address) => address.clone(),
            Server::Named { primary, sentinels } => self.ask_sentinels(primary, sentinels).await?,
            // Each of its nodes has a manager of its own.
            Server::Cluster { .. } => {
                return Err(StoreError::Unreachable(
                    "it is not said which node".to_owned(),
                ));
            }
        };
        let settings = Self::settings(
            self.url.user.as_ref().or(self.access.user.as_ref()),
            self.url
                .password
                .clone()
                .map(Secret::Text)
                .as_ref()
                .or(self.access.password.as_ref()),
        )?;
        let mut connection = self.connect_to(&address, settings).await?;
        let mut select = redis::cmd("SELECT");
        select.arg(self.url.database);
        // The client's own selection hides why it was refused, such as for want of a password.
        let is_elsewhere = self.url.database != 0;
        for command in is_elsewhere
            .then_some(select)
            .into_iter()
            .chain([script::load()])
        {
            let done = command.exec_async(&mut connection).await;
            done.map_err(|error| store_error(&error))?;
        }
        Ok(connection)
    }

    /// The first sentinel that knows the primary.
    async fn ask_sentinels(
        &self,
        primary: &str,
        sentinels: &[Address],
    ) -> Result<Address, StoreError> {
        let access = &self.access;
        let mut failure = StoreError::Unreachable("there are no sentinels".to_owned());
        for sentinel in sentinels {
            let settings = Self::settings(
                access.sentinel_user.as_ref(),
                access.sentinel_password.as_ref(),
            )?;
            let asked = async {
                let mut connection = self.connect_to(sentinel, settings).await?;
                let command = redis::cmd("SENTINEL")
                    .arg("get-master-addr-by-name")
                    .arg(primary)
                    .to_owned();
                let known: Option<(String, u16)> = command
                    .query_async(&mut connection)
                    .await
                    .map_err(|error| store_error(&error))?;
                known.ok_or_else(|| {
                    StoreError::Unreachable("no sentinel knows the primary".to_owned())
                })
            };
            match asked.await {
                Ok((host, port)) => return Ok(Address::Tcp(host, port)),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn settings(
        user: Option<&String>,
        password: Option<&Secret>,
    ) -> Result<RedisConnectionInfo, StoreError> {
        // The newer protocol's greeting hides why a server turns us away, and gives us nothing more.
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password.read()?);
        }
        Ok(settings)
    }

    async fn connect_to(
        &self,
        address: &Address,
        settings: RedisConnectionInfo,
    ) -> Result<MultiplexedConnection, StoreError> {
        let client = self.client(address, settings)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.round_trip_timeout));
        let connected = client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        connected.map_err(|error| store_error(&error))
    }

    fn client(
        &self,
        address: &Address,
        settings: RedisConnectionInfo,
    ) -> Result<Client, StoreError> {
        let address = match address {
            Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
            Address::Tcp(host, port) if self.url.tls => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: false,
                tls_params: None,
            },
            Address::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
        };
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_user_timeout(USER_TIMEOUT);
        let unusable = |error: RedisError| StoreError::Unreachable(error.category().to_owned());
        let info = address
            .into_connection_info()
            .map_err(unusable)?
            .set_tcp_settings(tcp)
            .set_redis_settings(settings);
        if self.url.tls {
            Client::build_with_tls(info, self.certificates()?).map_err(unusable)
        } else {
            Client::open(info).map_err(unusable)
        }
    }

    fn certificates(&self) -> Result<TlsCertificates, StoreError> {
        let ca_file = self.access.ca_file.as_ref();
        let client_tls = match &self.access.certificate {
            Some((certificate, key)) => Some(ClientTlsConfig {
                client_cert: read(certificate)?,
                client_key: read(key)?,
            }),
            None => None,
        };
        Ok(TlsCertificates {
            client_tls,
            root_cert: ca_file.map(read).transpose()?,
        })
    }
}

impl bb8::ManageConnection for Manager {
    type Connection = Link;
    type Error = StoreError;

    async fn connect(&self) -> Result<Link, StoreError> {
        let connected = self.connect_anywhere().await;
        self.failure.set(connected.as_ref().err().cloned());
        Ok(Link {
            connection: connected?,
            is_broken: false,
            _open: self.meter.connected(),
        })
    }

    /// The next call will show it; a question beforehand would double the round trips.
    async fn is_valid(&self, _link: &mut Link) -> Result<(), StoreError> {
        Ok(())
    }

    fn has_broken(&self, link: &mut Link) -> bool {
        link.is_broken
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("(a password)"),
            Self::File(path) => write!(f, "(the password in {})", path.display()),
        }
    }
}

impl Secret {
    fn read(&self) -> Result<String, StoreError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => {
                let bytes = read(path)?;
                let text = String::from_utf8_lossy(&bytes);
                Ok(text.trim_end_matches(['\r', '\n']).to_owned())
            }
        }
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, StoreError> {
    fs::read(path).map_err(|error| {
        let cause = format!("{} can't be read: {error}", path.display());
        StoreError::NotPermitted(cause)
    })
}
