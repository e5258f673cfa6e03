//! A layer over a shared store: of keys that are asked for often, hits are taken in batches, and used here.
//!
//! A request that is served here charges nothing, since its hits have been charged already. All else goes
//! to the store as if this layer weren't there: a request with several limits, one for more hits than are
//! left, and all that come before the first batch or while there is none.
//!
//! Each leased key has a keeper, who alone talks to the store about it: takes a batch, takes another when
//! that runs low, and after [`LEASE_TIME`] gives back what is left. So no request waits for a lease, and
//! none that is given up takes one along.
//!
//! A batch may be lost: with this process, or with the store's answer. That is what can be wasted.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::shards::{Shard, Shards, any_index};
use super::{Charged, Check, CounterKey, Role, Store, StoreError};
use crate::algorithm::{Demand, Hits, LEASE_MIN, Lease, Limit, Micros, Outcome, State};
use crate::clock::Clock;
use crate::telemetry::{LeaseMeter, Source};

/// How long a batch lasts, and what it is made for: short enough that what is left of it is soon of use
/// to others, and long enough that a call to the store more or less doesn't matter.
pub const LEASE_TIME: Micros = Micros(100_000);

/// Requests within [`LEASE_TIME`] that make a key hot: from here on two calls for all of them are a
/// bargain.
const HOT: u64 = 20;

/// A batch is at most this part of what remains: eight instances can take all there is, and none is denied
/// for the sake of a few hits that wait somewhere else.
const REMAINING_PART: u64 = 8;

/// Keys that are watched or leased, at most.
const KEYS_MAX: usize = 4_096;

/// When this part of a lease is left, the next batch is ordered: early enough to come before the last hit
/// is used, also if there are fewer requests than there were.
const LOW_PART: u64 = 2;

/// A lease ends no later than that: if it seems so, our clock was set back.
const LIFE_MAX: Micros = Micros(2 * LEASE_TIME.0);

/// How long a keeper waits for the store: there is nobody else who would know what was charged.
const PATIENCE: Micros = Micros(Micros::PER_SECOND);

/// A shorter time says nothing about a rate.
const TIME_MIN: Micros = Micros(1_000);

/// Leases what limits allow to be leased.
#[derive(Debug)]
pub struct Leased<S>(Arc<Leases<S>>);

#[derive(Debug)]
struct Leases<S> {
    store: S,
    clock: Clock,
    keys: Shards<Key>,
    meter: LeaseMeter,
}

/// What is known of a key.
#[derive(Debug)]
enum Key {
    /// It may become hot.
    Watched(Usage),
    /// It has a keeper.
    Leased(Box<Kept>),
}

/// How often a key was asked for lately.
#[derive(Clone, Copy, Debug)]
struct Usage {
    since: Micros,
    requests: u64,
    hits: u64,
}

/// A lease, and what callers are told of it.
#[derive(Debug)]
struct Kept {
    limit: Limit,
    lease: Lease,
    /// What was used since the last order.
    usage: Usage,
    /// What remained when the store was asked last, …
    remaining: u64,
    /// … when all of it is back, by our clock, …
    reset_at: Micros,
    /// … when that was, by the store's clock, …
    seen_at: Micros,
    /// … and when it was asked, by ours: earlier, if anything.
    asked_at: Micros,
    /// By our clock; from then on nothing is used.
    ends_at: Micros,
    /// When so few hits are left, the keeper is woken; none if it has been.
    low: Option<u64>,
    wake: Arc<Notify>,
    /// Whether the keeper is to end it: the limit is another, or the counter was reset.
    is_over: bool,
}

/// Whoever keeps a lease.
struct Keeper {
    key: CounterKey,
    /// What is taken in advance is taken or not, also where denied requests are charged.
    limit: Limit,
    wake: Arc<Notify>,
}

/// What a keeper asks of the store.
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    /// Hits to take.
    take: u64,
    /// Hits to give back …
    give_back: u64,
    /// … by then, by the store's clock.
    until: Micros,
    /// Whether the key is no longer leased.
    is_last: bool,
}

