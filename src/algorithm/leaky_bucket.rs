//! A leaky bucket: requests leave at a constant rate, a few wait for their turn.

use super::gcra::{self, Bucket};
use super::{Demand, Hits, Limit, Micros, Outcome};

pub(super) fn check(
    limit: &Limit,
    queue: u32,
    bucket: Bucket,
    now: Micros,
    demand: Demand,
) -> Outcome {
    let held = bucket.held(limit, now);
    let wait_max = wait_max(limit, queue, demand);
    let admitted = demand.hits.wanted() == 0 || wait_max.is_some_and(|wait_max| held <= wait_max);

    let mut after = bucket;
    if admitted {
        after.charge(gcra::capacity(limit), limit, now, demand.hits);
    }
    let held_after = after.held(limit, now);
    let waits = matches!(demand.hits, Hits::Charge(_)) && admitted;
    Outcome {
        admitted,
        remaining: free_places(held_after, gcra::span_of(u64::from(queue), limit), limit),
        reset_after: gcra::micros_ceil(held_after, limit),
        retry_after: wait_max
            .filter(|_| !admitted)
            .map(|wait_max| gcra::micros_ceil(held.saturating_sub(wait_max), limit)),
        wait: if waits {
            gcra::micros_ceil(held, limit)
        } else {
            Micros::ZERO
        },
    }
}

/// The longest wait that limit and caller put up with; none for more hits than ever fit.
pub(super) fn wait_max(limit: &Limit, queue: u32, demand: Demand) -> Option<gcra::Span> {
    let queue = gcra::span_of(u64::from(queue), limit);
    let patience =
        u128::from(demand.patience.0).saturating_mul(limit.interval().denominator.into());
    (demand.hits.wanted() <= limit.hits_max()).then(|| queue.min(patience))
}

/// Single hits that would still be taken: one for each place in the queue, and one whose turn is
/// now.
fn free_places(held: gcra::Span, queue: gcra::Span, limit: &Limit) -> u64 {
    match queue.checked_sub(held) {
        Some(free) => u64::try_from(free / gcra::span_of(1, limit) + 1).unwrap_or(u64::MAX),
        None => 0,
    }
}
