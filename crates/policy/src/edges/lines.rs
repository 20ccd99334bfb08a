//! All lines at a moment.

use imbl::OrdMap;

use super::FlowPorts;
use super::groups::edge;
use super::line::Line;
use super::remote_edges::{self, RemoteKey};
use super::standing::Standing;
use super::told::Key;
use crate::ObjectName;

/// What all lines are made of, at a moment. Cheap to clone, and shares with later ones what is the same.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    pub(super) edges: OrdMap<Key, FlowPorts>,
    /// Edges with remote sets, by workload.
    pub(super) remote: OrdMap<u32, OrdMap<RemoteKey, FlowPorts>>,
    /// By workload: of every one that an edge speaks of.
    pub(super) standings: OrdMap<u32, Standing>,
}

impl Lines {
    /// Each once, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = Line> + '_ {
        self.with_names(|workload| self.standings[&workload].name.clone())
    }

    /// The same, with workloads named by someone who knows more of them than have a standing.
    pub(super) fn with_names(&self, name: impl Fn(u32) -> ObjectName + Copy) -> impl Iterator<Item = Line> {
        let edges = self.edges.iter().map(move |(key, ports)| edge(*key, ports.clone(), name));
        let remote = self.remote.iter().flat_map(move |(workload, edges)| {
            let name = name(*workload);
            edges.iter().map(move |(key, ports)| remote_edges::line(key, name.clone(), ports.clone()))
        });
        edges.chain(remote).chain(self.standings.values().flat_map(Standing::lines))
    }
}
