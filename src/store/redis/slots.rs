//! Which node of a cluster has which counters.

use redis::Value;

use super::url::Address;

/// The number of a slot.
pub(super) type Slot = u16;

const SLOTS: u16 = 16_384;

/// Stands for a slot that nobody has.
const NOBODY: u16 = u16::MAX;

/// Who has each slot, as far as is known.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    nodes: Vec<Address>,
    /// By slot, the index of its node.
    owners: Box<[u16]>,
}

/// The slot of a counter, given its whole name.
pub(super) fn slot_of(name: &[u8]) -> Slot {
    crc16(tag(name)) % SLOTS
}

/// What is between the first `{` and the next `}` decides alone, unless there is nothing.
fn tag(name: &[u8]) -> &[u8] {
    let find = |bytes: &[u8], wanted| bytes.iter().position(|&byte| byte == wanted);
    let Some(open) = find(name, b'{') else {
        return name;
    };
    let inside = &name[open + 1..];
    match find(inside, b'}') {
        Some(length) if length > 0 => &inside[..length],
        _ => name,
    }
}

/// The one that Redis uses, also called XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        let index = (crc >> 8) ^ u16::from(byte);
        (crc << 8) ^ CRCS[usize::from(index)]
    })
}

static CRCS: [u16; 256] = crcs();

const fn crcs() -> [u16; 256] {
    let mut table = [0; 256];
    let mut index: u16 = 0;
    while index < 256 {
        let mut crc = index << 8;
        let mut bit = 0;
        while bit < 8 {
            let is_out = crc & 0x8000 != 0;
            crc <<= 1;
            if is_out {
                crc ^= 0x1021;
            }
            bit += 1;
        }
        table[index as usize] = crc;
        index += 1;
    }
    table
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            owners: vec![NOBODY; SLOTS.into()].into(),
        }
    }
}

impl Slots {
    /// Reads a reply to `CLUSTER SLOTS`; none if it is no such thing, or if nobody has anything.
    pub(super) fn read(reply: &Value, asked: &Address) -> Option<Self> {
        let Value::Array(ranges) = reply else {
            return None;
        };
        let mut slots = Self::default();
        for range in ranges {
            let Value::Array(range) = range else {
                return None;
            };
            let [Value::Int(first), Value::Int(last), owner, ..] = &range[..] else {
                return None;
            };
            let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
            let owner = slots.index_of(&node(owner, asked)?);
            slots.owners.get_mut(first..=last)?.fill(owner);
        }
        (!slots.nodes.is_empty()).then_some(slots)
    }

    pub(super) fn owner(&self, slot: Slot) -> Option<&Address> {
        let owner = *self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(owner))
    }

    pub(super) fn nodes(&self) -> &[Address] {
        &self.nodes
    }

    pub(super) fn set_owner(&mut self, slot: Slot, node: &Address) {
        let owner = self.index_of(node);
        if let Some(entry) = self.owners.get_mut(usize::from(slot)) {
            *entry = owner;
        }
    }

    fn index_of(&mut self, node: &Address) -> u16 {
        let known = self.nodes.iter().position(|other| other == node);
        let index = known.unwrap_or_else(|| {
            self.nodes.push(node.clone());
            self.nodes.len() - 1
        });
        u16::try_from(index).unwrap_or(NOBODY)
    }
}

/// A node that doesn't know its own host is where it was reached.
fn node(value: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(node) = value else {
        return None;
    };
    let [host, Value::Int(port), ..] = &node[..] else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        Value::SimpleString(host) => host.clone(),
        _ => String::new(),
    };
    let node = Address::Tcp(host, u16::try_from(*port).ok()?);
    Some(node.or_host_of(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // From the specification of Redis Cluster, and from CLUSTER KEYSLOT.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"{foo}bar"), 12182);
        assert_eq!(slot_of(b"a{foo}{b}"), 12182);
        assert_eq!(slot_of(b"{}foo"), crc16(b"{}foo") % 16_384);
        assert_eq!(slot_of(b"{foo"), crc16(b"{foo") % 16_384);
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), text("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    #[test]
    fn owners_are_read_and_changed() {
        let asked = Address::Tcp("seed".to_owned(), 1);
        let reply = Value::Array(vec![
            range(0, 9, text("a"), 7000),
            range(20, 16_383, Value::Nil, 7001),
        ]);
        let mut slots = Slots::read(&reply, &asked).unwrap();
        let owner = |slots: &Slots, slot| slots.owner(slot).map(ToString::to_string);
        assert_eq!(owner(&slots, 9).as_deref(), Some("a:7000"));
        assert_eq!(owner(&slots, 10), None);
        assert_eq!(owner(&slots, 16_383).as_deref(), Some("seed:7001"));
        slots.set_owner(10, &asked);
        assert_eq!(owner(&slots, 10).as_deref(), Some("seed:1"));
        let beyond = Value::Array(vec![range(0, 16_384, text("a"), 7000)]);
        assert!(Slots::read(&beyond, &asked).is_none());
        assert!(Slots::read(&Value::Array(Vec::new()), &asked).is_none());
    }
}
