//! A real redis-server on a port of its own: Debian's, or the program that `COMPORTA_TEST_REDIS_SERVER` names.
//!
//! Tests of faults and of clusters need 7.0 or later.

pub(crate) mod cluster;
pub(crate) mod resp;
pub(crate) mod sentinel;

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};

use tempfile::TempDir;

use super::certificates::{Certificates, certificates};
use super::wait_until;
use resp::{Connection, Reply};

/// A server that ends when it is dropped.
pub(crate) struct Redis {
    setup: Setup,
    ports: Ports,
    child: Child,
}

#[derive(Clone, Copy)]
struct Ports {
    clients: u16,
    /// By default the clients' port and 10000, which for half of all free ports is no port at all.
    bus: u16,
}

/// What stays the same when a server is started again.
struct Setup {
    folder: TempDir,
    arguments: Vec<String>,
    certificates: Option<Arc<Certificates>>,
}

impl Redis {
    pub(crate) fn start() -> Redis {
        Redis::start_with(&[])
    }

    /// Starts a server with these arguments besides the rig's own, which they overrule.
    pub(crate) fn start_with(arguments: &[&str]) -> Redis {
        Redis::launch(Setup::new(arguments))
    }

    /// Starts a server that speaks TLS on its port, and nothing else there. With `mutual`, clients
    /// need a certificate as well.
    pub(crate) fn start_tls(mutual: bool) -> Redis {
        Redis::start_tls_with(&Arc::new(certificates()), mutual, &[])
    }

    /// The same with certificates that others have, too.
    fn start_tls_with(certificates: &Arc<Certificates>, mutual: bool, more: &[&str]) -> Redis {
        let arguments = certificates.server_arguments(mutual);
        let mut arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        arguments.extend(more);
        let mut setup = Setup::new(&arguments);
        setup.certificates = Some(certificates.clone());
        Redis::launch(setup)
    }

    fn launch(setup: Setup) -> Redis {
        let ports = free_ports();
        let child = setup.spawn(ports);
        let mut redis = Redis {
            setup,
            ports,
            child,
        };
        while !redis.comes_up() {
            redis.ports = free_ports();
            redis.child = redis.setup.spawn(redis.ports);
        }
        redis
    }

    /// Whether it answers; if not, another process was faster to take one of its ports.
    fn comes_up(&mut self) -> bool {
        let mut answers = false;
        wait_until("redis-server answers", || {
            answers = self.try_command(&["PING"]).is_ok_and(|reply| is_up(&reply));
            answers || self.child.try_wait().unwrap().is_some()
        });
        if answers {
            // So that `calls` counts what the test did.
            let _a_sentinel_has_no_statistics = self.try_command(&["CONFIG", "RESETSTAT"]);
        } else {
            let log = fs::read_to_string(self.setup.path("log")).unwrap();
            assert!(log.contains("Address already in use"), "{log}");
        }
        answers
    }

    /// Tries to save its data, which from now on it can't: there is a folder in the file's place.
    pub(crate) fn block_saving(&self) {
        fs::create_dir(self.setup.path("dump.rdb")).unwrap();
        self.command(&["BGSAVE"]);
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports.clients
    }

    pub(crate) fn url(&self) -> String {
        let scheme = match self.setup.certificates {
            Some(_) => "rediss",
            None => "redis",
        };
        format!("{scheme}://127.0.0.1:{}", self.port())
    }

    pub(crate) fn unix_socket(&self) -> PathBuf {
        self.setup.path("socket")
    }

    /// Those of a server that speaks TLS.
    pub(crate) fn certificates(&self) -> &Certificates {
        let certificates = self.setup.certificates.as_ref();
        certificates.expect("the server speaks TLS")
    }

    /// Each command has a connection of its own; for more than one, `connect`.
    #[track_caller]
    pub(crate) fn command(&self, words: &[&str]) -> Reply {
        match self.try_command(words) {
            Ok(reply) => reply,
            Err(error) => panic!("{words:?}: {error}"),
        }
    }

    /// Fails when the server is gone.
    pub(crate) fn try_command(&self, words: &[&str]) -> io::Result<Reply> {
        self.connect()?.command(words)
    }

    /// Over the Unix socket: past TLS, and past whoever else may have got hold of the port.
    pub(crate) fn connect(&self) -> io::Result<Connection<UnixStream>> {
        let mut connection = Connection::unix(&self.unix_socket())?;
        if let Some(password) = self.setup.argument("--requirepass") {
            connection.command(&["AUTH", password])?.expect_ok();
        }
        Ok(connection)
    }

