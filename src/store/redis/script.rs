//! The script that decides: what it is asked, and what its answers mean.
//!
//! It answers with each counter's state before the request; the outcome is then worked out here, by the
//! same [`algorithm::check`] that the embedded store uses. Only whether a check is admitted, and what
//! is charged, is written twice, and a property test holds the two together.

use std::fmt::Write;
use std::sync::LazyLock;

use sha1::{Digest, Sha1};
use smallvec::{SmallVec, smallvec};

use crate::algorithm::{self, Algorithm, Bucket, Counter, Hits, Limit, Log, Micros, State, Window};
use crate::store::{
    Charged, Check, CounterKey, Outcomes, Role, StoreError, denies, is_charged, uncharged,
};
use crate::telemetry::Source;

/// A file for each part; the algorithms are those of `crate::algorithm`.
const SOURCE: &str = concat!(
    include_str!("script/prelude.lua"),
    include_str!("script/fixed_window.lua"),
    include_str!("script/sliding_window_counter.lua"),
    include_str!("script/sliding_window_log.lua"),
    include_str!("script/buckets.lua"),
    include_str!("script/decide.lua"),
);

/// The command that makes a server know the script.
pub(super) fn load() -> redis::Cmd {
    redis::cmd("SCRIPT").arg("LOAD").arg(SOURCE).to_owned()
}

/// The name that Redis has for it.
pub(super) fn sha1() -> &'static str {
    static SHA1: LazyLock<String> = LazyLock::new(|| format!("{:x}", Sha1::digest(SOURCE)));
    &SHA1
}

/// One request to the script, independent of whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    checks: SmallVec<[AskedCheck; 2]>,
    /// Whether two checks have the same counter.
    has_twins: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct AskedCheck {
    key: CounterKey,
    algorithm: Letter,
    /// What is asked, as the script reads it. Apart from the key, so that it is read once for many.
    question: String,
}

/// An algorithm, as the script names it.
type Letter = &'static str;

/// The arguments of one call, built up ask by ask.
#[derive(Debug, Default)]
pub struct Call<'a> {
    /// Every counter once.
    pub keys: Vec<&'a [u8]>,
    /// What is asked about them.
    pub arguments: Vec<Argument<'a>>,
}

/// An argument of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument<'a> {
    /// Time, counts, and numbers of keys.
    Number(u64),
    /// What is asked.
    Question(&'a str),
}

/// An answer that makes no sense, which only a script that isn't ours could give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbled;

impl From<Garbled> for StoreError {
    fn from(Garbled: Garbled) -> Self {
        Self::Refused("its reply makes no sense".to_owned())
    }
}

/// The answer to one ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The server's time.
    pub now: Micros,
    /// Whether the request is denied.
    pub denied: bool,
    /// What it said of each check.
    numbers: SmallVec<[u64; 8]>,
}

impl Ask {
    /// What to ask about these checks.
    #[must_use]
    pub fn new(checks: &[Check<'_>]) -> Self {
        let is_twin = |(index, check): (usize, &Check<'_>)| {
            checks[..index].iter().any(|other| other.key == check.key)
        };
        Self {
            has_twins: checks.iter().enumerate().any(is_twin),
            checks: checks.iter().map(AskedCheck::new).collect(),
        }
    }
}

impl AskedCheck {
    fn new(check: &Check<'_>) -> Self {
        let (algorithm, numbers) = numbers(check);
        let role = match check.role {
            Role::Hard => 0,
            Role::Shadow => 1,
            Role::Quota(number) => 2 + number,
        };
        let direction = match check.demand.hits {
            Hits::Look => 0,
            Hits::Charge(_) => 1,
            Hits::Refund(_) => REFUND,
        };
        let charge_denied = u8::from(check.limit.charge_denied());
        let mut question = String::with_capacity(QUESTION_LENGTH);
        let _infallible = write!(question, "{algorithm} {role} {charge_denied} {direction}");
        if direction == REFUND {
            let until = check.demand.until.0.min(INSTANT_MAX);
            let _infallible = write!(question, " {until}");
        }
        for number in numbers {
            let _infallible = write!(question, " {number}");
        }
        Self {
            key: check.key.clone(),
            algorithm,
            question,
        }
    }
}

/// A direction, as the script reads it.
const REFUND: u8 = 2;

/// No later instant is a number that Lua has exactly, and none of this century is later.
const INSTANT_MAX: u64 = 1 << 53;

/// Most are shorter.
const QUESTION_LENGTH: usize = 96;

/// The algorithm's letter and its numbers, as the script reads them.
fn numbers(check: &Check<'_>) -> (Letter, SmallVec<[u64; 11]>) {
    let limit = check.limit;
    if limit.requests() == 0 {
        return ("z", SmallVec::new());
    }
    let hits = match check.demand.hits {
        Hits::Charge(hits) | Hits::Refund(hits) => hits,
        Hits::Look => 1,
    };
    let (requests, window) = (u64::from(limit.requests()), limit.window().0);
    match limit.policy().algorithm() {
        Algorithm::FixedWindow => ("f", smallvec![hits, requests, window]),
        Algorithm::SlidingWindowLog => ("l", smallvec![hits, requests, window]),
        Algorithm::SlidingWindowCounter => {
            let (tick, ticks) = algorithm::ticks(limit);
            ("c", smallvec![hits, requests, window, tick, ticks])
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let terms = algorithm::bucket_terms(limit, check.demand);
            let mut numbers = smallvec![u64::from(terms.denominator)];
            for (whole, fraction) in [
                terms.needs,
                terms.room,
                terms.adds,
                terms.capacity,
                terms.most,
            ] {
                numbers.push(whole);
                // Of a denominator of 1 there are no fractions.
                if terms.denominator > 1 {
                    numbers.push(u64::from(fraction));
                }
            }
            ("b", numbers)
        }
    }
}

impl<'a> Call<'a> {
    /// A call about `asks`, each of which is answered as if the earlier ones had come before it. `now`
    /// is for tests; without it the server's clock is asked.
    #[must_use]
    pub fn new(asks: impl IntoIterator<Item = &'a Ask>, now: Option<Micros>) -> Self {
        let now = now.unwrap_or_default().0;
        let mut call = Self {
            keys: Vec::new(),
            arguments: vec![Argument::Number(now), Argument::Number(0)],
        };
        let mut count = 0;
        for ask in asks {
            call.push(ask);
            count += 1;
        }
        call.arguments[1] = Argument::Number(count);
        call
    }

