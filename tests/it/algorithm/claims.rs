//! What is claimed of the algorithms, claim by claim.

use Algorithm::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket};

use super::*;

/// For ten periods, a request every tenth of the interval.
///
/// Ten periods touch eleven fixed windows. The counter's estimate, rounded up, keeps one hit of
/// every window back; a limit of one hit is then left every other window. A bucket with one place
/// serves nobody between the moment at which it drains and the next request, a tenth of the
/// interval later.
#[test]
fn a_client_that_hammers_at_ten_times_its_rate_gets_its_rate() {
    let parts = (small_limits(&Algorithm::ALL), 0..1_000_u64);
    check(&parts, |(limit, phase)| {
        let (window, requests) = (limit.window().0, u64::from(limit.requests()));
        let start = window / 1_000 * phase;
        let mut key = Key::new(limit, start);
        let asks = (0..100 * requests).map(|ask| start + part(window, ask, 10 * requests));
        let admitted = asks.filter(|at| key.ask(*at, charge(1)).admitted).count();
        let rate = 10 * requests;
        let (least, most) = match limit.policy() {
            Policy::FixedWindow => (rate, rate + requests),
            Policy::SlidingWindowLog => (rate, rate),
            Policy::SlidingWindowCounter if requests == 1 => (5, 6),
            Policy::SlidingWindowCounter => (rate - 10, rate + requests),
            Policy::TokenBucket { burst: 1 } | Policy::LeakyBucket { queue: 0 } => {
                (rate * 10 / 11, rate)
            }
            Policy::TokenBucket { burst } => (rate, rate + u64::from(burst)),
            Policy::LeakyBucket { queue } => (rate, rate + u64::from(queue) + 1),
        };
        let admitted = u64::try_from(admitted).unwrap();
        assert!(
            (least..=most).contains(&admitted),
            "{admitted} of {least} to {most}"
        );
    });
}

/// `number` parts of a whole cut into `parts`, rounded down.
pub(super) fn part(whole: u64, number: u64, parts: u64) -> u64 {
    let part = u128::from(whole) * u128::from(number) / u128::from(parts);
    u64::try_from(part).unwrap()
}

pub(super) fn small_limits(algorithms: &'static [Algorithm]) -> impl Strategy<Value = Limit> {
    let parts = (select(algorithms), 1..12_u32, windows(), 0..6_u32);
    parts.prop_map(|(algorithm, requests, window, size)| limit(algorithm, requests, window, size))
}

#[test]
fn retry_after_is_exact() {
    check(&histories(&Algorithm::ALL), |history| {
        let (most, _) = size(&history.limit);
        history.walk(|visit| {
            let is_admitted = |span| visit.after.peek(visit.now + span, visit.demand).admitted;
            let outcome = visit.outcome;
            if let Some(Micros(retry)) = outcome.retry_after {
                assert!(!outcome.admitted);
                assert!(!(0..8).any(|eighth| is_admitted(retry / 8 * eighth)));
                assert!(!is_admitted(retry - 1));
                assert!(is_admitted(retry) && is_admitted(retry + 1));
            } else if !outcome.admitted {
                assert!(matches!(visit.demand.hits, Hits::Charge(hits) if hits > most));
                assert!(!is_admitted(outcome.reset_after.0));
                assert!(!is_admitted(3 * WINDOW_MAX.0));
            }
        });
    });
}

#[test]
fn reset_after_is_exact() {
    check(&histories(&Algorithm::ALL), |history| {
        let full = full(&history.limit);
        history.walk(|visit| {
            let (key, now) = (visit.after, visit.now);
            let reset = now + visit.outcome.reset_after.0;
            let idle = key.state.idle_at(&key.limit).0.max(now);
            assert!(reset <= idle);
            for at in [reset, reset + 1, idle, idle + 1] {
                assert_eq!(key.remaining(at), full);
                assert_answers_as_new(key, at);
            }
            if key.remaining(now) < full {
                assert!(key.remaining(reset - 1) < full);
            }
        });
    });
}

pub(super) fn full(limit: &Limit) -> u64 {
    match limit.policy() {
        Policy::LeakyBucket { queue } => u64::from(queue) + 1,
        _ => size(limit).0,
    }
}

