//! Rules between the ports of a bridge.
//!
//! On a bridge, the hardware address of a frame decides which pods receive it, and the frame's sender chooses that
//! address (also broadcast and multicast ones) whatever the packet's destination is. A pod may also have configured
//! further addresses itself. Policies are found by the known addresses of pods only. So a pod that is isolated for
//! ingress only receives packets to its known addresses. Only the family `bridge` sees a frame's output port.
//!
//! Policies judge a bridged packet only if the bridge calls the hooks of IP for it, which an administrator can switch
//! off at any time (`bridge-nf-call-iptables`, the module `br_netfilter`). Isolated pods neither receive nor send
//! packets for which the bridge has not called these hooks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, Datum, Element, EtherType, Family, Field, Hook, IgmpType, Key, KeyType, Match, Name, Rule,
    Ruleset, Set, Table, Verdict,
};

use super::dispatch::IPV4_HEADER_WORDS;
use super::edge::{LINK_LOCAL, PodPort, add_link_local_set, add_prerouting};
use super::layout::{Layout, TABLE_COMMENT, address_type, fixed};
use super::reporting::{Cause, add_deny_chain, denied_for};
use super::roles::SetRole;

/// Set of the bridge ports of pods that are isolated for ingress.
pub(super) const CLOSED: &str = "closed-ports";
/// Set of the bridge ports of pods that are isolated for egress.
pub(super) const CONFINED: &str = "confined-ports";
/// Chain that judges the packets that the node sends or forwards to ports in [`CLOSED`].
pub(super) const TO_CLOSED: &str = "to-closed-ports";

/// ICMPv6 types: router solicitation to neighbour advertisement (RFC 4861, section 4).
const NEIGHBOUR_DISCOVERY: (u8, u8) = (133, 136);
/// ICMPv6 types: query, report and done (RFC 2710, section 3.1), and report of version 2 (RFC 3810, section 5.2).
const LISTENER_DISCOVERY: [(u8, u8); 2] = [(130, 132), (143, 143)];

/// Name of the set of multicast and broadcast addresses. They belong to no pod, so [`destinations`] lacks them.
fn groups(family: Family) -> Name {
    SetRole::Groups(family).name()
}

/// Name of the set that pairs each port in [`CLOSED`] with the addresses of its pod.
fn destinations(family: Family) -> Name {
    SetRole::Destinations(family).name()
}

fn deny(matches: Vec<Match>, cause: Cause) -> Rule {
    Rule::new(matches, denied_for(cause))
}

fn add_set(ruleset: &mut Ruleset, name: Name, types: &[KeyType], comment: &str, keys: Vec<Key>) {
    let mut set = Set { comment: Some(Comment::new(comment)), ..Set::of(types) };
    set.elements = keys.into_iter().map(|key| (key, Element::default())).collect();
    ruleset.sets.insert(name, Arc::new(set));
}

