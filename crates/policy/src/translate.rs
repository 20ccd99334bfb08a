//! The cluster's state becomes the ruleset of one node: pure, total, and deterministic.
//!
//! Every distinct set of rules is compiled once, into a *program*: a chain that all pods share which the same
//! policies select and which resolve the same named ports. See docs/ruleset.md for the layout.

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
pub use reporting::{Cause, FlowTable, Judgement, LOGGED_BYTES, Reported, counting_chains, flow_tables};

use crate::{Attachment, ClusterState, Diagnostic, Holder, ObjectName, Pod, Policy, PortRange, Ports};
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
    /// The policies that isolate the pods; none for pods that were not understood.
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
                Job::Judge { policies, named } => {
                    let chain = names::program(direction, policies, named);
                    if !programs.contains_key(&chain) {
                        emitter.program(direction, &chain, &Plan::of(direction, policies, named));
                    }
                    chain
                }
            };
            emitter.dispatch(direction, &chain, &local.pod.name.to_string(), &local.addresses);
            let program = programs.entry(chain).or_insert_with(|| Program {
                direction,
                policies: job.policies().iter().map(|p| p.name.clone()).collect(),
                pods: vec![],
            });
            program.pods.push(local.pod.name.clone());
        }
    }
    for (address, attachment) in unattributed {
        for direction in Direction::BOTH {
            let about = format!("{}, not known yet", attachment.pod);
            emitter.dispatch(direction, &layout::deny_chain(direction), &about, &[address]);
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
        policies: Vec<&'a Arc<Policy>>,
        named: NamedPorts,
    },
}

/// Named ports of ingress rules that the pod resolves, with their numbers.
pub(crate) type NamedPorts = BTreeMap<(Arc<str>, Protocol), u16>;

impl<'a> Job<'a> {
    /// None for a pod that is not isolated in the direction.
    fn of(state: &'a ClusterState, pod: &'a Pod, direction: Direction) -> Option<Job<'a>> {
        if pod.unreadable {
            return Some(Job::Deny);
        }
        let policies: Vec<&Arc<Policy>> = isolating(state, pod, direction).collect();
        if policies.is_empty() {
            return None;
        }
        let named = match direction {
            Direction::Egress => NamedPorts::new(),
            Direction::Ingress => resolved_ports(&policies, pod),
        };
        Some(Job::Judge { policies, named })
    }

    fn policies(&self) -> &[&'a Arc<Policy>] {
        match self {
            Job::Deny => &[],
            Job::Judge { policies, .. } => policies,
        }
    }
}

/// The policies that isolate the pod in the direction, in the order of their names.
pub(crate) fn isolating<'a>(
    state: &'a ClusterState,
    pod: &'a Pod,
    direction: Direction,
) -> impl Iterator<Item = &'a Arc<Policy>> {
    state
        .policies_in(&pod.name.namespace)
        .filter(move |policy| policy.rules(direction).is_some() && policy.selector.matches(&pod.labels))
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
    Element { verdict: Some(Verdict::Goto(chain.clone())), comment: Some(Comment::new(about)) }
}

fn address_key(address: IpAddr) -> Key {
    Key::One(Datum::from(address))
}
