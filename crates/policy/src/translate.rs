//! The cluster's state becomes the ruleset of one node: pure, total, and deterministic.
//!
//! Every distinct set of rules is compiled once, into a *program*: a chain that all pods share which the same
//! policies select and which resolve the same named ports. See docs/ruleset.md for the layout.

mod audit;
mod emit;
mod layout;
mod leave_out;
mod names;
mod plan;
mod reporting;
mod sources;
mod unknown;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Comment, Datum, Element, Family, Key, Name, Protocol, Ruleset, Verdict};

pub use layout::{BadMask, DEFAULT_MARK_MASK, Layout, TABLE_COMMENT, narrows, stamp};
pub use leave_out::leave_out;
pub use reporting::{
    Cause, FLOW_KEPT_SECONDS, FlowTable, Judgement, LOGGED_BYTES, Reported, counting_chains, flow_tables,
};

pub(crate) use names::digest;

use crate::isolating::Isolating;
use crate::{Attachment, ClusterState, Diagnostic, Enforcement, Holder, ObjectName, Pod, Policy, PortRange, Ports};
use emit::Emitter;
use plan::Plan;

/// Which way a flow goes, seen from the pod that is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Egress,
    Ingress,
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::Egress, Direction::Ingress];

    pub fn word(self) -> &'static str {
        match self {
            Direction::Egress => "egress",
            Direction::Ingress => "ingress",
        }
    }
}

/// The ruleset of a node, and what its chains stand for.
#[derive(Debug, Clone)]
pub struct Translation {
    /// The table of family `inet`.
    pub ruleset: Ruleset,
    /// The table of family `bridge`; none unless pods are known to be on a bridge.
    pub bridge: Option<Ruleset>,
    /// The compiled programs by chain.
    pub programs: BTreeMap<Name, Program>,
    /// What was not understood in the objects, worst first.
    pub diagnostics: Vec<Diagnostic>,
}

/// What a chain was compiled from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub direction: Direction,
    /// Whether it denies what its policies do not allow, or lets it pass and tells of it.
    pub enforcement: Enforcement,
    /// The policies that it is made of: all that select the pods and are enforced, or all if none is; none for pods that were not understood.
    pub policies: Vec<ObjectName>,
    /// The pods of the node that the program judges.
    pub pods: Vec<ObjectName>,
}

/// Translates for the node of that name. It cannot fail: what the state holds is already understood or denied.
pub fn translate(state: &ClusterState, node: &str, layout: &Layout) -> Translation {
    let locals: Vec<Local> = locals(state, node).collect();
    let unattributed: Vec<(IpAddr, &Arc<Attachment>)> = unattributed(state).collect();
    let attributed = locals.iter().flat_map(|local| local.addresses.iter().copied());
    let addresses: BTreeSet<IpAddr> = attributed.chain(unattributed.iter().map(|(a, _)| *a)).collect();
    let families: BTreeSet<Family> =
        addresses.iter().map(|a| Family::of(*a)).chain(unknown::families(layout)).collect();
    let mut emitter = Emitter::new(state, families.clone(), layout);
    let mut programs: BTreeMap<Name, Program> = BTreeMap::new();
    for local in &locals {
        for direction in Direction::BOTH {
            let Some(job) = Job::of(state, local.pod, direction) else { continue };
            let chain = match &job {
                Job::Deny => layout::deny_chain(direction),
                Job::Judge { enforcement, policies, named } => {
                    let chain = names::program(direction, *enforcement, policies, named);
                    if !programs.contains_key(&chain) {
                        emitter.program(direction, *enforcement, &chain, &Plan::of(direction, policies, named));
                    }
                    chain
                }
            };
            emitter.dispatch(direction, job.enforcement(), &chain, &local.pod.name.to_string(), &local.addresses);
            let program = programs.entry(chain).or_insert_with(|| Program {
                direction,
                enforcement: job.enforcement(),
                policies: job.policies().iter().map(|p| p.name.clone()).collect(),
                pods: vec![],
            });
            program.pods.push(local.pod.name.clone());
        }
    }
    for (address, attachment) in unattributed {
        for direction in Direction::BOTH {
            let about = format!("{}, not known yet", attachment.pod);
            let chain = layout::deny_chain(direction);
            emitter.dispatch(direction, Enforcement::Enforce, &chain, &about, &[address]);
        }
    }
    let mut ruleset = emitter.finish();
    if layout.checks_sources() {
        sources::add_routed(&mut ruleset, layout, state);
    }
    unknown::add(&mut ruleset, layout, &addresses);
    stamp(&mut ruleset, layout);
    let bridge = if layout.checks_sources() { sources::bridged(layout, state) } else { None };
    Translation { ruleset, bridge, programs, diagnostics: state.problems() }
}

