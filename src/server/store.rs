//! Puts the stores together, layer on layer.

use std::sync::Arc;

use crate::clock::Clock;
use crate::settings::{Hidden, Settings};
use crate::store::any::AnyStore;
use crate::store::denials::Denials;
use crate::store::drill::{Drill, Drilled};
use crate::store::lease::Leased;
use crate::store::memory::Memory;
use crate::store::redis::url::{RedisUrl, StoreUrl};
use crate::store::redis::{Access, Redis, RedisOptions, Secret};
use crate::telemetry::Telemetry;

/// Everything that counts.
pub(super) struct Stores {
    /// What requests are charged to.
    pub(super) shared: AnyStore,
    /// What counts in its place in the failure mode `local`.
    pub(super) local: Arc<Memory>,
    /// Those whose idle counters have to be swept.
    pub(super) in_memory: Vec<Arc<Memory>>,
    /// The one that may be away.
    pub(super) redis: Option<Arc<Redis>>,
}

impl Stores {
    pub(super) fn new(
        url: StoreUrl,
        settings: &Settings,
        clock: &Clock,
        telemetry: &Arc<Telemetry>,
        drill: Drill,
    ) -> Self {
        let memory = |used_as| {
            let meter = telemetry.memory(used_as);
            Arc::new(Memory::new(settings.memory_counters_max, meter))
        };
        let local = memory("local");
        match url {
            StoreUrl::Memory => {
                let store = memory("store");
                Self {
                    shared: AnyStore::Memory(Drilled::new(store.clone(), drill)),
                    in_memory: vec![store, local.clone()],
                    local,
                    redis: None,
                }
            }
            StoreUrl::Redis(url) => {
                let redis = Arc::new(redis(url, settings, clock.clone(), telemetry.clone()));
                // What was denied, or taken in advance, is known without asking, also while there is nobody
                // to ask.
                let drilled = Drilled::new(redis.clone(), drill);
                let denials = Denials::new(drilled, settings.denials_max, telemetry.denials());
                let leased = Leased::new(denials, clock.clone(), telemetry.leases());
                Self {
                    shared: AnyStore::Redis(leased),
                    in_memory: vec![local.clone()],
                    local,
                    redis: Some(redis),
                }
            }
        }
    }
}

/// How many times its own deadline a call may be late before its connection is given up: a server
/// that is slow now and then is not worth connecting to anew.
const LATE_MAX: u32 = 5;

fn redis(url: RedisUrl, settings: &Settings, clock: Clock, telemetry: Arc<Telemetry>) -> Redis {
    let redis = &settings.redis;
    let text = |password: &Hidden| Secret::Text(password.0.clone());
    let file = redis.password_file.clone().map(Secret::File);
    let access = Access {
        user: redis.user.clone(),
        password: redis.password.as_ref().map(text).or(file),
        sentinel_user: redis.sentinel_user.clone(),
        sentinel_password: redis.sentinel_password.as_ref().map(text),
        ca_file: redis.tls_ca.clone(),
        certificate: redis.tls_cert.clone().zip(redis.tls_key.clone()),
    };
    let options = RedisOptions {
        prefix: redis.prefix.clone(),
        connections: redis.connections,
        connect_timeout: redis.connect_timeout,
        call_timeout: settings.store_timeout,
        round_trip_timeout: settings.store_timeout.saturating_mul(LATE_MAX),
        queue_max: redis.queue_max as usize,
    };
    Redis::new(url, access, &options, clock, telemetry)
}
