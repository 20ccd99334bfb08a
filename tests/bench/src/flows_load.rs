//! The aggregator under the records of many agents: an hour of windows first, then windows in real time.
//!
//! Agents are simulated with the ring and the sender of real ones. Each opens connections at a rate, evenly from its
//! pods to the workloads that these call, and reports them once in each window of 15 s; so does the node of the server.
//! At the end, the records put into the rings are compared with the aggregator's answer.

mod agents;
mod served;

use std::fmt::Write;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use super::figures::{Bar, Figure, median_of};
use super::record::{Measurement, Record};
use super::table::MarkdownTable;
use agents::{Agents, InjectedRecords};
use served::{Aggregator, Losses};

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Size {
    pub rounds: usize,
    pub agents: usize,
    pub pods: usize,
    /// Connections that an agent's pods open in a second.
    pub rate: u64,
    /// Windows sent at once at the start.
    pub history: usize,
    /// Windows that follow, one each `tick`.
    pub live: usize,
    pub tick: Duration,
}

const WINDOW: SignedDuration = SignedDuration::from_secs(flow::WINDOW_SECONDS);

/// Windows of an hour.
const HOUR: usize = 240;

/// Pods of the cluster whose size the limit is for.
const PODS: usize = 458;

/// Memory limit of the process with an hour of records.
const MOST_MEGABYTES: f64 = 300.0;

/// Memory limit of the Deployment (512 MiB): beyond it the process is killed.
const LIMIT_MEGABYTES: f64 = 536.0;

const SECTION: &str = "flows-load";

impl Size {
    /// The parameters of `docs/performance.md`: as many windows as an hour has.
    pub fn new(rounds: usize, agents: usize, rate: u64, seconds: usize) -> Size {
        let live = seconds.div_ceil(flow::WINDOW_SECONDS.unsigned_abs() as usize).max(1);
        let tick = Duration::from_secs(flow::WINDOW_SECONDS.unsigned_abs());
        let history = HOUR.saturating_sub(live);
        Size { rounds, agents, pods: PODS, rate, history, live, tick }
    }
}

/// One run.
struct Run {
    injected: InjectedRecords,
    edges: usize,
    /// Records a second while the history is sent.
    records_a_second: f64,
    /// Percent of one processor while windows arrive in real time.
    percent: f64,
    resident_megabytes: f64,
    peak_megabytes: f64,
    estimated_megabytes: f64,
    losses: Losses,
    /// Connections and joined records of `/v1/flows`.
    connections: u64,
    joined: u64,
    flows_seconds: f64,
    graph_seconds: f64,
    statistics_seconds: f64,
}

/// Measures the aggregator beside this program.
///
/// # Panics
/// If it cannot be measured, or missing connections are not counted as lost.
pub fn measure(size: &Size) -> Measurement {
    let runs: Vec<Run> = (0..size.rounds).map(|_| run(size)).collect();
    for run in &runs {
        check(run);
    }
    report(size, &runs)
}

fn run(size: &Size) -> Run {
    let aggregator = Aggregator::start();
    let seconds = Timestamp::now().as_second();
    let now = Timestamp::from_second(seconds - seconds % flow::WINDOW_SECONDS).expect("a time of today");
    let mut agents = Agents::start(size, aggregator.address());
    let begun = Instant::now();
    for number in (1..=size.history).rev() {
        let back = WINDOW * i32::try_from(number).expect("few windows");
        agents.close(now - back, size.rate * flow::WINDOW_SECONDS.unsigned_abs());
    }
    let injected = agents.injected().records;
    agents.until_acknowledged();
    let records_a_second = injected as f64 / begun.elapsed().as_secs_f64();
    // Windows up to 30 s in the future are accepted, so a few may be sent faster than real time.
    let live = Instant::now();
    let before = aggregator.processor_time();
    for number in 0..size.live {
        std::thread::sleep(size.tick);
        let ahead = WINDOW * i32::try_from(number).expect("few windows");
        agents.close(now + ahead, size.rate * flow::WINDOW_SECONDS.unsigned_abs());
    }
    agents.until_acknowledged();
    let percent = 100.0 * (aggregator.processor_time() - before).as_secs_f64() / live.elapsed().as_secs_f64();
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let resident = aggregator.memory().resident_bytes;
    let losses = aggregator.losses();
    let asked = Instant::now();
    let answer = aggregator.flows();
    let flows_seconds = asked.elapsed().as_secs_f64();
    let timed = |path: &str| {
        let asked = Instant::now();
        aggregator.request(path);
        asked.elapsed().as_secs_f64()
    };
    let (graph_seconds, statistics_seconds) = (timed("/v1/graph"), timed("/v1/statistics"));
    Run {
        injected: agents.injected(),
        edges: agents.edges(),
        records_a_second,
        percent,
        resident_megabytes: megabytes(resident),
        peak_megabytes: megabytes(aggregator.memory().peak_bytes),
        estimated_megabytes: megabytes(aggregator.estimated_bytes()),
        losses,
        connections: answer.connections,
        joined: answer.records,
        flows_seconds,
        graph_seconds,
        statistics_seconds,
    }
}

