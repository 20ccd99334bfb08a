//! Source checks at pod interfaces: packets with the pod's own addresses pass, and what neighbour discovery needs.
//!
//! Egress policies are found by the source address of a flow, and the node itself replies to the claimed source. So the
//! check is done where packets leave the pod: in a table of family `netdev`, with one base chain at the ingress of each
//! pod's interface. If the kernel has no such hook, the same rules are in chains per interface at the prerouting hooks
//! of the families `inet` and `bridge`.
//!
//! A device inside the pod can mark packets so that they bypass every hook at the interface (`ifb` and
//! `skb_skip_tc_classify`). So the chain there sets a [priority](CHECKED) that no pod can set, and the prerouting hooks
//! drop packets that enter by a pod's interface without it.
//!
//! A pod may send packets whose headers are in pages that it can still modify. So rules only read bytes that
//! [`Match::PrivateBytes`] made the kernel copy, and only at fixed offsets in the packet.

mod pod_port;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, Datum, Element, Elements, EtherType, Family, Field, Hook, IgmpType, InterfaceName, Key,
    KeyType, LinkAddressOption, Match, Name, PacketPriority, ReroutingOption, Rule, Ruleset, Set, Table, TableFamily,
    Verdict,
};

use super::dispatch::{IGMP, IPV4_HEADER_WORDS, has_options};
use super::layout::{Layout, TABLE_COMMENT, fixed, goto};
use super::names::digest;
use super::private_headers::{self, ARP_PACKET};
use super::reporting::{Cause, add_deny_chain, chain_of, counted_drop, denied_for};
use super::roles::{ChainRole, PortChain};
use super::set_capacity::room_for;
use super::tunnels;
pub(super) use pod_port::{PodPort, pod_ports};

/// Where the packets of pods are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EdgeHook {
    /// At the ingress of each pod's interface (family `netdev`).
    Ingress,
    /// At the prerouting hooks of the families `inet` and `bridge`, for kernels without the former.
    Prerouting,
}

/// Discovery of neighbours and listeners.
const DISCOVERY: &str = "discovery";
pub(super) const EDGE_DISCOVERY: &str = "edge-discovery";
pub(super) const LINK_LOCAL: &str = "link-local6";
/// Link-local addresses of pods that are isolated for ingress.
pub(super) const CLOSED_LINK_LOCAL: &str = "closed-link-local6";
/// The priority of packets that were checked at their pod's interface. A veth resets it to zero when a packet leaves
/// the pod. Its last four bits are those of best effort, by which classless queueing disciplines choose a queue
/// (`TC_PRIO_MAX`).
const CHECKED: PacketPriority = PacketPriority { major: 0x5246, minor: 0x0010 };

/// The interfaces of pods, in the tables of the prerouting hooks, each with its chain.
pub(super) const PORTS: &str = "pod-ports";
pub(super) const PREROUTING: &str = "prerouting";
pub(super) const OUTPUT: &str = "output";
const CAUSES: [Cause; 5] =
    [Cause::ForgedSource, Cause::ForeignError, Cause::OtherProtocol, Cause::RouterAdvertisement, Cause::SourceRoute];

/// The subset of [`CAUSES`] that no other rule of the family `inet` uses.
const CAUSES_AT_PREROUTING: [Cause; 3] = [Cause::ForgedSource, Cause::OtherProtocol, Cause::RouterAdvertisement];

