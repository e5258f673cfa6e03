//! Hits taken in advance: what is used was charged before, and what is given back is nobody else's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use comporta::algorithm::{
    self, Demand, Hits, Lease, Limit, Micros, Outcome, Policy, Share, State, Unit,
};
use comporta::clock::{Clock, ManualClock};
use comporta::store::denials::Denials;
use comporta::store::lease::{LEASE_TIME, Leased};
use comporta::store::memory::Memory;
use comporta::store::redis::{Access, Redis};
use comporta::store::{Charged, Check, CounterKey, Role, Store, StoreError};
use comporta::telemetry::{Source, Telemetry};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use tokio::task::JoinSet;

use crate::redis::{PATIENT, check, day, options, telemetry, url};
use crate::support::redis;
use crate::support::redis::cluster::Cluster;
use crate::support::server::{START, request, start_with};
use crate::support::{http, wait_until};

const MILLI: u64 = 1_000;

fn limit(policy: Policy, requests: u32, unit: Unit, percent: u8) -> Limit {
    let limit = Limit::new(policy, requests, unit, 1).unwrap();
    limit.leased(Share::new(percent).unwrap())
}

// The arithmetic.

/// One thing that happens to leases of one counter.
#[derive(Clone, Copy, Debug)]
enum Move {
    Forward(u64),
    /// Past the leases, as a request that the store is asked about.
    Charge(u64),
    Take(usize, u64),
    Use(usize, u64),
    /// With so much time to give back what is left.
    End(usize, u64),
    /// One of the refunds that are on their way arrives.
    Arrive(Index),
}

const LEASES: usize = 3;

fn a_move() -> impl Strategy<Value = Move> {
    let hits = || 1_u64..30;
    let span = || prop_oneof![Just(0), 1_u64..3_000_000];
    prop_oneof![
        3 => span().prop_map(Move::Forward),
        2 => hits().prop_map(Move::Charge),
        3 => (0..LEASES, hits()).prop_map(|(lease, hits)| Move::Take(lease, hits)),
        4 => (0..LEASES, hits()).prop_map(|(lease, hits)| Move::Use(lease, hits)),
        2 => (0..LEASES, span()).prop_map(|(lease, time)| Move::End(lease, time)),
        2 => any::<Index>().prop_map(Move::Arrive),
    ]
}

/// Hits charged at one instant, and those of them that were used.
#[derive(Clone, Copy, Debug)]
struct Batch {
    at: Micros,
    hits: u64,
    used: u64,
}

/// The numbers of the batches that a lease still has, oldest first.
type Open = VecDeque<usize>;

fn unused(batches: &[Batch], open: &Open) -> u64 {
    open.iter()
        .map(|&batch| batches[batch].hits - batches[batch].used)
        .sum()
}

fn use_oldest(batches: &mut [Batch], open: &Open, hits: u64) {
    let mut left = hits;
    for &batch in open {
        let batch = &mut batches[batch];
        let some = left.min(batch.hits - batch.used);
        batch.used += some;
        left -= some;
    }
    assert_eq!(left, 0);
}

/// Takes `hits` from the counter, if it has them.
fn charged(limit: &Limit, counter: &mut State, now: Micros, hits: u64) -> bool {
    counter.advance(limit, now);
    let hits = Hits::Charge(hits);
    let admitted = algorithm::check(limit, counter, now, Demand::patient(hits)).admitted;
    if admitted {
        algorithm::charge(limit, counter, now, hits);
    }
    admitted
}

