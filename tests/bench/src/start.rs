//! The agent's start on a cluster of any size: the time until the rules are in force, and the part of it after the
//! initial sync; and a start that adopts correct rules in the kernel.

mod report;

use std::path::Path;
use std::time::{Duration, SystemTime};

use policy::Kind;

use super::fed::{Agent, Stage};
use super::record::Measurement;
use generator::cluster::{Cluster, Size as ClusterSize};
use report::StartReport;

/// The log line of the completed initial sync.
const LISTED: &str = "initial sync complete";

/// Deadline with a large margin: the slowest agent and the largest cluster need seconds.
const WITHIN: Duration = Duration::from_secs(600);

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Size {
    /// Pods of each cluster.
    pub pods: Vec<usize>,
    /// Starts with an empty kernel, each followed by one that adopts the rules.
    pub rounds: usize,
}

/// One start.
struct Start {
    /// From the start of the process until the initial sync was complete, and the processor time in it, used for
    /// reading and decoding.
    listed: Duration,
    decoding: Duration,
    /// From there until the rules were committed, or the kernel's rules were found to be correct.
    committed: Duration,
    /// Transactions of this process.
    commits: u64,
    elements: u64,
}

impl Start {
    fn whole(&self) -> Duration {
        self.listed + self.committed
    }
}

struct Run {
    cluster: ClusterSize,
    json_bytes: usize,
    cold: Vec<Start>,
    again: Vec<Start>,
}

/// Measures with the program, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(program: &Path, size: &Size) -> Measurement {
    let runs = size.pods.iter().map(|pods| run(program, *pods, size.rounds)).collect();
    StartReport { runs }.measured()
}

fn run(program: &Path, pods: usize, rounds: usize) -> Run {
    let cluster = Cluster::of(ClusterSize::of_pods(pods));
    let json_bytes = Kind::ALL.map(|kind| cluster.json_bytes(kind)).iter().sum();
    let (mut cold, mut again) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let stage = Stage::new(program);
        let api = stage.serve(cluster.clone());
        cold.push(start(&stage, || stage.start(&api)));
        again.push(start(&stage, || stage.start(&api)));
    }
    Run { cluster: cluster.size(), json_bytes, cold, again }
}

/// Starts an agent, waits until its rules are in force, and ends it: its rules stay.
fn start<'stage>(stage: &'stage Stage, begin: impl FnOnce() -> Agent<'stage>) -> Start {
    let commits = stage.commits();
    let begun = SystemTime::now();
    let mut agent = begin();
    let line = agent.0.until_within(WITHIN, "its lists are complete", |agent| {
        agent.log().lines().find(|line| line.contains(LISTED)).map(String::from)
    });
    let decoding = agent.processor_time();
    agent.until_ready();
    let ready = SystemTime::now();
    let listed = time_of(&line, begun);
    let own_commits = agent.0.metric("ringfence_commits_total");
    let seen = commits.seen();
    // Without its own commit the rules are in force when the agent is ready, which is polled every few milliseconds.
    let in_force = if own_commits > 0 { seen.commits.iter().copied().find(|at| *at >= listed) } else { None };
    let elements = agent.0.metric("ringfence_elements");
    agent.0.stop();
    Start {
        listed: since(begun, listed),
        decoding,
        committed: since(listed, in_force.unwrap_or(ready)),
        commits: own_commits,
        elements,
    }
}

/// The timestamp at the start of a log line, on the day of `day` or the next.
fn time_of(line: &str, day: SystemTime) -> SystemTime {
    const DAY_SECONDS: u64 = 86_400;
    let (_, time) = line.split_once('T').expect("a line begins with its time");
    let (time, _) = time.split_once('Z').expect("the time is that of UTC");
    let mut parts = time.split(':').map(|part| part.parse::<f64>().expect("a time of day"));
    let mut part = || parts.next().expect("a time of day");
    let of_day = part() * 3600.0 + part() * 60.0 + part();
    let seconds = since(SystemTime::UNIX_EPOCH, day).as_secs();
    let at =
        |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(days * DAY_SECONDS) + Duration::from_secs_f64(of_day);
    let today = at(seconds / DAY_SECONDS);
    if today + Duration::from_secs(DAY_SECONDS / 2) < day { at(seconds / DAY_SECONDS + 1) } else { today }
}

fn since(earlier: SystemTime, later: SystemTime) -> Duration {
    later.duration_since(earlier).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_line_time_may_cross_midnight() {
        let day = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 3 + 86_399);
        let seconds = |line: &str| since(SystemTime::UNIX_EPOCH, time_of(line, day)).as_secs_f64();
        assert_eq!(seconds("1970-01-04T23:59:59.500000Z  INFO x"), 86_400.0 * 3.0 + 86_399.5);
        assert_eq!(seconds("1970-01-05T00:00:00.250000Z  INFO x"), 86_400.0 * 4.0 + 0.25);
    }
}
