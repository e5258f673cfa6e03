//! What a run comes to, as text.

use std::fmt;
use std::fs;

use comporta::algorithm::Micros;

use super::allowed::{Admissions, Limit};
use super::run::{Schedule, Sent};

/// All that there is to say about a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) answers: usize,
    pub(crate) errors: Vec<(String, usize)>,
    pub(crate) admissions: Admissions,
    /// In order, without those of the warm-up.
    latencies: Vec<Micros>,
    measured: Micros,
    processes: Vec<Use>,
}

impl Report {
    pub(crate) fn new(limit: &Limit, schedule: Schedule, sent: Sent, processes: Vec<Use>) -> Self {
        let Sent { mut calls, errors } = sent;
        let counted = calls
            .iter()
            .filter(|call| call.began >= schedule.counts_from);
        let mut latencies: Vec<_> = counted.map(|call| call.ended.since(call.began)).collect();
        latencies.sort_unstable();
        Self {
            answers: calls.len(),
            errors: errors.into_iter().collect(),
            admissions: limit.judge(&mut calls),
            latencies,
            measured: schedule.ends.since(schedule.counts_from),
            processes,
        }
    }

    /// Whether the figures mean anything: every call was answered, and none wrongly admitted.
    pub(crate) fn is_right(&self) -> bool {
        self.answers > 0 && self.errors.is_empty() && self.admissions.too_many == 0
    }

    /// The latency that so many of 1 000 calls stay below.
    fn latency(&self, per_mille: usize) -> Micros {
        let last = self.latencies.len().saturating_sub(1);
        let at = self.latencies.get(last * per_mille / 1_000);
        at.copied().unwrap_or_default()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = self.latencies.len() as u64;
        let seconds = self.measured.0 / Micros::PER_SECOND;
        writeln!(
            f,
            "calls       {} per second ({calls} in {seconds} s)",
            calls / seconds
        )?;
        let [p50, p90, p99, p999, most] =
            [500, 900, 990, 999, 1_000].map(|per_mille| self.latency(per_mille).0);
        writeln!(
            f,
            "latency     p50 {p50} µs, p90 {p90}, p99 {p99}, p99.9 {p999}, most {most}"
        )?;
        let Admissions {
            admitted,
            allowed,
            too_many,
        } = self.admissions;
        writeln!(
            f,
            "admitted    {admitted}, warm-up included; at most {allowed} allowed; too many: {too_many}"
        )?;
        for used in &self.processes {
            let Use {
                name,
                cpu_ms,
                resident_mib,
            } = used;
            let per_100k = (cpu_ms * 100_000).checked_div(calls).unwrap_or_default();
            let (whole, rest) = (per_100k / 1_000, per_100k % 1_000);
            writeln!(
                f,
                "{name:<11} {whole}.{rest:03} s of CPU per 100 000 calls, {resident_mib} MiB resident"
            )?;
        }
        for (error, count) in &self.errors {
            writeln!(f, "ERROR       {count} times: {error}")?;
        }
        if self.admissions.too_many > 0 {
            writeln!(
                f,
                "ERROR       {too_many} calls were admitted that the limit does not allow"
            )?;
        }
        Ok(())
    }
}

/// What a process used while it was measured.
#[derive(Debug)]
pub(crate) struct Use {
    name: String,
    cpu_ms: u64,
    resident_mib: u64,
}

/// A process on this machine, and the CPU time that it had used.
#[derive(Debug)]
pub(crate) struct Watched {
    id: u32,
    cpu_ms: u64,
}

impl Watched {
    /// From now on; none if there is no such process.
    pub(crate) fn start(id: u32) -> Option<Self> {
        Some(Self {
            id,
            cpu_ms: cpu_ms(id)?,
        })
    }

    /// Until now; none if the process has ended.
    pub(crate) fn used(&self) -> Option<Use> {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.id)).ok()?;
        let status = fs::read_to_string(format!("/proc/{}/status", self.id)).ok()?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = resident.split_whitespace().next()?.parse().ok()?;
        Some(Use {
            name: name.trim_end().to_owned(),
            cpu_ms: cpu_ms(self.id)? - self.cpu_ms,
            resident_mib: kib / 1_024,
        })
    }
}

/// User and system time.
fn cpu_ms(id: u32) -> Option<u64> {
    /// Linux counts in hundredths of a second here, whatever its own ticks are.
    const TICK_MS: u64 = 10;
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // After the name, which may hold spaces and ends with the last parenthesis.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse().unwrap_or(0)).sum::<u64>();
    Some(ticks * TICK_MS)
}
