//! How long to leave a server alone.

use std::time::Duration;

/// The longest wait after the first failure. It doubles with each that follows.
const FIRST_MAX: Duration = Duration::from_secs(1);

/// The longest wait of all: how much later than necessary a server that is back is found at worst.
const LAST_MAX: Duration = Duration::from_secs(30);

/// The wait after `failures` earlier ones in a row. It is shortened by up to a half, the more the greater
/// `jitter` is, so that those who lost the same server don't come back together.
pub(super) fn delay(failures: u32, jitter: u8) -> Duration {
    let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
    let longest = FIRST_MAX.saturating_mul(factor).min(LAST_MAX);
    longest.saturating_sub(longest / 2 * u32::from(jitter) / 255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_a_bound_and_is_shortened_by_a_half_at_most() {
        let seconds = |failures| {
            let (longest, shortest) = (delay(failures, 0), delay(failures, 255));
            assert_eq!(longest, shortest * 2);
            longest.as_secs()
        };
        let waits: Vec<_> = [0, 1, 2, 3, 4, 5, 6, 31, 32, u32::MAX].map(seconds).into();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]);
    }
}