const ICMP: u8 = 1;
const TCP: u8 = 6;
const PIM: u8 = 103;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const HOP_BY_HOP_OPTIONS: u8 = 0;
const DESTINATION_OPTIONS: u8 = 60;
/// Protocols allowed in IPv6 fragments: TCP, UDP, ESP, ICMPv6, SCTP, UDP-Lite.
const FRAGMENTED: [u8; 6] = [TCP, UDP, 50, ICMPV6, 132, 136];
/// ICMP errors: destination unreachable, source quench and redirect; time exceeded and parameter problem
/// (`icmp_is_err`).
const ICMP_ERRORS: [(u8, u8); 2] = [(3, 5), (11, 12)];
/// RFC 4443, section 2.1.
const ICMPV6_ERRORS: (u8, u8) = (0, 127);
const PARAMETER_PROBLEM: u8 = 4;
/// Extension headers behind which the kernel looks for the flow that an error is about (`ipv6_ext_hdr`), and mobility.
/// Errors that quote a segment routing header are for the flow to its last segment (`seg6_icmp_srh`).
const EXTENSION_HEADERS: [u8; 6] = [HOP_BY_HOP_OPTIONS, 43, 44, tunnels::AUTHENTICATION, DESTINATION_OPTIONS, 135];
/// IPv4, IPv6 and GRE in IP. A node that terminates such a tunnel forwards an error about one of its packets to the
/// source of the encapsulated packet (`ip6ip6_err`, `ipip6_err_gen_icmpv6_unreach`), which the error's sender chose.
const TUNNELS: [u8; 3] = [4, 41, 47];
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Discovery of neighbours, listeners and routers, which must not be sent in fragments (RFC 6980).
const DISCOVERY_MESSAGES: [(u8, u8); 3] = [(130, REDIRECT), (143, 143), (151, 153)];
/// Reports of listeners: RFC 2710, section 3, and RFC 3810, section 5.2.
const LISTENER_REPORTS: [(u8, u8); 2] = [(131, 132), (143, 143)];

/// Multicast listener discovery (RFC 2710, RFC 3810) and multicast router discovery (RFC 4286), which use link-local
/// sources only.
const MULTICAST_LISTENERS: [(u8, u8); 3] = [(130, 132), (143, 143), (151, 153)];

/// Interface names may contain characters that chain names may not.
fn chain_name(chain: PortChain, interface: InterfaceName) -> Name {
    let prefix = ChainRole::Port(chain).prefix();
    let with_digest = || fixed(&format!("{prefix}/_/{}", digest(&interface.to_string())));
    Name::new(&format!("{prefix}/{interface}")).unwrap_or_else(|_| with_digest())
}

/// The table of family `netdev`; `None` without interfaces.
pub(super) fn ingress_table(layout: &Layout, ports: &[PodPort]) -> Option<Ruleset> {
    if ports.is_empty() {
        return None;
    }
    let mut ruleset = Ruleset::new(Table::netdev(layout.table().clone()), Comment::new(TABLE_COMMENT));
    ruleset.protected = layout.is_protected();
    add_shared(&mut ruleset, layout);
    for port in ports {
        add_port(&mut ruleset, port, Some(Hook::Ingress(port.interface)));
    }
    Some(ruleset)
}

/// Adds the check to a table of family `inet` or `bridge`, for the ports that its prerouting hook sees.
pub(super) fn add_prerouting<'a>(
    ruleset: &mut Ruleset,
    layout: &Layout,
    ports: impl IntoIterator<Item = &'a PodPort>,
    hook: Hook,
) {
    let hook_of_check = layout.edge_hook();
    let ports: Vec<&PodPort> = ports.into_iter().collect();
    if ports.iter().any(|port| port.is_checked_at_prerouting(hook_of_check)) {
        add_shared(ruleset, layout);
    } else {
        add_deny_chain(ruleset, layout, Cause::ForgedSource);
    }
    let mut map = Set { verdicts: true, ..Set::of(&[KeyType::InterfaceName]) };
    map.comment = Some(Comment::new("host sides of pods' interfaces"));
    for port in ports {
        let chain = match port.is_checked_at_prerouting(hook_of_check) {
            true => {
                add_port(ruleset, port, None);
                chain_name(PortChain::Checks, port.interface)
            }
            false => chain_of(Cause::ForgedSource),
        };
        let verdict = Some(Verdict::Goto(chain));
        let comment = Some(Comment::new(&port.pod.to_string()));
        map.elements.insert(Key::One(Datum::Interface(port.interface)), Element { verdict, comment });
    }
    map.size = Some(room_for(map.elements.len()));
    ruleset.sets.insert(fixed(PORTS), Arc::new(map));
    let dispatch = Action::VerdictMap { field: Field::InInterface, map: fixed(PORTS) };
    let rule = match hook_of_check {
        EdgeHook::Ingress => {
            let rule = Rule::new(vec![Match::NotPriority(CHECKED)], vec![dispatch]);
            rule.commented("packets of pods that were not checked at their interfaces")
        }
        EdgeHook::Prerouting => Rule::new(vec![], vec![dispatch]),
    };
    let chain = Chain { hook: Some(hook), rules: vec![rule] };
    ruleset.chains.insert(fixed(PREROUTING), Arc::new(chain));
    if hook.family() == TableFamily::Inet {
        let chain = Chain { hook: Some(Hook::Output), rules: vec![option_answer_rule()] };
        ruleset.chains.insert(fixed(OUTPUT), Arc::new(chain));
    }
}

