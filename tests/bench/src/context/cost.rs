//! Cost of the tables in this process, without I/O.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use context::directory::Settings;
use context::edges::Form;
use context::object::WatchedObject;
use context::published_tables::Tables;
use feed::Position;
use identity::{LabelFilter, Space};
use policy::{Change, Interner};

use super::Size;
use generator::cluster::events::{EventKind, Place};
use generator::cluster::{Cluster, Size as ClusterSize};

const START: Position = Position { epoch: 1, seq: 0 };

/// Pods that change together, as in the rollout of a Deployment.
const TOGETHER: usize = 1_000;

pub(super) struct Cost {
    /// Seconds from the decoded lists to the bytes of the address table, and from there to the bytes of the edges.
    pub(super) addresses: f64,
    pub(super) edges: f64,
    pub(super) lines: usize,
    pub(super) lines_bytes: usize,
    pub(super) kinds: BTreeMap<EventKind, Vec<Sample>>,
    /// Deltas of identities when [`TOGETHER`] pods change together.
    pub(super) together: (usize, usize),
    /// Bytes of the same deltas in numeric form.
    pub(super) together_numbers: usize,
}

/// One event.
pub(super) struct Sample {
    /// From the decoded event to the deltas' bytes and a downloadable baseline.
    pub(super) took: Duration,
    /// Bytes of the deltas of identities, and of edges.
    pub(super) bytes: [usize; 2],
}

fn settings() -> Settings {
    let (filter, numbers) = (LabelFilter::default(), Space::STANDARD);
    Settings { cluster_id: "bench".into(), filter, pod_detail: false, agent: None, node: None, numbers }
}

/// Applies the change to the tables and publishes it as the provider does. Returns the bytes of the deltas of both
/// feeds.
fn publish(tables: &mut Tables, change: Change<WatchedObject>) -> [usize; 2] {
    tables.apply(change, Instant::now());
    tables.take_deltas().into_json(START).map(|deltas| deltas.iter().map(Vec::len).sum())
}

pub(super) fn measure(size: ClusterSize, wanted: &Size) -> Cost {
    let mut cluster = Cluster::of(size);
    let lists: Vec<Change<WatchedObject>> = cluster.lists();
    let begun = Instant::now();
    let mut tables = Tables::new(settings(), Form::Compatible);
    for list in lists {
        tables.apply(list, Instant::now());
    }
    let resolved = begun.elapsed();
    let begun = Instant::now();
    tables.begin();
    let text = tables.edge_list(START).expect("text");
    let edges = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    tables.database(START).expect("no more addresses than a database can hold");
    let addresses = (resolved + begun.elapsed()).as_secs_f64();
    let lines = text.iter().filter(|byte| **byte == b'\n').count() - 1;

    let mut interner = Interner::new();
    let mut kinds: BTreeMap<EventKind, Vec<Sample>> = BTreeMap::new();
    for _ in 0..wanted.events {
        let mut order = EventKind::ALL.to_vec();
        cluster.shuffle(&mut order);
        for kind in order {
            let change = cluster.happen(kind, Place::Anywhere).change_of(&mut interner);
            let begun = Instant::now();
            let bytes = publish(&mut tables, change);
            kinds.entry(kind).or_default().push(Sample { took: begun.elapsed(), bytes });
        }
    }
    for _ in 0..TOGETHER.min(size.pods) {
        let change = cluster.happen(EventKind::PodRelabelled, Place::Anywhere).change_of(&mut interner);
        tables.apply(change, Instant::now());
    }
    let deltas = tables.take_deltas();
    let together_numbers = deltas.number_json(START).iter().map(Vec::len).sum();
    let [deltas, _] = deltas.into_json(START);
    let together = (deltas.len(), deltas.iter().map(Vec::len).sum());
    Cost { addresses, edges, lines, lines_bytes: text.len(), kinds, together, together_numbers }
}
