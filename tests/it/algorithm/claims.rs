//! What is claimed of the algorithms, claim by claim.

use Algorithm::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket};
use comporta::algorithm::{Bucket, Counter, Log, Window};
use proptest::collection::vec;

use super::*;

/// The hits of the window that ends with `to`: a span that is open at its start.
fn hits_until(to: u64, limit: &Limit, admitted: &[(u64, u64)]) -> u64 {
    let inside = |(at, _): &&(u64, u64)| *at <= to && at + limit.window().0 > to;
    admitted.iter().filter(inside).map(|(_, hits)| hits).sum()
}

#[test]
fn a_fixed_window_admits_twice_its_limit_across_its_edge_and_never_more() {
    check(&limits(&[FixedWindow]), |limit| {
        let (edge, requests) = (limit.window().0, limit.requests().into());
        let mut key = Key::new(limit, 0);
        assert!(key.ask(edge - 1, charge(requests)).admitted);
        assert!(key.ask(edge, charge(requests)).admitted);
        assert!(!key.admits(2 * edge - 1, 1));
    });
    check(&histories(&[FixedWindow]), |history| {
        let admitted = history.of_charges().admitted();
        for (at, _) in &admitted {
            let hits = hits_until(*at, &history.limit, &admitted);
            assert!(hits <= 2 * u64::from(history.limit.requests()));
        }
    });
}

#[test]
fn the_log_never_admits_more_than_its_limit_in_any_window() {
    check(&histories(&[SlidingWindowLog]), |history| {
        let admitted = history.of_charges().admitted();
        for (at, _) in &admitted {
            let hits = hits_until(*at, &history.limit, &admitted);
            assert!(hits <= u64::from(history.limit.requests()));
        }
    });
}

/// The counter takes the p hits of the previous window for evenly spread. At e into its window the
/// weighted part is at least p·(P−e)/P, so the c hits of the current one are at most
/// N − p·(P−e)/P. All of p may have come late enough to lie in the span, which then holds
/// p + c ≤ N + p·e/P: less than twice the limit.
#[test]
fn the_counter_admits_too_much_by_at_most_the_part_it_forgets() {
    check(&histories(&[SlidingWindowCounter]), |history| {
        let history = history.of_charges();
        let (window, requests) = (history.limit.window().0, history.limit.requests());
        let admitted = history.admitted();
        for (at, _) in &admitted {
            let previous: u64 = in_window_before(*at, window, &admitted);
            let forgotten = u128::from(previous) * u128::from(at % window) / u128::from(window);
            let hits = hits_until(*at, &history.limit, &admitted);
            assert!(u128::from(hits) <= u128::from(requests) + forgotten);
            assert!(hits < 2 * u64::from(requests) || previous == 0);
        }
    });
}

fn in_window_before(at: u64, window: u64, admitted: &[(u64, u64)]) -> u64 {
    let before = |(other, _): &&(u64, u64)| other / window + 1 == at / window;
    admitted.iter().filter(before).map(|(_, hits)| hits).sum()
}

/// The bound is reached: one less than twice the limit.
#[test]
fn the_counter_is_fooled_by_a_burst_at_the_end_of_a_window() {
    check(&(2..1_000_u32, windows()), |(requests, window)| {
        let limit = limit(SlidingWindowCounter, *requests, *window, 0);
        let (edge, requests) = (limit.window().0, u64::from(*requests));
        let mut key = Key::new(&limit, 0);
        assert!(key.ask(edge - 1, charge(requests)).admitted);
        let retry = key.peek(edge, charge(requests - 1)).retry_after.unwrap().0;
        assert!(key.ask(edge + retry, charge(requests - 1)).admitted);
        assert!(retry < edge - 1, "the first hits are not a window old");
    });
}

/// A denial is explained by what the span holds and by the weighted part: at most p·(P−e)/P, one
/// for rounding, and p ÷ 2^19 since the weight moves in ticks. It can be a denial too many by the
/// whole limit, if all p came at the start of their window.
#[test]
fn the_counter_denies_too_much_by_at_most_the_weighted_part() {
    check(&histories(&[SlidingWindowCounter]), |history| {
        let history = history.of_charges();
        let (window, requests) = (history.limit.window().0, history.limit.requests());
        let admitted = history.admitted();
        history.walk(|visit| {
            let Hits::Charge(hits) = visit.demand.hits else {
                return;
            };
            if !visit.outcome.admitted {
                let until_now: Vec<_> = admitted
                    .iter()
                    .copied()
                    .filter(|hit| hit.0 <= visit.now)
                    .collect();
                let previous = in_window_before(visit.now, window, &until_now);
                let left = u128::from(window - visit.now % window);
                let weighted = u128::from(previous) * left / u128::from(window);
                let inside = hits_until(visit.now, &history.limit, &until_now);
                let explained = weighted + u128::from(previous >> 19) + u128::from(inside + hits);
                assert!(explained + 2 > requests.into());
            }
        });
    });
}

/// Where its assumption holds, the counter counts what the log counts, or one more.
#[test]
fn the_counter_agrees_with_the_log_where_hits_come_evenly() {
    let parts = (1..300_u32, windows(), 0..1_000_u64, 0..300_u64);
    check(&parts, |&(previous, window, elapsed, current)| {
        let keys = [SlidingWindowLog, SlidingWindowCounter].map(|algorithm| {
            let limit = limit(algorithm, 1_000, window, 0);
            let window = limit.window().0;
            let mut key = Key::new(&limit, 0);
            for hit in 0..u64::from(previous) {
                let middle = window / u64::from(2 * previous) * (2 * hit + 1);
                assert!(key.ask(middle, charge(1)).admitted);
            }
            let now = window + window / 1_000 * elapsed;
            key.ask(now, charge(current + 1));
            key.remaining(now)
        });
        let [log, counter] = keys;
        assert!(log == counter || log == counter + 1, "{log} {counter}");
    });
}

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

