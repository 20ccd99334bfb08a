//! The fields that a condition reads from a packet, which determine the tables and hooks where it is valid.

use std::net::IpAddr;

use crate::{EtherType, Family, Field, Match, Name};

/// The source of the fields that a condition compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldSource {
    /// The IP packet, available in every table.
    Packet,
    /// Conntrack, which frames on a bridge have not passed at prerouting, or a condition that nft refuses or spells
    /// differently in tables of frames.
    RoutedPacket,
    /// The link header, or ARP: tables of frames only.
    Frame,
}

/// The fields and the set that a condition reads.
pub(crate) struct Reads<'a> {
    pub(crate) source: FieldSource,
    /// The only address family for which the condition can hold, apart from those of its fields.
    pub(crate) family: Option<Family>,
    /// The fields that are looked up in the set.
    pub(crate) fields: &'a [Field],
    pub(crate) set: Option<&'a Name>,
}

impl Match {
    pub(crate) fn reads(&self) -> Reads<'_> {
        let of = |source, family| Reads { source, family, fields: &[], set: None };
        match self {
            Match::Mark { .. }
            | Match::State(_)
            | Match::Direction(_)
            | Match::DestinationTranslated
            | Match::SourceTranslated
            | Match::InvolvesHelper
            | Match::FlowPort(..)
            | Match::FlowSourcePort(..) => of(FieldSource::RoutedPacket, None),
            Match::Family(family) => of(FieldSource::RoutedPacket, Some(*family)),
            Match::Protocol(_)
            | Match::NotProtocol(_)
            | Match::NotTcpSyn
            | Match::IpProtocol(_)
            | Match::MulticastFrame
            | Match::HasRoute
            | Match::NotPriority(_)
            | Match::PrivateBytes(_)
            | Match::SourcePort(..)
            | Match::DestinationPort(..) => of(FieldSource::Packet, None),
            Match::IcmpType(..)
            | Match::IgmpType(..)
            | Match::QuotedWithoutOptions
            | Match::NotQuotedProtocol(_)
            | Match::Ipv4Protocol(_)
            | Match::FirstFragment
            | Match::Ipv4HeaderWords(_)
            | Match::NotIpv4HeaderWords(_)
            | Match::RouterAlert
            | Match::NotRouterAlert
            | Match::NotIpProtocol(_) => of(FieldSource::Packet, Some(Family::V4)),
            Match::Icmpv6Type(..)
            | Match::PlainIcmpv6Type(..)
            | Match::OnLinkIcmpv6Type(..)
            | Match::ListenerReport(..)
            | Match::FragmentedIcmpv6Type(..)
            | Match::HopLimit(_)
            | Match::NeighbourTarget(_)
            | Match::NotLinkAddress(..)
            | Match::QuotedNextHeader(_)
            | Match::NotQuotedNextHeader(_)
            | Match::NextHeader(_)
            | Match::FragmentOfOther(_) => of(FieldSource::Packet, Some(Family::V6)),
            Match::SourceIs(address) | Match::QuotedDestination(address) => {
                of(FieldSource::Packet, Some(Family::of(*address)))
            }
            Match::Rerouting(rerouting) => of(FieldSource::Packet, Some(rerouting.family())),
            Match::Fragment(family) | Match::NotFragment(family) => of(FieldSource::Packet, Some(*family)),
            Match::EtherType(kind @ (EtherType::Ipv4 | EtherType::Ipv6)) => of(FieldSource::Packet, kind.family()),
            Match::EtherType(EtherType::Arp)
            | Match::NotEtherType(_)
            | Match::NotFromHardware(_)
            | Match::ArpRequest
            | Match::ArpSender(_)
            | Match::ArpTarget(_)
            | Match::NotArpSenderHardware(_) => of(FieldSource::Frame, None),
            Match::InSet { fields, set } | Match::NotInSet { fields, set } => {
                let tracked = fields.iter().any(|field| field.is_of_flow());
                let source = if tracked { FieldSource::RoutedPacket } else { FieldSource::Packet };
                Reads { source, family: None, fields, set: Some(set) }
            }
        }
    }

    /// The set that the condition refers to.
    pub(crate) fn set(&self) -> Option<&Name> {
        self.reads().set
    }

    pub(crate) fn families(&self) -> impl Iterator<Item = Family> {
        let Reads { family, fields, .. } = self.reads();
        family.into_iter().chain(fields.iter().filter_map(|field| field.family()))
    }

    /// Whether the condition reads the port of a flow, which exists only for protocols with ports.
    pub(crate) fn reads_flow_port(&self) -> bool {
        matches!(self, Match::FlowPort(..) | Match::FlowSourcePort(..))
            || self.reads().fields.iter().any(|field| field.is_port_of_flow())
    }

    pub(crate) fn is_icmp_type_of(&self, family: Family) -> bool {
        match family {
            Family::V4 => matches!(self, Match::IcmpType(..)),
            Family::V6 => matches!(self, Match::PlainIcmpv6Type(..) | Match::OnLinkIcmpv6Type(..)),
        }
    }

    /// The family of the ICMP message whose body the condition reads.
    pub(crate) fn reads_icmp_body(&self) -> Option<Family> {
        match self {
            Match::NeighbourTarget(_)
            | Match::NotLinkAddress(..)
            | Match::QuotedNextHeader(_)
            | Match::NotQuotedNextHeader(_) => Some(Family::V6),
            Match::QuotedDestination(IpAddr::V4(_)) | Match::QuotedWithoutOptions | Match::NotQuotedProtocol(_) => {
                Some(Family::V4)
            }
            Match::QuotedDestination(IpAddr::V6(_)) => Some(Family::V6),
            _ => None,
        }
    }
}

impl Field {
    /// Whether the field is read from the conntrack entry.
    pub(crate) fn is_of_flow(self) -> bool {
        match self {
            Field::FlowSource(_) | Field::FlowDestination(_) | Field::FlowPort | Field::FlowSourcePort => true,
            Field::Source(_)
            | Field::Destination(_)
            | Field::L4Proto
            | Field::SourcePort
            | Field::DestinationPort
            | Field::InInterface
            | Field::OutInterface => false,
        }
    }

    pub(crate) fn is_port_of_flow(self) -> bool {
        matches!(self, Field::FlowPort | Field::FlowSourcePort)
    }

    /// The address family of the field, if it has one.
    pub(crate) fn family(self) -> Option<Family> {
        match self {
            Field::FlowSource(family)
            | Field::FlowDestination(family)
            | Field::Source(family)
            | Field::Destination(family) => Some(family),
            Field::L4Proto
            | Field::FlowPort
            | Field::FlowSourcePort
            | Field::SourcePort
            | Field::DestinationPort
            | Field::InInterface
            | Field::OutInterface => None,
        }
    }
}