/// Every loss must be counted. Windows are evicted as a whole, so the remaining windows show which records were lost.
fn check(run: &Run) {
    let Losses { missed, evicted, expired, refused, kept_since } = &run.losses;
    let (mut lost_records, mut kept_connections) = (0, 0);
    for (window, of_window) in &run.injected.windows {
        match kept_since.is_some_and(|kept| *window >= kept) {
            true => kept_connections += of_window.connections,
            false => lost_records += of_window.records,
        }
    }
    assert_eq!((*missed, *refused), (0, 0), "every record was received");
    assert_eq!(evicted + expired, lost_records, "what left is counted");
    assert_eq!(run.connections, kept_connections, "the sum over /v1/flows is what the agents reported");
    let Run { resident_megabytes, peak_megabytes, .. } = run;
    assert!(
        *resident_megabytes < MOST_MEGABYTES,
        "{resident_megabytes} MB resident, expected less than {MOST_MEGABYTES}"
    );
    assert!(*peak_megabytes < LIMIT_MEGABYTES, "{peak_megabytes} MB with queries, beyond the limit of the Deployment");
}

/// A row's name, and its figure in a run.
type Row = (&'static str, &'static dyn Fn(&Run) -> f64);

fn report(size: &Size, runs: &[Run]) -> Measurement {
    let figure = |value: &dyn Fn(&Run) -> f64| Figure::of(runs.iter().map(value));
    let rows: [Row; 15] = [
        ("edges (workloads, protocol, port)", &|run| run.edges as f64),
        ("records that agents sent", &|run| run.injected.records as f64),
        ("connections in them, each once", &|run| run.injected.connections as f64),
        ("records received in a second, at once", &|run| run.records_a_second),
        ("aggregator as windows come, % of a processor", &|run| run.percent),
        ("resident memory, MB", &|run| run.resident_megabytes),
        ("most resident memory, with queries, MB", &|run| run.peak_megabytes),
        ("memory of records as estimated, MB", &|run| run.estimated_megabytes),
        ("records missed or refused", &|run| (run.losses.missed + run.losses.refused) as f64),
        ("records evicted", &|run| run.losses.evicted as f64),
        ("joined records of /v1/flows", &|run| run.joined as f64),
        ("connections of /v1/flows", &|run| run.connections as f64),
        ("/v1/flows, s", &|run| run.flows_seconds),
        ("/v1/graph, s", &|run| run.graph_seconds),
        ("/v1/statistics, s", &|run| run.statistics_seconds),
    ];
    let mut table = MarkdownTable::new(["", "figure"]);
    for (name, value) in rows {
        table.row([name.to_owned(), figure(value).short()]);
    }
    let at = (size.agents as f64, "agents");
    let memory = figure(&|run| run.resident_megabytes);
    let records = vec![
        Record::new(SECTION, ("memory", "aggregator"), at, (&memory, "MB")).below(MOST_MEGABYTES),
        Record::new(SECTION, ("processor", "aggregator"), at, (&figure(&|run| run.percent), "% of a processor")),
    ];
    let bar = Bar { figure: memory.median(), below: MOST_MEGABYTES };
    let mut report = format!(
        "\nflows-load: {} agents with {} pods, {} connections a second each, {} windows at once and {} as time goes on; {}\n\n\
         {table}\nbars\n",
        size.agents,
        size.pods,
        size.rate,
        size.history,
        size.live,
        median_of(size.rounds),
    );
    writeln!(report, "  resident memory, MB: {bar}").expect("a String takes all");
    Measurement { report, records }
}