/// `number` parts of a window cut into `parts`, rounded down.
fn part(window: u64, number: u64, parts: u64) -> u64 {
    let whole = u128::from(window) * u128::from(number) / u128::from(parts);
    u64::try_from(whole).unwrap()
}

fn small_limits(algorithms: &'static [Algorithm]) -> impl Strategy<Value = Limit> {
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

fn full(limit: &Limit) -> u64 {
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

/// A bucket that never runs dry between two requests has admitted, at any time, exactly what it
/// held at first and what has come in since: not one hit more or less, over any horizon and for
/// every N and P.
#[test]
fn a_token_bucket_neither_exceeds_its_rate_nor_falls_short_of_it() {
    let spans = vec(0..1_000_u64, 50);
    check(&(limits(&[TokenBucket]), spans), |(limit, spans)| {
        let (window, requests) = (limit.window().0, limit.requests());
        let (burst, _) = size(limit);
        let mut key = Key::new(limit, 0);
        let (mut now, mut admitted) = (0, 0);
        for span in spans {
            let come_in = u128::from(now) * u128::from(requests) / u128::from(window);
            let left = u128::from(key.remaining(now));
            assert_eq!(u128::from(burst) + come_in - admitted, left);
            if left > 0 {
                let taken = u64::try_from(left).unwrap();
                assert!(key.ask(now, charge(taken)).admitted);
                admitted += left;
            }
            // At most until the bucket is full again.
            let full = key.peek(now, Demand::patient(Hits::Look)).reset_after.0;
            now += part(full, *span, 1_000);
        }
    });
}

/// Each waits for its turn, and turns come one interval apart, rounded up to a microsecond once.
#[test]
fn a_leaky_bucket_lets_out_at_a_constant_pace() {
    check(&limits(&[LeakyBucket]), |limit| {
        let (window, requests) = (limit.window().0, u64::from(limit.requests()));
        let (_, queue) = size(limit);
        let mut key = Key::new(limit, 0);
        for turn in 0..=queue.min(100) {
            let wait = (u128::from(turn) * u128::from(window)).div_ceil(requests.into());
            let wait = u64::try_from(wait).unwrap();
            if wait > 0 {
                let impatient = Demand {
                    hits: Hits::Charge(1),
                    patience: Micros(wait - 1),
                };
                assert!(!key.peek(0, impatient).admitted);
            }
            let outcome = key.ask(0, charge(1));
            assert!(outcome.admitted);
            assert_eq!(outcome.wait, Micros(wait));
        }
        assert_eq!(key.admits(0, 1), queue > 100, "the queue is full");
    });
}

/// A key that has nothing left has nothing left either when the clock is set back.
#[test]
fn a_step_back_grants_nothing() {
    let parts = (small_limits(&Algorithm::ALL), 0..=1_000_u64, 0..1_000_u64);
    check(&parts, |(limit, back, phase)| {
        let window = limit.window().0;
        let now = 10 * window + part(window, *phase, 1_000);
        let mut key = Key::new(limit, now);
        key.drain(now);
        assert!(
            !key.ask(now - part(window, *back, 1_000), charge(1))
                .admitted
        );
    });
}

/// However far the clock is set back, and whatever a stored instant claims: soon there is room.
#[test]
fn no_step_back_locks_a_key_out() {
    let backs = prop_oneof![0..3_u64, 0..2_000_u64];
    let parts = (small_limits(&Algorithm::ALL), backs, 0..1_000_u64);
    check(&parts, |(limit, back, phase)| {
        let window = limit.window().0;
        let now = 5_000 * window + part(window, *phase, 1_000);
        let mut key = Key::new(limit, now);
        key.drain(now);
        let now = now - back * window;
        let (most, queue) = size(limit);
        let fills = (most + queue) * window / u64::from(limit.requests());
        let soon = 3 * window.max(fills);
        let Some(retry) = key.ask(now, charge(1)).retry_after else {
            return;
        };
        assert!(retry.0 <= soon);
        assert!(key.admits(now + retry.0, 1));
    });
}

#[test]
fn an_absurd_instant_is_pulled_back() {
    check(&small_limits(&Algorithm::ALL), |limit| {
        let (window, absurd) = (limit.window().0, 1 << 52);
        let requests = u64::from(limit.requests());
        let mut key = Key::new(limit, 0);
        key.state = match limit.policy().algorithm() {
            FixedWindow => State::Window(Window {
                index: absurd / window,
                count: requests,
            }),
            SlidingWindowCounter => State::Counter(Counter {
                index: absurd / window,
                current: requests,
                previous: requests,
            }),
            SlidingWindowLog => {
                State::Log(Box::new(Log::from_entries([(Micros(absurd), requests)])))
            }
            TokenBucket | LeakyBucket => State::Bucket(Bucket {
                tat: Micros(absurd),
                fraction: 0,
            }),
        };
        let outcome = key.ask(window, charge(1));
        assert!(!outcome.admitted);
        let retry = outcome.retry_after.unwrap().0;
        let (most, queue) = size(limit);
        assert!(retry <= 3 * window.max((most + queue) * window / requests));
        assert!(key.admits(window + retry, 1));
    });
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
            // Two counts may have been pushed to the top by charged denials.
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
            assert_eq!(key.peek(visit.now, one), visit.after.peek(visit.now, one));
        });
    });
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
