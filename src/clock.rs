//! The only file that reads the time.
//!
//! A request reads the clock once and passes the instant on. Windows are aligned to the Unix epoch,
//! so this is wall-clock time; what happens when it steps is `algorithm`'s business.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::algorithm::Micros;

/// Where the time comes from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's wall clock.
    System,
    /// A clock that stands still until it is told otherwise.
    Manual(ManualClock),
}

impl Clock {
    /// Microseconds since the Unix epoch.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn now(&self) -> Micros {
        match self {
            Self::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(Micros::ZERO, Micros::from),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// Waits for `span` of real time, to the next millisecond.
    pub async fn sleep(&self, span: Micros) {
        tokio::time::sleep(Duration::from(span)).await;
    }
}

/// How far time has come that never steps, for time-outs; tests can pause it with tokio's.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn instant() -> Instant {
    Instant::now()
}

/// How much, from 0 to 255, a wait should differ from others that begin at the same time.
#[must_use]
pub fn jitter() -> u8 {
    RandomState::new().hash_one(()).to_le_bytes()[0]
}

/// A clock for tests. Clones share their time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn new(now: Micros) -> Self {
        Self(Arc::new(AtomicU64::new(now.0)))
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::Relaxed))
    }

    /// Moves it, forward or back.
    pub fn set(&self, now: Micros) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// Moves it forward.
    pub fn advance(&self, span: Micros) {
        self.0.fetch_add(span.0, Ordering::Relaxed);
    }
}
