//! The embedded store: exact, in one process, bounded.
//!
//! Counters are spread over shards by their key's hash. A request locks the shards of all its
//! counters, in order, for as long as the arithmetic takes; nothing waits inside. When a shard is
//! full a counter makes room for the next: an idle one first, then the one that would be idle
//! soonest, and a denied one only where every counter of the shard is denied.
//!
//! A counter takes about 100 bytes, however long its key; a sliding window log 16 bytes more per distinct
//! instant.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::table::{Evicted, Fingerprint, Fingerprints, Table};
use super::{Charged, Check, CounterKey, Outcomes, Store, StoreError};
use super::{denies, is_charged, uncharged};
use crate::algorithm::{self, Demand, Hits, Micros, State};
use crate::telemetry::{MemoryMeter, Source};

/// Enough that two cores seldom meet.
const SHARDS: usize = 64;

/// The embedded store.
#[derive(Debug)]
pub struct Memory {
    shards: Box<[Mutex<Table>]>,
    fingerprints: Fingerprints,
    /// The shard that [`Memory::sweep`] looks at next.
    sweep_next: AtomicUsize,
    meter: MemoryMeter,
}

/// The locked shards of a request, by number.
type Locked<'s> = SmallVec<[(usize, MutexGuard<'s, Table>); 4]>;

impl Memory {
    /// A store of at most about `counters_max` counters.
    #[must_use]
    pub fn new(counters_max: usize, meter: MemoryMeter) -> Self {
        let capacity = counters_max.div_ceil(SHARDS);
        let shards = (0..SHARDS)
            .map(|_| Mutex::new(Table::new(capacity)))
            .collect();
        Self {
            shards,
            fingerprints: Fingerprints::new(),
            sweep_next: AtomicUsize::new(0),
            meter,
        }
    }

    /// How many counters there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets idle counters of the next shard. To be called all the time: every counter has been
    /// looked at after 64 calls.
    pub fn sweep(&self, now: Micros) {
        let next = self.sweep_next.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let expired = lock(&self.shards[next]).sweep(now);
        self.meter.swept(expired, self.len());
    }

    /// Decides the request; see [`Store::charge`].
    #[must_use]
    pub fn charge_now(&self, checks: &[Check<'_>], now: Micros) -> Charged {
        let keys: SmallVec<[Fingerprint; 4]> = checks
            .iter()
            .map(|check| self.fingerprints.of(check.key.as_bytes()))
            .collect();
        let mut locked = self.lock_all(&keys);

        let mut outcomes = Outcomes::new();
        for (index, check) in checks.iter().enumerate() {
            let state = state_of(&mut locked, keys[index], check, now);
            let state = after_earlier(&checks[..index], &outcomes, check, state, now);
            let outcome = algorithm::check(check.limit, state.as_ref(), now, check.demand);
            outcomes.push(outcome);
        }

        let denied = denies(checks, &outcomes);
        for (index, check) in checks.iter().enumerate() {
            if outcomes[index].admitted && !is_charged(check, &outcomes[index], denied, now) {
                let state = state_of(&mut locked, keys[index], check, now);
                let state = after_earlier(&checks[..index], &outcomes, check, state, now);
                outcomes[index] = uncharged(check.limit, state.as_ref(), now);
            }
        }
        for (index, check) in checks.iter().enumerate() {
            if is_charged(check, &outcomes[index], denied, now) {
                self.commit(&mut locked, keys[index], check, now);
            }
        }
        Charged {
            outcomes,
            denied,
            now,
            evidence: None,
            split: false,
            source: Source::Store,
        }
    }

    fn commit(&self, locked: &mut Locked<'_>, key: Fingerprint, check: &Check<'_>, now: Micros) {
        let (limit, hits) = (check.limit, check.demand.hits);
        let table = shard_of(locked, key);
        let state = match (table.get_mut(key), hits) {
            (_, Hits::Look) | (None, Hits::Refund(_)) => return,
            (Some(state), _) => {
                // It is put back below; a bucket is just a cheap stand-in.
                std::mem::replace(state, State::Bucket(algorithm::Bucket::EMPTY))
            }
            (None, _) => State::new(limit, now),
        };
        let mut state = state;
        state.advance(limit, now);
        algorithm::charge(limit, &mut state, now, hits);

        let look = algorithm::check(limit, &state, now, Demand::patient(Hits::Look));
        let denied_until = (!look.admitted)
            .then(|| Micros(now.0 + look.retry_after.unwrap_or(look.reset_after).0));
        if let Some(evicted) = table.put(key, state, limit, now, denied_until) {
            self.meter.evicted(match evicted {
                Evicted::Idle => "idle",
                Evicted::Counting => "counting",
                Evicted::Denied => "denied",
            });
        }
    }

    /// Locks each shard once, in order, so that no two requests wait for each other.
    fn lock_all(&self, keys: &[Fingerprint]) -> Locked<'_> {
        let mut numbers: SmallVec<[usize; 4]> = keys.iter().map(|key| key.shard(SHARDS)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
            .into_iter()
            .map(|number| (number, lock(&self.shards[number])))
            .collect()
    }
}

impl Store for Memory {
    async fn charge(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        _deadline: Micros,
    ) -> Result<Charged, StoreError> {
        Ok(self.charge_now(checks, now))
    }