impl<S: Store> Leased<S> {
    /// Leases from `store`.
    pub fn new(store: S, clock: Clock, meter: LeaseMeter) -> Self {
        Self(Arc::new(Leases {
            store,
            clock,
            keys: Shards::new(KEYS_MAX),
            meter,
        }))
    }
}

impl<S: Store> Store for Leased<S> {
    async fn charge(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        deadline: Micros,
    ) -> Result<Charged, StoreError> {
        let leases = &self.0;
        let Some((check, hits)) = leasable(checks) else {
            return leases.store.charge(checks, now, deadline).await;
        };
        if let Some(outcome) = leases.serve(check, hits, now) {
            return Ok(Charged {
                outcomes: smallvec![outcome],
                source: Source::Leased,
                ..Charged::default()
            });
        }
        let charged = leases.store.charge(checks, now, deadline).await?;
        if let Some(outcome) = charged.outcomes.first().filter(|outcome| outcome.admitted)
            && let Some((keeper, order)) = leases.watch(check, hits, outcome, now)
        {
            // Not while this request waits.
            tokio::spawn(leases.clone().keep(keeper, order));
        }
        Ok(charged)
    }

    async fn peek(
        &self,
        checks: &[Check<'_>],
        now: Micros,
    ) -> Result<Vec<Option<State>>, StoreError> {
        self.0.store.peek(checks, now).await
    }

    async fn reset(&self, keys: &[CounterKey]) -> Result<usize, StoreError> {
        for key in keys {
            self.0.forget(key);
        }
        self.0.store.reset(keys).await
    }
}

/// The check of a request that a lease can answer, and its hits.
fn leasable<'a, 'c>(checks: &'a [Check<'c>]) -> Option<(&'a Check<'c>, u64)> {
    match checks {
        [check] if check.limit.lease().is_some() => match check.demand.hits {
            Hits::Charge(hits) => Some((check, hits)),
            Hits::Look | Hits::Refund(_) => None,
        },
        _ => None,
    }
}

impl<S: Store> Leases<S> {
    /// The answer, if enough hits are left.
    fn serve(&self, check: &Check<'_>, hits: u64, now: Micros) -> Option<Outcome> {
        let mut shard = self.keys.lock(&check.key);
        let Some(Key::Leased(kept)) = shard.get_mut(&check.key) else {
            return None;
        };
        if kept.limit != *check.limit {
            kept.end();
            return None;
        }
        let outcome = kept.serve(hits, now)?;
        drop(shard);
        self.meter.served();
        Some(outcome)
    }

    /// Notes that the store had to be asked. If that is often, the key gets a keeper.
    fn watch(
        &self,
        check: &Check<'_>,
        hits: u64,
        outcome: &Outcome,
        now: Micros,
    ) -> Option<(Keeper, Order)> {
        let mut shard = self.keys.lock(&check.key);
        let Some(key) = shard.get_mut(&check.key) else {
            if has_room(&mut shard, self.keys.capacity(), now) {
                let usage = Usage::new(now).and(hits);
                shard.insert(check.key.clone(), Key::Watched(usage));
            }
            return None;
        };
        let Key::Watched(usage) = key else {
            return None;
        };
        // An instant before the first is of a clock that was set back.
        if now < usage.since || usage.time(now) > LEASE_TIME {
            *usage = Usage::new(now);
        }
        *usage = usage.and(hits);
        if usage.requests < HOT {
            return None;
        }
        let mut kept = Kept::new(check.limit, *usage, outcome.remaining);
        let take = kept.order(now);
        if take == 0 {
            *usage = Usage::new(now);
            return None;
        }
        let keeper = Keeper {
            key: check.key.clone(),
            limit: check.limit.clone().charging_denied(false),
            wake: kept.wake.clone(),
        };
        *key = Key::Leased(Box::new(kept));
        let order = Order {
            take,
            ..Order::default()
        };
        Some((keeper, order))
    }