fn assert_answers_as_new(key: &Key, at: u64) {
    let (most, _) = size(&key.limit);
    let new = Key::new(&key.limit, at);
    for hits in [1, most, most + 1] {
        // After a step back the key's window may end later than a new key's.
        let [old, new] = [key, &new].map(|key| Outcome {
            reset_after: Micros::ZERO,
            ..key.peek(at, charge(hits))
        });
        assert_eq!(old, new);
    }
}

/// A bucket that doesn't run dry has admitted, at any time, exactly what it had room for at first
/// and what has drained since: not one hit more or less, over any horizon, for every N and P.
#[test]
fn buckets_neither_exceed_their_rate_nor_fall_short_of_it() {
    check(&limits(&[TokenBucket, LeakyBucket]), |limit| {
        let (window, requests) = (limit.window().0, u64::from(limit.requests()));
        let places = full(limit);
        let hits = (places / 2).clamp(1, requests);
        // What is still held when the hits fit again: dry is what lasts less than a microsecond.
        let held = match limit.policy() {
            Policy::LeakyBucket { queue } => u64::from(queue),
            _ => places - hits,
        };
        if u128::from(held) * u128::from(window) < u128::from(requests) {
            return;
        }
        let (mut key, mut now, mut admitted) = (Key::new(limit, 0), 0, places);
        algorithm::charge(limit, &mut key.state, Micros(now), Hits::Charge(places));
        for _ in 0..100 {
            now += retry_after(&key, now, hits);
            assert!(key.ask(now, charge(hits)).admitted);
            admitted += hits;
        }
        now += retry_after(&key, now, 1);
        let rest = key.remaining(now);
        assert!(rest > 0 && key.ask(now, charge(rest)).admitted);
        assert_eq!(admitted + rest, places + rate(limit, now));
    });
}

/// How long such a demand has to wait until it is admitted.
pub(super) fn retry_after(key: &Key, now: u64, hits: u64) -> u64 {
    key.peek(now, charge(hits))
        .retry_after
        .map_or(0, |span| span.0)
}

/// The hits that come in within a span, rounded down.
pub(super) fn rate(limit: &Limit, span: u64) -> u64 {
    part(limit.requests().into(), span, limit.window().0)
}

/// The time that hits take, rounded up.
pub(super) fn span(limit: &Limit, hits: u64) -> u64 {
    let span = u128::from(hits) * u128::from(limit.window().0);
    u64::try_from(span.div_ceil(limit.requests().into())).unwrap()
}

/// A bucket with one place runs dry at every hit, and starts anew with the next. It is as exact as
/// its clock: the interval, rounded up to a microsecond.
#[test]
fn a_bucket_with_one_place_falls_short_by_less_than_a_microsecond_a_hit() {
    let parts = (select(&[TokenBucket, LeakyBucket]), 1..u32::MAX, windows());
    check(&parts, |&(algorithm, requests, window)| {
        let size = u32::from(algorithm == TokenBucket);
        let limit = limit(algorithm, requests, window, size);
        let (mut key, mut now) = (Key::new(&limit, 0), 0);
        for _ in 0..20 {
            assert!(key.ask(now, charge(1)).admitted);
            assert_eq!(retry_after(&key, now, 1), span(&limit, 1));
            now += span(&limit, 1);
        }
    });
}

/// Turn after turn the wait grows by the exact interval; what is announced is rounded up once, and
/// not summed.
#[test]
fn a_leaky_bucket_admits_at_a_constant_pace_until_its_queue_is_full() {
    check(&limits(&[LeakyBucket]), |limit| {
        let (_, queue) = size(limit);
        let (mut key, now) = (Key::new(limit, 0), 0);
        let skipped = queue.saturating_sub(30);
        algorithm::charge(limit, &mut key.state, Micros(now), Hits::Charge(skipped));
        for turn in skipped..=queue {
            let wait = span(limit, turn);
            assert_denied_if_impatient(&key, now, wait);
            let outcome = key.ask(now, charge(1));
            assert!(outcome.admitted);
            assert_eq!(outcome.wait, Micros(wait));
        }
        assert_eq!(retry_after(&key, now, 1), span(limit, 1));
    });
}

fn assert_denied_if_impatient(key: &Key, now: u64, wait: u64) {
    let ask = |patience| {
        let demand = Demand {
            hits: Hits::Charge(1),
            patience: Micros(patience),
            until: Micros::MAX,
        };
        key.peek(now, demand)
    };
    assert!(ask(wait).admitted);
    if wait > 0 {
        assert!(!ask(wait - 1).admitted);
        assert_eq!(ask(wait - 1).retry_after, Some(Micros(1)));
    }
}

