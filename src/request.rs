//! What was asked: a request that is within bounds and makes sense.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::algorithm::{COUNT_MAX, Hits, Micros, Unit};
use crate::config::matcher::Entry;

/// May this pass?
#[derive(Clone, Debug)]
pub struct Request {
    /// The namespace of rules; not empty.
    pub domain: Bytes,
    /// At least one.
    pub descriptors: Vec<Descriptor>,
    /// How long the caller will wait for the answer, if it said so.
    pub timeout: Option<Micros>,
}

/// One thing about the request that may be limited.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// From the general to the special.
    pub entries: SmallVec<[Entry; 2]>,
    /// A limit that the caller brings along.
    pub limit: Option<Override>,
    /// How many hits it counts for.
    pub hits: Hits,
}

/// A limit that replaces the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Requests per window.
    pub requests: u32,
    /// The unit.
    pub unit: Unit,
    /// How many units make the window.
    pub multiplier: u32,
}

/// The most that one request may ask. Beyond it, it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Descriptors in a request.
    pub descriptors_max: usize,
    /// Entries in a descriptor.
    pub entries_max: usize,
}

/// Why a request gets no decision. The caller is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// No domain.
    #[error("the domain is empty; name a domain of the rate limit configuration")]
    EmptyDomain,
    /// No descriptors.
    #[error("there are no descriptors; send at least one")]
    NoDescriptors,
    /// More descriptors than [`Bounds`] allows.
    #[error("{found} descriptors in one request; {allowed} are allowed")]
    TooManyDescriptors {
        /// How many there are.
        found: usize,
        /// How many there may be.
        allowed: usize,
    },
    /// More entries than [`Bounds`] allows.
    #[error("{found} entries in descriptor {descriptor}; {allowed} are allowed")]
    TooManyEntries {
        /// Which descriptor, counted from 0.
        descriptor: usize,
        /// How many there are.
        found: usize,
        /// How many there may be.
        allowed: usize,
    },
    /// An entry without a key.
    #[error("the key of entry {entry} in descriptor {descriptor} is empty")]
    EmptyKey {
        /// Which descriptor, counted from 0.
        descriptor: usize,
        /// Which entry, counted from 0.
        entry: usize,
    },
    /// A limit sent along in a unit that there isn't.
    #[error(
        "the limit of descriptor {descriptor} has unit {unit}, which is unknown; send 1 (second), \
         2 (minute), 3 (hour), 4 (day), 5 (month), 6 (year) or 7 (week)"
    )]
    UnknownUnit {
        /// Which descriptor, counted from 0.
        descriptor: usize,
        /// What was sent.
        unit: i32,
    },
    /// A limit sent along that cannot be.
    #[error("the limit of descriptor {descriptor} is impossible: {reason}")]
    ImpossibleLimit {
        /// Which descriptor, counted from 0.
        descriptor: usize,
        /// Why.
        reason: String,
    },
    /// A message that can't be read at all.
    #[error("{0}")]
    Unreadable(String),
}

impl Request {
    /// Checks what a transport has read.
    pub fn new(
        domain: Bytes,
        descriptors: Vec<Descriptor>,
        timeout: Option<Micros>,
        bounds: Bounds,
    ) -> Result<Self, InvalidRequest> {
        if domain.is_empty() {
            return Err(InvalidRequest::EmptyDomain);
        }
        if descriptors.is_empty() {
            return Err(InvalidRequest::NoDescriptors);
        }
        if descriptors.len() > bounds.descriptors_max {
            return Err(InvalidRequest::TooManyDescriptors {
                found: descriptors.len(),
                allowed: bounds.descriptors_max,
            });
        }
        for (index, descriptor) in descriptors.iter().enumerate() {
            descriptor.within(index, bounds)?;
        }
        Ok(Self {
            domain,
            descriptors,
            timeout,
        })
    }
}

impl Descriptor {
    fn within(&self, index: usize, bounds: Bounds) -> Result<(), InvalidRequest> {
        if self.entries.len() > bounds.entries_max {
            return Err(InvalidRequest::TooManyEntries {
                descriptor: index,
                found: self.entries.len(),
                allowed: bounds.entries_max,
            });
        }
        match self.entries.iter().position(|entry| entry.key.is_empty()) {
            Some(entry) => Err(InvalidRequest::EmptyKey {
                descriptor: index,
                entry,
            }),
            None => Ok(()),
        }
    }
}

/// The hits of a descriptor: its own addend replaces the request's, where 0 means 1.
#[must_use]
pub fn hits(request_addend: u32, addend: Option<u64>, is_negative: bool) -> Hits {
    let hits = addend.unwrap_or_else(|| u64::from(request_addend.max(1)));
    let hits = hits.min(COUNT_MAX);
    match hits {
        0 => Hits::Look,
        _ if is_negative => Hits::Refund(hits),
        _ => Hits::Charge(hits),
    }
}

/// The unit of that number in the protocol.
#[must_use]
pub fn unit(number: i32) -> Option<Unit> {
    Some(match number {
        1 => Unit::Second,
        2 => Unit::Minute,
        3 => Unit::Hour,
        4 => Unit::Day,
        5 => Unit::Month,
        6 => Unit::Year,
        7 => Unit::Week,
        _ => return None,
    })
}

/// What a client sent, fit for a terminal or a label: lossy, and without control characters.
#[must_use]
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for character in String::from_utf8_lossy(bytes).chars() {
        if character.is_control() {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
    }
    text
}
