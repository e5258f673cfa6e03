//! A primary, its replica, and three sentinels that watch them.

use std::fs;

use super::resp::Reply;
use super::{Redis, Setup, wait_until};

/// What the sentinels call the primary.
pub(crate) const NAME: &str = "main";

pub(crate) struct Sentinel {
    /// The first of them is the primary until it fails.
    pub(crate) nodes: Vec<Redis>,
    pub(crate) sentinels: Vec<Redis>,
}

/// An empty password is none.
#[derive(Default, Clone, Copy)]
pub(crate) struct Passwords<'a> {
    pub(crate) redis: &'a str,
    pub(crate) sentinel: &'a str,
}

impl Sentinel {
    pub(crate) fn start() -> Sentinel {
        Sentinel::start_with(Passwords::default())
    }

    pub(crate) fn start_with(passwords: Passwords<'_>) -> Sentinel {
        let nodes = start_nodes(passwords.redis);
        let primary = nodes[0].port();
        let sentinels = (0..3).map(|_| start_sentinel(primary, passwords));
        let sentinels = sentinels.collect();
        let sentinel = Sentinel { nodes, sentinels };
        sentinel.wait_until_agreed();
        sentinel
    }

    fn wait_until_agreed(&self) {
        let [primary, replica] = [0, 1].map(|index| &self.nodes[index]);
        wait_until("the replica is connected", || {
            follows(replica, primary.port())
        });
        self.wait_for_replica();
        for sentinel in &self.sentinels {
            wait_until("the sentinels know each other", || {
                knows_sentinels(sentinel)
            });
            wait_until("the sentinels know the replica", || knows_replica(sentinel));
        }
    }

    /// Waits until the replica has all that the primary has.
    pub(crate) fn wait_for_replica(&self) {
        let port = self.current_primary();
        let primary = self.nodes.iter().find(|node| node.port() == port);
        let mut primary = primary.unwrap().connect().unwrap();
        // WAIT is about what its own connection wrote. A message is a write that leaves nothing.
        primary.command(&["PUBLISH", "rig", "sync"]).unwrap();
        let replicas = primary.command(&["WAIT", "1", "20000"]).unwrap();
        assert_eq!(replicas.int(), 1);
    }

    /// `host:port` of every sentinel.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let address = |sentinel: &Redis| format!("127.0.0.1:{}", sentinel.port());
        self.sentinels.iter().map(address).collect()
    }

    /// The port of the primary, according to the sentinels.
    ///
    /// # Panics
    ///
    /// When they disagree for long.
    pub(crate) fn current_primary(&self) -> u16 {
        let mut ports = Vec::new();
        wait_until("the sentinels agree", || {
            ports = self.sentinels.iter().map(primary_of).collect();
            ports.iter().all(|port| *port == ports[0])
        });
        ports[0]
    }

    /// Ends the primary with SIGKILL; a new one is about to be elected.
    pub(crate) fn kill_primary(&mut self) {
        let port = self.current_primary();
        let primary = self.nodes.iter_mut().find(|node| node.port() == port);
        primary.unwrap().kill9();
    }

    /// Ends the primary with SIGKILL and waits until there is another, as all sentinels know.
    pub(crate) fn failover(&mut self) {
        let old = self.current_primary();
        self.kill_primary();
        wait_until("there is a new primary", || self.current_primary() != old);
        let new = self.current_primary();
        let node = self.nodes.iter().find(|node| node.port() == new).unwrap();
        wait_until("it knows that it is", || is_primary(node));
    }

    /// Starts the node that was killed, and waits until it follows the one that took its place.
    pub(crate) fn revive(&mut self) {
        let new = self.current_primary();
        let killed = self.nodes.iter_mut().find(|node| node.port() != new);
        let killed = killed.unwrap();
        killed.restart();
        wait_until("it follows the new primary", || follows(killed, new));
    }
}

/// The sentinels hang up on every client of a node to which they give a new role.
fn role(node: &Redis) -> Option<Reply> {
    node.try_command(&["ROLE"]).ok()
}

fn is_primary(node: &Redis) -> bool {
    role(node).is_some_and(|role| role.array()[0].text() == "master")
}

/// Whether it is a replica of that port and has a copy of the data.
fn follows(node: &Redis, port: u16) -> bool {
    role(node).is_some_and(|role| {
        let role = role.array();
        role[0].text() == "slave"
            && role[2].int() == i64::from(port)
            && role[3].text() == "connected"
    })
}

fn start_nodes(password: &str) -> Vec<Redis> {
    // Without a disk, the primary would wait 5 s for more replicas before it serves the first.
    let mut arguments = vec!["--repl-diskless-sync", "no"];
    if !password.is_empty() {
        arguments.extend(["--requirepass", password, "--masterauth", password]);
    }
    let primary = Redis::start_with(&arguments);
    let port = primary.port().to_string();
    arguments.extend(["--replicaof", "127.0.0.1", &port]);
    let replica = Redis::start_with(&arguments);
    vec![primary, replica]
}

/// What can't be said on the command line.
fn settings(primary: u16, passwords: Passwords<'_>) -> String {
    let mut lines = vec![
        format!("sentinel monitor {NAME} 127.0.0.1 {primary} 2"),
        format!("sentinel down-after-milliseconds {NAME} 500"),
        format!("sentinel failover-timeout {NAME} 3000"),
    ];
    if !passwords.redis.is_empty() {
        lines.push(format!("sentinel auth-pass {NAME} {:?}", passwords.redis));
    }
    if !passwords.sentinel.is_empty() {
        lines.push(format!("sentinel sentinel-pass {:?}", passwords.sentinel));
    }
    lines.join("\n")
}

fn start_sentinel(primary: u16, passwords: Passwords<'_>) -> Redis {
    let mut arguments = vec!["--sentinel"];
    if !passwords.sentinel.is_empty() {
        arguments.extend(["--requirepass", passwords.sentinel]);
    }
    let setup = Setup::new(&arguments);
    fs::write(setup.path("conf"), settings(primary, passwords)).unwrap();
    let sentinel = Redis::launch(setup);
    // They look around every 10 s and greet each other every 2 s; a test can't wait for that.
    // They also connect again only after ping-period. If that is longer than down-after, a new
    // primary is taken for dead; if it is below 200, what they know of a replica, which is 1 s old
    // by then, is too old (5 periods) for an election.
    let periods = "info-period 100 publish-period 100 ping-period 300";
    let words: Vec<_> = periods.split(' ').collect();
    let words = [&["SENTINEL", "DEBUG"], &words[..]].concat();
    sentinel.command(&words).expect_ok();
    sentinel
}

fn knows_sentinels(sentinel: &Redis) -> bool {
    match sentinel.command(&["SENTINEL", "CKQUORUM", NAME]) {
        Reply::Status(text) => text.starts_with("OK 3 usable"),
        _ => false,
    }
}

fn knows_replica(sentinel: &Redis) -> bool {
    let replicas = sentinel.command(&["SENTINEL", "REPLICAS", NAME]);
    let mut replicas = replicas.array().iter();
    replicas.any(|replica| {
        replica.field("flags") == "slave" && replica.field("master-link-status") == "ok"
    })
}

fn primary_of(sentinel: &Redis) -> u16 {
    let address = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
    address.array()[1].text().parse().unwrap()
}
