//! Requests whose counters are in several slots of a cluster.
//!
//! No script spans slots. Each slot's counters are checked and charged by themselves; the verdict is
//! worked out here, and what was charged is given back where the request is denied. Meanwhile others may
//! find less room than there is, but never more.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::cluster::Cluster;
use super::script::{Answer, Ask};
use super::slots::Slot;
use crate::algorithm::{Demand, Hits, Limit, Micros, Outcome, Policy, State};
use crate::clock::instant;
use crate::store::{Charged, Check, CounterKey, Outcomes, Role, StoreError, denies, uncharged};
use crate::telemetry::Source;

/// What is given back may be on its way for longer than its request has time.
const GIVE_BACK_MAX: Duration = Duration::from_secs(1);

/// The checks of a request whose counters share a slot.
struct Group<'c> {
    slot: Slot,
    /// Which of the request's checks they are.
    numbers: SmallVec<[usize; 2]>,
    checks: SmallVec<[Check<'c>; 2]>,
}

/// A group that outlives its request.
struct OwnedGroup {
    slot: Slot,
    checks: Vec<(CounterKey, Limit, Demand, Role)>,
}

/// What was decided about a group by itself.
struct Part {
    outcomes: Outcomes,
    denied: bool,
    answer: Answer,
}

/// Decides over counters wherever they are.
pub(super) async fn charge(
    cluster: &Arc<Cluster>,
    checks: &[Check<'_>],
    ends: Instant,
) -> Result<Charged, StoreError> {
    let groups = groups(cluster, checks);
    if let [group] = &groups[..] {
        let answer = cluster.ask(Ask::new(checks), group.slot, ends).await?;
        return Ok(answer.charged(checks)?);
    }
    let parts = charge_each(cluster, &groups, ends).await?;
    let mut outcomes = in_order(&groups, &parts);
    let denied = denies(checks, &outcomes);
    if denied {
        give_back(cluster, groups.iter().zip(&parts), ends).await;
        for (group, part) in groups.iter().zip(&parts) {
            group.take_back(part, &mut outcomes)?;
        }
    }
    Ok(Charged {
        outcomes,
        denied,
        now: Micros::ZERO,
        evidence: None,
        split: true,
        source: Source::Store,
    })
}

/// The outcomes of the parts, in the order of the request's checks.
fn in_order(groups: &[Group<'_>], parts: &[Part]) -> Outcomes {
    let of_parts = groups.iter().zip(parts).flat_map(|(group, part)| {
        let numbers = group.numbers.iter().copied();
        numbers.zip(part.outcomes.iter().copied())
    });
    let mut numbered: SmallVec<[(usize, Outcome); 4]> = of_parts.collect();
    numbered.sort_unstable_by_key(|&(number, _)| number);
    numbered.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The states of counters wherever they are.
pub(super) async fn states(
    cluster: &Arc<Cluster>,
    checks: &[Check<'_>],
    ends: Instant,
) -> Result<Vec<Option<State>>, StoreError> {
    let groups = groups(cluster, checks);
    let mut states = vec![None; checks.len()];
    for (group, answer) in groups.iter().zip(ask_each(cluster, &groups, ends).await) {
        let part = answer?.states(&group.checks)?;
        for (&number, state) in group.numbers.iter().zip(part) {
            states[number] = Some(state);
        }
    }
    Ok(states)
}

/// By slot, in the order of each slot's first check.
fn groups<'c>(cluster: &Cluster, checks: &[Check<'c>]) -> SmallVec<[Group<'c>; 4]> {
    let mut groups: SmallVec<[Group<'c>; 4]> = SmallVec::new();
    for (number, check) in checks.iter().enumerate() {
        let slot = cluster.slot_of(&check.key);
        let index = groups.iter().position(|group| group.slot == slot);
        let index = index.unwrap_or_else(|| {
            groups.push(Group {
                slot,
                numbers: SmallVec::new(),
                checks: SmallVec::new(),
            });
            groups.len() - 1
        });
        groups[index].numbers.push(number);
        groups[index].checks.push(part_of_request(check));
    }
    groups
}

/// Whether all quotas are over is not for one slot to say.
fn part_of_request<'c>(check: &Check<'c>) -> Check<'c> {
    let role = match check.role {
        Role::Quota(_) => Role::Shadow,
        role => role,
    };
    Check {
        role,
        ..check.clone()
    }
}

async fn ask_each(
    cluster: &Arc<Cluster>,
    groups: &[Group<'_>],
    ends: Instant,
) -> Vec<Result<Answer, StoreError>> {
    let ask = |group: &Group<'_>| cluster.ask(Ask::new(&group.checks), group.slot, ends);
    join_all(groups.iter().map(ask)).await
}

/// Asks about groups, for a caller that may hang up: what was charged by then is given back.
struct Asked<'g, 'c> {
    cluster: &'g Arc<Cluster>,
    groups: &'g [Group<'c>],
    answers: Vec<Answering>,
}

/// An answer, or who will have it.
enum Answering {
    Task(JoinHandle<Result<Answer, StoreError>>),
    Done(Result<Answer, StoreError>),
}

impl Answering {
    async fn wait(&mut self) {
        if let Self::Task(task) = self {
            let answer = task.await;
            let is_gone = |_| Err(StoreError::Unreachable("shutting down".to_owned()));
            *self = Self::Done(answer.unwrap_or_else(is_gone));
        }
    }

    /// Once it has been waited for.
    fn into_answer(self) -> Result<Answer, StoreError> {
        match self {
            Self::Done(answer) => answer,
            Self::Task(_) => Err(StoreError::Timeout),
        }
    }
}

impl<'g, 'c> Asked<'g, 'c> {
    fn new(cluster: &'g Arc<Cluster>, groups: &'g [Group<'c>], ends: Instant) -> Self {
        let ask = |group: &Group<'_>| {
            let (cluster, ask, slot) = (cluster.clone(), Ask::new(&group.checks), group.slot);
            let asking = async move { cluster.ask(ask, slot, ends).await };
            Answering::Task(tokio::spawn(asking))
        };
        Self {
            cluster,
            groups,
            answers: groups.iter().map(ask).collect(),
        }
    }

    async fn answers(mut self) -> Vec<Result<Answer, StoreError>> {
        for answer in &mut self.answers {
            answer.wait().await;
        }
        // They are the caller's now.
        let answers = std::mem::take(&mut self.answers);
        answers.into_iter().map(Answering::into_answer).collect()
    }
}

impl Drop for Asked<'_, '_> {
    fn drop(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let (cluster, answers) = (self.cluster.clone(), std::mem::take(&mut self.answers));
        let groups: Vec<_> = self.groups.iter().map(Group::to_owned).collect();
        tokio::spawn(async move {
            for (group, mut answer) in groups.iter().zip(answers) {
                answer.wait().await;
                let group = group.borrowed();
                let part = answer.into_answer();
                if let Ok(part) = part.and_then(|answer| Part::new(answer, &group.checks)) {
                    let parts = [(&group, &part)].into_iter();
                    give_back(&cluster, parts, ends_after(GIVE_BACK_MAX)).await;
                }
            }
        });
    }
}

/// Where a group has no answer there is none to the request; what the others charged is given back.
async fn charge_each(
    cluster: &Arc<Cluster>,
    groups: &[Group<'_>],
    ends: Instant,
) -> Result<Vec<Part>, StoreError> {
    let mut failure = None;
    let mut parts = Vec::with_capacity(groups.len());
    let mut charged = Vec::with_capacity(groups.len());
    let answers = Asked::new(cluster, groups, ends).answers().await;
    for (group, answer) in groups.iter().zip(answers) {
        match answer.and_then(|answer| Part::new(answer, &group.checks)) {
            Ok(part) => {
                parts.push(part);
                charged.push(group);
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    let Some(failure) = failure else {
        return Ok(parts);
    };
    give_back(cluster, charged.into_iter().zip(&parts), ends).await;
    Err(failure)
}

impl Part {
    fn new(answer: Answer, checks: &[Check<'_>]) -> Result<Self, StoreError> {
        let charged = answer.charged(checks)?;
        Ok(Self {
            outcomes: charged.outcomes,
            denied: charged.denied,
            answer,
        })
    }

    /// What is given back after its window has ended would make room in the next, which it never filled.
    fn time_to_give_back(&self, group: &Group<'_>) -> Duration {
        let left = group.checks.iter().map(|check| {
            let window = check.limit.window().0;
            match check.limit.policy() {
                Policy::FixedWindow | Policy::SlidingWindowCounter => {
                    Micros(window - self.answer.now.0 % window)
                }
                _ => Micros::MAX,
            }
        });
        left.min().unwrap_or(Micros::MAX).into()
    }

    /// Whether the check was charged, and is not to be if the request is denied.
    fn is_owed(&self, check: &Check<'_>, index: usize) -> bool {
        let is_charge = matches!(check.demand.hits, Hits::Charge(_));
        is_charge && !self.denied && !check.limit.charge_denied() && self.outcomes[index].admitted
    }
}

impl OwnedGroup {
    fn borrowed(&self) -> Group<'_> {
        let checks = self.checks.iter();
        let checks = checks.map(|(key, limit, demand, role)| Check {
            key: key.clone(),
            limit,
            demand: *demand,
            role: *role,
        });
        Group {
            slot: self.slot,
            numbers: (0..self.checks.len()).collect(),
            checks: checks.collect(),
        }
    }
}

impl<'c> Group<'c> {
    fn to_owned(&self) -> OwnedGroup {
        let check = |check: &Check<'_>| {
            let limit = check.limit.clone();
            (check.key.clone(), limit, check.demand, check.role)
        };
        OwnedGroup {
            slot: self.slot,
            checks: self.checks.iter().map(check).collect(),
        }
    }

    /// The outcomes of checks that are not charged after all.
    fn take_back(&self, part: &Part, outcomes: &mut [Outcome]) -> Result<(), StoreError> {
        let states = part.answer.states(&self.checks)?;
        for (index, (check, &number)) in self.checks.iter().zip(&self.numbers).enumerate() {
            if part.is_owed(check, index) {
                outcomes[number] = uncharged(check.limit, &states[index], part.answer.now);
            }
        }
        Ok(())
    }

    /// What gives back all that the group was charged, if that is anything.
    fn refund(&self, part: &Part) -> Option<Ask> {
        let refund = |(index, check): (usize, &Check<'c>)| match check.demand.hits {
            Hits::Charge(hits) if part.is_owed(check, index) => Some(Check {
                demand: Demand::patient(Hits::Refund(hits)),
                role: Role::Shadow,
                ..check.clone()
            }),
            _ => None,
        };
        let refunds: SmallVec<[Check<'c>; 2]> =
            self.checks.iter().enumerate().filter_map(refund).collect();
        (!refunds.is_empty()).then(|| Ask::new(&refunds))
    }
}

/// A task of its own does it, so that it is done even if the caller hangs up or its time is over.
async fn give_back<'g, 'c: 'g>(
    cluster: &Arc<Cluster>,
    parts: impl Iterator<Item = (&'g Group<'c>, &'g Part)>,
    ends: Instant,
) {
    let refunds: Vec<(Slot, Ask, Duration)> = parts
        .filter_map(|(group, part)| {
            let time = part.time_to_give_back(group).min(GIVE_BACK_MAX);
            Some((group.slot, group.refund(part)?, time))
        })
        .collect();
    if refunds.is_empty() {
        return;
    }
    let cluster = cluster.clone();
    let giving_back = tokio::spawn(async move {
        let asks = refunds
            .into_iter()
            .map(|(slot, ask, time)| cluster.ask(ask, slot, ends_after(time)));
        // What can't be given back now never is: the counter then shows too much for a while.
        let _best_effort = join_all(asks).await;
    });
    let _goes_on = timeout_at(ends, giving_back).await;
}

/// When a time that begins now is over.
pub(super) fn ends_after(time: Duration) -> Instant {
    instant() + time
}
