//! The roles of chains, with their fixed names or the prefixes of their names.

use nft::{Family, Name};

use super::super::audit::{self, AuditRole};
use super::super::reporting::Cause;
use super::super::tiers::ProgramHook;
use super::super::{
    Direction, bridge_ports, dispatch, dns_answers, edge, hairpin, icmp_errors, layout, own_node, reporting, tunnels,
};
use super::head;

const AUDITED: &str = "audit-";
const PENDING: &str = "pending-";

/// The purpose of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::translate) enum ChainRole {
    /// Base chain `forward`.
    Forward,
    /// Approves flows that an ingress program allows.
    Approve,
    /// Approves flows that only an egress program judges.
    ApproveEgress,
    /// Dispatches to the programs of a direction.
    Dispatch(Direction),
    SourceRoute,
    /// Denies TCP segments of connections that conntrack does not know.
    MidStream,
    /// Base chain `input`.
    Input,
    ToOwnNode,
    /// Base chain that copies fragments of pods before they are reassembled.
    DnsFragmented,
    /// Base chains at the forward and postrouting hooks that copy segments from and to resolvers.
    DnsForwarded,
    DnsLeaving,
    /// Base chains at the output and input hooks that copy packets of a resolver on this node.
    DnsAnswers,
    DnsQuestions,
    /// Copies TCP segments from (egress) and to (ingress) pods.
    DnsSegments(Direction, Family),
    Related,
    Stray,
    StrayOfIsolated,
    /// Discovery messages, in the table of family `inet` or at interfaces.
    Discovery,
    EdgeDiscovery,
    TunnelForwarded,
    TunnelWrapped,
    TunnelToOwnNode,
    /// Base chain `prerouting`.
    Prerouting,
    /// Base chain `output`.
    Output,
    /// Drops for the cause.
    Deny(Cause),
    /// The end of audited programs.
    AuditEnd(Direction),
    /// Reports flows that pending programs would deny.
    PendingReport(Direction),
    WouldAllow,
    WouldDeny,
    /// The end of enforced programs of NetworkPolicies.
    HairpinEnd(Direction),
    HairpinPending,
    HairpinReported,
    HairpinToIngress,
    /// Accepts what programs allow to the pods' own node.
    AllowedToOwnNode,
    ToClosedPorts,
    /// Belongs to the interface of one pod.
    Port(PortChain),
    /// Program of NetworkPolicies.
    Program(Direction, AuditRole),
    /// Allows a union of peers.
    Peers(Direction, AuditRole),
    /// Program of cluster policies, or the chain of a tier in it. At the node itself only egress is judged.
    TierProgram(ProgramHook, Direction, AuditRole),
    /// Decides about the other end of a flow by the rules of a tier.
    TierJudge(Direction, AuditRole),
    /// Not a name of the translator.
    Foreign,
}

/// The chains of one pod's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::translate) enum PortChain {
    Checks,
    Icmp,
    Neighbours,
}

impl PortChain {
    const ALL: [PortChain; 3] = [PortChain::Checks, PortChain::Icmp, PortChain::Neighbours];

    /// The part of the chain's name before the slash.
    pub(in crate::translate) fn as_str(self) -> &'static str {
        match self {
            PortChain::Checks => "pod",
            PortChain::Icmp => "icmp",
            PortChain::Neighbours => "neighbours",
        }
    }
}

const ROLES: [AuditRole; 3] = [AuditRole::Enforced, AuditRole::Audited, AuditRole::Pending];

impl ChainRole {
    /// The roles of single chains.
    fn single() -> impl Iterator<Item = ChainRole> {
        let plain = [
            ChainRole::Forward,
            ChainRole::Approve,
            ChainRole::ApproveEgress,
            ChainRole::SourceRoute,
            ChainRole::MidStream,
            ChainRole::Input,
            ChainRole::ToOwnNode,
            ChainRole::DnsFragmented,
            ChainRole::DnsForwarded,
            ChainRole::DnsLeaving,
            ChainRole::DnsAnswers,
            ChainRole::DnsQuestions,
            ChainRole::Related,
            ChainRole::Stray,
            ChainRole::StrayOfIsolated,
            ChainRole::Discovery,
            ChainRole::EdgeDiscovery,
            ChainRole::TunnelForwarded,
            ChainRole::TunnelWrapped,
            ChainRole::TunnelToOwnNode,
            ChainRole::Prerouting,
            ChainRole::Output,
            ChainRole::WouldAllow,
            ChainRole::WouldDeny,
            ChainRole::HairpinPending,
            ChainRole::HairpinReported,
            ChainRole::HairpinToIngress,
            ChainRole::AllowedToOwnNode,
            ChainRole::ToClosedPorts,
        ];
        let of_direction = |direction| {
            [
                ChainRole::Dispatch(direction),
                ChainRole::AuditEnd(direction),
                ChainRole::PendingReport(direction),
                ChainRole::HairpinEnd(direction),
                ChainRole::DnsSegments(direction, Family::V4),
                ChainRole::DnsSegments(direction, Family::V6),
            ]
        };
        let of_directions = Direction::BOTH.into_iter().flat_map(of_direction);
        plain.into_iter().chain(of_directions).chain(Cause::ALL.into_iter().map(ChainRole::Deny))
    }