/// The table of family `bridge`; `None` if no known interface of a pod is a port of a bridge.
pub(super) fn bridged(layout: &Layout, ports: &[PodPort]) -> Option<Ruleset> {
    let bridged: Vec<&PodPort> = ports.iter().filter(|port| port.bridged).collect();
    if bridged.is_empty() {
        return None;
    }
    let mut ruleset = Ruleset::new(Table::bridge(layout.table().clone()), Comment::new(TABLE_COMMENT));
    ruleset.protected = layout.is_protected();
    let closed = || bridged.iter().filter(|port| port.closed);
    let of_interface = |port: &&&PodPort| Key::One(Datum::Interface(port.interface));
    let mut add_ports = |name: &str, comment: &str, keys| {
        add_set(&mut ruleset, fixed(name), &[KeyType::InterfaceName], comment, keys);
    };
    let interfaces = closed().map(|port| of_interface(&port)).collect();
    add_ports(CLOSED, "host sides of pods that are isolated for ingress", interfaces);
    if layout.requires_hooks_of_bridge() || !layout.checks_sources() {
        let confined = bridged.iter().filter(|port| port.confined).map(|port| of_interface(&port)).collect();
        add_ports(CONFINED, "host sides of pods that are isolated for egress", confined);
    }
    for family in Family::BOTH {
        let of_port = |port: &PodPort| -> Vec<Key> {
            let key = |address| Key::Two(Datum::Interface(port.interface), Datum::from(address));
            port.addresses_of(family).map(key).collect()
        };
        let keys = closed().flat_map(|port| of_port(port)).collect();
        let types = [KeyType::InterfaceName, address_type(family)];
        add_set(&mut ruleset, destinations(family), &types, "permitted destinations of packets to isolated pods", keys);
    }
    let between_ports = Chain { hook: Some(Hook::BridgeForward), rules: between_ports_rules(layout) };
    ruleset.chains.insert(fixed("forward"), Arc::new(between_ports));
    let to_closed_ports = Chain { hook: None, rules: to_closed_ports_rules() };
    ruleset.chains.insert(fixed(TO_CLOSED), Arc::new(to_closed_ports));
    let from_node = Chain { hook: Some(Hook::BridgeOutput), rules: vec![from_node_rule()] };
    ruleset.chains.insert(fixed("output"), Arc::new(from_node));
    add_groups(&mut ruleset);
    add_deny_chain(&mut ruleset, layout, Cause::OtherDestination);
    add_deny_chain(&mut ruleset, layout, Cause::OtherProtocol);
    if layout.checks_sources() {
        add_prerouting(&mut ruleset, layout, bridged, Hook::Prerouting);
    } else {
        add_link_local_set(&mut ruleset);
    }
    Some(ruleset)
}

/// Accepts neighbour discovery (RFC 4861) that no router has forwarded, to any destination: it may be an address that
/// the receiver has configured itself, or is about to use (duplicate address detection).
fn neighbour_discovery() -> Rule {
    let (first, last) = NEIGHBOUR_DISCOVERY;
    let matches = vec![Match::EtherType(EtherType::Ipv6), Match::OnLinkIcmpv6Type(first, last)];
    Rule::new(matches, vec![Action::Verdict(Verdict::Accept)])
}

/// Accepts multicast listener discovery (RFC 2710, RFC 3810) to a group. Routers never forward it.
fn listener_discovery() -> [Rule; 2] {
    LISTENER_DISCOVERY.map(|(first, last)| {
        let to_group = Match::InSet { fields: vec![Field::Destination(Family::V6)], set: groups(Family::V6) };
        let matches = vec![Match::EtherType(EtherType::Ipv6), Match::ListenerReport(first, last), to_group];
        Rule::new(matches, vec![Action::Verdict(Verdict::Accept)])
    })
}

/// Accepts IGMP queries of the multicast router (RFC 2236, RFC 3376): hosts report their groups in response, and a
/// bridge stops forwarding a group to ports without reports. Queries that a pod sends are denied at the pod's port. The
/// rule requires the router alert, which queries have, and does not check their time to live.
fn group_query() -> Rule {
    let to_group = Match::InSet { fields: vec![Field::Destination(Family::V4)], set: groups(Family::V4) };
    let query = Match::IgmpType(IPV4_HEADER_WORDS + 1, IgmpType::Query);
    let matches = vec![Match::EtherType(EtherType::Ipv4), query, Match::RouterAlert, to_group];
    Rule::new(matches, vec![Action::Verdict(Verdict::Accept)])
}

