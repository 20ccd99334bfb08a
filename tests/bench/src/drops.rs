//! Cost of logging and recording denied packets: in a flood of them, and while nothing is denied.
//!
//! One node, the agent with and without reporting alternately. A pod sends to one that denies it, as fast as one sender
//! can, on its own processor; two others have an established flow on the agent's processor.

mod node;
mod report;
mod traffic;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::machine::{Place, stay};
use node::Node;
use report::DropsReport;
use traffic::{EstablishedFlow, send_denied};

/// Parameters of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Runs with reporting, and as many without.
    pub rounds: usize,
    /// Packets of a flood.
    pub packets: u32,
    /// How long the established flow is measured while idle.
    pub quiet: Duration,
    /// New flows while nothing is denied.
    pub first_packets: u16,
    /// Time after a flood in which the agent's processor time still counts: it reads the tables every 5 s.
    pub afterwards: Duration,
    /// Duration of a continuous flood.
    pub lasting: Duration,
}

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn of_rounds(rounds: usize) -> Size {
        Size {
            rounds,
            packets: 1_000_000,
            quiet: Duration::from_secs(1),
            first_packets: 10_000,
            afterwards: Duration::from_secs(6),
            lasting: Duration::from_secs(20),
        }
    }
}

/// Whether the agent reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reporting {
    Off,
    On,
}

/// The target of a flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// One flow.
    OnePort,
    /// A flow for each port, many more than the tables of denied flows hold.
    EveryPort,
}

impl Target {
    const ALL: [Target; 2] = [Target::OnePort, Target::EveryPort];
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Target::OnePort => "one port",
            Target::EveryPort => "every port in turn",
        })
    }
}

/// Results while nothing is denied.
struct Quiet {
    established_nanos: f64,
    first_nanos: f64,
}

/// Results of one flood.
struct Flood {
    target: Target,
    sent: u64,
    /// Packets that the rules have dropped: the kernel loses some before when its queues are full.
    dropped: u64,
    took: Duration,
    /// Time of a packet of the established flow during the flood.
    established_nanos: f64,
    /// Processor time of the agent during the flood, and including [`Size::afterwards`].
    agent: Duration,
    agent_with_afterwards: Duration,
}

struct Run {
    quiet: Quiet,
    floods: Vec<Flood>,
}

/// Measures with the program, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(program: &Path, size: Size) -> String {
    thread::scope(|scope| {
        // Processor affinity is set in a new thread, so that the caller's stays unchanged.
        let measuring = scope.spawn(|| measure_here(program, size));
        measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn measure_here(program: &Path, size: Size) -> String {
    stay(Place::Others);
    let node = Node::new(program);
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for round in 0..size.rounds {
        let order = [Reporting::Off, Reporting::On];
        for reporting in if round % 2 == 0 { order } else { [order[1], order[0]] } {
            let run = run(&node, reporting, size);
            match reporting {
                Reporting::Off => off.push(run),
                Reporting::On => on.push(run),
            }
        }
    }
    let agent = node.start(Reporting::On);
    let established = EstablishedFlow::open(&node.lab);
    let lasting = Target::ALL.map(|target| flood(&node, &agent, &established, target, Until::Time(size.lasting), size));
    DropsReport { size, off, on, lasting }.to_string()
}

fn run(node: &Node, reporting: Reporting, size: Size) -> Run {
    let agent = node.start(reporting);
    let established = EstablishedFlow::open(&node.lab);
    let established_nanos = established.measure_for(size.quiet);
    let quiet = Quiet { established_nanos, first_nanos: established.first_packets(&node.lab, size.first_packets) };
    let until = Until::Packets(size.packets);
    let floods = Target::ALL.map(|target| flood(node, &agent, &established, target, until, size));
    agent.check(reporting);
    Run { quiet, floods: floods.into() }
}

/// End condition of a flood.
#[derive(Debug, Clone, Copy)]
enum Until {
    Packets(u32),
    Time(Duration),
}

fn flood(
    node: &Node,
    agent: &node::Agent,
    established: &EstablishedFlow,
    target: Target,
    until: Until,
    size: Size,
) -> Flood {
    let (dropped, used) = (node.dropped(), agent.processor_time());
    let over = AtomicBool::new(false);
    let (sent, took, agent_time, established_nanos) = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            stay(Place::Flood);
            let begun = Instant::now();
            let sent = send_denied(&node.lab, target, until);
            let (took, used_by_now) = (begun.elapsed(), agent.processor_time());
            over.store(true, Ordering::Relaxed);
            (sent, took, used_by_now - used)
        });
        let established_nanos = established.measure_until(&over);
        let (sent, took, agent) = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (sent, took, agent, established_nanos)
    });
    let dropped = node.dropped() - dropped;
    thread::sleep(size.afterwards);
    let agent_with_afterwards = agent.processor_time() - used;
    Flood { target, sent, dropped, took, established_nanos, agent: agent_time, agent_with_afterwards }
}
