//! `make bench`: what enforcement costs on this machine, in sections that can be run by themselves.
//!
//! Results are measured and printed; no run fails because of a time. The subject is the release build of the agent as a
//! process, and real packets in a lab. `docs/performance.md` has results.

pub mod cni;
mod commits;
pub mod connections;
pub mod context;
pub mod curves;
pub mod drops;
pub mod events;
mod fed;
mod figures;
pub mod flows_load;
pub mod listing;
mod machine;
pub mod memory;
pub mod mutex;
pub mod packets;
pub mod record;
pub mod start;
pub mod storms;
mod table;
pub mod taken;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};

use drops::Size;
use record::Measurement;
use taken::RunDescription;

/// Runs of each measurement whose figures differ by a few percent, and of each that takes minutes.
const ROUNDS_OF_PACKETS: usize = 5;
const ROUNDS: usize = 3;

/// Measures the cost of enforcement on this machine.
///
/// Every figure is the median of several runs, with the least and the most of them in brackets. Tables are printed as
/// Markdown; above each section stands when, of which commit, on what machine and at what load it was measured.
#[derive(Debug, Parser)]
#[command(name = "bench", max_term_width = 110)]
#[command(after_help = "Exit status: 0 it has measured, whatever came out; 2 it could not.")]
struct Arguments {
    /// Benchmarks to run; all by default, which takes some 45 minutes.
    #[arg(value_enum)]
    sections: Vec<Section>,

    /// Runs of each measurement: 5 of drops, packets and profile unless said, 3 of all others, 1 of memory with --full.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,

    /// Pods of the generated clusters of events, start, memory, storms and context; they have a namespace for 100 of them
    /// and a policy for 10. The section cni has the largest of them beside its small one.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000])]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pods: Vec<u32>,

    /// Let 1,000,000 events happen where the memory is measured, rather than 100,000; in one run unless --rounds says more.
    #[arg(long)]
    full: bool,

    /// Agents of flows-load.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    agents: u16,

    /// Connections that each agent of flows-load reports in a second.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    agent_rate: u32,

    /// How long the agents of flows-load report as time goes on, after an hour of windows at once.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..=3_600))]
    seconds: u16,

    /// The file that keeps the figures, one record for each point of a curve, with the spread of the runs and the
    /// heading of the section. Records of other sections and sizes stay. Charts (SVG) are drawn into the folder `curves`
    /// beside it.
    #[arg(long, value_name = "FILE", default_value = "target/bench/figures.json")]
    json: PathBuf,

    /// Measure nothing, and draw the file's charts into this folder, as SVG and PNG.
    #[arg(long, value_name = "DIR")]
    curves: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Logging and recording of denied packets, while nothing is denied and in floods, of which the one of 20 s is one run.
    Drops,
    /// One event, from the change to the kernel's acknowledgement, in process, beside the bare commit.
    Events,
    /// The agent's start, into an empty kernel and one that has the rules.
    Start,
    /// The agent's resident set after its start and while events come.
    Memory,
    /// 10,000 events in a second, and the latency of events at a steady 100 and 1,000 a second (a cluster of fewer than
    /// 1,000 pods has no room for the latter).
    Storms,
    /// The way of a packet: of an established flow and a flow's first, by what could make it longer.
    Packets,
    /// The way of a packet through our rules, rule by rule: what each adds to an established packet and to a first one.
    Profile,
    /// Cost of flow records: accounting and events of connection tracking, their listener, and a set of edges.
    Flows,
    /// CPU share of the agent for flow records, at 1,000, 5,000 and 30,000 connections a second.
    Connections,
    /// The aggregator of flow records: its memory and processor with an hour of records of --agents agents.
    FlowsLoad,
    /// The time that a look at a large table takes.
    Listing,
    /// How long others wait while a large table is committed.
    Mutex,
    /// Delay of a pod's start with the CNI plugin in the chain, in a small cluster and in a large one.
    Cni,
    /// The context provider: its baseline, one event, the size of what it sends, and thousands of subscribers.
    Context,
}