    /// The roles of chains whose names have a prefix.
    fn prefixed() -> impl Iterator<Item = ChainRole> {
        let of_programs = |direction| {
            ROLES.into_iter().flat_map(move |role| {
                [
                    ChainRole::Program(direction, role),
                    ChainRole::Peers(direction, role),
                    ChainRole::TierProgram(ProgramHook::Forward, direction, role),
                    ChainRole::TierJudge(direction, role),
                ]
            })
        };
        let at_node =
            ROLES.into_iter().map(|role| ChainRole::TierProgram(ProgramHook::OwnNode, Direction::Egress, role));
        let of_ports = PortChain::ALL.into_iter().map(ChainRole::Port);
        Direction::BOTH.into_iter().flat_map(of_programs).chain(at_node).chain(of_ports)
    }

    /// The name of the only chain with the role; `None` if the role has many chains.
    pub(in crate::translate) fn fixed_name(self) -> Option<&'static str> {
        Some(match self {
            ChainRole::Forward => dispatch::FORWARD_CHAIN,
            ChainRole::Approve => dispatch::APPROVE,
            ChainRole::ApproveEgress => dispatch::APPROVE_EGRESS,
            ChainRole::Dispatch(Direction::Egress) => dispatch::EGRESS,
            ChainRole::Dispatch(Direction::Ingress) => dispatch::INGRESS,
            ChainRole::SourceRoute => dispatch::SOURCE_ROUTE,
            ChainRole::MidStream => dispatch::MID_STREAM,
            ChainRole::Input => tunnels::INPUT,
            ChainRole::ToOwnNode => own_node::TO_OWN_NODE,
            ChainRole::DnsFragmented => dns_answers::FRAGMENTED,
            ChainRole::DnsForwarded => dns_answers::FORWARDED,
            ChainRole::DnsLeaving => dns_answers::LEAVING,
            ChainRole::DnsAnswers => dns_answers::FROM_OWN_NODE,
            ChainRole::DnsQuestions => dns_answers::TO_OWN_NODE,
            ChainRole::DnsSegments(direction, family) => dns_answers::segment_chain(direction, family),
            ChainRole::Related => icmp_errors::RELATED,
            ChainRole::Stray => layout::STRAY,
            ChainRole::StrayOfIsolated => layout::STRAY_OF_ISOLATED,
            ChainRole::Discovery => layout::DISCOVERY,
            ChainRole::EdgeDiscovery => edge::EDGE_DISCOVERY,
            ChainRole::TunnelForwarded => tunnels::FORWARDED,
            ChainRole::TunnelWrapped => tunnels::WRAPPED,
            ChainRole::TunnelToOwnNode => tunnels::OWN_NODE,
            ChainRole::Prerouting => edge::PREROUTING,
            ChainRole::Output => edge::OUTPUT,
            ChainRole::Deny(cause) => cause.chain(),
            ChainRole::AuditEnd(direction) => reporting::audit_end(direction),
            ChainRole::PendingReport(direction) => reporting::pending_report(direction),
            ChainRole::WouldAllow => audit::WOULD_ALLOW,
            ChainRole::WouldDeny => audit::WOULD_DENY,
            ChainRole::HairpinEnd(direction) => hairpin::end(direction),
            ChainRole::HairpinPending => hairpin::PENDING,
            ChainRole::HairpinReported => hairpin::REPORTED,
            ChainRole::HairpinToIngress => hairpin::TO_INGRESS,
            ChainRole::AllowedToOwnNode => own_node::ALLOWED,
            ChainRole::ToClosedPorts => bridge_ports::TO_CLOSED,
            ChainRole::Port(_)
            | ChainRole::Program(..)
            | ChainRole::Peers(..)
            | ChainRole::TierProgram(..)
            | ChainRole::TierJudge(..)
            | ChainRole::Foreign => return None,
        })
    }

    /// The role of programs in a prefix, and the word after it; `None` for a role with a fixed name.
    fn prefix_parts(self) -> Option<(&'static str, &'static str)> {
        let (role, word) = match self {
            ChainRole::Port(chain) => (AuditRole::Enforced, chain.as_str()),
            ChainRole::Program(direction, role) => (role, direction.as_str()),
            ChainRole::Peers(Direction::Egress, role) => (role, "to"),
            ChainRole::Peers(Direction::Ingress, role) => (role, "from"),
            ChainRole::TierProgram(ProgramHook::Forward, Direction::Egress, role) => (role, "cluster-egress"),
            ChainRole::TierProgram(ProgramHook::Forward, Direction::Ingress, role) => (role, "cluster-ingress"),
            ChainRole::TierProgram(ProgramHook::OwnNode, _, role) => (role, "cluster-to-node"),
            ChainRole::TierJudge(Direction::Egress, role) => (role, "cluster-to"),
            ChainRole::TierJudge(Direction::Ingress, role) => (role, "cluster-from"),
            ChainRole::Forward
            | ChainRole::Approve
            | ChainRole::ApproveEgress
            | ChainRole::Dispatch(_)
            | ChainRole::SourceRoute
            | ChainRole::MidStream
            | ChainRole::Input
            | ChainRole::ToOwnNode
            | ChainRole::DnsFragmented
            | ChainRole::DnsForwarded
            | ChainRole::DnsLeaving
            | ChainRole::DnsAnswers
            | ChainRole::DnsQuestions
            | ChainRole::DnsSegments(..)
            | ChainRole::Related
            | ChainRole::Stray
            | ChainRole::StrayOfIsolated
            | ChainRole::Discovery
            | ChainRole::EdgeDiscovery
            | ChainRole::TunnelForwarded
            | ChainRole::TunnelWrapped
            | ChainRole::TunnelToOwnNode
            | ChainRole::Prerouting
            | ChainRole::Output
            | ChainRole::Deny(_)
            | ChainRole::AuditEnd(_)
            | ChainRole::PendingReport(_)
            | ChainRole::WouldAllow
            | ChainRole::WouldDeny
            | ChainRole::HairpinEnd(_)
            | ChainRole::HairpinPending
            | ChainRole::HairpinReported
            | ChainRole::HairpinToIngress
            | ChainRole::AllowedToOwnNode
            | ChainRole::ToClosedPorts
            | ChainRole::Foreign => return None,
        };
        let of_role = match role {
            AuditRole::Enforced => "",
            AuditRole::Audited => AUDITED,
            AuditRole::Pending => PENDING,
        };
        Some((of_role, word))
    }

    /// The part of the chains' names before the first slash.
    ///
    /// # Panics
    /// If the role has a fixed name.
    pub(in crate::translate) fn prefix(self) -> String {
        match self.prefix_parts() {
            Some((role, word)) => format!("{role}{word}"),
            None => unreachable!("the role {self:?} has no prefix"),
        }
    }

    pub(in crate::translate) fn of(name: &Name) -> ChainRole {
        let text = name.as_str();
        let is_of_prefix = |role: &ChainRole, head: &str| {
            let parts = role.prefix_parts();
            parts.is_some_and(|(role, word)| head.strip_prefix(role) == Some(word))
        };
        let of_head = || head(name).and_then(|head| ChainRole::prefixed().find(|role| is_of_prefix(role, head)));
        let single = ChainRole::single().find(|role| role.fixed_name() == Some(text));
        single.or_else(of_head).unwrap_or(ChainRole::Foreign)
    }

    /// Whether the chain is part of the fixed layout, or of an interface, rather than of a program.
    pub(in crate::translate) fn is_fixed(self) -> bool {
        self.of_program().is_none()
    }

    /// Whether the chain belongs to one pod's interface or is shared by them.
    pub(in crate::translate) fn is_of_interfaces(self) -> bool {
        matches!(self, ChainRole::Port(_) | ChainRole::Prerouting | ChainRole::Output | ChainRole::EdgeDiscovery)
    }

    /// Whether packets of approved flows meet the chain too, or its decisions depend on sets alone: then a change of its
    /// rules does not require flows to be judged again.
    pub(in crate::translate) fn is_always_judged(self) -> bool {
        match self {
            ChainRole::Forward
            | ChainRole::Approve
            | ChainRole::ApproveEgress
            | ChainRole::Dispatch(Direction::Egress)
            | ChainRole::SourceRoute
            | ChainRole::MidStream
            | ChainRole::Input
            | ChainRole::ToOwnNode
            | ChainRole::DnsFragmented
            | ChainRole::DnsForwarded
            | ChainRole::DnsLeaving
            | ChainRole::DnsAnswers
            | ChainRole::DnsQuestions
            | ChainRole::DnsSegments(..)
            | ChainRole::TunnelForwarded
            | ChainRole::TunnelWrapped
            | ChainRole::TunnelToOwnNode
            | ChainRole::Prerouting
            | ChainRole::Output
            | ChainRole::EdgeDiscovery
            | ChainRole::Port(_) => true,
            ChainRole::Dispatch(Direction::Ingress)
            | ChainRole::Related
            | ChainRole::Stray
            | ChainRole::StrayOfIsolated
            | ChainRole::Discovery
            | ChainRole::Deny(_)
            | ChainRole::AuditEnd(_)
            | ChainRole::PendingReport(_)
            | ChainRole::WouldAllow
            | ChainRole::WouldDeny
            | ChainRole::HairpinEnd(_)
            | ChainRole::HairpinPending
            | ChainRole::HairpinReported
            | ChainRole::HairpinToIngress
            | ChainRole::AllowedToOwnNode
            | ChainRole::ToClosedPorts
            | ChainRole::Program(..)
            | ChainRole::Peers(..)
            | ChainRole::TierProgram(..)
            | ChainRole::TierJudge(..)
            | ChainRole::Foreign => false,
        }
    }

    /// The direction and the role of the program that the chain belongs to; `None` for chains of the layout.
    fn of_program(self) -> Option<(Direction, AuditRole)> {
        match self {
            ChainRole::Program(direction, role)
            | ChainRole::Peers(direction, role)
            | ChainRole::TierProgram(_, direction, role)
            | ChainRole::TierJudge(direction, role) => Some((direction, role)),
            ChainRole::AllowedToOwnNode => Some((Direction::Egress, AuditRole::Enforced)),
            ChainRole::Forward
            | ChainRole::Approve
            | ChainRole::ApproveEgress
            | ChainRole::Dispatch(_)
            | ChainRole::SourceRoute
            | ChainRole::MidStream
            | ChainRole::Input
            | ChainRole::ToOwnNode
            | ChainRole::DnsFragmented
            | ChainRole::DnsForwarded
            | ChainRole::DnsLeaving
            | ChainRole::DnsAnswers
            | ChainRole::DnsQuestions
            | ChainRole::DnsSegments(..)
            | ChainRole::Related
            | ChainRole::Stray
            | ChainRole::StrayOfIsolated
            | ChainRole::Discovery
            | ChainRole::EdgeDiscovery
            | ChainRole::TunnelForwarded
            | ChainRole::TunnelWrapped
            | ChainRole::TunnelToOwnNode
            | ChainRole::Prerouting
            | ChainRole::Output
            | ChainRole::Deny(_)
            | ChainRole::AuditEnd(_)
            | ChainRole::PendingReport(_)
            | ChainRole::WouldAllow
            | ChainRole::WouldDeny
            | ChainRole::HairpinEnd(_)
            | ChainRole::HairpinPending
            | ChainRole::HairpinReported
            | ChainRole::HairpinToIngress
            | ChainRole::ToClosedPorts
            | ChainRole::Port(_)
            | ChainRole::Foreign => None,
        }
    }

    /// The role of the program that the chain belongs to, or that leads to it.
    pub(in crate::translate) fn program_role(self) -> AuditRole {
        self.of_program().map_or(AuditRole::Enforced, |(_, role)| role)
    }

    pub(in crate::translate) fn is_pending(self) -> bool {
        self.program_role() == AuditRole::Pending
    }

    /// The direction of a chain of cluster policies, pending or not.
    fn tier_direction(self) -> Option<Direction> {
        let is_of_tiers =
            matches!(self, ChainRole::TierProgram(..) | ChainRole::TierJudge(..) | ChainRole::AllowedToOwnNode);
        self.of_program().filter(|_| is_of_tiers).map(|(direction, _)| direction)
    }

    /// The direction of a chain of cluster policies that decides.
    pub(in crate::translate) fn deciding_tier_direction(self) -> Option<Direction> {
        self.tier_direction().filter(|_| !self.is_pending())
    }

    /// Whether the chain belongs to programs of cluster policies, pending or not.
    pub(in crate::translate) fn is_of_tiers(self) -> bool {
        self.tier_direction().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::fixed;
    use super::*;

    #[test]
    fn chain_name_parses_to_its_role() {
        for role in ChainRole::single() {
            let name = role.fixed_name().unwrap_or_else(|| panic!("{role:?} has no name"));
            assert_eq!(ChainRole::of(&fixed(name)), role);
        }
        for role in ChainRole::prefixed() {
            for rest in ["shop/web", "_/hint/digest", "shop/web/baseline"] {
                assert_eq!(ChainRole::of(&fixed(&format!("{}/{rest}", role.prefix()))), role);
            }
        }
        for foreign in ["egress-x/a", "audit", "audit-deny/ingress", "deny/x", "x"] {
            assert_eq!(ChainRole::of(&fixed(foreign)), ChainRole::Foreign, "{foreign}");
        }
    }
}