    /// A field of `INFO`.
    #[track_caller]
    pub(crate) fn info(&self, section: &str, field: &str) -> String {
        let found = self.find_info(section, field);
        found.unwrap_or_else(|| panic!("INFO {section} has no {field}"))
    }

    fn find_info(&self, section: &str, field: &str) -> Option<String> {
        let info = self.command(&["INFO", section]).text();
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = fields.find(|(name, _)| *name == field)?;
        Some(value.to_owned())
    }

    /// How often the command was called since the server started. A subcommand is `config|get`.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let field = format!("cmdstat_{}", command.to_lowercase());
        let Some(statistics) = self.find_info("commandstats", &field) else {
            return 0;
        };
        let calls = statistics.split(',').next().unwrap();
        calls.strip_prefix("calls=").unwrap().parse().unwrap()
    }

    /// Ends the server with SIGKILL, as a crash would.
    pub(crate) fn kill9(&mut self) {
        let _already_gone = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Stops the server with SIGSTOP: the kernel still accepts connections, nobody answers.
    pub(crate) fn stop(&self) {
        self.signal("-STOP");
        // The signal may arrive after the command that sends it has ended.
        wait_until("it is stopped", || self.state().starts_with('T'));
    }

    /// Lets a stopped server go on.
    pub(crate) fn cont(&self) {
        self.signal("-CONT");
    }

    /// Starts it again, empty and on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill9();
        // The primary of a replica writes one, and so does SAVE.
        let _mostly_there_is_none = fs::remove_file(self.setup.path("dump.rdb"));
        // While it was gone, another process may have borrowed the port.
        wait_until("the port is free again", || {
            self.child = self.setup.spawn(self.ports);
            self.comes_up()
        });
    }

    #[allow(clippy::print_stdout, reason = "shown only with a test that failed")]
    fn print_log(&self) {
        let log = fs::read_to_string(self.setup.path("log"));
        println!(
            "redis-server on port {}:\n{}",
            self.port(),
            log.unwrap_or_default()
        );
    }

    fn signal(&self, signal: &str) {
        let mut command = Command::new("kill");
        command.args([signal, &self.child.id().to_string()]);
        assert!(command.status().unwrap().success(), "kill {signal}");
    }

    fn state(&self) -> String {
        let mut command = Command::new("ps");
        command.args(["-o", "stat=", "-p", &self.child.id().to_string()]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            self.print_log();
        }
    }
}

impl Setup {
    fn new(arguments: &[&str]) -> Setup {
        let folder = tempfile::tempdir().unwrap();
        // Sentinels write to it and don't start without one.
        fs::write(folder.path().join("conf"), "").unwrap();
        Setup {
            folder,
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            certificates: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn argument(&self, name: &str) -> Option<&str> {
        let mut words = self.arguments.iter().skip_while(|word| *word != name);
        words.nth(1).map(String::as_str)
    }

    fn spawn(&self, ports: Ports) -> Child {
        let mut command = Command::new(program());
        command
            .arg(self.path("conf"))
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(self.folder.path())
            .arg("--unixsocket")
            .arg(self.path("socket"))
            .args(self.port_arguments(ports.clients))
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(File::create(self.path("log")).unwrap());
        if !is_old() {
            command.args(["--enable-debug-command", "yes"]);
            command.args(["--cluster-port", &ports.bus.to_string()]);
        }
        match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                panic!("this test needs redis-server 7.0 or later: apt-get install redis-server")
            }
            Err(error) => panic!("redis-server: {error}"),
        }
    }

    fn port_arguments(&self, port: u16) -> Vec<String> {
        let port = port.to_string();
        let words = match self.certificates {
            Some(_) => vec!["--port", "0", "--tls-port", &port],
            None => vec!["--port", &port],
        };
        words.into_iter().map(str::to_owned).collect()
    }
}

fn program() -> PathBuf {
    let named = std::env::var_os("COMPORTA_TEST_REDIS_SERVER");
    named.map_or_else(|| "redis-server".into(), PathBuf::from)
}

/// Whether it is older than 7.0, and doesn't know all settings.
fn is_old() -> bool {
    static IS_OLD: LazyLock<bool> = LazyLock::new(|| {
        let version = Command::new(program()).arg("--version").output();
        version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(" v=6."))
    });
    *IS_OLD
}

/// A server that still loads its data answers with an error.
fn is_up(reply: &Reply) -> bool {
    *reply == Reply::Status("PONG".to_owned())
}

/// Ports which were free a moment ago. Both are held until both are known, so that they differ.
fn free_ports() -> Ports {
    let [clients, bus] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    Ports {
        clients: port(&clients),
        bus: port(&bus),
    }
}
