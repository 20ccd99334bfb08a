//! `make demo`: a small shop on two nodes, first without and then with an agent on each.
//!
//! The lab carries real connections, the agents are real processes, and the printed results are measured. The steps run
//! in order, and drop guards clean up after them. The example's folder has the expected results.

mod agents;
mod arguments;
mod change;
mod conversation;
mod denials;
pub mod expected;
mod flows;
pub(crate) mod http;
mod matrix;
pub(crate) mod outcome;
mod place;
mod rules;
pub(crate) mod screen;
mod served_lab;
pub mod shop;
pub(crate) mod stop;
pub mod trail;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;

use agents::Agents;
use arguments::Arguments;
pub(crate) use arguments::example;
use expected::PairTable;
use kit::lab::Lab;
use matrix::Matrix;
use place::Place;
use screen::Screen;
use shop::Shop;
use stop::Stop;

/// The demonstrated program.
const AGENT: &str = "ringfence";

/// Runs the demo as the command line selects.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let shown = match &arguments.serve {
        Some(manifests) => served_lab::serve(manifests).map(|()| ExitCode::SUCCESS),
        None => as_root(&arguments),
    };
    outcome::exit("demo", shown)
}

fn as_root(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    is_root()?;
    if arguments.remove {
        println!("{}", if Place::remove_kept()? { "The lab is gone." } else { "There is no lab to remove." });
        return Ok(ExitCode::SUCCESS);
    }
    let screen = Screen::new(Stop::on_signals()?);
    show(arguments, &screen)
}

/// The whole demo.
fn show(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let shop = Shop::read(&arguments.example)?;
    let expected = expected::read(&arguments.example, &shop)?;
    beside(AGENT)?;
    let place = Place::claim()?;
    place.copy_manifests(&arguments.example)?;

    screen.line(format_args!("Kubernetes NetworkPolicy with nftables: two nodes, real agents, real connections.\n"));
    screen.heading(1, "A shop");
    let lab = Lab::named(&shop.lab_spec(), place::PREFIX);
    shop.introduce(screen, begun.elapsed());
    screen.check()?;

    screen.heading(2, "Before: no agent enforces the policies");
    let all_open: PairTable<bool> = shop.table(|_, _| true);
    let before = Matrix::measure(&lab, &shop);
    let wrong_before = before.compare(&shop, &all_open);
    before.print(screen, &shop, &wrong_before);
    screen.check()?;

    screen.heading(3, "One agent per node");
    let agents = Agents::start(&lab, &shop, &place, &[], screen)?;
    screen.check()?;

    screen.heading(4, "After: the same connections");
    let after = Matrix::measure(&lab, &shop);
    let wrong_after = after.compare(&shop, &expected);
    after.print(screen, &shop, &wrong_after);
    screen.check()?;

    screen.heading(5, "Who denies, as the running agents explain it");
    let disputed = denials::print(screen, &shop, &agents, &after)?;
    screen.check()?;

    screen.heading(6, "A change of policy while connections are open");
    let faults = change::show(screen, &shop, &lab, &place)?;
    screen.check()?;

    screen.heading(7, "Who talked to whom, and by which rule");
    let unrecorded = flows::print(screen, &shop, &agents)?;
    screen.check()?;

    screen.heading(8, "The rules of a node");
    rules::print(screen, &shop, &lab)?;
    screen.check()?;

    let mut wrong = Vec::new();
    wrong.extend(wrong_before.iter().map(|cell| format!("before: {}", cell.name(&shop))));
    wrong.extend(wrong_after.iter().map(|cell| format!("after: {}", cell.name(&shop))));
    wrong.extend(disputed);
    wrong.extend(faults);
    wrong.extend(unrecorded);
    let file = arguments.example.join(expected::FILE);
    let well = format!("All as {} says.", file.file_name().unwrap_or_default().to_string_lossy());
    let ends = outcome::conclude(screen, &wrong, well, begun);
    if arguments.keep {
        served_lab::leave(screen, place, lab, agents, &shop)?;
    }
    Ok(ends)
}

/// # Errors
/// If this process does not run as root.
pub(crate) fn is_root() -> anyhow::Result<()> {
    anyhow::ensure!(
        nix::unistd::geteuid().is_root(),
        "network namespaces and nftables need root: run this as root, for instance with sudo"
    );
    Ok(())
}

/// The path of the program in the folder of this one.
pub(crate) fn beside(name: &str) -> anyhow::Result<std::path::PathBuf> {
    let own = std::env::current_exe().context("this program's own path")?;
    let path = own.with_file_name(name);
    anyhow::ensure!(path.exists(), "{} is not there; build it with `cargo build --workspace`", path.display());
    Ok(path)
}
