//! `make bench`: what enforcement costs on this machine, in sections that can be run by themselves.
//!
//! It measures and prints; nothing fails because of a time. What it measures is the release build of the agent as a
//! process, and real packets in a lab. `docs/performance.md` has results.

pub mod cni;
pub mod drops;
mod figures;
pub mod listing;
mod machine;
pub mod mutex;
pub mod packets;
pub mod record;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};

use drops::Size;
use record::Measured;

/// What enforcement costs on this machine.
#[derive(Debug, Parser)]
#[command(name = "bench", max_term_width = 110)]
#[command(after_help = "Exit status: 0 it has measured, whatever came out; 2 it could not.")]
struct Arguments {
    /// What to measure; everything unless said.
    #[arg(value_enum)]
    sections: Vec<Section>,

    /// Runs of each measurement, with and without in turn. The report has their medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,

    /// Keep the figures in this file too, one record for each point of a curve; those that it has of others stay.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Logging and recording of denied packets, while nothing is denied and in a flood.
    Drops,
    /// The way of a packet: of an established flow and a flow's first, by what could make it longer.
    Packets,
    /// The time that a look at a large table takes.
    Listing,
    /// How long others wait while a large table is committed.
    Mutex,
    /// What a pod's start takes longer with the CNI plugin in the chain.
    Cni,
}

/// Does what the command line asks for.
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
    anyhow::ensure!(nix::unistd::geteuid().is_root(), "network namespaces and nftables need root");
    let own = std::env::current_exe().context("this program's own path")?;
    let program = own.with_file_name("ringfence");
    anyhow::ensure!(program.exists(), "{} is not there; run 'make bench'", program.display());
    let all = Section::value_variants();
    let wanted = if arguments.sections.is_empty() { all } else { &arguments.sections[..] };
    println!("{}", machine::describe());
    for section in all.iter().filter(|section| wanted.contains(section)) {
        let Measured { report, records } = match section {
            Section::Drops => drops::measure(&program, Size::of_rounds(arguments.rounds.into())).into(),
            Section::Listing => listing::measure(&listing::Size::of_rounds(arguments.rounds.into())),
            Section::Mutex => mutex::measure(mutex::Size::of_rounds(arguments.rounds.into())),
            Section::Cni => cni::measure(&program, cni::Size::of_rounds(arguments.rounds.into())),
            Section::Packets => packets::measure(packets::Size::of_rounds(arguments.rounds.into())),
        };
        println!("{report}");
        if let Some(path) = &arguments.json {
            record::keep(path, records)?;
        }
    }
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
}
