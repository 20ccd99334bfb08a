//! The roles of sets and verdict maps, with their fixed names or the prefixes of their names.

use nft::{Family, Name};

use super::super::audit::AuditRole;
use super::super::reporting::flow_tables;
use super::super::tier_rules::TierDecision;
use super::super::{Direction, bridge_ports, edge, layout, reporting, tunnels};
use super::{ChainRole, head};

/// The purpose of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::translate) enum SetRole {
    /// The map from a local pod's address to its program.
    Dispatch(Direction, Family),
    /// The pods that are isolated in the direction.
    Guard(Direction, Family),
    /// The pods that are isolated in any direction, each with itself.
    SelfPairs(Family),
    /// The map to the programs that judge what a pod sends to its own node.
    OwnNodeDispatch(Family),
    OwnNodeGuard(Family),
    /// Ranges in which unknown addresses are denied.
    DeniedRanges(Family),
    /// The known pods of this node, in these ranges.
    KnownPods(Family),
    LinkScope,
    TunnelPorts,
    Nodes(Family),
    OwnPods(Family),
    /// The map from a pod's interface to its chain.
    Interfaces,
    LinkLocal,
    /// Link-local addresses of pods that are isolated for ingress.
    ClosedLinkLocal,
    /// Pods whose interfaces are unknown.
    UncheckedPods(Family),
    Hairpin(Family),
    HairpinAnyInterface(Family),
    /// A table of denied flows.
    FlowTable,
    OverflowSources(Family),
    PortProtocols,
    DnsClients(Family),
    DnsLimits(Family),
    DnsFragments(Family),
    DnsSegments(Family),
    DnsPaused(Family),
    ClosedPorts,
    ConfinedPorts,
    Groups(Family),
    Destinations(Family),
    /// The verdict map of a program from single ports.
    PortMap(ChainRole),
    /// The verdict map of a program from ranges of ports.
    RangeMap(PortOwner),
    Pods(Family),
    /// Pods of which some are excluded, outside of which rules allow.
    Excluded(Family),
    Blocks(Family),
    /// Addresses and ports that pods resolve named ports to.
    NamedPorts(Family),
    /// Addresses that rules of cluster policies lead to a decision.
    Decided {
        family: Family,
        kind: DecidedKind,
        word: DecisionWord,
    },
    /// Known pods and nodes, for programs of cluster policies.
    TierKnown(Family),
    /// Addresses that are in the pod range of no node.
    TierOutside(Family),
    /// Not a name of the translator.
    Foreign,
}

/// Whose program a map from ranges of ports belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::translate) enum PortOwner {
    NetworkPolicies,
    ClusterPolicies,
}

/// The addresses that a set of cluster policies holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::translate) enum DecidedKind {
    /// Those of pods and nodes.
    Members,
    /// Those of pods with named ports.
    NamedPorts,
    Networks,
    /// Those that only rules without ports decide.
    Rest,
    /// Learned ones of domain names.
    Learned,
}

impl DecidedKind {
    const ALL: [DecidedKind; 5] =
        [DecidedKind::Members, DecidedKind::NamedPorts, DecidedKind::Networks, DecidedKind::Rest, DecidedKind::Learned];

    /// The part of the set's name after the decision.
    pub(in crate::translate) fn suffix(self) -> &'static str {
        match self {
            DecidedKind::Members => "",
            DecidedKind::NamedPorts => "-named",
            DecidedKind::Networks => "-nets",
            DecidedKind::Rest => "-rest",
            DecidedKind::Learned => "-names",
        }
    }
}

/// The decision in the name of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::translate) enum DecisionWord {
    Deny,
    Accept,
    Pass,
}

impl DecisionWord {
    const ALL: [DecisionWord; 3] = [DecisionWord::Deny, DecisionWord::Accept, DecisionWord::Pass];

    /// With `only_denies`, nothing is stricter than an exception to denial.
    fn of(decision: TierDecision, only_denies: bool) -> DecisionWord {
        match decision {
            TierDecision::Deny => DecisionWord::Deny,
            TierDecision::Accept => DecisionWord::Accept,
            TierDecision::Pass if only_denies => DecisionWord::Accept,
            TierDecision::Pass => DecisionWord::Pass,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            DecisionWord::Deny => "deny",
            DecisionWord::Accept => "accept",
            DecisionWord::Pass => "pass",
        }
    }
}