    async fn peek(
        &self,
        checks: &[Check<'_>],
        now: Micros,
    ) -> Result<Vec<Option<State>>, StoreError> {
        let peek = |check: &Check<'_>| {
            let key = self.fingerprints.of(check.key.as_bytes());
            let mut state = lock(&self.shards[key.shard(SHARDS)]).get(key)?.clone();
            state.advance(check.limit, now);
            Some(state)
        };
        Ok(checks.iter().map(peek).collect())
    }

    async fn reset(&self, keys: &[CounterKey]) -> Result<usize, StoreError> {
        let reset = |key: &&CounterKey| {
            let key = self.fingerprints.of(key.as_bytes());
            lock(&self.shards[key.shard(SHARDS)]).remove(key)
        };
        Ok(keys.iter().filter(reset).count())
    }
}

/// A counter's state, or that of a new one, brought up to `now`.
enum Found<'t> {
    Kept(&'t State),
    New(State),
}

impl AsRef<State> for Found<'_> {
    fn as_ref(&self) -> &State {
        match self {
            Self::Kept(state) => state,
            Self::New(state) => state,
        }
    }
}

/// A log is brought up to date where it is: there may be a lot of it. Of the others nothing is kept
/// unless it is charged, so that a look ahead of time changes nothing.
fn state_of<'t>(
    locked: &'t mut Locked<'_>,
    key: Fingerprint,
    check: &Check<'_>,
    now: Micros,
) -> Found<'t> {
    match shard_of(locked, key).get_mut(key) {
        Some(state @ State::Log(_)) => {
            state.advance(check.limit, now);
            Found::Kept(state)
        }
        Some(state) => {
            let mut advanced = state.clone();
            if advanced.advance(check.limit, now) {
                *state = advanced.clone();
            }
            Found::New(advanced)
        }
        None => Found::New(State::new(check.limit, now)),
    }
}

/// The state as the request's earlier checks of the same counter leave it: a descriptor sent twice
/// counts twice.
fn after_earlier<'t>(
    earlier: &[Check<'_>],
    outcomes: &Outcomes,
    this: &Check<'_>,
    state: Found<'t>,
    now: Micros,
) -> Found<'t> {
    let mut state = state;
    for (check, outcome) in earlier.iter().zip(outcomes) {
        if check.key == this.key && is_charged(check, outcome, false, now) {
            let mut charged = match state {
                Found::Kept(state) => state.clone(),
                Found::New(state) => state,
            };
            algorithm::charge(check.limit, &mut charged, now, check.demand.hits);
            charged.advance(this.limit, now);
            state = Found::New(charged);
        }
    }
    state
}

fn shard_of<'t>(locked: &'t mut Locked<'_>, key: Fingerprint) -> &'t mut Table {
    let number = key.shard(SHARDS);
    let position = locked.iter().position(|(locked, _)| *locked == number);
    let position = position.expect("the shards of all keys are locked");
    &mut locked[position].1
}

/// A panic while a shard was locked has left it consistent: states are replaced as a whole.
fn lock(shard: &Mutex<Table>) -> MutexGuard<'_, Table> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
