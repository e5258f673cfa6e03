//! `--store`: which store, and how to reach it.
//!
//! | URL | Store |
//! | --- | --- |
//! | `memory` | embedded |
//! | `redis://[user[:password]@]host[:port][/database]` | one server; `rediss://` with TLS |
//! | `redis+unix:///path[?database=N]` | one server, by its socket |
//! | `redis-sentinel://[…@]host[:port],…/primary[/database]` | the primary that sentinels name; `rediss-sentinel://` with TLS |
//! | `redis-cluster://[…@]host[:port],…` | the cluster of these nodes and others; `rediss-cluster://` with TLS |
//!
//! User and password are percent-encoded. Nothing here is ever printed with a password in it.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// Where counters live.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// In this process.
    Memory,
    /// In Redis.
    Redis(RedisUrl),
}

/// How to reach Redis.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// Which server.
    pub server: Server,
    /// Whether to speak TLS.
    pub tls: bool,
    /// The user, if the URL names one.
    pub user: Option<String>,
    /// The password, if the URL names one.
    pub password: Option<String>,
    /// The number of the database.
    pub database: u32,
}

/// Which server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// The one at this address.
    At(Address),
    /// The primary of this name, which sentinels know.
    Named {
        /// Its name.
        primary: String,
        /// Where the sentinels are.
        sentinels: Vec<Address>,
    },
    /// The nodes of a cluster.
    Cluster {
        /// Some of them, to learn of the others from.
        seeds: Vec<Address>,
    },
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// Why a URL means nothing. Never holds a part that could be a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// A scheme that there isn't.
    #[error(
        "`{0}` is no kind of store; write memory, redis://, rediss://, redis+unix://, \
         redis-sentinel://, rediss-sentinel://, redis-cluster:// or rediss-cluster://"
    )]
    UnknownScheme(String),
    /// Host and port that can't be read.
    #[error("`{0}` is no address; write host or host:port")]
    BadAddress(String),
    /// A database that isn't a number.
    #[error("`{0}` is no database; write a number, as in redis://host/2")]
    BadDatabase(String),
    /// No primary for sentinels to name.
    #[error("the name of the primary is missing; write redis-sentinel://host,host,host/name")]
    NoPrimary,
    /// A database where there is but one.
    #[error("a cluster has no database but 0; write redis-cluster://host,host,host")]
    ClusterDatabase,
    /// A user or password with a broken escape.
    #[error("user or password are not percent-encoded UTF-8")]
    BadEscape,
    /// A socket without a path.
    #[error("the socket's path is missing; write redis+unix:///path/to/socket")]
    NoPath,
}

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl StoreUrl {
    /// Reads a URL.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(UrlError::UnknownScheme(scheme_shown(text)));
        };
        let url = match scheme {
            "redis" => one_server(rest, false),
            "rediss" => one_server(rest, true),
            "redis+unix" => unix(rest),
            "redis-sentinel" => sentinel(rest, false),
            "rediss-sentinel" => sentinel(rest, true),
            "redis-cluster" => cluster(rest, false),
            "rediss-cluster" => cluster(rest, true),
            _ => Err(UrlError::UnknownScheme(scheme_shown(scheme))),
        };
        url.map(Self::Redis)
    }
}

/// Of what is no URL only what comes before anything that could be a secret.
fn scheme_shown(text: &str) -> String {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '+');
    text[..end.unwrap_or(text.len())].chars().take(20).collect()
}

fn one_server(rest: &str, tls: bool) -> Result<RedisUrl, UrlError> {
    let (user, password, rest) = credentials(rest)?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    Ok(RedisUrl {
        server: Server::At(address(host, REDIS_PORT)?),
        tls,
        user,
        password,
        database: database(path)?,
    })
}

fn unix(rest: &str) -> Result<RedisUrl, UrlError> {
    let (user, password, rest) = credentials(rest)?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err(UrlError::NoPath);
    }
    let number = query.strip_prefix("database=").unwrap_or(query);
    Ok(RedisUrl {
        server: Server::At(Address::Unix(path.into())),
        tls: false,
        user,
        password,
        database: database(number)?,
    })
}

fn sentinel(rest: &str, tls: bool) -> Result<RedisUrl, UrlError> {
    let (user, password, rest) = credentials(rest)?;
    let (hosts, path) = rest.split_once('/').ok_or(UrlError::NoPrimary)?;
    let (primary, number) = path.split_once('/').unwrap_or((path, ""));
    if primary.is_empty() {
        return Err(UrlError::NoPrimary);
    }
    let sentinels = hosts.split(',').map(|host| address(host, SENTINEL_PORT));
    Ok(RedisUrl {
        server: Server::Named {
            primary: primary.to_owned(),
            sentinels: sentinels.collect::<Result<_, _>>()?,
        },
        tls,
        user,
        password,
        database: database(number)?,
    })
}

fn cluster(rest: &str, tls: bool) -> Result<RedisUrl, UrlError> {
    let (user, password, rest) = credentials(rest)?;
    let (hosts, number) = rest.split_once('/').unwrap_or((rest, ""));
    if database(number)? != 0 {
        return Err(UrlError::ClusterDatabase);
    }
    let seeds = hosts.split(',').map(|host| address(host, REDIS_PORT));
    Ok(RedisUrl {
        server: Server::Cluster {
            seeds: seeds.collect::<Result<_, _>>()?,
        },
        tls,
        user,
        password,
        database: 0,
    })
}