/// Rules for frames between ports. A pod that is isolated for ingress only receives packets to its own addresses, from
/// whichever port: that of a pod, or an uplink with routers behind it. Frames with a VLAN tag are denied, because the
/// rules for packets do not match them, while the receiver removes a priority tag (VLAN 0) and processes the packet.
fn between_ports_rules(layout: &Layout) -> Vec<Rule> {
    let mut rules = vec![other_protocols_rule(Some(to_closed()))];
    if !layout.checks_sources() {
        rules.push(other_protocols_rule(Some(from_confined())));
    }
    rules.push(neighbour_discovery());
    rules.extend(listener_discovery());
    rules.push(group_query());
    for (kind, family) in [(EtherType::Ipv4, Family::V4), (EtherType::Ipv6, Family::V6)] {
        let fields = vec![Field::OutInterface, Field::Destination(family)];
        let others = Match::NotInSet { fields, set: destinations(family) };
        let rule = deny(vec![Match::EtherType(kind), to_closed(), others], Cause::OtherDestination);
        rules.push(rule.commented("isolated pods receive packets to their own addresses only"));
    }
    if !layout.checks_sources() {
        let from_link = Match::InSet { fields: vec![Field::Source(Family::V6)], set: fixed(LINK_LOCAL) };
        let matches = vec![Match::EtherType(EtherType::Ipv6), from_confined(), from_link];
        rules.push(deny(matches, Cause::OtherProtocol).commented("policies do not judge link-local addresses"));
    }
    if layout.requires_hooks_of_bridge() {
        rules.extend(hook_rules());
    }
    rules
}

fn to_closed() -> Match {
    Match::InSet { fields: vec![Field::OutInterface], set: fixed(CLOSED) }
}

fn from_confined() -> Match {
    Match::InSet { fields: vec![Field::InInterface], set: fixed(CONFINED) }
}

/// Denies frames that carry neither IP nor ARP, or carry a VLAN tag, because no hook of IP sees their packets.
/// `at_ports` restricts the rule to the ports of isolated pods; `None` in a chain that only judges frames of such
/// ports. (The source check denies these frames when any pod sends them.)
fn other_protocols_rule(at_ports: Option<Match>) -> Rule {
    let others = [EtherType::Ipv4, EtherType::Ipv6, EtherType::Arp].map(Match::NotEtherType);
    let matches = at_ports.into_iter().chain(others).collect();
    deny(matches, Cause::OtherProtocol).commented("policies do not judge other protocols or VLAN tags")
}

/// Rules by which isolated pods neither receive nor send packets for which the bridge has not called the hooks of IP:
/// no policy has judged these packets.
fn hook_rules() -> Vec<Rule> {
    let judged = Rule::new(vec![Match::HasRoute], vec![Action::Verdict(Verdict::Accept)]);
    let mut rules = vec![judged.commented("the bridge calls the hooks of IP (bridge-nf-call-iptables)")];
    for kind in [EtherType::Ipv4, EtherType::Ipv6] {
        for (field, set) in [(Field::OutInterface, CLOSED), (Field::InInterface, CONFINED)] {
            let isolated = Match::InSet { fields: vec![field], set: fixed(set) };
            let rule = deny(vec![Match::EtherType(kind), isolated], Cause::OtherProtocol);
            rules.push(rule.commented("policies do not judge packets for which the bridge skips the hooks of IP"));
        }
    }
    rules
}

/// Judges frames that the node sends to ports in [`CLOSED`]. Hosts of a bridge can make the node forward packets to an
/// address that a pod configured itself: one from a router advertisement (RFC 4862), a further link-local one, or one
/// for which they forged an entry in the node's neighbour table. No program is dispatched by such an address, so no
/// policy judges these packets. A bridge also floods frames of the node whose destination it has not learned.
fn from_node_rule() -> Rule {
    Rule::new(vec![to_closed()], vec![Action::Verdict(Verdict::Goto(fixed(TO_CLOSED)))])
}

