//! Processor time that flow records cost the agent: connections of one packet each, at a rate, between pods of its
//! node.

mod node;

use std::fmt::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::figures::{Bar, Figure, median_of};
use super::machine::{Place, stay};
use super::record::{Measurement, Record};
use super::table::MarkdownTable;
use node::{Agent, Coverage, Node, Sender};

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Size {
    pub rounds: usize,
    /// Connections a second.
    pub rates: Vec<u32>,
    /// Warm-up before the measurement: the first entries expire, and the first window closes.
    pub warmup: Duration,
    /// Two windows, so that each run has the same number of window dumps.
    pub lasting: Duration,
}

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn of_rounds(rounds: usize) -> Size {
        let rates = vec![1_000, 5_000, 30_000];
        Size { rounds, rates, warmup: Duration::from_secs(15), lasting: Duration::from_secs(30) }
    }
}

/// The bar in percent at 5,000 connections a second.
const BAR: (u32, f64) = (5_000, 20.0);

const SECTION: &str = "connections";

/// Interval at which the sender reads the clock.
const TICK: Duration = Duration::from_micros(500);

/// Interval at which the number of entries is read.
const SAMPLE: Duration = Duration::from_millis(500);

struct Run {
    /// All opened connections, and the rate during the measurement.
    opened: u64,
    opened_a_second: f64,
    /// Percent of one processor.
    percent: f64,
    most_entries: u64,
    coverage: Coverage,
}

/// Measures with the program, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(program: &Path, size: &Size) -> Measurement {
    thread::scope(|scope| {
        // Processor affinity is set in a new thread, so that the caller's stays unchanged.
        let measuring = scope.spawn(|| measure_here(program, size));
        measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn measure_here(program: &Path, size: &Size) -> Measurement {
    stay(Place::Others);
    let node = Node::new(program);
    let mut runs: Vec<Vec<Run>> = size.rates.iter().map(|_| Vec::new()).collect();
    for _ in 0..size.rounds {
        for (rate, runs) in size.rates.iter().zip(&mut runs) {
            let agent = node.start();
            runs.push(run(&node, &agent, *rate, size));
        }
    }
    report(size, &runs)
}

fn run(node: &Node, agent: &Agent, rate: u32, size: &Size) -> Run {
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            stay(Place::Flood);
            send(node, agent, rate, size)
        });
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn send(node: &Node, agent: &Agent, rate: u32, size: &Size) -> Run {
    let mut sender = Sender::new(&node.lab);
    let (mut opened, mut most_entries, mut measured_from) = (0u64, 0, None);
    let mut next_sample = SAMPLE;
    let begun = Instant::now();
    let (percent, opened_a_second) = loop {
        let elapsed = begun.elapsed();
        let due = (elapsed.as_secs_f64() * f64::from(rate)) as u64;
        // At most the connections of 10 ms, so that the clock is read even if the rate is too high.
        let count = (due - opened.min(due)).min(u64::from(rate / 100).max(1));
        (0..count).for_each(|_| sender.open_one());
        opened += count;
        if elapsed >= next_sample {
            most_entries = most_entries.max(node.entries());
            next_sample = elapsed + SAMPLE;
        }
        if measured_from.is_none() && elapsed >= size.warmup {
            measured_from = Some((Instant::now(), agent.processor_time(), opened));
        }
        if let Some((from, used, before)) = measured_from
            && from.elapsed() >= size.lasting
        {
            let seconds = from.elapsed().as_secs_f64();
            let percent = 100.0 * (agent.processor_time() - used).as_secs_f64() / seconds;
            break (percent, (opened - before) as f64 / seconds);
        }
        thread::sleep(TICK);
    };
    let coverage = agent.end(node);
    Run { opened, opened_a_second, percent, most_entries, coverage }
}

fn report(size: &Size, runs: &[Vec<Run>]) -> Measurement {
    let head = [
        "connections a second",
        "opened a second",
        "agent, % of a processor",
        "most entries",
        "in records, %",
        "lost events",
        "reliable ends given up",
    ];
    let mut table = MarkdownTable::new(head);
    let (mut records, mut bars) = (Vec::new(), String::new());
    for (rate, runs) in size.rates.iter().zip(runs) {
        let shown = |value: &dyn Fn(&Run) -> f64| Figure::of(runs.iter().map(value)).short();
        table.row([
            rate.to_string(),
            shown(&|run| run.opened_a_second),
            shown(&|run| run.percent),
            shown(&|run| run.most_entries as f64),
            shown(&|run| 100.0 * run.coverage.started as f64 / run.opened as f64),
            shown(&|run| run.coverage.lost_events as f64),
            shown(&|run| run.coverage.given_up as f64),
        ]);
        let percent = Figure::of(runs.iter().map(|run| run.percent));
        let at = (f64::from(*rate), "connections a second");
        let record = Record::new(SECTION, ("flow records", "agent"), at, (&percent, "% of a processor"));
        let (rate_of_bar, below) = BAR;
        let has_bar = *rate == rate_of_bar;
        if has_bar {
            let bar = Bar { figure: percent.median(), below };
            writeln!(bars, "  agent, % of a processor at {rate} connections a second: {bar}")
                .expect("a String takes all");
        }
        records.push(if has_bar { record.below(below) } else { record });
    }
    let report = format!(
        "\nconnections: the agent with flow records, between pods of its node, for {} s; {}\n\n{table}\nbars\n{bars}",
        size.lasting.as_secs_f64(),
        median_of(size.rounds),
    );
    Measurement { report, records }
}