/// A pod of the node with the addresses that it has.
struct Local<'a> {
    pod: &'a Arc<Pod>,
    addresses: Vec<IpAddr>,
}

fn locals<'a>(state: &'a ClusterState, node: &str) -> impl Iterator<Item = Local<'a>> {
    state
        .pods()
        .filter(move |pod| state.is_local(pod, node))
        .map(|pod| Local { pod, addresses: state.addresses_of(pod).collect() })
        .filter(|local| !local.addresses.is_empty())
}

/// Addresses that pods were attached here with whose objects are not known.
fn unattributed(state: &ClusterState) -> impl Iterator<Item = (IpAddr, &Arc<Attachment>)> {
    let attached =
        state.attachments().flat_map(|attachment| attachment.addresses.iter().map(move |a| (*a, attachment)));
    attached.filter(|(address, attachment)| state.holder(*address) == Some(Holder::Unknown(attachment)))
}

/// What is to be done with a pod's flows in one direction.
enum Job<'a> {
    /// The pod was not understood.
    Deny,
    Judge {
        enforcement: Enforcement,
        policies: Vec<&'a Arc<Policy>>,
        named: NamedPorts,
    },
}

/// Named ports of ingress rules that the pod resolves, with their numbers.
pub(crate) type NamedPorts = BTreeMap<(Arc<str>, Protocol), u16>;

impl<'a> Job<'a> {
    /// None for a pod that no policy selects in the direction.
    fn of(state: &'a ClusterState, pod: &'a Pod, direction: Direction) -> Option<Job<'a>> {
        if pod.unreadable {
            return Some(Job::Deny);
        }
        let Isolating { enforced, audited } = Isolating::of(state, pod, direction);
        let (enforcement, policies) = match (enforced.is_empty(), audited.is_empty()) {
            (true, true) => return None,
            (false, _) => (Enforcement::Enforce, enforced),
            (true, false) => (Enforcement::Audit, audited),
        };
        let named = match direction {
            Direction::Egress => NamedPorts::new(),
            Direction::Ingress => resolved_ports(&policies, pod),
        };
        Some(Job::Judge { enforcement, policies, named })
    }

    fn enforcement(&self) -> Enforcement {
        match self {
            Job::Deny => Enforcement::Enforce,
            Job::Judge { enforcement, .. } => *enforcement,
        }
    }

    fn policies(&self) -> &[&'a Arc<Policy>] {
        match self {
            Job::Deny => &[],
            Job::Judge { policies, .. } => policies,
        }
    }
}

fn resolved_ports(policies: &[&Arc<Policy>], pod: &Pod) -> NamedPorts {
    let mut resolved = NamedPorts::new();
    for rule in policies.iter().filter_map(|p| p.ingress.as_ref()).flatten() {
        let Ports::Of(matches) = &rule.ports else { continue };
        for port in matches {
            if let PortRange::Named(name) = &port.range
                && let Some(number) = pod.resolve(name, port.protocol)
            {
                resolved.insert((name.clone(), port.protocol), number);
            }
        }
    }
    resolved
}

impl Policy {
    /// The rules of a direction; none if the policy does not isolate in it.
    pub fn rules(&self, direction: Direction) -> Option<&[crate::PolicyRule]> {
        match direction {
            Direction::Egress => self.egress.as_deref(),
            Direction::Ingress => self.ingress.as_deref(),
        }
    }
}

/// The element that sends the flows of an address to a chain.
fn dispatch_element(chain: &Name, about: &str) -> Element {
    Element { verdict: Some(Verdict::Jump(chain.clone())), comment: Some(Comment::new(about)) }
}

fn address_key(address: IpAddr) -> Key {
    Key::One(Datum::from(address))
}
