//! Requests whose counters are in several slots of a cluster.
//!
//! No script spans slots. Each slot's counters are checked and charged by themselves; the verdict is
//! worked out here, and what was charged is given back where the request is denied. Meanwhile others may
//! find less room than there is, but never more.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use super::cluster::Cluster;
use super::script::{Answer, Ask};
use super::slots::Slot;
use crate::algorithm::{Demand, Hits, Outcome, State};
use crate::clock::instant;
use crate::store::{Charged, Check, Outcomes, Role, StoreError, denies, uncharged};

/// What is given back may be on its way for longer than its request has time.
const GIVE_BACK_MAX: Duration = Duration::from_secs(1);

/// The checks of a request whose counters share a slot.
struct Group<'c> {
    slot: Slot,
    /// Which of the request's checks they are.
    numbers: SmallVec<[usize; 2]>,
    checks: SmallVec<[Check<'c>; 2]>,
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
        evidence: None,
        split: true,
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

/// Where a group has no answer there is none to the request; what the others charged is given back.
async fn charge_each(
    cluster: &Arc<Cluster>,
    groups: &[Group<'_>],
    ends: Instant,
) -> Result<Vec<Part>, StoreError> {
    let mut failure = None;
    let mut parts = Vec::with_capacity(groups.len());
    let mut charged = Vec::with_capacity(groups.len());
    for (group, answer) in groups.iter().zip(ask_each(cluster, groups, ends).await) {
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

    /// Whether the check was charged, and is not to be if the request is denied.
    fn is_owed(&self, check: &Check<'_>, index: usize) -> bool {
        let is_charge = matches!(check.demand.hits, Hits::Charge(_));
        is_charge && !self.denied && !check.limit.charge_denied() && self.outcomes[index].admitted
    }
}

impl<'c> Group<'c> {
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
    let refunds: Vec<(Slot, Ask)> = parts
        .filter_map(|(group, part)| Some((group.slot, group.refund(part)?)))
        .collect();
    if refunds.is_empty() {
        return;
    }
    let cluster = cluster.clone();
    let giving_back = tokio::spawn(async move {
        let ends = ends_after(GIVE_BACK_MAX);
        let asks = refunds
            .into_iter()
            .map(|(slot, ask)| cluster.ask(ask, slot, ends));
        // What can't be given back now never is: the counter then shows too much for a while.
        let _best_effort = join_all(asks).await;
    });
    let _goes_on = timeout_at(ends, giving_back).await;
}

/// When a time that begins now is over.
pub(super) fn ends_after(time: Duration) -> Instant {
    instant() + time
}
