//! Translates the cluster's state into the ruleset of one node: pure, total, and deterministic.
//!
//! Every distinct set of rules is compiled once, into a *program*: a chain shared by all pods that the same policies
//! select and that resolve the same named ports. See docs/ruleset.md for the layout.
//!
//! [`Translator`] updates a translation incrementally; [`translate()`] only does the initial one.

mod audit;
mod bridge_ports;
mod dispatch;
mod dns_answers;
mod draft;
mod edge;
mod frame;
mod generation;
mod hairpin;
mod icmp_errors;
mod layout;
mod leave_out;
mod names;
mod own_node;
mod peer_sets;
mod plan;
mod pod_ranges;
mod private_headers;
mod program_job;
mod program_objects;
mod programs;
mod reporting;
mod roles;
mod segments;
mod set_capacity;
mod set_contents;
mod tier_rules;
mod tier_sets;
mod tiers;
mod translator;
mod tunnels;
mod unknown_addresses;

use std::net::IpAddr;
use std::sync::Arc;

use nft::{Comment, Datum, Element, Key, Name, NameMap, Ruleset, Verdict};

pub use dispatch::FORWARD_CHAIN;
pub use dns_answers::{COPIED_ANSWER_BYTES, DnsCopy, PAUSED_SECONDS, dns_clients};
pub use draft::DraftRuleset;
pub use edge::EdgeHook;
pub use generation::{BadMask, DEFAULT_MARK_MASK, Generation};
pub use layout::{Layout, TABLE_COMMENT, changes_intervals};
pub use reporting::{
    Cause, DENIED_PREFIX, FLOW_KEPT_SECONDS, FlowTable, Judgement, LOGGED_BYTES, ParsedPrefix, counting_chains,
    flow_tables,
};
pub use roles::names_without_role;
pub use translator::Translator;
pub use tunnels::TUNNEL_PORTS;

pub(crate) use names::digest;
pub(crate) use plan::Plan;
pub(crate) use program_job::{NamedPorts, resolved_ports};
pub(crate) use program_objects::MOST_VARIANTS;

use crate::{ClusterState, Diagnostic, Enforcement, ObjectName, Policy};

/// The direction of a flow, relative to the pod that is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Flows that the pod opens: `policyTypes: [Egress]`.
    Egress,
    /// Flows that the pod receives: `policyTypes: [Ingress]`.
    Ingress,
}

impl Direction {
    /// Egress first.
    pub const BOTH: [Direction; 2] = [Direction::Egress, Direction::Ingress];

    /// The name in reports, metric labels, chains and field paths.
    pub fn as_str(self) -> &'static str {
        match self {
            Direction::Egress => "egress",
            Direction::Ingress => "ingress",
        }
    }
}

/// The ruleset of a node, and its programs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Translation {
    /// The table of family `inet`.
    pub ruleset: DraftRuleset,
    /// The table of family `bridge`; `None` unless pods are known to be on a bridge.
    pub bridge: Option<Ruleset>,
    /// The table of family `netdev`; `None` unless interfaces of pods are known.
    pub edge: Option<Ruleset>,
    /// The compiled programs by chain, without the pending ones, which decide nothing.
    pub programs: NameMap<Program>,
    /// Problems found in the objects, most severe first.
    pub diagnostics: Arc<[Diagnostic]>,
    /// Pods of the node that have an address, isolated or not.
    pub pods_on_node: usize,
    /// Differs from that of an earlier translation if flows to learned addresses of domain names may be denied since:
    /// the elements of sets do not show it, since an address that expires leaves its set, too.
    pub revocations: Revocations,
}

/// Counts the times at which flows to learned addresses may have come to be denied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Revocations {
    /// Translations of the whole state.
    pub(crate) translations: u64,
    /// Deltas since the last one of these.
    pub(crate) deltas: u64,
}

/// The inputs that a chain was compiled from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The side of the pods that the chain judges.
    pub direction: Direction,
    /// Whether it denies flows that its policies do not allow, or accepts and reports them.
    pub enforcement: Enforcement,
    /// The policies that it is compiled from: all enforced policies that select the pods, or all policies if none is
    /// enforced; empty for unreadable pods. A program of cluster policies names these alone.
    pub policies: Vec<ObjectName>,
    /// The pods of the node that the program judges.
    pub pods: Vec<ObjectName>,
}

/// Translates for the node of that name. Cannot fail: invalid objects are already lowered to denial.
pub fn translate(state: &ClusterState, node: &str, layout: &Layout) -> Translation {
    let mut translator = Translator::new(node, layout.clone());
    translator.begin(state);
    translator.translation()
}

impl Policy {
    /// The rules of a direction; `None` if the policy does not isolate in it.
    pub fn rules(&self, direction: Direction) -> Option<&[crate::PolicyRule]> {
        match direction {
            Direction::Egress => self.egress.as_deref(),
            Direction::Ingress => self.ingress.as_deref(),
        }
    }
}

/// The element that dispatches the flows of an address to a chain.
fn dispatch_element(chain: &Name, about: &str) -> Element {
    Element { verdict: Some(Verdict::Jump(chain.clone())), comment: Some(Comment::new(about)) }
}

fn address_key(address: IpAddr) -> Key {
    Key::One(Datum::from(address))
}
