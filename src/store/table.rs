//! A bounded table of counters: one shard of the memory store.
//!
//! Denied counters stand in front of all others, so that room can be made without ever forgetting
//! a denied key while there is another to forget: forgetting it would let it through.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use indexmap::IndexMap;
use siphasher::sip128::SipHasher13;

use crate::algorithm::{Limit, Micros, State};

/// How many counters are looked at to find the one that matters least.
const SAMPLE: usize = 8;

type Slots = IndexMap<Fingerprint, Slot, BuildHasherDefault<Taken>>;

/// Counters, by key.
#[derive(Debug)]
pub(super) struct Table {
    /// `0..denied` are denied, the rest are not.
    slots: Slots,
    denied: usize,
    /// How many there have been at a time, since memory was given back.
    touched: usize,
    capacity: usize,
    /// Where the next sample starts.
    hand: usize,
}

/// What is kept of a counter's key: 128 bits of a hash that is keyed anew in each process. Of a million
/// counters, two are alike in one of 10^26 processes, whatever clients send, since they don't know the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// Says the shard, too.
    high: u64,
    /// Says the place in the table.
    low: u64,
}

/// Makes fingerprints.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fingerprints(SipHasher13);

impl Fingerprints {
    /// With a key of its own.
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        let [high, low] = [0, 1].map(|word| random.hash_one(word));
        Self(SipHasher13::new_with_keys(high, low))
    }

    pub(super) fn of(&self, key: &[u8]) -> Fingerprint {
        let hash = self.0.hash(key);
        Fingerprint {
            high: hash.h1,
            low: hash.h2,
        }
    }
}

impl Fingerprint {
    /// One of so many shards.
    pub(super) fn shard(self, shards: usize) -> usize {
        usize::try_from(self.high >> 48).unwrap_or_default() % shards
    }
}

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.low);
    }
}

/// Takes a fingerprint for the hash that it is.
#[derive(Debug, Default)]
pub(super) struct Taken(u64);

impl Hasher for Taken {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// One counter.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) state: State,
    /// From when on the counter says no more than a new one would.
    idle_at: Micros,
    /// Until when its key is denied; meaningful only in front.
    denied_until: Micros,
}

/// What had to go to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// A counter that had nothing left to say.
    Idle,
    /// A counter with hits, not denied.
    Counting,
    /// A denied one, for want of any other.
    Denied,
}

