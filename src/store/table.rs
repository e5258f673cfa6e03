//! A bounded table of counters: one shard of the memory store.
//!
//! Denied counters stand in front of all others, so that room can be made without ever forgetting
//! a denied key while there is another to forget: forgetting it would let it through.

use std::hash::{BuildHasher, RandomState};

use indexmap::IndexMap;
use indexmap::map::raw_entry_v1::{RawEntryApiV1, RawEntryMut};

use crate::algorithm::{Limit, Micros, State};

/// How many counters are looked at to find the one that matters least.
const SAMPLE: usize = 8;

/// Counters, by key.
#[derive(Debug)]
pub(super) struct Table {
    /// `0..denied` are denied, the rest are not.
    slots: IndexMap<Box<[u8]>, Slot, RandomState>,
    denied: usize,
    capacity: usize,
    /// Where the next sample starts.
    hand: usize,
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
    pub(super) fn new(capacity: usize, hasher: RandomState) -> Self {
        Self {
            slots: IndexMap::with_hasher(hasher),
            denied: 0,
            capacity: capacity.max(1),
            hand: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, hash: u64, key: &[u8]) -> Option<&State> {
        let (_, _, slot) = self
            .slots
            .raw_entry_v1()
            .from_hash_full(hash, |slot| **slot == *key)?;
        Some(&slot.state)
    }

    /// The counter's state, to be changed in place and then confirmed by [`Self::put`].
    pub(super) fn get_mut(&mut self, hash: u64, key: &[u8]) -> Option<&mut State> {
        match self
            .slots
            .raw_entry_mut_v1()
            .from_hash(hash, |slot| **slot == *key)
        {
            RawEntryMut::Occupied(entry) => Some(&mut entry.into_mut().state),
            RawEntryMut::Vacant(_) => None,
        }
    }

    /// Keeps `state`, making room if there is none; `denied_until` for a key that is denied.
    pub(super) fn put(
        &mut self,
        hash: u64,
        key: &[u8],
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
        let found = self.index_of(hash, key);
        let index = if let Some(index) = found {
            self.slots[index] = slot;
            index
        } else {
            if self.slots.len() >= self.capacity {
                evicted = Some(self.evict(now));
            }
            self.reserve_one();
            match self
                .slots
                .raw_entry_mut_v1()
                .from_hash(hash, |slot| **slot == *key)
            {
                RawEntryMut::Occupied(_) => {}
                RawEntryMut::Vacant(entry) => {
                    entry.insert_hashed_nocheck(hash, key.into(), slot);
                }
            }
            self.slots.len() - 1
        };
        self.place(index, denied_until.is_some());
        evicted
    }

    /// Forgets the counter.
    pub(super) fn remove(&mut self, hash: u64, key: &[u8]) -> bool {
        match self.index_of(hash, key) {
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
        if self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to(self.slots.len() * 2);
        }
        before - self.slots.len()
    }

    fn index_of(&self, hash: u64, key: &[u8]) -> Option<usize> {
        self.slots
            .raw_entry_v1()
            .index_from_hash(hash, |slot| **slot == *key)
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

    /// Grows by an eighth at a time rather than to twice the size: memory is what is bounded here.
    fn reserve_one(&mut self) {
        if self.slots.len() == self.slots.capacity() {
            let more = (self.slots.len() / 8).max(16);
            self.slots.reserve_exact(more);
        }
    }
}

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

pub(super) fn hash(hasher: &RandomState, key: &[u8]) -> u64 {
    hasher.hash_one(key)
}