/// A node that does not support a hop-by-hop option replies before any hook except the one at the interface
/// (`ipv6_parse_hopopts`), to a source that has not been checked.
fn option_answer_rule() -> Rule {
    let is_problem = Match::PlainIcmpv6Type(PARAMETER_PROBLEM, PARAMETER_PROBLEM);
    let matches = vec![Match::Family(Family::V6), is_problem, Match::QuotedNextHeader(HOP_BY_HOP_OPTIONS)];
    let rule = Rule { matches, ..counted_drop() };
    rule.commented("answers to options go to sources that are not checked yet")
}

/// Like [`add_prerouting`], but replaces what was added for other ports; adds nothing without ports.
pub(super) fn replace_prerouting(ruleset: &mut Ruleset, layout: &Layout, ports: &[&PodPort], hook: Hook) {
    if ruleset.sets.remove(&fixed(PORTS)).is_some() {
        let earlier: Vec<Name> =
            ruleset.chains.keys().filter(|name| ChainRole::of(name).is_of_interfaces()).cloned().collect();
        let denying = CAUSES_AT_PREROUTING.map(chain_of);
        for chain in earlier.iter().chain(&denying) {
            ruleset.chains.remove(chain);
        }
    }
    if !ports.is_empty() {
        add_prerouting(ruleset, layout, ports.iter().copied(), hook);
    }
}

/// Adds the chains and sets that all interfaces share.
fn add_shared(ruleset: &mut Ruleset, layout: &Layout) {
    for cause in CAUSES {
        add_deny_chain(ruleset, layout, cause);
    }
    add_link_local_set(ruleset);
    let rules = discovery_rules(ruleset.table.family);
    ruleset.chains.insert(fixed(discovery_chain(ruleset.table.family)), Arc::new(Chain { hook: None, rules }));
}

/// Fills the set of link-local addresses of pods isolated for ingress. These addresses do not dispatch to programs.
pub(super) fn place_closed_link_local(ruleset: &mut Ruleset, ports: &[PodPort]) {
    let closed = ports.iter().filter(|port| port.closed).flat_map(|port| &port.link_local);
    let key = |address: &Ipv6Addr| Key::One(Datum::V6(*address));
    let elements: Elements = closed.map(|address| (key(address), Element::default())).collect();
    if elements.is_empty() {
        ruleset.sets.remove(&fixed(CLOSED_LINK_LOCAL));
        return;
    }
    let mut set = Set { elements, ..Set::of(&[KeyType::Ipv6Addr]) };
    set.comment = Some(Comment::new("addresses of one link of pods that are isolated for ingress"));
    if ruleset.sets.get(&fixed(CLOSED_LINK_LOCAL)).is_none_or(|placed| **placed != set) {
        ruleset.sets.insert(fixed(CLOSED_LINK_LOCAL), Arc::new(set));
    }
}

