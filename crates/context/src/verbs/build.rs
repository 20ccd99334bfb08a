//! `ringfence-context build`: the files of a folder of manifests, once.

use std::process::ExitCode;
use std::time::Instant;

use console::{BAD, NO, YES, output};
use feed::Position;
use policy::Edges;

use super::runtime;
use crate::cli::BuildArguments;
use crate::declared::{self, Lists};
use crate::directory::{Applied, Directory};
use crate::identity::{self, Exception};
use crate::object::Object;
use crate::publisher::epoch_now;
use crate::store::Store;

pub(crate) fn build(arguments: &BuildArguments) -> anyhow::Result<ExitCode> {
    let folder = cluster::read_folder::<Object>(&arguments.manifests)?;
    let mut directory = Directory::new(arguments.table.settings(&arguments.cluster_id));
    let mut applied = Applied::default();
    for change in folder.changes() {
        applied.join(directory.apply(change, Instant::now()));
    }
    let changes = directory.take_changes();
    drop(changes);
    let mut edges = Edges::new();
    let mut lists = Lists::new(arguments.table.edges.into());
    let lines = edges.update(directory.state(), &applied.changed, &|pod| directory.workload_of(pod), &applied.renamed);
    lists.apply(&lines);

    let position = Position::start_of(epoch_now());
    let exceptions = directory.exceptions().map(|(sid, num)| Exception { sid, num }).collect();
    let baselines = [
        (identity::FEED, identity::baseline(directory.published().clone(), exceptions, position)),
        (declared::FEED, declared::baseline(lists, position)),
    ];
    let store = Store::create_folder(&arguments.out)?;
    let mut text = String::new();
    runtime()?.block_on(async {
        for (feed, baseline) in &baselines {
            store.keep(feed, baseline, &mut vec![]).await?;
            text += &format!("{feed}: {} entries, version {}\n", baseline.count, baseline.version);
        }
        anyhow::Ok(())
    })?;
    for problem in &folder.problems {
        anstream::eprintln!("{BAD}problem:{BAD:#} {problem}");
    }
    for diagnostic in directory.state().problems() {
        anstream::eprintln!("{BAD}not understood:{BAD:#} {diagnostic}");
    }
    for problem in directory.problems() {
        anstream::eprintln!("{BAD}not understood:{BAD:#} {problem}");
    }
    output::answer(&text, if folder.problems.is_empty() { YES } else { NO })
}
