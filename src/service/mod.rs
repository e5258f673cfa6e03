//! Decides requests.

mod explain;
mod plan;
mod record;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::algorithm::Micros;
use crate::clock::{self, Clock};
use crate::config::{Domain, FailureMode, Live};
use crate::failure::{Answer, Fallback};
use crate::request::{InvalidRequest, Request};
use crate::response::{Code, Decision, HeaderNames, Judged};
use crate::store::{Charged, Check, Store, StoreError};
use crate::telemetry::{Source, Telemetry};
pub use explain::{Explanation, Reset};
use plan::{Overrides, Plan};

/// A reply is never held longer, whatever the caller would put up with.
const HOLD_MAX: Micros = Micros(60 * Micros::PER_SECOND);

/// What is left of the caller's time for the answer's way back: a tenth of it, within bounds. Timers
/// fire up to a millisecond late, and an answer that comes too late is an OK to most proxies.
const TIMEOUT_MARGIN_MIN: Micros = Micros(2_000);
const TIMEOUT_MARGIN_MAX: Micros = Micros(5_000);

/// The rate limit service, whatever it is asked over.
#[derive(Debug)]
pub struct Service<S> {
    config: Arc<Live>,
    store: S,
    fallback: Fallback,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    holds: Semaphore,
    in_flight: AtomicUsize,
    options: Options,
}

/// What the operator decides about the service.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a domain answers without its store, if it doesn't say so itself.
    pub failure_mode: FailureMode,
    /// How long the store may take.
    pub store_timeout: Micros,
    /// Replies that may be held at the same time.
    pub holds_max: usize,
    /// Requests that may wait for the store at the same time.
    pub requests_max: usize,
    /// What the headers of the profile `ratelimit` are called.
    pub header_names: HeaderNames,
    /// Whether dynamic metadata repeats the request.
    pub describes_request: bool,
    /// Which part of a limit has to be taken for metrics to call a hit near it, from 0 to 1.
    pub near_limit_ratio: f64,
}

/// Why a request gets no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The caller is at fault.
    #[error("{0}")]
    Invalid(#[from] InvalidRequest),
    /// No rules have come yet, so nobody knows whether the domain has a limit.
    #[error("no rules have come yet")]
    NoRules,
    /// The store is unavailable, and the failure mode is `error`.
    #[error("{0}, and the failure mode is `error`")]
    Unavailable(StoreError),
}

impl<S: Store> Service<S> {
    /// Puts the service together.
    pub fn new(
        config: Arc<Live>,
        store: S,
        fallback: Fallback,
        clock: Clock,
        telemetry: Arc<Telemetry>,
        options: Options,
    ) -> Self {
        Self {
            config,
            store,
            fallback,
            clock,
            telemetry,
            holds: Semaphore::new(options.holds_max),
            in_flight: AtomicUsize::new(0),
            options,
        }
    }

    /// Decides one request: match, charge, fold, and hold the answer until its turn.
    ///
    /// Reads the configuration once, the clock once, and the store at most once. A store that
    /// cannot answer becomes the failure mode; of those only `error` ends as a refusal, because
    /// Envoy treats all gRPC errors alike and drops headers and metadata with them.
    pub async fn decide(&self, request: &Request) -> Result<Decision, Refusal> {
        let begun = clock::instant();
        let config = self.config.current();
        let Some(domain) = config.domain(&request.domain) else {
            if config.is_awaited() {
                return Err(Refusal::NoRules);
            }
            self.telemetry.unknown_domain();
            return Ok(Decision::no_limit(request.descriptors.len()));
        };

        let now = self.clock.now();
        let overrides = Overrides::of(domain, request)?;
        let plan = Plan::new(domain, request, &overrides);
        let hold_permit = self.hold_permit(&plan);
        let checks = plan.checks(patience(request, hold_permit.as_ref()));

        let mut decision = match self.charge(&checks, now, request).await {
            Ok(Charged {
                outcomes,
                denied,
                split,
                source,
                ..
            }) => {
                let judged = plan.judge(&outcomes);
                self.record(domain, request, &judged, source);
                let decision = self.fold(domain, request, &judged, denied);
                if split { decision.split() } else { decision }
            }
            Err(error) => self.without_store(domain, request, &plan, &checks, now, error)?,
        };
        let is_over = decision.code == Code::OverLimit;
        self.telemetry.answered(is_over, clock::instant() - begun);
        tracing::debug!(domain = domain.name, ?request, code = ?decision.code, hold = ?decision.hold, "decided");

        if decision.hold > Micros::ZERO {
            let _counted = self.telemetry.holding();
            self.clock.sleep(std::mem::take(&mut decision.hold)).await;
        }
        Ok(decision)
    }