/// The addresses of a link (RFC 4291, section 2.5.6).
pub(super) fn add_link_local_set(ruleset: &mut Ruleset) {
    let mut set = Set { interval: true, ..Set::of(&[KeyType::Ipv6Addr]) };
    set.comment = Some(Comment::new("addresses of one link"));
    let first = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
    let last = Ipv6Addr::from(u128::from(first) | u128::MAX >> 10);
    set.elements.insert(Key::Range(Datum::V6(first), Datum::V6(last)), Element::default());
    ruleset.sets.insert(fixed(LINK_LOCAL), Arc::new(set));
}

/// The name of the discovery chain. In the table of family `inet`, `discovery` is already the chain for strays.
fn discovery_chain(family: TableFamily) -> &'static str {
    match family {
        TableFamily::Inet => EDGE_DISCOVERY,
        TableFamily::Bridge | TableFamily::Netdev => DISCOVERY,
    }
}

fn accept(matches: Vec<Match>) -> Rule {
    Rule::new(matches, vec![Action::Verdict(Verdict::Accept)])
}

fn deny(matches: Vec<Match>, cause: Cause) -> Rule {
    Rule::new(matches, denied_for(cause))
}

/// The match on the address family, as the table's family expresses it.
fn of_family(table: TableFamily, family: Family) -> Match {
    match (table, family) {
        (TableFamily::Inet, family) => Match::Family(family),
        (TableFamily::Bridge | TableFamily::Netdev, Family::V4) => Match::EtherType(EtherType::Ipv4),
        (TableFamily::Bridge | TableFamily::Netdev, Family::V6) => Match::EtherType(EtherType::Ipv6),
    }
}

/// Packets allowed from a link-local or unspecified source: solicitations that no router has forwarded (RFC 4861,
/// section 7.1), and listener reports (RFC 3810, section 5). A snooping bridge ignores a report without the router
/// alert or in a unicast frame, while other listeners suppress theirs because of it, so their group would expire.
/// Neighbour advertisements jump to a chain of the pod.
fn discovery_rules(table: TableFamily) -> Vec<Rule> {
    let is_v6 = || of_family(table, Family::V6);
    let solicitation = |kind| accept(vec![is_v6(), Match::OnLinkIcmpv6Type(kind, kind)]);
    let report = |(first, last)| accept(vec![is_v6(), Match::MulticastFrame, Match::ListenerReport(first, last)]);
    let mut rules: Vec<Rule> = [ROUTER_SOLICITATION, NEIGHBOUR_SOLICITATION].map(solicitation).into();
    rules.extend(LISTENER_REPORTS.map(report));
    rules.push(deny(vec![], Cause::ForgedSource));
    rules
}

fn add_port(ruleset: &mut Ruleset, port: &PodPort, hook: Option<Hook>) {
    let table = ruleset.table.family;
    let neighbours = Chain { hook: None, rules: neighbour_rules(port, table) };
    ruleset.chains.insert(chain_name(PortChain::Neighbours, port.interface), Arc::new(neighbours));
    let icmp = Chain { hook: None, rules: icmp_rules(port, table) };
    ruleset.chains.insert(chain_name(PortChain::Icmp, port.interface), Arc::new(icmp));
    let checked = hook.map(|_| Rule::new(vec![], vec![Action::SetPriority(CHECKED)]));
    let rules = checked.into_iter().chain(port_rules(port, table)).collect();
    let chain = Chain { hook, rules };
    ruleset.chains.insert(chain_name(PortChain::Checks, port.interface), Arc::new(chain));
}