/// Returns what was charged, and how much of it was used.
fn play(limit: &Limit, moves: &[Move]) -> Result<Vec<Batch>, TestCaseError> {
    let mut now = START;
    let mut counter = State::new(limit, now);
    let mut leases: Vec<_> = (0..LEASES).map(|_| Lease::new(limit.clone())).collect();
    let mut ends_at = [Micros::ZERO; LEASES];
    let mut open: Vec<Open> = vec![Open::new(); LEASES];
    let mut batches: Vec<Batch> = Vec::new();
    let mut refunds: Vec<Demand> = Vec::new();
    for &a_move in moves {
        match a_move {
            Move::Forward(span) => now.0 += span,
            Move::Charge(hits) => {
                if charged(limit, &mut counter, now, hits) {
                    let (at, used) = (now, hits);
                    batches.push(Batch { at, hits, used });
                }
            }
            Move::Take(lease, hits) => {
                if charged(limit, &mut counter, now, hits) {
                    let before = unused(&batches, &open[lease]);
                    let lost = leases[lease].take(now, hits);
                    if lost > 0 {
                        prop_assert_eq!(lost, before);
                        open[lease].clear();
                    }
                    let (at, used) = (now, 0);
                    batches.push(Batch { at, hits, used });
                    open[lease].push_back(batches.len() - 1);
                    let lasts = leases[lease].lasts(now);
                    ends_at[lease] = Micros(now.0.saturating_add(lasts.0));
                }
            }
            Move::Use(lease, hits) => {
                if now < ends_at[lease] && leases[lease].use_up(hits) {
                    use_oldest(&mut batches, &open[lease], hits);
                }
            }
            Move::End(lease, time) => {
                let until = Micros(now.0 + time);
                let left = leases[lease].left();
                let back = leases[lease].end(until);
                prop_assert!(back <= left);
                open[lease].clear();
                refunds.push(Demand {
                    until,
                    ..Demand::patient(Hits::Refund(back))
                });
            }
            Move::Arrive(_) if refunds.is_empty() => {}
            Move::Arrive(which) => {
                let refund = refunds.swap_remove(which.index(refunds.len()));
                counter.advance(limit, now);
                if !refund.is_late(now) {
                    algorithm::charge(limit, &mut counter, now, refund.hits);
                }
            }
        }
        for (lease, open) in leases.iter().zip(&open) {
            prop_assert_eq!(lease.left(), unused(&batches, open));
        }
    }
    Ok(batches)
}

