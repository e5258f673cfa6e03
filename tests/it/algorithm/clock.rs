//! What is claimed of clocks that step back, and of instants that make no sense.

use Algorithm::{LeakyBucket, SlidingWindowLog, TokenBucket};
use comporta::algorithm::{Bucket, Counter, Log, Window};
use proptest::collection::vec;

use super::claims::{full, part, rate, retry_after, small_limits, span};
use super::windows::hits_until;
use super::*;

/// A clock that goes on, by thousandths of a window or to when the key admits again, and then back
/// by thousandths of what the key remembers.
fn hops(back_max: u64) -> impl Strategy<Value = Vec<(Option<u64>, u64)>> {
    let on = proptest::option::weighted(0.6, 0..1_500_u64);
    let back = prop_oneof![Just(0), 0..=back_max];
    vec((on, back), 1..40)
}

/// What a step back may span for the key's own time to stand still: a window, or the time in which
/// a full bucket drains. Rounded down.
fn memory(limit: &Limit) -> u64 {
    let (window, requests) = (limit.window().0, limit.requests().into());
    match limit.policy() {
        Policy::TokenBucket { burst } => part(window, burst.into(), requests),
        Policy::LeakyBucket { queue } => part(window, queue.into(), requests) + window,
        _ => window,
    }
}

/// For a client that always asks until it is denied, and as long as the clock is no further back
/// than the key remembers.
#[test]
fn a_clock_that_steps_back_grants_no_more_than_one_that_stands_still() {
    let parts = (small_limits(&Algorithm::ALL), hops(1_000));
    check(&parts, |(limit, hops)| {
        let mut now = 10 * limit.window().0;
        let mut latest = now;
        let [mut stepping, mut standing] = [Key::new(limit, now), Key::new(limit, now)];
        let (mut granted, mut allowed) = (stepping.drain(now), standing.drain(now));
        for (on, back) in hops {
            now += match on {
                Some(thousandths) => part(limit.window().0, *thousandths, 1_000),
                None => retry_after(&stepping, now, 1),
            };
            let earliest = latest.max(now) - memory(limit);
            now = earliest.max(now - part(memory(limit), *back, 1_000));
            latest = latest.max(now);
            granted += stepping.drain(now);
            allowed += standing.drain(latest);
            assert!(granted <= allowed, "{granted} of {allowed}");
        }
    });
}

/// Whatever the clock's steps back: by a clock that never steps, a log still holds its limit in any
/// window, and a bucket admits no more than it has room for and what drains meanwhile.
#[test]
fn a_clock_that_steps_back_grants_nothing_extra_in_true_time() {
    let algorithms = &[SlidingWindowLog, TokenBucket, LeakyBucket];
    let parts = (small_limits(algorithms), hops(9_000));
    check(&parts, |(limit, hops)| {
        let (mut now, mut true_now) = (10 * limit.window().0, 0);
        let mut key = Key::new(limit, now);
        let mut admitted = Vec::new();
        for (on, back) in hops {
            let elapsed = match on {
                Some(thousandths) => part(limit.window().0, *thousandths, 1_000),
                None => retry_after(&key, now, 1),
            };
            true_now += elapsed;
            now = (now + elapsed).saturating_sub(part(limit.window().0, *back, 1_000));
            admitted.push((true_now, key.drain(now)));
            assert_within_limit(limit, &admitted);
        }
    });
}

fn assert_within_limit(limit: &Limit, admitted: &[(u64, u64)]) {
    let now = admitted.last().unwrap().0;
    if limit.policy() == Policy::SlidingWindowLog {
        assert!(hits_until(now, limit, admitted) <= limit.requests().into());
        return;
    }
    let mut hits_since = 0;
    for (at, hits) in admitted.iter().rev() {
        hits_since += hits;
        assert!(hits_since <= full(limit) + rate(limit, now - at));
    }
}

/// After a step back of any size, whatever has happened and been charged before, a key admits again
/// once all that it can remember is over.
#[test]
fn a_clock_that_steps_back_never_locks_a_key_out() {
    check(&histories(&Algorithm::ALL), |history| {
        let window = history.limit.window().0;
        let lockout_max = match history.limit.policy() {
            Policy::FixedWindow | Policy::SlidingWindowLog => 2 * window,
            Policy::SlidingWindowCounter => 3 * window,
            Policy::TokenBucket { burst } => span(&history.limit, u64::from(burst) + 1),
            Policy::LeakyBucket { queue } => span(&history.limit, queue.into()) + 2 * window,
        };
        history.walk(|visit| {
            for back in [1, window / 2, window, window + 1, 5 * window, visit.now] {
                let mut key = visit.after.clone();
                let now = visit.now.saturating_sub(back);
                key.ask(now, Demand::patient(Hits::Look));
                assert!(key.admits(now + lockout_max, 1));
            }
        });
    });
}

/// To what the limit allows: the key is as full as honest hits could have made it.
#[test]
fn an_instant_absurdly_far_ahead_is_clamped() {
    let parts = (limits(&Algorithm::ALL), 0..WINDOW_MAX.0);
    check(&parts, |(limit, now)| {
        let (index, far) = (u64::MAX, Micros(u64::MAX));
        let (count, requests) = (limit.requests().into(), limit.requests().into());
        let state = match limit.policy() {
            Policy::FixedWindow => State::Window(Window { index, count }),
            Policy::SlidingWindowLog => State::Log(Box::new(Log::from_entries([(far, requests)]))),
            Policy::SlidingWindowCounter => State::Counter(Counter {
                index,
                current: count,
                previous: count,
            }),
            _ => State::Bucket(Bucket {
                tat: far,
                fraction: 0,
            }),
        };
        let mut key = Key {
            limit: limit.clone(),
            state,
        };
        assert!(!key.ask(*now, charge(1)).admitted);
        let window = limit.window().0;
        let (lockout_max, idle_max) = match limit.policy() {
            Policy::SlidingWindowCounter => (2 * window, 2 * window),
            _ => (window, memory(limit) + 1),
        };
        assert!(retry_after(&key, *now, 1) <= lockout_max);
        assert!(key.state.idle_at(limit).0 <= now + idle_max);
    });
}