/// User, password, and what comes after them.
fn credentials(rest: &str) -> Result<(Option<String>, Option<String>, &str), UrlError> {
    let Some((credentials, rest)) = rest.rsplit_once('@') else {
        return Ok((None, None, rest));
    };
    let decode = |text: &str| match percent_decode_str(text).decode_utf8() {
        _ if text.is_empty() => Ok(None),
        Ok(text) => Ok(Some(text.into_owned())),
        Err(_) => Err(UrlError::BadEscape),
    };
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    Ok((decode(user)?, decode(password)?, rest))
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn address(text: &str, default_port: u16) -> Result<Address, UrlError> {
    let bad = || UrlError::BadAddress(text.to_owned());
    let (host, port) = match text.strip_prefix('[') {
        Some(v6) => v6.split_once(']').ok_or_else(bad)?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| bad())?,
        None if port.is_empty() => default_port,
        None => return Err(bad()),
    };
    if host.is_empty() {
        return Err(bad());
    }
    Ok(Address::Tcp(host.to_owned(), port))
}

fn database(text: &str) -> Result<u32, UrlError> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse()
        .map_err(|_| UrlError::BadDatabase(text.to_owned()))
}

impl Address {
    /// As nodes of a cluster write it: what is before the last colon is the host, which may be empty.
    pub(super) fn of_node(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self::Tcp(host.to_owned(), port.parse().ok()?))
    }

    /// The same with the host of `asked`, if it has none: so says a node that doesn't know its own.
    pub(super) fn or_host_of(self, asked: &Self) -> Self {
        match (self, asked) {
            (Self::Tcp(host, port), Self::Tcp(asked, _)) if host.is_empty() || host == "?" => {
                Self::Tcp(asked.clone(), port)
            }
            (own, _) => own,
        }
    }
}

/// With commas between them.
fn list(addresses: &[Address]) -> String {
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    addresses.join(",")
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Without user and password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Redis(url) => url.fmt(f),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "rediss" } else { "redis" };
        match &self.server {
            Server::At(Address::Unix(path)) => {
                write!(
                    f,
                    "redis+unix://{}?database={}",
                    path.display(),
                    self.database
                )
            }
            Server::At(address) => write!(f, "{scheme}://{address}/{}", self.database),
            Server::Named { primary, sentinels } => {
                let sentinels = list(sentinels);
                write!(
                    f,
                    "{scheme}-sentinel://{sentinels}/{primary}/{}",
                    self.database
                )
            }
            Server::Cluster { seeds } => write!(f, "{scheme}-cluster://{}", list(seeds)),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str) {
        let url = StoreUrl::parse(text).unwrap();
        assert_eq!(url.to_string(), shown);
        assert_eq!(format!("{url:?}"), shown, "and so says its debug form");
    }

    #[test]
    fn every_kind_is_read_and_shown_without_secrets() {
        check("memory", "memory");
        check("redis://cache", "redis://cache:6379/0");
        check("redis://u:p%40ss@cache:7000/2", "redis://cache:7000/2");
        check(
            "rediss://:secret@[2001:db8::1]:7000",
            "rediss://[2001:db8::1]:7000/0",
        );
        check(
            "redis+unix:///run/redis.sock",
            "redis+unix:///run/redis.sock?database=0",
        );
        check(
            "redis+unix:///r.sock?database=3",
            "redis+unix:///r.sock?database=3",
        );
        check(
            "redis-sentinel://u:p@a,b:1,[::1]/main/1",
            "redis-sentinel://a:26379,b:1,[::1]:26379/main/1",
        );
        check(
            "redis-cluster://u:p@a,b:1,[::1]/0",
            "redis-cluster://a:6379,b:1,[::1]:6379",
        );
        check("rediss-cluster://a", "rediss-cluster://a:6379");
        let StoreUrl::Redis(url) = StoreUrl::parse("redis://u:p%40:s@cache").unwrap() else {
            panic!("it is Redis");
        };
        assert_eq!(
            (url.user.as_deref(), url.password.as_deref()),
            (Some("u"), Some("p@:s"))
        );
    }

    #[test]
    fn what_is_wrong_is_said_without_secrets() {
        let refused = |text| StoreUrl::parse(text).unwrap_err().to_string();
        assert!(refused("mongodb://u:secret@h").starts_with("`mongodb` is no kind of store"));
        assert!(refused("secret@cache").starts_with("`secret` is no kind of store"));
        assert_eq!(
            refused("redis://u:p@:1"),
            "`:1` is no address; write host or host:port"
        );
        assert_eq!(
            refused("redis://h:port"),
            "`h:port` is no address; write host or host:port"
        );
        assert_eq!(
            refused("redis://h/two"),
            "`two` is no database; write a number, as in redis://host/2"
        );
        assert_eq!(
            refused("redis-sentinel://h"),
            UrlError::NoPrimary.to_string()
        );
        assert_eq!(
            refused("redis-cluster://h,g/1"),
            UrlError::ClusterDatabase.to_string()
        );
        assert_eq!(
            refused("redis-cluster://h,"),
            "`` is no address; write host or host:port"
        );
        assert_eq!(refused("redis+unix://"), UrlError::NoPath.to_string());
        assert_eq!(refused("redis://%ff:x@h"), UrlError::BadEscape.to_string());
    }
}
