//! The oracle: a naive evaluator of NetworkPolicy and ClusterNetworkPolicy that reads like the API documentation.
//!
//! It decides disputes between the translator, the ruleset and the kernel, so it shares no code with any of them: it
//! reads the objects as they are, stores nothing, and answers one question about one packet. It does not depend on
//! nftables, and is not optimised.

mod address;
mod audit;
mod cluster_rule;
mod domain_name;
mod json;
mod policy;
mod remote;
mod rule;
mod selector;
mod tiers;
mod world;

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;

use cluster_rule::Action;
use tiers::{Decisive, decisive};

pub use address::{may_be_unknown_pod, node_of, nodes_with, owned_addresses, owner, stays_on_node};
pub use tiers::PolicyTier;
pub use world::{Probe, Remote, RemoteSet, World};

/// A node's verdict on the first packet of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// The side of the source.
    pub egress: Side,
    /// The side of the destination.
    pub ingress: Side,
    /// The flow is from a pod to its own address. A node only forwards it if it came through a Service.
    pub itself: bool,
}

impl Judgement {
    pub fn passes(self) -> bool {
        self.egress != Side::Denied && self.ingress != Side::Denied
    }
}

/// One side of a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The address belongs to no pod of the evaluating node.
    NotLocal,
    /// No policy decides: none selects the pod in this direction, or no rule of those that select it matches.
    NotIsolated,
    Allowed,
    Denied,
    /// Nothing is denied here, and no enforced policy decides. The audited ones allow the packet.
    WouldAllow,
    /// Nothing is denied here, but with the audited policies enforced the packet would be denied.
    WouldDeny,
}

/// The policies or the rule that a side is due to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decider {
    /// "All pods can communicate with each other."
    Default,
    /// The NetworkPolicies that select the pod.
    NetworkPolicy,
    /// A rule of a ClusterNetworkPolicy: indexes into the world's cluster policies, and into the policy's rules of the
    /// direction. The second is 0 if the policy as a whole is invalid.
    ClusterRule { tier: PolicyTier, policy: usize, rule: usize },
}

/// One side of a judgement, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub side: Side,
    /// For [`Side::WouldAllow`] and [`Side::WouldDeny`]: the decider if the audited policies were enforced.
    pub by: Decider,
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
/// runs: both, one, or none. A packet from a pod to its own address came through a Service that leads back to it:
/// NetworkPolicies do not deny it ("a pod cannot block access to itself"), and ClusterNetworkPolicies do ("A Pod
/// connecting to a Service IP that the service proxy load-balances back to the same Pod is subject to
/// ClusterNetworkPolicy").
pub fn judge(world: &World, node: &str, probe: &Probe) -> Judgement {
    judge_flow(world, node, probe, To::Address)
}

/// As [`judge`], but a flow from a pod to its own address is one to another pod with the same labels.
pub fn judge_replicas(world: &World, node: &str, probe: &Probe) -> Judgement {
    judge_flow(world, node, probe, To::Replica)
}

/// The receiver of a flow from a pod to its own address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Address,
    /// Another pod with the same labels.
    Replica,
}

fn judge_flow(world: &World, node: &str, probe: &Probe, to: To) -> Judgement {
    let [egress, ingress] = decide_sides(world, node, probe, to).map(|decision| decision.side);
    let itself = probe.source == probe.destination && owner(world, probe.source).is_some();
    Judgement { egress, ingress, itself }
}

/// The sides of the source and of the destination, with their reasons.
pub fn decide(world: &World, node: &str, probe: &Probe) -> [Decision; 2] {
    decide_sides(world, node, probe, To::Address)
}

fn decide_sides(world: &World, node: &str, probe: &Probe, to: To) -> [Decision; 2] {
    [Direction::Egress, Direction::Ingress].map(|direction| decide_side(world, node, direction, probe, to))
}

