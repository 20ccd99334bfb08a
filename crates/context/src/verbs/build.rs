//! `ringfence-context build`: writes the baselines of a folder of manifests to a folder, once.

use std::process::ExitCode;
use std::time::Instant;

use console::{BAD, NO, YES, output};
use feed::Position;

use super::runtime;
use crate::cli::BuildArguments;
use crate::epoch::epoch_now;
use crate::leader_election::Assurance;
use crate::object::WatchedObject;
use crate::published_tables::Tables;
use crate::store::Store;
use crate::{edge_publication, identity};

pub(crate) fn build(arguments: &BuildArguments) -> anyhow::Result<ExitCode> {
    let folder = cluster::read_folder::<WatchedObject>(&arguments.manifests)?;
    let mut tables = Tables::new(arguments.table.settings(&arguments.cluster_id), arguments.table.edges.into());
    tables.set_ranges(arguments.table.ranges()?);
    for change in folder.changes() {
        tables.apply(change, Instant::now());
    }
    tables.begin();
    let position = Position::start_of(epoch_now());
    let baselines =
        [(identity::FEED, tables.identities()(position)), (edge_publication::FEED, tables.declared()(position))];
    let store = Store::create_folder(&arguments.out)?;
    let mut text = String::new();
    runtime()?.block_on(async {
        for (feed, baseline) in &baselines {
            if let Some(error) = store.write_baseline(feed, baseline, &mut vec![], &Assurance::always()).await? {
                return Err(error.into());
            }
            text += &format!("{feed}: {} entries, version {}\n", baseline.count, baseline.version);
        }
        anyhow::Ok(())
    })?;
    for problem in &folder.problems {
        anstream::eprintln!("{BAD}problem:{BAD:#} {problem}");
    }
    for problem in tables.problems() {
        anstream::eprintln!("{BAD}not understood:{BAD:#} {problem}");
    }
    output::answer(&text, if folder.problems.is_empty() { YES } else { NO })
}