    /// The life of a lease.
    async fn keep(self: Arc<Self>, keeper: Keeper, first: Order) {
        let mut order = first;
        loop {
            self.exchange(&keeper, order).await;
            if order.is_last {
                return;
            }
            let lasts = self.lasts(&keeper.key);
            let woken = timeout(lasts.into(), keeper.wake.notified()).await;
            order = self.next(&keeper.key, woken.is_ok());
        }
    }

    /// Does what is ordered, in one go.
    async fn exchange(&self, keeper: &Keeper, order: Order) {
        let checks = order.checks(keeper);
        if checks.is_empty() {
            return;
        }
        let asked_at = self.clock.now();
        match self.store.charge(&checks, asked_at, PATIENCE).await {
            Ok(charged) => {
                if charged.now > order.until {
                    self.meter.wasted(order.give_back);
                }
                self.took(&keeper.key, order, &charged, asked_at);
            }
            Err(error) => {
                self.meter.wasted(order.give_back);
                if matches!(error, StoreError::Timeout | StoreError::Unreachable(_)) {
                    // It may have been done all the same.
                    self.meter.taken(order.take);
                    self.meter.wasted(order.take);
                }
            }
        }
    }

    /// Adds to the lease what the store agreed to.
    fn took(&self, key: &CounterKey, order: Order, charged: &Charged, asked_at: Micros) {
        let Some(outcome) = charged.outcomes.last().filter(|_| order.take > 0) else {
            return;
        };
        let taken = if outcome.admitted { order.take } else { 0 };
        self.meter.taken(taken);
        let reset_at = Micros(self.clock.now().0 + outcome.reset_after.0);
        let wasted = match self.keys.lock(key).get_mut(key) {
            Some(Key::Leased(kept)) if !kept.is_over => {
                kept.remaining = outcome.remaining;
                kept.reset_at = reset_at;
                kept.took(taken, charged.now, asked_at)
            }
            _ => taken,
        };
        self.meter.wasted(wasted);
    }

    /// How long the keeper has nothing to do, unless it is woken.
    fn lasts(&self, key: &CounterKey) -> Micros {
        match self.keys.lock(key).get(key) {
            Some(Key::Leased(kept)) if kept.lease.left() > 0 => {
                kept.ends_at.since(self.clock.now()).min(LEASE_TIME)
            }
            // The store refused, or didn't answer: to ask again at once would be no use.
            _ => LEASE_TIME,
        }
    }

    /// What to ask next: more, if little is left; what is still needed, if time is over; or nothing.
    fn next(&self, key: &CounterKey, is_low: bool) -> Order {
        let now = self.clock.now();
        let mut order = Order::default();
        let mut shard = self.keys.lock(key);
        let Some(Key::Leased(kept)) = shard.get_mut(key) else {
            order.is_last = true;
            return order;
        };
        if kept.is_over || !is_low {
            let left = kept.lease.left();
            order.until = Micros(kept.store_time(now).0 + LEASE_TIME.0);
            order.give_back = kept.lease.end(order.until);
            self.meter.wasted(left - order.give_back);
        }
        let is_hot = is_low || kept.usage.requests >= HOT;
        if is_hot && !kept.is_over {
            order.take = kept.order(now);
        } else {
            shard.swap_remove(key);
            order.is_last = true;
        }
        order
    }

    /// Drops the lease of a counter that is reset: there is nothing to give back to.
    fn forget(&self, key: &CounterKey) {
        if let Some(Key::Leased(kept)) = self.keys.lock(key).get_mut(key) {
            self.meter.wasted(kept.lease.left());
            kept.lease = Lease::new(kept.limit.clone());
            kept.end();
        }
    }
}

/// Whether there is room for one more key, be it instead of another. One that has a keeper stays.
fn has_room(shard: &mut Shard<Key>, capacity: usize, now: Micros) -> bool {
    if shard.len() < capacity {
        return true;
    }
    let index = any_index(shard.len(), now);
    let is_leased = matches!(shard.get_index(index), Some((_, Key::Leased(_))));
    if !is_leased {
        shard.swap_remove_index(index);
    }
    !is_leased
}

impl Usage {
    fn new(since: Micros) -> Self {
        Self {
            since,
            requests: 0,
            hits: 0,
        }
    }