/// The rules for packets that a pod may send, most frequent first. All tables use them.
fn port_rules(port: &PodPort, table: TableFamily) -> Vec<Rule> {
    let sees_frames = match table {
        TableFamily::Bridge | TableFamily::Netdev => true,
        TableFamily::Inet => false,
    };
    let pod = port.pod.to_string();
    let mut rules = Vec::new();
    if port.bridged && sees_frames {
        rules.extend(frame_rules(port));
    }
    let plain = |bytes, address, conditions: &[Match]| {
        let family = Family::of(address);
        let own = [of_family(table, family), Match::PrivateBytes(bytes), Match::SourceIs(address)];
        accept(own.into_iter().chain(conditions.iter().cloned()).collect()).commented(&pod)
    };
    // A bridge processes the IGMP and PIM messages of its ports.
    let checked: &[u8] = if port.bridged { &[ICMP, IGMP, PIM] } else { &[ICMP] };
    let unchecked: Vec<Match> =
        checked.iter().copied().map(Match::NotIpProtocol).chain([Match::Ipv4HeaderWords(IPV4_HEADER_WORDS)]).collect();
    for bytes in private_headers::OF_TRANSPORT_V4 {
        rules.extend(port.addresses_of(Family::V4).map(|address| plain(bytes, address, &unchecked)));
    }
    for (next, bytes) in [(TCP, private_headers::OF_TCP_V6), (UDP, private_headers::OF_UDP_V6)] {
        rules.extend(port.addresses_of(Family::V6).map(|address| plain(bytes, address, &[Match::NextHeader(next)])));
    }
    if sees_frames {
        rules.extend(arp_rules(port));
    }
    for (family, bytes) in private_headers::of_others() {
        rules.push(Rule::new(vec![of_family(table, family), Match::PrivateBytes(bytes)], vec![]));
    }
    let to_icmp = |address| Rule::new(vec![Match::SourceIs(address)], goto_chain(PortChain::Icmp, port));
    let forged = |family| deny(vec![of_family(table, family)], Cause::ForgedSource);
    rules.extend(option_rules(port, table));
    rules.extend(port.addresses_of(Family::V4).map(to_icmp));
    rules.push(forged(Family::V4).commented("a pod sends with its own addresses only"));
    rules.push(authentication_rule(table));
    rules.extend(fragment_rules(table));
    rules.extend(router_rules(table));
    let routing_header = vec![of_family(table, Family::V6), Match::Rerouting(ReroutingOption::RoutingHeader)];
    rules.push(deny(routing_header, Cause::SourceRoute).commented("nodes may forward along a routing header"));
    rules.extend(extension_header_rules(port, table));
    rules.extend(port.addresses_of(Family::V6).map(to_icmp));
    rules.extend(discovery_of(port, table));
    rules.push(forged(Family::V6).commented("a pod sends with its own addresses only"));
    rules.push(deny(vec![], Cause::OtherProtocol).commented("policies do not judge other protocols"));
    rules
}

fn goto_chain(chain: PortChain, port: &PodPort) -> Vec<Action> {
    vec![Action::Verdict(Verdict::Goto(chain_name(chain, port.interface)))]
}

/// A node that refuses an IPv4 option replies before any hook except this one and prerouting, along the packet's source
/// route, to any address (`ip_options_compile`, `__ip_options_echo`). So a pod may send options only with reports of
/// its multicast groups, which need the router alert (RFC 3376, section 4).
fn option_rules(port: &PodPort, table: TableFamily) -> Vec<Rule> {
    let report = |address| {
        let alert = [Match::Ipv4HeaderWords(IPV4_HEADER_WORDS + 1), Match::RouterAlert];
        let matches = [Match::SourceIs(address), Match::Ipv4Protocol(IGMP)].into_iter().chain(alert).collect();
        Rule::new(matches, goto_chain(PortChain::Icmp, port))
    };
    let mut rules: Vec<Rule> = port.addresses_of(Family::V4).map(report).collect();
    let other = deny(vec![of_family(table, Family::V4), has_options()], Cause::SourceRoute);
    rules.push(other.commented("replies reverse the source route"));
    rules
}

/// To nftables, the authentication header is the upper-layer protocol of an IPv6 packet (RFC 4302). Conntrack parses
/// beyond it and could find an ICMP error or a tunnel there.
fn authentication_rule(table: TableFamily) -> Rule {
    let matches = vec![of_family(table, Family::V6), Match::NextHeader(tunnels::AUTHENTICATION)];
    deny(matches, Cause::OtherProtocol).commented("an authentication header hides the transport header")
}

