//! Whichever store the settings ask for.

use std::sync::Arc;

use super::denials::Denials;
use super::drill::Drilled;
use super::lease::Leased;
use super::memory::Memory;
use super::redis::Redis;
use super::{Charged, Check, CounterKey, Store, StoreError};
use crate::algorithm::{Micros, State};

/// One of the stores.
#[derive(Debug)]
pub enum AnyStore {
    /// The embedded one.
    Memory(Drilled<Arc<Memory>>),
    /// Redis, with hits taken in advance, and with what it denied remembered.
    Redis(Leased<Denials<Drilled<Arc<Redis>>>>),
}

impl Store for AnyStore {
    async fn charge(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        deadline: Micros,
    ) -> Result<Charged, StoreError> {
        match self {
            Self::Memory(store) => store.charge(checks, now, deadline).await,
            Self::Redis(store) => store.charge(checks, now, deadline).await,
        }
    }

    async fn peek(
        &self,
        checks: &[Check<'_>],
        now: Micros,
    ) -> Result<Vec<Option<State>>, StoreError> {
        match self {
            Self::Memory(store) => store.peek(checks, now).await,
            Self::Redis(store) => store.peek(checks, now).await,
        }
    }

    async fn reset(&self, keys: &[CounterKey]) -> Result<usize, StoreError> {
        match self {
            Self::Memory(store) => store.reset(keys).await,
            Self::Redis(store) => store.reset(keys).await,
        }
    }
}