/// Audited policies change nothing. They report that they would deny the packet if they were enforced.
fn decide_side(world: &World, node: &str, direction: Direction, probe: &Probe, to: To) -> Decision {
    let (own, other) = match direction {
        Direction::Egress => (probe.source, probe.destination),
        Direction::Ingress => (probe.destination, probe.source),
    };
    let Some(subject) = owner(world, own).filter(|pod| node_of(pod) == Some(node)) else {
        return Decision { side: Side::NotLocal, by: Decider::Default };
    };
    let is_itself = own == other && to == To::Address;
    let flow = Flow { world, direction, subject, other, other_pod: owner(world, other), is_itself, probe };
    let (enforced, audited) = (verdict(&flow, false), verdict(&flow, true));
    match (enforced, audited) {
        ((false, by), _) => Decision { side: Side::Denied, by },
        ((true, _), (false, by)) => Decision { side: Side::WouldDeny, by },
        ((true, Decider::Default), (true, Decider::Default)) => {
            Decision { side: Side::NotIsolated, by: Decider::Default }
        }
        ((true, Decider::Default), (true, by)) => Decision { side: Side::WouldAllow, by },
        ((true, by), (true, _)) => Decision { side: Side::Allowed, by },
    }
}

/// Whether the packet passes this side, with the reason; `with_audited` as if audited policies were enforced.
///
/// "Policy tiers are evaluated in the following order: Admin tier, NetworkPolicy tier, Baseline tier. If Admin tier
/// has made a final decision (Accept or Deny) on a connection, then no further evaluation is done. v1.NetworkPolicy
/// always makes a final decision for selected pods. Further evaluation only happens for Pods not selected by a
/// v1.NetworkPolicy. If a given connection wasn't allowed or denied by any of the tiers, the default kubernetes policy
/// is applied, which says that all pods can communicate with each other." A rule that passes ends its tier.
fn verdict(flow: &Flow<'_>, with_audited: bool) -> (bool, Decider) {
    let final_decision = |tier: PolicyTier| {
        let Decisive { action, policy, rule } = decisive(flow, tier, with_audited)?;
        let by = Decider::ClusterRule { tier, policy, rule };
        match action {
            Action::Accept => Some((true, by)),
            Action::Deny => Some((false, by)),
            Action::Pass => None,
        }
    };
    final_decision(PolicyTier::Admin)
        .or_else(|| network_policies_allow(flow, with_audited).map(|allowed| (allowed, Decider::NetworkPolicy)))
        .or_else(|| final_decision(PolicyTier::Baseline))
        .unwrap_or((true, Decider::Default))
}

/// "By default, a pod is non-isolated; all connections are allowed. A pod is isolated if there is any NetworkPolicy
/// that both selects the pod and has the direction in its policyTypes. When a pod is isolated, the only allowed
/// connections are those allowed by some NetworkPolicy that applies to the pod. The effects combine additively."
///
/// `None` if the pod is not isolated. Audited policies are ignored if an enforced policy also selects the pod.
fn network_policies_allow(flow: &Flow<'_>, with_audited: bool) -> Option<bool> {
    let isolating: Vec<_> = flow
        .world
        .policies
        .iter()
        .filter(|policy| policy::selects(policy, flow.subject) && policy::isolates(policy, flow.direction))
        .collect();
    let (audited, enforced): (Vec<_>, Vec<_>) =
        isolating.into_iter().partition(|policy| audit::is_audited(flow.world, policy));
    let deciding = if enforced.is_empty() && with_audited { audited } else { enforced };
    (!deciding.is_empty()).then(|| flow.is_itself || deciding.iter().any(|policy| policy::allows(policy, flow)))
}

/// A flow, seen from one of its sides.
struct Flow<'a> {
    world: &'a World,
    direction: Direction,
    /// The pod whose side this is.
    subject: &'a Pod,
    /// The address at the other end.
    other: IpAddr,
    /// The pod that owns the address at the other end.
    other_pod: Option<&'a Pod>,
    /// The subject is at both ends.
    is_itself: bool,
    probe: &'a Probe,
}

impl Flow<'_> {
    /// The pod at the destination.
    fn destination_pod(&self) -> Option<&Pod> {
        match self.direction {
            Direction::Ingress => Some(self.subject),
            Direction::Egress => self.other_pod,
        }
    }
}