impl Arguments {
    fn rounds_of(&self, section: Section) -> usize {
        let usual = match section {
            Section::Drops | Section::Packets | Section::Profile => ROUNDS_OF_PACKETS,
            Section::Memory if self.full => 1,
            Section::Events
            | Section::Start
            | Section::Memory
            | Section::Storms
            | Section::Flows
            | Section::Connections
            | Section::FlowsLoad
            | Section::Listing
            | Section::Mutex
            | Section::Cni
            | Section::Context => ROUNDS,
        };
        self.rounds.map_or(usual, usize::from)
    }
}

/// Runs the sections that the command line selects.
pub fn run() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(folder) = &arguments.curves {
        for path in curves::draw(&arguments.json, folder)? {
            println!("{}", path.display());
        }
        return Ok(());
    }
    anyhow::ensure!(nix::unistd::geteuid().is_root(), "network namespaces and nftables need root");
    let own = std::env::current_exe().context("this program's own path")?;
    let program = own.with_file_name("ringfence");
    anyhow::ensure!(program.exists(), "{} is not there; run 'make bench'", program.display());
    let all = Section::value_variants();
    let wanted = if arguments.sections.is_empty() { all } else { &arguments.sections[..] };
    let pods = || arguments.pods.iter().map(|pods| *pods as usize).collect::<Vec<usize>>();
    for section in all.iter().filter(|section| wanted.contains(section)) {
        let taken = RunDescription::now();
        let rounds = arguments.rounds_of(*section);
        let Measurement { report, records } = match section {
            Section::Drops => drops::measure(&program, Size::of_rounds(rounds)).into(),
            Section::Events => events::measure(&events::Size::new(pods(), rounds)),
            Section::Start => start::measure(&program, &start::Size { pods: pods(), rounds }),
            Section::Memory => memory::measure(&program, &memory::Size::new(pods(), rounds, arguments.full)),
            Section::Storms => storms::measure(&program, &storms::Size::new(pods(), rounds)),
            Section::Connections => connections::measure(&program, &connections::Size::of_rounds(rounds)),
            Section::FlowsLoad => flows_load::measure(&flows_load::Size::new(
                rounds,
                usize::from(arguments.agents),
                u64::from(arguments.agent_rate),
                usize::from(arguments.seconds),
            )),
            Section::Listing => listing::measure(&listing::Size::of_rounds(rounds)),
            Section::Mutex => mutex::measure(mutex::Size::of_rounds(rounds)),
            Section::Cni => cni::measure(&program, cni::Size::new(&pods(), rounds)),
            Section::Context => context::measure(&context::Size::new(pods(), rounds)),
            Section::Packets => packets::measure(packets::Size::of_rounds(rounds)),
            Section::Profile => packets::profile::measure(packets::Size::of_rounds(rounds)),
            Section::Flows => packets::flows::measure(&packets::flows::Size::of_rounds(rounds)),
        };
        println!("\n{taken}{report}");
        record::keep(&arguments.json, records, &taken)?;
    }
    let drawn = curves::draw_svg(&arguments.json, &arguments.json.with_file_name("curves"))?;
    eprintln!("bench: figures in {}, {} charts beside it", arguments.json.display(), drawn.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn runs_are_as_many_as_the_help_says() {
        let rounds = |line: &str, section| Arguments::parse_from(line.split(' ')).rounds_of(section);
        assert_eq!(rounds("bench", Section::Packets), 5);
        assert_eq!([Section::Events, Section::Memory, Section::Storms].map(|section| rounds("bench", section)), [3; 3]);
        assert_eq!([Section::Memory, Section::Events].map(|section| rounds("bench --full", section)), [1, 3]);
        assert_eq!(rounds("bench --full --rounds 2", Section::Memory), 2);
    }
}
