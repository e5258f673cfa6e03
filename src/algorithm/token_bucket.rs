//! A token bucket: honest bursts pass, the average stays bounded.

use super::gcra::{self, Bucket};
use super::{Hits, Limit, Micros, Outcome};

pub(super) fn check(limit: &Limit, burst: u32, bucket: Bucket, now: Micros, hits: Hits) -> Outcome {
    let full = gcra::span_of(u64::from(burst), limit);
    let wanted = gcra::span_of(hits.wanted(), limit);
    let held = bucket.held(limit, now);
    let admitted = wanted == 0 || held + wanted <= full;

    let mut after = bucket;
    if admitted {
        after.charge(full, limit, now, hits);
    }
    let held_after = after.held(limit, now);
    let tokens = full.saturating_sub(held_after) / gcra::span_of(1, limit);
    Outcome {
        admitted,
        remaining: u64::try_from(tokens).unwrap_or(u64::MAX),
        reset_after: gcra::micros_ceil(held_after, limit),
        retry_after: (!admitted && wanted <= full)
            .then(|| gcra::micros_ceil(held + wanted - full, limit)),
        wait: Micros::ZERO,
    }
}