/// A fragment is checked before the node or a bridge reassembles the packet, and may be truncated before that: a packet
/// can be longer than its header says. So the first fragment must show the transport header at its usual place, and
/// fragmented discovery is denied (RFC 6980).
fn fragment_rules(table: TableFamily) -> Vec<Rule> {
    let fragment = [of_family(table, Family::V6), Match::Fragment(Family::V6)];
    let other = deny(fragment.into_iter().chain(FRAGMENTED.map(Match::FragmentOfOther)).collect(), Cause::ForgedSource);
    let discovery = DISCOVERY_MESSAGES.map(|(first, last)| {
        let message = vec![of_family(table, Family::V6), Match::FragmentedIcmpv6Type(first, last)];
        deny(message, Cause::ForgedSource).commented("fragmented discovery")
    });
    std::iter::once(other.commented("extension headers behind the fragment header")).chain(discovery).collect()
}

/// Extension headers move the payload to an offset that rules do not read. Only listener reports need one, and their
/// link-local source is not among these addresses. Destination options could precede any other header.
fn extension_header_rules(port: &PodPort, table: TableFamily) -> Vec<Rule> {
    let deny = |source, number| {
        let rule = deny(vec![source, Match::NextHeader(number)], Cause::OtherProtocol);
        rule.commented("extension headers hide the transport header")
    };
    let own = port.addresses_of(Family::V6).map(Match::SourceIs);
    let mut rules: Vec<Rule> = own.map(|source| deny(source, HOP_BY_HOP_OPTIONS)).collect();
    rules.push(deny(of_family(table, Family::V6), DESTINATION_OPTIONS));
    rules
}

fn router_rules(table: TableFamily) -> impl Iterator<Item = Rule> {
    [ROUTER_ADVERTISEMENT, REDIRECT].into_iter().map(move |kind| {
        let of_router = vec![of_family(table, Family::V6), Match::PlainIcmpv6Type(kind, kind)];
        deny(of_router, Cause::RouterAdvertisement).commented("pods do not send messages of routers")
    })
}

/// Packets with the pod's own addresses that are not plain TCP or UDP. An ICMP error must be about a packet sent to the
/// pod: conntrack relates it to the quoted flow whoever sends it, and the node updates the path MTU of the quoted
/// destination. Errors are small, so fragmented ones are denied.
fn icmp_rules(port: &PodPort, table: TableFamily) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut check = |family: Family, error: Match, fragment: &[Match]| {
        let is_error = || vec![of_family(table, family), error.clone()];
        let quoted: Vec<Match> = match family {
            Family::V4 => [Match::NotFragment(family), Match::QuotedWithoutOptions]
                .into_iter()
                .chain(TUNNELS.map(Match::NotQuotedProtocol))
                .collect(),
            Family::V6 => EXTENSION_HEADERS.into_iter().chain(TUNNELS).map(Match::NotQuotedNextHeader).collect(),
        };
        for address in port.addresses_of(family) {
            let destination = Match::QuotedDestination(address);
            rules.push(accept(is_error().into_iter().chain([destination]).chain(quoted.clone()).collect()));
        }
        let foreign = deny([is_error(), fragment.to_vec()].concat(), Cause::ForeignError);
        rules.push(foreign.commented("a pod reports errors of its own flows only"));
    };
    if port.addresses_of(Family::V4).next().is_some() {
        for (first, last) in ICMP_ERRORS {
            check(Family::V4, Match::IcmpType(first, last), &[Match::FirstFragment]);
        }
    }
    if port.addresses_of(Family::V6).next().is_some() {
        let (first, last) = ICMPV6_ERRORS;
        check(Family::V6, Match::PlainIcmpv6Type(first, last), &[]);
        let fragmented = vec![of_family(table, Family::V6), Match::FragmentedIcmpv6Type(first, last)];
        rules.push(deny(fragmented, Cause::ForeignError).commented("errors are not fragmented"));
        rules.extend(link_address_rules(port, vec![of_family(table, Family::V6)]));
        if port.bridged {
            // Only the node receives advertisements of a routed pod, and it solicits only the pod's own addresses.
            let advertisement = vec![of_family(table, Family::V6), neighbour_advertisement()];
            rules.push(Rule::new(advertisement, goto_chain(PortChain::Neighbours, port)));
            for (first, last) in MULTICAST_LISTENERS {
                let listener = vec![of_family(table, Family::V6), Match::PlainIcmpv6Type(first, last)];
                let rule = deny(listener, Cause::RouterAdvertisement);
                rules.push(rule.commented("listeners report with link-local addresses"));
            }
        }
    }
    if port.bridged && port.addresses_of(Family::V4).next().is_some() {
        rules.extend(multicast_router_rules(table));
    }
    rules.push(accept(vec![]));
    rules
}

