//! The lines of a list of declared edges.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ports::FlowPorts;
use crate::remote::RemoteSet;
use crate::{Block, Direction, DomainPattern, ObjectName, RuleAction, Tier};

/// One statement. Workloads are `namespace/workload`. Lines with the same meaning are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeclaredLine {
    /// Flows from pods of the source to pods of the destination are declared.
    Edge {
        /// The sending end.
        source: EdgeEnd,
        /// The receiving end.
        destination: EdgeEnd,
        /// Destination ports and protocols.
        ports: FlowPorts,
        /// True if only some pairs of the pods are declared.
        partial: bool,
    },
    /// A rule of a ClusterNetworkPolicy accepts these flows of an edge on one side.
    Rule {
        /// The sending end.
        source: EdgeEnd,
        /// The receiving end.
        destination: EdgeEnd,
        /// Destination ports and protocols that the rule accepts.
        ports: FlowPorts,
        /// As in [`DeclaredLine::Edge`].
        partial: bool,
        /// The rule, with the side that it is for.
        rule: Arc<TierRuleName>,
    },
    /// Some policy isolates pods of the workload for ingress, or a ClusterNetworkPolicy has ingress rules for them.
    IngressGoverned(ObjectName),
    /// The same for egress.
    EgressGoverned(ObjectName),
    /// The NetworkPolicy is one of those that isolate pods of the workload in the direction.
    Governs {
        /// The NetworkPolicy.
        policy: ObjectName,
        /// The direction in which it isolates.
        direction: Direction,
        /// Workload of the isolated pods.
        workload: ObjectName,
    },
    /// The ClusterNetworkPolicy has rules of the direction for pods of the workload.
    ClusterGoverns {
        /// The tier of the policy.
        tier: Tier,
        /// Name of the ClusterNetworkPolicy.
        policy: Arc<str>,
        /// The direction of the rules.
        direction: Direction,
        /// Workload of the subject's pods.
        workload: ObjectName,
    },
    /// Flows from addresses outside of this cluster's pods are declared.
    FromBlock {
        /// Sending addresses.
        block: Block,
        /// The receiving workload.
        destination: ObjectName,
        /// Destination ports and protocols.
        ports: FlowPorts,
        /// As in [`DeclaredLine::Edge`].
        partial: bool,
    },
    /// Flows to addresses outside of this cluster's pods are declared.
    ToBlock {
        /// The sending workload.
        source: ObjectName,
        /// Receiving addresses.
        block: Block,
        /// Destination ports and protocols.
        ports: FlowPorts,
        /// As in [`DeclaredLine::Edge`].
        partial: bool,
    },
    /// Flows to the addresses that the node of the source has learned for the domain name are declared, except to those
    /// that an earlier rule denies.
    ToName {
        /// The sending workload.
        source: ObjectName,
        /// The name in the rule, or what stands behind its `*.`.
        name: DomainPattern,
        /// Destination ports and protocols.
        ports: FlowPorts,
        /// As in [`DeclaredLine::Edge`].
        partial: bool,
    },
}

/// One end of an edge.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EdgeEnd {
    /// Every existing workload, but no address outside of this cluster's pods.
    Any,
    /// The pods of `namespace/workload`.
    Workload(ObjectName),
    /// The other end is a workload.
    Remote(Arc<RemoteSet>),
}

/// A rule of a ClusterNetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierRuleName {
    /// The tier of the policy.
    pub tier: Tier,
    /// The name of the ClusterNetworkPolicy.
    pub policy: Arc<str>,
    /// The direction and the index in the object's list.
    pub direction: Direction,
    /// From 0, as in `ingress[1]`.
    pub index: usize,
    /// The name that its author gave the rule.
    pub name: Option<Arc<str>>,
    /// The action as written.
    pub action: RuleAction,
}

/// Why no edges and no governed workloads are published: flows whose lines are missing would be reported as violations
/// although they are declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// The limit of edges is exceeded.
    TooMany,
}

/// The delta of lines: sorted and unique, and no line is in both lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EdgeChanges {
    /// Lines that were not in the list.
    pub adds: Vec<DeclaredLine>,
    /// Lines that are no longer in the list.
    pub removes: Vec<DeclaredLine>,
}

impl EdgeChanges {
    /// Whether the list is the same.
    pub fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.removes.is_empty()
    }

    /// The net delta of lines that were added and removed alternately, any number of times.
    pub(super) fn settled(mut adds: Vec<DeclaredLine>, removes: Vec<DeclaredLine>) -> EdgeChanges {
        if removes.is_empty() {
            adds.sort_unstable();
            adds.dedup();
            return EdgeChanges { adds, removes };
        }
        let mut balance: BTreeMap<DeclaredLine, isize> = BTreeMap::new();
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
