//! How often something took how long, or was how large.
//!
//! The exporter's own histograms keep every sample until somebody scrapes; these are a handful of
//! numbers, and observing is two additions.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds for times, in microseconds: finest where decisions are.
pub(super) const MICROS: [u64; 12] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
];

/// Bounds for how many requests share something.
pub(super) const SIZES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The most bounds that there are, and one place more for what is beyond them all.
const PLACES: usize = 13;

/// Samples, by the first bound that they don't exceed.
#[derive(Debug)]
pub(super) struct Histogram {
    bounds: &'static [u64],
    /// What 1 is, in the unit that is shown.
    unit: f64,
    counts: [AtomicU64; PLACES],
    sum: AtomicU64,
}

impl Histogram {
    /// Of microseconds, shown in seconds.
    pub(super) fn of_micros() -> Self {
        Self::new(&MICROS, 1e-6)
    }

    /// Of sizes.
    pub(super) fn of_sizes() -> Self {
        Self::new(&SIZES, 1.0)
    }

    fn new(bounds: &'static [u64], unit: f64) -> Self {
        debug_assert!(bounds.len() < PLACES, "a place for each, and one beyond");
        Self {
            bounds,
            unit,
            counts: Default::default(),
            sum: AtomicU64::new(0),
        }
    }

    pub(super) fn observe(&self, sample: u64) {
        let place = self.bounds.partition_point(|&bound| bound < sample);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(sample, Ordering::Relaxed);
    }

    /// Writes its series; `labels` is `a="b"`, or nothing.
    #[expect(clippy::cast_precision_loss, reason = "what is shown is approximate")]
    pub(super) fn write(&self, text: &mut String, name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        let bounds = self
            .bounds
            .iter()
            .map(|&bound| Some(bound as f64 * self.unit));
        for (bound, samples) in bounds.chain([None]).zip(&self.counts) {
            count += samples.load(Ordering::Relaxed);
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
            let _infallible = writeln!(
                text,
                "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}"
            );
        }
        let sum = self.sum.load(Ordering::Relaxed) as f64 * self.unit;
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{labels}}}")
        };
        let _infallible = writeln!(text, "{name}_sum{labels} {sum}");
        let _infallible = writeln!(text, "{name}_count{labels} {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_where_they_belong() {
        let histogram = Histogram::of_sizes();
        for sample in [1, 2, 3, 128, 129] {
            histogram.observe(sample);
        }
        let mut text = String::new();
        histogram.write(&mut text, "n", "a=\"b\"");
        let expected = "n_bucket{a=\"b\",le=\"1\"} 1
n_bucket{a=\"b\",le=\"2\"} 2
n_bucket{a=\"b\",le=\"4\"} 3
n_bucket{a=\"b\",le=\"8\"} 3
n_bucket{a=\"b\",le=\"16\"} 3
n_bucket{a=\"b\",le=\"32\"} 3
n_bucket{a=\"b\",le=\"64\"} 3
n_bucket{a=\"b\",le=\"128\"} 4
n_bucket{a=\"b\",le=\"+Inf\"} 5
n_sum{a=\"b\"} 263
n_count{a=\"b\"} 5
";
        assert_eq!(text, expected);
    }
}