/// Whatever is taken, used and given back: one counter, charged with nothing but what was used, at the
/// instants at which it was charged, would have admitted all of it.
#[test]
fn what_is_used_is_what_one_counter_would_have_admitted() {
    let limits = [
        limit(Policy::FixedWindow, 50, Unit::Second, 50),
        limit(Policy::TokenBucket { burst: 40 }, 20, Unit::Second, 50),
        limit(Policy::TokenBucket { burst: 60 }, 7, Unit::Second, 50),
        limit(Policy::TokenBucket { burst: 30 }, 600, Unit::Minute, 50),
    ];
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let histories = (
        proptest::sample::select(limits.to_vec()),
        prop::collection::vec(a_move(), 1..60),
    );
    let ran = runner.run(&histories, |(limit, moves)| {
        let mut counter = State::new(&limit, START);
        for batch in play(&limit, &moves)? {
            let fits = batch.used == 0 || charged(&limit, &mut counter, batch.at, batch.used);
            prop_assert!(fits, "{batch:?}");
        }
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

// The layer.

/// A store at the other end of a slow line, with a clock of its own.
#[derive(Debug)]
struct Remote {
    memory: Memory,
    clock: ManualClock,
    fault: AtomicU8,
    /// How long what keepers ask is on its way there, and back, in milliseconds.
    delays: [AtomicU64; 2],
}

const WELL: u8 = 0;
/// Nothing is charged.
const AWAY: u8 = 1;
/// Charged, but the answer is lost.
const MUTE: u8 = 2;

impl Remote {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: Memory::new(1_000, Telemetry::new().memory("store")),
            clock: ManualClock::new(START),
            fault: AtomicU8::new(WELL),
            delays: Default::default(),
        })
    }

    fn answer(&self, checks: &[Check<'_>]) -> Result<Charged, StoreError> {
        let fault = self.fault.load(Ordering::Relaxed);
        if fault == AWAY {
            return Err(StoreError::Unreachable("as scripted".to_owned()));
        }
        let charged = self.memory.charge_now(checks, self.clock.now());
        if fault == MUTE {
            return Err(StoreError::Timeout);
        }
        Ok(charged)
    }

    async fn wait(&self, way: usize) {
        let delay = Duration::from_millis(self.delays[way].load(Ordering::Relaxed));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

/// What is known of the store at one instance.
#[derive(Debug)]
struct Line(Arc<Remote>);

impl Store for Line {
    async fn charge(
        &self,
        checks: &[Check<'_>],
        _now: Micros,
        deadline: Micros,
    ) -> Result<Charged, StoreError> {
        if checks.iter().all(|check| check.role == Role::Hard) {
            return self.0.answer(checks);
        }
        // Whatever has been sent arrives, also if nobody waits for it any more.
        let remote = self.0.clone();
        let checks: Vec<_> = checks
            .iter()
            .map(|check| {
                (
                    check.key.clone(),
                    check.limit.clone(),
                    check.demand,
                    check.role,
                )
            })
            .collect();
        let asking = tokio::spawn(async move {
            remote.wait(0).await;
            let checks: Vec<_> = checks
                .iter()
                .map(|(key, limit, demand, role)| Check {
                    key: key.clone(),
                    limit,
                    demand: *demand,
                    role: *role,
                })
                .collect();
            let charged = remote.answer(&checks);
            remote.wait(1).await;
            charged
        });
        match tokio::time::timeout(deadline.into(), asking).await {
            Ok(charged) => charged.unwrap(),
            Err(_elapsed) => Err(StoreError::Timeout),
        }
    }

    async fn peek(
        &self,
        checks: &[Check<'_>],
        _now: Micros,
    ) -> Result<Vec<Option<State>>, StoreError> {
        self.0.memory.peek(checks, self.0.clock.now()).await
    }

    async fn reset(&self, keys: &[CounterKey]) -> Result<usize, StoreError> {
        self.0.memory.reset(keys).await
    }
}

/// An instance, whose clock is not the store's.
struct Instance {
    store: Leased<Denials<Line>>,
    clock: ManualClock,
    telemetry: Arc<Telemetry>,
}

impl Instance {
    fn new(remote: &Arc<Remote>, ahead: i64) -> Self {
        let telemetry = telemetry();
        let clock = ManualClock::new(Micros(START.0.saturating_add_signed(ahead)));
        let denials = Denials::new(Line(remote.clone()), 1_000, telemetry.denials());
        let store = Leased::new(denials, Clock::Manual(clock.clone()), telemetry.leases());
        Self {
            store,
            clock,
            telemetry,
        }
    }

    async fn ask(&self, limit: &Limit) -> Result<Charged, StoreError> {
        let check = check("x", limit);
        self.store.charge(&[check], self.clock.now(), PATIENT).await
    }

    /// Asks so often that the key is leased, and waits until it is; says how many passed.
    async fn heat(&self, limit: &Limit) -> u64 {
        let mut passed = 0;
        for _ in 0..100 {
            let charged = self.ask(limit).await.unwrap();
            passed += u64::from(!charged.denied);
            if charged.source == Source::Leased {
                return passed;
            }
            settle().await;
        }
        panic!("the key is not leased");
    }

    fn metric(&self, name: &str) -> u64 {
        metric(&self.telemetry.render(), name)
    }
}

fn metric(metrics: &str, name: &str) -> u64 {
    let mut values = metrics.lines().filter_map(|line| line.strip_prefix(name));
    values.next().unwrap().trim().parse().unwrap()
}

/// Lets all tasks do what they can without time passing.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Lets time pass for everybody, a few milliseconds at a time.
async fn pass(remote: &Remote, instances: &[Instance], micros: u64) {
    let mut left = micros;
    while left > 0 {
        let step = left.min(5 * MILLI);
        left -= step;
        remote.clock.advance(Micros(step));
        for instance in instances {
            instance.clock.advance(Micros(step));
        }
        tokio::time::advance(Duration::from_micros(step)).await;
        settle().await;
    }
}

/// What happens to instances of one store.
#[derive(Clone, Copy, Debug)]
enum Event {
    Pass(u64),
    /// So many requests at once.
    Burst(usize, u64),
    /// To a window's end, but for so much.
    Edge(u64),
    Fault(u8),
    Delays(u64, u64),
}

const INSTANCES: usize = 3;

fn an_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1_u64..120 * MILLI).prop_map(Event::Pass),
        8 => (0..INSTANCES, 1_u64..80).prop_map(|(instance, count)| Event::Burst(instance, count)),
        1 => (0_u64..30 * MILLI).prop_map(Event::Edge),
        1 => (0_u8..3).prop_map(Event::Fault),
        1 => (0_u64..300, 0_u64..300).prop_map(|(there, back)| Event::Delays(there, back)),
    ]
}

/// The instants at which requests passed, by the store's clock.
async fn run(limit: &Limit, events: &[Event], ahead: [i64; INSTANCES]) -> Vec<u64> {
    let remote = Remote::new();
    let instances = ahead.map(|ahead| Instance::new(&remote, ahead));
    let mut passed = Vec::new();
    for &event in events {
        match event {
            Event::Pass(micros) => pass(&remote, &instances, micros).await,
            Event::Burst(instance, count) => {
                for _ in 0..count {
                    if let Ok(charged) = instances[instance].ask(limit).await
                        && !charged.denied
                    {
                        passed.push(remote.clock.now().0);
                    }
                }
                settle().await;
            }
            Event::Edge(before) => {
                let window = limit.window().0;
                let left = window - remote.clock.now().0 % window;
                pass(&remote, &instances, left.saturating_sub(before)).await;
            }
            Event::Fault(fault) => remote.fault.store(fault, Ordering::Relaxed),
            Event::Delays(there, back) => {
                remote.delays[0].store(there, Ordering::Relaxed);
                remote.delays[1].store(back, Ordering::Relaxed);
            }
        }
    }
    passed
}

/// With slow lines, lost answers and clocks that are hours apart: no window admits more than its limit, and
/// no span more than the burst and what flowed in during it and two lease's times before it.
#[test]
fn instances_never_admit_more_than_the_limit() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        max_shrink_iters: 100,
        ..ProptestConfig::default()
    });
    let limits = vec![
        limit(Policy::FixedWindow, 400, Unit::Second, 50),
        limit(Policy::FixedWindow, 3_000, Unit::Minute, 10),
        limit(Policy::TokenBucket { burst: 200 }, 300, Unit::Second, 50),
        limit(Policy::TokenBucket { burst: 900 }, 70, Unit::Second, 20),
    ];
    let ahead = prop_oneof![Just(0), -9_000_000_000_i64..9_000_000_000];
    let histories = (
        proptest::sample::select(limits),
        prop::collection::vec(an_event(), 1..60),
        [ahead.clone(), ahead.clone(), ahead],
    );
    let ran = runner.run(&histories, |(limit, events, ahead)| {
        let passed = runtime.block_on(run(&limit, &events, ahead));
        let mut counter = State::new(&limit, START);
        let allowed = with_lease_time(&limit);
        for (index, at) in passed.into_iter().enumerate() {
            let fits = charged(&allowed, &mut counter, Micros(at), 1);
            prop_assert!(fits, "request {index}, at {at}");
        }
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

/// A limit that admits what instances may: what was charged to a bucket is used within two lease's times.
fn with_lease_time(limit: &Limit) -> Limit {
    let policy = match limit.policy() {
        Policy::TokenBucket { burst } => {
            let later = 2 * LEASE_TIME.0 * u64::from(limit.requests()) / limit.window().0;
            let burst = burst + u32::try_from(later).unwrap();
            Policy::TokenBucket { burst }
        }
        policy => policy,
    };
    Limit::new(policy, limit.requests(), limit.unit(), limit.multiplier()).unwrap()
}

fn minute() -> Limit {
    limit(Policy::FixedWindow, 100_000, Unit::Minute, 5)
}

/// The hits that a counter has, if its limit is a fixed window.
fn count(state: Option<&State>) -> u64 {
    match state {
        Some(State::Window(window)) => window.count,
        other => panic!("{other:?}"),
    }
}

async fn counted(instance: &Instance, limit: &Limit) -> u64 {
    let peek = [check("x", limit)];
    let states = instance.store.peek(&peek, START).await.unwrap();
    count(states[0].as_ref())
}

#[tokio::test(start_paused = true)]
async fn what_is_left_is_given_back_once_the_key_is_cool() {
    let (remote, limit) = (Remote::new(), minute());
    let instances = [Instance::new(&remote, 0)];
    let [instance] = &instances;
    let passed = instance.heat(&limit).await;
    assert!(counted(instance, &limit).await > passed);
    pass(&remote, &instances, 2 * LEASE_TIME.0).await;
    assert_eq!(counted(instance, &limit).await, passed);
    assert_eq!(instance.metric("comporta_lease_wasted_hits_total"), 0);
    assert!(instance.metric("comporta_leased_hits_total") >= 10);
}

#[tokio::test(start_paused = true)]
async fn a_lease_outlives_its_store_but_not_its_time() {
    let (remote, limit) = (Remote::new(), minute());
    let instances = [Instance::new(&remote, 0)];
    let [instance] = &instances;
    instance.heat(&limit).await;
    remote.fault.store(AWAY, Ordering::Relaxed);
    assert_eq!(instance.ask(&limit).await.unwrap().source, Source::Leased);
    let left = instance.metric("comporta_leased_hits_total")
        - instance.metric("comporta_lease_served_total");
    pass(&remote, &instances, LEASE_TIME.0).await;
    assert!(instance.ask(&limit).await.is_err());
    assert_eq!(instance.metric("comporta_lease_wasted_hits_total"), left);
    // And when it is back, so are leases.
    remote.fault.store(WELL, Ordering::Relaxed);
    pass(&remote, &instances, LEASE_TIME.0).await;
    instance.heat(&limit).await;
}

/// By the store's clock, whatever the instance's shows.
#[tokio::test(start_paused = true)]
async fn a_window_takes_its_leases_along() {
    let limit = limit(Policy::FixedWindow, 10_000, Unit::Second, 5);
    let remote = Remote::new();
    let instances = [Instance::new(&remote, 777_000)];
    let [instance] = &instances;
    pass(&remote, &instances, 960 * MILLI).await;
    instance.heat(&limit).await;
    pass(&remote, &instances, 40 * MILLI - 1).await;
    assert_eq!(instance.ask(&limit).await.unwrap().source, Source::Leased);
    pass(&remote, &instances, 1).await;
    assert_eq!(instance.ask(&limit).await.unwrap().source, Source::Store);
    pass(&remote, &instances, 2 * LEASE_TIME.0).await;
    assert_eq!(counted(instance, &limit).await, 1);

    // An answer that was long on its way ends no later.
    pass(&remote, &instances, 710 * MILLI).await;
    remote.delays[1].store(30, Ordering::Relaxed);
    for _ in 0..30 {
        instance.ask(&limit).await.unwrap();
    }
    pass(&remote, &instances, 80 * MILLI).await;
    assert_eq!(instance.ask(&limit).await.unwrap().source, Source::Leased);
    pass(&remote, &instances, 10 * MILLI).await;
    assert_eq!(remote.clock.now().0 % limit.window().0, 0);
    assert_eq!(instance.ask(&limit).await.unwrap().source, Source::Store);
}

/// The answer is that of the store, as if it had been asked, as long as nobody else is counted.
#[tokio::test(start_paused = true)]
async fn what_callers_are_told_is_what_the_store_would_say() {
    let (remote, limit) = (Remote::new(), minute());
    let instances = [Instance::new(&remote, 0)];
    let [instance] = &instances;
    let mut last = 100_000;
    let mut leased = 0;
    for _ in 0..300 {
        let charged = instance.ask(&limit).await.unwrap();
        let Outcome {
            remaining,
            reset_after,
            ..
        } = charged.outcomes[0];
        let left = 60_000 * MILLI - (remote.clock.now().0 - START.0);
        assert_eq!(reset_after, Micros(left));
        // What is leased is not there for whoever has to ask the store.
        if charged.source == Source::Leased {
            assert_eq!(remaining, last - 1);
            leased += 1;
        }
        last = remaining;
        pass(&remote, &instances, 300).await;
    }
    assert!(leased > 200, "{leased}");
}

/// Another limit of the same counter, and a reset, end a lease.
#[tokio::test(start_paused = true)]
async fn a_lease_goes_with_its_limit_and_with_its_count() {
    let (remote, limit) = (Remote::new(), minute());
    let instances = [Instance::new(&remote, 0)];
    let [instance] = &instances;
    let passed = instance.heat(&limit).await;
    let lower = Limit::new(Policy::FixedWindow, 50, Unit::Minute, 1).unwrap();
    assert_eq!(instance.ask(&lower).await.unwrap().source, Source::Store);
    let lower = lower.leased(Share::new(50).unwrap());
    assert!(instance.ask(&lower).await.unwrap().denied);
    settle().await;
    assert_eq!(counted(instance, &limit).await, passed);

    instance.heat(&limit).await;
    let keys = [check("x", &limit).key];
    assert_eq!(instance.store.reset(&keys).await, Ok(1));
    assert_eq!(instance.ask(&limit).await.unwrap().source, Source::Store);
    pass(&remote, &instances, 2 * LEASE_TIME.0).await;
    assert_eq!(counted(instance, &limit).await, 1);
}

/// What needs more than the one check is the store's to decide; near the limit, so is all.
#[tokio::test(start_paused = true)]
async fn only_what_is_hot_and_far_from_its_limit_is_leased() {
    let limit = limit(Policy::TokenBucket { burst: 400 }, 400, Unit::Day, 50);
    let remote = Remote::new();
    let instances = [Instance::new(&remote, 0)];
    let [instance] = &instances;
    for _ in 0..40 {
        instance.ask(&limit).await.unwrap();
        pass(&remote, &instances, 10 * MILLI).await;
    }
    assert_eq!(instance.metric("comporta_leased_hits_total"), 0);
    instance.heat(&limit).await;
    let two = [check("x", &limit), check("y", &limit)];
    let charged = instance.store.charge(&two, instance.clock.now(), PATIENT);
    assert_eq!(charged.await.unwrap().source, Source::Store);
    let mut passed = 0;
    let mut last = Source::Leased;
    loop {
        let charged = instance.ask(&limit).await.unwrap();
        if charged.denied {
            break;
        }
        passed += 1;
        last = charged.source;
        settle().await;
    }
    assert_eq!(last, Source::Store);
    assert!(passed > 300, "{passed}");
    assert_eq!(instance.metric("comporta_lease_wasted_hits_total"), 0);
}

// Over Redis.

/// Four instances of one store.
type Fleet = [Arc<Leased<Denials<Redis>>>; 4];

fn fleet(url_text: &str) -> (Fleet, Arc<Telemetry>) {
    // Time stands still, so that a bucket doesn't refill.
    let clock = Clock::Manual(ManualClock::new(START));
    let telemetry = telemetry();
    let instance = |_| {
        let redis = Redis::new(
            url(url_text),
            Access::default(),
            &options(),
            clock.clone(),
            telemetry.clone(),
        );
        let denials = Denials::new(redis, 1_000, telemetry.denials());
        Arc::new(Leased::new(denials, clock.clone(), telemetry.leases()))
    };
    ([0; 4].map(instance), telemetry)
}

/// Asks from all instances with 64 callers each; says how many passed, and how many had no answer.
async fn race(fleet: &Fleet, value: &'static str, limit: &Limit) -> (u64, u64) {
    let mut callers = JoinSet::new();
    for instance in fleet {
        for _ in 0..64 {
            let (instance, limit) = (instance.clone(), limit.clone());
            callers.spawn(async move {
                let (mut passed, mut failed) = (0, 0);
                for _ in 0..40 {
                    let asked = [check(value, &limit)];
                    match instance.charge(&asked, START, PATIENT).await {
                        Ok(charged) => passed += u64::from(!charged.denied),
                        Err(_) => failed += 1,
                    }
                }
                (passed, failed)
            });
        }
    }
    let results = callers.join_all().await;
    let passed = results.iter().map(|&(passed, _)| passed).sum();
    (passed, results.iter().map(|&(_, failed)| failed).sum())
}

const LIMIT: u64 = 6_000;

fn policies() -> [(&'static str, Policy); 2] {
    let requests = u32::try_from(LIMIT).unwrap();
    [
        ("fixed", Policy::FixedWindow),
        ("token", Policy::TokenBucket { burst: requests }),
    ]
}

fn leased_day(policy: Policy) -> Limit {
    day(policy, 6_000).leased(Share::new(5).unwrap())
}

/// What remains of the limit in the eyes of Redis.
async fn remaining(fleet: &Fleet, value: &str, limit: &Limit) -> u64 {
    let states = fleet[0].peek(&[check(value, limit)], START).await.unwrap();
    let state = states[0].as_ref().unwrap();
    algorithm::check(limit, state, START, Demand::patient(Hits::Look)).remaining
}

/// At most what is leased is missing while it is; then nothing is.
async fn instances_share(url_text: &str) {
    for (name, policy) in policies() {
        let (fleet, telemetry) = fleet(url_text);
        let limit = leased_day(policy);
        let batch = limit.lease().unwrap().of(&limit);
        let (passed, failed) = race(&fleet, name, &limit).await;
        assert_eq!(failed, 0, "{name}");
        assert!(passed <= LIMIT, "{name}: {passed}");
        assert!(passed >= LIMIT - 4 * batch, "{name}: {passed}");
        let metrics = telemetry.render();
        let served = metric(&metrics, "comporta_lease_served_total");
        assert!(served > LIMIT / 2, "{name}: {served}");

        for _ in 0..100 {
            if remaining(&fleet, name, &limit).await == LIMIT - passed {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(remaining(&fleet, name, &limit).await, LIMIT - passed);
        let metrics = telemetry.render();
        assert_eq!(metric(&metrics, "comporta_lease_wasted_hits_total"), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn instances_admit_the_limit_between_them() {
    instances_share(&redis::Redis::start().url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_a_cluster_too() {
    let cluster = Cluster::start(3);
    instances_share(&format!("redis-cluster://{}", cluster.seeds().join(","))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn never_more_than_the_limit_passes_while_scripts_and_connections_vanish() {
    let server = Arc::new(redis::Redis::start());
    for (name, policy) in policies() {
        let (fleet, _) = fleet(&server.url());
        let limit = leased_day(policy);
        let vandal = {
            let server = server.clone();
            std::thread::spawn(move || {
                for _ in 0..30 {
                    server.command(&["SCRIPT", "FLUSH"]).expect_ok();
                    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        };
        let mut passed = 0;
        for _ in 0..3 {
            passed += race(&fleet, name, &limit).await.0;
        }
        vandal.join().unwrap();
        assert!(passed <= LIMIT, "{name}: {passed}");
    }
}

const RULES: &str = "
domain: d
failure_mode: error
descriptors:
  - key: k
    rate_limit: {unit: day, requests_per_unit: 1000000, lease: {max_share: 5%}}
";

/// Through two servers: metrics tell who answered, and Redis counts what passed.
#[tokio::test(flavor = "multi_thread")]
async fn servers_lease_what_their_rules_allow() {
    let redis = redis::Redis::start();
    let redis_url = redis.url();
    let flags = ["--store", &redis_url, "--store-timeout", "5s"];
    let servers = [start_with(RULES, &flags), start_with(RULES, &flags)];
    for server in &servers {
        let client = server.client().await;
        let mut callers = JoinSet::new();
        for _ in 0..32 {
            let mut client = client.clone();
            callers.spawn(async move {
                for _ in 0..50 {
                    let answer = client.ask(request(&[&[("k", "x")]])).await.unwrap();
                    assert_eq!(answer.overall_code, 1);
                }
            });
        }
        callers.join_all().await;
        let (_, metrics) = http::get(server.ports.http, "/metrics");
        let leased = r#"comporta_decisions_total{domain="d",rule="k",code="ok",source="leased"}"#;
        assert!(metric(&metrics, leased) > 800, "{metrics}");
    }
    let is_counted = || {
        let (_, counters) = http::get(servers[0].ports.debug, "/counters?domain=d&k=x");
        counters.contains("\"count\": 3200") || counters.contains("\"count\":3200")
    };
    wait_until("what is left is given back", is_counted);
}