/// Rules of [`TO_CLOSED`]: packets of the node reach the pod's own addresses, and groups, to which the node sends
/// listener queries. Neighbour discovery reaches all addresses: its hop limit of 255 shows that the node has not
/// forwarded it. No other packet has to reach a link-local address, because pods send only discovery from such an
/// address.
fn to_closed_ports_rules() -> Vec<Rule> {
    let own_only = |(kind, family)| {
        let destination = Field::Destination(family);
        let other = Match::NotInSet { fields: vec![Field::OutInterface, destination], set: destinations(family) };
        let to_no_group = Match::NotInSet { fields: vec![destination], set: groups(family) };
        let rule = deny(vec![Match::EtherType(kind), other, to_no_group], Cause::OtherDestination);
        rule.commented("isolated pods receive packets to their own addresses only")
    };
    let [v4, v6] = [(EtherType::Ipv4, Family::V4), (EtherType::Ipv6, Family::V6)].map(own_only);
    vec![other_protocols_rule(None), v4, neighbour_discovery(), v6]
}

fn add_groups(ruleset: &mut Ruleset) {
    let range = |first: IpAddr, last: IpAddr| Key::Range(Datum::from(first), Datum::from(last));
    let groups4 = range(Ipv4Addr::new(224, 0, 0, 0).into(), Ipv4Addr::new(239, 255, 255, 255).into());
    // All elements of a set with intervals are ranges, so that a single address is a range of one.
    let broadcast = range(Ipv4Addr::BROADCAST.into(), Ipv4Addr::BROADCAST.into());
    let groups6 = range(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), Ipv6Addr::from(u128::MAX).into());
    for (family, keys) in [(Family::V4, vec![groups4, broadcast]), (Family::V6, vec![groups6])] {
        let mut set = Set { interval: true, ..Set::of(&[address_type(family)]) };
        set.elements = keys.into_iter().map(|key| (key, Element::default())).collect();
        set.comment = Some(Comment::new(match family {
            Family::V4 => "multicast and broadcast",
            Family::V6 => "multicast",
        }));
        ruleset.sets.insert(groups(family), Arc::new(set));
    }
}

#[cfg(test)]
mod tests {
    use nft::{Packet, State, Stop, evaluate};
    use serde_json::json;

    use super::*;
    use crate::{
        Attachment, AttachmentId, Change, ClusterState, Enforcement, Kind, ObjectName, Translator, lower, translate,
    };

