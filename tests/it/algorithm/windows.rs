//! What is claimed of the windows: fixed, logged, and estimated.

use Algorithm::{FixedWindow, SlidingWindowCounter, SlidingWindowLog};

use super::*;

/// The hits of the window that ends with `to`: a span that is open at its start.
pub(super) fn hits_until(to: u64, limit: &Limit, admitted: &[(u64, u64)]) -> u64 {
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
            let previous = in_window_before(*at, window, &admitted);
            let forgotten = u128::from(previous) * u128::from(at % window) / u128::from(window);
            let hits = hits_until(*at, &history.limit, &admitted);
            assert!(u128::from(hits) <= u128::from(requests) + forgotten);
            assert!(hits < 2 * u64::from(requests));
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