impl Table {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            slots: reserved(capacity),
            denied: 0,
            touched: 0,
            capacity: capacity.max(1),
            hand: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, key: Fingerprint) -> Option<&State> {
        Some(&self.slots.get(&key)?.state)
    }

    /// The counter's state, to be changed in place and then confirmed by [`Self::put`].
    pub(super) fn get_mut(&mut self, key: Fingerprint) -> Option<&mut State> {
        Some(&mut self.slots.get_mut(&key)?.state)
    }

    /// Keeps `state`, making room if there is none; `denied_until` for a key that is denied.
    pub(super) fn put(
        &mut self,
        key: Fingerprint,
        state: State,
        limit: &Limit,
        now: Micros,
        denied_until: Option<Micros>,
    ) -> Option<Evicted> {
        let slot = Slot {
            idle_at: Micros(state.idle_at(limit).0 + slack(limit)),
            denied_until: denied_until.unwrap_or_default(),
            state,
        };
        let mut evicted = None;
        let index = if let Some((index, _, kept)) = self.slots.get_full_mut(&key) {
            *kept = slot;
            index
        } else {
            if self.slots.len() >= self.capacity {
                evicted = Some(self.evict(now));
            }
            self.reserve_one();
            self.touched = self.touched.max(self.slots.len() + 1);
            self.slots.insert_full(key, slot).0
        };
        self.place(index, denied_until.is_some());
        evicted
    }

    /// Forgets the counter.
    pub(super) fn remove(&mut self, key: Fingerprint) -> bool {
        match self.slots.get_index_of(&key) {
            Some(index) => {
                self.remove_at(index);
                true
            }
            None => false,
        }
    }

    /// Forgets idle counters, and lets those go to the back whose denial has ended. Returns how
    /// many were forgotten.
    pub(super) fn sweep(&mut self, now: Micros) -> usize {
        let before = self.slots.len();
        for index in (0..self.slots.len()).rev() {
            let slot = &self.slots[index];
            if slot.idle_at <= now {
                self.remove_at(index);
            } else if index < self.denied && slot.denied_until <= now {
                self.place(index, false);
            }
        }
        if self.touched >= WORTH_GIVING_BACK && self.slots.len() < self.touched / 4 {
            self.give_back();
        }
        before - self.slots.len()
    }

    /// Moves the counter to its part of the table.
    fn place(&mut self, index: usize, denied: bool) {
        if denied && index >= self.denied {
            self.slots.swap_indices(index, self.denied);
            self.denied += 1;
        } else if !denied && index < self.denied {
            self.denied -= 1;
            self.slots.swap_indices(index, self.denied);
        }
    }

    fn remove_at(&mut self, index: usize) {
        let mut index = index;
        if index < self.denied {
            self.place(index, false);
            index = self.denied;
        }
        self.slots.swap_remove_index(index);
    }

    /// Makes room for one, at the expense of the counter that matters least of a sample.
    fn evict(&mut self, now: Micros) -> Evicted {
        let all_denied = self.denied == self.slots.len();
        let (first, count) = if all_denied {
            (0, self.denied)
        } else {
            (self.denied, self.slots.len() - self.denied)
        };
        let sample = (0..SAMPLE.min(count)).map(|step| first + (self.hand + step) % count);
        let victim = sample
            .min_by_key(|&index| {
                let slot = &self.slots[index];
                // Of two that will be idle at the same time, the one with fewer hits.
                let end = if all_denied {
                    slot.denied_until
                } else {
                    slot.idle_at
                };
                (end, hits(&slot.state))
            })
            .unwrap_or(first);
        self.hand = self.hand.wrapping_add(SAMPLE);

        let slot = &self.slots[victim];
        let evicted = if slot.idle_at <= now {
            Evicted::Idle
        } else if all_denied && slot.denied_until > now {
            Evicted::Denied
        } else {
            Evicted::Counting
        };
        self.remove_at(victim);
        evicted
    }

    /// Moves what is left to memory that nobody has touched yet.
    fn give_back(&mut self) {
        let mut slots = reserved(self.capacity);
        slots.extend(self.slots.drain(..));
        self.touched = slots.len();
        self.slots = slots;
    }

    /// Grows by an eighth at a time rather than to twice the size: memory is what is bounded here.
    fn reserve_one(&mut self) {
        if self.slots.len() == self.slots.capacity() {
            let more = (self.slots.len() / 8).max(16);
            self.slots.reserve_exact(more);
        }
    }
}

/// Room for so many. What is reserved takes memory only when it is touched, and is never copied to grow.
fn reserved(capacity: usize) -> Slots {
    IndexMap::with_capacity_and_hasher(capacity.min(RESERVED_MAX), BuildHasherDefault::default())
}

/// A million counters in 64 shards: some 100 MB of addresses. More grows as it is needed.
const RESERVED_MAX: usize = 16_384;

/// Below it, there is next to nothing to be had.
const WORTH_GIVING_BACK: usize = 256;

/// How long an idle counter is kept all the same: a clock that steps back by less finds it.
fn slack(limit: &Limit) -> u64 {
    limit.window().0.min(SLACK_MAX.0)
}

/// Time services step a clock by seconds at the most.
const SLACK_MAX: Micros = Micros(10 * Micros::PER_SECOND);

/// Hits that would be forgotten, where states count hits; a bucket's are in its instant.
fn hits(state: &State) -> u64 {
    match state {
        State::Window(window) => window.count,
        State::Counter(counter) => counter.current.saturating_add(counter.previous),
        State::Log(log) => log.hits(),
        State::Bucket(_) => 0,
    }
}