    fn and(self, hits: u64) -> Self {
        Self {
            since: self.since,
            requests: self.requests + 1,
            hits: self.hits.saturating_add(hits),
        }
    }

    fn time(self, now: Micros) -> Micros {
        now.since(self.since)
    }

    /// The hits of a [`LEASE_TIME`], if it goes on like this.
    fn demand(self, now: Micros) -> u64 {
        let time = self.time(now).max(TIME_MIN);
        self.hits.saturating_mul(LEASE_TIME.0) / time.0
    }
}

impl Kept {
    /// An empty lease.
    fn new(limit: &Limit, usage: Usage, remaining: u64) -> Self {
        Self {
            limit: limit.clone(),
            lease: Lease::new(limit.clone()),
            usage,
            remaining,
            reset_at: Micros::ZERO,
            seen_at: Micros::ZERO,
            asked_at: Micros::ZERO,
            ends_at: Micros::ZERO,
            low: None,
            wake: Arc::default(),
            is_over: false,
        }
    }

    /// Uses hits, or none. `remaining` is what the store had when it was asked last, and what is left here.
    fn serve(&mut self, hits: u64, now: Micros) -> Option<Outcome> {
        let is_current = now < self.ends_at && self.ends_at.since(now) <= LIFE_MAX;
        if self.is_over || !is_current || !self.lease.use_up(hits) {
            return None;
        }
        self.usage = self.usage.and(hits);
        let left = self.lease.left();
        if self.low.is_some_and(|low| left <= low) {
            self.low = None;
            self.wake.notify_one();
        }
        Some(Outcome {
            admitted: true,
            remaining: self.remaining + left,
            reset_after: self.reset_at.since(now),
            retry_after: None,
            wait: Micros::ZERO,
        })
    }

    /// How many hits to take: what will be used, within what the limit allows, as long as more than that
    /// remains; none if that is not worth a call.
    fn order(&mut self, now: Micros) -> u64 {
        let demand = self.usage.demand(now);
        self.usage = Usage::new(now);
        let share = self.limit.lease().map_or(0, |share| share.of(&self.limit));
        let batch = demand
            .min(share)
            .saturating_sub(self.lease.left())
            .min(self.remaining / REMAINING_PART);
        if batch < LEASE_MIN { 0 } else { batch }
    }

    /// The store charged `hits`, which may be none. Returns how many older ones are worth nothing since.
    fn took(&mut self, hits: u64, seen_at: Micros, asked_at: Micros) -> u64 {
        self.seen_at = seen_at;
        self.asked_at = asked_at;
        if hits == 0 {
            return 0;
        }
        let lost = self.lease.take(seen_at, hits);
        let lasts = self.lease.lasts(seen_at).min(LEASE_TIME);
        self.ends_at = Micros(asked_at.0 + lasts.0);
        // By then the hits of earlier batches are used: none is when it is older than two of a lease's times.
        self.low = Some(hits.min(self.lease.left() / LOW_PART));
        lost
    }

    /// What the store's clock shows when ours shows `now`, at the latest.
    fn store_time(&self, now: Micros) -> Micros {
        Micros(self.seen_at.0 + now.since(self.asked_at).0)
    }

    /// Has the keeper end it.
    fn end(&mut self) {
        self.is_over = true;
        self.wake.notify_one();
    }
}

impl Order {
    /// Shadows, so that neither depends on the other.
    fn checks(self, keeper: &Keeper) -> SmallVec<[Check<'_>; 2]> {
        let check = |demand| Check {
            key: keeper.key.clone(),
            limit: &keeper.limit,
            demand,
            role: Role::Shadow,
        };
        let refund = Demand {
            until: self.until,
            ..Demand::patient(Hits::Refund(self.give_back))
        };
        let charge = Demand::patient(Hits::Charge(self.take));
        let mut checks = SmallVec::new();
        if self.give_back > 0 {
            checks.push(check(refund));
        }
        if self.take > 0 {
            checks.push(check(charge));
        }
        checks
    }
}