    fn push(&mut self, ask: &'a Ask) {
        let count = ask.checks.len() as u64;
        let header = 2 * count + u64::from(ask.has_twins);
        self.arguments.push(Argument::Number(header));
        for check in &ask.checks {
            let key = self.key_number(check.key.as_bytes());
            self.arguments.push(Argument::Number(key));
            self.arguments.push(Argument::Question(&check.question));
        }
    }

    /// Counted from 1, as Lua does. Batches are small, and their last keys the likeliest to repeat.
    fn key_number(&mut self, key: &'a [u8]) -> u64 {
        let known = self.keys.iter().rposition(|other| *other == key);
        let index = known.unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        });
        index as u64 + 1
    }
}

/// Cuts the reply to a call into the answers to its asks.
pub fn answers<'a>(
    asks: impl IntoIterator<Item = &'a Ask>,
    reply: &[u64],
) -> Result<Vec<Answer>, Garbled> {
    let mut reply = reply.iter().copied();
    let now = Micros(reply.next().ok_or(Garbled)?);
    let answer = |ask: &Ask| {
        let denied = reply.next().ok_or(Garbled)? != 0;
        let count = ask
            .checks
            .iter()
            .map(|check| numbers_of(check.algorithm))
            .sum();
        let numbers: SmallVec<_> = reply.by_ref().take(count).collect();
        let is_whole = numbers.len() == count;
        is_whole
            .then_some(Answer {
                now,
                denied,
                numbers,
            })
            .ok_or(Garbled)
    };
    asks.into_iter().map(answer).collect()
}

/// How many numbers describe a state.
fn numbers_of(algorithm: &str) -> usize {
    match algorithm {
        "z" => 0,
        "c" => 3,
        "l" => 4,
        _ => 2,
    }
}

impl Answer {
    /// What was decided about `checks`, which are those that the ask was made of.
    pub fn charged(&self, checks: &[Check<'_>]) -> Result<Charged, Garbled> {
        let states = self.states(checks)?;
        let mut outcomes: Outcomes = checks
            .iter()
            .zip(&states)
            .map(|(check, state)| algorithm::check(check.limit, state, self.now, check.demand))
            .collect();
        if denies(checks, &outcomes) != self.denied {
            return Err(Garbled);
        }
        for ((check, outcome), state) in checks.iter().zip(&mut outcomes).zip(&states) {
            if outcome.admitted && !is_charged(check, outcome, self.denied, self.now) {
                *outcome = uncharged(check.limit, state, self.now);
            }
        }
        Ok(Charged {
            outcomes,
            denied: self.denied,
            now: self.now,
            evidence: self.denied.then(|| Box::new(states)),
            split: false,
            source: Source::Store,
        })
    }

    /// The states of the counters before the request.
    pub fn states(&self, checks: &[Check<'_>]) -> Result<SmallVec<[State; 4]>, Garbled> {
        let mut numbers = self.numbers.iter().copied();
        checks
            .iter()
            .map(|check| state(check.limit, self.now, &mut numbers))
            .collect()
    }
}

fn state(
    limit: &Limit,
    now: Micros,
    numbers: &mut impl Iterator<Item = u64>,
) -> Result<State, Garbled> {
    if limit.requests() == 0 {
        return Ok(State::new(limit, now));
    }
    let mut next = || numbers.next().ok_or(Garbled);
    Ok(match limit.policy().algorithm() {
        Algorithm::FixedWindow => State::Window(Window {
            index: next()?,
            count: next()?,
        }),
        Algorithm::SlidingWindowCounter => State::Counter(Counter {
            index: next()?,
            current: next()?,
            previous: next()?,
        }),
        Algorithm::SlidingWindowLog => {
            let (total, newest, decisive, instant) = (next()?, next()?, next()?, next()?);
            State::Log(Box::new(log(total, newest, decisive, instant)))
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket => State::Bucket(Bucket {
            tat: Micros(now.0 + next()?),
            fraction: u32::try_from(next()?).map_err(|_| Garbled)?,
        }),
    })
}

/// A log that answers this one request as the real one would: the hits up to the one whose instant
/// decides are all put there, the rest at the newest.
fn log(total: u64, newest: u64, decisive: u64, instant: u64) -> Log {
    let entries = [
        (Micros(instant), decisive),
        (Micros(newest), total - decisive.min(total)),
    ];
    Log::from_entries(entries.into_iter().filter(|&(_, hits)| hits > 0))
}
