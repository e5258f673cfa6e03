//! A bounded map of counters' keys, in locked parts.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;

use super::CounterKey;
use crate::algorithm::Micros;

/// Enough that two cores seldom meet.
const SHARDS: usize = 16;

/// The parts; whoever adds to one keeps the bound.
#[derive(Debug)]
pub(super) struct Shards<V> {
    parts: Box<[Mutex<Shard<V>>]>,
    capacity: usize,
    hasher: RandomState,
}

/// One part.
pub(super) type Shard<V> = IndexMap<CounterKey, V, RandomState>;

impl<V> Shards<V> {
    /// Parts for about `keys_max` keys.
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            parts: (0..SHARDS).map(|_| Mutex::default()).collect(),
            capacity: keys_max.div_ceil(SHARDS),
            hasher: RandomState::new(),
        }
    }

    /// The keys that each part may have.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The key's part.
    pub(super) fn lock(&self, key: &CounterKey) -> MutexGuard<'_, Shard<V>> {
        let number = modulo(self.hasher.hash_one(key), SHARDS);
        self.parts[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Any of `len` keys, which are some: the instant is as good as dice.
pub(super) fn any_index(len: usize, now: Micros) -> usize {
    modulo(now.0, len)
}

/// `number` brought below `size`, which is not 0.
fn modulo(number: u64, size: usize) -> usize {
    usize::try_from(number % size as u64).unwrap_or_default()
}
