//! The oracle: a naive evaluator of NetworkPolicy that reads like the API documentation.
//!
//! It decides disputes between the translator, the ruleset and the kernel, so it shares no code with any of them: it
//! reads the objects as they are, stores nothing, and answers one question about one packet. It does not depend on
//! nftables, and is not optimised.

mod address;
mod audit;
mod json;
mod policy;
mod remote;
mod rule;
mod selector;
mod world;

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

pub use address::{node_of, nodes_with, owned_addresses, owner, stays_on_node};
pub use world::{Probe, Remote, RemoteSet, World};

/// A node's verdict on the first packet of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// The side of the source.
    pub egress: Side,
    /// The side of the destination.
    pub ingress: Side,
    /// The flow is from a pod to its own address, and always allowed, whatever the two sides are.
    pub itself: bool,
}

impl Judgement {
    pub fn passes(self) -> bool {
        self.itself || (self.egress != Side::Denied && self.ingress != Side::Denied)
    }
}

/// One side of a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The address belongs to no pod of the evaluating node.
    NotLocal,
    /// No policy selects the pod in this direction.
    NotIsolated,
    Allowed,
    Denied,
    /// Nothing is denied here: all policies that select the pod are audited. They allow the packet.
    WouldAllow,
    /// Nothing is denied here, but if enforced the policies would deny the packet.
    WouldDeny,
}

/// The direction of a rule, seen from the pod that its policy selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Ingress,
    Egress,
}

/// Whether `node` accepts the first packet of the flow when it forwards it.
///
/// "For a connection from a source pod to a destination pod to be allowed, both the egress policy on the source pod and
/// the ingress policy on the destination pod need to allow the connection." A node evaluates the sides whose pod it
/// runs: both, one, or none. A packet from a pod to its own address (over a Service that leads back to it) is always
/// accepted: "a pod cannot block access to itself".
pub fn judge(world: &World, node: &str, probe: &Probe) -> Judgement {
    Judgement {
        egress: side(world, node, Direction::Egress, probe.source, probe.destination, probe),
        ingress: side(world, node, Direction::Ingress, probe.destination, probe.source, probe),
        itself: probe.source == probe.destination && owner(world, probe.source).is_some(),
    }
}

/// "By default, a pod is non-isolated; all connections are allowed. A pod is isolated if there is any NetworkPolicy
/// that both selects the pod and has the direction in its policyTypes. When a pod is isolated, the only allowed
/// connections are those allowed by some NetworkPolicy that applies to the pod. The effects combine additively."
///
/// Audited policies are ignored if an enforced policy also selects the pod. Otherwise they report what they would do.
fn side(world: &World, node: &str, direction: Direction, own: IpAddr, other: IpAddr, probe: &Probe) -> Side {
    let Some(subject) = owner(world, own).filter(|pod| node_of(pod) == Some(node)) else {
        return Side::NotLocal;
    };
    let flow = Flow { world, direction, subject, other, destination: probe.destination, probe };
    let isolating: Vec<_> = world
        .policies
        .iter()
        .filter(|policy| policy::selects(policy, subject) && policy::isolates(policy, direction))
        .collect();
    let (audited, enforced): (Vec<_>, Vec<_>) =
        isolating.into_iter().partition(|policy| audit::is_audited(world, policy));
    let allow = |policies: &[&Value]| policies.iter().any(|policy| policy::allows(policy, &flow));
    match (enforced.is_empty(), audited.is_empty()) {
        (true, true) => Side::NotIsolated,
        (false, _) if allow(&enforced) => Side::Allowed,
        (false, _) => Side::Denied,
        (true, false) if allow(&audited) => Side::WouldAllow,
        (true, false) => Side::WouldDeny,
    }
}

/// A flow, seen from one of its sides.
struct Flow<'a> {
    world: &'a World,
    direction: Direction,
    /// The pod whose side this is.
    subject: &'a Pod,
    /// The address at the other end.
    other: IpAddr,
    destination: IpAddr,
    probe: &'a Probe,
}