#[test]
fn a_denied_request_takes_nothing() {
    check(&histories(&Algorithm::ALL), |history| {
        let history = history.of_charges();
        let mut spared = Key::new(&history.limit, history.start);
        history.walk(|visit| {
            if visit.outcome.admitted {
                assert_eq!(spared.ask(visit.now, visit.demand), visit.outcome);
            } else {
                assert_eq!(visit.outcome.remaining, visit.before.remaining(visit.now));
            }
        });
    });
}

#[test]
fn a_refund_never_makes_more_than_full() {
    check(&histories(&Algorithm::ALL), |history| {
        let full = full(&history.limit);
        history.walk(|visit| {
            assert!(visit.outcome.remaining <= full);
            let mut key = visit.after.clone();
            // Charged denials may have filled two windows to the brim.
            key.ask(visit.now, Demand::patient(Hits::Refund(COUNT_MAX)));
            for hits in [COUNT_MAX, 1] {
                let outcome = key.ask(visit.now, Demand::patient(Hits::Refund(hits)));
                assert!(outcome.admitted);
                assert_eq!(outcome.remaining, full);
                assert_answers_as_new(&key, visit.now);
            }
        });
    });
}

#[test]
fn looking_charges_nothing_and_tells_the_truth() {
    check(&histories(&Algorithm::ALL), |history| {
        history.walk(|visit| {
            let mut key = visit.after.clone();
            key.state.advance(&key.limit, Micros(visit.now));
            let before = key.state.clone();
            let look = Demand {
                hits: Hits::Look,
                ..visit.demand
            };
            let one = Demand {
                hits: Hits::Charge(1),
                ..visit.demand
            };
            let outcome = key.ask(visit.now, look);
            assert_eq!(outcome.admitted, key.peek(visit.now, one).admitted);
            assert_eq!(outcome.wait, Micros::ZERO);
            assert_eq!(key.state, before);
        });
    });
}

#[test]
fn counts_saturate() {
    for algorithm in Algorithm::ALL {
        let limit = limit(algorithm, u32::MAX, (Unit::Day, 1), u32::MAX).charging_denied(true);
        let (mut key, now) = (Key::new(&limit, 0), 0);
        // More than 64 bits hold.
        for _ in 0..5_000 {
            let outcome = key.ask(now, charge(COUNT_MAX));
            assert!(!outcome.admitted && outcome.retry_after.is_none());
            assert_eq!(outcome.remaining, 0);
        }
        assert!(key.admits(now + 3 * limit.window().0, 1), "{algorithm:?}");
    }
}

#[test]
fn a_limit_of_nothing_admits_nothing() {
    for algorithm in Algorithm::ALL {
        let policy = limit(algorithm, 1, (Unit::Second, 1), 1).policy();
        let limit = Limit::new(policy, 0, Unit::Second, 1).unwrap();
        let mut key = Key::new(&limit, 0);
        for (hits, is_admitted) in [
            (Hits::Charge(1), false),
            (Hits::Look, false),
            (Hits::Refund(1), true),
        ] {
            let outcome = key.ask(0, Demand::patient(hits));
            assert_eq!(outcome.admitted, is_admitted);
            assert_eq!((outcome.remaining, outcome.retry_after), (0, None));
        }
    }
}

/// The README's picture: ten a minute, and a client that was quiet and then asks every millisecond of
/// the twenty seconds around a full minute.
#[test]
fn the_picture_of_a_burst_is_true() {
    let expected = [
        (FixedWindow, 20),
        (SlidingWindowLog, 10),
        (SlidingWindowCounter, 11),
        (TokenBucket, 13),
        (LeakyBucket, 4),
    ];
    for (algorithm, passes) in expected {
        let burst = if algorithm == TokenBucket { 10 } else { 0 };
        let limit = limit(algorithm, 10, (Unit::Minute, 1), burst);
        let mut key = Key::new(&limit, 0);
        let asks = (50_000..70_000).filter(|ms| key.ask(ms * 1_000, charge(1)).admitted);
        assert_eq!(asks.count(), passes, "{algorithm:?}");
    }
}