    /// Asks the store, unless there is nothing to ask.
    async fn charge(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        request: &Request,
    ) -> Result<Charged, StoreError> {
        if checks.is_empty() {
            return Ok(Charged::default());
        }
        let _in_flight = InFlight::begin(&self.in_flight, self.options.requests_max)?;
        let deadline = self.options.store_timeout.min(time_left(request));
        self.store.charge(checks, now, deadline).await
    }

    /// Answers as the failure mode says.
    fn without_store(
        &self,
        domain: &Domain,
        request: &Request,
        plan: &Plan<'_>,
        checks: &[Check<'_>],
        now: Micros,
        error: StoreError,
    ) -> Result<Decision, Refusal> {
        let mode = plan.failure_mode(domain, self.options.failure_mode);
        self.telemetry
            .degraded(&domain.name, mode.name(), error.reason());
        let decision = match self.fallback.answer(mode, checks, now) {
            Answer::Uncounted { denied } => Decision::without_store(&plan.judge(&[]), denied),
            Answer::Local(charged) => {
                let judged = plan.judge(&charged.outcomes);
                self.record(domain, request, &judged, Source::Local);
                self.fold(domain, request, &judged, charged.denied)
            }
            Answer::None => return Err(Refusal::Unavailable(error)),
        };
        Ok(decision.degraded(mode, &error))
    }

    /// One answer of many outcomes.
    fn fold(
        &self,
        domain: &Domain,
        request: &Request,
        judged: &[Judged<'_>],
        denied: bool,
    ) -> Decision {
        let names = &self.options.header_names;
        let decision = Decision::fold(domain.headers, names, judged, denied);
        if self.options.describes_request {
            decision.describing(request)
        } else {
            decision
        }
    }

    /// The right to hold this reply, if the request may come to that and there is one left.
    fn hold_permit(&self, plan: &Plan<'_>) -> Option<SemaphorePermit<'_>> {
        if plan.may_be_held() {
            self.holds.try_acquire().ok()
        } else {
            None
        }
    }
}

/// A request that waits for the store, while it lives.
struct InFlight<'s>(&'s AtomicUsize);

impl<'s> InFlight<'s> {
    fn begin(in_flight: &'s AtomicUsize, max: usize) -> Result<Self, StoreError> {
        let others = in_flight.fetch_add(1, Ordering::Relaxed);
        let begun = Self(in_flight);
        if others < max {
            Ok(begun)
        } else {
            Err(StoreError::Shed)
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long the reply could be held.
fn patience(request: &Request, hold_permit: Option<&SemaphorePermit<'_>>) -> Micros {
    match hold_permit {
        Some(_) => HOLD_MAX.min(time_left(request)),
        None => Micros::ZERO,
    }
}

/// What is left of the caller's time, less the margin; no bound if it named none.
fn time_left(request: &Request) -> Micros {
    request.timeout.map_or(Micros::MAX, |timeout| {
        let tenth = Micros(timeout.0 / 10);
        timeout.since(tenth.clamp(TIMEOUT_MARGIN_MIN, TIMEOUT_MARGIN_MAX))
    })
}
