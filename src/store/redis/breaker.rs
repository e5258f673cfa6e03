//! When a node that fails is left alone, and when it is asked again: the steps, without what they set off.
//!
//! A node is left alone when it has failed several times in a row, for longer than a hiccup lasts: one
//! slow moment fails many requests at once, and is over sooner than a probe would come. From then on
//! probes alone decide, one at a time; answers that were still on their way don't count.

use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row, at least, before a node is left alone.
pub(super) const FAILURES_MIN: u32 = 3;

/// The longest wait for the first probe; it doubles with every probe that fails.
pub(super) const FIRST_PROBE_MAX: Duration = Duration::from_millis(200);

/// The longest time from the start of a probe to that of the next.
pub(super) const PROBES_APART_MAX: Duration = Duration::from_secs(2);

/// What a node is thought to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is asked.
    Closed(Record),
    /// It is not asked until a probe is due.
    Open {
        /// When it was given up.
        since: Instant,
        /// Probes that failed.
        probes: u32,
        /// When the next begins.
        probe_at: Instant,
    },
    /// It is not asked, and a probe is on its way.
    HalfOpen {
        /// When it was given up.
        since: Instant,
        /// Probes that failed.
        probes: u32,
        /// When this one began.
        started: Instant,
    },
}

/// What a node that is asked has done lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Answered.
    Well,
    /// Failed so often since it last answered, for the first time then.
    Failing { failures: u32, since: Instant },
}

/// What was seen of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It answered in time.
    Answered,
    /// It didn't, or refused.
    Failed,
    /// The next probe begins.
    ProbeBegan,
    /// It did what the probe asked.
    ProbeAnswered,
    /// It didn't.
    ProbeFailed,
    /// It has nothing more to be asked about.
    Retired,
}

/// What is decided beforehand about a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    /// A node that failed for less is still asked.
    pub(super) failing_min: Duration,
}

impl State {
    /// What every node is thought to be like at first.
    pub(super) const NEW: Self = Self::Closed(Record::Well);

    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }

    /// For a gauge.
    pub(super) fn number(&self) -> u8 {
        match self {
            Self::Closed(_) => 0,
            Self::HalfOpen { .. } => 1,
            Self::Open { .. } => 2,
        }
    }

    /// The state after `event`. Waits are shortened by up to a half, the more the greater `jitter` is.
    pub(super) fn after(
        self,
        event: Event,
        now: Instant,
        tolerance: Tolerance,
        jitter: u8,
    ) -> Self {
        match (self, event) {
            // Closed => (Closed | Open)
            (Self::Closed(record), Event::Failed) => {
                let (failures, since) = match record {
                    Record::Well => (1, now),
                    Record::Failing { failures, since } => (failures.saturating_add(1), since),
                };
                if failures >= FAILURES_MIN && now >= since + tolerance.failing_min {
                    Self::open(now, jitter)
                } else {
                    Self::Closed(Record::Failing { failures, since })
                }
            }
            // A probe before anything was asked.
            (Self::Closed(_), Event::ProbeFailed) => Self::open(now, jitter),

            // Open => HalfOpen
            (Self::Open { since, probes, .. }, Event::ProbeBegan) => Self::HalfOpen {
                since,
                probes,
                started: now,
            },

            // HalfOpen => (Closed | Open)
            (
                Self::HalfOpen {
                    since,
                    probes,
                    started,
                },
                Event::ProbeFailed,
            ) => {
                let probes = probes.saturating_add(1);
                Self::Open {
                    since,
                    probes,
                    probe_at: started + wait(probes, jitter),
                }
            }

            (Self::Closed(_), Event::Answered)
            | (Self::Closed(_) | Self::HalfOpen { .. }, Event::ProbeAnswered)
            | (_, Event::Retired) => Self::NEW,
            _ => self,
        }
    }

    fn open(now: Instant, jitter: u8) -> Self {
        Self::Open {
            since: now,
            probes: 0,
            probe_at: now + wait(0, jitter),
        }
    }
}