    /// A state in which a policy isolates a pod on a bridge in both directions.
    fn state(enforcement: Enforcement) -> ClusterState {
        let mut state = ClusterState::new();
        state.set_default_enforcement(enforcement);
        let pod = json!({"metadata": {"namespace": "shop", "name": "web"}});
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "closed"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
        });
        for (kind, object) in [(Kind::Pod, pod), (Kind::NetworkPolicy, policy)] {
            state.apply(Change::Set(lower(kind, &object).unwrap()));
        }
        state.attach(attachment("web", "veth0", 1));
        state
    }

    fn attachment(pod: &str, interface: &str, since: u64) -> Attachment {
        Attachment {
            id: AttachmentId { container: pod.into(), interface: "eth0".into() },
            pod: ObjectName::new("shop", pod),
            uid: None,
            addresses: ["10.0.0.1", "fd00::1"].map(|address| address.parse().unwrap()).into(),
            host_interface: Some(nft::InterfaceName::new(interface).unwrap()),
            bridged: true,
            input_interface: None,
            hardware_address: None,
            link_local: vec!["fe80::1".parse().unwrap()],
            since,
        }
    }

    fn layout() -> Layout {
        Layout::for_table("ringfence").unwrap()
    }

    fn closed_ports(enforcement: Enforcement) -> usize {
        let bridge = translate(&state(enforcement), "node-a", &layout()).bridge.unwrap();
        bridge.sets[&fixed(CLOSED)].elements.len()
    }

    #[test]
    fn redirecting_port_is_checked_at_prerouting() {
        let mut state = state(Enforcement::Enforce);
        let mut translator = Translator::new("node-a", layout());
        translator.begin(&state);
        for (redirecting, checked) in [("eth0", false), ("veth0", true), ("eth0", false)] {
            let changed = state.set_redirecting([nft::InterfaceName::new(redirecting).unwrap()].into());
            translator.update(&state, &changed);
            let (followed, fresh) = (translator.translation(), translate(&state, "node-a", &layout()));
            assert_eq!((&followed.ruleset, &followed.bridge), (&fresh.ruleset, &fresh.bridge));
            let edge = followed.edge.unwrap();
            assert!(edge.chains.contains_key(&fixed("pod/veth0")), "the chain at the interface stays");
            for ruleset in [followed.ruleset.in_first_generation(), followed.bridge.unwrap()] {
                assert_eq!(ruleset.chains.contains_key(&fixed("pod/veth0")), checked, "{ruleset}");
                assert_eq!(ruleset.validate(), vec![]);
            }
        }
    }

    #[test]
    fn audited_pod_has_open_bridge_port() {
        assert_eq!(closed_ports(Enforcement::Enforce), 1);
        assert_eq!(closed_ports(Enforcement::Audit), 0);
    }

    /// No policy selects the pod that claims the addresses.
    #[test]
    fn pod_that_lost_its_addresses_has_closed_port() {
        let mut state = state(Enforcement::Enforce);
        state.apply(Change::Set(
            lower(Kind::Pod, &json!({"metadata": {"namespace": "other", "name": "open"}})).unwrap(),
        ));
        let claiming = Attachment { pod: ObjectName::new("other", "open"), ..attachment("open", "veth1", 2) };
        state.attach(claiming);
        let bridge = translate(&state, "node-a", &layout()).bridge.unwrap();
        let closed: Vec<String> = bridge.sets[&fixed(CLOSED)].elements.iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(closed, ["\"veth0\""]);
    }

    /// Linux treats class E addresses (240.0.0.0/4) as unicast, and some clusters use them as addresses of pods.
    #[test]
    fn groups_contain_no_unicast_address() {
        let bridge = translate(&state(Enforcement::Enforce), "node-a", &layout()).bridge.unwrap();
        let groups = &bridge.sets[&groups(Family::V4)];
        for (address, is_group) in [
            ("223.255.255.255", false),
            ("224.0.0.0", true),
            ("239.255.255.255", true),
            ("240.0.0.0", false),
            ("255.255.255.254", false),
            ("255.255.255.255", true),
        ] {
            let datum = Datum::V4(address.parse().unwrap());
            assert_eq!(groups.find(&[datum]).is_some(), is_group, "{address}");
        }
    }

    #[test]
    fn closed_link_local_address_receives_discovery_only() {
        const ICMPV6: u8 = 58;
        let ruleset = translate(&state(Enforcement::Enforce), "node-a", &layout()).ruleset.in_first_generation();
        let passes = |source: &str, destination: &str, kind: u8, hop_limit: u8| {
            let [source, destination] = [source, destination].map(|address| address.parse().unwrap());
            let first = Packet::first(source, destination, ICMPV6, None);
            let packet = Packet { icmpv6_type: Some(kind), hop_limit, state: State::Untracked, flow: None, ..first };
            evaluate(&ruleset, &packet).stop == Stop::Accepted
        };
        for kind in (130..=136).chain([143]) {
            for hop_limit in [1, 63, 254] {
                for (source, destination) in [("fe80::9", "fe80::1"), ("fd00::9", "fe80::1"), ("fd00::9", "fe80::5")] {
                    assert!(!passes(source, destination, kind, hop_limit), "{kind} {hop_limit} {source} {destination}");
                }
                assert!(passes("fe80::9", "fe80::5", kind, hop_limit), "between hosts of the link");
                assert!(passes("fe80::9", "ff02::1", kind, hop_limit));
            }
            assert!(passes("fd00::9", "fe80::1", kind, 255));
        }
        assert!(!passes("fe80::9", "fe80::1", 128, 255), "an echo request without connection tracking");
    }
}