/// A snooping bridge treats the sender of a query as the querier, and forwards all multicast to the port of a multicast
/// router (`br_multicast_ipv4_rcv`), so a pod may only send reports. A bridge sees another type than the rules in a
/// fragmented packet. Reports in unicast frames suppress those of other listeners, unseen by the bridge.
fn multicast_router_rules(table: TableFamily) -> Vec<Rule> {
    let of_listener = |(words, kind)| {
        let whole = Match::NotFragment(Family::V4);
        accept(vec![of_family(table, Family::V4), whole, Match::MulticastFrame, Match::IgmpType(words, kind)])
    };
    let of_router = |protocol| {
        let matches = vec![of_family(table, Family::V4), Match::Ipv4Protocol(protocol)];
        deny(matches, Cause::RouterAdvertisement).commented("pods do not send messages of routers")
    };
    // The lengths with the router alert and, for IGMPv1, without.
    let lengths = [IPV4_HEADER_WORDS + 1, IPV4_HEADER_WORDS];
    let reports = lengths.into_iter().flat_map(|words| IgmpType::OF_HOSTS.map(|kind| (words, kind)));
    reports.map(of_listener).chain([IGMP, PIM].map(of_router)).collect()
}

fn neighbour_advertisement() -> Match {
    Match::PlainIcmpv6Type(NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_ADVERTISEMENT)
}

/// The receiver of neighbour discovery sends to the hardware address in its options (RFC 4861, section 7.2.3), not to
/// that of the frame: a node would send packets to the pod to any port of the bridge, or to all of them, with policies
/// for the pod. The first option counts, and kernels send no other before it, except for the nonce of duplicate address
/// detection (RFC 7527), whose source is unspecified.
fn link_address_rules(port: &PodPort, of_source: Vec<Match>) -> Vec<Rule> {
    let options = [
        (ROUTER_SOLICITATION, LinkAddressOption::RouterSolicitation),
        (NEIGHBOUR_SOLICITATION, LinkAddressOption::NeighbourSolicitation),
        (NEIGHBOUR_ADVERTISEMENT, LinkAddressOption::NeighbourAdvertisement),
    ];
    let Some(own) = port.hardware.filter(|_| port.bridged) else { return vec![] };
    let rule = |(kind, option)| {
        let matches = [Match::PlainIcmpv6Type(kind, kind), Match::NotLinkAddress(option, own)];
        let rule = deny(of_source.iter().cloned().chain(matches).collect(), Cause::ForgedSource);
        rule.commented("a pod announces its own hardware address only")
    };
    options.map(rule).into()
}