/// How the elements of a set change what is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::translate) enum Effect {
    /// More elements allow less.
    Denies,
    /// More elements allow more.
    Accepts,
    /// Either may allow less.
    Unclear,
    /// None on approved flows: the set is looked up for every packet, or an approved flow may outlive its elements.
    NotOnApproved,
}

/// Whose rules refer to a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SetOwner {
    Layout,
    NetworkPolicies,
    ClusterPolicies,
}

/// The text for each family.
fn by_family(family: Family, texts: [&'static str; 2]) -> &'static str {
    let [v4, v6] = texts;
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

impl SetRole {
    pub(in crate::translate) fn decided(
        family: Family,
        kind: DecidedKind,
        decision: TierDecision,
        only_denies: bool,
    ) -> SetRole {
        SetRole::Decided { family, kind, word: DecisionWord::of(decision, only_denies) }
    }

    /// The roles of single sets.
    fn single() -> impl Iterator<Item = SetRole> {
        let plain = [
            SetRole::LinkScope,
            SetRole::TunnelPorts,
            SetRole::Interfaces,
            SetRole::LinkLocal,
            SetRole::ClosedLinkLocal,
            SetRole::PortProtocols,
            SetRole::ClosedPorts,
            SetRole::ConfinedPorts,
        ];
        let of_family = |family| {
            let of_direction =
                move |direction| [SetRole::Dispatch(direction, family), SetRole::Guard(direction, family)];
            let others = [
                SetRole::SelfPairs(family),
                SetRole::OwnNodeDispatch(family),
                SetRole::OwnNodeGuard(family),
                SetRole::DeniedRanges(family),
                SetRole::KnownPods(family),
                SetRole::Nodes(family),
                SetRole::OwnPods(family),
                SetRole::UncheckedPods(family),
                SetRole::Hairpin(family),
                SetRole::HairpinAnyInterface(family),
                SetRole::OverflowSources(family),
                SetRole::DnsClients(family),
                SetRole::DnsLimits(family),
                SetRole::DnsFragments(family),
                SetRole::DnsSegments(family),
                SetRole::DnsPaused(family),
                SetRole::Groups(family),
                SetRole::Destinations(family),
            ];
            Direction::BOTH.into_iter().flat_map(of_direction).chain(others)
        };
        plain.into_iter().chain(Family::BOTH.into_iter().flat_map(of_family))
    }

    /// The roles of sets whose names have a prefix, other than the maps of [`SetRole::PortMap`].
    fn prefixed() -> impl Iterator<Item = SetRole> {
        let of_family = |family| {
            let of_kind = move |kind| DecisionWord::ALL.map(|word| SetRole::Decided { family, kind, word });
            let others = [
                SetRole::Pods(family),
                SetRole::Excluded(family),
                SetRole::Blocks(family),
                SetRole::NamedPorts(family),
                SetRole::TierKnown(family),
                SetRole::TierOutside(family),
            ];
            others.into_iter().chain(DecidedKind::ALL.into_iter().flat_map(of_kind))
        };
        let of_ranges = [PortOwner::NetworkPolicies, PortOwner::ClusterPolicies].map(SetRole::RangeMap);
        Family::BOTH.into_iter().flat_map(of_family).chain(of_ranges)
    }

    /// The name of the only set with the role; `None` if the role has many sets.
    fn fixed_name(self) -> Option<&'static str> {
        Some(match self {
            SetRole::Dispatch(Direction::Egress, family) => by_family(family, ["egress4", "egress6"]),
            SetRole::Dispatch(Direction::Ingress, family) => by_family(family, ["ingress4", "ingress6"]),
            SetRole::Guard(Direction::Egress, family) => by_family(family, ["isolated-egress4", "isolated-egress6"]),
            SetRole::Guard(Direction::Ingress, family) => by_family(family, ["isolated-ingress4", "isolated-ingress6"]),
            SetRole::SelfPairs(family) => by_family(family, ["self4", "self6"]),
            SetRole::OwnNodeDispatch(family) => by_family(family, ["to-own-node4", "to-own-node6"]),
            SetRole::OwnNodeGuard(family) => by_family(family, ["judged-to-own-node4", "judged-to-own-node6"]),
            SetRole::DeniedRanges(family) => by_family(family, ["pod-cidrs4", "pod-cidrs6"]),
            SetRole::KnownPods(family) => by_family(family, ["known4", "known6"]),
            SetRole::LinkScope => layout::LINK_SCOPE,
            SetRole::TunnelPorts => tunnels::PORTS,
            SetRole::Nodes(family) => by_family(family, ["nodes4", "nodes6"]),
            SetRole::OwnPods(family) => by_family(family, ["own-pods4", "own-pods6"]),
            SetRole::Interfaces => edge::PORTS,
            SetRole::LinkLocal => edge::LINK_LOCAL,
            SetRole::ClosedLinkLocal => edge::CLOSED_LINK_LOCAL,
            SetRole::UncheckedPods(family) => by_family(family, ["unchecked-pods4", "unchecked-pods6"]),
            SetRole::Hairpin(family) => by_family(family, ["hairpin4", "hairpin6"]),
            SetRole::HairpinAnyInterface(family) => {
                by_family(family, ["hairpin-any-interface4", "hairpin-any-interface6"])
            }
            SetRole::OverflowSources(family) => by_family(family, ["overflow-sources4", "overflow-sources6"]),
            SetRole::PortProtocols => reporting::PORT_PROTOCOLS,
            SetRole::DnsClients(family) => by_family(family, ["dns-clients4", "dns-clients6"]),
            SetRole::DnsLimits(family) => by_family(family, ["dns-answers4", "dns-answers6"]),
            SetRole::DnsFragments(family) => by_family(family, ["dns-fragments4", "dns-fragments6"]),
            SetRole::DnsSegments(family) => by_family(family, ["dns-segments4", "dns-segments6"]),
            SetRole::DnsPaused(family) => by_family(family, ["dns-paused4", "dns-paused6"]),
            SetRole::ClosedPorts => bridge_ports::CLOSED,
            SetRole::ConfinedPorts => bridge_ports::CONFINED,
            SetRole::Groups(family) => by_family(family, ["groups4", "groups6"]),
            SetRole::Destinations(family) => by_family(family, ["destinations4", "destinations6"]),
            SetRole::FlowTable
            | SetRole::PortMap(_)
            | SetRole::RangeMap(_)
            | SetRole::Pods(_)
            | SetRole::Excluded(_)
            | SetRole::Blocks(_)
            | SetRole::NamedPorts(_)
            | SetRole::Decided { .. }
            | SetRole::TierKnown(_)
            | SetRole::TierOutside(_)
            | SetRole::Foreign => return None,
        })
    }

    /// The only set with the role.
    ///
    /// # Panics
    /// If the role has many sets.
    pub(in crate::translate) fn name(self) -> Name {
        match self.fixed_name() {
            Some(name) => layout::fixed(name),
            None => unreachable!("the role {self:?} has no fixed name"),
        }
    }

    /// The part of the sets' names before the first slash.
    ///
    /// # Panics
    /// If the role has a fixed name.
    pub(in crate::translate) fn prefix(self) -> String {
        match self {
            SetRole::PortMap(program) => program.prefix(),
            SetRole::RangeMap(PortOwner::NetworkPolicies) => "ports".into(),
            SetRole::RangeMap(PortOwner::ClusterPolicies) => "cluster-ports".into(),
            SetRole::Pods(family) => by_family(family, ["pods4", "pods6"]).into(),
            SetRole::Excluded(family) => by_family(family, ["excluded4", "excluded6"]).into(),
            SetRole::Blocks(family) => by_family(family, ["nets4", "nets6"]).into(),
            SetRole::NamedPorts(family) => by_family(family, ["named4", "named6"]).into(),
            SetRole::Decided { family, kind, word } => {
                format!("cluster-{}{}{}", word.as_str(), kind.suffix(), by_family(family, ["4", "6"]))
            }
            SetRole::TierKnown(family) => by_family(family, ["cluster-known4", "cluster-known6"]).into(),
            SetRole::TierOutside(family) => by_family(family, ["cluster-outside4", "cluster-outside6"]).into(),
            SetRole::Dispatch(..)
            | SetRole::Guard(..)
            | SetRole::SelfPairs(_)
            | SetRole::OwnNodeDispatch(_)
            | SetRole::OwnNodeGuard(_)
            | SetRole::DeniedRanges(_)
            | SetRole::KnownPods(_)
            | SetRole::LinkScope
            | SetRole::TunnelPorts
            | SetRole::Nodes(_)
            | SetRole::OwnPods(_)
            | SetRole::Interfaces
            | SetRole::LinkLocal
            | SetRole::ClosedLinkLocal
            | SetRole::UncheckedPods(_)
            | SetRole::Hairpin(_)
            | SetRole::HairpinAnyInterface(_)
            | SetRole::FlowTable
            | SetRole::OverflowSources(_)
            | SetRole::PortProtocols
            | SetRole::DnsClients(_)
            | SetRole::DnsLimits(_)
            | SetRole::DnsFragments(_)
            | SetRole::DnsSegments(_)
            | SetRole::DnsPaused(_)
            | SetRole::ClosedPorts
            | SetRole::ConfinedPorts
            | SetRole::Groups(_)
            | SetRole::Destinations(_)
            | SetRole::Foreign => unreachable!("the role {self:?} has no prefix"),
        }
    }

    pub(in crate::translate) fn of(name: &Name) -> SetRole {
        let Some(head) = head(name) else {
            let single = SetRole::single().find(|role| role.fixed_name() == Some(name.as_str()));
            let of_flows = || flow_tables().any(|table| table.set == *name).then_some(SetRole::FlowTable);
            return single.or_else(of_flows).unwrap_or(SetRole::Foreign);
        };
        if let Some(role) = SetRole::prefixed().find(|role| role.prefix() == head) {
            return role;
        }
        match ChainRole::of(name) {
            program @ (ChainRole::Program(..) | ChainRole::TierProgram(..)) => SetRole::PortMap(program),
            _ => SetRole::Foreign,
        }
    }

    /// How changes of the elements affect approved flows. The rules for unknown pods accept no flow that those for
    /// known pods and addresses outside deny.
    pub(in crate::translate) fn effect(self) -> Effect {
        match self {
            SetRole::Dispatch(..)
            | SetRole::Guard(..)
            | SetRole::OwnNodeDispatch(_)
            | SetRole::OwnNodeGuard(_)
            | SetRole::DeniedRanges(_)
            | SetRole::TunnelPorts
            | SetRole::ClosedLinkLocal
            | SetRole::Excluded(_)
            | SetRole::Decided { word: DecisionWord::Deny, .. } => Effect::Denies,
            SetRole::Interfaces
            | SetRole::LinkLocal
            | SetRole::UncheckedPods(_)
            | SetRole::Nodes(_)
            | SetRole::OwnPods(_)
            | SetRole::Decided { word: DecisionWord::Accept, kind: DecidedKind::Learned, .. } => Effect::NotOnApproved,
            SetRole::SelfPairs(_)
            | SetRole::KnownPods(_)
            | SetRole::LinkScope
            | SetRole::Hairpin(_)
            | SetRole::HairpinAnyInterface(_)
            | SetRole::FlowTable
            | SetRole::OverflowSources(_)
            | SetRole::PortProtocols
            | SetRole::DnsClients(_)
            | SetRole::DnsLimits(_)
            | SetRole::DnsFragments(_)
            | SetRole::DnsSegments(_)
            | SetRole::DnsPaused(_)
            | SetRole::ClosedPorts
            | SetRole::ConfinedPorts
            | SetRole::Groups(_)
            | SetRole::Destinations(_)
            | SetRole::PortMap(
                ChainRole::Program(..) | ChainRole::TierProgram(_, _, AuditRole::Audited | AuditRole::Pending),
            )
            | SetRole::RangeMap(PortOwner::NetworkPolicies)
            | SetRole::Pods(_)
            | SetRole::Blocks(_)
            | SetRole::NamedPorts(_)
            | SetRole::Decided { word: DecisionWord::Accept, .. }
            | SetRole::TierKnown(_)
            | SetRole::TierOutside(_) => Effect::Accepts,
            SetRole::PortMap(_)
            | SetRole::RangeMap(PortOwner::ClusterPolicies)
            | SetRole::Decided { word: DecisionWord::Pass, .. }
            | SetRole::Foreign => Effect::Unclear,
        }
    }

    /// Whether fewer elements of the set allow less.
    pub(in crate::translate) fn allows(self) -> bool {
        match self {
            SetRole::Dispatch(..)
            | SetRole::Guard(..)
            // The set of self-pairs lists the pods whose packets without a flow are dropped.
            | SetRole::SelfPairs(_)
            | SetRole::OwnNodeDispatch(_)
            | SetRole::OwnNodeGuard(_)
            | SetRole::DeniedRanges(_)
            | SetRole::TunnelPorts
            | SetRole::Nodes(_)
            | SetRole::OwnPods(_)
            | SetRole::Interfaces
            | SetRole::LinkLocal
            | SetRole::ClosedLinkLocal
            | SetRole::UncheckedPods(_)
            | SetRole::Foreign => false,
            SetRole::KnownPods(_)
            | SetRole::LinkScope
            | SetRole::Hairpin(_)
            | SetRole::HairpinAnyInterface(_)
            | SetRole::FlowTable
            | SetRole::OverflowSources(_)
            | SetRole::PortProtocols
            | SetRole::DnsClients(_)
            | SetRole::DnsLimits(_)
            | SetRole::DnsFragments(_)
            | SetRole::DnsSegments(_)
            | SetRole::DnsPaused(_)
            | SetRole::ClosedPorts
            | SetRole::ConfinedPorts
            | SetRole::Groups(_)
            | SetRole::Destinations(_)
            | SetRole::PortMap(_)
            | SetRole::RangeMap(_)
            | SetRole::Pods(_)
            | SetRole::Excluded(_)
            | SetRole::Blocks(_)
            | SetRole::NamedPorts(_)
            | SetRole::Decided { .. }
            | SetRole::TierKnown(_)
            | SetRole::TierOutside(_) => true,
        }
    }

    fn owner(self) -> SetOwner {
        match self {
            SetRole::PortMap(program) if program.is_of_tiers() => SetOwner::ClusterPolicies,
            SetRole::RangeMap(PortOwner::ClusterPolicies)
            | SetRole::Decided { .. }
            | SetRole::TierKnown(_)
            | SetRole::TierOutside(_) => SetOwner::ClusterPolicies,
            SetRole::PortMap(_)
            | SetRole::RangeMap(PortOwner::NetworkPolicies)
            | SetRole::Pods(_)
            | SetRole::Excluded(_)
            | SetRole::Blocks(_)
            | SetRole::NamedPorts(_) => SetOwner::NetworkPolicies,
            SetRole::Dispatch(..)
            | SetRole::Guard(..)
            | SetRole::SelfPairs(_)
            | SetRole::OwnNodeDispatch(_)
            | SetRole::OwnNodeGuard(_)
            | SetRole::DeniedRanges(_)
            | SetRole::KnownPods(_)
            | SetRole::LinkScope
            | SetRole::TunnelPorts
            | SetRole::Nodes(_)
            | SetRole::OwnPods(_)
            | SetRole::Interfaces
            | SetRole::LinkLocal
            | SetRole::ClosedLinkLocal
            | SetRole::UncheckedPods(_)
            | SetRole::Hairpin(_)
            | SetRole::HairpinAnyInterface(_)
            | SetRole::FlowTable
            | SetRole::OverflowSources(_)
            | SetRole::PortProtocols
            | SetRole::DnsClients(_)
            | SetRole::DnsLimits(_)
            | SetRole::DnsFragments(_)
            | SetRole::DnsSegments(_)
            | SetRole::DnsPaused(_)
            | SetRole::ClosedPorts
            | SetRole::ConfinedPorts
            | SetRole::Groups(_)
            | SetRole::Destinations(_)
            | SetRole::Foreign => SetOwner::Layout,
        }
    }

    /// Whether the set belongs to programs rather than to the fixed layout.
    pub(in crate::translate) fn is_of_programs(self) -> bool {
        self.owner() != SetOwner::Layout
    }

    /// Whether the set belongs to programs of cluster policies, pending or not.
    pub(in crate::translate) fn is_of_tiers(self) -> bool {
        self.owner() == SetOwner::ClusterPolicies
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::fixed;
    use super::super::super::tiers::ProgramHook;
    use super::*;

    #[test]
    fn set_name_parses_to_its_role() {
        for role in SetRole::single() {
            assert_eq!(SetRole::of(&role.name()), role);
        }
        for table in flow_tables() {
            assert_eq!(SetRole::of(&table.set), SetRole::FlowTable, "{}", table.set);
        }
        let programs = [
            ChainRole::Program(Direction::Egress, AuditRole::Audited),
            ChainRole::TierProgram(ProgramHook::OwnNode, Direction::Egress, AuditRole::Pending),
        ];
        for role in SetRole::prefixed().chain(programs.map(SetRole::PortMap)) {
            for rest in ["shop/web", "_/hint/digest", "shop/web/tcp"] {
                assert_eq!(SetRole::of(&fixed(&format!("{}/{rest}", role.prefix()))), role);
            }
        }
        for foreign in ["pods5/x", "cluster-deny/x", "pods4", "to/shop/tcp", "x"] {
            assert_eq!(SetRole::of(&fixed(foreign)), SetRole::Foreign, "{foreign}");
        }
    }
}
