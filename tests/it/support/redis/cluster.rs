//! A Redis Cluster of masters.

use std::sync::Arc;

use super::super::certificates::certificates;
use super::resp::Reply;
use super::{Redis, wait_until};

const SLOTS: usize = 16384;

const SETTINGS: [&str; 4] = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500"];

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Redis>,
    ids: Vec<String>,
}

impl Cluster {
    pub(crate) fn start(masters: usize) -> Cluster {
        Cluster::start_with(masters, &[])
    }

    /// Starts every node with these arguments besides the rig's own.
    pub(crate) fn start_with(masters: usize, arguments: &[&str]) -> Cluster {
        let all = [&SETTINGS[..], arguments].concat();
        Cluster::of((0..masters).map(|_| Redis::start_with(&all)).collect())
    }

    /// Nodes that speak TLS, with everyone and among themselves, and ask for certificates.
    pub(crate) fn start_tls(masters: usize) -> Cluster {
        let certificates = Arc::new(certificates());
        let all = [&SETTINGS[..], &["--tls-cluster", "yes"]].concat();
        let node = |_| Redis::start_tls_with(&certificates, true, &all);
        Cluster::of((0..masters).map(node).collect())
    }

    fn of(nodes: Vec<Redis>) -> Cluster {
        let id = |node: &Redis| node.command(&["CLUSTER", "MYID"]).text();
        let ids = nodes.iter().map(id).collect();
        let cluster = Cluster { nodes, ids };
        cluster.assign_slots();
        cluster.introduce_nodes();
        for slot in cluster.first_slots() {
            cluster.wait_for_owner(slot, cluster.share_of_slot(slot));
        }
        cluster.wait_until_ok();
        cluster
    }