/// From the start of one probe to that of the next.
fn wait(probes: u32, jitter: u8) -> Duration {
    let doubled = FIRST_PROBE_MAX.saturating_mul(1_u32.checked_shl(probes).unwrap_or(u32::MAX));
    let longest = doubled.min(PROBES_APART_MAX);
    longest.saturating_sub(longest / 2 * u32::from(jitter) / u32::from(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::instant;

    const TOLERANCE: Tolerance = Tolerance {
        failing_min: Duration::from_millis(20),
    };

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A node that lives through events, each some milliseconds after the one before.
    fn after(events: &[(u64, Event)]) -> (State, Instant) {
        let mut now = instant();
        let mut state = State::NEW;
        for &(later, event) in events {
            now += ms(later);
            state = state.after(event, now, TOLERANCE, 0);
        }
        (state, now)
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_failures_is_a_hiccup() {
        let burst = [(0, Event::Failed); 100];
        assert!(after(&burst).0.is_closed());
        let (state, now) = after(&[(0, Event::Failed), (1, Event::Failed), (18, Event::Failed)]);
        assert!(state.is_closed());
        assert!(
            !state
                .after(Event::Failed, now + ms(1), TOLERANCE, 0)
                .is_closed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn two_failures_are_too_few_however_far_apart() {
        let (state, now) = after(&[(0, Event::Failed), (60_000, Event::Failed)]);
        assert!(state.is_closed());
        assert!(!state.after(Event::Failed, now, TOLERANCE, 0).is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_clears_the_record() {
        let (state, _) = after(&[
            (0, Event::Failed),
            (30, Event::Failed),
            (0, Event::Answered),
        ]);
        assert_eq!(state, State::NEW);
        let (state, _) = after(&[
            (0, Event::Failed),
            (30, Event::Failed),
            (0, Event::Answered),
            (0, Event::Failed),
            (0, Event::Failed),
            (19, Event::Failed),
        ]);
        assert!(state.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_probe_closes() {
        let (open, now) = after(&[(0, Event::Failed), (0, Event::Failed), (20, Event::Failed)]);
        let State::Open {
            since,
            probes: 0,
            probe_at,
        } = open
        else {
            panic!("{open:?}");
        };
        assert_eq!((since, probe_at), (now, now + FIRST_PROBE_MAX));
        for event in [
            Event::Answered,
            Event::Failed,
            Event::ProbeAnswered,
            Event::ProbeFailed,
        ] {
            assert_eq!(open.after(event, now, TOLERANCE, 0), open, "{event:?}");
        }
        let probing = open.after(Event::ProbeBegan, probe_at, TOLERANCE, 0);
        for event in [Event::Answered, Event::Failed, Event::ProbeBegan] {
            assert_eq!(
                probing.after(event, now, TOLERANCE, 0),
                probing,
                "{event:?}"
            );
        }
        assert_eq!(
            probing.after(Event::ProbeAnswered, now, TOLERANCE, 0),
            State::NEW
        );
    }

    #[tokio::test(start_paused = true)]
    async fn probes_come_soon_and_then_more_seldom_but_never_too_seldom() {
        for jitter in [0, 1, 127, 255] {
            let mut now = instant();
            let mut state = State::NEW.after(Event::ProbeFailed, now, TOLERANCE, jitter);
            let mut apart = Vec::new();
            for _ in 0..100 {
                let State::Open { probe_at, .. } = state else {
                    panic!("{state:?}");
                };
                apart.push(probe_at - now);
                now = probe_at;
                state = state.after(Event::ProbeBegan, now, TOLERANCE, jitter);
                // However long the probe takes, the next is due so long after its start.
                state = state.after(Event::ProbeFailed, now + ms(150), TOLERANCE, jitter);
            }
            assert!(apart[0] <= ms(250) && apart[0] >= ms(100), "{apart:?}");
            assert!(apart.is_sorted(), "{apart:?}");
            assert!(
                apart[99] <= ms(2_000) && apart[99] >= ms(1_000),
                "{apart:?}"
            );
        }
    }
}
