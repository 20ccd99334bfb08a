//! The lines of a list of declared edges.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::remote::RemoteSet;
use crate::{Block, Direction, DomainPattern, ObjectName, Tier};

use super::{FlowPorts, TierRuleName};

/// One statement. Workloads are `namespace/workload`. Lines with the same meaning are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Line {
    /// Flows from pods of the source to pods of the destination are declared.
    Edge {
        source: End,
        destination: End,
        ports: FlowPorts,
        /// True if only some pairs of the pods are declared.
        partial: bool,
    },
    /// A rule of a ClusterNetworkPolicy accepts these flows of an edge on one side.
    Rule { source: End, destination: End, ports: FlowPorts, partial: bool, rule: Arc<TierRuleName> },
    /// Some policy isolates pods of the workload for ingress, or a ClusterNetworkPolicy has ingress rules for them.
    IngressGoverned(ObjectName),
    /// The same for egress.
    EgressGoverned(ObjectName),
    /// The NetworkPolicy is one of those that isolate pods of the workload in the direction.
    Governs { policy: ObjectName, direction: Direction, workload: ObjectName },
    /// The ClusterNetworkPolicy has rules of the direction for pods of the workload.
    ClusterGoverns { tier: Tier, policy: Arc<str>, direction: Direction, workload: ObjectName },
    /// Flows from addresses outside of this cluster's pods are declared.
    FromBlock { block: Block, destination: ObjectName, ports: FlowPorts, partial: bool },
    /// Flows to addresses outside of this cluster's pods are declared.
    ToBlock { source: ObjectName, block: Block, ports: FlowPorts, partial: bool },
    /// Flows to the addresses that the node of the source has learned for the domain name are declared, except to those
    /// that an earlier rule denies.
    ToName { source: ObjectName, name: DomainPattern, ports: FlowPorts, partial: bool },
}

/// One end of an edge.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// Every existing workload, but no address outside of this cluster's pods.
    Any,
    Workload(ObjectName),
    /// The other end is a workload.
    Remote(Arc<RemoteSet>),
}

/// The delta of lines: sorted and unique, and no line is in both lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EdgeChanges {
    pub adds: Vec<Line>,
    pub removes: Vec<Line>,
}

impl EdgeChanges {
    pub fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.removes.is_empty()
    }

    /// The net delta of lines that were added and removed alternately, any number of times.
    pub(super) fn settled(mut adds: Vec<Line>, removes: Vec<Line>) -> EdgeChanges {
        if removes.is_empty() {
            adds.sort_unstable();
            adds.dedup();
            return EdgeChanges { adds, removes };
        }
        let mut balance: BTreeMap<Line, isize> = BTreeMap::new();
        for (lines, by) in [(adds, 1), (removes, -1)] {
            for line in lines {
                *balance.entry(line).or_default() += by;
            }
        }
        let mut changes = EdgeChanges::default();
        for (line, balance) in balance {
            match balance.signum() {
                1 => changes.adds.push(line),
                -1 => changes.removes.push(line),
                _ => {}
            }
        }
        changes
    }
}