/// A bridge learns its forwarding table from the source hardware addresses of frames, and forwards tagged frames past
/// all rules.
fn frame_rules(port: &PodPort) -> Vec<Rule> {
    let mut rules = Vec::new();
    if let Some(own) = port.hardware {
        let other = deny(vec![Match::NotFromHardware(own)], Cause::ForgedSource);
        rules.push(other.commented("a pod sends with its own hardware address only"));
    }
    let others = [EtherType::Ipv4, EtherType::Ipv6, EtherType::Arp].map(Match::NotEtherType);
    rules.push(
        deny(others.into(), Cause::OtherProtocol).commented("policies do not judge other protocols or VLAN tags"),
    );
    rules
}

/// A pod may announce its own addresses and probe whether they are in use (RFC 5227, section 1.1). A probe for another
/// pod's address would keep that pod from using it.
fn arp_rules(port: &PodPort) -> Vec<Rule> {
    let is_arp = || Match::EtherType(EtherType::Arp);
    let mut rules = vec![Rule::new(vec![is_arp(), Match::PrivateBytes(ARP_PACKET)], vec![])];
    if let Some(own) = port.hardware.filter(|_| port.bridged) {
        rules.push(deny(vec![is_arp(), Match::NotArpSenderHardware(own)], Cause::ForgedSource));
    }
    for address in &port.addresses {
        if let IpAddr::V4(address) = address {
            rules.push(accept(vec![is_arp(), Match::ArpSender(*address)]));
            let without_address = Match::ArpSender(Ipv4Addr::UNSPECIFIED);
            rules.push(accept(vec![is_arp(), Match::ArpRequest, without_address, Match::ArpTarget(*address)]));
        }
    }
    rules.push(deny(vec![is_arp()], Cause::ForgedSource).commented("a pod announces its own addresses only"));
    rules
}

/// ICMPv6 of the pod with sources other than its own addresses. If its link-local addresses are unknown, discovery
/// passes with any.
fn discovery_of(port: &PodPort, table: TableFamily) -> Vec<Rule> {
    let link_local = match &port.link_local[..] {
        [] => vec![Match::InSet { fields: vec![Field::Source(Family::V6)], set: fixed(LINK_LOCAL) }],
        known => known.iter().map(|address| Match::SourceIs((*address).into())).collect(),
    };
    let mut rules = Vec::new();
    for own in link_local {
        rules.extend(link_address_rules(port, vec![own.clone()]));
        rules.push(Rule::new(vec![own.clone(), neighbour_advertisement()], goto_chain(PortChain::Neighbours, port)));
        rules.push(Rule::new(vec![own], goto(discovery_chain(table))));
    }
    let nobody = || Match::SourceIs(Ipv6Addr::UNSPECIFIED.into());
    let asks = Match::PlainIcmpv6Type(NEIGHBOUR_SOLICITATION, NEIGHBOUR_SOLICITATION);
    rules.push(
        Rule::new(vec![nobody(), asks], goto_chain(PortChain::Neighbours, port))
            .commented("whether its address is free"),
    );
    rules.push(Rule::new(vec![nobody()], goto(discovery_chain(table))).commented("a pod without an address yet"));
    rules
}

/// Advertisements for the pod's own addresses, and duplicate address detection for them (RFC 4862, section 5.4). A
/// probe for another pod's address would keep that pod from using it.
fn neighbour_rules(port: &PodPort, table: TableFamily) -> Vec<Rule> {
    let speaks = |more: Option<Match>| {
        let kinds = Match::OnLinkIcmpv6Type(NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT);
        let conditions = [of_family(table, Family::V6), kinds];
        accept(conditions.into_iter().chain(more).collect())
    };
    let own = port.addresses.iter().filter_map(|address| match address {
        IpAddr::V6(address) => Some(*address),
        IpAddr::V4(_) => None,
    });
    let targets = own.chain(port.link_local.iter().copied());
    let mut rules: Vec<Rule> = targets.map(|target| speaks(Some(Match::NeighbourTarget(target)))).collect();
    if port.link_local.is_empty() {
        rules.push(speaks(None).commented("the pod's link-local addresses are not known"));
    }
    rules.push(deny(vec![], Cause::ForgedSource).commented("a pod announces its own addresses only"));
    rules
}
