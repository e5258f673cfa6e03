//! A layer over a store that makes it unavailable on purpose, so that its operators can see what happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Charged, Check, CounterKey, Store, StoreError};
use crate::algorithm::{Micros, State};
use crate::clock::Clock;

/// A drill that nobody ends is over by then.
pub const DRILL_MAX: Micros = Micros(600 * Micros::PER_SECOND);

/// Asks the store below, unless there is a drill.
#[derive(Debug)]
pub struct Drilled<S> {
    store: S,
    drill: Drill,
}

/// Begins and ends drills. Clones share theirs.
#[derive(Clone, Debug)]
pub struct Drill {
    clock: Clock,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// In microseconds, as the clock has it; 0 if there is none.
    ends_at: AtomicU64,
    /// Calls that got no answer.
    calls: AtomicU64,
}

impl Drill {
    /// There is none yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            shared: Arc::default(),
        }
    }

    /// Begins one, or changes the end of the one that there is. It takes no longer than [`DRILL_MAX`].
    pub fn begin(&self, time: Micros) {
        let time = time.min(DRILL_MAX);
        let ends_at = self.clock.now().0.saturating_add(time.0);
        self.shared.ends_at.store(ends_at, Ordering::Relaxed);
        let seconds = time.as_secs_ceil();
        tracing::warn!(seconds, "drill: the store is made unavailable");
    }

    /// Ends it, if there is one.
    pub fn end(&self) {
        let ends_at = self.shared.ends_at.swap(0, Ordering::Relaxed);
        if ends_at != 0 {
            let calls = self.shared.calls.swap(0, Ordering::Relaxed);
            tracing::warn!(calls_failed = calls, "drill over: the store is asked again");
        }
    }

    /// How much longer it takes; none if there is no drill.
    #[must_use]
    pub fn left(&self) -> Option<Micros> {
        let ends_at = Micros(self.shared.ends_at.load(Ordering::Relaxed));
        let left = ends_at.since(self.clock.now());
        (left > Micros::ZERO).then_some(left)
    }

    fn check(&self, now: Micros) -> Result<(), StoreError> {
        let ends_at = self.shared.ends_at.load(Ordering::Relaxed);
        if ends_at == 0 {
            return Ok(());
        }
        if now.0 < ends_at {
            self.shared.calls.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Drill);
        }
        self.end();
        Ok(())
    }
}

impl<S> Drilled<S> {
    /// Subject to `drill`.
    pub fn new(store: S, drill: Drill) -> Self {
        Self { store, drill }
    }
}

impl<S: Store> Store for Drilled<S> {
    async fn charge(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        deadline: Micros,
    ) -> Result<Charged, StoreError> {
        self.drill.check(now)?;
        self.store.charge(checks, now, deadline).await
    }

    async fn peek(
        &self,
        checks: &[Check<'_>],
        now: Micros,
    ) -> Result<Vec<Option<State>>, StoreError> {
        self.drill.check(now)?;
        self.store.peek(checks, now).await
    }

    /// Whoever does this wants it done, drill or not.
    async fn reset(&self, keys: &[CounterKey]) -> Result<usize, StoreError> {
        self.store.reset(keys).await
    }
}