    fn assign_slots(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let first = self.first_slot(index).to_string();
            let last = (self.first_slot(index + 1) - 1).to_string();
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])
                .expect_ok();
            // Different from the start, or the nodes spend their first seconds on a settlement.
            let epoch = (index + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch])
                .expect_ok();
        }
    }

    /// Everyone meets everyone: faster than to let the word spread.
    fn introduce_nodes(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[index + 1..] {
                let (port, bus) = (other.port().to_string(), other.ports.bus.to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])
                    .expect_ok();
            }
        }
    }

    fn wait_until_ok(&self) {
        let masters = self.nodes.len();
        let signs = [
            "cluster_state:ok\r\n".to_owned(),
            format!("cluster_slots_ok:{SLOTS}\r\n"),
            format!("cluster_known_nodes:{masters}\r\n"),
        ];
        for node in &self.nodes {
            wait_until("the cluster is ok", || {
                let info = node.command(&["CLUSTER", "INFO"]).text();
                signs.iter().all(|sign| info.contains(sign))
            });
        }
    }

    fn first_slot(&self, node: usize) -> usize {
        node * SLOTS / self.nodes.len()
    }

    fn first_slots(&self) -> impl Iterator<Item = u16> {
        (0..self.nodes.len()).map(|node| u16::try_from(self.first_slot(node)).unwrap())
    }

    fn share_of_slot(&self, slot: u16) -> usize {
        let is_after = |node: &usize| self.first_slot(*node) <= usize::from(slot);
        (0..self.nodes.len()).rfind(is_after).unwrap()
    }

    /// `host:port` of every node, also of those that were killed.
    pub(crate) fn seeds(&self) -> Vec<String> {
        let seed = |node: &Redis| format!("127.0.0.1:{}", node.port());
        self.nodes.iter().map(seed).collect()
    }

    pub(crate) fn slot_of_key(&self, key: &str) -> u16 {
        let reply = self.any_node(&["CLUSTER", "KEYSLOT", key]);
        reply.int().try_into().unwrap()
    }

    /// The index of the node that has the slot, in the eyes of the first node that lives.
    pub(crate) fn node_of_slot(&self, slot: u16) -> usize {
        let owner = owner(&self.any_node(&["CLUSTER", "SLOTS"]), slot);
        let index = self.ids.iter().position(|id| Some(id) == owner.as_ref());
        index.unwrap_or_else(|| panic!("nobody has slot {slot}"))
    }

    fn any_node(&self, words: &[&str]) -> Reply {
        let mut replies = self.nodes.iter().map(|node| node.try_command(words));
        replies.find_map(Result::ok).expect("a node lives")
    }

    /// Moves a slot and its keys, and waits until every node knows.
    pub(crate) fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.finish_move(slot, from, to);
    }

    /// From here on, `from` answers with ASK for the keys it doesn't have.
    pub(crate) fn begin_move(&self, slot: u16, from: usize, to: usize) {
        self.set_slot(to, slot, &["IMPORTING", &self.ids[from]]);
        self.set_slot(from, slot, &["MIGRATING", &self.ids[to]]);
    }

    /// From here on, all but `to` answer with MOVED.
    pub(crate) fn finish_move(&self, slot: u16, from: usize, to: usize) {
        self.migrate_keys(slot, from, to);
        let owner = &self.ids[to];
        // The new owner first: if the old one forgot the slot sooner, nobody would have it.
        let others = (0..self.nodes.len()).filter(|&node| node != to && node != from);
        for node in [to, from].into_iter().chain(others) {
            self.set_slot(node, slot, &["NODE", owner]);
        }
        self.wait_for_owner(slot, to);
        self.wait_for_agreement();
    }

    /// The next move must not come before: news of this one that is late could undo it.
    fn wait_for_agreement(&self) {
        wait_until("the nodes agree about each other's epochs", || {
            let views: Vec<_> = self.nodes.iter().map(epochs).collect();
            let mut distinct: Vec<_> = views[0].iter().map(|(_, epoch)| epoch).collect();
            distinct.sort_unstable();
            distinct.dedup();
            distinct.len() == views[0].len() && views.iter().all(|view| *view == views[0])
        });
    }

    fn migrate_keys(&self, slot: u16, from: usize, to: usize) {
        let (slot, port) = (slot.to_string(), self.nodes[to].port().to_string());
        loop {
            let source = &self.nodes[from];
            let keys = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            let keys: Vec<_> = keys.array().iter().map(Reply::text).collect();
            if keys.is_empty() {
                return;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
            if let Some(password) = source.setup.argument("--requirepass") {
                words.extend(["AUTH", password]);
            }
            words.push("KEYS");
            words.extend(keys.iter().map(String::as_str));
            // A key that expires in between answers with NOKEY, which is as good.
            let reply = source.command(&words).text();
            assert!(["OK", "NOKEY"].contains(&&*reply), "{reply}");
        }
    }

    fn set_slot(&self, node: usize, slot: u16, rest: &[&str]) {
        let slot = slot.to_string();
        let mut words = vec!["CLUSTER", "SETSLOT", &slot];
        words.extend(rest);
        self.nodes[node].command(&words).expect_ok();
    }

    fn wait_for_owner(&self, slot: u16, to: usize) {
        let id = Some(&self.ids[to]);
        for node in &self.nodes {
            wait_until("every node knows whose slot it is", || {
                owner(&node.command(&["CLUSTER", "SLOTS"]), slot).as_ref() == id
            });
        }
    }

    /// Adds a replica of a node, and waits until it has its data.
    pub(crate) fn start_replica(&self, of: usize) -> Redis {
        let replica = Redis::start_with(&SETTINGS);
        for node in &self.nodes {
            let (port, bus) = (node.port().to_string(), node.ports.bus.to_string());
            replica
                .command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])
                .expect_ok();
        }
        let primary = &self.ids[of];
        // Refused until the two have heard of each other.
        wait_until("it follows", || {
            let reply = replica.command(&["CLUSTER", "REPLICATE", primary]);
            reply == Reply::Status("OK".to_owned())
        });
        wait_until("it has the data", || {
            replica.info("replication", "master_link_status") == "up"
        });
        replica
    }

    /// Ends a node with SIGKILL. Unless it has a replica, its slots are nobody's until it is
    /// restarted, and without `--cluster-require-full-coverage no` the others refuse theirs, too.
    pub(crate) fn kill_node(&mut self, node: usize) {
        self.nodes[node].kill9();
    }
}

/// The configuration epochs of all nodes, in the eyes of one.
fn epochs(node: &Redis) -> Vec<(String, String)> {
    let nodes = node.command(&["CLUSTER", "NODES"]).text();
    let epoch = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        (words[0].to_owned(), words[6].to_owned())
    };
    let mut epochs: Vec<_> = nodes.lines().map(epoch).collect();
    epochs.sort_unstable();
    epochs
}

/// The id of the slot's owner, in a reply to `CLUSTER SLOTS`. Which port it says depends on who asks.
fn owner(slots: &Reply, slot: u16) -> Option<String> {
    let slot = i64::from(slot);
    let mut ranges = slots.array().iter().map(Reply::array);
    let range = ranges.find(|range| (range[0].int()..=range[1].int()).contains(&slot))?;
    Some(range[2].array()[2].text())
}
