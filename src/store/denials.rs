//! A layer over a shared store: what it denied is remembered here, until it could first be wrong.
//!
//! A denied request has charged nothing, and whatever others charge meanwhile only makes the denial last
//! longer. So the counter's state, as the store saw it, answers for the store as long as it denies by
//! itself: a client that hammers costs the store one call for each time that there is something to gain.
//! Only a refund through another instance could make room earlier; one through this instance is seen. Of a
//! limit that is leased, which is often given back, a denial is remembered as long as a lease lasts.
//!
//! A request is answered from here only if every one of its checks is, because what is left of a limit
//! that doesn't deny is known to the store alone.

use super::lease::LEASE_TIME;
use super::shards::{Shards, any_index};
use super::{Charged, Check, CounterKey, Outcomes, Store, StoreError, denies};
use crate::algorithm::{self, Algorithm, Hits, Limit, Micros, Outcome, State};
use crate::telemetry::{DenialMeter, Source};

/// Remembers denials of the store below.
#[derive(Debug)]
pub struct Denials<S> {
    store: S,
    known: Shards<Denial>,
    meter: DenialMeter,
}

#[derive(Clone, Debug)]
struct Denial {
    limit: Limit,
    hits: Hits,
    state: State,
    /// When the store saw that state, by its clock …
    seen_at: Micros,
    /// … and when it was asked, by ours: earlier, if anything.
    asked_at: Micros,
}

impl<S: Store> Denials<S> {
    /// Remembers at most about `denials_max` denials of `store`.
    pub fn new(store: S, denials_max: usize, meter: DenialMeter) -> Self {
        Self {
            store,
            known: Shards::new(denials_max),
            meter,
        }
    }

    /// The answer, if every check is remembered to be denied.
    fn remembered(&self, checks: &[Check<'_>], now: Micros) -> Option<Charged> {
        let outcomes: Option<Outcomes> =
            checks.iter().map(|check| self.denial(check, now)).collect();
        let outcomes = outcomes?;
        if !denies(checks, &outcomes) {
            return None;
        }
        self.meter.answered();
        Some(Charged {
            outcomes,
            denied: true,
            now: Micros::ZERO,
            evidence: None,
            split: false,
            source: Source::Remembered,
        })
    }

    fn denial(&self, check: &Check<'_>, now: Micros) -> Option<Outcome> {
        if !is_repeatable(check) {
            return None;
        }
        let mut shard = self.known.lock(&check.key);
        let denial = shard.get(&check.key)?;
        if !denial.speaks_of(check) {
            return None;
        }
        match denial.outcome(check, now) {
            Some(outcome) if !outcome.admitted => Some(outcome),
            _ => {
                shard.swap_remove(&check.key);
                None
            }
        }
    }

    /// What the store saw when it denied is why it would again.
    fn remember(&self, checks: &[Check<'_>], charged: &Charged, states: &[State], now: Micros) {
        for ((check, outcome), state) in checks.iter().zip(&charged.outcomes).zip(states) {
            let is_only_later = outcome.retry_after.is_some();
            if !is_only_later || !is_repeatable(check) || has_twin(checks, check) {
                continue;
            }
            let denial = Denial {
                limit: check.limit.clone(),
                hits: check.demand.hits,
                state: state.clone(),
                seen_at: charged.now,
                asked_at: now,
            };
            let mut shard = self.known.lock(&check.key);
            if shard.len() >= self.known.capacity() && !shard.contains_key(&check.key) {
                // Whoever is forgotten costs one call, and is remembered again.
                let index = any_index(shard.len(), charged.now);
                shard.swap_remove_index(index);
            }
            shard.insert(check.key.clone(), denial);
        }
    }

    /// A refund may have made room, and so may another limit of the same counter: a smaller one pulls
    /// back what is too far ahead for it. What a request gave back may have denied others meanwhile.
    fn forget_changed(&self, checks: &[Check<'_>], is_given_back: bool) {
        for check in checks {
            let is_refund = is_given_back || matches!(check.demand.hits, Hits::Refund(_));
            let mut shard = self.known.lock(&check.key);
            let is_changed = |denial: &Denial| is_refund || denial.limit != *check.limit;
            if shard.get(&check.key).is_some_and(is_changed) {
                shard.swap_remove(&check.key);
            }
        }
    }
}

impl<S: Store> Store for Denials<S> {
    async fn charge(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        deadline: Micros,
    ) -> Result<Charged, StoreError> {
        if self.known.capacity() == 0 {
            return self.store.charge(checks, now, deadline).await;
        }
        if let Some(charged) = self.remembered(checks, now) {
            return Ok(charged);
        }
        let charged = self.store.charge(checks, now, deadline).await;
        let is_given_back = match &charged {
            Ok(charged) => charged.split && charged.denied,
            Err(_) => false,
        };
        self.forget_changed(checks, is_given_back);
        let mut charged = charged?;
        if let Some(states) = charged.evidence.take() {
            self.remember(checks, &charged, &states, now);
        }
        Ok(charged)
    }

    async fn peek(
        &self,
        checks: &[Check<'_>],
        now: Micros,
    ) -> Result<Vec<Option<State>>, StoreError> {
        self.store.peek(checks, now).await
    }

    async fn reset(&self, keys: &[CounterKey]) -> Result<usize, StoreError> {
        let reset = self.store.reset(keys).await;
        for key in keys {
            self.known.lock(key).swap_remove(key);
        }
        reset
    }
}

impl Denial {
    /// Whether the state is all that the check's answer depends on. What is known of a log is what
    /// decided about this very number of hits.
    fn speaks_of(&self, check: &Check<'_>) -> bool {
        let is_log = self.limit.policy().algorithm() == Algorithm::SlidingWindowLog;
        self.limit == *check.limit && (!is_log || self.hits == check.demand.hits)
    }

    /// What the store would say, if nobody else has charged anything; none if our clock was set back, or if
    /// others may have given back what they had leased.
    fn outcome(&self, check: &Check<'_>, now: Micros) -> Option<Outcome> {
        let passed = now.0.checked_sub(self.asked_at.0)?;
        if self.limit.lease().is_some() && passed > LEASE_TIME.0 {
            return None;
        }
        let store_now = Micros(self.seen_at.0.saturating_add(passed));
        let mut state = self.state.clone();
        state.advance(check.limit, store_now);
        Some(algorithm::check(
            check.limit,
            &state,
            store_now,
            check.demand,
        ))
    }
}

/// Whether a denial of this leaves everything as it was.
fn is_repeatable(check: &Check<'_>) -> bool {
    !check.limit.charge_denied() && !matches!(check.demand.hits, Hits::Refund(_))
}

/// What a counter's second check was told includes what the first would have charged.
fn has_twin(checks: &[Check<'_>], check: &Check<'_>) -> bool {
    checks.iter().filter(|other| other.key == check.key).count() > 1
}
