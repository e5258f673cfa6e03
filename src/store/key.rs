//! The name of a counter: unambiguous, bounded, printable.
//!
//! `domain:key=value:…:algorithm window`, for example `api:path=/login:remote_address@203.0.113.0/24:log300`.
//! `=` stands before a value as it was sent, `~` before a pattern whose values share a counter, `@`
//! before a network. In braces, before all entries, is the value that decides about the slot, if one does. Bytes that have a meaning here, or that are not printable, are written `%XX`;
//! parts that would be long are hashed. The numbers of the limit are not in it: changing them keeps
//! the count.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Limit, Micros};

/// A counter's name, without the prefix that a shared store adds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CounterKey(SmallVec<[u8; KEY_INLINE]>);

/// Most keys fit here, and so need no memory of their own.
const KEY_INLINE: usize = 96;

/// The longest part that is written out rather than hashed, in bytes after escaping.
pub const PART_MAX: usize = 64;

/// What tells the counters of one descriptor key apart.
#[derive(Clone, Copy, Debug)]
pub enum Counted<'a> {
    /// The value as it was sent.
    Value(&'a [u8]),
    /// A pattern: all its values share.
    Pattern(&'a [u8]),
    /// The network of an address.
    Network(std::net::IpAddr, u8),
}

impl CounterKey {
    /// The start of every counter of `domain`.
    #[must_use]
    pub fn of_domain(domain: &[u8]) -> Self {
        let mut key = Self(SmallVec::new());
        key.push_part(domain);
        key
    }

    /// Adds one entry.
    pub fn push_entry(&mut self, key: &[u8], counted: Counted<'_>) {
        self.0.push(b':');
        self.push_part(key);
        self.push_counted(counted);
    }

    /// Makes counters with this value neighbours in a Redis cluster: it hashes only what is in the first braces.
    pub fn push_hash_tag(&mut self, counted: Counted<'_>) {
        self.0.extend_from_slice(b":{");
        self.push_counted(counted);
        self.0.push(b'}');
    }

    fn push_counted(&mut self, counted: Counted<'_>) {
        match counted {
            Counted::Value(value) => {
                self.0.push(b'=');
                self.push_part(value);
            }
            Counted::Pattern(pattern) => {
                self.0.push(b'~');
                self.push_part(pattern);
            }
            Counted::Network(address, bits) => {
                // Addresses hold colons, but stand between `@` and `/`, neither of which they hold.
                let _infallible = write!(self, "@{address}/{bits}");
            }
        }
    }

    /// The counter of `limit`.
    #[must_use]
    pub fn for_limit(&self, limit: &Limit) -> Self {
        let mut key = self.clone();
        let algorithm = match limit.policy().algorithm() {
            Algorithm::FixedWindow => "fixed",
            Algorithm::SlidingWindowLog => "log",
            Algorithm::SlidingWindowCounter => "counter",
            Algorithm::TokenBucket => "token",
            Algorithm::LeakyBucket => "leaky",
        };
        let seconds = limit.window().0 / Micros::PER_SECOND;
        let _infallible = write!(key, ":{algorithm}{seconds}");
        key
    }

    /// The name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn push_part(&mut self, part: &[u8]) {
        let start = self.0.len();
        for &byte in part {
            if is_plain(byte) {
                self.0.push(byte);
            } else {
                let _infallible = write!(self, "%{byte:02X}");
            }
            if self.0.len() - start > PART_MAX {
                self.0.truncate(start);
                self.push_hash(part);
                return;
            }
        }
    }

    /// 128 bits: nobody finds two values with the same.
    fn push_hash(&mut self, part: &[u8]) {
        self.0.push(b'#');
        for byte in &Sha256::digest(part)[..16] {
            let _infallible = write!(self, "{byte:02x}");
        }
    }
}

impl Write for CounterKey {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl std::fmt::Display for CounterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Only ASCII is ever pushed.
        f.write_str(std::str::from_utf8(&self.0).unwrap_or_default())
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_./+,;!$&'()".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(entries: &[(&[u8], Counted<'_>)], expected: &str) {
        let mut key = CounterKey::of_domain(b"api");
        for &(name, counted) in entries {
            key.push_entry(name, counted);
        }
        assert_eq!(key.to_string(), expected);
    }

    #[test]
    fn parts_cannot_be_mistaken_for_one_another() {
        check(&[(b"x", Counted::Value(b"1_y_2"))], "api:x=1_y_2");
        check(
            &[(b"x", Counted::Value(b"1")), (b"y", Counted::Value(b"2"))],
            "api:x=1:y=2",
        );
        check(&[(b"x", Counted::Value(b"1:y=2"))], "api:x=1%3Ay%3D2");
        check(&[(b"x", Counted::Value(b"a/*"))], "api:x=a/%2A");
        check(&[(b"x", Counted::Pattern(b"a/*"))], "api:x~a/%2A");
        check(
            &[(b"x", Counted::Value(b"\xff{\n}%#"))],
            "api:x=%FF%7B%0A%7D%25%23",
        );
        check(
            &[(b"x", Counted::Network("2001:db8::".parse().unwrap(), 64))],
            "api:x@2001:db8::/64",
        );
    }

    #[test]
    fn a_hash_tag_is_never_empty_and_never_ends_early() {
        let tagged = |value| {
            let mut key = CounterKey::of_domain(b"{api}");
            key.push_hash_tag(Counted::Value(value));
            key.to_string()
        };
        assert_eq!(tagged(b""), "%7Bapi%7D:{=}");
        assert_eq!(tagged(b"a}b{"), "%7Bapi%7D:{=a%7Db%7B}");
    }

    #[test]
    fn long_values_are_hashed_and_differ() {
        let mut one = CounterKey::of_domain(b"api");
        one.push_entry(b"x", Counted::Value(&[b'a'; 10_000]));
        let mut other = CounterKey::of_domain(b"api");
        other.push_entry(b"x", Counted::Value(&[b'a'; 10_001]));
        assert_ne!(one, other);
        assert_eq!(one.to_string().len(), "api:x=#".len() + 32);
    }
}
